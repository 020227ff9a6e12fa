"""Is anything really faster: every comparison of a run with its baseline, counted, mapped and put into words."""

from collections.abc import Sequence
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from attnlab.analyse import formats, regime, tables
from attnlab.analyse.display import Figure, Group, Prose, Table, telling
from attnlab.analyse.figures import styled
from attnlab.analyse.results import NO_CONTROL, NotMeasured, Results, axis_of
from attnlab.shapes import Shape
from attnlab.stats import ALPHA, CLAIM_DELTA, CLAIM_SPEEDUP, EQUIVALENCE_MARGIN, Interval, Verdict, holm, magnitude
from attnlab.studies import Timing

CLAIMABLE, NO_LATENCY = "faster, claimable", "no latency"
LOOKS = {
    CLAIMABLE: ("★", "#08519c", "white"),
    "faster": ("▲", "#c6dbef", "black"),
    "equivalent": ("=", "#e3e3e3", "black"),
    "inconclusive": ("?", "#ffffff", "black"),
    "slower": ("▼", "#fdd0a2", "black"),
    NO_LATENCY: ("×", "#ffffff", "#777777"),
}
"""Symbol, fill and ink of a cell: what tells them apart in grey is the symbol."""
LETTERS = {"batch": "B", "heads": "H", "seq_len": "S", "head_dim": "D"}


class Comparison(NamedTuple):
    """One candidate against the baseline; `unadjusted` is its p-value before Holm's adjustment."""

    shape: Shape
    timing: Timing
    candidate: str
    verdict: Verdict
    unadjusted: float


def comparisons(results: Results) -> list[Comparison]:
    """Every comparison of a run, in the order of its timings and shapes.

    Raises:
        NotMeasured: there is none.
    """
    every = [
        Comparison(shape, timing, name, verdict, family.unadjusted[name])
        for (shape, timing), family in results.families.items()
        for name, verdict in family.verdicts.items()
    ]
    if not every:
        raise NotMeasured(f"Nothing was timed beside `{results.study.baseline}`, so there is no comparison")
    return every


# -------------------------------------------------------------------------------------------------- counts and tables


@telling
def told(results: Results) -> Prose:
    """How many comparisons were made, how they were corrected, and what came of them."""
    every = comparisons(results)
    families = {(one.shape, one.timing) for one in every}
    adjusted = holm([one.unadjusted for one in every])
    differing = [p for one, p in zip(every, adjusted, strict=True) if one.verdict.decision in ("faster", "slower")]
    counted = _counts(every)
    parts = [f"{counted[decision]:,} {decision}" for decision in ("faster", "slower", "equivalent", "inconclusive")]
    kept = sum(p < ALPHA for p in differing)
    return Prose(
        f"{formats.count(len(every), 'comparison')} with `{results.study.baseline}` were tested, in families of the "
        f"candidates at one shape under one timing, {len(families):,} of them; p-values are adjusted by Holm within "
        f"each. Of the verdicts, {formats.listing(parts)}; {counted[CLAIMABLE]:,} may be claimed. Adjusted over all "
        f"{len(every):,} at once, {kept:,} of the {len(differing):,} that are faster or slower keep p < {ALPHA:g}."
    )


@telling
def by_timing(results: Results) -> Table:
    """How many of each verdict there are under each timing."""
    every = comparisons(results)
    groups = {str(timing): [one for one in every if one.timing == timing] for timing in results.timings}
    return _counted("timing", groups | {"all": every}, "verdicts-by-timing", "Verdicts by timing.")


@telling
def by_candidate(results: Results) -> Table:
    """How many of each verdict there are on each candidate, over all shapes and timings."""
    every = comparisons(results)
    names = [name for name in results.study.implementations if name != results.study.baseline]
    groups = {name: [one for one in every if one.candidate == name] for name in names}
    return _counted("candidate", groups, "verdicts-by-candidate", "Verdicts by candidate, over all shapes and timings.")


def _counted(title: str, groups: dict[str, list[Comparison]], name: str, caption: str) -> Table:
    columns = ["faster", CLAIMABLE, "slower", "equivalent", "inconclusive"]
    rows = []
    for key, some in groups.items():
        counts = _counts(some)
        row = {"comparisons": len(some)} | {column: counts[column] for column in columns}
        rows.append({title: key} | {("of it claimable" if k == CLAIMABLE else k): v for k, v in row.items()})
    return Table(pd.DataFrame(rows), name, caption, "Claimable ones are among the faster.")


