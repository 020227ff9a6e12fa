"""Lengths that no tile of rows divides, beside the next length that one does: the time for each score."""

import matplotlib.pyplot as plt

from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Figure
from attnlab.exhibits.style import look
from attnlab.exhibits.words import say
from attnlab.infer.facts import lengths
from attnlab.infer.results import Results


@exhibit("baseline.odd_lengths")
def odd_lengths(results: Results) -> Figure:
    """How much longer a score takes, as dots with intervals: a panel for each length, a row for each implementation."""
    found = lengths.odd_lengths(results)
    names = [name for name in results.study.implementations if any(name in more for more in found.values())]
    drawing, grid = plt.subplots(
        1, len(found), sharex=True, sharey=True, squeeze=False, figsize=(6.5, 0.9 + 0.2 * len(names))
    )
    for axes, ((odd, even), more) in zip(grid[0], found.items(), strict=True):
        for place, name in enumerate(names):
            if change := more.get(name):
                drawn = look(name) | {"markersize": 5}
                axes.plot([change.estimate], [place], **drawn)
                axes.hlines(place, change.low, change.high, color=drawn["color"], linewidth=1.4)
        axes.axvline(0, color="#444444", linewidth=0.9)
        axes.set(title=f"S={odd.seq_len} against {even.seq_len}", xlabel="more time for a score (%)")
    grid[0][0].set_yticks(range(len(names)), names)
    grid[0][0].invert_yaxis()
    said = costliest(results)
    return Figure(
        drawing,
        f"{said} Medians with {formats.CI} intervals, {results.headline.words}.",
        f"Dots with intervals, a row for each implementation and a panel for each length. {said}",
    )


def costliest(results: Results) -> str:
    """What a length that no tile divides costs the baseline at most, in a sentence."""
    return say("baseline.costliest", c=lengths.costliest(results), tile=lengths.TILE)
