"""The look of all figures: colours, markers, panels, axes and legends.

An implementation has one colour (Okabe and Ito 2008) and one marker in all of them. Those that figures draw as lines on
the same axes differ in both, on a white ground and on a dark one. Whiskers are the intervals of the medians; where none
shows, it is smaller than the marker.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator
from scipy.optimize import isotonic_regression

from attnlab.infer.lookup import axis_of
from attnlab.infer.results import Results
from attnlab.infer.stats import Interval
from attnlab.study.ladder import BEST

STYLE = Path(__file__).with_name("attnlab.mplstyle")
LOOKS = {
    "sdpa.auto": ("#000000", "o"),
    "sdpa.flash": ("#D55E00", "s"),
    "sdpa.cudnn": ("#0072B2", "^"),
    "sdpa.efficient": ("#009E73", "D"),
    "sdpa.math": ("#CC79A7", "v"),
    "reference.float64": ("#56B4E9", "h"),
    "peer.flex": ("#4C4C00", "X"),
    "peer.flash4": ("#E69F00", "P"),
    "peer.cudnn": ("#3A9BDC", "<"),
    "peer.flashinfer": ("#8B0000", "8"),
    "peer.xformers": ("#000099", "d"),
    "dispatch.attend": ("#7F7F7F", "p"),
    # The ladder goes from light to dark, but for the last rungs.
    "kernel.naive": ("#C9B3E6", "p"),
    "kernel.tiled": ("#B79DDB", "h"),
    "kernel.mma": ("#A588D0", "<"),
    "kernel.swizzled": ("#9372C5", ">"),
    "kernel.pipelined": ("#815DBA", "d"),
    "kernel.wgmma": ("#6A3FA0", "*"),
    "kernel.overlap": ("#532680", "8"),
    "kernel.jobs": ("#3C1260", "D"),
    "kernel.bounded": ("#A830E4", "s"),
    "kernel.short": ("#00798C", "v"),
    "kernel.lazy": ("#401AFF", ">"),
    "kernel.few": ("#521433", "*"),
    "kernel.pairs": ("#A0522D", "X"),
    "kernel.fp8": ("#D81B60", "D"),
    "kernel.fp8_quantizing": ("#F48FB1", "d"),
    "kernel.fp8_rotated": ("#880E4F", "s"),
    "kernel.fp8_quantizing_rotated": ("#CE93D8", "p"),
    "peer.cudnn_fp8": ("#00838F", "^"),
    "kernel.best": ("#B5179E", "H"),
}
OTHERS = (
    ("#C938FA", "x"),
    ("#05C705", "+"),
    ("#8EB946", "1"),
    ("#5B3894", "2"),
    ("#FA38C9", "3"),
    ("#FA3838", "4"),
)
"""For implementations without a look of their own, of which the name alone decides the colour and the marker."""
CHOOSING = ("sdpa.auto", BEST)
"""What runs another implementation: in its marker, which is hollow, that one's shows."""
LEGEND_COLUMNS = 5
LABEL_PT = 8.5
"""The height of a line of labels."""
PANELS = 5
"""Small multiples side by side, at most."""
TIMINGS = (("#0072B2", "o"), ("#56B4E9", "s"), ("#D55E00", "^"), ("#009E73", "D"))
"""Colours and markers of a run's timings, in the order of its study."""
AXIS_TITLES = {
    "seq_len": "sequence length S",
    "batch": "batch B",
    "heads": "heads H",
    "kv_heads": "heads of keys and values",
    "kv_len": "keys",
}


@contextmanager
def styled(**more: Any) -> Iterator[None]:
    """Inside, figures are drawn in the project's style, and with these settings; outside, settings stay as they are."""
    # This starts a notebook's backend, which then sets that plots are shown. The context would undo that.
    plt.draw_if_interactive()
    with plt.style.context([STYLE, more]):
        yield


def look(name: str) -> dict[str, Any]:
    """Colour, marker and label of an implementation, as arguments of a plot."""
    number, more = divmod(zlib.crc32(name.encode()), len(OTHERS))
    colour, marker = LOOKS.get(name) or (OTHERS[more][0], OTHERS[number % len(OTHERS)][1])
    hollow = {"markerfacecolor": "none", "markersize": 8} if name in CHOOSING else {}
    return {"color": colour, "marker": marker, "label": name} | hollow


