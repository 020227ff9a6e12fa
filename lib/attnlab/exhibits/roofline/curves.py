"""Shares of the device's peak against sequence length: this run before published numbers."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Figure
from attnlab.exhibits.roofline.nearest import COUNTERPARTS, Cases
from attnlab.exhibits.style import label_ends, look
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Results
from attnlab.literature.throughputs import Published, published
from attnlab.study.ladder import PREFIX

OTHERS = "#bbbbbb"
Panel = tuple[int, bool]
"""A head_dim, and whether the mask is causal."""


@exhibit("roofline.literature.figure")
def figure(results: Results) -> Figure:
    """Share of the dense peak against sequence length, a panel for each head_dim and mask that both have."""
    lines = _lines(Cases(results))
    numbers = [number for number in published() if number.shape and not number.is_above_peak]
    both = {panel: [n for n in numbers if (n.head_dim, n.causal) == panel] for panel in sorted(lines)}
    both = {panel: there for panel, there in both.items() if there}
    if not both:
        raise NotMeasured(
            "No case of this run has a share of a datasheet's peak, and the D and mask of published numbers"
        )
    rows, columns = -(-len(both) // 2), min(len(both), 2)
    drawing, grid = plt.subplots(
        rows, columns, sharex=True, sharey=True, squeeze=False, figsize=(7.2, 0.6 + 2.1 * rows)
    )
    for axes in grid.flat[len(both) :]:
        axes.set_visible(False)
    first = grid[0][0]
    first.set(xscale="log", ylim=(0, 100))
    for axes, (panel, there) in zip(grid.flat, both.items(), strict=False):
        _draw_published(axes, there)
        for name, line in lines[panel].items():
            axes.plot(line.index, line, **look(name), linewidth=2, markersize=4)
        axes.set_title(_title(panel))
    first.xaxis.set_major_locator(FixedLocator([128 * 8**power for power in range(4)]))
    first.xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:.0f}"))
    first.xaxis.set_minor_locator(NullLocator())
    for axes in grid.flat[: len(both)]:
        axes.xaxis.set_tick_params(labelbottom=True)
        label_ends(axes)
    drawing.supxlabel("sequence length S, logarithmic", fontsize=9)
    drawing.supylabel("share of the device's dense peak (%)", fontsize=9)
    said = _compared({panel: (lines[panel], there) for panel, there in both.items()})
    return Figure(
        drawing,
        f"{said} In colour this run at the batch and heads of its target, {results.headline.words}; in grey all "
        "published numbers with a complete shape, on any device; shares of the dense peak in the device's datasheet. "
        "The highest published one is named.",
        "Line plots of the share of the device's dense peak over sequence length, one panel for each head dimension "
        f"and mask, published numbers in grey. {said}",
    )


def _title(panel: Panel) -> str:
    head_dim, causal = panel
    return f"D={head_dim}{', causal' if causal else ''}"


def _compared(both: dict[Panel, tuple[dict[str, "pd.Series[float]"], list[Published]]]) -> str:
    """At how many lengths this run's fastest has a higher share than all published numbers, in a sentence."""
    higher = of = 0
    for lines, numbers in both.values():
        ours = pd.concat(list(lines.values())).groupby(level=0).max()
        theirs = pd.Series([n.share_pct for n in numbers], [n.seq_len for n in numbers]).groupby(level=0).max()
        shared = ours.index.intersection(theirs.index)
        of += len(shared)
        higher += int((ours[shared] > theirs[shared]).sum())
    if not of:
        return "No length, D and mask of this run is among the published ones."
    return (
        f"At {higher} of {formats.count(of, 'length')} of the same D and mask, this run's highest share of its "
        "device's peak is above every published one."
    )


def _draw_published(axes: Axes, numbers: list[Published]) -> None:
    """The numbers of each source, device and implementation as a thin line, with the name of the highest."""
    groups: dict[tuple[str, ...], list[Published]] = {}
    for number in numbers:
        key = (number.source, number.place, number.device, number.implementation)
        groups.setdefault(key, []).append(number)
    drawn: dict[str, Any] = {"color": OTHERS, "label": "_", "zorder": 1}
    for group in groups.values():
        points = [(number.seq_len or 0, number.share_pct) for number in group]
        most = sorted({size: max(share for other, share in points if other == size) for size, _ in points}.items())
        axes.plot(*zip(*most, strict=True), linewidth=0.8, **drawn)
        axes.plot(*zip(*points, strict=True), "o", markersize=2.5, **drawn)
    best = max(numbers, key=lambda number: number.share_pct)
    axes.annotate(
        f"{best.implementation}, {best.device.removeprefix('NVIDIA ')}",
        (best.seq_len or 0, best.share_pct),
        (0, 5),
        textcoords="offset points",
        ha="right",
        fontsize=7.5,
        color="#666666",
    )


def _lines(cases: Cases) -> dict[Panel, dict[str, "pd.Series[float]"]]:
    """This run's shares in percent by length, at the batch and heads of its target, of the implementations shown."""
    target = cases.results.study.target_shape
    fixed = {"batch": target.batch, "heads": target.heads, "kv_heads": target.heads, "dtype": target.dtype}
    rows = cases.rows
    rows = rows[np.logical_and.reduce([rows[axis] == value for axis, value in fixed.items()])]
    rows = rows[np.log2(rows["seq_len"].astype(float)) % 1 == 0]  # ragged lengths would notch the line
    rows = rows.assign(share=[cases.shares_pct(target.dtype, tflops)[0] for tflops in rows["throughput_tflops"]])
    rows = rows[rows["implementation"].isin(_shown(cases.results))].dropna(subset=["share"])
    found: dict[Panel, dict[str, pd.Series[float]]] = {}
    for (head_dim, causal, name), line in rows.groupby(["head_dim", "causal", "implementation"], sort=False):
        shares = line.set_index("seq_len")["share"].sort_index()
        found.setdefault((int(head_dim), bool(causal)), {})[str(name)] = shares
    return found


def _shown(results: Results) -> list[str]:
    """The implementations of this run that have lines: counterparts of published ones, and the fastest rung."""
    names = [name for name in dict.fromkeys(COUNTERPARTS.values()) if name in results.study.implementations]
    rungs = results.at(results.study.target_shape)
    rungs = rungs[rungs.index.str.startswith(PREFIX)]
    return [name for name in names if name != "sdpa.efficient"] + ([] if rungs.empty else [rungs["median_us"].idxmin()])
