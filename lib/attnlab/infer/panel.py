"""The panel of clocks: the same calls timed by other methods, and their distance from our device clock."""

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from attnlab.infer import stats
from attnlab.infer.cases import CASE
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.regimes import why_absent
from attnlab.infer.results import Results
from attnlab.infer.stats import Interval
from attnlab.runs import methods
from attnlab.runs.methods import DEVICE
from attnlab.runs.schema import MEASURED
from attnlab.study.shapes import Shape

SHORT_US = 20
"""Below this a method should be within `NEAR_US` of ours, above it within `NEAR_PCT`."""
NEAR_US, NEAR_PCT = 0.5, 1.0


@dataclass(frozen=True)
class Reading:
    """One method's result for one case, in us: its median with interval, and its difference from our clock."""

    median: Interval
    gap: Interval
    ours_us: float

    @property
    def gap_pct(self) -> float:
        """The difference in percent of our median."""
        return 100 * self.gap.estimate / self.ours_us

    @property
    def short(self) -> bool:
        """Whether the tolerance is in us and not in percent."""
        return self.ours_us < SHORT_US

    @property
    def near(self) -> bool:
        """Whether it is within the tolerance of our clock."""
        return _is_near(self.gap.estimate, self.ours_us)


@dataclass(frozen=True)
class Panel:
    """The panel of a run: its rows, and every reading of them."""

    rows: pd.DataFrame

    @cached_property
    def _samples(self) -> dict[tuple[str, Shape], dict[str, pd.Series]]:
        taken = self.rows[self.rows["latency_us"].notna()].set_index("round")
        latencies_us = taken["latency_us"].astype(float)
        found: dict[tuple[str, Shape], dict[str, pd.Series]] = {}
        for (name, *axes, method), group in latencies_us.groupby([taken[key] for key in [*CASE, "method"]], sort=False):
            shape = Shape(**dict(zip(Shape.AXES, axes, strict=True)))
            found.setdefault((name, shape), {})[method] = group
        return found

    @cached_property
    def cases(self) -> list[tuple[str, Shape]]:
        """The cases that our warm clock timed, short to long."""
        ours = {case: taken[DEVICE].median() for case, taken in self._samples.items() if DEVICE in taken}
        return sorted(ours, key=lambda case: ours[case])

    def ours_us(self, case: tuple[str, Shape], method: str = DEVICE) -> float:
        """Our clock's median of a case in us."""
        return float(self._samples[case][method].median())

    def timed(self, case: tuple[str, Shape], method: str) -> bool:
        """Whether a method has samples of a case."""
        return method in self._samples[case]

    def median(self, case: tuple[str, Shape], method: str) -> Interval:
        """A method's median of a case with its interval."""
        return _median(self._samples[case][method])

    def reading(self, case: tuple[str, Shape], method: str) -> Reading | None:
        """A method's result for a case, against our clock; None where either has no samples."""
        taken, ours = self._samples[case], methods.reference(method)
        if method not in taken or ours not in taken:
            return None
        theirs, reference = taken[method], taken[ours]
        paired = set(theirs.index) == set(reference.index)
        gaps = theirs - (reference if paired else reference.median())
        return Reading(_median(theirs), _median(gaps), float(reference.median()))

    def readings(self, method: str) -> list[Reading]:
        """A method's readings, short to long."""
        return [found for case in self.cases if (found := self.reading(case, method))]

    def why(self, method: str) -> str:
        """Why a method has no reading of some case, the first reason given; empty where it has."""
        refused = self.rows[(self.rows["method"] == method) & self.rows["latency_us"].isna()]["why"]
        return str(refused.iloc[0]) if len(refused) else ""


def of(results: Results) -> Panel:
    """The panel of a run.

    Raises:
        NotMeasured: it has none; the message says why.
    """
    if results.run.panel.empty:
        raise NotMeasured(f"No panel of clocks was recorded: {why_absent(results)}")
    panel = Panel(results.run.panel)
    if not panel.cases:
        raise NotMeasured(f"The panel of clocks timed nothing: {panel.why(DEVICE)}")
    return panel


def _is_near(gap_us: float, ours_us: float) -> bool:
    return abs(gap_us) <= (NEAR_US if ours_us < SHORT_US else NEAR_PCT / 100 * ours_us)


def _median(values: pd.Series) -> Interval:
    """A median with its order-statistic interval; with too few values, from the smallest to the largest."""
    samples = values.to_numpy()
    found = stats.quantile_ci(samples, 0.5)
    return found or Interval(float(np.median(samples)), float(samples.min()), float(samples.max()))


def bracketed(panel: Panel, case: tuple[str, Shape]) -> str:
    """Whether our clock is within CUPTI's bracket or near it: "in", "out", or "unsure" if the intervals allow both.

    The bracket reaches from the sum of the kernels' durations to the time from the first kernel to the last.
    """
    kernels, span = panel.reading(case, methods.CUPTI_GRAPH), panel.reading(case, methods.CUPTI_SPAN)
    if kernels is None or span is None:
        return ""
    beyond = max(kernels.gap.estimate, -span.gap.estimate)
    surely = max(kernels.gap.low, -span.gap.high)
    if beyond <= 0 or _is_near(beyond, kernels.ours_us):
        return "in"
    return "unsure" if surely <= 0 or _is_near(surely, kernels.ours_us) else "out"


def pieces_of(results: Results, implementation: str) -> int:
    """Number of kernels and memory operations in one call, by the run's own profiler; 0 where it isn't known."""
    rows = results.run.cases
    rows = rows[(rows["implementation"] == implementation) & (rows["status"] == MEASURED)]
    if rows.empty:
        return 0
    names = str(rows["kernels"].iloc[0]).split("\n")
    return sum(not re.match(r"cu(da)?[A-Z]|Activity Buffer|Instrumentation|Resource", name) for name in names)
