"""What to use and what to avoid: rules that follow from the verdicts, each with the comparison that supports it."""

from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

import pandas as pd

from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.cells import LETTERS
from attnlab.exhibits.decisions import FASTER, SLOWER
from attnlab.exhibits.display import Prose, Table
from attnlab.exhibits.formats import MARGIN
from attnlab.infer.families import Family
from attnlab.infer.lookup import NotMeasured, axis_of
from attnlab.infer.results import Results
from attnlab.infer.stats import Verdict
from attnlab.runs.rules import CLAIM_SPEEDUP, EQUIVALENCE_MARGIN
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing

CAPTION = "What to use, and what to avoid."
USE, UNCLAIMED, LITTLE, HARDLY = WORTH = ("use", "not claimable", "little to gain", "hardly matters")


class Rule(NamedTuple):
    """What to do and where, with the weakest of the comparisons that support it, and what other timings say."""

    kind: str
    rule: str
    where: str
    backing: str
    but: str | None = None


Judged = dict[Shape, Verdict]


@exhibit("backends.rules", of="choices")
def rules(results: Results) -> Table:
    """The rules that this run's verdicts support, for each clock."""
    found = [rule for timing in results.timings for rule in _under(results, timing)]
    if not found:
        raise NotMeasured("No verdict of this run is faster or slower, so no rule follows")
    note = (
        f"All against `{results.study.baseline}`. Use: a claimable speedup at these shapes. Not claimable: faster, by "
        f"{CLAIM_SPEEDUP:.2f} or more, but without what else a claim needs. Little to gain: faster by less; hardly "
        f"matters: by less than {MARGIN}. But: timings under which it is slower at some of these shapes. Avoid: slower "
        "at every shape that was compared. Backing is the weakest of the comparisons behind the rule. A crossover is "
        "between two shapes of a sweep, one faster and one slower, with no such verdict between them."
    )
    frame = pd.DataFrame(found)
    return Table(frame if frame["but"].notna().any() else frame.drop(columns="but"), CAPTION, note)


def _under(results: Results, timing: Timing) -> list[Rule]:
    judged = {name: _verdicts(results, name, timing) for name in results.study.implementations}
    judged = {name: verdicts for name, verdicts in judged.items() if verdicts}
    return [
        *_use(results, judged, timing),
        *(rule for name, verdicts in judged.items() for rule in _avoid(name, verdicts, timing)),
        *(rule for name, verdicts in judged.items() for rule in _crossovers(results, name, verdicts, timing)),
    ]


def _verdicts(results: Results, name: str, timing: Timing) -> Judged:
    families = results.families_under(timing)
    return {shape: family.verdicts[name] for shape, family in families.items() if name in family.verdicts}


def _use(results: Results, judged: dict[str, Judged], timing: Timing) -> list[Rule]:
    """At each shape, the implementation with the smallest median among those that are faster than the baseline."""
    chosen: dict[tuple[str, str], Judged] = {}
    for shape in results.study.shapes:
        faster = {n: v[shape] for n, v in judged.items() if shape in v and v[shape].decision == FASTER}
        if faster:
            fastest = str(results.at(shape, timing).loc[list(faster), "median_us"].idxmin())
            chosen.setdefault((fastest, _worth(faster[fastest])), {})[shape] = faster[fastest]
    rules = []
    for (name, worth), verdicts in sorted(chosen.items(), key=lambda found: WORTH.index(found[0][1])):
        weakest = min(verdicts, key=lambda shape: verdicts[shape].speedup.estimate)
        but = _slower_elsewhere(results, name, list(verdicts), timing)
        where = _where(list(verdicts), timing, results)
        rules.append(Rule(worth, name, where, _backing(verdicts, weakest), but))
    return rules


def _worth(verdict: Verdict) -> str:
    """Whether a faster implementation is worth choosing."""
    if verdict.claimable:
        return USE
    if verdict.speedup.estimate >= CLAIM_SPEEDUP:
        return UNCLAIMED
    return LITTLE if verdict.speedup.estimate > 1 + EQUIVALENCE_MARGIN else HARDLY


