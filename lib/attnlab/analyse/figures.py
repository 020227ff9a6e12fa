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
from attnlab.analyse.results import AXES, Results
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
        f"Median latency against sequence length, {results.headline.words}, with 95 % intervals.",
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
        f"Throughput, FLOPs over the median latency; {results.headline.words}. Causal FLOPs count the scores under the mask.",
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
    """Every sample at one shape, as its distance from the median, a lane for each replicate."""
    rows = results.at(shape)
    drawing, axes = plt.subplots(figsize=(7.2, 0.9 + 0.55 * len(rows)))
    rng = np.random.default_rng(0)
    for position, (name, row) in enumerate(rows.iterrows()):
        colour = _look(str(name))["color"]
        replicates = results.samples(str(name), shape)
        lane = 0.7 / len(replicates)
        for number, latencies in enumerate(replicates):
            height = position + lane * (number + 0.5) - 0.35 + rng.uniform(-0.35, 0.35, latencies.size) * lane
            deviation = 100 * (latencies / row["median_us"] - 1)
            axes.plot(deviation, height, ".", color=colour, alpha=0.35, markersize=3, rasterized=True)
        ends = [100 * (row[end] / row["median_us"] - 1) for end in ("low_us", "high_us")]
        axes.fill_betweenx([position - 0.4, position + 0.4], *ends, color=colour, alpha=0.25, linewidth=0)
    axes.set_yticks(
        range(len(rows)), [f"{name}\n{formats.number(row['median_us'], 4)} µs" for name, row in rows.iterrows()]
    )
    axes.invert_yaxis()
    axes.set(xlabel="distance from the median (%)")
    axes.set_xscale("symlog", linthresh=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+g}" if value else "0"))
    return Figure(
        drawing,
        "distribution",
        f"Every sample at {formats.shape(shape)}, {results.headline.words}: its distance from the median of its "
        "implementation, linear within ±2 % and logarithmic beyond, a lane for each replicate. Bands are the medians' "
        "95 % intervals.",
        "Strips of dots, one for each implementation, around its median: the spread of latencies in percent.",
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
        f"The same calls under each timing, relative to {results.headline.words}. At 1 the clock or the cache makes no difference.",
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
    ceilings = _roof(axes, span, results, dtype)
    for name in results.study.implementations:
        for causal, fill in ((False, None), (True, "none")):
            points = rows[(rows["implementation"] == name) & (rows["causal"] == causal)]
            look = _look(name) | {"linestyle": "none", "label": "_" if causal else name}
            if fill is not None:
                look["markerfacecolor"] = fill
            axes.plot(points["intensity"], points["throughput_tflops"], **look)
    axes.set(xscale="log", yscale="log", xlabel="intensity (FLOP per compulsory byte)", ylabel="throughput (TFLOP/s)")
    axes.set_ylim(bottom=rows["throughput_tflops"].min() / 2)
    _plain_logarithm(axes.yaxis)
    _plain_logarithm(axes.xaxis)
    axes.add_artist(axes.legend(handles=ceilings, loc="lower right"))
    handles = [handle for handle in axes.get_legend_handles_labels()[0] if handle not in ceilings]
    drawing.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    return Figure(
        drawing,
        "roofline",
        f"Roofline in {dtype}; {results.headline.words}. Open markers are causal. The exponentials' ceiling is what one "
        f"exponential a score allows at D={results.study.target_shape.head_dim}.",
        "Roofline plot: throughput over operational intensity on logarithmic axes, under memory and compute ceilings.",
    )


@_styled
def telemetry(results: Results) -> Figure | None:
    """Clock, power and temperature over the run; None where they were not recorded."""
    rows = results.run.samples.dropna(subset=["sm_clock_mhz"])
    if rows.empty:
        return None
    moments = rows.drop_duplicates(["process", "clock", "cache", *AXES, "round"])
    held_back = moments["throttled"].astype("boolean").fillna(False).astype(bool)
    measures = {"sm_clock_mhz": "SM clock (MHz)", "power_w": "power (W)", "temperature_c": "temperature (°C)"}
    drawing, grid = plt.subplots(3, 1, sharex=True, figsize=(7.2, 4.6))
    for axes, (column, title) in zip(grid, measures.items(), strict=True):
        for chosen, colour, label in ((~held_back, "#0072B2", "free"), (held_back, "#D55E00", "held back")):
            part = moments[chosen]
            look = {"color": colour, "label": label, "markersize": 2, "alpha": 0.4, "rasterized": True}
            axes.plot(part["started_s"], part[column].astype(float), ".", **look)
        axes.set_ylabel(title)
    grid[-1].set_xlabel("time since the process began (s)")
    legend = drawing.legend(*grid[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, markerscale=4)
    for handle in filter(None, legend.legend_handles):
        handle.set_alpha(1)
    return Figure(
        drawing,
        "telemetry",
        "The card over the run, read through NVML once a round, all replicates laid over one another; orange where it "
        "held its clock back. NVML averages power over part of the time.",
        "Three stacked scatter plots over time: SM clock, power and temperature of the card.",
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


def _roof(axes: Axes, span: np.ndarray, results: Results, dtype: str) -> list[Any]:
    """Draw the ceilings over a span of intensities and return what a legend needs."""
    ceilings = {ceiling.name: ceiling for ceiling in results.ceilings.all}
    memory_gbs, product = ceilings["copy"], ceilings[f"matmul.{dtype}"]
    lines = []
    for source, style in (("measured", "-"), ("datasheet", "--")):
        bandwidth, peak = _rate(memory_gbs, source), _rate(product, source)
        if bandwidth and peak:
            label = f"{source}: {formats.number(bandwidth)} GB/s, {formats.number(peak)} TFLOP/s"
            roof = np.minimum(span * bandwidth / 1e3, peak)
            lines += axes.plot(span, roof, style, color="#444444", linewidth=1.2, label=label)
    exponentials = results.ceilings.rate("exponentials")
    if not np.isnan(exponentials):
        limit = 4 * results.study.target_shape.head_dim * exponentials / 1e3
        label = f"exponentials: {formats.number(limit)} TFLOP/s"
        lines.append(axes.axhline(limit, linestyle=":", color="#444444", linewidth=1.2, label=label))
    return lines


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
    if _axis(sweep) != "seq_len":
        return ""
    return "causal" if sweep.startswith("causal") else "not causal"


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
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(base=10, subs=(1.0, 1.5, 2.0, 3.0, 5.0) if high < 10 * low else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(NullFormatter())
