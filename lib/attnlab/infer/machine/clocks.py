"""The same calls under each timing: what clock and cache change, and what the launch adds."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from attnlab.infer.bootstrap import over_replicates
from attnlab.infer.lookup import NotMeasured, axis_of
from attnlab.infer.results import Results
from attnlab.infer.stats import Interval
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing

EAGER, DEVICE = Timing(clock="eager", cache="warm"), Timing(clock="device", cache="warm")
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
    results.row(name, shape, EAGER)
    eager, device = (results.samples(name, shape, timing) for timing in (EAGER, DEVICE))
    gap = over_replicates([float(np.median(one) - np.median(other)) for one, other in zip(eager, device, strict=True)])
    return LaunchGap(shape, gap, float(results.row(name, shape, DEVICE)["median_us"]))


def ratios(results: Results, sweep: str) -> pd.DataFrame:
    """Medians along a sweep under each other timing over the headline's.

    A row for each timing, size and implementation that has both: `timing`, `implementation`, `size`, `ratio`. Raises
    NotMeasured where there is none, or the study has no such sweep.
    """
    axis, shapes = axis_of(sweep), results.sweep(sweep)
    others = [timing for timing in results.timings if timing != results.headline]
    rows = [
        (timing, str(name), getattr(shape, axis), ratio)
        for timing in others
        for shape in shapes
        for name, ratio in (results.at(shape, timing)["median_us"] / results.at(shape)["median_us"]).dropna().items()
    ]
    if not rows:
        raise NotMeasured("No case was timed in two ways, so clocks and caches can't be compared")
    return pd.DataFrame(rows, columns=["timing", "implementation", "size", "ratio"])
