"""The figures, one function each: what a run says, drawn.

An implementation has one colour (Okabe and Ito 2008) and one marker in all of them. Whiskers are the intervals of the
medians; where none shows, it is smaller than the marker.
"""

import zlib
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from attnlab.analyse import formats
from attnlab.analyse.display import Figure, Prose, telling
from attnlab.analyse.results import AXES, NotMeasured, Results, axis_of, on_normal
from attnlab.analyse.roofline import Ceiling
from attnlab.runs import is_of
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
    "peer.flex": ("#8C6D1F", "X"),
    "peer.flash4": ("#E69F00", "P"),
    "dispatch.attend": ("#7F7F7F", "*"),
    # The ladder goes from light to dark.
    "kernel.naive": ("#C9B3E6", "p"),
    "kernel.tiled": ("#AF92D6", "h"),
    "kernel.mma": ("#9672C4", "<"),
    "kernel.swizzled": ("#7D53B0", ">"),
    "kernel.pipelined": ("#643698", "d"),
    "kernel.wgmma": ("#4A1C7A", "*"),
    "kernel.overlap": ("#2E0655", "8"),
}
OTHERS = (("#E69F00", "X"), ("#8C6D1F", "P"), ("#7F7F7F", "*"), ("#B8860B", "d"))
"""For what has no look of its own; which one depends on its name alone."""
LEGEND_COLUMNS = 5
AXIS_TITLES = {"seq_len": "sequence length S", "batch": "batch B", "heads": "heads H"} | {
    "kv_heads": "heads of keys and values",
    "kv_len": "keys",
}
NEAR_PCT = 5
"""Samples that all lie this near to their median are drawn on a linear axis."""
DEVIATIONS_PCT = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
P = ParamSpec("P")


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure | Prose]:
    """Draw in the project's style, whatever the notebook's is, or say what is missing."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with plt.style.context(STYLE):
            figure = draw(*args, **kwargs)
            _ = figure.svg  # drawn now, while the style holds
            return figure

    return telling(drawn)


@styled
def latency(results: Results, sweeps: Sequence[str] = ("seq_len", "causal seq_len")) -> Figure:
    """Latency against sequence length, a panel for each sweep."""
    drawing, panels = _panels(results, sweeps)
    for axes, sweep in panels:
        _lines(axes, results, sweep, "median_us", intervals=True)
        axes.set(title=_sweep_title(sweep), yscale="log", ylabel="latency (µs)" if axes is panels[0][0] else "")
    for axes, _ in panels:
        plain_logarithm(axes.yaxis)
    legend(drawing)
    return Figure(
        drawing,
        "latency",
        f"Median latency against sequence length, {results.headline.words}, with 95 % intervals.",
        "Line plots of latency over sequence length on logarithmic axes, one line for each implementation.",
    )


@styled
def throughput(results: Results, sweeps: Sequence[str]) -> Figure:
    """Throughput along sweeps, a panel for each."""
    drawing, panels = _panels(results, sweeps)
    for axes, sweep in panels:
        _lines(axes, results, sweep, "throughput_tflops")
        axes.set(title=_sweep_title(sweep), ylabel="throughput (TFLOP/s)" if axes is panels[0][0] else "")
        axes.set_ylim(bottom=0)
    legend(drawing)
    causal = " Causal FLOPs count the scores under the mask." if any(_is_causal(sweep) for _, sweep in panels) else ""
    return Figure(
        drawing,
        "throughput-" + sweeps[0].replace(" ", "-"),
        f"Throughput, FLOPs over the median latency; {results.headline.words}.{causal}",
        f"Line plots of throughput in TFLOP/s over {_axes_of([sweep for _, sweep in panels])}, a line for each "
        "implementation.",
    )


@styled
def speed_of_light(results: Results, sweeps: Sequence[str] = ("seq_len", "causal seq_len")) -> Figure:
    """How near each comes to the floor."""
    if not any(results.ceilings.terms_us(shape) for shape in results.study.shapes):
        raise NotMeasured("No ceiling was measured, so there is no floor to compare with")
    drawing, panels = _panels(results, sweeps)
    for axes, sweep in panels:
        _lines(axes, results, sweep, "speed_of_light_pct")
        axes.axhline(100, color="#888888", linewidth=1, linestyle="--")
        axes.set(title=_sweep_title(sweep), ylabel="speed of light (%)" if axes is panels[0][0] else "")
        axes.set_ylim(bottom=0)
    legend(drawing)
    return Figure(
        drawing,
        "speed-of-light",
        "Floor over median latency: the share of what the measured ceilings would allow. The dashed line is the floor.",
        "Line plots of the percentage of the speed of light over sequence length, one line for each implementation.",
    )


@styled
def memory(results: Results, sweep: str = "seq_len") -> Figure:
    """Peak memory along a sweep."""
    axis, shapes = axis_of(sweep), results.sweep(sweep)
    lines = {name: _peaks(results, name, shapes, axis) for name in results.study.implementations}
    if not any(lines.values()):
        raise NotMeasured(f"No case of the sweep “{sweep}” was measured, so its memory is not known")
    drawing, axes = plt.subplots(figsize=(6.4, 3.8))
    for name, points in lines.items():
        if points:
            axes.plot(*zip(*points, strict=True), **look(name))
    sizes = [getattr(shape, axis) for shape in shapes]
    # On top: an implementation that needs the tensors and nothing else would hide it.
    tensors: dict[str, Any] = {
        "color": "#222222",
        "linestyle": "--",
        "linewidth": 1.2,
        "zorder": 5,
        "label": "Q, K, V and O",
    }
    axes.plot(sizes, [shape.bytes / 2**20 for shape in shapes], **tensors)
    axes.set(xlabel=AXIS_TITLES[axis], ylabel="peak memory (MiB)", yscale="log")
    powers_of_two(axes, sizes)
    plain_logarithm(axes.yaxis)
    legend(drawing)
    return Figure(
        drawing,
        "memory",
        "Most memory allocated at once during a call, inputs and output included, against what the tensors alone need.",
        f"Line plot of peak memory over {AXIS_TITLES[axis]} on logarithmic axes, one line for each implementation.",
    )


@styled
def distribution(results: Results, shape: Shape) -> Figure:
    """Every sample at one shape, as its distance from the median, a lane for each replicate."""
    rows = results.at(shape)
    if rows.empty:
        raise NotMeasured(f"Nothing has a latency at {formats.shape(shape)}")
    drawing, axes = plt.subplots(figsize=(7.2, 0.9 + 0.55 * len(rows)))
    rng = np.random.default_rng(0)
    furthest = 0.0
    for position, (name, row) in enumerate(rows.iterrows()):
        colour = look(str(name))["color"]
        replicates = results.samples(str(name), shape)
        lane = 0.7 / len(replicates)
        for number, latencies in enumerate(replicates):
            height = position + lane * (number + 0.5) - 0.35 + rng.uniform(-0.35, 0.35, latencies.size) * lane
            deviation = 100 * (latencies / row["median_us"] - 1)
            furthest = max(furthest, float(np.abs(deviation).max()))
            axes.plot(deviation, height, ".", color=colour, alpha=0.35, markersize=3, rasterized=True)
        ends = [100 * (row[end] / row["median_us"] - 1) for end in ("low_us", "high_us")]
        axes.fill_betweenx([position - 0.4, position + 0.4], *ends, color=colour, alpha=0.25, linewidth=0)
    axes.set_yticks(
        range(len(rows)), [f"{name}\n{formats.number(row['median_us'], 4)} µs" for name, row in rows.iterrows()]
    )
    axes.invert_yaxis()
    axes.set(xlabel="distance from the median (%)")
    scale = _deviations(axes, furthest)
    return Figure(
        drawing,
        "distribution",
        f"Every sample at {formats.shape(shape)}, {results.headline.words}: its distance from the median of its "
        f"implementation{scale}, a lane for each replicate. Bands are the medians' 95 % intervals.",
        "Strips of dots, one for each implementation, around its median: the spread of latencies in percent.",
    )


@styled
def timings(results: Results, sweep: str = "seq_len") -> Figure:
    """What the clock and the cache do to the same call: each timing over the headline's."""
    sizes, names = [getattr(s, axis_of(sweep)) for s in results.sweep(sweep)], results.study.implementations
    others = [timing for timing in results.timings if timing != results.headline]
    ratios = {(timing, name): _ratios(results, sweep, name, timing) for timing in others for name in names}
    if not any(ratios.values()):
        raise NotMeasured("No case was read under two timings, so clocks and caches can't be compared")
    drawing, grid = plt.subplots(1, len(others), sharey=True, squeeze=False)
    for axes, timing in zip(grid[0], others, strict=True):
        for name in names:
            if points := ratios[timing, name]:
                axes.plot(*zip(*points, strict=True), **look(name))
        axes.axhline(1, color="#888888", linewidth=1, linestyle="--")
        axes.set(title=f"{timing} over {results.headline}", xlabel=AXIS_TITLES[axis_of(sweep)], yscale="log")
        powers_of_two(axes, sizes)
        plain_logarithm(axes.yaxis)
    grid[0][0].set_ylabel("ratio of medians")
    legend(drawing)
    return Figure(
        drawing,
        "timings",
        f"The same calls under each timing, relative to {results.headline.words}. At 1 the clock or the cache makes no "
        "difference.",
        f"Line plots of the ratio between timings over {AXIS_TITLES[axis_of(sweep)]}, one panel for each timing.",
    )


