"""The figures, one function each: what a run says, drawn.

An implementation has one colour (Okabe and Ito 2008) and one marker in all of them. Whiskers are the intervals of the
medians; where none shows, it is smaller than the marker.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from attnlab.analyse import formats
from attnlab.analyse.display import Figure
from attnlab.analyse.results import Results
from attnlab.shapes import Shape
from attnlab.studies import Timing

STYLE = Path(__file__).with_name("attnlab.mplstyle")
LOOKS = {
    "sdpa.auto": ("#000000", "o"),
    "sdpa.flash": ("#D55E00", "s"),
    "sdpa.cudnn": ("#0072B2", "^"),
    "sdpa.efficient": ("#009E73", "D"),
    "sdpa.math": ("#CC79A7", "v"),
    "reference.float64": ("#56B4E9", "P"),
}
OTHER = ("#E69F00", "X")
AXIS_TITLES = {"seq_len": "sequence length S", "batch": "batch B", "heads": "heads H"}
P = ParamSpec("P")
F = TypeVar("F", Figure, Figure | None)


def _styled(draw: Callable[P, F]) -> Callable[P, F]:
    """Draw in the project's style, whatever the notebook's is."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> F:
        with plt.style.context(STYLE):
            figure = draw(*args, **kwargs)
            if figure is not None:
                _ = figure.svg  # drawn now, while the style holds
            return figure

    return drawn


@_styled
def latency(results: Results, sweeps: Sequence[str] = ("seq_len", "causal seq_len")) -> Figure:
    """Latency against sequence length, a panel for each sweep."""
    drawing, panels = _panels(results, sweeps)
    for axes, sweep in panels:
        _lines(axes, results, sweep, "median_us", intervals=True)
        axes.set(title=_sweep_title(sweep), yscale="log", ylabel="latency (µs)" if axes is panels[0][0] else "")
    _legend(drawing, panels[0][0])
    return Figure(
        drawing,
        "latency",
        f"Median latency against sequence length, {results.headline} clock and cache, with 95 % intervals.",
        "Line plots of latency over sequence length on logarithmic axes, one line for each implementation.",
    )


@_styled
def throughput(results: Results, sweeps: Sequence[str]) -> Figure:
    """Throughput along sweeps, a panel for each, under the ceiling of the matrix product."""
    drawing, panels = _panels(results, sweeps)
    for axes, sweep in panels:
        _lines(axes, results, sweep, "throughput_tflops")
        axes.set(title=_sweep_title(sweep), ylabel="throughput (TFLOP/s)" if axes is panels[0][0] else "")
        axes.set_ylim(bottom=0)
    _legend(drawing, panels[0][0])
    return Figure(
        drawing,
        "throughput-" + sweeps[0].replace(" ", "-"),
        f"Throughput, FLOPs over the median latency, {results.headline}. Causal FLOPs count the scores under the mask.",
        f"Line plots of throughput in TFLOP/s over {formats.listing([AXIS_TITLES[_axis(s)] for s in sweeps])}.",
    )


@_styled
def speed_of_light(results: Results, sweeps: Sequence[str] = ("seq_len", "causal seq_len")) -> Figure:
    """How near each comes to the floor."""
    drawing, panels = _panels(results, sweeps)
    for axes, sweep in panels:
        _lines(axes, results, sweep, "speed_of_light_pct")
        axes.axhline(100, color="#888888", linewidth=1, linestyle="--")
        axes.set(title=_sweep_title(sweep), ylabel="speed of light (%)" if axes is panels[0][0] else "")
        axes.set_ylim(bottom=0)
    _legend(drawing, panels[0][0])
    return Figure(
        drawing,
        "speed-of-light",
        "Floor over median latency: the share of what the measured ceilings would allow. The dashed line is the floor.",
        "Line plots of the percentage of the speed of light over sequence length, one line for each implementation.",
    )


