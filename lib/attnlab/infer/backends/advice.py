"""What to use and what to avoid: rules that follow from the verdicts, each with the comparison that supports it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter

from attnlab.base.rules import CLAIM_SPEEDUP, EQUIVALENCE_MARGIN
from attnlab.infer.lookup import axis_of
from attnlab.infer.results import Results
from attnlab.infer.stats import Interval, Verdict
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing

USE, UNCLAIMED, LITTLE, HARDLY = WORTH = ("use", "not claimable", "little to gain", "hardly matters")
AVOID, UP_TO, FROM = "avoid", "up to", "from"
DECIDED = ("faster", "slower")
TURNS = ("seq_len", "batch", "heads", "kv_heads", "kv_len")
"""The axes along which a verdict may turn."""
Judged = dict[Shape, Verdict]


@dataclass(frozen=True)
class Rule:
    """What to do at some shapes under one timing.

    Attributes:
        kind: one of `WORTH` or `AVOID`; or, of a sweep in which the verdict turns, `UP_TO` or `FROM` a shape.
        weakest: the shape of the weakest of the comparisons behind it, and `verdict` what was found there.
        slower: the shapes at which other timings say that it is slower.
        sweep: the sweep in which the verdict turns; empty for other kinds.
    """

    kind: str
    name: str
    timing: Timing
    shapes: list[Shape]
    weakest: Shape
    verdict: Verdict
    slower: Mapping[Timing, list[Shape]] = field(default_factory=dict)
    sweep: str = ""


@dataclass(frozen=True)
class Gains:
    """How often something is faster than the baseline, under one timing.

    Attributes:
        shapes: at how many it was compared; `faster` at how many something is faster, `claimable` claimably so.
        most: the largest speedup of what is faster, and `at` its shape; None where nothing is.
    """

    timing: Timing
    shapes: int
    faster: int
    claimable: int
    most: Interval | None
    at: Shape | None


def rules(results: Results) -> list[Rule]:
    """The rules that a run's verdicts support, one timing after the other; none where no verdict is decided."""
    return [rule for timing in results.timings for rule in _under(results, timing)]


def gains(results: Results) -> list[Gains]:
    """How often something is faster than the baseline, under each timing under which it was compared."""
    found = []
    for timing in results.timings:
        families = {shape: of.verdicts.values() for shape, of in results.families_under(timing).items() if of.verdicts}
        speedups = {shape: [v.speedup for v in of if v.decision == "faster"] for shape, of in families.items()}
        best = {shape: max(some, key=attrgetter("estimate")) for shape, some in speedups.items() if some}
        claimable = sum(any(verdict.claimable for verdict in verdicts) for verdicts in families.values())
        at = max(best, key=lambda shape: (best[shape].estimate, shape), default=None)
        if families:
            found.append(Gains(timing, len(families), len(best), claimable, best[at] if at else None, at))
    return found


def worth(verdict: Verdict) -> str:
    """Whether a faster implementation is worth choosing: one of `WORTH`."""
    if verdict.claimable:
        return USE
    if verdict.speedup.estimate >= CLAIM_SPEEDUP:
        return UNCLAIMED
    return LITTLE if verdict.speedup.estimate > 1 + EQUIVALENCE_MARGIN else HARDLY


def _under(results: Results, timing: Timing) -> list[Rule]:
    named = {name: _verdicts(results, name, timing) for name in results.study.implementations}
    judged = {name: verdicts for name, verdicts in named.items() if verdicts}
    slow = {name: of for name, of in judged.items() if {one.decision for one in of.values()} == {"slower"}}
    return [
        *_use(results, judged, timing),
        *(_rule(AVOID, name, timing, verdicts) for name, verdicts in slow.items()),
        *(rule for name, verdicts in judged.items() for rule in _crossovers(results, name, verdicts, timing)),
    ]


def _verdicts(results: Results, name: str, timing: Timing) -> Judged:
    families = results.families_under(timing)
    return {shape: family.verdicts[name] for shape, family in families.items() if name in family.verdicts}


def _use(results: Results, judged: dict[str, Judged], timing: Timing) -> list[Rule]:
    """At each shape, the implementation with the smallest median among those that are faster than the baseline."""
    chosen: dict[tuple[str, str], Judged] = {}
    for shape in results.study.shapes:
        faster = {n: v[shape] for n, v in judged.items() if shape in v and v[shape].decision == "faster"}
        if faster:
            fastest = str(results.at(shape, timing).loc[list(faster), "median_us"].idxmin())
            chosen.setdefault((fastest, worth(faster[fastest])), {})[shape] = faster[fastest]
    return [
        _rule(kind, name, timing, verdicts, _slower_elsewhere(results, name, list(verdicts), timing))
        for (name, kind), verdicts in sorted(chosen.items(), key=lambda found: WORTH.index(found[0][1]))
    ]


def _rule(
    kind: str, name: str, timing: Timing, verdicts: Judged, slower: Mapping[Timing, list[Shape]] | None = None
) -> Rule:
    """A rule with its weakest comparison: the smallest gain, or the smallest loss of what is to be avoided."""
    pick = max if kind == AVOID else min
    weakest = pick(verdicts, key=lambda shape: verdicts[shape].speedup.estimate)
    return Rule(kind, name, timing, sorted(verdicts), weakest, verdicts[weakest], slower or {})


def _slower_elsewhere(results: Results, name: str, shapes: list[Shape], timing: Timing) -> dict[Timing, list[Shape]]:
    found = {}
    for other in results.timings:
        judged = _verdicts(results, name, other) if other != timing else {}
        if slower := [shape for shape in shapes if shape in judged and judged[shape].decision == "slower"]:
            found[other] = sorted(slower)
    return found


def _crossovers(results: Results, name: str, verdicts: Judged, timing: Timing) -> list[Rule]:
    """Two rules for each turn of the verdict along a sweep of one axis: one up to a shape, and one from a shape on."""
    rules = []
    for sweep in results.study.sweeps:
        axis, shapes = axis_of(sweep), results.sweep(sweep)
        if axis not in TURNS or len({getattr(shape, axis) for shape in shapes}) < len(shapes):
            continue
        there = sorted((shape for shape in shapes if shape in verdicts), key=attrgetter(axis))
        decided = [shape for shape in there if verdicts[shape].decision in DECIDED]
        for before, after in pairwise(decided):
            if verdicts[before].decision != verdicts[after].decision:
                turn = ((UP_TO, before), (FROM, after))
                rules += [Rule(kind, name, timing, [at], at, verdicts[at], sweep=sweep) for kind, at in turn]
    return rules
