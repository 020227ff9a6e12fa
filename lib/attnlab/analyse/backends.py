"""Which backend, batch and length to choose: per call, per sequence, per token, and what that costs.

A setting is judged by the time that a token takes in it, not by that of a call: a call over a quarter of the tokens is
no faster for being shorter. Settings that share no rounds are compared by the ratio of their medians per token with its
own interval; backends at one shape, by rounds taken together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from attnlab import stats
from attnlab.analyse import chunks, formats
from attnlab.analyse.display import Figure, Prose, Table, telling
from attnlab.analyse.figures import AXIS_TITLES, legend, look, plain_logarithm, powers_of_two, styled
from attnlab.analyse.results import NotMeasured, Results, axis_of, median_of
from attnlab.analyse.tables import LETTERS, explanations, light, sign, without
from attnlab.shapes import Shape
from attnlab.stats import Interval
from attnlab.studies import Timing

GRID = "grid seq_len"


@dataclass(frozen=True)
class Setting:
    """A backend at a shape: the fastest there, and the others that can't be told from it."""

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
    """The fastest backend at a shape and those of which the interval of the ratio holds 1.

    Raises:
        NotMeasured: nothing has a latency there.
    """
    fastest, rows = results.fastest(shape, timing), results.at(shape, timing)
    others = [str(name) for name in rows.index if name != fastest]
    same = tuple(name for name in others if _holds_one(results.speedup(name, shape, timing, fastest)))
    return Setting(shape, rows.loc[fastest], same)


def _holds_one(ratio: Interval) -> bool:
    return ratio.low <= 1 <= ratio.high


@telling
def choice(results: Results, sweep: str) -> Table:
    """The best backend at each shape of a sweep: per call, per sequence, per token."""
    axis, settings = axis_of(sweep), _settings(results, results.sweep(sweep))
    rows = [_chosen(setting) | {"share of the floor": light(setting.row)} for setting in settings]
    letters = _varying([setting.shape for setting in settings], axis)
    for row, setting in zip(rows, settings, strict=True):
        row |= {LETTERS[each]: getattr(setting.shape, each) for each in letters}
    frame = pd.DataFrame(rows)
    frame = frame[[*(LETTERS[each] for each in letters), *(c for c in frame if c not in LETTERS.values())]]
    told = (
        "Fastest by its median, with the backends whose ratio to it has an interval that holds 1. Sequences and tokens "
        "are those of the queries, over the median of a call."
    )
    absent = [_absent(results, setting.shape) for setting in settings]
    note = " ".join(filter(None, [told, *absent, explanations([setting.row for setting in settings])]))
    # Other heads are another model, of which a token is another task.
    highlight = None if "heads" in letters else _cheapest(settings)
    return Table(frame, f"choice-{sweep.replace(' ', '-')}", f"{_title(results, sweep)}.", note, highlight)


def _absent(results: Results, shape: Shape) -> str:
    """That the baseline has no latency at a shape, and why: what is fastest there was not compared with it."""
    return without(results, [results.study.baseline], shape).replace(
        "no latency here", f"no latency at {formats.shape(shape)}"
    )


def _chosen(setting: Setting) -> dict[str, Any]:
    median = median_of(setting.row)
    return {
        "fastest": "\n".join([setting.name, *(f"or {name}" for name in setting.others)]),
        "call (µs) [95 %]": formats.stacked(median),
        "TFLOP/s": formats.number(setting.row["throughput_tflops"]) + sign(setting.row["throughput_mark"]),
        "sequences/s": formats.number(1e6 * setting.shape.batch / median.estimate),
        "tokens/s": formats.number(1e6 * setting.shape.tokens / median.estimate),
        "ns a token [95 %]": formats.stacked(setting.per_token_ns()),
    }


def _settings(results: Results, shapes: Sequence[Shape]) -> list[Setting]:
    there = [shape for shape in shapes if not results.at(shape).empty]
    if not there:
        raise NotMeasured(f"Nothing has a latency at {formats.shapes(list(shapes))}")
    return [best(results, shape) for shape in there]


def _cheapest(settings: Sequence[Setting]) -> int:
    return int(np.argmin([setting.per_token_ns().estimate for setting in settings]))


def _varying(shapes: Sequence[Shape], axis: str) -> list[str]:
    """The axes whose letters a table needs: that of the sweep, and what else differs on its own."""
    sizes = {each: [getattr(shape, each) for shape in shapes] for each in LETTERS}
    follows = [each for each, like in (("kv_heads", "heads"), ("kv_len", "seq_len")) if sizes[each] == sizes[like]]
    return [each for each in LETTERS if each == axis or (len(set(sizes[each])) > 1 and each not in follows)]


def _title(results: Results, sweep: str) -> str:
    shape = results.sweep(sweep)[0]
    words = [shape.dtype, *(["causal"] if shape.causal else []), f"D={shape.head_dim}"]
    return (
        f"Along “{sweep}” ({', '.join(words)}): the fastest backend, and what a token takes; {results.headline.words}"
    )


