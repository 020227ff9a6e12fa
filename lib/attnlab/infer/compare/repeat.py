"""A run beside another recorded run of the same device: the same cases again."""

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from attnlab.base.errors import UserError
from attnlab.base.rules import ALPHA
from attnlab.infer import stats
from attnlab.infer.cases import by_replicate, independent
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Results, with_samples
from attnlab.infer.stats import Interval
from attnlab.runs import read
from attnlab.runs.schema import Manifest
from attnlab.study import ladder, studies
from attnlab.study.shapes import Shape
from attnlab.study.studies import Study, Timing

LEAST_US = 20
"""Shorter medians are left out: the clock's tick and the launch matter too much there for `NEAR_PCT`."""
NEAR_PCT = 1.0
"""Medians no farther apart than this are called the same."""
FIELDS = ("driver", "cuda", "cudnn", "python", "system", "threads", "card", "packages", "settings")
"""The fields of the environment that are compared."""


@dataclass(frozen=True)
class Side:
    """A case in one run.

    Attributes:
        samples: the latencies in us, as `cases.independent` gives them.
        tick_us: resolution of a sample.
        spread_pct: range of the medians of its replicates, in percent of the median; NaN for one replicate.
        sm_clock_mhz: the median of the SM clock; NaN where it was not read.
        throttled_pct: the share of samples taken at a throttled clock; NaN likewise.
    """

    samples: list[np.ndarray]
    tick_us: float
    spread_pct: float
    sm_clock_mhz: float
    throttled_pct: float

    @property
    def median_us(self) -> float:
        return float(np.median(np.concatenate([block.ravel() for block in self.samples])))

    @property
    def median(self) -> Interval:
        """The same with its interval, by the bootstrap."""
        return stats.bootstrap_ci(self.samples, tick=self.tick_us)


@dataclass(frozen=True)
class Case:
    """A case in both runs; `ratio` is the median here over the median there, with its interval."""

    implementation: str
    shape: Shape
    here: Side
    there: Side
    ratio: Interval

    @property
    def change(self) -> Interval:
        """Change of the median from there to here, in percent."""
        return in_percent(self.ratio)

    @property
    def cycles_pct(self) -> float:
        """Change of the latency in cycles, latency times SM clock; NaN where the clock was not read."""
        return 100 * (self.ratio.estimate * self.here.sm_clock_mhz / self.there.sm_clock_mhz - 1)

    @property
    def moved(self) -> bool:
        """Whether the medians are farther apart than `NEAR_PCT`."""
        return abs(self.change.estimate) > NEAR_PCT


@dataclass(frozen=True)
class Repetition:
    """A run and the other run that shares the most cases with it.

    Attributes:
        shared: implementation and shape of the cases that both measured under the timing.
        cases: those whose median here is above `LEAST_US`.
        changed: kernels that both ran from different sources.
    """

    here: Results
    there: Results
    timing: Timing
    shared: list[tuple[str, Shape]]
    cases: list[Case]
    changed: list[str]

    @property
    def moved(self) -> list[Case]:
        """The cases that moved, the largest change first."""
        return [case for case in self.by_distance if case.moved]

    @property
    def by_distance(self) -> list[Case]:
        """The cases, the largest change first."""
        return sorted(self.cases, key=lambda case: -abs(case.change.estimate))

    @property
    def moved_surely(self) -> int:
        """How many of those that moved have a change whose whole interval is beyond `NEAR_PCT`."""
        return sum(not case.change.overlaps(Interval(0, -NEAR_PCT, NEAR_PCT)) for case in self.moved)

    @property
    def moved_in_cycles_pct(self) -> list[float] | None:
        """The changes in cycles of those that moved, where they are not near either; None where a clock wasn't read."""
        cycles = [abs(case.cycles_pct) for case in self.moved]
        return None if np.isnan(cycles).any() else [change for change in cycles if change > NEAR_PCT]

    @property
    def lacks_kernels(self) -> bool:
        """Whether this run has hand-written kernels, and none of them is compared."""
        mine = {name for name in self.here.study.implementations if name.startswith(ladder.PREFIX)}
        return bool(mine) and mine.isdisjoint(name for name, _ in self.shared)

    @property
    def scatter(self) -> dict[str, tuple[float, float]] | None:
        """How far medians are apart in percent, at most and in half of the cases; None where a run has one replicate.

        Those of replicates within each run, ``here`` and ``there``, and those of the runs, ``between``.
        """
        apart = {side: [getattr(case, side).spread_pct for case in self.cases] for side in ("here", "there")}
        apart["between"] = [abs(case.change.estimate) for case in self.cases]
        if not self.cases or np.isnan(list(apart.values())).any():
            return None
        return {side: (max(some), float(np.median(some))) for side, some in apart.items()}