def _counts(some: Sequence[Comparison]) -> dict[str, int]:
    decisions = [one.verdict.decision for one in some]
    counts = {decision: decisions.count(decision) for decision in ("faster", "slower", "equivalent", "inconclusive")}
    return counts | {CLAIMABLE: sum(one.verdict.claimable for one in some)}


@telling
def every(results: Results) -> Table:
    """All comparisons: a row each."""
    rows = [
        {
            "candidate": one.candidate,
            "B, H, S, D": ", ".join(str(getattr(one.shape, axis)) for axis in LETTERS),
            "mask": _mask(one.shape, results.study.target_shape),
            "timing": str(one.timing),
        }
        | {
            title: cell.replace("\n", " ") if isinstance(cell, str) else cell
            for title, cell in tables.judged(results, one.candidate, one.shape, one.timing, one.verdict).items()
        }
        for one in comparisons(results)
    ]
    dtype = results.study.target_shape.dtype
    note = f"{tables.DEPENDENCE_NOTE.replace('of this table', 'at its shape and timing')} {tables.REGIME_NOTE}"
    caption = f"Every comparison with `{results.study.baseline}`; {dtype} where nothing else is said."
    return Table(pd.DataFrame(rows), "every-verdict", caption, note)


def _mask(shape: Shape, target: Shape) -> str:
    dtype = [] if shape.dtype == target.dtype else [shape.dtype]
    return ", ".join(["causal" if shape.causal else "full", *dtype, *shape.special])


# --------------------------------------------------------------------------------------------------------- statement


@telling
def statement(results: Results, shape: Shape) -> Prose:
    """What may be published of a shape's best candidate, positive or negative: title, statement, results, limits."""
    best = _best(results, shape)
    verdict, family = results.compare(best, shape), results.family(shape)
    parts = [
        f"**{_title(results, best, shape, verdict)}**",
        f"> {_abstract(results, best, shape, verdict)}",
        "\n".join(f"- {line}" for line in _findings(results, best, shape, verdict)),
        _seen(results, shape, verdict),
        f"*Limits.* One {results.run.manifest['device']['name']}, one shape, {results.headline.words}, "
        f"{formats.count(len(family.verdicts), 'candidate')}: other devices, shapes and implementations may come out "
        "otherwise.",
    ]
    return Prose("\n\n".join(parts))


def _best(results: Results, shape: Shape) -> str:
    """The candidate with the most to be said for it: claimable before faster before the highest speedup."""

    def rank(name: str) -> tuple[bool, bool, float]:
        verdict = results.compare(name, shape)
        return verdict.claimable, verdict.decision == "faster", verdict.speedup.estimate

    return max(results.candidates(shape), key=rank)


def _title(results: Results, best: str, shape: Shape, verdict: Verdict) -> str:
    baseline = results.study.baseline
    where = f"at {formats.shape(shape)} on {results.run.manifest['device']['name']}"
    if verdict.decision == "faster":
        gain = f"`{best}` is {formats.number(verdict.speedup.estimate)} times as fast as `{baseline}` {where}"
        return gain if verdict.claimable else f"{gain}, which is less than may be claimed"
    ending = {
        "equivalent": f"the nearest, `{best}`, is equivalent to it within ±{100 * EQUIVALENCE_MARGIN:g} %",
        "inconclusive": f"the nearest, `{best}`, can't be told from it",
        "slower": f"the nearest, `{best}`, is slower",
    }[verdict.decision]
    return f"No candidate was found to be faster than `{baseline}` {where}: {ending}"


def _abstract(results: Results, best: str, shape: Shape, verdict: Verdict) -> str:
    baseline, count = results.study.baseline, len(results.candidates(shape))
    its, ours = (formats.interval(results.median(name, shape)) for name in (baseline, best))
    timed = f"{results.headline.words}, {regime.IN[regime.compared(results, [baseline, best], shape)]}"
    return (
        f"`{baseline}` achieved {its} µs and `{best}` {ours} µs (medians with 95 % intervals, "
        f"{_effort(results, best, shape)}; {timed}), a speedup of "
        f"{formats.interval(verdict.speedup)}. The effect is {magnitude(verdict.delta)} (Cliff's delta "
        f"{formats.signed(verdict.delta)}, Hedges' g {formats.number(verdict.g)}), {_significance(verdict)} after "
        f"Holm's adjustment over {formats.count(count, 'comparison')}. **{_conclusion(results, best, shape, verdict)}**"
    )


