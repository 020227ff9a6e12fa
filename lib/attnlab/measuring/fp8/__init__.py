"""Attention in FP8: quantising its inputs, and the cost in accuracy."""
