"""The page 02_baseline."""
