"""Every comparison of a run with its baseline: counted, mapped and listed."""

from collections.abc import Iterable

from attnlab.base.rules import ALPHA
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.decisions import EQUIVALENT, FASTER, INCONCLUSIVE, SLOWER
from attnlab.exhibits.display import Prose, Table
from attnlab.exhibits.verdicts.target import judged
from attnlab.exhibits.words import say
from attnlab.infer import regimes
from attnlab.infer.families import tally
from attnlab.infer.results import Comparison, Results, comparisons
from attnlab.infer.stats import holm
from attnlab.study.ladder import MASKS
from attnlab.study.shapes import Shape


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
    return Table.of(rows, caption, "Claimable verdicts are among the faster ones.")


def _tally(some: Iterable[Comparison]) -> dict[str, int]:
    return tally(one.verdict for one in some)


@exhibit("verdicts.every")
def every(results: Results) -> Table:
    """Every comparison, a row each."""
    baseline, target = results.study.baseline, results.study.target_shape
    rows = [
        {
            "candidate": one.candidate,
            "B, H, S, D": f"{one.shape.batch}, {one.shape.heads}, {one.shape.seq_len}, {one.shape.head_dim}",
            "mask": _mask(one.shape, target),
            "timing": str(one.timing).replace(" ", "\n"),
        }
        | judged(results, (baseline, one.candidate), one.shape, one.timing, one.verdict)
        for one in comparisons(results)
    ]
    caption = f"Every comparison with `{baseline}`; {target.dtype} where no other dtype is given."
    return Table.of(rows, caption, say("verdicts.every_note", mostly=regimes.MOSTLY_PCT))


def _mask(shape: Shape, target: Shape) -> str:
    dtype = [] if shape.dtype == target.dtype else [shape.dtype]
    return ", ".join([MASKS[shape.causal], *dtype, *shape.special])
