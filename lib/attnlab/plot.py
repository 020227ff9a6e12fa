"""Figures of tidy frames: functions take a frame and the names of its columns, and return a matplotlib Figure.

An implementation has one colour and one marker in all figures (from Okabe and Ito 2008, whose colours the colour-blind
tell apart). A figure is 5 in wide and grows downward, so that its text is legible on a phone and in print.
"""

import io
import textwrap
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.style import context
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from attnlab.base.errors import UserError
from attnlab.base.texts import printable
from attnlab.frames import CASE, TIMING, require_column
from attnlab.tables import FRACTIONS, RATIOS, heading, significant, text_of

STYLE = Path(__file__).with_name("attnlab.mplstyle")
WIDTH, CHARACTER = 5.0, 0.075
"""The width of a figure, and of a character of its labels, in inches."""
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
    "kernel.bounded": ("#A830E4", "s"),
    "kernel.short": ("#00798C", "v"),
    "kernel.lazy": ("#401AFF", ">"),
    "kernel.few": ("#521433", "*"),
    "kernel.pairs": ("#A0522D", "X"),
    "kernel.fp8": ("#D81B60", "D"),
    "kernel.best": ("#B5179E", "H"),
}
LADDER = ("naive", "tiled", "mma", "swizzled", "pipelined", "wgmma", "overlap", "jobs")
PURPLES = ("#C9B3E6", "#B79DDB", "#A588D0", "#9372C5", "#815DBA", "#6A3FA0", "#532680", "#3C1260")
LOOKS |= {f"kernel.{name}": (colour, mark) for name, colour, mark in zip(LADDER, PURPLES, "ph<>d*8D", strict=True)}
"""Colour and marker of an implementation; the ladder of kernels goes from light to dark."""
OTHERS = (("#C938FA", "x"), ("#05C705", "+"), ("#FA3838", "1"), ("#8EB946", "2"), ("#5B3894", "3"), ("#FA38C9", "4"))
"""Colours and markers of implementations that `LOOKS` lacks, in the order of their names; then free ones of `LOOKS`."""
SUBJECTS = ("implementation", "candidate", "baseline")
LETTERS = {"batch": "B = ", "heads": "H = ", "seq_len": "S = ", "head_dim": "D = "}
RATIO_TICKS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5, 1.7, 2.0)


class NotebookFigure(Figure):
    """A matplotlib Figure that a notebook shows once, as SVG with its alt text, if it is a cell's last expression.

    `alt` describes the figure for readers that can't see it; it may be replaced.
    """

    alt = ""

    def savefig(self, fname: Any, **more: Any) -> None:
        """As matplotlib's, in the project's style: TrueType fonts in a PDF, and text as text in an SVG."""
        with context(STYLE):
            super().savefig(fname, **more)

    def svg(self) -> str:
        """The figure as an element ``<svg>`` whose title is the alt text; equal figures give equal text."""
        file = io.StringIO()
        self.savefig(file, format="svg", metadata={"Title": printable(self.alt), "Date": None, "Creator": None})
        return file.getvalue()[file.getvalue().index("<svg") :]

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, str], dict[str, Any]]:
        return {"image/svg+xml": self.svg(), "text/plain": self.alt}, {"image/svg+xml": {"alt": self.alt}}


