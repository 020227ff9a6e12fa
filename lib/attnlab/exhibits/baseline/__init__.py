"""The page 02_baseline."""

from attnlab.exhibits.baseline import again, correctness, spread, sweeps

__all__ = ["again", "correctness", "spread", "sweeps"]
