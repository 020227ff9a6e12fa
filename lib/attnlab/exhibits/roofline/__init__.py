"""The page 03_roofline."""