@context(STYLE)
def lines(
    frame: pd.DataFrame,
    x: str,
    y: str,
    hue: str = "implementation",
    col: str | None = None,
    low: str | None = None,
    high: str | None = None,
    log: str = "x",
) -> NotebookFigure:
    """A line for each value of `hue`, in a panel for each value of `col`. Up to 4 lines have labels and no legend.

    Args:
        x: a column of numbers, or of texts. Marks of texts are not joined, and keep the order of the frame.
        low, high: columns with the ends of the intervals of y, drawn as bars.
        log: the logarithmic axes: "x", "y", "xy" or "".

    Raises:
        UserError: a column is missing, the frame has no rows, or a line has several rows at one x.
    """
    _require(frame, [hue, x, col], y, low, high)
    along, keys = frame.sort_values(x), [key for key in (col, hue) if key]
    last = along.groupby(hue)[y].last().sort_values(ascending=False)
    is_number = frame[x].dtype.kind in "iuf"
    looks = _looks(frame, hue, last.index, line="-" if is_number else "none")
    values = np.sort(frame[x].unique()) if is_number else frame[x].unique()
    places = {value: value if is_number else place for place, value in enumerate(values)}
    frame = frame.assign(place=frame[x].map(places)).sort_values("place")
    panels = list(frame.groupby(col)) if col else [("", frame)]
    labelled = len(looks) <= 4 and all(set(looks) == set(part[hue]) for _, part in panels)
    figure, grid = _panels(len(panels), {} if labelled else looks)
    for axes, (value, part) in zip(grid, panels, strict=True):
        for name, line in part.groupby(hue, sort=False):
            axes.errorbar(line["place"], line[y], _bars(line, y, low, high), **looks[name])
        axes.set_title(_named(col, value) if col else "")
        axes.set_ylabel(heading(y) if axes.get_subplotspec().is_first_col() else "")  # type: ignore[union-attr]
    _scale(grid[0].yaxis, y, frame[y], "y" in log)
    if is_number and "x" in log and values[0] > 0:
        grid[0].set_xscale("log", base=2)
    room = labelled * CHARACTER * (5 + max(len(look["label"]) for look in looks.values()))
    _label_ticks(grid, list(places.values()), [text_of(value) for value in values], not is_number, room)
    for axes, (_, part) in zip(grid, panels, strict=True) if labelled else ():
        _label_ends(axes, part.groupby(hue)[y].last(), looks)
    figure.supxlabel(heading(x), fontsize="medium")
    ends = []
    for names, line in along.groupby(keys, sort=False):
        span = " to ".join(f"{text_of(line[y].iloc[n], y)} at {text_of(line[x].iloc[n])}" for n in (0, -1))
        ends.append(f"{', '.join(map(_named, keys, names))} {span}")
    figure.alt = f"Lines of {heading(y)} over {heading(x)}: {'; '.join(ends)}."
    return figure


@context(STYLE)
def dots(
    frame: pd.DataFrame,
    x: str,
    y: str = "candidate",
    low: str | None = "low",
    high: str | None = "high",
    hue: str | None = None,
) -> NotebookFigure:
    """A row for each value of `y`, from the top: `x` with its interval, against a vertical line at 1.

    Each value of `hue` has a mark in the row. Arguments and errors are those of `lines`.
    """
    _require(frame, [y, hue], x, low, high)
    rows, looks, several = list(frame[y].unique()), _looks(frame, hue or y), frame[y].duplicated().any()
    labels = [textwrap.fill(_named(y, value), 40) for value in rows]  # a longer one would leave no room for the marks
    tall = 0.1 * max(label.count("\n") for label in labels)
    figure, (axes,) = _panels(1, looks if hue else {}, len(rows) * (0.2 + max(tall, several * 0.05 * len(looks))))
    for number, (name, look) in enumerate(looks.items()):
        part = frame[frame[hue or y] == name]
        places = [rows.index(value) + several * 0.6 * ((number + 0.5) / len(looks) - 0.5) for value in part[y]]
        axes.errorbar(part[x], places, xerr=_bars(part, x, low, high), **look)
    axes.axvline(1, color="#444444", linewidth=0.9)
    _scale(axes.xaxis, x, frame[[low, high] if low and high else [x]].assign(line=1.0).stack(), True)
    axes.set_yticks(range(len(rows)), labels)
    axes.set(ylim=(len(rows) - 0.4, -0.6), xlabel=heading(x))
    values = "; ".join(f"{_named(y, row[y])} {text_of(row[x], x)}" for _, row in frame.iterrows())
    figure.alt = f"{heading(x)} for each {heading(y)}: {values}."
    return figure


