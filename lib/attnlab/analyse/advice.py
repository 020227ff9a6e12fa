"""What to use and what to avoid: rules read off the verdicts, each with the comparison that backs it."""

from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

import pandas as pd

from attnlab.analyse import formats
from attnlab.analyse.display import Prose, Table, telling
from attnlab.analyse.results import Family, NotMeasured, Results, axis_of
from attnlab.analyse.tables import LETTERS
from attnlab.shapes import Shape
from attnlab.stats import Verdict
from attnlab.studies import Timing


class Rule(NamedTuple):
    """What to do, where, and the comparison with the baseline that says so most weakly."""

    kind: str
    rule: str
    where: str
    backing: str


Judged = dict[Shape, Verdict]


@telling
def rules(results: Results) -> Table:
    """The rules that this run's verdicts support, for each clock."""
    found = [rule for timing in results.timings for rule in _under(results, timing)]
    if not found:
        raise NotMeasured("No verdict of this run is faster or slower, so there is no rule to be had")
    note = (
        f"All against `{results.study.baseline}`. A rule to use holds where the verdict is *faster*, one to avoid "
        "where it is *slower* at every shape that was compared; “claimable” is said where it is at all of them. The "
        "comparison given is the weakest of those behind the rule. A crossover lies between two shapes of a sweep, one "
        "*faster* and one *slower*, with neither between them."
    )
    return Table(pd.DataFrame(found), "rules", "What to use, and what to avoid.", note)


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
    """Of those that are faster than the baseline at a shape, the one with the smallest median."""
    chosen: dict[str, Judged] = {}
    for shape in results.study.shapes:
        faster = {n: v[shape] for n, v in judged.items() if shape in v and v[shape].decision == "faster"}
        if faster:
            fastest = str(results.at(shape, timing).loc[list(faster), "median_us"].idxmin())
            chosen.setdefault(fastest, {})[shape] = faster[fastest]
    rules = []
    for name, verdicts in chosen.items():
        claimable = ", claimable" if all(verdict.claimable for verdict in verdicts.values()) else ""
        weakest = min(verdicts, key=lambda shape: verdicts[shape].speedup.estimate)
        rules.append(Rule("use", f"{name}{claimable}", _where(verdicts, timing), _backing(verdicts, weakest)))
    return rules


def _avoid(name: str, verdicts: Judged, timing: Timing) -> list[Rule]:
    if any(verdict.decision != "slower" for verdict in verdicts.values()):
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
        decided = [shape for shape in there if verdicts[shape].decision in ("faster", "slower")]
        for before, after in pairwise(decided):
            if verdicts[before].decision != verdicts[after].decision:
                words = f"{verdicts[before].decision} up to {LETTERS[axis]}={getattr(before, axis)}"
                words += f", {verdicts[after].decision} from {getattr(after, axis)} on"
                backing = f"{_backing(verdicts, before)}; {_backing(verdicts, after)}"
                rules.append(Rule("crossover", f"{name}: {words}", f"sweep “{sweep}”, {timing.words}", backing))
    return rules


def _is_grid(shapes: list[Shape], axis: str) -> bool:
    return len({getattr(shape, axis) for shape in shapes}) < len(shapes)


def _where(verdicts: Judged, timing: Timing) -> str:
    alike: dict[str, list[Shape]] = {}
    for shape in verdicts:
        alike.setdefault(f"D={shape.head_dim}, {shape.dtype}", []).append(shape)
    told = [f"{formats.shapes(sorted(shapes))} ({words})" for words, shapes in alike.items()]
    return f"{'; '.join(told)}; {timing.words}"


def _backing(verdicts: Judged, shape: Shape) -> str:
    return f"{formats.interval(verdicts[shape].speedup)} at {formats.shape(shape)}"


@telling
def summary(results: Results) -> Prose:
    """How often leaving the choice to the baseline costs something that can be told, and how much at most."""
    told = []
    for timing in results.timings:
        families = {shape: family for shape, family in results.families_under(timing).items() if family.verdicts}
        if not families:
            continue
        gains = [(_gain(family), shape) for shape, family in families.items()]
        lost = [(gain, shape) for gain, shape in gains if gain > 1]
        most = max(lost, default=None)
        at_most = f", {formats.number(most[0])} times at most, at {formats.shape(most[1])}" if most else ""
        of = formats.count(len(families), "shape")
        told.append(f"by the {timing.words}, something else is faster at {len(lost)} of {of}{at_most}")
    if not told:
        raise NotMeasured(f"`{results.study.baseline}` was compared with nothing")
    return Prose(f"Against leaving the choice to `{results.study.baseline}`, {'; '.join(told)}.")


def _gain(family: Family) -> float:
    """The speedup of the best of those that are faster than the baseline; 1 where none is."""
    faster = (verdict for verdict in family.verdicts.values() if verdict.decision == "faster")
    return max((verdict.speedup.estimate for verdict in faster), default=1.0)
