"""Shares of the device's peak against sequence length: published numbers, and this run on top."""

from typing import Any

import matplotlib.patheffects
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Figure
from attnlab.exhibits.roofline.nearest import COUNTERPARTS, Cases
from attnlab.exhibits.style import look
from attnlab.infer.results import Results
from attnlab.literature.throughputs import Published, published
from attnlab.study.ladder import PREFIX

LINES: dict[str, Any] = {"NVIDIA H100 SXM": "-", "NVIDIA H200": "--", "NVIDIA A100 80GB PCIe": ":", "NVIDIA L4": "-."}
COLOURS = {
    "FlashAttention-2": ("#D55E00", "s"),
    "FlashAttention-3": ("#009E73", "v"),
    "FlashAttention-4": ("#B8860B", "X"),
    "PyTorch SDPA, flash": ("#D55E00", "o"),
    "ThunderKittens": ("#CC79A7", "P"),
    "Triton": ("#7F7F7F", "D"),
    "cuDNN": ("#0072B2", "^"),
}
HEAD_DIMS = (64, 128)
"""The figure has panels for these."""


@exhibit("roofline.literature.figure")
def figure(results: Results) -> Figure:
    """Share of the device's dense peak against sequence length, a panel for each head_dim and mask."""
    drawing, grid = plt.subplots(2, 2, sharex=True, sharey=True, figsize=(6, 6.4))
    places = [(head_dim, causal) for head_dim in HEAD_DIMS for causal in (False, True)]
    drawn = [number for number in published() if number.shape and number.implementation in COLOURS]
    cases = Cases(results)
    for axes, (head_dim, causal) in zip(grid.flat, places, strict=True):
        there = [number for number in drawn if (number.head_dim, number.causal) == (head_dim, causal)]
        _draw_published(axes, there)
        _draw_here(axes, cases, head_dim, causal)
        axes.set_title(f"D={head_dim}{', causal' if causal else ''}")
    sizes = [128 * 4**power for power in range(5)]
    grid[0][0].set_xscale("log", base=2)
    grid[0][0].xaxis.set_major_locator(FixedLocator(sizes))
    grid[0][0].xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:.0f}"))
    grid[0][0].xaxis.set_minor_locator(NullLocator())
    grid[0][0].set_ylim(bottom=0)
    for axes in grid[1]:
        axes.set_xlabel("sequence length S")
    for axes in grid[:, 0]:
        axes.set_ylabel("share of the device's dense peak (%)")
    drawing.legend(handles=_implementations(drawing), loc="outside upper center", ncols=3)
    devices = [
        Line2D([], [], color="#444444", linestyle=style, label=device.removeprefix("NVIDIA "))
        for device, style in LINES.items()
    ]
    drawing.legend(handles=devices, loc="outside lower center", ncols=len(devices))
    return Figure(
        drawing,
        "Share of the dense peak in the device's datasheet, against sequence length: published numbers with a "
        f"complete shape, and in heavy lines this run at the batch and heads of its target; {results.headline.words}. "
        "Where a source has several shapes at one length, the line goes through the highest.",
        "Line plots of the share of the device's dense peak over sequence length, one panel for each head dimension "
        "and mask, one line for each source, implementation and device, with this run's lines heavier.",
    )


def _draw_published(axes: Axes, numbers: list[Published]) -> None:
    groups: dict[tuple[str, ...], list[Published]] = {}
    for number in numbers:
        key = (number.source, number.place, number.device, number.implementation)
        groups.setdefault(key, []).append(number)
    for (_, _, device, implementation), group in groups.items():
        colour, marker = COLOURS[implementation]
        points = [(number.seq_len or 0, number.share_pct) for number in group]
        most = sorted({size: max(share for other, share in points if other == size) for size, _ in points}.items())
        style: dict[str, Any] = {"color": colour, "linewidth": 1, "alpha": 0.85}
        axes.plot(*zip(*most, strict=True), linestyle=LINES.get(device, "-"), **style)
        axes.plot(*zip(*points, strict=True), marker, markersize=4, label=implementation, **style)


def _draw_here(axes: Axes, cases: Cases, head_dim: int, causal: bool) -> None:
    target = cases.results.study.target_shape
    fixed = {"batch": target.batch, "heads": target.heads, "kv_heads": target.heads, "dtype": target.dtype} | {
        "head_dim": head_dim,
        "causal": causal,
    }
    rows = cases.rows
    rows = rows[np.logical_and.reduce([rows[axis] == value for axis, value in fixed.items()])]
    rows = rows[np.log2(rows["seq_len"].astype(float)) % 1 == 0]  # ragged lengths would notch the line
    for name in _shown(cases.results):
        line = rows[rows["implementation"] == name].sort_values("seq_len")
        shares = [cases.shares_pct(target.dtype, tflops)[0] for tflops in line["throughput_tflops"]]
        style = look(name) | {"zorder": 5, "label": f"here: {name}"}
        outline = [matplotlib.patheffects.withStroke(linewidth=4, foreground="white")]
        axes.plot(line["seq_len"], shares, **style | {"marker": "", "label": "_"}, linewidth=2.4, path_effects=outline)
        axes.plot(line["seq_len"], shares, **style, linewidth=2.4, markersize=6.5, markeredgecolor="black")


def _shown(results: Results) -> list[str]:
    """The implementations of this run that have lines: counterparts of published ones, and the fastest rung."""
    names = [name for name in dict.fromkeys(COUNTERPARTS.values()) if name in results.study.implementations]
    rungs = results.at(results.study.target_shape)
    rungs = rungs[rungs.index.str.startswith(PREFIX)]
    return [name for name in names if name != "sdpa.efficient"] + ([] if rungs.empty else [rungs["median_us"].idxmin()])


def _implementations(drawing: Drawing) -> list[Any]:
    """One entry of the legend for each label, this run's last."""
    found = [pair for axes in drawing.axes for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
    handles = {label: handle for handle, label in reversed(found)}
    return [handles[label] for label in sorted(handles, key=lambda label: (label.startswith("here"), label.lower()))]
