"""The results of a run: a row for each case, and verdicts on each candidate against the baseline."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import pandas as pd
import scipy.stats

from attnlab.base.rules import CONFIDENCE
from attnlab.infer import parallel, stats
from attnlab.infer.cases import CASE, COLUMNS, TIMING, by_case, infer, passed_samples
from attnlab.infer.families import FalsePositives, Family, Place, Sides, infer_family, judge, judge_family
from attnlab.infer.lookup import Lookup, NotMeasured
from attnlab.infer.stats import Verdict
from attnlab.runs import read, schema
from attnlab.study import implementations, studies
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing

Pair = tuple[str, str]
"""A baseline and a candidate."""
NO_CONTROL = "This run did not measure its baseline against itself, so how often its verdicts err is unknown"


@dataclass(frozen=True)
class Results(Lookup):
    """A run, the rows of its cases, and the verdicts on them, as far as they were asked for."""

    _known: dict[Place, Family] = field(default_factory=dict, init=False, repr=False)
    _against: dict[tuple[Place, str], Family] = field(default_factory=dict, init=False, repr=False)

    def median(self, name: str, shape: Shape, timing: Timing | None = None) -> stats.Interval:
        """The median of one case with its interval, in us; a control's too, which has no row.

        Raises NotMeasured where it has no latency.
        """
        samples = self.samples(name, shape, timing)
        if not samples or not implementations.is_control(name):
            self.require(name, shape, timing)
            return self._medians[name, *self._place(shape, timing)]
        return stats.bootstrap_ci(samples, tick=self.tick_us(name, shape, timing))

    def candidates(self, shape: Shape, timing: Timing | None = None) -> list[str]:
        """The implementations compared with the baseline at one shape: one family of tests.

        Raises NotMeasured where the baseline has no latency there, or nothing else has.
        """
        names = list(self._pairs(self.study.baseline, shape, timing))
        if not names:
            raise NotMeasured(f"Nothing but `{self.study.baseline}` has a latency at {shape.label}")
        return names

    def compare(self, candidate: str, shape: Shape, timing: Timing | None = None) -> stats.Verdict:
        """The verdict on a candidate against the study's baseline at one shape, from rounds taken together.

        Its p-value is Holm's, over all candidates at this shape and timing. Where the run measured its baseline against
        itself (`is_controlled`), nothing is called faster, slower or equivalent by less than the `smallest_effect`;
        elsewhere the comparison's own samples decide alone. Raises NotMeasured where one of the two has no latency
        there.
        """
        self.require(candidate, shape, timing)
        return self.family(shape, timing).verdicts[candidate]

    def under_each(self, candidate: str, shape: Shape) -> dict[Timing, Verdict]:
        """The verdict on a candidate at one shape under each timing that has both sides."""
        both = {self.study.baseline, candidate}
        there = [timing for timing in self.timings if both <= set(self.at(shape, timing).index)]
        return {timing: self.compare(candidate, shape, timing) for timing in there}

    def are_apart(self, candidate: str, shape: Shape, timing: Timing | None = None) -> bool:
        """Whether the intervals of the medians of a candidate and the baseline are apart at one shape."""
        sides = [self.median(name, shape, timing) for name in (self.study.baseline, candidate)]
        return not sides[0].overlaps(sides[1])

    def family(self, shape: Shape, timing: Timing | None = None) -> Family:
        """The verdicts at one shape under one timing; NotMeasured where the baseline has no latency there."""
        place = (shape, timing or self.headline)
        if place not in self._known:
            self._known[place] = infer_family(*self._job(*place))
        return self._known[place]

    @cached_property
    def families(self) -> dict[Place, Family]:
        """The family of every shape and timing at which the baseline has a latency."""
        places = [place for place in self._places if self.samples(self.study.baseline, *place)]
        missing = [place for place in places if place not in self._known]
        inferred = parallel.each(infer_family, [self._job(*place) for place in missing])
        self._known.update(zip(missing, inferred, strict=True))
        return {place: self._known[place] for place in places}

    def families_against(self, baseline: str) -> dict[Place, Family]:
        """As `families`, against any implementation, with the smallest effect that the study's baseline could show."""
        places = [place for place in self._places if baseline in self.at(*place).index]
        return self.families_over(dict.fromkeys(places, baseline))

    def families_over(self, baselines: Mapping[Place, str]) -> dict[Place, Family]:
        """As `families_against`, each place with a baseline of its own, which has a latency there."""
        mine = self.study.baseline
        others = [asked for asked in baselines.items() if asked[1] != mine and asked not in self._against]
        jobs = [(self._pairs(baseline, *place), self._smallest(*place)) for place, baseline in others]
        self._against.update(zip(others, parallel.each(judge_family, jobs), strict=True))
        return {
            place: self.families[place] if baseline == mine else self._against[place, baseline]
            for place, baseline in baselines.items()
        }

    def families_under(self, timing: Timing) -> dict[Shape, Family]:
        return {shape: family for (shape, under), family in self.families.items() if under == timing}

    def compare_pairs(self, pairs: Sequence[Pair], shape: Shape, timing: Timing | None = None) -> list[stats.Verdict]:
        """The verdicts on pairs of (baseline, candidate) at one shape, from rounds taken together.

        The pairs are one family of tests: their p-values are Holm's, over these and no others. Raises NotMeasured where
        one of them has no latency there.
        """
        for name in dict.fromkeys(name for pair in pairs for name in pair):
            self.require(name, shape, timing)
        smallest = [self._smallest(shape, timing)] * len(pairs)
        return judge([self._sides(pair, shape, timing) for pair in pairs], smallest)[0]

    def speedup(
        self, candidate: str, shape: Shape, timing: Timing | None = None, baseline: str | None = None
    ) -> stats.Interval:
        """Ratio of medians over a baseline (default: the study's) at one shape, from rounds taken together.

        Raises NotMeasured where one of the two has no latency there.
        """
        pair = (baseline or self.study.baseline, candidate)
        for name in pair:
            self.require(name, shape, timing)
        sides = self._sides(pair, shape, timing)
        return stats.ratio_ci(sides.baseline, sides.candidate, tick=sides.tick_us, paired=True)

    def is_controlled(self, shape: Shape, timing: Timing | None = None) -> bool:
        """Whether the run measured its baseline against itself at one shape, and both passed."""
        names = (self.study.baseline, implementations.control(self.study.baseline))
        return all(self.samples(name, shape, timing) for name in names)

    def control(self, shape: Shape, timing: Timing | None = None) -> stats.Verdict:
        """The verdict on the baseline against itself at one shape (A/A), from its samples alone.

        Raises NotMeasured where the run has no control there.
        """
        control = self.family(shape, timing).control if self.is_controlled(shape, timing) else None
        if control is None:
            where = f"{shape.label}, {(timing or self.headline).words}"
            raise NotMeasured(f"`{self.study.baseline}` was not measured against itself at {where}")
        return control

    def smallest_effect(self, shape: Shape, timing: Timing | None = None) -> float:
        """The minimum detectable effect at one shape, as a fraction: `stats.smallest_effect` of the A/A control.

        Raises NotMeasured where the run has no control there.
        """
        self.control(shape, timing)
        return self.family(shape, timing).smallest_effect

    def controlled(self) -> list[Place]:
        """The shapes and timings at which the run measured its baseline against itself."""
        return [place for place in self._places if self.is_controlled(*place)]

    @property
    def _places(self) -> list[Place]:
        return [(shape, timing) for timing in self.timings for shape in self.study.shapes]

    @cached_property
    def false_positives(self) -> FalsePositives:
        """How often this run called its baseline faster or slower than itself, over all shapes and timings.

        Raises NotMeasured where the run has no control anywhere.
        """
        controls = {place: family.control for place, family in self.families.items() if family.control}
        if not controls:
            raise NotMeasured(NO_CONTROL)
        wrong = [place for place, control in controls.items() if control.decision in ("faster", "slower")]
        exact = scipy.stats.binomtest(len(wrong), len(controls)).proportion_ci(CONFIDENCE, method="exact")
        rate = stats.Interval(len(wrong) / len(controls), float(exact.low), float(exact.high))
        apart = sum(not control.speedup.holds(1) for control in controls.values())
        return FalsePositives(wrong, apart, len(controls), rate)

    def _smallest(self, shape: Shape, timing: Timing | None) -> float:
        """The minimum detectable effect at a place; 0 without a control."""
        return self.smallest_effect(shape, timing) if self.is_controlled(shape, timing) else 0.0

    def _job(self, shape: Shape, timing: Timing) -> tuple[dict[str, Sides], Sides | None]:
        control = self.control_sides(shape, timing) if self.is_controlled(shape, timing) else None
        return self._pairs(self.study.baseline, shape, timing), control

    def control_sides(self, shape: Shape, timing: Timing) -> Sides:
        """The samples of the baseline and of its control, at a place where the run `is_controlled`."""
        baseline = self.study.baseline
        return self._sides((baseline, implementations.control(baseline)), shape, timing)

    def _pairs(self, baseline: str, shape: Shape, timing: Timing | None) -> dict[str, Sides]:
        """What is compared with a baseline at one place, by name; NotMeasured where that has no latency."""
        self.require(baseline, shape, timing)
        names = [str(name) for name in self.at(shape, timing).index if name != baseline]
        return {name: self._sides((baseline, name), shape, timing) for name in names}

    def _sides(self, pair: Pair, shape: Shape, timing: Timing | None) -> Sides:
        """The samples of a pair, and the resolution of both."""
        baseline, candidate = (self.samples(name, shape, timing) for name in pair)
        tick_us = max(self.tick_us(name, shape, timing) for name in pair)
        one, other = (self._medians.get((name, *self._place(shape, timing))) for name in pair)
        medians = (one, other) if one and other else None
        return Sides(baseline, candidate, tick_us, medians)

    @cached_property
    def _medians(self) -> dict[Any, stats.Interval]:
        rows = self.table[[*CASE, *TIMING, "median_us", "low_us", "high_us"]].itertuples(index=False, name=None)
        return {row[:-3]: stats.Interval(*row[-3:]) for row in rows}


