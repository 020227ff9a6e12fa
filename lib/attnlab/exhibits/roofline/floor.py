"""The roofline, the floor of each shape, and the speed of light of each implementation."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator

from attnlab.exhibits import cells, formats, quantities
from attnlab.exhibits.baseline.figures import SWEEPS, dashed, drawn
from attnlab.exhibits.baseline.sweeps import over
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.cells import CAUSAL_NOTE
from attnlab.exhibits.display import Figure, Group, Prose, Table
from attnlab.exhibits.quantities import Marked
from attnlab.exhibits.style import look, multiples, panel_each, plain_logarithm
from attnlab.exhibits.words import say
from attnlab.infer.ceilings import Ceiling
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Results
from attnlab.study.implementations import E4M3, in_fp8
from attnlab.study.shapes import Shape

PANEL_INCHES = 1.4
"""How high a panel of the roofline is: its throughputs span several powers of ten."""


@exhibit("roofline.speed_of_light")
def speed_of_light(results: Results) -> Figure:
    """The speed of light of each implementation along the lengths."""
    if results.under(results.headline)["floor_us"].isna().all():
        raise NotMeasured("No ceiling was measured, so there is no floor to compare with")
    drawing, panels = multiples(results, SWEEPS, "speed_of_light_pct", "speed of light (%)")
    panels[0].set_ylim(bottom=0)
    rows = results.over(SWEEPS)
    row = rows.loc[rows["speed_of_light_pct"].idxmax()]
    said = say("roofline.speed_of_light", row=row, where=cells.where(results, row))
    return Figure(
        drawing,
        f"{said} Floor over median latency, {results.headline.words}: each implementation before all others in grey"
        f"{dashed(results)}.",
        "Line plots of the percentage of the speed of light over sequence length, one panel for each implementation. "
        f"{said}",
    )


@exhibit("roofline.roofline")
def roofline(results: Results) -> Figure:
    """Throughput against intensity, under the measured ceilings, the L2's too where it is warm, and the datasheet's.

    Of a ladder with `kernel.best`, only that is drawn.
    """
    rows = results.under(results.headline)
    dtype = results.study.target_shape.dtype
    rows = rows[rows["dtype"] == dtype]
    if rows.empty:
        raise NotMeasured(f"Nothing has a latency in {dtype}, {results.headline.words}")
    names = [name for name in drawn(results) if name in set(rows["implementation"])]
    rows = rows[rows["implementation"].isin(names)]
    titles = "throughput (TFLOP/s), logarithmic", "intensity (FLOP per compulsory byte), logarithmic"
    drawing, panels = panel_each(names, *titles, PANEL_INCHES)
    furthest = np.nanmax([rows["intensity"].max(), results.ceilings.ridge(dtype)])
    span = np.geomspace(rows["intensity"].min() / 2, furthest * 2, 200)
    ceilings: list[Any] = []
    for name, axes in panels.items():
        ceilings = _roof(axes, span, results, E4M3 if in_fp8(name) else dtype) or ceilings
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
    first.xaxis.set_major_locator(LogLocator(base=100))  # more labels would touch those of the next panel
    if ceilings:
        drawing.legend(handles=ceilings, loc="outside upper center", ncols=2)
    said = say("roofline.highest", row=rows.loc[rows["throughput_tflops"].idxmax()], dtype=dtype)
    head_dim = None if np.isnan(results.ceilings.rate("exponentials")) else results.study.target_shape.head_dim
    facts = {"timing": results.headline.words, "has_causal": rows["causal"].any()}
    return Figure(
        drawing,
        say("roofline.roofline", said=said, head_dim=head_dim, **facts),
        "Roofline plots, one for each implementation: throughput over operational intensity on logarithmic axes, under "
        f"memory and compute ceilings. {said}",
    )


def _roof(axes: Axes, span: np.ndarray, results: Results, dtype: str) -> list[Any]:
    """Draw the ceilings over a span of intensities and return what a legend needs."""
    ceilings = results.ceilings.by_name
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
def regimes(results: Results) -> Prose:
    """The ceiling that limits each length, and the ridge between memory and matrix products."""
    limits: dict[str, list[Shape]] = {}
    for shape in results.sweep(SWEEPS[0]):
        if not results.ceilings.terms_us(shape, results.headline.cache):
            raise NotMeasured("No ceiling was measured, so what limits a shape is not known")
        limits.setdefault(results.ceilings.limit(shape, results.headline.cache), []).append(shape)
    target = results.study.target_shape
    ridge = results.ceilings.ridge(target.dtype)
    return Prose(say("roofline.regimes", limits=limits, timing=results.headline.words, ridge=ridge, target=target))


@exhibit("roofline.floors")
def every_floor(results: Results) -> Group:
    """The floors of the baseline along the lengths."""
    return over(SWEEPS, lambda name: floors(results, name, results.study.baseline))


def floors(results: Results, name: str, implementation: str) -> Table:
    """Intensity, the time by each ceiling, the limit and the speed of light, along a sweep of lengths.

    Raises:
        NotMeasured: the study has no such sweep, or the implementation no latency in it.
    """
    ceilings, cache, rows = results.ceilings, results.headline.cache, []
    along = results.along(name, implementation)
    for shape, row in along:
        terms, mark = ceilings.terms_us(shape, cache), row["throughput_mark"] or row["bandwidth_mark"]
        share = row["speed_of_light_pct"]
        work = {"S": shape.seq_len, "GFLOP": shape.flops / 1e9, "MB": shape.bytes / 1e6, "intensity": shape.intensity}
        least = {
            "matrix (µs)": terms.get(ceilings.product(shape.dtype), np.nan),
            "bytes (µs)": ceilings.bytes_us(shape, cache),
            "exp (µs)": terms.get("exponentials", np.nan),
        }
        light = {"speed_of_light_pct": Marked(share, mark) if mark else share}
        rows.append(work | least | quantities.cells(row, "limit", "median_us") | light)
    shapes = [shape for shape, _ in along]
    caption = (
        f"Roofline along the sequence length S, `{implementation}`{', causal' if shapes[0].causal else ''}: the least "
        f"time by each ceiling, and the largest of these over the median; {results.headline.words}."
    )
    target = results.study.target_shape
    highlight = shapes.index(target) if target in shapes else None
    return Table.of(rows, caption, _note(results, shapes), highlight)


def _note(results: Results, shapes: list[Shape]) -> str:
    """Over which ceilings work is taken where there is a choice, and at which clock these were measured."""
    ceilings, dtype = results.ceilings, shapes[0].dtype
    within, held_back = [shape for shape in shapes if ceilings.fits(shape)], set(results.held_back())
    facts = {
        "wgmma": ceilings.rate(f"wgmma.{dtype}") if ceilings.product(dtype).startswith("wgmma") else None,
        "library": ceilings.rate(f"matmul.{dtype}"),
        "l2": ceilings.rate("l2"),
        "has_clocks": any(ceiling.sm_clock_mhz for ceiling in ceilings.all),
        "throttled": [shape for shape in shapes if shape in held_back],
        "causal": CAUSAL_NOTE if shapes[0].causal else "",
    }
    all_within = len(within) == len(shapes)
    return say("roofline.floors", cache=results.headline.cache, within=within, all_within=all_within, **facts)
