"""The same calls under each timing: what clock and cache change, and what the launch adds."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from attnlab.infer.bootstrap import over_replicates
from attnlab.infer.lookup import NotMeasured, axis_of
from attnlab.infer.results import Results
from attnlab.infer.stats import Interval
from attnlab.runs.schema import is_of
from attnlab.study.implementations import FALLBACK, SDPA
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing

EAGER, DEVICE = Timing(clock="eager", cache="warm"), Timing(clock="device", cache="warm")
CUPTI = Timing(clock="cupti", cache="warm")
MOSTLY_HOST_PCT = 50
"""If the launch gap is above this share of the kernel's own time, events around calls mostly time the host."""


@dataclass(frozen=True)
class LaunchGap:
    """The baseline by `eager` minus `device` at a shape, with a warm cache, in us."""

    shape: Shape
    gap: Interval
    device_us: float

    @property
    def pct(self) -> float:
        """The gap in percent of what `device` reads."""
        return 100 * self.gap.estimate / self.device_us

    @property
    def is_mostly_host(self) -> bool:
        """Whether events around calls mostly time the host here."""
        return self.pct > MOSTLY_HOST_PCT


def launch_gaps(results: Results) -> list[LaunchGap]:
    """The launch gap at the first shape of the study, and at the target.

    Raises NotMeasured where the run lacks one of the clocks, or its baseline a latency.
    """
    if not {EAGER, DEVICE} <= set(results.timings):
        there = "; ".join(timing.words for timing in results.timings) or "none"
        raise NotMeasured(
            f"The launch gap, `eager` minus `device` with a warm cache, is not known; the run has {there}"
        )
    shapes = dict.fromkeys((results.study.shapes[0], results.study.target_shape))
    return [_launch_gap(results, shape) for shape in shapes]


def _launch_gap(results: Results, shape: Shape) -> LaunchGap:
    name = results.study.baseline
    results.require(name, shape, EAGER)
    eager, device = (results.samples(name, shape, timing) for timing in (EAGER, DEVICE))
    gap = over_replicates([float(np.median(one) - np.median(other)) for one, other in zip(eager, device, strict=True)])
    return LaunchGap(shape, gap, float(results.row(name, shape, DEVICE)["median_us"]))


@dataclass(frozen=True)
class Outside:
    """What a call at a shape takes between its operations on the device, by `device` minus `cupti`, in us.

    Attributes:
        baseline_us, candidate_us: of the baseline and of a candidate.
        lead_us: by how much less the candidate takes by `device`.
        beside: what the baseline's call has on the device beside its longest kernel, by the profiler's names.
        chosen: SDPA's backend that runs the same kernel, where PyTorch chooses one for the baseline.
    """

    baseline_us: float
    candidate_us: float
    lead_us: float
    beside: list[str]
    chosen: str | None

    @property
    def pct(self) -> float:
        """The share of the lead that lies between operations, in percent."""
        return 100 * (self.baseline_us - self.candidate_us) / self.lead_us


def outside(results: Results, candidate: str, shape: Shape) -> Outside | None:
    """What lies between operations at a shape; None where the run lacks a clock, or the candidate doesn't lead."""
    names, clocks = (results.study.baseline, candidate), (DEVICE, CUPTI)
    if not set(clocks) <= set(results.timings):
        return None
    at = {clock: results.at(shape, clock)["median_us"] for clock in clocks}
    if not all(name in at[clock].index for name in names for clock in clocks):
        return None
    baseline_us, candidate_us = (float(at[DEVICE][name] - at[CUPTI][name]) for name in names)
    lead_us = float(at[DEVICE][names[0]] - at[DEVICE][names[1]])
    if lead_us <= 0:
        return None
    cases = results.run.cases
    ran = cases[is_of(cases, shape)].drop_duplicates("implementation").set_index("implementation")["kernels"]
    longest, *beside = ran[names[0]].split("\n")
    backends = [name for name in SDPA if name in ran and name != names[0]] if names[0] == FALLBACK else []
    chosen = next((name for name in backends if ran[name].split("\n")[0] == longest), None)
    return Outside(baseline_us, candidate_us, lead_us, beside, chosen)


class Farthest(NamedTuple):
    """Where a timing changes a median most, as a `ratio` over the headline's median; `size` is on the sweep's axis."""

    timing: Timing
    implementation: str
    size: int
    ratio: float


def farthest(results: Results, sweep: str) -> list[Farthest]:
    """Along a sweep, the case that each other timing changes most, in either direction.

    Raises NotMeasured where no case was timed in two ways, or the study has no such sweep.
    """
    axis, shapes = axis_of(sweep), results.sweep(sweep)
    found = []
    for timing in results.timings:
        ratios = [
            Farthest(timing, str(name), getattr(shape, axis), ratio)
            for shape in shapes
            if timing != results.headline
            for name, ratio in (results.at(shape, timing)["median_us"] / results.at(shape)["median_us"])
            .dropna()
            .items()
        ]
        if ratios:
            found.append(max(ratios, key=lambda one: abs(np.log(one.ratio))))
    if not found:
        raise NotMeasured("No case was timed in two ways, so clocks and caches can't be compared")
    return found