@_styled
def memory(results: Results, sweep: str = "seq_len") -> Figure:
    """Peak memory against length."""
    cases = results.run.cases[results.run.cases["status"] == "measured"]
    drawing, axes = plt.subplots(figsize=(5.2, 3.2))
    shapes = results.study.sweep(sweep)
    for name in results.study.implementations:
        points = [(s, _peak(cases, name, s)) for s in shapes]
        kept = [(getattr(s, _axis(sweep)), peak / 2**20) for s, peak in points if peak]
        if kept:
            axes.plot(*zip(*kept, strict=True), **_look(name))
    compulsory = [shape.bytes / 2**20 for shape in shapes]
    sizes = [getattr(s, _axis(sweep)) for s in shapes]
    axes.plot(sizes, compulsory, color="#888888", linestyle="--", linewidth=1, label="Q, K, V and O")
    axes.set(xlabel=AXIS_TITLES[_axis(sweep)], ylabel="peak memory (MiB)", yscale="log")
    _powers_of_two(axes, sizes)
    axes.legend()
    return Figure(
        drawing,
        "memory",
        "Most memory allocated at once during a call, inputs and output included, against what the tensors alone need.",
        "Line plot of peak memory over sequence length on logarithmic axes, one line for each implementation.",
    )


@_styled
def distribution(results: Results, shape: Shape) -> Figure:
    """Every sample at one shape, with median and interval."""
    rows = results.at(shape)
    drawing, axes = plt.subplots(figsize=(7.2, 0.9 + 0.42 * len(rows)))
    rng = np.random.default_rng(0)
    for position, (name, row) in enumerate(rows.iterrows()):
        pooled = np.concatenate(results.samples(str(name), shape))
        colour = _look(str(name))["color"]
        jitter = position + rng.uniform(-0.28, 0.28, pooled.size)
        axes.plot(pooled, jitter, ".", color=colour, alpha=0.25, markersize=3, rasterized=True)
        axes.plot([row["low_us"], row["high_us"]], [position] * 2, color=colour, linewidth=5, alpha=0.5)
        axes.plot(row["median_us"], position, "|", color=colour, markersize=18, markeredgewidth=2)
    axes.set_yticks(range(len(rows)), [str(name) for name in rows.index])
    axes.invert_yaxis()
    axes.set(xscale="log", xlabel="latency (µs)")
    _plain_logarithm(axes.xaxis)
    return Figure(
        drawing,
        "distribution",
        f"Every sample at {formats.shape(shape)}, {results.headline}; bars mark the median, bands its interval.",
        "Strips of dots, one for each implementation, with the median marked: the spread of latencies.",
    )


@_styled
def timings(results: Results, sweep: str = "seq_len") -> Figure | None:
    """What the clock and the cache do to the same call: each timing over the headline's; None where there is one."""
    others = [timing for timing in results.timings if timing != results.headline]
    if not others:
        return None
    drawing, grid = plt.subplots(1, len(others), sharey=True, squeeze=False)
    for axes, timing in zip(grid[0], others, strict=True):
        for name in results.study.implementations:
            sizes, ratios = _ratios(results, sweep, name, timing)
            if sizes:
                axes.plot(sizes, ratios, **_look(name))
        axes.axhline(1, color="#888888", linewidth=1, linestyle="--")
        axes.set(title=f"{timing} over {results.headline}", xlabel=AXIS_TITLES[_axis(sweep)], yscale="log")
        _powers_of_two(axes, [getattr(s, _axis(sweep)) for s in results.study.sweep(sweep)])
        _plain_logarithm(axes.yaxis)
    grid[0][0].set_ylabel("ratio of medians")
    _legend(drawing, grid[0][0])
    return Figure(
        drawing,
        "timings",
        f"The same calls under each timing, relative to {results.headline}. At 1 the clock or the cache makes no difference.",
        "Line plots of the ratio between timings over sequence length, one panel for each timing.",
    )


