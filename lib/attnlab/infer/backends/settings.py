"""The fastest backend at a shape, and the time of a token by it.

A setting is judged by its time per token, not per call: a call over a quarter of the tokens is not faster for being
shorter. Settings that share no rounds are compared by the ratio of their medians per token with its own interval;
backends at one shape are compared by paired rounds.
"""

from dataclasses import dataclass

import pandas as pd

from attnlab.infer import stats
from attnlab.infer.lookup import NotMeasured, median_of
from attnlab.infer.results import Results
from attnlab.infer.stats import Interval
from attnlab.study.shapes import Shape

GRID = "grid seq_len"


@dataclass(frozen=True)
class Setting:
    """The fastest backend at a shape, and the others whose ratio to it has an interval that holds 1."""

    shape: Shape
    row: pd.Series
    others: tuple[str, ...]

    @property
    def name(self) -> str:
        return str(self.row["implementation"])

    def per_token_ns(self) -> Interval:
        """The median over the tokens of queries, in ns."""
        return median_of(self.row).scaled(1e3 / self.shape.tokens)


def best(results: Results, shape: Shape) -> Setting:
    """The fastest backend at a shape, and those that can't be distinguished from it.

    Raises NotMeasured where nothing has a latency there.
    """
    fastest, rows = results.fastest(shape), results.at(shape)
    others = [str(name) for name in rows.index if name != fastest]
    same = tuple(name for name in others if results.speedup(name, shape, baseline=fastest).holds(1))
    return Setting(shape, rows.loc[fastest], same)


def along(results: Results, sweep: str) -> list[Setting]:
    """The fastest backend at each shape of a sweep at which anything has a latency.

    Raises NotMeasured where the study has no such sweep, or nothing has a latency in it.
    """
    found = [best(results, shape) for shape in results.sweep(sweep) if not results.at(shape).empty]
    if not found:
        raise NotMeasured(f"Nothing has a latency in the sweep “{sweep}”")
    return found


def _equal_per_token(results: Results, one: Setting, other: Setting) -> bool:
    """Whether the ratio of two medians per token has an interval that holds 1; the two share no rounds."""
    mine, its = ([us / of.shape.tokens for us in results.samples(of.name, of.shape)] for of in (one, other))
    tick = max(results.tick_us(of.name, of.shape) / of.shape.tokens for of in (one, other))
    return stats.ratio_ci(mine, its, tick=tick).holds(1)


@dataclass(frozen=True)
class Cheapest:
    """Of the settings of one number of heads, the one with the least time a token.

    Attributes:
        among: how many settings there are.
        same: those whose ratio to it has an interval that holds 1.
    """

    among: int
    least: Setting
    same: list[Setting]


def cheapest(results: Results, sweep: str) -> list[Cheapest]:
    """The cheapest setting of a sweep for each number of heads: other heads are another model, and another task.

    Raises NotMeasured where nothing has a latency in it.
    """
    by_heads: dict[int, list[Setting]] = {}
    for setting in along(results, sweep):
        by_heads.setdefault(setting.shape.heads, []).append(setting)
    found = []
    for settings in by_heads.values():
        least = min(settings, key=lambda setting: setting.per_token_ns().estimate)
        same = [other for other in settings if other is not least and _equal_per_token(results, least, other)]
        found.append(Cheapest(len(settings), least, same))
    return found