_IN_USE: WeakValueDictionary[str, Results] = WeakValueDictionary()
"""What was inferred from complete runs, by their seals, as long as anything in this process holds it."""


def of(run: schema.Run) -> Results:
    found = _inferred_from(run)
    if run.complete:
        _IN_USE[run.manifest["seal"]] = found
    return found


def at_target(run: schema.Run) -> Results:
    """What a run says of its target alone, which is inferred at once, whatever else it holds."""
    target = studies.recorded(run.manifest).target_shape
    return _inferred_from(replace(run, samples=run.samples[schema.is_of(run.samples, target)]))


def _inferred_from(run: schema.Run) -> Results:
    taken = by_case(passed_samples(run))
    return Results(run, infer(run, taken), taken)


def load(name: str) -> Results:
    """Read a run and infer from it; what is in use in this process is not read and inferred again if it is complete.

    Raises UserError as `attnlab.runs.read.load`.
    """
    return _IN_USE.get(read.read_manifest(str(name))["seal"]) or of(read.load(name))


def inferred(found: Results) -> Results:
    """What `load` gives of a run that `with_samples` gave."""
    return _IN_USE.get(found.run.manifest["seal"]) or of(found.run)


def with_samples(name: str) -> Results:
    """A run whose samples are asked for, with nothing inferred from it unless it is in use; errors as `load`."""
    found = _IN_USE.get(read.read_manifest(name)["seal"])
    return found or Results(read.load(name), pd.DataFrame(columns=COLUMNS))