class Differences(NamedTuple):
    """What differs between two runs.

    Attributes:
        rows: names with a value here and one there: of the environment, of the code, and the ceilings that both have.
        same: the fields of the environment that are equal.
        files: how many files of the measuring code differ.
    """

    rows: list[tuple[str, Any, Any]]
    same: list[str]
    files: int


class Change(NamedTuple):
    """A case in two runs under one timing.

    `pvalue` is that of no difference, adjusted by Holm over all cases of the two runs under the timing; `ratio` is the
    median here over the median there, None where the p-value is not below ALPHA.
    """

    timing: Timing
    shape: Shape
    implementation: str
    ratio: Interval | None
    pvalue: float

    @property
    def place(self) -> tuple[str, Shape, Timing]:
        """What a run is asked for its case by."""
        return self.implementation, self.shape, self.timing

    @property
    def shown(self) -> Interval | None:
        """The ratio where the medians are shown to differ: the p-value is below ALPHA and the interval excludes 1."""
        return None if self.ratio is None or self.ratio.holds(1) else self.ratio


def changes(here: Results, there: Results) -> list[Change]:
    """Every case that has a latency in both runs under the same timing, be its source the same or not."""
    found = []
    for timing in (timing for timing in here.timings if timing in there.timings):
        shared = [
            (shape, str(name))
            for shape in here.study.shapes
            for name in here.at(shape, timing).index.intersection(there.at(shape, timing).index, sort=False)
        ]
        sides = [tuple(run.samples(name, shape, timing) for run in (there, here)) for shape, name in shared]
        pvalues = stats.holm([stats.difference_pvalue(its, mine) for its, mine in sides])
        for (shape, name), p in zip(shared, pvalues, strict=True):
            change = Change(timing, shape, name, None, float(p))
            if p < ALPHA:  # the interval takes most of the time
                change = change._replace(ratio=ratio_of(change, here, there))
            found.append(change)
    return found


def ratio_of(change: Change, here: Results, there: Results) -> Interval:
    """The median here over the median there, be they shown to differ or not."""
    mine, its = (run.samples(*change.place) for run in (here, there))
    tick = max(run.tick_us(*change.place) for run in (here, there))
    return stats.ratio_ci(mine, its, tick=tick)


def find(results: Results) -> Repetition:
    """The other run that shares the most cases with this one; of several, the newest; NotMeasured where there is none.

    Kernels that the two ran from different sources are left out.
    """
    timing, study = results.headline, results.study
    cases = [(name, shape) for shape in study.shapes for name in study.implementations]
    mine = [case for case in cases if results.samples(*case, timing)]
    best: Repetition | None = None
    for other in others(results.run.manifest):
        if best and _shared(study, other.study) <= len(best.shared):
            break  # those that follow share no more
        both, changed = [case for case in mine if other.samples(*case, timing)], other_sources(results, other)
        shared = [case for case in both if case[0] not in changed]
        if shared and (best is None or len(shared) > len(best.shared)):
            best = Repetition(results, other, timing, shared, [], sorted(changed & {name for name, _ in both}))
    if best is None:
        device = results.run.manifest["device"]["name"]
        raise NotMeasured(f"No other complete run here, on {device}, shares a case with this one")
    sides = [(case, [_side(of, *case, timing) for of in (results, best.there)]) for case in best.shared]
    return replace(best, cases=[_case(*case, *both) for case, both in sides if both[0].median_us > LEAST_US])


