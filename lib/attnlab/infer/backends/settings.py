"""The fastest backend at a shape, the cost of a token, and the error of attention within chunks."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from attnlab.infer import stats
from attnlab.infer.lookup import median_of
from attnlab.infer.results import Results
from attnlab.infer.stats import Interval
from attnlab.runs.rules import SEED
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing

GRID = "grid seq_len"


@dataclass(frozen=True)
class Setting:
    """The fastest backend at a shape, and the others whose ratio to it has an interval that holds 1."""

    shape: Shape
    row: pd.Series
    others: tuple[str, ...]

    @property
    def name(self) -> str:
        """The backend."""
        return str(self.row["implementation"])

    def per_token_ns(self) -> Interval:
        """The median over the tokens of queries, in ns."""
        median = median_of(self.row)
        scale = 1e3 / self.shape.tokens
        return Interval(scale * median.estimate, scale * median.low, scale * median.high)


def best(results: Results, shape: Shape, timing: Timing | None = None) -> Setting:
    """The fastest backend at a shape, and those that can't be distinguished from it.

    Raises:
        NotMeasured: nothing has a latency there.
    """
    fastest, rows = results.fastest(shape, timing), results.at(shape, timing)
    others = [str(name) for name in rows.index if name != fastest]
    same = tuple(name for name in others if holds_one(results.speedup(name, shape, timing, fastest)))
    return Setting(shape, rows.loc[fastest], same)


def holds_one(ratio: Interval) -> bool:
    """Whether an interval of a ratio includes 1."""
    return ratio.low <= 1 <= ratio.high


def cheapest_of(settings: Sequence[Setting]) -> int:
    """Position of the setting with the least time a token."""
    return int(np.argmin([setting.per_token_ns().estimate for setting in settings]))


def equal_per_token(results: Results, one: Setting, other: Setting) -> bool:
    """Whether the ratio of two medians per token, of different shapes, has an interval that holds 1."""
    return holds_one(per_token_ratio(results, (one.name, one.shape), (other.name, other.shape)))


def per_token_ratio(results: Results, one: tuple[str, Shape], other: tuple[str, Shape]) -> Interval:
    """Time a token in one case over that in another; the two share no rounds."""
    sides = [[samples / shape.tokens for samples in results.samples(name, shape)] for name, shape in (one, other)]
    ticks = [results.tick_us(results.row(name, shape)) / shape.tokens for name, shape in (one, other)]
    return stats.ratio_ci(sides[0], sides[1], tick=max(ticks))


HEADS = 16
"""Heads over which the error is taken."""


def error(seq_len: int, chunk: int, head_dim: int) -> tuple[float, float]:
    """Root mean square of the error of attention within chunks, and of attention over all keys.

    In float64, over `HEADS` heads of standard normal Q, K and V; `chunk` divides `seq_len`.
    """
    random = np.random.default_rng(SEED)
    heads = random.standard_normal((3, HEADS, seq_len, head_dim)).swapaxes(0, 1)
    errors, scales = [], []
    # A chunk of queries at a time: all scores at once would not fit the memory at long lengths.
    for q, k, v in heads:
        for own in (slice(start, start + chunk) for start in range(0, seq_len, chunk)):
            whole, part = _attention(q[own], k, v), _attention(q[own], k[own], v[own])
            errors.append(np.mean((part - whole) ** 2))
            scales.append(np.mean(whole**2))
    return float(np.sqrt(np.mean(errors))), float(np.sqrt(np.mean(scales)))


def _attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    scores = q @ k.T / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)) @ v
