"""The page 01_environment."""
