"""Lengths that no tile of rows divides, beside the next length that one does: the time for each score."""

import matplotlib.pyplot as plt

from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Figure, Prose
from attnlab.exhibits.style import look
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Results
from attnlab.infer.stats import Interval, ratio_ci
from attnlab.study.shapes import Shape

TILE = 64
"""Rows that kernels work on at a time, or a divisor of them."""
Neighbours = tuple[Shape, Shape]
"""A shape whose length is no multiple of `TILE`, and the next longer one whose length is."""


@exhibit("baseline.odd_lengths")
def odd_lengths(results: Results) -> Prose:
    """How much longer a score takes at lengths that are no multiple of a tile, for each implementation."""
    name = results.study.baseline
    found = {pair: more for pair, more in _pairs(results).items() if name in more}
    return Prose(" ".join(_sentence(results, pair, more) for pair, more in found.items()))


@exhibit("baseline.odd_lengths.figure")
def figure(results: Results) -> Figure:
    """The same as dots with intervals, a panel for each length and a row for each implementation."""
    found = _pairs(results)
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
    return Figure(
        drawing,
        f"{costliest(results)} Medians with {formats.CI} intervals, {results.headline.words}.",
        f"Dots with intervals, a row for each implementation and a panel for each length. {costliest(results)}",
    )


def costliest(results: Results) -> str:
    """What a length that no tile divides costs the baseline at most, in a sentence."""
    name = results.study.baseline
    costs = {pair: more[name] for pair, more in _pairs(results).items() if name in more}
    odd, even = max(costs, key=lambda pair: costs[pair].estimate)
    change = costs[odd, even]
    longer = "longer" if change.low > 0 else "no longer"
    return (
        f"`{name}` takes {longer} for a score at S={odd.seq_len} than at S={even.seq_len}, which tiles of {TILE} rows "
        f"divide: {formats.change(change)}."
    )


def _pairs(results: Results) -> dict[Neighbours, dict[str, Interval]]:
    """The change by implementation at each odd length.

    Raises:
        NotMeasured: the baseline has no such length.
    """
    pairs = [(odd, even) for odd in results.study.shapes if (even := _next_multiple(odd, results.study.shapes))]
    found = {pair: _by_implementation(results, *pair) for pair in pairs}
    if not any(results.study.baseline in more for more in found.values()):
        raise NotMeasured(f"This run has no length above {TILE} that is no multiple of it, beside the next that is")
    return {pair: more for pair, more in found.items() if more}


def _next_multiple(odd: Shape, shapes: list[Shape]) -> Shape | None:
    """The same shape with the next multiple of a tile as its length; None where the run has none."""
    if odd.seq_len < TILE or not odd.seq_len % TILE or odd.lengths != "equal" or odd.kv_len != odd.seq_len:
        return None
    even = odd.resized(seq_len=-(-odd.seq_len // TILE) * TILE)
    return even if even in shapes else None


def _by_implementation(results: Results, odd: Shape, even: Shape) -> dict[str, Interval]:
    """How much longer a score takes at the odd length, in percent, by implementation."""
    found = {}
    for name in results.study.implementations:
        if name in results.at(odd).index and name in results.at(even).index:
            longer, usual = ([us / shape.scores for us in results.samples(name, shape)] for shape in (odd, even))
            ticks = [results.tick_us(results.row(name, shape)) / shape.scores for shape in (odd, even)]
            ratio = ratio_ci(longer, usual, tick=max(ticks))
            found[name] = Interval(*(100 * (end - 1) for end in (ratio.estimate, ratio.low, ratio.high)))
    return found


def _sentence(results: Results, pair: Neighbours, more: dict[str, Interval]) -> str:
    (odd, even), name = pair, results.study.baseline
    at = formats.shapes([odd], results.study.shapes)
    sentence = (
        f"At {at}, a length that no tile of {TILE} rows divides, the time of `{name}` for each score differs from that "
        f"at S={even.seq_len} by {formats.change(more[name])}{_detectable(results, pair)}"
    )
    others = {other: change for other, change in more.items() if other != name}
    if not others:
        return f"{sentence}."
    least, most = (edge(others, key=lambda other: others[other].estimate) for edge in (min, max))
    if len(others) == 1:
        return f"{sentence}; that of `{least}` by {formats.change(others[least])}."
    return (
        f"{sentence}; those of the others by {formats.change(others[least])} (`{least}`) to "
        f"{formats.change(others[most])} (`{most}`)."
    )


def _detectable(results: Results, pair: Neighbours) -> str:
    if not all(results.is_controlled(shape) for shape in pair):
        return ""
    effect = max(results.smallest_effect(shape) for shape in pair)
    return f" (minimum detectable effect {formats.percent(100 * effect)})"
