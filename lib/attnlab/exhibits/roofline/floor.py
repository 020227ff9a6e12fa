"""The roofline, the floor of each shape, and the speed of light of each implementation."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from attnlab.exhibits import formats
from attnlab.exhibits.baseline.sweeps import dashed, place
from attnlab.exhibits.catalogue import baseline, exhibit
from attnlab.exhibits.cells import CAUSAL_NOTE, LETTERS, explanations, light, shape_of
from attnlab.exhibits.display import Figure, Prose, Table
from attnlab.exhibits.style import (
    AXIS_TITLES,
    look,
    multiples,
    panel_each,
    plain_logarithm,
)
from attnlab.infer.ceilings import Ceiling, Ceilings
from attnlab.infer.lookup import NotMeasured, axis_of
from attnlab.infer.results import Results
from attnlab.study.shapes import Shape


@exhibit("roofline.speed_of_light")
def speed_of_light(results: Results, sweeps: Sequence[str] = ("seq_len", "causal seq_len")) -> Figure:
    """The speed of light of each implementation along sweeps of lengths."""
    if results.under(results.headline)["floor_us"].isna().all():
        raise NotMeasured("No ceiling was measured, so there is no floor to compare with")
    drawing, panels = multiples(results, sweeps, "speed_of_light_pct", "speed of light (%)")
    panels[0].set_ylim(bottom=0)
    return Figure(
        drawing,
        f"{_best(results, sweeps)} Floor over median latency, {results.headline.words}: each implementation before all "
        f"others in grey{dashed(results, sweeps)}.",
        "Line plots of the percentage of the speed of light over sequence length, one panel for each implementation. "
        f"{_best(results, sweeps)}",
    )


def _best(results: Results, sweeps: Sequence[str]) -> str:
    """The highest share and where it is reached, in a sentence."""
    rows = pd.concat(
        [results.at(shape) for sweep in sweeps if sweep in results.study.sweeps for shape in results.sweep(sweep)]
    )
    row = rows.iloc[int(rows["speed_of_light_pct"].argmax())]
    where = formats.shapes([shape_of(row)], results.study.shapes)
    share = formats.percent(row["speed_of_light_pct"])
    return (
        f"Along these lengths, no implementation reaches more than {share} of what the ceilings allow: "
        f"`{row['implementation']}` at {where}."
    )


@exhibit("roofline.roofline")
def roofline(results: Results) -> Figure:
    """Throughput against intensity, under the measured ceilings, the L2's too where it is warm, and the datasheet's."""
    rows = results.under(results.headline)
    dtype = results.study.target_shape.dtype
    rows = rows[rows["dtype"] == dtype]
    if rows.empty:
        raise NotMeasured(f"Nothing has a latency in {dtype}, {results.headline.words}")
    names = [name for name in results.study.implementations if name in set(rows["implementation"])]
    titles = "throughput (TFLOP/s), logarithmic", "intensity (FLOP per compulsory byte), logarithmic"
    drawing, panels = panel_each(names, *titles)
    furthest = np.nanmax([rows["intensity"].max(), results.ceilings.ridge(dtype)])
    span = np.geomspace(rows["intensity"].min() / 2, furthest * 2, 200)
    for name, axes in panels.items():
        ceilings = _roof(axes, span, results, dtype)
        mine = rows[rows["implementation"] == name]
        for causal in (False, True):
            points = mine[mine["causal"] == causal]
            style = look(name) | {"linestyle": "none", "marker": "o", "markersize": 3.5}
            style |= {"label": "_", "markerfacecolor": "none"} if causal else {"markerfacecolor": style["color"]}
            axes.plot(points["intensity"], points["throughput_tflops"], **style)
    first = panels[names[0]]
    first.set(xscale="log", yscale="log")
    first.set_ylim(bottom=rows["throughput_tflops"].min() / 2)
    plain_logarithm(first.yaxis)
    plain_logarithm(first.xaxis)
    if ceilings:
        drawing.legend(handles=ceilings, loc="outside upper center", ncols=2)
    caption = [f"{_highest(rows)} Roofline in {dtype}; {results.headline.words}."]
    if rows["causal"].any():
        caption.append("Open markers are causal.")
    if not np.isnan(results.ceilings.rate("exponentials")):
        head_dim = results.study.target_shape.head_dim
        caption.append(f"The ceiling of exponentials is for one exponential per score, at D={head_dim}.")
    return Figure(
        drawing,
        " ".join(caption),
        "Roofline plots, one for each implementation: throughput over operational intensity on logarithmic axes, under "
        f"memory and compute ceilings. {_highest(rows)}",
    )


def _highest(rows: pd.DataFrame) -> str:
    """The highest throughput, in a sentence."""
    row = rows.loc[rows["throughput_tflops"].idxmax()]
    return (
        f"`{row['implementation']}` reaches the highest throughput, {formats.number(row['throughput_tflops'])} TFLOP/s "
        f"at {formats.number(row['intensity'])} FLOP/byte."
    )


def _roof(axes: Axes, span: np.ndarray, results: Results, dtype: str) -> list[Any]:
    """Draw the ceilings over a span of intensities and return what a legend needs."""
    ceilings = {ceiling.name: ceiling for ceiling in results.ceilings.all}
    product = ceilings.get(results.ceilings.product(dtype))
    roofs = [("measured", "copy", "-"), ("datasheet", "copy", "--")]
    if results.headline.cache == "warm":
        roofs.insert(1, ("measured", "l2", "-."))
    lines = []
    for source, name, style in roofs:
        bandwidth, peak = _rate(ceilings.get(name), source), _rate(product, source)
        if bandwidth and peak:
            what = "measured, within the L2" if name == "l2" else source
            label = f"{what}: {formats.number(bandwidth)} GB/s, {formats.number(peak)} TFLOP/s"
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


@exhibit("roofline.regimes")
def regimes(results: Results, sweep: str = "seq_len") -> Prose:
    """The ceiling that limits each length."""
    limits: dict[str, list[Shape]] = {}
    for shape in results.sweep(sweep):
        if not results.ceilings.terms_us(shape, results.headline.cache):
            raise NotMeasured("No ceiling was measured, so what limits a shape is not known")
        limits.setdefault(results.ceilings.limit(shape, results.headline.cache), []).append(shape)
    parts = [f"{_lengths(shapes)} by {limit}" for limit, shapes in limits.items()]
    return Prose(
        f"By the measured ceilings, {results.headline.words}, the floor is set at {'; '.join(parts)}.{_ridge(results)}"
    )


def _ridge(results: Results) -> str:
    """The ridge between memory and matrix products in a sentence; empty if one was not measured."""
    target = results.study.target_shape
    ridge = results.ceilings.ridge(target.dtype)
    if math.isnan(ridge):
        return ""
    side = "right" if target.intensity > ridge else "left"
    return (
        f" The ridge between memory and matrix products is at {formats.number(ridge)} FLOP/byte in {target.dtype}; "
        f"the target's intensity, {formats.number(target.intensity)} FLOP/byte, is to the {side} of it."
    )


def _lengths(shapes: list[Shape]) -> str:
    return "S = " + formats.listing([str(shape.seq_len) for shape in shapes])


@exhibit("roofline.floors.seq_len", name="seq_len", implementation=baseline)
@exhibit("roofline.floors.causal_seq_len", name="causal seq_len", implementation=baseline)
def floors(results: Results, name: str, implementation: str) -> Table:
    """Intensity, the time by each ceiling, the limit and the speed of light, along a sweep."""
    axis, rows, along = axis_of(name), [], results.along(name, implementation)
    ceilings, cache = results.ceilings, results.headline.cache
    for shape, row in along:
        terms = ceilings.terms_us(shape, cache)
        rows.append(
            {
                LETTERS[axis]: getattr(shape, axis),
                "GFLOP": formats.number(shape.flops / 1e9),
                "MB": formats.number(shape.bytes / 1e6),
                "FLOP/byte": formats.number(shape.intensity),
                "matrix (µs)": formats.number(terms.get(ceilings.product(shape.dtype), np.nan)),
                "bytes (µs)": formats.number(ceilings.bytes_us(shape, cache)),
                "exp (µs)": formats.number(terms.get("exponentials", np.nan)),
                "limit": row["limit"],
                "median (µs)": formats.number(row["median_us"], 4),
                "speed of light": light(row),
            }
        )
    shapes = [shape for shape, _ in along]
    parts = [
        _terms_note(results, shapes),
        _clock_note(results, shapes),
        CAUSAL_NOTE if shapes[0].causal else "",
        explanations([row for _, row in along]),
    ]
    caption = (
        f"Roofline along the {AXIS_TITLES[axis]}, `{implementation}`{', causal' if shapes[0].causal else ''}: the "
        f"least time by each ceiling, and the largest of these over the median; {results.headline.words}."
    )
    note = " ".join(filter(None, parts))
    return Table(pd.DataFrame(rows), caption, note, place(results, shapes))


def _terms_note(results: Results, shapes: list[Shape]) -> str:
    """The ceilings over which FLOPs and bytes are taken, where there is a choice."""
    ceilings, words = results.ceilings, []
    dtype = shapes[0].dtype
    if ceilings.product(dtype).startswith("wgmma"):
        alone, library = (formats.number(ceilings.rate(f"{kind}.{dtype}")) for kind in ("wgmma", "matmul"))
        words.append(f"Matrix: over the {alone} TFLOP/s of wgmma alone; the library's product reached {library}.")
    if results.headline.cache == "warm":
        words.append(_bytes_note(ceilings, shapes))
    return " ".join(words)


def _bytes_note(ceilings: Ceilings, shapes: list[Shape]) -> str:
    """Over which ceilings bytes are taken where the cache is warm, in a sentence."""
    within = [shape for shape in shapes if ceilings.fits(shape)]
    beyond = "what it can't hold over memory's"
    if not math.isnan(ceilings.rate("l2")):
        rest = "" if len(within) == len(shapes) else f", or {beyond}, whichever takes longer"
        return f"Bytes: over the warm L2's {formats.number(ceilings.rate('l2'))} GB/s{rest}."
    none = f"none at {_lengths(within)}, which fit the warm cache; its rate was not measured" if within else ""
    return f"Bytes: {'; '.join(filter(None, (none, beyond if len(within) < len(shapes) else '')))}."


def _clock_note(results: Results, shapes: list[Shape]) -> str:
    """The clock at which the ceilings were measured, where it affects a speed of light."""
    if not any(ceiling.sm_clock_mhz for ceiling in results.ceilings.all):
        return ""
    note = "The ceilings were measured in bursts, at the SM clock in [](#environment.ceilings)."
    everywhere = set(results.held_back())
    throttled = [shape for shape in shapes if shape in everywhere]
    if not throttled:
        return note
    return (
        f"{note} At {formats.shapes(throttled)} the card throttled during more than half of the samples, so the speed "
        "of light there is relative to ceilings at a higher clock."
    )