@styled
def roofline(results: Results) -> Figure:
    """Throughput against intensity, under the measured ceilings and the datasheet's."""
    rows = results.under(results.headline)
    dtype = results.study.target_shape.dtype
    rows = rows[rows["dtype"] == dtype]
    if rows.empty:
        raise NotMeasured(f"Nothing has a latency in {dtype}, {results.headline.words}")
    drawing, axes = plt.subplots(figsize=(7.2, 4.2))
    furthest = np.nanmax([rows["intensity"].max(), results.ceilings.ridge(dtype)])
    span = np.geomspace(rows["intensity"].min() / 2, furthest * 2, 200)
    ceilings = _roof(axes, span, results, dtype)
    for name in results.study.implementations:
        for causal, fill in ((False, None), (True, "none")):
            points = rows[(rows["implementation"] == name) & (rows["causal"] == causal)]
            style = look(name) | {"linestyle": "none", "label": "_" if causal else name}
            if fill is not None:
                style["markerfacecolor"] = fill
            axes.plot(points["intensity"], points["throughput_tflops"], **style)
    axes.set(xscale="log", yscale="log", xlabel="intensity (FLOP per compulsory byte)", ylabel="throughput (TFLOP/s)")
    axes.set_ylim(bottom=rows["throughput_tflops"].min() / 2)
    plain_logarithm(axes.yaxis)
    plain_logarithm(axes.xaxis)
    handles = [handle for handle in axes.get_legend_handles_labels()[0] if handle not in ceilings]
    drawing.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), LEGEND_COLUMNS))
    if ceilings:  # outside: within the axes a slow implementation may be anywhere
        drawing.legend(handles=ceilings, loc="outside lower center", ncols=2)
    told = [f"Roofline in {dtype}; {results.headline.words}."]
    if rows["causal"].any():
        told.append("Open markers are causal.")
    if not np.isnan(results.ceilings.rate("exponentials")):
        head_dim = results.study.target_shape.head_dim
        told.append(f"The exponentials' ceiling is what one exponential a score allows at D={head_dim}.")
    return Figure(
        drawing,
        "roofline",
        " ".join(told),
        "Roofline plot: throughput over operational intensity on logarithmic axes, under memory and compute ceilings.",
    )


