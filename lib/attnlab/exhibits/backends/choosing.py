"""Which backend, batch and length to choose: by the time of a call, of a sequence and of a token.

A setting is judged by its time per token, not per call: a call over a quarter of the tokens is not faster for being
shorter. Settings that share no rounds are compared by the ratio of their medians per token with its own interval;
backends at one shape are compared by paired rounds.
"""

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd

from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.cells import LETTERS, explanations, light, sign, without
from attnlab.exhibits.display import Figure, Prose, Table
from attnlab.exhibits.formats import CI
from attnlab.exhibits.style import AXIS_TITLES, label_ends, look, plain_logarithm, powers_of_two
from attnlab.infer.backends import settings
from attnlab.infer.backends.settings import (
    GRID,
    Setting,
    best,
    cheapest_of,
    equal_per_token,
    holds_one,
    per_token_ratio,
)
from attnlab.infer.lookup import NotMeasured, axis_of, median_of
from attnlab.infer.results import Results
from attnlab.infer.stats import Interval
from attnlab.study.shapes import Shape


@exhibit("backends.choice.seq_len", of="choices", sweep="seq_len")
@exhibit("backends.choice.batch", of="choices", sweep="batch")
@exhibit("backends.choice.heads", of="choices", sweep="heads")
@exhibit("backends.choice.causal_seq_len", of="choices", sweep="causal seq_len")
@exhibit("backends.choice.head_dim_128", of="choices", sweep="head_dim 128 seq_len")
@exhibit("backends.choice.bfloat16", of="choices", sweep="bfloat16 seq_len")
@exhibit("backends.choice.float32", of="choices", sweep="float32 seq_len")
@exhibit("backends.choice.grid", of="choices", sweep="grid seq_len")
@exhibit("backends.choice.prefill", of="choices", sweep="prefill seq_len")
def choice(results: Results, sweep: str) -> Table:
    """The best backend at each shape of a sweep: per call, per sequence, per token."""
    axis, settings = axis_of(sweep), _settings(results, results.sweep(sweep))
    rows = [_chosen(setting) | {"speed of light": light(setting.row)} for setting in settings]
    letters = _varying([setting.shape for setting in settings], axis)
    for row, setting in zip(rows, settings, strict=True):
        row |= {LETTERS[each]: getattr(setting.shape, each) for each in letters}
    frame = pd.DataFrame(rows)
    frame = frame[[*(LETTERS[each] for each in letters), *(c for c in frame if c not in LETTERS.values())]]
    legend = (
        "Fastest: by its median, with the backends whose ratio to it has an interval that holds 1. Sequences and "
        "tokens are those of the queries, over the median of a call; speed of light is the floor over that median."
    )
    absent = [_absent(results, setting.shape) for setting in settings]
    note = " ".join(filter(None, [legend, *absent, explanations([setting.row for setting in settings])]))
    # Other heads are another model, where a token is another task.
    highlight = None if "heads" in letters else cheapest_of(settings)
    return Table(frame, f"{_title(results, sweep)}.", note, highlight)


def _absent(results: Results, shape: Shape) -> str:
    """A sentence where the baseline has no latency at a shape, with the reason; the fastest was not compared there."""
    return without(results, [results.study.baseline], shape).replace("no latency here", f"no latency at {shape.label}")


def _chosen(setting: Setting) -> dict[str, Any]:
    median = median_of(setting.row)
    return {
        "fastest": "\n".join([setting.name, *(f"or {name}" for name in setting.others)]),
        f"call (µs) [{CI}]": formats.stacked(median),
        "TFLOP/s": formats.number(setting.row["throughput_tflops"]) + sign(setting.row["throughput_mark"]),
        "10³ sequences/s": formats.number(1e3 * setting.shape.batch / median.estimate),
        "10⁶ tokens/s": formats.number(setting.shape.tokens / median.estimate),
        f"ns a token [{CI}]": formats.stacked(setting.per_token_ns()),
    }


def _settings(results: Results, shapes: Sequence[Shape]) -> list[Setting]:
    there = [shape for shape in shapes if not results.at(shape).empty]
    if not there:
        raise NotMeasured(f"Nothing has a latency at {formats.shapes(list(shapes))}")
    return [best(results, shape) for shape in there]


def _varying(shapes: Sequence[Shape], axis: str) -> list[str]:
    """The axes whose letters a table needs: the axis of the sweep, and others that vary independently of it."""
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
        f"Along “{sweep}” ({', '.join(words)}): the fastest backend, and the time per token; {results.headline.words}"
    )


@exhibit("backends.settled", of="choices")
def settled(results: Results) -> Prose:
    """The settings of the grid with the least time per token, and those not distinguished from them.

    There is one for each number of heads: other heads are another model, where a token is another task.
    """
    by_heads: dict[int, list[Setting]] = {}
    for setting in _settings(results, results.sweep(GRID)):
        by_heads.setdefault(setting.shape.heads, []).append(setting)
    return Prose(" ".join(_settled(results, heads, settings) for heads, settings in by_heads.items()))


