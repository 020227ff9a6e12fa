"""The page 02_baseline."""

from attnlab.exhibits.baseline import correctness, figures, reproducibility, spread, sweeps

__all__ = ["correctness", "figures", "reproducibility", "spread", "sweeps"]