@styled
def telemetry(results: Results) -> Figure:
    """Clock, power and temperature over the run."""
    rows = results.run.samples.dropna(subset=["sm_clock_mhz"])
    if rows.empty:
        raise NotMeasured(f"Clock, power and temperature were not recorded: {results.run.manifest['telemetry']}")
    moments = rows.drop_duplicates(["process", "clock", "cache", *AXES, "round"])
    held_back = moments["throttled"].astype("boolean").fillna(False).astype(bool)
    measures = {"sm_clock_mhz": "SM clock (MHz)", "power_w": "power (W)", "temperature_c": "temperature (°C)"}
    drawing, grid = plt.subplots(3, 1, sharex=True, figsize=(7.2, 4.6))
    for axes, (column, title) in zip(grid, measures.items(), strict=True):
        for chosen, colour, label in ((~held_back, "#0072B2", "free"), (held_back, "#D55E00", "held back")):
            part = moments[chosen]
            style = {"color": colour, "label": label, "markersize": 2, "alpha": 0.4, "rasterized": True}
            axes.plot(part["started_s"], part[column].astype(float), ".", **style)
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


@styled
def errors(results: Results, sweep: str = "seq_len") -> Figure:
    """Error against the float64 oracle, beside what the gate allows."""
    checks, axis, shapes = on_normal(results.run.checks), axis_of(sweep), results.sweep(sweep)
    allowed = [(size, 2 * error) for size, error in _worst(checks, shapes, axis, "framework_max_error")]
    if not allowed:
        raise NotMeasured(f"No case of the sweep “{sweep}” was checked")
    drawing, axes = plt.subplots(figsize=(6.4, 3.8))
    odd = []
    for name in results.study.implementations:
        points = _worst(checks[checks["implementation"] == name], shapes, axis, "max_error")
        usual = [point for point in points if 0 < point[1] < np.inf]
        axes.plot([size for size, _ in usual], [error for _, error in usual], **look(name))
        odd += [(name, size, error) for size, error in points if (size, error) not in usual]
    axes.plot(*zip(*allowed, strict=True), color="#888888", linestyle="--", linewidth=1.2, zorder=5, label="allowed")
    for name, size, error in odd:
        style = look(name) | {"label": "_", "clip_on": False}
        axes.plot([size], [float(error > 0)], transform=axes.get_xaxis_transform(), **style)
    axes.set(xlabel=AXIS_TITLES[axis], ylabel="largest absolute error", yscale="log")
    powers_of_two(axes, [getattr(shape, axis) for shape in shapes])
    plain_logarithm(axes.yaxis)
    legend(drawing)
    told = [
        "Largest error against the float64 oracle over all checks of a shape on standard normal inputs, along the "
        f"sweep “{sweep}”; the dashed line is twice the framework's own."
    ]
    told += ["Markers on the upper edge are errors that are not finite."] if any(e > 0 for *_, e in odd) else []
    told += ["Markers on the lower edge are errors of exactly zero."] if any(e == 0 for *_, e in odd) else []
    return Figure(
        drawing,
        "errors",
        " ".join(told),
        f"Line plot of the largest absolute error over {AXIS_TITLES[axis]}, one line for each implementation.",
    )