def _settled(results: Results, heads: int, settings: Sequence[Setting]) -> str:
    if len(settings) == 1:
        return f"With H={heads}, the grid has one setting that was timed, {_setting(settings[0].shape)}."
    cheapest = settings[cheapest_of(settings)]
    same = [setting for setting in settings if setting is not cheapest and equal_per_token(results, cheapest, setting)]
    least = (
        f"Of the {len(settings)} settings of the grid with H={heads}, the time per token is least at "
        f"{_setting(cheapest.shape)}, by `{cheapest.name}`: {formats.interval(cheapest.per_token_ns())} ns."
    )
    if not same:
        return f"{least} It is more at every other, by the {CI} interval of the ratio."
    listed = formats.listing([f"{_setting(setting.shape)} (`{setting.name}`)" for setting in same])
    return f"{least} By the {CI} interval of the ratio, it is not distinguished from {listed}."


def _setting(shape: Shape) -> str:
    return f"B={shape.batch}, S={shape.seq_len}"


@exhibit("backends.tokens", of="choices")
def tokens(results: Results, sweep: str = "seq_len") -> Figure:
    """Time per token along a sweep, for each backend."""
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
    axes.set_xlabel(f"{AXIS_TITLES[axis]}, logarithmic")
    axes.set_ylabel("time per token (ns), logarithmic")
    label_ends(axes)
    least = min(shapes, key=lambda shape: _ns(results, results.fastest(shape), shape))
    said = (
        f"A token takes least time at {LETTERS[axis]}={getattr(least, axis)}: "
        f"{formats.number(_ns(results, results.fastest(least), least))} ns with `{results.fastest(least)}`."
    )
    caption = f"{said} Time per token is the median of a call over its tokens of queries; {results.headline.words}."
    alt = f"Lines, one for each backend: nanoseconds a token against {AXIS_TITLES[axis]}, both logarithmic. {said}"
    return Figure(drawing, caption, alt)


def _ns(results: Results, name: str, shape: Shape) -> float:
    return 1e3 * float(results.row(name, shape)["median_us"]) / shape.tokens


@exhibit("backends.length", of="choices")
def length(results: Results, sweep: str = "seq_len") -> Prose:
    """How much faster a call, and a token, is with a shorter sequence."""
    name, long = results.study.baseline, results.study.target_shape
    row, short = results.row(name, long), _shorter(results, sweep)[0]
    its_row = results.row(name, short)
    ratio = per_token_ratio(results, (name, long), (name, short))
    calls = row["median_us"] / its_row["median_us"]
    work, tokens = short.flops / long.flops, short.tokens / long.tokens
    return Prose(
        f"A call of `{name}` at S={short.seq_len} is {formats.number(calls)} times as fast as one at S={long.seq_len}, "
        f"with {formats.percent(100 * work)} of its FLOPs and {formats.percent(100 * tokens)} of its tokens. A token "
        f"takes {formats.interval(ratio)} times as long at the longer: {_saved(ratio)}."
    )


def _saved(ratio: Interval) -> str:
    """The meaning of the time per token at a length over that at a shorter one."""
    if holds_one(ratio):
        return "the time per token is not distinguished between the two"
    if ratio.estimate < 1:
        return "the shorter sequence saves nothing, and a token takes more in it"
    return "that is what a shorter sequence saves, and only where the task has shorter sequences"


def _shorter(results: Results, sweep: str) -> list[Shape]:
    """The shapes of a sweep that differ from the target only by being shorter; the shortest first.

    Raises:
        NotMeasured: the baseline has a latency at none of them.
    """
    target = results.study.target_shape
    there = [shape for shape, _ in results.along(sweep, results.study.baseline)]
    alike = [shape for shape in there if shape == target.resized(seq_len=shape.seq_len)]
    shorter = sorted(shape for shape in alike if shape.seq_len < target.seq_len)
    if not shorter:
        raise NotMeasured(f"No shape in the sweep “{sweep}” is the target with a shorter sequence")
    return shorter


@exhibit("backends.chunking", of="choices")
def chunking(results: Results) -> Prose:
    """Error and time of cutting a sequence into chunks, which computes another function."""
    long = results.study.target_shape
    if long.causal:
        raise NotMeasured("The error of chunks is computed without the causal mask, which the target has")
    whole_chunks = [shape for shape in _shorter(results, "seq_len") if long.seq_len % shape.seq_len == 0]
    if not whole_chunks:
        raise NotMeasured("The sweep of lengths has no divisor of the target's length")
    short, name = whole_chunks[0], results.study.baseline
    pieces = long.seq_len // short.seq_len
    whole_us, chunk_us = (results.row(name, shape)["median_us"] for shape in (long, short))
    error, scale = settings.error(long.seq_len, short.seq_len, long.head_dim)
    return Prose(
        f"Cutting S={long.seq_len} into {pieces} chunks of {short.seq_len} that don't attend to each other computes "
        f"another function. On standard normal inputs, in float64, the root mean square of its error is "
        f"{formats.number(error)}, and that of the right output {formats.number(scale)}: an error of "
        f"{formats.percent(100 * error / scale)}. {pieces} calls at S={short.seq_len} take "
        f"{formats.number(pieces * chunk_us)} µs by `{name}`, one at S={long.seq_len} {formats.number(whole_us)} µs."
    )
