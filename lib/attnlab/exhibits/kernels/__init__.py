"""The page 05_kernels."""

from attnlab.exhibits.kernels import ablation, carried, climb, l4, lead, summary

__all__ = ["ablation", "carried", "climb", "l4", "lead", "summary"]