@context(STYLE)
def heatmap(wide: pd.DataFrame, centre: float = 1.0, reach: float = 0.5, text: str = "{:.2f}") -> NotebookFigure:
    """A wide frame as cells with their numbers: blue above `centre`, red below, darkest at a factor of 1 + `reach`.

    Columns that do not fit go into further rows of cells. Raises UserError if the frame is empty.
    """
    _require(wide, [])
    rows, names = ([_named(axis.name, value) for value in axis] for axis in (wide.index, wide.columns))
    longest, above = max(map(len, rows)), 0.3 + 0.7 * CHARACTER * max(map(len, names))
    fit = max(1, int((WIDTH - 0.2 - CHARACTER * longest) / 0.42))
    blocks = [range(start, min(start + fit, len(names))) for start in range(0, len(names), fit)]
    figure = NotebookFigure(figsize=(WIDTH, len(blocks) * (above + 0.2 * len(rows))))
    for axes, block in zip(figure.subplots(len(blocks), 1, squeeze=False)[:, 0], blocks, strict=True):
        cells = wide.iloc[:, list(block)].to_numpy(float, na_value=np.nan)
        shades = np.log(np.clip(cells / centre, 1e-9, None)) / np.log1p(reach)
        axes.pcolormesh(shades, cmap="RdBu", vmin=-1, vmax=1, edgecolors="white", linewidth=0.5)
        for (row, column), value in np.ndenumerate(cells):
            colour = "white" if abs(shades[row, column]) > 0.65 else "black"
            shown = "—" if np.isnan(value) else text.format(value)
            axes.text(column + 0.5, row + 0.5, shown, ha="center", va="center", fontsize=7.5, color=colour)
        axes.set_xticks(np.arange(len(block)) + 0.5, [names[n] for n in block], rotation=40, ha="left")
        axes.set_yticks(np.arange(len(rows)) + 0.5, rows)
        axes.set(ylim=(len(rows), 0), xlim=(0, len(blocks[0])))
        axes.tick_params(length=0, labeltop=True, labelbottom=False, pad=1)
        axes.grid(False)
        axes.spines[:].set_visible(False)
    least, most = (text.format(value) for value in (wide.min(axis=None), wide.max(axis=None)))
    figure.alt = f"Heat map of {', '.join(rows)} by {', '.join(names)}: {least} to {most}."
    return figure


@context(STYLE)
def roofline(cases: pd.DataFrame, ceilings: Any, hue: str = "implementation") -> NotebookFigure:
    """Throughput over intensity, under the ceilings of memory, L2, exponentials and matrix products.

    The model is that of Williams, Waterman and Patterson (2009). Each score takes one exponential and 4 D FLOPs
    (arXiv 2407.08608, section 3.1). Hollow marks are causal.

    Args:
        cases: of `add_work`, all of one dtype.
        ceilings: a run's frame of ceilings, or rates by name, in GB/s, TFLOP/s and Gexp/s.

    Raises:
        UserError: a column or the rate of memory or of matrix products is missing, or there are several dtypes.
    """
    _require(cases, [], "intensity", "throughput_tflops", "head_dim", "causal", "dtype", hue)
    if len(dtypes := cases["dtype"].unique()) > 1:
        raise UserError(f"the cases have several dtypes ({', '.join(dtypes)}): choose one with al.where")
    is_frame = isinstance(ceilings, pd.DataFrame)
    rates = dict(zip(ceilings["ceiling"], ceilings["rate"], strict=True)) if is_frame else dict(ceilings)
    memory, l2, exponentials = (rates.get(name, np.nan) for name in ("copy", "l2", "exponentials"))
    product = max(rates.get(f"{kind}.{dtypes[0]}", 0.0) for kind in ("matmul", "wgmma"))
    if not product * memory > 0:
        raise UserError(f"a roofline needs rates of copy and matmul.{dtypes[0]}; there are {', '.join(rates)}")
    looks = _looks(cases, hue)
    figure, (axes,) = _panels(1, looks, 3.2)
    for (name, is_causal), part in cases.groupby([hue, "causal"], sort=False):
        hollow = {"markerfacecolor": "none"} if is_causal else {}
        axes.plot(part["intensity"], part["throughput_tflops"], **looks[name] | hollow)
    span = np.geomspace(cases["intensity"].min() / 2, 2 * max(cases["intensity"].max(), 1e3 * product / memory))
    roofs = [(f"memory {significant(memory)} GB/s, products {significant(product)} TFLOP/s", memory, "-")]
    for label, rate, style in [*roofs, (f"L2 {significant(l2)} GB/s", l2, "-.")]:
        axes.plot(span, np.minimum(product, rate * span / 1e3), style, color="#444444", zorder=1, label=label)
    for size in sorted(cases["head_dim"].unique()):
        limit = 4 * size * exponentials / 1e3
        label = f"exponentials, D = {size}: {significant(limit)} TFLOP/s"
        axes.plot(span, np.full_like(span, limit), ":", color="#444444", label=label)
    _scale(axes.xaxis, "intensity", cases["intensity"], True)
    _scale(axes.yaxis, "throughput_tflops", cases["throughput_tflops"], True)
    axes.set(xlabel=heading("intensity"), ylabel=heading("throughput_tflops"))
    drawn = [line for line in axes.get_lines() if np.isfinite(line.get_ydata()).all() and line.get_color() == "#444444"]
    axes.legend(handles=drawn, loc="lower right")
    best = cases.iloc[cases["throughput_tflops"].argmax()]
    figure.alt = f"Roofline: {'; '.join(str(line.get_label()) for line in drawn)}. Highest: {best[hue]}, "
    figure.alt += f"{significant(best['throughput_tflops'])} TFLOP/s at {significant(best['intensity'])} FLOP/byte."
    return figure


