"""The page 02_baseline."""

from attnlab.exhibits.baseline import again, correctness, lengths, spread, sweeps

__all__ = ["again", "correctness", "lengths", "spread", "sweeps"]
