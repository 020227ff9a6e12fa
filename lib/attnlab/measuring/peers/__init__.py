"""Attention of other packages, each called as its users would."""
