"""Verdicts on candidates at a shape over all kinds of values that the run timed there.

A claim is as good as on the worst kind. Zeros are left out: no program computes attention over them, and they show only
what power does.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from attnlab.base.rules import CLAIM_DELTA, CLAIM_SPEEDUP
from attnlab.infer.families import opposed
from attnlab.infer.kernels import rungs
from attnlab.infer.lookup import known
from attnlab.infer.results import Results
from attnlab.infer.stats import Verdict
from attnlab.study.ladder import BEST
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing

STEADY_PCT = 5
"""An implementation takes the same time on all kinds where the medians, by their intervals, are no farther apart."""


@dataclass(frozen=True)
class OverKinds:
    """The verdicts on a candidate at one shape under one timing, by the shape with each kind of values.

    Attributes:
        verdicts: in the order of the study; at least one.
        lacking: the shapes with the values on which it has no latency, and the baseline has one.
    """

    candidate: str
    verdicts: dict[Shape, Verdict]
    lacking: list[Shape]

    @property
    def worst(self) -> Shape:
        """The shape with the values on which it gains least."""
        return min(self.verdicts, key=lambda shape: self.verdicts[shape].speedup.estimate)

    @property
    def best(self) -> Shape:
        """The shape with the values on which it gains most."""
        return max(self.verdicts, key=lambda shape: self.verdicts[shape].speedup.estimate)

    @property
    def verdict(self) -> Verdict:
        """The verdict on the worst kind, by which it is judged."""
        return self.verdicts[self.worst]

    def where(self, decision: str) -> list[Shape]:
        """The shapes with the values on which it was decided so."""
        return [shape for shape, verdict in self.verdicts.items() if verdict.decision == decision]

    @property
    def disagree(self) -> bool:
        """Whether it is faster on some values and slower on others."""
        return opposed(self.verdicts.values())


def shapes(results: Results, shape: Shape, timing: Timing | None = None) -> list[Shape]:
    """The study's shapes that differ from one in their values alone, at which the baseline was timed.

    Zeros are left out, unless there is nothing else.
    """
    alike = [other for other in results.study.shapes if other.plain == shape.plain]
    timed = [other for other in alike if results.study.baseline in results.at(other, timing).index]
    return [other for other in timed if other.is_judged] or timed


def over(results: Results, candidate: str, shape: Shape, timing: Timing | None = None) -> OverKinds:
    """What was found of a candidate over all kinds at a shape; NotMeasured where it has no latency on any of them."""
    alike = shapes(results, shape, timing)
    timed = [other for other in alike if candidate in results.at(other, timing).index]
    if not timed:
        results.require(candidate, shape, timing)
    verdicts = {other: results.compare(candidate, other, timing) for other in timed}
    return OverKinds(candidate, verdicts, [other for other in alike if other not in timed])


def several(results: Results) -> list[Shape]:
    """The shapes that were timed on several kinds of values, each once, with the first of its kinds in the study."""
    first: dict[Shape, Shape] = {}
    for shape in results.study.shapes:
        first.setdefault(shape.plain, shape)
    return [shape for shape in first.values() if len(shapes(results, shape)) > 1]


def candidates(results: Results, shape: Shape) -> list[OverKinds]:
    """Every candidate that has a latency on some kind at a shape, in the order of the study."""
    timed = {str(name) for other in shapes(results, shape) for name in results.at(other).index}
    names = [name for name in results.study.implementations if name in timed - {results.study.baseline}]
    return [over(results, name, shape) for name in names]


class Turned(NamedTuple):
    """A candidate that is faster on some kinds of values and slower on others, under the headline's timing.

    Attributes:
        under: the same under each of the other timings by which it has a latency.
    """

    over: OverKinds
    timing: Timing
    under: dict[Timing, OverKinds]


def turned(results: Results, shape: Shape) -> list[Turned]:
    """The candidates at a shape whose verdict the values turn round."""
    others = [timing for timing in results.timings if timing != results.headline]

    def under(name: str) -> dict[Timing, OverKinds]:
        found = {timing: known(partial(over, results, name, shape, timing)) for timing in others}
        return {timing: one for timing, one in found.items() if one}

    turned_over = [one for one in candidates(results, shape) if one.disagree]
    return [Turned(one, results.headline, under(one.candidate)) for one in turned_over]


class Safest(NamedTuple):
    """The candidate that gains most on its worst kind of values.

    Attributes:
        launches: of `kernel.best`, the rung that it launches there and that was timed by its own name; else empty.
    """

    over: OverKinds
    launches: str


def safest(results: Results, shape: Shape) -> Safest | None:
    """Of the candidates with a latency on every kind at a shape, the safest; None where there is none.

    Of a kernel that was timed by two names it is `kernel.best`, as which it was chosen before the run.
    """
    complete = {one.candidate: one for one in candidates(results, shape) if not one.lacking}
    if not complete:
        return None
    name = max(complete, key=lambda one: complete[one].verdict.speedup.estimate)
    best = complete.get(rungs.chosen(results, shape, name), complete[name])
    return Safest(best, rungs.launched(results, shape) if best.candidate == BEST else "")


def best(results: Results, shape: Shape) -> OverKinds:
    """The best of the candidates that have a latency at a shape, each judged on its worst kind of values.

    A claimable one comes before a faster one before the one with the highest speedup; what has no latency on some kind
    comes last. Of a kernel that was timed by two names it is `kernel.best`. Raises NotMeasured where there is no
    candidate or no baseline there.
    """

    def rank(one: OverKinds) -> tuple[bool, bool, bool, float]:
        verdict = one.verdict
        return not one.lacking, verdict.claimable, verdict.decision == "faster", verdict.speedup.estimate

    found = {name: over(results, name, shape) for name in results.candidates(shape)}
    return found[rungs.chosen(results, shape, max(found, key=lambda name: rank(found[name])))]


class Stretch(NamedTuple):
    """By how much an implementation takes longer on its slowest kind of values than on its fastest."""

    implementation: str
    ratio: float
    slowest: str


class Steadiness(NamedTuple):
    """How much the time that implementations take depends on the values.

    Attributes:
        steady: those that certainly take the same time on all kinds within `within_pct`, by their intervals.
        stretched: those that certainly don't, the worst first.
        untold: those of which neither can be said.
    """

    steady: list[str]
    stretched: list[Stretch]
    untold: list[str]
    within_pct: int = STEADY_PCT

    @property
    def known(self) -> int:
        """How many implementations it is known of."""
        return len(self.steady) + len(self.stretched)

    @property
    def timed(self) -> int:
        """How many implementations were timed on several kinds."""
        return self.known + len(self.untold)


def steadiness(results: Results, shape: Shape) -> Steadiness:
    """How much the time of each implementation at a shape depends on the values."""
    alike = shapes(results, shape)
    steady, stretched, untold = [], [], []
    for name in results.study.implementations:
        timed = {other.values: results.median(name, other) for other in alike if name in results.at(other).index}
        if len(timed) < 2:
            continue
        slowest, fastest = (end(timed, key=lambda kind: timed[kind].estimate) for end in (max, min))
        if timed[slowest].high / timed[fastest].low <= 1 + STEADY_PCT / 100:
            steady.append(name)
        elif timed[slowest].low / timed[fastest].high > 1 + STEADY_PCT / 100:
            stretched.append(Stretch(name, timed[slowest].estimate / timed[fastest].estimate, slowest))
        else:
            untold.append(name)
    return Steadiness(steady, sorted(stretched, key=lambda one: one.ratio, reverse=True), untold)


@dataclass(frozen=True)
class Statement:
    """What the comparison of a run's best candidate with its baseline at one shape supports.

    Attributes:
        over: the candidate over all kinds of values; the statement is made on its worst.
        under: the verdict there under each timing.
        are_apart: whether the intervals of the medians are.
    """

    over: OverKinds
    under: dict[Timing, Verdict]
    are_apart: bool

    @property
    def shape(self) -> Shape:
        """The shape with the values on which the statement is made."""
        return self.over.worst

    @property
    def verdict(self) -> Verdict:
        """The verdict under the headline's timing."""
        return self.over.verdict

    @property
    def contradicting(self) -> dict[Timing, Verdict]:
        """The timings that say slower where the headline's says faster, or the other way round."""
        return {timing: found for timing, found in self.under.items() if opposed((found, self.verdict))}

    @property
    def lacks(self) -> list[str]:
        """The conditions of a claim that are not met: of ``speedup``, ``delta`` and ``intervals``."""
        lacking = {
            "speedup": self.verdict.speedup.estimate < CLAIM_SPEEDUP,
            "delta": abs(self.verdict.delta) < CLAIM_DELTA,
            "intervals": not self.are_apart,
        }
        return [condition for condition, is_lacking in lacking.items() if is_lacking]


def statement(results: Results, shape: Shape) -> Statement:
    """What may be said of the best candidate at a shape.

    Raises NotMeasured where there is no candidate or no baseline there.
    """
    found = best(results, shape)
    under = results.under_each(found.candidate, found.worst)
    return Statement(found, under, results.are_apart(found.candidate, found.worst))
