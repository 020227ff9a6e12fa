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
    rows = [_chosen(setting) | {"speed of light": light(setting.row)} for setting in settings]
    letters = _varying([setting.shape for setting in settings], axis)
    for row, setting in zip(rows, settings, strict=True):
        row |= {LETTERS[each]: getattr(setting.shape, each) for each in letters}
    frame = pd.DataFrame(rows)
    frame = frame[[*(LETTERS[each] for each in letters), *(c for c in frame if c not in LETTERS.values())]]
    told = (
        "Fastest by its median, with the backends whose ratio to it has an interval that holds 1. Sequences and tokens "
        "are those of the queries, over the median of a call; speed of light is the floor over it."
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
        "10³ sequences/s": formats.number(1e3 * setting.shape.batch / median.estimate),
        "10⁶ tokens/s": formats.number(setting.shape.tokens / median.estimate),
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
    shapes = results.sweep(sweep)
    shape, varying = shapes[0], _varying(shapes, axis_of(sweep))
    sizes = [f"{LETTERS[each]}={getattr(shape, each)}" for each in ("batch", "heads", "seq_len") if each not in varying]
    grouped = [f"KV heads={shape.kv_heads}"] if shape.kv_heads != shape.heads and "kv_heads" not in varying else []
    words = [*sizes, f"D={shape.head_dim}", *grouped, shape.dtype, *(["causal"] if shape.causal else [])]
    return (
        f"Along “{sweep}” ({', '.join(words)}): the fastest backend, and what a token takes; {results.headline.words}"
    )


@telling
def settled(results: Results) -> Prose:
    """The settings of the grid in which a token takes the least, and those that can't be told from them.

    One for each number of heads: other heads are another model, of which a token is another task.
    """
    by_heads: dict[int, list[Setting]] = {}
    for setting in _settings(results, results.sweep(GRID)):
        by_heads.setdefault(setting.shape.heads, []).append(setting)
    return Prose(" ".join(_settled(results, heads, settings) for heads, settings in by_heads.items()))


def _settled(results: Results, heads: int, settings: Sequence[Setting]) -> str:
    if len(settings) == 1:
        return f"With H={heads} the grid has one setting that was timed, {_setting(settings[0].shape)}."
    cheapest = settings[_cheapest(settings)]
    same = [setting for setting in settings if setting is not cheapest and _equal_per_token(results, cheapest, setting)]
    told = (
        f"Of the {len(settings)} settings of the grid with H={heads} a token takes the least at "
        f"{_setting(cheapest.shape)}, by `{cheapest.name}`: {formats.interval(cheapest.per_token_ns())} ns."
    )
    if not same:
        return f"{told} Every other takes more, by the 95 % interval of the ratio."
    listed = formats.listing([f"{_setting(setting.shape)} (`{setting.name}`)" for setting in same])
    return f"{told} By the 95 % interval of the ratio it can't be told from {listed}."


def _equal_per_token(results: Results, one: Setting, other: Setting) -> bool:
    """Whether the ratio of two medians per token, of different shapes, has an interval that holds 1."""
    return _holds_one(_per_token_ratio(results, (one.name, one.shape), (other.name, other.shape)))


def _per_token_ratio(results: Results, one: tuple[str, Shape], other: tuple[str, Shape]) -> Interval:
    """Time a token of one case over that of another, which share no rounds."""
    sides = [[samples / shape.tokens for samples in results.samples(name, shape)] for name, shape in (one, other)]
    ticks = [results.tick_us(results.row(name, shape)) / shape.tokens for name, shape in (one, other)]
    return stats.ratio_ci(sides[0], sides[1], tick=max(ticks))


def _setting(shape: Shape) -> str:
    return f"B={shape.batch}, S={shape.seq_len}"


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
    name, long = results.study.baseline, results.study.target_shape
    row, short = results.row(name, long), _shorter(results, sweep)[0]
    its_row = results.row(name, short)
    ratio = _per_token_ratio(results, (name, long), (name, short))
    calls = row["median_us"] / its_row["median_us"]
    work, fewer = (
        formats.number(large / small) for large, small in ((long.flops, short.flops), (long.tokens, short.tokens))
    )
    return Prose(
        f"A call of `{name}` at S={short.seq_len} is {formats.number(calls)} times as fast as one at S={long.seq_len}, "
        f"and does {work} times less work on {fewer} times fewer tokens. A token takes {formats.interval(ratio)} times "
        f"as long at the longer: {_saved(ratio)}."
    )


def _saved(ratio: Interval) -> str:
    """What a token takes at a length over what it takes at a shorter one, in words."""
    if _holds_one(ratio):
        return "a token can't be told to take less in the shorter sequence"
    if ratio.estimate < 1:
        return "the shorter sequence saves nothing, and a token takes more in it"
    return "that is what a shorter sequence saves, and only where the task has shorter sequences"


def _shorter(results: Results, sweep: str) -> list[Shape]:
    """The shapes of a sweep that differ from the target in their length alone, and are shorter; the shortest first.

    Raises:
        NotMeasured: the baseline has a latency at none of them.
    """
    target = results.study.target_shape
    there = [shape for shape, _ in results.along(sweep, results.study.baseline)]
    alike = [shape for shape in there if shape == target.resized(seq_len=shape.seq_len)]
    shorter = sorted(shape for shape in alike if shape.seq_len < target.seq_len)
    if not shorter:
        raise NotMeasured(f"Nothing in the sweep “{sweep}” is the target but for a shorter sequence")
    return shorter


@telling
def chunking(results: Results) -> Prose:
    """What cutting a sequence into chunks computes: another function, with its error, and its cost."""
    long = results.study.target_shape
    if long.causal:
        raise NotMeasured("What chunks compute instead is told without the causal mask, which the target has")
    whole_chunks = [shape for shape in _shorter(results, "seq_len") if long.seq_len % shape.seq_len == 0]
    if not whole_chunks:
        raise NotMeasured("The sweep of lengths has no divisor of the target's length")
    short, name = whole_chunks[0], results.study.baseline
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