def absence(results: Results, name: str, shape: Shape) -> str:
    """Why an implementation has no latency at a shape, as a clause of a sentence."""
    if name not in results.study.implementations:
        return "not in this study"
    if shape not in results.study.shapes:
        return "the study has no such shape"
    return results.lost.get((name, *shape.axes.values()), "not reached yet")


def refused(results: Results, names: Iterable[str], shapes: Sequence[Shape]) -> dict[str, list[Shape]]:
    """At which of these shapes the gate refused an implementation, for each of these that it did."""
    lost = {
        name: [shape for shape in shapes if absence(results, name, shape).startswith(schema.FAILED)] for name in names
    }
    return {name: at for name, at in lost.items() if at}


class Absence(NamedTuple):
    """An implementation without a latency at `missing` of some shapes, and the reason at the first of these."""

    implementation: str
    missing: int
    of: int
    reason: str


def absences(results: Results, shapes: Sequence[Shape]) -> list[Absence]:
    """The implementations that lack a latency at any of these shapes."""
    names = results.study.implementations
    missing = {name: [shape for shape in shapes if name not in results.at(shape).index] for name in names}
    return [
        Absence(name, len(lacking), len(shapes), absence(results, name, lacking[0]))
        for name, lacking in missing.items()
        if lacking
    ]


class Comparison(NamedTuple):
    """One candidate against the baseline; `unadjusted` is its p-value before Holm's adjustment."""

    shape: Shape
    timing: Timing
    candidate: str
    verdict: Verdict
    unadjusted: float


def comparisons(results: Results) -> list[Comparison]:
    """Every comparison of a run, in the order of its timings and shapes; NotMeasured where there is none."""
    every = [
        Comparison(shape, timing, name, verdict, family.unadjusted[name])
        for (shape, timing), family in results.families.items()
        for name, verdict in family.verdicts.items()
    ]
    if not every:
        raise NotMeasured(f"Nothing was timed beside `{results.study.baseline}`, so there is no comparison")
    return every
