"""Verdicts on one run against another: which cases are faster or slower by more than the noise between runs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from attnlab.base.rules import ALPHA, EQUIVALENCE_MARGIN
from attnlab.infer import parallel, stats
from attnlab.infer.bootstrap import student
from attnlab.infer.compare import repeat
from attnlab.infer.compare.repeat import Change
from attnlab.infer.families import Place, smallest_effect
from attnlab.infer.lookup import NotMeasured, median_of
from attnlab.infer.results import Results
from attnlab.infer.stats import Interval, Verdict
from attnlab.study.implementations import DISPATCH

ALIKE = {"driver", "cuda", "cudnn", "card", "packages", "settings"}
"""Fields of the environment. Where two runs agree on all of them, only kernels whose source was edited have changed."""
MAD = 1.4826
"""The standard deviation of normal values around 0 over the median of their distances from it."""


@dataclass(frozen=True)
class Compared:
    """A case in two runs under one timing, judged.

    Attributes:
        there, here: its medians in us, in the run before and in the run that is judged.
        noise: how far apart runs lie here by themselves, a fraction; nothing closer is called faster or slower.
        verdict: on the case here against the case there.
        edited: whether it is a kernel that the two ran from different sources.
    """

    change: Change
    there: Interval
    here: Interval
    noise: float
    verdict: Verdict
    edited: bool


def compare(here: Results, there: Results) -> list[Compared]:
    """Judge every case that has a latency in both runs under the same timing.

    The verdict is that of `stats.verdict` with the p-value of `repeat.changes`; the smallest effect that it may call
    faster or slower is the `noise` between the runs, and at least EQUIVALENCE_MARGIN.

    Raises:
        NotMeasured: the two share no case.
    """
    changes = repeat.changes(here, there)
    if not changes:
        raise NotMeasured(f"`{there.run.name}` and `{here.run.name}` share no case under the same timing")
    noises, edited = noise(here, there, changes), repeat.other_sources(here, there)
    jobs = [_job(here, there, change, least) for change, least in zip(changes, noises, strict=True)]
    found = []
    for change, least, verdict in zip(changes, noises, parallel.each(_verdict, jobs), strict=True):
        before, after = (median_of(run.row(*change.place)) for run in (there, here))
        found.append(Compared(change, before, after, least, verdict, change.implementation in edited))
    return found


def unchanged(here: Results, there: Results) -> set[str]:
    """The implementations that are the same in both runs, so that what lies between their latencies is noise.

    Those are SDPA's backends, the peers and the kernels of the same source; none where the device, its driver or the
    packages differ.
    """
    same_device = here.run.manifest["device"]["name"] == there.run.manifest["device"]["name"]
    if not same_device or not set(repeat.differences(here, there).same) >= ALIKE:
        return set()
    both = set(here.study.implementations) & set(there.study.implementations)
    return both - repeat.other_sources(here, there) - {DISPATCH}


def noise(here: Results, there: Results, changes: Sequence[Change]) -> list[float]:
    """How far apart the two runs lie at each of these cases by themselves, a fraction. It is the largest of:

    - the smallest effect that the A/A control of either run could have shown at this shape and timing;
    - the distance that the `unchanged` implementations other than this one stay within at this shape and timing, by the
      median of their distances as a standard deviation and Student's t; and
    - the same over all shapes under this timing.
    """
    same = unchanged(here, there)
    controls = _smallest_effects(changes, here, there)
    rows = [
        (str(change.timing), str(change.shape), change.implementation, _distance(change, here, there))
        for change in changes
    ]
    cases = pd.DataFrame(rows, columns=["timing", "shape", "name", "distance"])
    found = []
    for change, (timing, shape, name, _) in zip(changes, rows, strict=True):
        beside = cases[(cases["timing"] == timing) & cases["name"].isin(same - {name})]
        of_shape = beside[beside["shape"] == shape]
        reaches = [math.expm1(_reach(some["distance"].to_numpy())) for some in (of_shape, beside)]
        found.append(max(*reaches, controls[change.shape, change.timing]))
    return found


def _distance(change: Change, here: Results, there: Results) -> float:
    """How far apart the logarithms of a case's medians are."""
    return abs(math.log(here.row(*change.place)["median_us"] / there.row(*change.place)["median_us"]))


def _smallest_effects(changes: Sequence[Change], *runs: Results) -> dict[Place, float]:
    """At each place the larger of what the controls of both runs leave to be seen; 0 without a control."""
    found = dict.fromkeys([(change.shape, change.timing) for change in changes], 0.0)
    controlled = [(place, run.control_sides(*place)) for run in runs for place in found if run.is_controlled(*place)]
    smallest = parallel.each(smallest_effect, [(sides,) for _, sides in controlled])
    for (place, _), effect in zip(controlled, smallest, strict=True):
        found[place] = max(found[place], effect)
    return found


def _reach(distances: np.ndarray) -> float:
    """Within which distance another one is expected with probability 1 - ALPHA; 0 where there are none."""
    return student(distances.size, 1 - ALPHA / 2) * MAD * float(np.median(distances)) if distances.size else 0.0


def _job(here: Results, there: Results, change: Change, least: float) -> tuple[Any, ...]:
    place = change.place
    tick_us = max(run.tick_us(*place) for run in (here, there))
    return there.samples(*place), here.samples(*place), tick_us, change.pvalue, max(least, EQUIVALENCE_MARGIN)


def _verdict(
    there: list[np.ndarray], here: list[np.ndarray], tick_us: float, pvalue: float, smallest_effect: float
) -> Verdict:
    return stats.verdict(there, here, tick=tick_us, pvalue=pvalue, smallest_effect=smallest_effect)