@_styled
def roofline(results: Results) -> Figure:
    """Throughput against intensity, under the measured ceilings and the datasheet's."""
    drawing, axes = plt.subplots(figsize=(7.2, 4.2))
    rows = results.under(results.headline)
    dtype = results.study.target_shape.dtype
    rows = rows[rows["dtype"] == dtype]
    span = np.geomspace(
        rows["intensity"].min() / 2, max(rows["intensity"].max(), results.ceilings.ridge(dtype)) * 2, 200
    )
    _roof(axes, span, results, dtype)
    for name in results.study.implementations:
        for causal, fill in ((False, None), (True, "none")):
            points = rows[(rows["implementation"] == name) & (rows["causal"] == causal)]
            look = _look(name) | {"linestyle": "none", "label": name if fill is None else "_"}
            if fill is not None:
                look["markerfacecolor"] = fill
            axes.plot(points["intensity"], points["throughput_tflops"], **look)
    axes.set(xscale="log", yscale="log", xlabel="intensity (FLOP per compulsory byte)", ylabel="throughput (TFLOP/s)")
    axes.set_ylim(bottom=rows["throughput_tflops"].min() / 2)
    _plain_logarithm(axes.yaxis)
    _plain_logarithm(axes.xaxis)
    _legend(drawing, axes)
    return Figure(
        drawing,
        "roofline",
        f"Roofline in {dtype}, {results.headline}. Solid: ceilings measured in this run; dashed: datasheet; dotted: what "
        "one exponential a score allows. Open markers are causal.",
        "Roofline plot: throughput over operational intensity on logarithmic axes, under memory and compute ceilings.",
    )


