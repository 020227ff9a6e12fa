"""What others published, beside this run: tables, a figure, and what they say and can't say."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib.patheffects
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from attnlab.analyse import formats, references
from attnlab.analyse.display import Figure, Inline, Prose, Table, telling
from attnlab.analyse.figures import look, styled
from attnlab.analyse.literature import COUNTERPARTS, Here, Published, alike, by_device, here, published, shares_pct
from attnlab.analyse.results import NotMeasured, Results
from attnlab.analyse.roofline import datasheet
from attnlab.ladder import PREFIX

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
"""Those that the figure has panels for."""
OVER = "‡"
HOPPER_FLOPS_PER_CLOCK = 4096
"""Dense FP16 or BF16 FLOPs of a Hopper multiprocessor in a clock (FlashAttention-4, arXiv 2603.05451, section 2.2)."""


def highest(results: Results) -> Table:
    """The highest share of each implementation on each device, beside the nearest case of this run."""
    best: dict[tuple[str, str], Published] = {}
    for number in by_device(published()):
        key = (number.device, number.implementation)
        if key not in best or number.share_pct > best[key].share_pct:
            best[key] = number
    return Table(
        pd.DataFrame([_normalised(number) | _beside(results, number) for number in best.values()]),
        "literature",
        "The highest share of its device's dense peak that was published of each implementation, and what this run has "
        f"at the nearest shape of the same D and mask; here {results.headline.words}.",
        _note(best.values()),
    )


def every(results: Results) -> Table:
    """Every published number, beside the nearest case of this run."""
    numbers = by_device(published())
    rows = [
        _normalised(number)
        | {"stated": f"{number.value:g} {number.unit}, {number.read_from}\n{number.place}"}
        | _briefly(_beside(results, number))
        for number in numbers
    ]
    caption = (
        "Every published number, with its place and what it was read from there, as data/reference/literature.csv "
        f"holds it; here {results.headline.words}."
    )
    note = f"{_note(numbers)} Its shares: of peak and, below it, of measured."
    return Table(pd.DataFrame(rows), "literature-all", caption, note)


def _normalised(number: Published) -> dict[str, object]:
    return {
        "published": f"{number.implementation}\n{number.device.removeprefix('NVIDIA ')}",
        "source": Inline(references.cite(number.source)),
        "shape": _two_lines(number.axes),
        "TFLOP/s": formats.number(number.throughput_tflops),
        "of peak": f"{formats.percent(number.share_pct)}{f' {OVER}' if number.is_above_peak else ''}",
    }


def _beside(results: Results, number: Published) -> dict[str, str | None]:
    ours = here(results, number)
    return {
        "here": f"{ours.name}\n{_two_lines(formats.shape(ours.shape))}" if ours else None,
        "TFLOP/s here": formats.number(ours.throughput_tflops) if ours else None,
        "of peak here": formats.percent(ours.datasheet_pct) if ours else None,
        "of measured": formats.percent(ours.measured_pct) if ours else None,
    }


def _briefly(cells: dict[str, str | None]) -> dict[str, str | None]:
    """The shares of a case of this run below one another."""
    shares = [cells["of peak here"], cells["of measured"]]
    return {"here": cells["here"], "its shares": "\n".join(filter(None, shares)) or None}


def _two_lines(shape: str) -> str:
    """A shape as `formats.shape` writes it, its dtype below its sizes."""
    return shape.replace(") ", ")\n")


def _note(numbers: Iterable[Published]) -> str:
    note = (
        "TFLOP/s count the scores under the mask; a causal number that counts half of the square was brought to that. "
        "Of peak: of the dense products with FP32 accumulation that the device's datasheet states. Here: the same "
        "algorithm where this run has it, else the fastest; of measured: of the matrix product that this run measured "
        "on its card. A dash: the source states no shape, or this run has none of that D and mask."
    )
    if any(number.is_above_peak for number in numbers):
        note += f" {OVER} Above what the device can do: take it for an error of the source until it is explained."
    return note


@styled
def figure(results: Results) -> Figure:
    """Share of the device's dense peak against sequence length, a panel for each head_dim and mask, this run on top."""
    drawing, grid = plt.subplots(2, 2, sharex=True, sharey=True, figsize=(6, 6.4))
    places = [(head_dim, causal) for head_dim in HEAD_DIMS for causal in (False, True)]
    drawn = [number for number in published() if number.shape and number.implementation in COLOURS]
    for axes, (head_dim, causal) in zip(grid.flat, places, strict=True):
        there = [number for number in drawn if (number.head_dim, number.causal) == (head_dim, causal)]
        _draw_published(axes, there)
        _draw_here(axes, results, head_dim, causal)
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
        "literature",
        "Share of the dense peak that the device's datasheet states, against sequence length: published numbers with a "
        f"whole shape, and this run's at the batch and heads of its target, heavy; {results.headline.words}. Where a "
        "source has several shapes at one length, the line goes through the highest.",
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


