"""The page 05_kernels."""

from attnlab.exhibits.kernels import ablation, climb, compiled, l4, lead

__all__ = ["ablation", "climb", "compiled", "l4", "lead"]