@telling
def settled(results: Results) -> Prose:
    """The setting of the grid in which a token takes the least, and those that can't be told from it."""
    settings = _settings(results, results.sweep(GRID))
    cheapest = settings[_cheapest(settings)]
    same = [setting for setting in settings if setting is not cheapest and _equal_per_token(results, cheapest, setting)]
    told = (
        f"Of the {len(settings)} settings of the grid a token takes the least at {_setting(cheapest.shape)}, by "
        f"`{cheapest.name}`: {formats.interval(cheapest.per_token_ns())} ns."
    )
    if not same:
        return Prose(f"{told} Every other setting takes more, by the 95 % interval of the ratio.")
    listed = formats.listing([f"{_setting(setting.shape)} (`{setting.name}`)" for setting in same])
    return Prose(f"{told} By the 95 % interval of the ratio it can't be told from {listed}.")


def _equal_per_token(results: Results, one: Setting, other: Setting) -> bool:
    """Whether the ratio of two medians per token, of different shapes, has an interval that holds 1."""
    return _holds_one(_per_token_ratio(results, (one.name, one.shape), (other.name, other.shape)))


def _per_token_ratio(results: Results, one: tuple[str, Shape], other: tuple[str, Shape]) -> Interval:
    """Time a token of one case over that of another, which share no rounds."""
    sides = [[samples / shape.tokens for samples in results.samples(name, shape)] for name, shape in (one, other)]
    ticks = [results.tick_us(results.row(name, shape)) / shape.tokens for name, shape in (one, other)]
    return stats.ratio_ci(sides[0], sides[1], tick=max(ticks))


def _setting(shape: Shape) -> str:
    return f"B={shape.batch}, H={shape.heads}, S={shape.seq_len}"


@styled
def tokens(results: Results, sweep: str = "seq_len") -> Figure:
    """What a token takes against an axis, by each backend."""
    import matplotlib.pyplot as plt

    axis, shapes = axis_of(sweep), [shape for shape in results.sweep(sweep) if not results.at(shape).empty]
    if not shapes:
        raise NotMeasured(f"Nothing has a latency in the sweep “{sweep}”")
    drawing, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    for name in results.study.implementations:
        line = [
            (getattr(shape, axis), _ns(results, name, shape)) for shape in shapes if name in results.at(shape).index
        ]
        if line:
            axes.plot(*zip(*line, strict=True), **look(name))
    axes.set_yscale("log")
    plain_logarithm(axes.yaxis)
    powers_of_two(axes, [getattr(shape, axis) for shape in shapes])
    axes.set_xlabel(AXIS_TITLES[axis])
    axes.set_ylabel("ns a token")
    legend(drawing)
    caption = f"What a token takes, the median of a call over its tokens of queries; {results.headline.words}."
    alt = f"Lines, one for each backend: nanoseconds a token against {AXIS_TITLES[axis]}, both axes logarithmic."
    return Figure(drawing, f"tokens-{sweep.replace(' ', '-')}", caption, alt)


def _ns(results: Results, name: str, shape: Shape) -> float:
    return 1e3 * float(results.row(name, shape)["median_us"]) / shape.tokens


@telling
def length(results: Results, sweep: str = "seq_len") -> Prose:
    """What a shorter sequence saves a call, and what it saves a token."""
    there = [(shape, row) for shape, row in results.along(sweep, results.study.baseline)]
    target = next((each for each in there if each[0] == results.study.target_shape), None)
    if target is None or there[0][0] == target[0]:
        raise NotMeasured("Nothing is shorter than the target in the sweep of lengths")
    (short, its_row), (long, row) = there[0], target
    name = results.study.baseline
    ratio = _per_token_ratio(results, (name, long), (name, short))
    calls = row["median_us"] / its_row["median_us"]
    work, fewer = (
        formats.number(large / small) for large, small in ((long.flops, short.flops), (long.tokens, short.tokens))
    )
    return Prose(
        f"A call of `{name}` at S={short.seq_len} is {formats.number(calls)} times as fast as one at S={long.seq_len}, "
        f"and does {work} times less work on {fewer} times fewer tokens. A token takes {formats.interval(ratio)} times "
        "less: that is what a shorter sequence saves, and only where the task has shorter sequences."
    )


@telling
def chunking(results: Results) -> Prose:
    """What cutting a sequence into chunks computes: another function, with its error, and its cost."""
    long = results.study.target_shape
    shorter = [shape for shape in results.sweep("seq_len") if long.seq_len % shape.seq_len == 0 and shape < long]
    if not shorter:
        raise NotMeasured("The sweep of lengths has no divisor of the target's length")
    short, name = shorter[0], results.study.baseline
    pieces = long.seq_len // short.seq_len
    whole_us, chunk_us = (results.row(name, shape)["median_us"] for shape in (long, short))
    error, scale = chunks.error(long.seq_len, short.seq_len, long.head_dim)
    return Prose(
        f"Cutting S={long.seq_len} into {pieces} chunks of {short.seq_len} that don't see each other is another "
        f"function. On standard normal inputs, in float64, its output is off by {formats.number(error)} in the root "
        f"mean square, where the right output's is {formats.number(scale)}: an error of "
        f"{formats.percent(100 * error / scale)}. {pieces} calls at S={short.seq_len} take "
        f"{formats.number(pieces * chunk_us)} µs by `{name}`, one at S={long.seq_len} {formats.number(whole_us)} µs."
    )
