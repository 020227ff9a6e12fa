"""Attention in FP8: quantising its inputs, and what that costs in accuracy."""
