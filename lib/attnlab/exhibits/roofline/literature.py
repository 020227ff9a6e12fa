"""Numbers that others published, beside this run."""

import math
from collections import Counter

import matplotlib.pyplot as plt

from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Figure, Prose, Table
from attnlab.exhibits.markdown import Inline
from attnlab.exhibits.quantities import Marked
from attnlab.exhibits.style import look
from attnlab.exhibits.words import say
from attnlab.infer.compare import published
from attnlab.infer.compare.published import Cases, Nearest
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Results
from attnlab.literature import bibliography, throughputs
from attnlab.literature.throughputs import Published

GREY = "#bbbbbb"
OVER = "‡ above what the device can do: taken as an error of the source until it is explained"


@exhibit("roofline.literature")
def summary(results: Results) -> Prose:
    """How many numbers were found, the highest shares of each device and of this run, and what can't be right."""
    numbers = throughputs.published()
    above, possible = ([number for number in numbers if number.is_above_peak is over] for over in (True, False))
    facts = {
        "numbers": numbers,
        "read": Counter(number.read_from for number in numbers),
        "best": throughputs.highest(possible, "device"),
        "here": published.highest_here(results),
        "above": above,
    }
    return Prose(say("roofline.literature", **facts))


@exhibit("roofline.literature.every")
def every(results: Results, choices: Results | None = None) -> Table:
    """Every published number, beside the nearest case of this run."""
    cases = Cases(results, choices)
    rows = [_row(number, cases.nearest(number), results) for number in throughputs.by_device(throughputs.published())]
    caption = (
        "Every published number in data/reference/literature.csv, with its place and what it was read from; here "
        f"{results.headline.words}."
    )
    shares = dict.fromkeys(("of peak", "of peak here", "of measured"), formats.percent)
    return Table.of(rows, caption, say("roofline.every"), shows=shares)


def _row(number: Published, ours: Nearest | None, results: Results) -> dict[str, object]:
    share = number.share_pct
    row = {
        "published": f"{number.implementation}\n{number.device.removeprefix('NVIDIA ')}",
        "source": Inline(bibliography.cite(number.source)),
        "stated": f"{number.value:g} {number.unit}, {number.read_from}\n{number.place}",
        "shape": _two_lines(number.axes),
        "TFLOP/s": number.throughput_tflops,
        "of peak": Marked(share, OVER) if number.is_above_peak else share,
    }
    if ours is None:
        return row
    elsewhere = "" if ours.run == results.run.name else f"\nin {ours.run}"
    return row | {
        "here": f"{ours.name}{elsewhere}\n{_two_lines(ours.shape.label)}",
        "TFLOP/s here": ours.throughput_tflops,
        "of peak here": ours.datasheet_pct,
        "of measured": ours.measured_pct,
    }


def _two_lines(shape: str) -> str:
    """The label of a shape on two lines, its dtype below its sizes."""
    return shape.replace(") ", ")\n")


@exhibit("roofline.literature.limits")
def limits(results: Results) -> Prose:
    """What published numbers and this run don't have in common."""
    numbers, target = throughputs.published(), results.study.target_shape
    facts = {
        "whole": sum(number.shape is not None for number in numbers),
        "grouped": sum(bool(number.kv_heads and number.kv_heads != number.heads) for number in numbers),
        "untyped": sum(number.dtype is None for number in numbers),
        "at_once": target.batch * target.heads,
    }
    return Prose(say("roofline.limits", numbers=len(numbers), **facts))


@exhibit("roofline.literature.shares")
def shares(results: Results, choices: Results | None = None) -> Figure:
    """A row for each device and implementation: the highest published share, and that of the same algorithm here."""
    cases, best = Cases(results, choices), throughputs.highest(throughputs.published(), "device", "implementation")
    nearest = [(number, cases.nearest(number)) for number in best if not number.is_above_peak]
    pairs = [(number, ours if ours and ours.is_same_algorithm(number) else None) for number, ours in nearest]
    near = [(n.share_pct, ours) for n, ours in pairs if ours and not math.isnan(ours.datasheet_pct)]
    if not near:
        raise NotMeasured("This run has no case of a published algorithm, on a device with a datasheet")
    drawing, axes = plt.subplots(figsize=(6.5, 0.8 + 0.12 * len(pairs)))
    for place, (number, ours) in enumerate(pairs):
        axes.plot([number.share_pct], [place], "o", color="#888888", markersize=5.5)
        if ours and not math.isnan(ours.datasheet_pct):
            colour, side = look(ours.name)["color"], 1 if ours.datasheet_pct >= number.share_pct else -1
            axes.plot([number.share_pct, ours.datasheet_pct], [place] * 2, color=GREY, linewidth=1, zorder=1)
            axes.plot([ours.datasheet_pct], [place], "D", color=colour, markersize=5)
            axes.annotate(
                ours.name,
                (ours.datasheet_pct, place),
                (6 * side, 0),
                textcoords="offset points",
                ha="left" if side > 0 else "right",
                va="center",
                fontsize=7,
            )
    titles = [f"{number.implementation}, {number.device.removeprefix('NVIDIA ')}" for number, _ in pairs]
    axes.set_yticks(range(len(pairs)), titles, fontsize=7.5)
    axes.set(xlim=(0, 100), xlabel="share of the dense peak in the device's datasheet (%)")
    axes.invert_yaxis()
    higher = sum(ours.datasheet_pct > share for share, ours in near)
    said = say("roofline.higher", higher=higher, of=len(near))
    sources = " ".join(dict.fromkeys(bibliography.cite(number.source) for number, _ in pairs))
    return Figure(
        drawing,
        say("roofline.shares", said=said, timing=results.headline.words, sources=sources),
        f"Dots and diamonds on an axis of percent of the dense peak, a row for each published implementation. {said}",
    )