def _effort(results: Results, best: str, shape: Shape) -> str:
    row = results.row(best, shape)
    processes = "one process" if row["replicates"] == 1 else f"{row['replicates']:.0f} fresh processes"
    return f"{row['samples']:.0f} samples each from {processes} in interleaved rounds"


def _significance(verdict: Verdict) -> str:
    p = formats.pvalue(verdict.pvalue)
    told = f"p {p}" if p.startswith("<") else f"p = {p}"
    return f"and the difference is {'' if verdict.pvalue < ALPHA else 'not '}significant ({told})"


def _conclusion(results: Results, best: str, shape: Shape, verdict: Verdict) -> str:
    if verdict.decision == "faster" and not verdict.claimable:
        return f"`{best}` is faster, but that may not be claimed: {_missing(results, best, shape, verdict)}."
    return {
        "faster": f"`{best}` is faster, and that may be claimed.",
        "equivalent": f"The two are equivalent within ±{100 * EQUIVALENCE_MARGIN:g} %.",
        "inconclusive": "Neither a difference nor equivalence was shown.",
        "slower": f"`{best}` is slower than `{results.study.baseline}`.",
    }[verdict.decision]


def _missing(results: Results, best: str, shape: Shape, verdict: Verdict) -> str:
    """What a candidate that is faster lacks of a claim."""
    lacks = {
        f"the speedup is below {CLAIM_SPEEDUP:.2f}": verdict.speedup.estimate < CLAIM_SPEEDUP,
        f"|delta| is below {CLAIM_DELTA:g}": abs(verdict.delta) < CLAIM_DELTA,
        "the intervals of the medians overlap": _overlap(results, best, shape),
    }
    return formats.listing([words for words, lacking in lacks.items() if lacking])


def _overlap(results: Results, best: str, shape: Shape) -> bool:
    return results.median(results.study.baseline, shape).overlaps(results.median(best, shape))


def _findings(results: Results, best: str, shape: Shape, verdict: Verdict) -> list[str]:
    baseline = results.study.baseline
    medians = {name: results.median(name, shape) for name in (baseline, best)}
    ratio = verdict.speedup
    gain = Interval(*(100 * (value - 1) for value in (ratio.estimate, ratio.low, ratio.high)))
    apart = "overlap" if _overlap(results, best, shape) else "are apart"
    return [
        *(f"`{name}`: {formats.interval(median)} µs" for name, median in medians.items()),
        f"speedup: {formats.interval(verdict.speedup)} ({formats.change(gain)}); the intervals of the medians {apart}",
        f"effect size: Cliff's delta {formats.signed(verdict.delta)} ({magnitude(verdict.delta)}), Hedges' g "
        f"{formats.number(verdict.g)}",
        f"p, adjusted by Holm: {formats.pvalue(verdict.pvalue)}",
        f"regime: {regime.compared(results, [baseline, best], shape)}",
        f"verdict: {verdict.decision}, {'claimable' if verdict.claimable else 'not claimable'}",
    ]


def _seen(results: Results, shape: Shape, verdict: Verdict) -> str:
    """What effect could have been seen."""
    if not results.is_controlled(shape):
        return f"*Power.* {NO_CONTROL}, nor how small an effect it could have seen."
    control, smallest = results.control(shape), formats.percent(100 * results.smallest_effect(shape))
    told = (
        f"*Power.* Against itself, `{results.study.baseline}` comes to {formats.interval(control.speedup)}. From that, "
        f"an effect of {smallest} or more would have been found four times in five"
    )
    if verdict.decision in ("faster", "slower"):
        return f"{told}; this one is {formats.percent(100 * abs(np.expm1(abs(np.log(verdict.speedup.estimate)))))}."
    return f"{told}; a smaller one can't be excluded. That nothing was faster does not show that nothing can be."


# --------------------------------------------------------------------------------------------------------------- map


@telling
def maps(results: Results) -> Group:
    """The map under every timing."""
    return Group(tuple(chart(results, timing) for timing in dict.fromkeys(one.timing for one in comparisons(results))))