def _draw_here(axes: Axes, results: Results, head_dim: int, causal: bool) -> None:
    target = results.study.target_shape
    fixed = {"batch": target.batch, "heads": target.heads, "kv_heads": target.heads, "dtype": target.dtype} | {
        "head_dim": head_dim,
        "causal": causal,
    }
    rows = alike(results)
    rows = rows[np.logical_and.reduce([rows[axis] == value for axis, value in fixed.items()])]
    rows = rows[np.log2(rows["seq_len"].astype(float)) % 1 == 0]  # ragged lengths would notch the line
    for name in _shown(results):
        line = rows[rows["implementation"] == name].sort_values("seq_len")
        shares = [shares_pct(results, target.dtype, tflops)[0] for tflops in line["throughput_tflops"]]
        style = look(name) | {"zorder": 5, "label": f"here: {name}"}
        outline = [matplotlib.patheffects.withStroke(linewidth=4, foreground="white")]
        axes.plot(line["seq_len"], shares, **style | {"marker": "", "label": "_"}, linewidth=2.4, path_effects=outline)
        axes.plot(line["seq_len"], shares, **style, linewidth=2.4, markersize=6.5, markeredgecolor="black")


def _shown(results: Results) -> list[str]:
    """This run's lines: the algorithms that were published, and the rung that is fastest at the target."""
    names = [name for name in dict.fromkeys(COUNTERPARTS.values()) if name in results.study.implementations]
    rungs = results.at(results.study.target_shape)
    rungs = rungs[rungs.index.str.startswith(PREFIX)]
    return [name for name in names if name != "sdpa.efficient"] + ([] if rungs.empty else [rungs["median_us"].idxmin()])


def _implementations(drawing: Drawing) -> list[Any]:
    """One legend's entry for each label, this run's last."""
    found = [pair for axes in drawing.axes for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
    handles = {label: handle for handle, label in reversed(found)}
    return [handles[label] for label in sorted(handles, key=lambda label: (label.startswith("here"), label.lower()))]


def told(results: Results) -> Prose:
    """What the comparison comes to, in sentences."""
    return Prose(" ".join([_extent(), _reached(results), _above()]))


def _extent() -> str:
    numbers = published()
    devices = {number.device for number in numbers}
    read = {way: sum(number.read_from == way for number in numbers) for way in ("table", "label on figure", "text")}
    counts = (
        f"{read['table']} from tables, {read['label on figure']} from labels on figures and {read['text']} from text"
    )
    guessed = sum(number.read_from == "plot" for number in numbers)
    return (
        f"{formats.count(len(numbers), 'number')} from {formats.count(len({n.source for n in numbers}), 'source')} on "
        f"{formats.count(len(devices), 'device')} were found and transcribed: {counts}; "
        f"{guessed if guessed else 'none'} off an axis."
    )


def _reached(results: Results) -> str:
    """The highest share of each device, and of this run."""
    best: dict[str, Published] = {}
    for number in by_device(published()):
        if not number.is_above_peak and number.share_pct > (
            best[number.device].share_pct if number.device in best else 0
        ):
            best[number.device] = number
    shares = [
        f"{formats.percent(number.share_pct)} on {device.removeprefix('NVIDIA ')} ({number.implementation}, "
        f"{f'D={number.head_dim}' if number.head_dim else 'shape not stated'})"
        for device, number in best.items()
    ]
    rows = alike(results)
    rows = rows[rows["dtype"].isin(["float16", "bfloat16"])]
    if rows.empty:
        return f"The highest published shares of the dense peak are {formats.listing(shares)}."
    row = rows.loc[rows["throughput_tflops"].idxmax()]
    of_sheet, of_measured = shares_pct(results, row["dtype"], row["throughput_tflops"])
    beside = "" if math.isnan(of_sheet) else f" {formats.percent(of_sheet)} of the dense peak"
    measured = (
        ""
        if math.isnan(of_measured)
        else f"{' and' * bool(beside)} {formats.percent(of_measured)} of the matrix product measured here"
    )
    ours = (
        f" This run's highest is{beside}{measured} (`{row['implementation']}`, D={row['head_dim']})."
        if beside or measured
        else ""
    )
    return f"The highest published shares of the dense peak are {formats.listing(shares)}.{ours}"


@telling
def same(results: Results) -> Table:
    """Each algorithm that this run has too, at the lengths, D and mask that both have, a row for each device.

    Raises:
        NotMeasured: there is none.
    """
    pairs: dict[tuple[str, str], list[tuple[Published, Here]]] = {}
    for number in by_device(published()):
        beside = here(results, number) if number.implementation in COUNTERPARTS else None
        if beside is None or beside.name != COUNTERPARTS[number.implementation] or math.isnan(beside.datasheet_pct):
            continue
        if beside.shape.seq_len == number.seq_len:
            pairs.setdefault((number.implementation, number.device), []).append((number, beside))
    rows = [
        {
            "published": name,
            "device": device.removeprefix("NVIDIA "),
            "numbers": len(both),
            "S": _lengths([number.seq_len or 0 for number, _ in both]),
            "D": formats.listing([str(size) for size in sorted({ours.shape.head_dim for _, ours in both})]),
            "of its peak": _span([number.share_pct for number, _ in both]),
            "here": COUNTERPARTS[name],
            "of this peak": _span([ours.datasheet_pct for _, ours in both]),
            "here over published": _factors([ours.datasheet_pct / number.share_pct for number, ours in both]),
        }
        for (name, device), both in pairs.items()
    ]
    if not rows:
        raise NotMeasured("This run has no algorithm, length, D and mask in common with what others published")
    return Table(
        pd.DataFrame(rows),
        "literature-same",
        "The same algorithms at the same length, D and mask: shares of each device's dense peak, lowest to highest; "
        f"here {results.headline.words}.",
        "Batch and heads differ but on the L4. Here over published: the ratio of the shares, lowest to highest.",
    )


def _lengths(sizes: Sequence[int]) -> str:
    low, high = min(sizes), max(sizes)
    return f"{low}" if low == high else f"{low} to {high}"


def _factors(ratios: Sequence[float]) -> str:
    low, high = min(ratios), max(ratios)
    return f"{low:.2f}×" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}×"