def _roof(axes: Axes, span: np.ndarray, results: Results, dtype: str) -> list[Any]:
    """Draw the ceilings over a span of intensities and return what a legend needs."""
    ceilings = {ceiling.name: ceiling for ceiling in results.ceilings.all}
    memory_gbs, product = ceilings.get("copy"), ceilings.get(f"matmul.{dtype}")
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


def _rate(ceiling: Ceiling | None, source: str) -> float | None:
    if ceiling is None:
        return None
    if source == "datasheet":
        return ceiling.datasheet
    return ceiling.measured.estimate if ceiling.measured else None


def _panels(results: Results, sweeps: Sequence[str]) -> tuple[Drawing, list[tuple[Axes, str]]]:
    """A panel for each of the sweeps that something was timed in."""
    there = [sweep for sweep in sweeps if sweep in results.study.sweeps and _is_timed(results, sweep)]
    if not there:
        raise NotMeasured(f"Nothing has a latency in the sweeps {formats.listing([f'“{sweep}”' for sweep in sweeps])}")
    drawing, grid = plt.subplots(1, len(there), sharey=True, squeeze=False)
    return drawing, list(zip(grid[0], there, strict=True))


def _is_timed(results: Results, sweep: str) -> bool:
    return any(len(results.at(shape)) for shape in results.sweep(sweep))


def _lines(axes: Axes, results: Results, sweep: str, column: str, intervals: bool = False) -> None:
    axis = axis_of(sweep)
    shapes = results.study.sweep(sweep)
    rows = pd.concat([results.at(shape) for shape in shapes])
    for name in results.study.implementations:
        line = rows[rows["implementation"] == name].sort_values(axis)
        if line.empty:
            continue
        axes.plot(line[axis], line[column], **look(name))
        if intervals:
            axes.vlines(line[axis], line["low_us"], line["high_us"], color=look(name)["color"], linewidth=3, alpha=0.5)
    axes.set_xlabel(AXIS_TITLES[axis])
    powers_of_two(axes, [getattr(shape, axis) for shape in shapes])


