"""The page 02_baseline."""

from attnlab.exhibits.baseline import correctness, figures, lengths, reproducibility, spread, sweeps

__all__ = ["correctness", "figures", "lengths", "reproducibility", "spread", "sweeps"]