@styled
def chart(results: Results, timing: Timing | None = None) -> Figure:
    """The verdict on every candidate at every shape under one timing (default: the headline's), shapes by sweep."""
    timing = timing or results.headline
    found = {(one.shape, one.candidate): one.verdict for one in comparisons(results) if one.timing == timing}
    names = [name for name in results.study.implementations if name != results.study.baseline]
    groups = _by_sweep(results, {shape for shape, _ in found})
    rows = sum(len(shapes) + 1 for shapes in groups.values())
    drawing, axes = plt.subplots(figsize=(1.8 + 0.56 * max(len(names), 5), 1.4 + 0.19 * rows))
    row, ticks = 0, {}
    for sweep, shapes in groups.items():
        axes.text(-0.55, row, sweep, fontsize=7, fontweight="bold", va="center", ha="left")
        for shape, label in zip(shapes, _labels(sweep, shapes), strict=True):
            row += 1
            ticks[row] = f"{label}{_remark(results, names, shape, timing)}"
            for column, name in enumerate(names):
                _cell(axes, column, row, found.get((shape, name)))
            if shape == results.study.target_shape:
                axes.add_patch(Rectangle((-0.5, row - 0.5), len(names), 1, fill=False, linewidth=1.4, zorder=3))
        row += 1
    axes.set(xlim=(-0.55, len(names) - 0.45), ylim=(row - 0.4, -0.6))
    axes.set_yticks(list(ticks), list(ticks.values()), fontsize=7)
    axes.set_xticks(range(len(names)), names, fontsize=7, rotation=30, ha="left", rotation_mode="anchor")
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    shown = {_kind(found.get((shape, name))) for shapes in groups.values() for shape in shapes for name in names}
    looks = {kind: look for kind, look in LOOKS.items() if kind in shown}
    drawing.legend(
        handles=[
            Patch(facecolor=fill, edgecolor="#999999", label=f"{symbol}  {kind}")
            for kind, (symbol, fill, _) in looks.items()
        ],
        loc="outside lower center",
        ncols=3,
    )
    at_headline = "" if timing == results.headline else f"-{timing}".replace(" ", "-")
    return Figure(
        drawing,
        f"verdicts{at_headline}",
        f"The verdict on every candidate at every shape, {timing.words}. The number is the speedup over "
        f"`{results.study.baseline}`. A shape of several sweeps stands in the first of them. The target is framed; "
        "shapes that are no burst say so.",
        "Grid of coloured cells, candidates by shapes, each with a symbol for its verdict and the speedup: "
        f"{_summary(list(found.values()))}.",
    )


def _remark(results: Results, names: list[str], shape: Shape, timing: Timing) -> str:
    told = regime.compared(results, [results.study.baseline, *names], shape, timing)
    return f", {told}" if told in ("sustained", "mixed") else ""


def _by_sweep(results: Results, there: set[Shape]) -> dict[str, list[Shape]]:
    """The shapes of each sweep that no sweep before it has."""
    groups: dict[str, list[Shape]] = {}
    placed: set[Shape] = set()
    for sweep in results.study.sweeps:
        shapes = [shape for shape in dict.fromkeys(results.sweep(sweep)) if shape in there - placed]
        if shapes:
            groups[sweep] = shapes
            placed.update(shapes)
    if not groups:
        raise NotMeasured(f"Nothing was compared with `{results.study.baseline}` under this timing")
    return groups


def _labels(sweep: str, shapes: list[Shape]) -> list[str]:
    """What tells the shapes of a sweep apart."""
    varying = [axis for axis in LETTERS if len({getattr(shape, axis) for shape in shapes}) > 1]
    axes = varying or [axis for axis in LETTERS if axis == axis_of(sweep)] or list(LETTERS)
    special = len({tuple(shape.special) for shape in shapes}) > 1
    return [
        " ".join([*(f"{LETTERS[axis]}={getattr(shape, axis)}" for axis in axes), *(shape.special if special else [])])
        for shape in shapes
    ]


def _kind(verdict: Verdict | None) -> str:
    if verdict is None:
        return NO_LATENCY
    return CLAIMABLE if verdict.claimable else verdict.decision


def _cell(axes: Axes, column: int, row: int, verdict: Verdict | None) -> None:
    kind = _kind(verdict)
    symbol, fill, ink = LOOKS[kind]
    box = Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=fill, edgecolor="#999999", linewidth=0.5)
    axes.add_patch(box)
    told = symbol if verdict is None else f"{symbol} {_short(verdict.speedup.estimate)}"
    weight = "bold" if kind == CLAIMABLE else "normal"
    axes.text(column, row, told, fontsize=6.5, color=ink, fontweight=weight, ha="center", va="center_baseline")


def _short(speedup: float) -> str:
    return f"{speedup:.3f}" if speedup < 10 else f"{speedup:.1f}" if speedup < 100 else f"{speedup:.0f}"


def _summary(verdicts: list[Verdict]) -> str:
    kinds = [_kind(verdict) for verdict in verdicts]
    return formats.listing([f"{kinds.count(kind)} {kind}" for kind in LOOKS if kind in kinds])
