"""Shares of the device's peak: this run before published numbers."""

import math

import matplotlib.pyplot as plt

from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Figure
from attnlab.exhibits.style import look
from attnlab.exhibits.words import say
from attnlab.infer.beside.published import Cases
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Results
from attnlab.literature import throughputs

OTHERS = "#bbbbbb"


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