def differences(here: Results, there: Results) -> Differences:
    """What differs between two runs in environment and code, and their ceilings: if these moved, the machine did."""
    mine, its = here.run.manifest, there.run.manifest
    stated = pd.concat([_stated(mine), _stated(its)], axis=1).fillna("not recorded")
    differing = stated[stated.iloc[:, 0] != stated.iloc[:, 1]]
    rows: list[tuple[str, Any, Any]] = list(differing.itertuples(name=None))
    files = read.sources_changed(mine, its)
    if files:
        rows.append(("measuring code", f"commit {mine['commit'][:7]}", f"commit {its['commit'][:7]}"))
    for name, ceiling in here.ceilings.by_name.items():
        other = there.ceilings.by_name.get(name)
        if ceiling.measured and other and other.measured:
            rows.append((f"{ceiling.title} ({ceiling.unit})", ceiling.measured, other.measured))
    apart = {name.split()[0] for name in differing.index}
    same = [field for field in FIELDS if field in mine["environment"] and field not in apart]
    return Differences(rows, same, len(files))


def _stated(manifest: Manifest) -> pd.Series:
    fields = {field: value for field, value in manifest["environment"].items() if field in FIELDS}
    return pd.json_normalize(fields, sep=" ").iloc[0].dropna().map(str)


def others(mine: Manifest) -> Iterator[Results]:
    """Other complete runs than that of a manifest on a device of the same name; nothing is inferred if not in use.

    Those whose studies share the most cases with this one's come first, and of these the newest. A run that is refused
    is passed over.
    """
    # A copy is no other run.
    return _sharing(mine, lambda its: its["seal"] != mine["seal"] and its["device"]["name"] == mine["device"]["name"])


def elsewhere(mine: Manifest) -> Iterator[Results]:
    """The complete runs on devices of other names that share a case with this one, in the same order."""
    return _sharing(mine, lambda its: its["device"]["name"] != mine["device"]["name"], least=1)


def _sharing(mine: Manifest, fits: Callable[[Manifest], bool], least: int = 0) -> Iterator[Results]:
    study = studies.recorded(mine)
    found = [
        (name, _shared(study, studies.recorded(stated)))
        for name, stated in read.manifests()
        if stated["complete"] and fits(stated)
    ]
    for name, shared in sorted(found, key=lambda each: -each[1]):
        if shared < least:
            return
        with suppress(UserError):
            yield with_samples(name)


def _shared(one: Study, other: Study) -> int:
    shapes = set(one.shapes) & set(other.shapes)
    return len(shapes) * len(set(one.implementations) & set(other.implementations))


def other_sources(one: Results, other: Results) -> set[str]:
    here, there = one.run.manifest["kernels"], other.run.manifest["kernels"]
    both = here.keys() & there.keys() & set(one.study.implementations)
    return {name for name in both if here[name] != there[name]}


def _case(name: str, shape: Shape, here: Side, there: Side) -> Case:
    ratio = stats.ratio_ci(here.samples, there.samples, tick=max(here.tick_us, there.tick_us))
    return Case(name, shape, here, there, ratio)


def _side(results: Results, name: str, shape: Shape, timing: Timing) -> Side:
    taken = results.samples_of(name, shape, timing)
    medians = [float(np.median(replicate)) for replicate in by_replicate(taken)]
    apart_us = max(medians) - min(medians) if len(medians) > 1 else np.nan
    return Side(
        independent(taken, results.cards),
        results.tick_us(name, shape, timing),
        100 * apart_us / float(np.median(taken.latency_us)),
        taken.clock_mhz,
        taken.throttled_pct,
    )


def inverse(ratio: Interval) -> Interval:
    """The ratio of the same two the other way round."""
    return Interval(1 / ratio.estimate, 1 / ratio.high, 1 / ratio.low if ratio.low else math.inf)


def in_percent(ratio: Interval) -> Interval:
    return Interval(*(100 * (value - 1) for value in (ratio.estimate, ratio.low, ratio.high)))
