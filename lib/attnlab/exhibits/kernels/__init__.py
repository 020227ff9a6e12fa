"""The page 05_kernels."""

from attnlab.exhibits.kernels import ablation, climb, compiled, lead

__all__ = ["ablation", "climb", "compiled", "lead"]
