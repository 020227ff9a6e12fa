"""The page 04_backends."""
