"""Rows and samples of a run, by implementation, shape and timing."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd

from attnlab.infer import stats
from attnlab.infer.cases import (
    AXES,
    CASE,
    NO_SAMPLES,
    TIMING,
    Samples,
    by_card,
    by_case,
    cards_of,
    enough,
    independent,
    passed_samples,
)
from attnlab.infer.ceilings import Ceilings
from attnlab.runs import schema
from attnlab.runs.schema import MEASURED
from attnlab.study import studies
from attnlab.study.shapes import Shape
from attnlab.study.studies import Study, Timing

T = TypeVar("T")


class NotMeasured(Exception):
    """The run does not hold what was asked for; the message is a sentence without its full stop."""


def known(ask: Callable[[], T]) -> T | None:
    """What a function gives; None where the run does not hold it."""
    try:
        return ask()
    except NotMeasured:
        return None


class Extremes(NamedTuple):
    """Rows of the table of cases: where an implementation is fastest and slowest, and where its rates are highest."""

    fastest: pd.Series
    slowest: pd.Series
    busiest: pd.Series
    widest: pd.Series


class Wins(NamedTuple):
    """Whoever has the smallest median at the most shapes: at how many, of how many."""

    implementation: str
    wins: int
    shapes: int


@dataclass(frozen=True)
class Lookup:
    """A run, and the table that `attnlab.infer.cases` inferred from its samples: a row per case and timing, in us.

    Attributes:
        taken: what `cases.by_case` made of the samples that passed, where that is known already.
    """

    run: schema.Run
    table: pd.DataFrame
    taken: dict[Any, Samples] | None = field(default=None, repr=False)
    _samples: dict[tuple[str, Shape, Timing], list[np.ndarray]] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def study(self) -> Study:
        """The study that was measured."""
        return studies.recorded(self.run.manifest)

    @cached_property
    def ceilings(self) -> Ceilings:
        """The ceilings that the run measured."""
        return Ceilings(self.run.manifest)

    @cached_property
    def timings(self) -> list[Timing]:
        """The timings that were recorded, in the order of the study."""
        there = set(self.table[TIMING].itertuples(index=False, name=None))
        return [timing for timing in self.study.timings if (timing.clock, timing.cache) in there]

    @property
    def headline(self) -> Timing:
        """The timing of tables and figures that name none: the first of the study."""
        return (self.timings or self.study.timings)[0]

    def sweep(self, name: str) -> list[Shape]:
        """The shapes of one sweep; NotMeasured where the study has no such sweep."""
        if name not in self.study.sweeps:
            raise NotMeasured(f"The study “{self.study.name}” has no sweep “{name}”")
        return self.study.sweep(name)

    def under(self, timing: Timing) -> pd.DataFrame:
        """The rows of one timing."""
        return self._rows_by_timing.get((timing.clock, timing.cache), self.table.head(0))

    @cached_property
    def _rows_by_timing(self) -> dict[Any, pd.DataFrame]:
        return dict(iter(self.table.groupby(TIMING, sort=False)))

    def at(self, shape: Shape, timing: Timing | None = None) -> pd.DataFrame:
        """The rows of one shape, under one timing (default: the headline's), indexed by implementation."""
        return self._rows_by_place.get(self._place(shape, timing), self._no_rows)

    def _place(self, shape: Shape, timing: Timing | None) -> tuple[Any, ...]:
        timing = timing or self.headline
        return (*shape.axes.values(), timing.clock, timing.cache)

    @cached_property
    def _rows_by_place(self) -> dict[Any, pd.DataFrame]:
        return dict(iter(self.table.set_index("implementation", drop=False).groupby([*AXES, *TIMING], sort=False)))

    @cached_property
    def _no_rows(self) -> pd.DataFrame:
        return self.table.head(0).set_index("implementation", drop=False)

    def row(self, implementation: str, shape: Shape, timing: Timing | None = None) -> pd.Series:
        """The row of one case; NotMeasured where it has no latency."""
        self.require(implementation, shape, timing)
        return self.at(shape, timing).loc[implementation]

    def value(self, implementation: str, shape: Shape, column: str) -> float:
        """A column of the row of one case under the headline's timing; NaN where it has no latency."""
        at = self.at(shape)
        return float(at.loc[implementation, column]) if implementation in at.index else np.nan

    def require(self, implementation: str, shape: Shape, timing: Timing | None = None) -> None:
        """Raise NotMeasured where a case has no latency."""
        if implementation not in self.at(shape, timing).index:
            where = f"{shape.label}, {(timing or self.headline).words}"
            raise NotMeasured(f"`{implementation}` has no latency at {where}")

    def along(self, sweep: str, implementation: str) -> list[tuple[Shape, pd.Series]]:
        """The shapes of a sweep at which an implementation has a latency, each with its row.

        Raises NotMeasured where the study has no such sweep, or the implementation no latency in it.
        """
        there = [(shape, self.at(shape)) for shape in self.sweep(sweep)]
        found = [(shape, rows.loc[implementation]) for shape, rows in there if implementation in rows.index]
        if not found:
            raise NotMeasured(f"`{implementation}` has no latency in the sweep “{sweep}”, {self.headline.words}")
        return found

    def timed(self, sweeps: Sequence[str]) -> list[str]:
        """Those of these sweeps in which the study has anything with a latency; NotMeasured where there are none."""
        there = [name for name in sweeps if name in self.study.sweeps]
        found = [name for name in there if any(len(self.at(shape)) for shape in self.study.sweep(name))]
        if not found:
            named = " and ".join(f"“{name}”" for name in sweeps)
            raise NotMeasured(f"Nothing has a latency in the sweeps {named}")
        return found

    def over(self, sweeps: Sequence[str]) -> pd.DataFrame:
        """The rows of all shapes of those of these sweeps that the study has; NotMeasured where none has a latency."""
        shapes = [shape for name in self.timed(sweeps) for shape in self.study.sweep(name)]
        return pd.concat([self.at(shape) for shape in shapes], ignore_index=True)

    def most_often_fastest(self, sweeps: Sequence[str]) -> Wins:
        """Who has the smallest median at the most shapes of these sweeps; NotMeasured where none has a latency."""
        rows = self.over(sweeps)
        fastest = Counter(rows.loc[rows.groupby(AXES, sort=False)["median_us"].idxmin(), "implementation"])
        return Wins(*fastest.most_common(1)[0], fastest.total())

    def extremes(self, implementation: str) -> Extremes:
        """The extremes of an implementation over all shapes, under the headline's timing; NotMeasured without any."""
        rows = self.under(self.headline)
        rows = rows[rows["implementation"] == implementation]
        if rows.empty:
            raise NotMeasured(f"`{implementation}` has no latency in this run, {self.headline.words}")
        us, rates = rows["median_us"], (rows["throughput_tflops"], rows["bandwidth_gbs"])
        return Extremes(*(rows.loc[place] for place in (us.idxmin(), us.idxmax(), *(rate.idxmax() for rate in rates))))

    def samples(self, implementation: str, shape: Shape, timing: Timing | None = None) -> list[np.ndarray]:
        """The latencies of one case that passed in us, round by round, as `cases.independent` gives them."""
        key = (implementation, shape, timing or self.headline)
        if key not in self._samples:
            taken = self.samples_of(*key)
            self._samples[key] = independent(taken, self.cards) if taken.latency_us.size else []
        return self._samples[key]

    def on_cards(self, implementation: str, shape: Shape, timing: Timing) -> list[np.ndarray]:
        """The latencies of one case that passed in us, as `cases.by_card` gives them; empty without named cards."""
        return by_card(self.samples_of(implementation, shape, timing), self.cards)

    @cached_property
    def cards(self) -> dict[str, str]:
        """The card of each process, where the run used several; empty where it used one, or doesn't say."""
        return cards_of(self.run)

    @cached_property
    def over_cards(self) -> list[int]:
        """How many cards intervals are over, and so hold for others like them: each number that there is, in order.

        Empty where those of any shape are over replicates.
        """
        taken = self.passed[[*AXES, *TIMING]].assign(card=self.passed["process"].map(self.cards))
        places = [set(cards.dropna()) for _, cards in taken.groupby([*AXES, *TIMING])["card"]]
        return sorted(set(map(len, places))) if all(map(enough, places)) else []

    @cached_property
    def passed(self) -> pd.DataFrame:
        """The samples of the cases that passed in every replicate: those that the table was inferred from."""
        return passed_samples(self.run)

    def throttled(self, names: Sequence[str], shape: Shape, timing: Timing | None = None) -> tuple[int, int]:
        """Of the passed samples of these implementations, how many have a throttle state, and how many throttled."""
        of = (self.samples_of(name, shape, timing).throttled for name in names)
        throttled = np.concatenate([NO_SAMPLES.throttled, *of])
        return int((~np.isnan(throttled)).sum()), int(np.nansum(throttled))

    def tick_us(self, implementation: str, shape: Shape, timing: Timing | None = None) -> float:
        """Resolution of the samples of one case in us: the clock's tick over the fewest launches that one spans."""
        launches = self.samples_of(implementation, shape, timing).launches
        return float(self.run.manifest["clocks"]["tick_us"]) / int(launches.min())

    def fastest(self, shape: Shape, timing: Timing | None = None, among: Sequence[str] | None = None) -> str:
        """The implementation, of all or of some, with the smallest median at a shape; NotMeasured without any there."""
        rows = self.at(shape, timing)
        rows = rows if among is None else rows[rows.index.isin(among)]
        if rows.empty:
            raise NotMeasured(f"Nothing has a latency at {shape.label}")
        return str(rows["median_us"].idxmin())

    def peak_bytes(self, implementation: str, shape: Shape) -> float:
        """Peak memory of a case in bytes; NaN where it was not measured."""
        return self._peaks.get((implementation, *shape.axes.values()), np.nan)

    def held_back(self) -> list[Shape]:
        """The shapes that had more than half of their samples, all implementations', taken at a throttled clock."""
        rows = self.under(self.headline)
        shares = rows.groupby(AXES, sort=False)["throttled_pct"].mean()
        return [Shape(*key) for key in shares[shares > 50].index]

    @cached_property
    def _samples_by_case(self) -> dict[Any, Samples]:
        return by_case(self.passed) if self.taken is None else self.taken

    @cached_property
    def lost(self) -> dict[Any, str]:
        """What became of each case that was not measured, in the first replicate that lost it, by values of `CASE`."""
        cases = self.run.cases
        rows = cases[cases["status"] != MEASURED].drop_duplicates(CASE)
        said = rows[[*CASE, "status", "reason"]].itertuples(index=False, name=None)
        return {tuple(case): f"{status}, {reason}" if reason else str(status) for *case, status, reason in said}

    @cached_property
    def _peaks(self) -> dict[Any, float]:
        cases = self.run.cases
        peaks = cases[cases["status"] == MEASURED].groupby(CASE, sort=False)["peak_memory_bytes"].max()
        return {case: float(peak) for case, peak in peaks.items()}

    def samples_of(self, name: str, shape: Shape, timing: Timing | None = None) -> Samples:
        """The samples of one case that passed; empty where it has no latency."""
        return self._samples_by_case.get((name, *self._place(shape, timing)), NO_SAMPLES)


def median_of(row: Any) -> stats.Interval:
    """The median of a row of the table with its interval, in us."""
    return stats.Interval(row["median_us"], row["low_us"], row["high_us"])


def shape_of(row: Any) -> Shape:
    """The shape of a row of a table."""
    values = ((axis, row[axis]) for axis in AXES)
    return Shape(**{axis: value.item() if hasattr(value, "item") else value for axis, value in values})


def axis_of(sweep: str) -> str:
    """The axis that a sweep goes along: the last word of its name."""
    return sweep.split()[-1]


def on_values(checks: pd.DataFrame) -> pd.DataFrame:
    """The checks that were made on the values that are timed."""
    return checks[checks["inputs"] == checks["values"]]