def label_ends(axes: Axes) -> None:
    """Name each line right of the axes, at the height of its end or as near to it as the other names leave room."""
    place = axes.transScale + axes.transLimits
    named = [line for line in axes.get_lines() if not str(line.get_label()).startswith("_")]
    points = [(line, np.asarray(line.get_xydata())) for line in named]
    drawn = [(str(line.get_label()), line.get_color(), xy[-1]) for line, xy in points if len(xy)]
    ends = {name: (float(place.transform(end)[1]), colour) for name, colour, end in drawn}
    order = sorted(ends, key=lambda name: ends[name][0])
    height_in = float(axes.figure.get_size_inches()[1]) * axes.get_position().height  # type: ignore[union-attr]
    step = min(LABEL_PT / (72 * height_in), 1 / max(len(order) - 1, 1))
    for name, height in zip(order, _spread([ends[name][0] for name in order], step), strict=True):
        line: dict[str, Any] = {"arrowstyle": "-", "color": ends[name][1], "linewidth": 0.6, "shrinkA": 1, "shrinkB": 0}
        line |= {"relpos": (0, 0.5)}
        axes.annotate(
            name,
            xy=(1.005, min(max(ends[name][0], 0), 1)),
            xytext=(1.045, height),
            xycoords="axes fraction",
            va="center",
            fontsize=LABEL_PT - 1,
            arrowprops=line,
            annotation_clip=False,
        )


def _spread(heights: Sequence[float], step: float) -> np.ndarray:
    """Heights in their order, at least `step` apart and within 0 to 1, moved as little as that needs."""
    below = step * np.arange(len(heights))
    moved = isotonic_regression(heights - below).x if len(heights) else below
    return np.clip(moved, 0, 1 - below[-1:].sum()) + below


def multiples(results: Results, sweeps: Sequence[str], column: str, title: str) -> tuple[Drawing, list[Axes]]:
    """A panel for each implementation: its line along each sweep, the later ones dashed, before all others in grey.

    Args:
        column: of the table of cases, drawn upward.
        title: of the vertical axis.
    """
    there = results.timed(sweeps)
    drawing, panels = before_others(
        results.study.implementations,
        [lines(results, sweep, column) for sweep in there],
        title,
        f"{AXIS_TITLES[axis_of(there[0])]}, logarithmic",
    )
    sizes = [getattr(shape, axis_of(sweep)) for sweep in there for shape in results.study.sweep(sweep)]
    few_powers_of_two(next(iter(panels.values())), sizes)
    return drawing, list(panels.values())


def before_others(
    names: Sequence[str], lines: Sequence[Mapping[str, tuple[Any, Any]]], vertical: str, horizontal: str
) -> tuple[Drawing, dict[str, Axes]]:
    """A panel for each name with a line: its lines, the later ones dashed, before the first ones of others in grey.

    Args:
        lines: horizontal and vertical places by name, of one or two kinds.
    """
    there = [name for name in names if any(name in found for found in lines)]
    drawing, panels = panel_each(there, vertical, horizontal)
    for name, axes in panels.items():
        for other, points in lines[0].items():
            if other != name:
                axes.plot(*points, color="#cccccc", linewidth=0.8, zorder=1)
        for found, dashes in zip(lines, ("-", "--"), strict=False):
            if name in found:
                axes.plot(*found[name], **look(name) | {"marker": "o", "markersize": 2.5, "linestyle": dashes})
    return drawing, panels