def _slower_elsewhere(results: Results, name: str, shapes: list[Shape], timing: Timing) -> str | None:
    """The other timings under which an implementation is slower at some of these shapes."""
    found = {}
    for other in results.timings:
        judged = _verdicts(results, name, other) if other != timing else {}
        if slower := [shape for shape in shapes if shape in judged and judged[shape].decision == SLOWER]:
            found[other] = slower
    return "; ".join(f"slower at {_where(slower, other, results)}" for other, slower in found.items()) or None


def _avoid(name: str, verdicts: Judged, timing: Timing) -> list[Rule]:
    if any(verdict.decision != SLOWER for verdict in verdicts.values()):
        return []
    weakest = max(verdicts, key=lambda shape: verdicts[shape].speedup.estimate)
    compared = "the only shape" if len(verdicts) == 1 else f"all {len(verdicts)} shapes"
    everywhere = f"at {compared} compared, {timing.words}"
    return [Rule("avoid", name, everywhere, _backing(verdicts, weakest))]


def _crossovers(results: Results, name: str, verdicts: Judged, timing: Timing) -> list[Rule]:
    rules = []
    for sweep in results.study.sweeps:
        axis = axis_of(sweep)
        if axis not in LETTERS or _is_grid(results.sweep(sweep), axis):
            continue
        there = sorted((shape for shape in results.sweep(sweep) if shape in verdicts), key=attrgetter(axis))
        decided = [shape for shape in there if verdicts[shape].decision in (FASTER, SLOWER)]
        for before, after in pairwise(decided):
            if verdicts[before].decision != verdicts[after].decision:
                words = f"{verdicts[before].decision} up to {LETTERS[axis]}={getattr(before, axis)}"
                words += f", {verdicts[after].decision} from {getattr(after, axis)} on"
                backing = f"{_backing(verdicts, before)}; {_backing(verdicts, after)}"
                rules.append(Rule("crossover", f"{name}: {words}", f"sweep “{sweep}”, {timing.words}", backing))
    return rules


def _is_grid(shapes: list[Shape], axis: str) -> bool:
    return len({getattr(shape, axis) for shape in shapes}) < len(shapes)


def _where(shapes: list[Shape], timing: Timing, results: Results) -> str:
    return f"{formats.shapes(sorted(shapes), results.study.shapes)}; {timing.words}"


def _backing(verdicts: Judged, shape: Shape) -> str:
    return f"{formats.interval(verdicts[shape].speedup)} at {shape.label}"


@exhibit("backends.summary", of="choices")
def summary(results: Results) -> Prose:
    """How often something is faster than leaving the choice to the baseline, claimably so, and by how much at most."""
    parts = []
    for timing in results.timings:
        families = {shape: family for shape, family in results.families_under(timing).items() if family.verdicts}
        if not families:
            continue
        gains = [(_gain(family), shape) for shape, family in families.items()]
        lost = [(gain, shape) for gain, shape in gains if gain > 1]
        most = max(lost, default=None)
        at_most = f", {formats.number(most[0])} times at most, at {most[1].label}" if most else ""
        of = formats.count(len(families), "shape")
        claimed = sum(any(verdict.claimable for verdict in family.verdicts.values()) for family in families.values())
        claims = f", claimable at {claimed}" if lost else ""
        parts.append(f"by the {timing.words}, another implementation is faster at {len(lost)} of {of}{claims}{at_most}")
    if not parts:
        raise NotMeasured(f"`{results.study.baseline}` was compared with nothing")
    return Prose(f"Compared with leaving the choice to `{results.study.baseline}`, {'; '.join(parts)}.")


def _gain(family: Family) -> float:
    """The highest speedup among the candidates that are faster than the baseline; 1 where none is."""
    faster = (verdict for verdict in family.verdicts.values() if verdict.decision == FASTER)
    return max((verdict.speedup.estimate for verdict in faster), default=1.0)
