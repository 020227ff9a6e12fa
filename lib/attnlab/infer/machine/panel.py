"""The panel of clocks: the same calls timed by every available clock, against ours with the same cache.

Warm methods are compared with ``device``, cold ones with ``device.cold``. Methods that took turns in one process are
compared round by round; Nsight Compute and NVBench ran in processes of their own and are compared with the median of
ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
import pandas as pd

from attnlab.base.texts import escaped
from attnlab.infer import stats
from attnlab.infer.cases import CASE
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.regimes import why_absent
from attnlab.infer.results import Results
from attnlab.infer.stats import Interval
from attnlab.runs import methods
from attnlab.runs.methods import DEVICE
from attnlab.study.shapes import Shape

Case: TypeAlias = tuple[str, Shape]
Within: TypeAlias = Literal["in", "near", "out", "unsure"]
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
    def _samples(self) -> dict[Case, dict[str, pd.Series]]:
        taken = self.rows.dropna(subset=["latency_us"]).set_index("round").astype({"latency_us": float})
        found: dict[Case, dict[str, pd.Series]] = {}
        for (name, *axes, method), latency_us in taken.groupby([*CASE, "method"], sort=False)["latency_us"]:
            found.setdefault((name, Shape(*axes)), {})[method] = latency_us
        return found

    @cached_property
    def cases(self) -> list[Case]:
        """The cases that our warm clock timed, short to long."""
        ours = {case: taken[DEVICE].median() for case, taken in self._samples.items() if DEVICE in taken}
        return sorted(ours, key=lambda case: ours[case])

    def reading(self, case: Case, method: str) -> Reading | None:
        """A method's result for a case, against our clock; None where either has no samples."""
        taken, ours = self._samples.get(case, {}), methods.reference(method)
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

    Raises NotMeasured where it has none; the message says why.
    """
    if results.run.panel.empty:
        raise NotMeasured(f"No panel of clocks was recorded: {why_absent(results)}")
    panel = Panel(results.run.panel)
    if not panel.cases:
        raise NotMeasured(f"The panel of clocks timed nothing: {escaped(panel.why(DEVICE))}")
    return panel


def _is_near(gap_us: float, ours_us: float) -> bool:
    return abs(gap_us) <= (NEAR_US if ours_us < SHORT_US else NEAR_PCT / 100 * ours_us)


def _median(values: pd.Series) -> Interval:
    """A median with its order-statistic interval; with too few values, from the smallest to the largest."""
    samples = values.to_numpy()
    found = stats.quantile_ci(samples, 0.5)
    return found or Interval(float(np.median(samples)), float(samples.min()), float(samples.max()))


def spread(values: Sequence[float]) -> Interval | None:
    """The median of differences, from the smallest to the largest; None of none."""
    return Interval(float(np.median(values)), min(values), max(values)) if values else None


def brackets(panel: Panel) -> dict[Within, list[Case]]:
    """The cases that CUPTI brackets, by whether our clock is in the bracket or near it; empty where it timed none.

    The bracket reaches from how long the kernels ran to the time from the first kernel to the last. It is
    "unsure" where the intervals allow both.
    """
    found: dict[Within, list[Case]] = {}
    for case in panel.cases:
        kernels, span = panel.reading(case, methods.CUPTI_GRAPH), panel.reading(case, methods.CUPTI_SPAN)
        if kernels and span:
            beyond = max(kernels.gap.estimate, -span.gap.estimate), max(kernels.gap.low, -span.gap.high)
            is_near, may_be_near = (us <= 0 or _is_near(us, kernels.ours_us) for us in beyond)
            within: Within = "near" if is_near else "unsure" if may_be_near else "out"
            found.setdefault("in" if beyond[0] <= 0 else within, []).append(case)
    return found