def grid_of(count: int) -> tuple[int, int]:
    """The rows and columns of so many small panels: few rows, and as full as can be."""
    rows = -(-count // PANELS)
    return rows, -(-count // rows)


def panel_each(
    names: Sequence[str], vertical: str, horizontal: str, inches: float = 1.0
) -> tuple[Drawing, dict[str, Axes]]:
    """Small panels with the same axes, one for each name, and titles of the axes that all share.

    Args:
        inches: how high a panel is, with its title.
    """
    rows, columns = grid_of(len(names))
    drawing, grid = plt.subplots(
        rows, columns, sharex=True, sharey=True, squeeze=False, figsize=(6.5, 0.7 + inches * rows)
    )
    for axes in grid.flat[len(names) :]:
        axes.set_visible(False)
    for column in range(columns):  # the last row may be short
        last = (len(names) - 1 - column) // columns
        grid[last][column].xaxis.set_tick_params(labelbottom=True)
    drawing.supylabel(vertical, fontsize=LABEL_PT + 0.5)
    drawing.supxlabel(horizontal, fontsize=LABEL_PT + 0.5)
    panels = dict(zip(names, grid.flat, strict=False))
    for name, axes in panels.items():
        axes.set_title(name)
    return drawing, panels


def few_powers_of_two(axes: Axes, sizes: Sequence[int]) -> None:
    """As `powers_of_two`, with as few labels as a small panel has room for."""
    some = sorted(set(sizes))
    powers_of_two(axes, some if len(some) < 5 else some[::3])


def lines(results: Results, sweep: str, column: str) -> dict[str, tuple[Any, Any]]:
    """The points of each implementation along a sweep: sizes, and the values of a column of the table of cases."""
    axis, rows = axis_of(sweep), results.over([sweep])
    groups = {str(name): group.sort_values(axis) for name, group in rows.groupby("implementation", sort=False)}
    return {name: (group[axis], group[column]) for name, group in groups.items() if group[column].notna().any()}


def powers_of_two(axes: Axes, sizes: Sequence[int]) -> None:
    """A tick for each size; of many, every second has a label, as all of them would nearly touch."""
    ticks = sorted(set(sizes))
    every = 1 if len(ticks) < 7 else 2
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, ["" if place % every else f"{size}" for place, size in enumerate(ticks)])
    axes.xaxis.set_minor_locator(NullLocator())


PLAIN = FuncFormatter(lambda value, _: f"{value:,.10g}")
"""Numbers of an axis as tables print them."""


def plain_logarithm(axis: Any) -> None:
    """Label a logarithmic axis in plain numbers, with more labels where it spans little."""
    low, high = axis.get_view_interval()
    subs = (1.0, 1.5, 2.0, 3.0, 5.0) if high < 10 * low else (1.0, 2.0, 5.0) if high < 50 * low else (1.0,)
    axis.set_major_locator(LogLocator(base=10, subs=subs))
    axis.set_major_formatter(PLAIN)
    axis.set_minor_formatter(NullFormatter())


def ratio_rows(
    series: Mapping[str, tuple[dict[str, Any], Mapping[str, Interval]]], rows: Sequence[str], title: str
) -> Drawing:
    """Ratios with their intervals on a logarithmic axis around 1: a row for each title, a mark for each series.

    Args:
        series: by label, colour and marker as arguments of a plot, and the ratios by the title of their row.
        title: of the horizontal axis.
    """
    drawing, axes = plt.subplots(figsize=(6.5, 1.1 + 0.13 * len(rows)))
    places = {row: place for place, row in enumerate(rows)}
    for number, (label, (drawn, ratios)) in enumerate(series.items()):
        apart = 0.6 * ((number + 0.5) / len(series) - 0.5)
        heights = [places[row] + apart for row in ratios]
        axes.hlines(
            heights, *zip(*((r.low, r.high) for r in ratios.values()), strict=True), color=drawn["color"], linewidth=1
        )
        marks = drawn | {"markersize": 3.5, "linestyle": "none", "label": label}
        axes.plot([ratio.estimate for ratio in ratios.values()], heights, **marks)
    axes.axvline(1, color="#444444", linewidth=0.9)
    axes.set_xscale("log")
    plain_ratios(axes.xaxis)
    axes.set_yticks(range(len(rows)), list(rows), fontsize=7)
    axes.set(ylim=(len(rows) - 0.4, -0.6), xlabel=f"{title}, logarithmic")
    drawing.legend(loc="outside upper center", ncols=min(len(series), LEGEND_COLUMNS))
    return drawing


def plain_ratios(axis: Any) -> None:
    """Label a logarithmic axis of ratios in plain numbers, with 1 among them."""
    low, high = axis.get_view_interval()
    steps = next(steps for width, steps in RATIOS if high / low < width)
    axis.set_major_locator(FixedLocator([step for step in steps if low <= step <= high]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


RATIOS = (
    (1.5, [round(1 + 0.05 * step, 2) for step in range(-8, 9)]),
    (4.0, [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.4, 1.6, 2, 2.5, 3]),
    (40.0, [0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20]),
    (float("inf"), [10.0**power for power in range(-6, 7)]),
)
"""Ticks of an axis of ratios, by how far it reaches."""
