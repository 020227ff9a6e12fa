"""Shares of the device's peak: this run before published numbers."""

import math
from collections.abc import Iterable
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Figure
from attnlab.exhibits.style import label_ends, look
from attnlab.exhibits.words import say
from attnlab.infer.compare import published
from attnlab.infer.compare.published import Cases, Panel
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Results
from attnlab.literature import throughputs
from attnlab.literature.throughputs import Published

OTHERS = "#bbbbbb"


@exhibit("roofline.literature.figure")
def figure(results: Results) -> Figure:
    """Share of the dense peak against sequence length, a panel for each head_dim and mask that both have."""
    both = published.curves(results)
    rows, columns = -(-len(both) // 2), min(len(both), 2)
    drawing, grid = plt.subplots(
        rows, columns, sharex=True, sharey=True, squeeze=False, figsize=(7.2, 0.6 + 2.1 * rows)
    )
    for axes in grid.flat[len(both) :]:
        axes.set_visible(False)
    first = grid[0][0]
    first.set(xscale="log", ylim=(0, 100))
    for axes, (panel, curves) in zip(grid.flat, both.items(), strict=False):
        _draw_published(axes, curves.numbers)
        for name, line in curves.lines.items():
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
    higher, of = published.higher(both.values())
    said = say("roofline.compared", higher=higher, of=of)
    return Figure(
        drawing,
        say("roofline.curves", said=said, timing=results.headline.words),
        "Line plots of the share of the device's dense peak over sequence length, one panel for each head dimension "
        f"and mask, published numbers in grey. {said}",
    )


def _title(panel: Panel) -> str:
    head_dim, causal = panel
    return f"D={head_dim}{', causal' if causal else ''}"


def _draw_published(axes: Axes, numbers: Iterable[Published]) -> None:
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


@exhibit("roofline.literature.shares")
def shares(results: Results, peers: Results | None = None) -> Figure:
    """A row for each device and implementation: the highest published share, and the nearest case of this run."""
    cases, best = Cases(results, peers), throughputs.highest(throughputs.published(), "device", "implementation")
    pairs = [(number, cases.nearest(number)) for number in best if not number.is_above_peak]
    near = [(n.share_pct, ours) for n, ours in pairs if ours and not math.isnan(ours.datasheet_pct)]
    if not near:
        raise NotMeasured("This run has no case near a published number, on a device with a datasheet")
    drawing, axes = plt.subplots(figsize=(6.5, 1.0 + 0.2 * len(pairs)))
    for place, (number, ours) in enumerate(pairs):
        axes.plot([number.share_pct], [place], "o", color="#888888", markersize=5.5)
        if ours and not math.isnan(ours.datasheet_pct):
            colour, side = look(ours.name)["color"], 1 if ours.datasheet_pct >= number.share_pct else -1
            axes.plot([number.share_pct, ours.datasheet_pct], [place] * 2, color=OTHERS, linewidth=1, zorder=1)
            axes.plot([ours.datasheet_pct], [place], "D", color=colour, markersize=5)
            axes.annotate(
                ours.name,
                (ours.datasheet_pct, place),
                (6 * side, 0),
                textcoords="offset points",
                ha="left" if side > 0 else "right",
                va="center",
                fontsize=7,
                color=colour,
            )
    titles = [f"{number.implementation}, {number.device.removeprefix('NVIDIA ')}" for number, _ in pairs]
    axes.set_yticks(range(len(pairs)), titles, fontsize=7.5)
    axes.set(xlim=(0, 100), xlabel="share of the dense peak in the device's datasheet (%)")
    axes.invert_yaxis()
    higher = sum(ours.datasheet_pct > share for share, ours in near)
    said = say("roofline.higher", higher=higher, of=len(near))
    return Figure(
        drawing,
        say("roofline.shares", said=said, timing=results.headline.words),
        f"Dots and diamonds on an axis of percent of the dense peak, a row for each published implementation. {said}",
    )