def _require(frame: pd.DataFrame, keys: Sequence[str | None], *more: str | None) -> None:
    """Raise UserError if columns are missing, there are no rows, or several rows have the same keys."""
    for name in filter(None, (*keys, *more)):
        require_column(name, frame.columns)
    if frame.empty:
        raise UserError("there is nothing to draw: the frame is empty")
    named = [key for key in keys if key]
    if frame[named].isna().any(axis=None):
        raise UserError(f"{' or '.join(named)} has missing values: leave these rows out, or fill them")
    if named and len(again := frame[frame.duplicated(named, keep=False)]):
        pooled = again[(again[named] == again[named].iloc[0]).all(axis=1)]
        differ = [name for name in pooled if name not in (*named, *more) and pooled[name].nunique(dropna=False) > 1]
        columns = [name for name in differ if name in (*CASE, *TIMING, "candidate", "baseline")] or differ
        columns = columns or ["nothing"]
        at = ", ".join(f"{name} {pooled[name].iloc[0]}" for name in named)
        advice = "choose with al.where, or name it as hue or col"
        raise UserError(f"{len(pooled)} rows are pooled at {at}; they differ in {', '.join(columns)}: {advice}")


def _looks(frame: pd.DataFrame, hue: str, order: Any = None, line: str = "none") -> dict[Any, dict[str, Any]]:
    """Colour, marker, line and label for each value of a column, as arguments of a plot."""
    names = sorted(frame[hue].unique())
    palette = [*OTHERS, *(LOOKS[n] for n in LOOKS if n not in names)] if hue in SUBJECTS else list(LOOKS.values())[1:]
    others = [name for name in names if hue not in SUBJECTS or name not in LOOKS]
    looks = LOOKS | {name: palette[n % len(palette)] for n, name in enumerate(others)}
    found = {}
    for name in names if order is None else order:
        colour, marker = looks[name]
        found[name] = {"color": colour, "marker": marker, "linestyle": line, "label": _named(hue, name)}
    return found


def _named(column: Hashable, value: Any) -> str:
    if column == "causal":
        return "causal" if value else "no mask"
    return f"{LETTERS.get(str(column), '')}{text_of(value)}"


def _bars(part: pd.DataFrame, name: str, low: str | None, high: str | None) -> list[pd.Series] | None:
    return [(part[name] - part[low]).clip(0), (part[high] - part[name]).clip(0)] if low and high else None