def _ratios(results: Results, sweep: str, name: str, timing: Timing) -> list[tuple[int, float]]:
    """How many times the headline's median each size takes under another timing."""
    ratios = []
    for shape in results.sweep(sweep):
        ours, theirs = results.at(shape), results.at(shape, timing)
        if name in ours.index and name in theirs.index:
            ratio = theirs.loc[name, "median_us"] / ours.loc[name, "median_us"]
            ratios.append((getattr(shape, axis_of(sweep)), ratio))
    return ratios


def _worst(checks: pd.DataFrame, shapes: list[Shape], axis: str, column: str) -> list[tuple[int, float]]:
    points = []
    for shape in shapes:
        same = is_of(checks, shape)
        if same.any():
            points.append((getattr(shape, axis), float(checks.loc[same, column].max())))
    return points


def _peaks(results: Results, name: str, shapes: list[Shape], axis: str) -> list[tuple[int, float]]:
    points = [(getattr(shape, axis), results.peak_bytes(name, shape) / 2**20) for shape in shapes]
    return [point for point in points if point[1] > 0]


def _deviations(axes: Axes, furthest: float) -> str:
    """Set the scale of deviations in percent and return what a caption says of it."""
    signed = FuncFormatter(lambda value, _: f"{value:+g}".replace("-", "−") if value else "0")
    if furthest <= NEAR_PCT:
        reach = max(furthest, 2) * 1.05
        axes.set_xlim(-reach, reach)
        axes.xaxis.set_major_formatter(signed)
        return ""
    axes.set_xscale("symlog", linthresh=2)
    drawn = [value for value in DEVIATIONS_PCT if value <= furthest]
    low, high = axes.get_xlim()
    places = [value for value in (*(-v for v in reversed(drawn)), 0, *drawn) if low <= value <= high]
    axes.xaxis.set_major_locator(FixedLocator(places))
    axes.xaxis.set_major_formatter(signed)
    return ", linear within ±2 % and logarithmic beyond"


def _sweep_title(sweep: str) -> str:
    if axis_of(sweep) != "seq_len":
        return ""
    return "causal" if _is_causal(sweep) else "not causal"


def _is_causal(sweep: str) -> bool:
    return sweep.startswith("causal")


def _axes_of(sweeps: Sequence[str]) -> str:
    return formats.listing(list(dict.fromkeys(AXIS_TITLES[axis_of(sweep)] for sweep in sweeps)))


def look(name: str) -> dict[str, Any]:
    """Colour, marker and label of an implementation, as a plot takes them."""
    colour, marker = LOOKS.get(name) or OTHERS[zlib.crc32(name.encode()) % len(OTHERS)]
    hollow = {"markerfacecolor": "none", "markersize": 8} if name == "sdpa.auto" else {}
    return {"color": colour, "marker": marker, "label": name} | hollow


def legend(drawing: Drawing) -> None:
    """Name every line once, whichever panel it is in."""
    found = [axes.get_legend_handles_labels() for axes in drawing.axes]
    handles = {label: handle for lines in reversed(found) for handle, label in zip(*lines, strict=True)}
    names = list(dict.fromkeys(label for _, labels in found for label in labels))
    drawing.legend(
        [handles[name] for name in names], names, loc="outside upper center", ncols=min(len(names), LEGEND_COLUMNS)
    )


def powers_of_two(axes: Axes, sizes: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(set(sizes)), [f"{size}" for size in sorted(set(sizes))])
    axes.xaxis.set_minor_locator(NullLocator())


def plain_logarithm(axis: Any) -> None:
    """Label a logarithmic axis in plain numbers, more of them where it spans little."""
    low, high = axis.get_view_interval()
    subs = (1.0, 1.5, 2.0, 3.0, 5.0) if high < 10 * low else (1.0, 2.0, 5.0) if high < 50 * low else (1.0,)
    axis.set_major_locator(LogLocator(base=10, subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(NullFormatter())
