"""The page 03_roofline."""

from attnlab.exhibits.roofline import floor, literature, published

__all__ = ["floor", "literature", "published"]