def _panels(count: int, looks: Mapping[Any, dict[str, Any]], inches: float = 0.0) -> tuple[NotebookFigure, list[Axes]]:
    """A figure with panels that share their axes, and with a legend of these looks."""
    columns = min(count, 2 if count < 7 else 3)
    rows = -(-count // columns)
    longest = max((len(look["label"]) for look in looks.values()), default=0)
    across = max(1, int(WIDTH / (0.5 + CHARACTER * longest)))
    height = 0.6 + 0.19 * -(-len(looks) // across) + rows * (inches or (2.5 if columns == 1 else 1.9))
    figure = NotebookFigure(figsize=(WIDTH, height))
    grid = list(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)
    for number, axes in enumerate(grid):
        axes.set_visible(number < count)
        axes.tick_params(labelbottom=number >= count - columns)  # the last row may be short
    if looks:
        handles = [Line2D([], [], **look) for look in looks.values()]
        figure.legend(handles=handles, loc="outside upper left", ncols=across)
    return figure, grid[:count]


def _scale(axis: Any, name: str, values: pd.Series, is_log: bool) -> None:
    """Scale an axis, and label it in plain numbers."""
    low, high = values.min(), values.max()
    if is_log and low > 0:
        axis.axes.set(**{f"{axis.axis_name}scale": "log"})
        ticks = [tick for tick in RATIO_TICKS if low <= tick <= high] if name in RATIOS and high < 4 * low else []
        subs = (1, 1.5, 2, 3, 5, 7) if high < 5 * low else (1, 2, 5) if high < 50 * low else (1,)
        near = LogLocator(subs=subs) if high > 1.5 * low else MaxNLocator(5)
        axis.set_major_locator(FixedLocator(ticks) if len(ticks) > 2 else near)
        axis.set_minor_locator(NullLocator())
    elif low >= 0 and high > 2 * low:
        axis.axes.set(**{f"{axis.axis_name}lim": (0, None)})
    factor = 100 if name in FRACTIONS else 1
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{factor * value:,.10g}"))


def _label_ends(axes: Axes, ends: pd.Series, looks: Mapping[Any, dict[str, Any]]) -> None:
    """Write the last value of each line, and in the last column its name; labels that would touch move apart."""
    ends, spec = ends.sort_values(), axes.get_subplotspec()
    heights = (axes.transData - axes.transAxes).transform([(1, value) for value in ends])[:, 1]
    gap = 0.06 if spec.get_gridspec().ncols == 1 else 0.085  # type: ignore[union-attr]
    for _ in range(50):
        overlap = np.clip(gap - np.diff(heights), 0, None) / 2
        heights = heights + np.append(0, overlap) - np.append(overlap, 0)
    for height, (name, value) in zip(heights, ends.items(), strict=True):
        words = f"{text_of(value, str(ends.name))} {looks[name]['label'] if spec.is_last_col() else ''}"  # type: ignore[union-attr]
        axes.text(1.02, height, words, color=looks[name]["color"], va="center", size=7.5, transform=axes.transAxes)


def _label_ticks(grid: Sequence[Axes], places: Sequence[float], texts: Sequence[str], turns: bool, room: float) -> None:
    """Set a tick at each place of the x axis. Labels that would touch are left out, or all are turned by 40°."""
    inches = (WIDTH - 0.9 - room) / grid[0].get_subplotspec().get_gridspec().ncols  # type: ignore[union-attr]
    at = grid[0].xaxis.get_transform().transform(np.asarray(places, float))
    at, end, shown = inches * (at - at[0]) / ((at[-1] - at[0]) or 1), -1.0, []
    for place, label in zip(at, texts, strict=True):
        fits = turns or place - CHARACTER * len(label) / 2 > end
        end = place + CHARACTER * (len(label) / 2 + 1) if fits else end
        shown.append(label if fits else "")
    for axes in grid:
        axes.set_xticks(places, shown, rotation=40 * turns, ha="right" if turns else "center")
        axes.xaxis.set_minor_locator(NullLocator())