@_styled
def telemetry(results: Results) -> Figure | None:
    """Clock, power and temperature over the run; None where they were not recorded."""
    rows = results.run.samples.dropna(subset=["sm_clock_mhz"])
    if rows.empty:
        return None
    moments = rows.drop_duplicates(["process", "started_s"]).reset_index(drop=True)
    measures = {"sm_clock_mhz": "SM clock (MHz)", "power_w": "power (W)", "temperature_c": "temperature (°C)"}
    drawing, grid = plt.subplots(3, 1, sharex=True, figsize=(7.2, 4.6))
    for process, group in moments.groupby("process", sort=False):
        thinned = group.iloc[:: max(1, len(group) // 800)]
        for axes, column in zip(grid, measures, strict=True):
            axes.plot(thinned["started_s"], thinned[column].astype(float), linewidth=0.8, label=f"process {process}")
    for axes, title in zip(grid, measures.values(), strict=True):
        axes.set_ylabel(title)
    held_back = moments[moments["throttled"].astype("boolean").fillna(False)]
    if not held_back.empty:
        grid[0].plot(
            held_back["started_s"], held_back["sm_clock_mhz"].astype(float), ".", color="#D55E00", markersize=3
        )
    grid[-1].set_xlabel("time since the process began (s)")
    return Figure(
        drawing,
        "telemetry",
        "The card over the run, read through NVML once a round; a line for each replicate, orange where it held its clock "
        "back. NVML averages power over part of the time.",
        "Three stacked line plots over time: SM clock, power and temperature of the card.",
    )


@_styled
def errors(results: Results, sweep: str = "seq_len") -> Figure:
    """Error against the float64 oracle, beside what the gate allows."""
    checks = results.run.checks
    drawing, axes = plt.subplots(figsize=(5.2, 3.2))
    sizes = [getattr(shape, _axis(sweep)) for shape in results.study.sweep(sweep)]
    for name in results.study.implementations:
        points = _worst(checks[checks["implementation"] == name], results, sweep, "max_error")
        if points:
            axes.plot(*zip(*points, strict=True), **_look(name))
    allowed = [(size, 2 * error) for size, error in _worst(checks, results, sweep, "framework_max_error")]
    axes.plot(*zip(*allowed, strict=True), color="#888888", linestyle="--", linewidth=1, label="allowed")
    axes.set(xlabel=AXIS_TITLES[_axis(sweep)], ylabel="largest absolute error", yscale="log")
    _powers_of_two(axes, sizes)
    axes.legend()
    return Figure(
        drawing,
        "errors",
        "Largest error against the float64 oracle over all checks; the dashed line is twice the framework's own error.",
        "Line plot of the largest absolute error over sequence length, one line for each implementation.",
    )


def _roof(axes: Axes, span: np.ndarray, results: Results, dtype: str) -> None:
    ceilings = {ceiling.name: ceiling for ceiling in results.ceilings.all}
    memory_gbs, product = ceilings["copy"], ceilings[f"matmul.{dtype}"]
    for source, style in (("measured", "-"), ("datasheet", "--")):
        bandwidth, peak = _rate(memory_gbs, source), _rate(product, source)
        if bandwidth and peak:
            axes.plot(span, np.minimum(span * bandwidth / 1e3, peak), style, color="#444444", linewidth=1.2, label="_")
            axes.annotate(
                f"{source} {formats.number(peak)} TFLOP/s", (span[-1], peak), (0, 3), textcoords="offset points",
                ha="right", va="bottom" if source == "datasheet" or not _rate(product, "datasheet") else "top",
                fontsize=7, color="#444444",
            )  # fmt: skip
    exponentials = results.ceilings.rate("exponentials")
    if not np.isnan(exponentials):
        limit = 4 * results.study.target_shape.head_dim * exponentials / 1e3
        axes.axhline(limit, linestyle=":", color="#444444", linewidth=1.2)


def _rate(ceiling: Any, source: str) -> float | None:
    if source == "datasheet":
        return ceiling.datasheet
    return ceiling.measured.estimate if ceiling.measured else None


def _panels(results: Results, sweeps: Sequence[str]) -> tuple[Drawing, list[tuple[Axes, str]]]:
    there = [sweep for sweep in sweeps if sweep in results.study.sweeps]
    drawing, grid = plt.subplots(1, len(there), sharey=True, squeeze=False)
    return drawing, list(zip(grid[0], there, strict=True))


def _lines(axes: Axes, results: Results, sweep: str, column: str, intervals: bool = False) -> None:
    axis = _axis(sweep)
    shapes = results.study.sweep(sweep)
    rows = pd.concat([results.at(shape) for shape in shapes])
    for name in results.study.implementations:
        line = rows[rows["implementation"] == name].sort_values(axis)
        if line.empty:
            continue
        axes.plot(line[axis], line[column], **_look(name))
        if intervals:
            axes.vlines(line[axis], line["low_us"], line["high_us"], color=_look(name)["color"], linewidth=3, alpha=0.5)
    axes.set_xlabel(AXIS_TITLES[axis])
    _powers_of_two(axes, [getattr(shape, axis) for shape in shapes])


def _ratios(results: Results, sweep: str, name: str, timing: Timing) -> tuple[list[int], list[float]]:
    sizes, ratios = [], []
    for shape in results.study.sweep(sweep):
        ours, theirs = results.at(shape), results.at(shape, timing)
        if name in ours.index and name in theirs.index:
            sizes.append(getattr(shape, _axis(sweep)))
            ratios.append(theirs.loc[name, "median_us"] / ours.loc[name, "median_us"])
    return sizes, ratios


def _worst(checks: pd.DataFrame, results: Results, sweep: str, column: str) -> list[tuple[int, float]]:
    points = []
    for shape in results.study.sweep(sweep):
        same = np.logical_and.reduce([checks[axis] == value for axis, value in shape.axes.items()])
        if same.any():
            points.append((getattr(shape, _axis(sweep)), float(checks.loc[same, column].max())))
    return points


def _peak(cases: pd.DataFrame, name: str, shape: Shape) -> float:
    same = np.logical_and.reduce([cases[axis] == value for axis, value in shape.axes.items()])
    return float(cases.loc[same & (cases["implementation"] == name), "peak_memory_bytes"].max())


def _axis(sweep: str) -> str:
    return sweep.split()[-1]


def _sweep_title(sweep: str) -> str:
    return "causal" if sweep.startswith("causal") else "full (not causal)"


def _look(name: str) -> dict[str, Any]:
    colour, marker = LOOKS.get(name, OTHER)
    hollow = {"markerfacecolor": "none", "markersize": 8} if name == "sdpa.auto" else {}
    return {"color": colour, "marker": marker, "label": name} | hollow


def _legend(drawing: Drawing, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside upper center", ncols=len(labels))


def _powers_of_two(axes: Axes, sizes: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(set(sizes)), [f"{size}" for size in sorted(set(sizes))])
    axes.xaxis.set_minor_locator(NullLocator())


def _plain_logarithm(axis: Any) -> None:
    axis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(NullFormatter())
