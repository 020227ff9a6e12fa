"""The highest published shares of a device's peak beside those of this run, as dots."""

import math

import matplotlib.pyplot as plt

from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Figure
from attnlab.exhibits.roofline.literature import best_of_each
from attnlab.exhibits.roofline.nearest import Cases
from attnlab.exhibits.style import look
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Results

PUBLISHED = "#888888"


@exhibit("roofline.literature.shares")
def shares(results: Results, peers: Results | None = None) -> Figure:
    """A row for each device and implementation: the highest published share, and the nearest case of this run."""
    cases = Cases(results, peers)
    numbers = [number for number in best_of_each() if not number.is_above_peak]
    drawing, axes = plt.subplots(figsize=(6.5, 1.0 + 0.2 * len(numbers)))
    higher = compared = 0
    for place, number in enumerate(numbers):
        axes.plot([number.share_pct], [place], "o", color=PUBLISHED, markersize=5.5)
        ours = cases.nearest(number)
        if ours and not math.isnan(ours.datasheet_pct):
            compared += 1
            higher += ours.datasheet_pct > number.share_pct
            colour = look(ours.name)["color"]
            axes.plot([number.share_pct, ours.datasheet_pct], [place] * 2, color="#bbbbbb", linewidth=1, zorder=1)
            axes.plot([ours.datasheet_pct], [place], "D", color=colour, markersize=5)
            side = 1 if ours.datasheet_pct >= number.share_pct else -1
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
    titles = [f"{number.implementation}, {number.device.removeprefix('NVIDIA ')}" for number in numbers]
    axes.set_yticks(range(len(numbers)), titles, fontsize=7.5)
    axes.set(xlim=(0, 100), xlabel="share of the dense peak in the device's datasheet (%)")
    axes.invert_yaxis()
    if not compared:
        plt.close(drawing)
        raise NotMeasured("This run has no case near a published number, on a device with a datasheet")
    said = (
        f"In {higher} of {formats.count(compared, 'row')} that have a case of this run nearby, this run's share is the "
        "higher."
    )
    return Figure(
        drawing,
        f"{said} The highest published share of the dense peak for each implementation and device, as a dot, and as a "
        f"diamond the nearest case of this run with the same D, {results.headline.words}.",
        f"Dots and diamonds on an axis of percent of the dense peak, a row for each published implementation. {said}",
    )
