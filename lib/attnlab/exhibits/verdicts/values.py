"""Whether a result holds whatever the numbers in Q, K and V are: every kind of values at one shape."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from attnlab.exhibits import decisions, formats
from attnlab.exhibits.catalogue import exhibit, target
from attnlab.exhibits.decisions import FASTER, SLOWER
from attnlab.exhibits.display import Figure, Group, Prose, Table
from attnlab.infer import kinds
from attnlab.infer.kinds import OverKinds
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Results
from attnlab.study import values
from attnlab.study.shapes import Shape

STEADY_PCT = 5
"""An implementation whose medians on all kinds lie within so many percent of each other takes the same time on all."""
MOST_NAMED = 4
"""So many implementations are named in a sentence; of more, their number is."""
STRETCH = 1.6
"""The ratio to the first kind at which a cell has its full colour."""


@exhibit("verdicts.kinds", of="valued")
def described(results: Results) -> Table:
    """The kinds of values that the run timed, in words."""
    names = dict.fromkeys(shape.values for shape in results.study.shapes)
    rows = [
        {"values": name, "what they are": values.about(name), "source": values.KINDS[values.split(name)[0]].source}
        for name in names
    ]
    note = "What is not named is standard normal, V included. `zeros` are in no verdict over all kinds."
    return Table(pd.DataFrame(rows), "The kinds of values that were timed.", note)


@exhibit("verdicts.values", of="valued", shape=target)
def at_target(results: Results, shape: Shape) -> Figure:
    """The latency of every implementation on every kind of values at one shape."""
    return _map(results, shape)


@exhibit("verdicts.values.elsewhere", of="valued")
def elsewhere(results: Results) -> Group:
    """The same at every other shape that was timed on several kinds."""
    others = [shape for shape in kinds.several(results) if shape.plain != results.study.target_shape.plain]
    if not others:
        raise NotMeasured("No other shape was timed on several kinds of values")
    return Group({f"shape_{number}": _map(results, shape) for number, shape in enumerate(others, 1)})


@exhibit("verdicts.values.said", of="valued", shape=target)
def said(results: Results, shape: Shape) -> Prose:
    """What the values change at one shape, in a paragraph."""
    return Prose(sentence(results, shape))


def in_short(results: Results, valued: Results | None) -> str:
    """What the values change at the target of a run, or of another on the same device that timed several kinds."""
    found = valued or results
    shape = found.study.target_shape
    alike = kinds.shapes(found, shape)
    if len(alike) < 2:
        return f"At the target, all of this is of {results.study.target_shape.values} values alone."
    said = " ".join(filter(None, [*turned(found, shape), _safest(found, shape, alike)]))
    return said if found.run.name == results.run.name else f"{said} (Run `{found.run.name}`.)"


def sentence(results: Results, shape: Shape) -> str:
    """What the values change at a shape: first whose verdict they turn round, then who takes as long on all.

    Raises:
        NotMeasured: the shape was timed on a single kind of values.
    """
    alike = _kinds(results, shape)
    parts = [*turned(results, shape), _safest(results, shape, alike), _steady(results, shape, alike)]
    return " ".join(filter(None, parts))


def turned(results: Results, shape: Shape) -> list[str]:
    """The candidates that are faster on some values and slower on others, a sentence each."""
    alike = kinds.shapes(results, shape)
    found = [kinds.over(results, name, shape) for name in _candidates(results, alike)] if len(alike) > 1 else []
    return [_turned(results, one) for one in found if one.disagree]


def worst(one: OverKinds) -> str:
    """The speedup on the worst kind of several, and on the best."""
    low, high = one.worst, one.best
    least, most = (formats.interval(one.verdicts[shape].speedup) for shape in (low, high))
    return f"{least} on {low.values} values, {most} on {high.values} ones"


def _turned(results: Results, one: OverKinds) -> str:
    faster, slower = formats.count(len(one.where(FASTER)), "kind"), [shape.values for shape in one.where(SLOWER)]
    return (
        f"**Whether `{one.candidate}` is faster than `{results.study.baseline}` depends on the values**: it is faster "
        f"on {faster} and slower on {formats.listing(slower)} ({worst(one)})."
    )


def _safest(results: Results, shape: Shape, alike: list[Shape]) -> str:
    """The candidate that gains most on the worst of its kinds, and how much."""
    found = [kinds.over(results, name, shape) for name in _candidates(results, alike)]
    best = max((one for one in found if not one.lacking), key=lambda one: one.verdict.speedup.estimate, default=None)
    if best is None:
        return ""
    return (
        f"Over all {len(best.verdicts)} kinds at {shape.plain.label}, `{best.candidate}` gains most over "
        f"`{results.study.baseline}`: on its worst it is {decisions.relation(best.verdict)} it ({worst(best)})."
    )


def _steady(results: Results, shape: Shape, alike: list[Shape]) -> str:
    """Which implementations take the same time on all kinds, and which take how much longer on which."""
    steady, others = [], []
    for name in results.study.implementations:
        timed = {other.values: results.median(name, other) for other in alike if name in results.at(other).index}
        if len(timed) < 2:
            continue
        slowest, fastest = (end(timed, key=lambda kind: timed[kind].estimate) for end in (max, min))
        stretch = timed[slowest].estimate / timed[fastest].estimate
        if 100 * (stretch - 1) <= STEADY_PCT:
            steady.append(f"`{name}`")
        elif 100 * (timed[slowest].low / timed[fastest].high - 1) > STEADY_PCT:
            others.append((stretch, f"`{name}` {formats.times(stretch)} ({slowest})"))
    known = len(steady) + len(others)
    if not known:
        return "Whether the values matter can't be told from so few samples."
    which = formats.listing(steady) if len(steady) <= MOST_NAMED else f"{len(steady)} of {known} implementations"
    take = "takes" if len(steady) == 1 else "take"
    same = f"{which} {take} the same time on all kinds within {STEADY_PCT} %" if steady else ""
    longer = formats.listing([words for _, words in sorted(others, reverse=True)])
    more = f"from the fastest kind to the slowest, the time grows by a factor for {longer}" if others else ""
    said = "; ".join(filter(None, (same, more)))
    return f"{said[0].upper()}{said[1:]}."


def _map(results: Results, shape: Shape) -> Figure:
    without_zeros = _kinds(results, shape)
    said, alike = _steady(results, shape, without_zeros), _kinds(results, shape, with_zeros=True)
    names = [name for name in results.study.implementations if any(name in results.at(one).index for one in alike)]
    medians = np.array([[_median(results, name, one) for one in alike] for name in names])
    ratios = medians / medians[:, :1]
    drawing, axes = plt.subplots(figsize=(1.7 + 0.52 * len(alike), 1.5 + 0.24 * len(names)))
    reach = np.log2(STRETCH)
    axes.imshow(np.log2(ratios), cmap="RdBu_r", vmin=-reach, vmax=reach, aspect="auto")
    for row, column in np.ndindex(*medians.shape):
        dark = abs(np.log2(ratios[row, column])) > 0.6 * reach
        words = "–" if np.isnan(medians[row, column]) else formats.number(float(medians[row, column]))
        axes.text(column, row, words, ha="center", va="center", fontsize=6.5, color="white" if dark else "#222222")
    axes.set_xticks(range(len(alike)), [one.values for one in alike], rotation=35, ha="left", rotation_mode="anchor")
    axes.xaxis.tick_top()
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(length=0, labelsize=7)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    first = alike[0].values
    return Figure(
        drawing,
        f"{said} Median latency in µs at {shape.label}, {results.headline.words}: a column "
        "for each kind of values. "
        f"Red takes longer than the same implementation on {first} values, blue is faster; the colour is full at "
        f"{formats.times(STRETCH)}.",
        f"Grid of latencies in microseconds, implementations by kinds of values. {said}",
    )


def _median(results: Results, name: str, shape: Shape) -> float:
    at = results.at(shape)
    return float(at.loc[name, "median_us"]) if name in at.index else float("nan")


def _kinds(results: Results, shape: Shape, with_zeros: bool = False) -> list[Shape]:
    """The shapes that differ from one in their values alone.

    Raises:
        NotMeasured: there is a single one.
    """
    found = kinds.shapes(results, shape)
    if len(found) < 2:
        raise NotMeasured(f"{shape.label} was timed on a single kind of values")
    zeros = shape.resized(values=values.ZEROS)
    return [*found, zeros] if with_zeros and zeros in results.study.shapes else found


def _candidates(results: Results, alike: Sequence[Shape]) -> list[str]:
    timed = {str(name) for shape in alike for name in results.at(shape).index}
    return [name for name in results.study.implementations if name in timed and name != results.study.baseline]
