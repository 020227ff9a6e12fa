"""The page 05_kernels."""

from attnlab.exhibits.kernels import ablation, climb, l4

__all__ = ["ablation", "climb", "l4"]