def _span(shares: Sequence[float]) -> str:
    low, high = formats.percent(min(shares)), formats.percent(max(shares))
    return low if low == high else f"{low.removesuffix(' %')} to {high}"


def _above() -> str:
    over = [number for number in published() if number.is_above_peak]
    if not over:
        return "No number lies above the dense peak of its device."
    named = formats.listing(
        [
            f"{number.implementation} at {formats.percent(number.share_pct)} {references.cite(number.source)}"
            for number in over
        ]
    )
    return (
        f"{formats.count(len(over), 'number')} {'lies' if len(over) == 1 else 'lie'} above what the device can do and "
        f"can't be right: {named}."
    )


def limits(results: Results) -> Prose:
    """What the comparison can't say."""
    numbers = published()
    whole = sum(number.shape is not None for number in numbers)
    grouped = sum(bool(number.kv_heads and number.kv_heads != number.heads) for number in numbers)
    untyped = sum(number.dtype is None for number in numbers)
    target = results.study.target_shape
    lines = [
        "**Peaks are not ceilings.** The only ceiling that is known of all devices is the datasheet's, at one clock."
        + _clock(results),
        "**Clocks and power.** No number comes with the power or the temperature of its card, and only "
        f"NVIDIA's own {references.cite('nvidia2026frontend')} with a peak at the clock that was seen. So bursts "
        "can't be told from sustained loads.",
        "**Caches.** What the L2 held is told of no number; at short sequences that decides.",
        f"**Shapes.** {whole} of {len(numbers)} state the whole shape. Most keep the tokens of a batch the same, "
        "16,384 or more, so at short lengths they have more heads in flight than this run's "
        f"{target.batch * target.heads} at its target; {grouped} share K and V among heads, which leaves the work the "
        "same and the traffic less.",
        "**Code.** An algorithm's name is compared, not its version: cuDNN and FlashAttention have changed in between. "
        f"{untyped} do not state their dtype.",
    ]
    return Prose("\n".join(f"- {line}" for line in lines))


def _clock(results: Results) -> str:
    """What the datasheet's peak means at the clock that this run's card went to, on Hopper."""
    device, clocks = results.run.manifest["device"], results.run.samples["sm_clock_mhz"].dropna()
    sheet = datasheet(device["name"])
    if sheet is None or device.get("compute_capability") != "9.0" or clocks.empty:
        return ""
    per_mhz = device["multiprocessors"] * HOPPER_FLOPS_PER_CLOCK / 1e6
    peak = float(sheet["matmul_float16_tflops"])
    return (
        f" The {peak:,.0f} TFLOP/s of this device are {device['multiprocessors']} multiprocessors with "
        f"{HOPPER_FLOPS_PER_CLOCK:,} FLOPs a clock {references.cite('zadouri2026')} at {peak / per_mhz:,.0f} MHz; its "
        f"samples went up to {clocks.max():,.0f} MHz, where they would be {clocks.max() * per_mhz:,.0f}."
    )
