"""The page 03_roofline."""

from attnlab.exhibits.roofline import curves, floor, literature

__all__ = ["curves", "floor", "literature"]
