"""The page 06_verdicts."""
