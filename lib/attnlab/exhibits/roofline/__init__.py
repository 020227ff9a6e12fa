"""The page 03_roofline."""

from attnlab.exhibits.roofline import curves, floor, literature, shares

__all__ = ["curves", "floor", "literature", "shares"]
