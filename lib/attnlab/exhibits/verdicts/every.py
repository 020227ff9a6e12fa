"""Every comparison of a run with its baseline: counted, mapped and listed."""

from collections.abc import Iterable

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.decisions import CLAIMABLE, EQUIVALENT, FASTER, INCONCLUSIVE, SIGNS, SLOWER, kind
from attnlab.exhibits.display import Figure, Group, Prose, Table
from attnlab.exhibits.verdicts.target import judged
from attnlab.exhibits.words import say
from attnlab.infer import regimes
from attnlab.infer.families import tally
from attnlab.infer.lookup import NotMeasured, axis_of
from attnlab.infer.results import Comparison, Results, comparisons
from attnlab.infer.stats import Verdict, holm
from attnlab.runs.rules import ALPHA
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing

NO_LATENCY = "no latency"
LOOKS = {
    CLAIMABLE: (SIGNS[CLAIMABLE], "#08519c", "white"),
    FASTER: (SIGNS[FASTER], "#c6dbef", "black"),
    EQUIVALENT: (SIGNS[EQUIVALENT], "#e3e3e3", "black"),
    INCONCLUSIVE: (SIGNS[INCONCLUSIVE], "#ffffff", "black"),
    SLOWER: (SIGNS[SLOWER], "#fdd0a2", "black"),
    NO_LATENCY: ("×", "#ffffff", "#777777"),
}
"""Sign, fill and ink of a cell."""
LETTERS = {"batch": "B", "heads": "H", "seq_len": "S", "head_dim": "D"}


@exhibit("verdicts.counted")
def counted(results: Results) -> Prose:
    """How many comparisons were made, how they were corrected, and how they were decided."""
    tested = comparisons(results)
    adjusted = zip(tested, holm([one.unadjusted for one in tested]), strict=True)
    return Prose(
        say(
            "verdicts.comparisons",
            baseline=results.study.baseline,
            families=len({(one.shape, one.timing) for one in tested}),
            total=len(tested),
            tally=_tally(tested),
            kept=sum(p < ALPHA for one, p in adjusted if one.verdict.decision in (FASTER, SLOWER)),
        )
    )


@exhibit("verdicts.by_timing")
def by_timing(results: Results) -> Table:
    """How many verdicts of each kind there are under each timing."""
    tested = comparisons(results)
    groups = {str(timing): [one for one in tested if one.timing == timing] for timing in results.timings}
    return _counted("timing", groups | {"all": tested}, "Verdicts by timing.")


@exhibit("verdicts.by_candidate")
def by_candidate(results: Results) -> Table:
    """How many verdicts of each kind there are on each candidate, over all shapes and timings."""
    tested = comparisons(results)
    names = [name for name in results.study.implementations if name != results.study.baseline]
    groups = {name: [one for one in tested if one.candidate == name] for name in names}
    return _counted("candidate", groups, "Verdicts by candidate, over all shapes and timings.")


def _counted(title: str, groups: dict[str, list[Comparison]], caption: str) -> Table:
    columns = [FASTER, "claimable", SLOWER, EQUIVALENT, INCONCLUSIVE]
    rows = [
        {title: key, "comparisons": len(some)} | {column: _tally(some)[column] for column in columns}
        for key, some in groups.items()
    ]
    return Table(pd.DataFrame(rows), caption, "Claimable verdicts are among the faster ones.")


def _tally(some: Iterable[Comparison]) -> dict[str, int]:
    return tally(one.verdict for one in some)


@exhibit("verdicts.every")
def every(results: Results) -> Table:
    """Every comparison, a row each."""
    baseline, target = results.study.baseline, results.study.target_shape
    rows = [
        {
            "candidate": one.candidate,
            "B, H, S, D": ", ".join(str(getattr(one.shape, axis)) for axis in LETTERS),
            "mask": _mask(one.shape, target),
            "timing": str(one.timing),
        }
        | judged(results, (baseline, one.candidate), one.shape, one.timing, one.verdict)
        for one in comparisons(results)
    ]
    caption = f"Every comparison with `{baseline}`; {target.dtype} where no other dtype is given."
    return Table(pd.DataFrame(rows), caption, say("verdicts.every_note", mostly=regimes.MOSTLY_PCT))


def _mask(shape: Shape, target: Shape) -> str:
    dtype = [] if shape.dtype == target.dtype else [shape.dtype]
    return ", ".join(["causal" if shape.causal else "full", *dtype, *shape.special])


@exhibit("verdicts.maps")
def maps(results: Results) -> Group:
    """The verdict on every candidate at every shape, by sweep: a map for each timing, the headline's first."""
    timings = dict.fromkeys(one.timing for one in comparisons(results))
    return Group({str(timing).replace(" ", "_"): _chart(results, timing) for timing in timings})


def _chart(results: Results, timing: Timing) -> Figure:
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
            Patch(facecolor=fill, edgecolor="#999999", label=f"{sign}  {kind}")
            for kind, (sign, fill, _) in looks.items()
        ],
        loc="outside lower center",
        ncols=3,
    )
    return Figure(
        drawing,
        say("verdicts.map", baseline=results.study.baseline, timing=timing),
        "Grid of coloured cells, candidates by shapes, each with a sign for its verdict and the speedup: "
        f"{_summary(list(found.values()))}.",
    )


def _remark(results: Results, names: list[str], shape: Shape, timing: Timing) -> str:
    regime = regimes.compared(results, [results.study.baseline, *names], shape, timing)
    return f", {regime}" if regime in ("sustained", "mixed") else ""


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
    """The axes in which the shapes of a sweep differ."""
    varying = [axis for axis in LETTERS if len({getattr(shape, axis) for shape in shapes}) > 1]
    axes = varying or [axis for axis in LETTERS if axis == axis_of(sweep)] or list(LETTERS)
    special = len({tuple(shape.special) for shape in shapes}) > 1
    return [
        " ".join([*(f"{LETTERS[axis]}={getattr(shape, axis)}" for axis in axes), *(shape.special if special else [])])
        for shape in shapes
    ]


def _kind(verdict: Verdict | None) -> str:
    return NO_LATENCY if verdict is None else kind(verdict)


def _cell(axes: Axes, column: int, row: int, verdict: Verdict | None) -> None:
    sign, fill, ink = LOOKS[_kind(verdict)]
    box = Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=fill, edgecolor="#999999", linewidth=0.5)
    axes.add_artist(box)  # unlike a patch, it isn't measured for the limits, which are set
    words = sign if verdict is None else f"{sign} {short(verdict.speedup.estimate)}"
    weight = "bold" if _kind(verdict) == CLAIMABLE else "normal"
    text = axes.text(column, row, words, fontsize=6.5, color=ink, fontweight=weight, ha="center", va="center_baseline")
    for artist in (box, text):
        artist.set_in_layout(False)  # both are within the axes


def short(speedup: float) -> str:
    """A speedup as a cell of a map prints it."""
    return f"{speedup:.3f}" if speedup < 10 else f"{speedup:.1f}" if speedup < 100 else f"{speedup:.0f}"


def _summary(verdicts: list[Verdict]) -> str:
    kinds = [_kind(verdict) for verdict in verdicts]
    return formats.listing([f"{kinds.count(kind)} {kind}" for kind in LOOKS if kind in kinds])
