"""The look of all figures: colours, markers, panels, axes and legends.

An implementation has one colour (Okabe and Ito 2008) and one marker in all of them. Whiskers are the intervals of the
medians; where none shows, it is smaller than the marker.
"""

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from attnlab.exhibits import formats
from attnlab.infer.lookup import NotMeasured, axis_of
from attnlab.infer.results import Results

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
    "kernel.best": ("#B5179E", "H"),
}
OTHERS = (("#E69F00", "X"), ("#8C6D1F", "P"), ("#7F7F7F", "*"), ("#B8860B", "d"))
"""For implementations without a look of their own; the name alone decides which."""
LEGEND_COLUMNS = 5
AXIS_TITLES = {"seq_len": "sequence length S", "batch": "batch B", "heads": "heads H"} | {
    "kv_heads": "heads of keys and values",
    "kv_len": "keys",
}


def panels_of(results: Results, sweeps: Sequence[str]) -> tuple[Drawing, list[tuple[Axes, str]]]:
    """A panel for each of the sweeps that has latencies."""
    there = [sweep for sweep in sweeps if sweep in results.study.sweeps and _is_timed(results, sweep)]
    if not there:
        raise NotMeasured(f"Nothing has a latency in the sweeps {formats.listing([f'“{sweep}”' for sweep in sweeps])}")
    drawing, grid = plt.subplots(1, len(there), sharey=True, squeeze=False)
    return drawing, list(zip(grid[0], there, strict=True))


def _is_timed(results: Results, sweep: str) -> bool:
    return any(len(results.at(shape)) for shape in results.sweep(sweep))


def draw_lines(axes: Axes, results: Results, sweep: str, column: str, intervals: bool = False) -> None:
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


def sweep_title(sweep: str) -> str:
    if axis_of(sweep) != "seq_len":
        return ""
    return "causal" if is_causal(sweep) else "not causal"


def is_causal(sweep: str) -> bool:
    return sweep.startswith("causal")


def axes_of(sweeps: Sequence[str]) -> str:
    return formats.listing(list(dict.fromkeys(AXIS_TITLES[axis_of(sweep)] for sweep in sweeps)))


def look(name: str) -> dict[str, Any]:
    """Colour, marker and label of an implementation, as arguments of a plot."""
    colour, marker = LOOKS.get(name) or OTHERS[zlib.crc32(name.encode()) % len(OTHERS)]
    hollow = {"markerfacecolor": "none", "markersize": 8} if name == "sdpa.auto" else {}
    return {"color": colour, "marker": marker, "label": name} | hollow


def legend(drawing: Drawing) -> None:
    """Add a legend that names every line once, over all panels."""
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
    """Label a logarithmic axis in plain numbers, with more labels where it spans little."""
    low, high = axis.get_view_interval()
    subs = (1.0, 1.5, 2.0, 3.0, 5.0) if high < 10 * low else (1.0, 2.0, 5.0) if high < 50 * low else (1.0,)
    axis.set_major_locator(LogLocator(base=10, subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(NullFormatter())
