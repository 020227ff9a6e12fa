"""Verdicts on `attend` against transformers' SDPA: times to the first token, and of each later one."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from attnlab.infer import stats
from attnlab.infer.bootstrap import Interval, Side
from attnlab.infer.families import Sides, judge, smallest_effect
from attnlab.runs.models import Record
from attnlab.runs.schema import FIRST, PHASES, STEPS
from attnlab.study.implementations import control
from attnlab.study.models import BASELINE, CANDIDATE, Workload


@dataclass(frozen=True)
class Comparison:
    """`attend` against transformers' SDPA in one phase or step of a workload.

    Attributes:
        baseline: the median latency in µs, of the first token, of each later one, or of a step; `candidate` likewise.
        smallest_effect: what the baseline against itself leaves to be seen, a fraction.
    """

    workload: Workload
    phase: str
    baseline: Interval
    candidate: Interval
    verdict: stats.Verdict
    smallest_effect: float


def comparisons(record: Record) -> list[Comparison]:
    """Every workload in both phases and in the steps that were timed: one family of tests, with Holm's p-values."""
    tick_us = record.manifest.tick_us
    timed = [*PHASES, *(step for step, column in STEPS.items() if record.samples[column].notna().all())]
    places = [(workload, phase) for phase in timed for workload in record.workloads]
    sides = [_sides(record, *place) for place in places]
    smallest = [smallest_effect(Sides(sdpa, again, tick_us)) for sdpa, _, again in sides]
    verdicts, _ = judge([Sides(sdpa, ours, tick_us) for sdpa, ours, _ in sides], smallest)
    found = []
    for place, (sdpa, ours, _), verdict, effect in zip(places, sides, verdicts, smallest, strict=True):
        sdpa_us, ours_us = (stats.bootstrap_ci(side, tick=tick_us) for side in (sdpa, ours))
        found.append(Comparison(*place, sdpa_us, ours_us, verdict, effect))
    return found


def milliseconds(workload: Workload, us: Interval) -> Interval:
    return us.scaled(1e-3)


def tokens_per_second(workload: Workload, us: Interval) -> Interval:
    """The rate of a whole batch that takes this time for each token."""
    low, estimate, high = (workload.batch * 1e6 / end if end > 0 else np.inf for end in (us.high, us.estimate, us.low))
    return Interval(estimate, low, high)


def _sides(record: Record, workload: Workload, phase: str) -> tuple[Side, ...]:
    """The latencies in µs of the baseline, the candidate and the control, an array per replicate."""
    rows = record.at("samples", workload)
    taken = rows.assign(us=_us(rows, phase, record.manifest.plan.tokens)).sort_values(["replicate", "round"])
    own = (taken[taken["attention"] == name] for name in (BASELINE, CANDIDATE, control(BASELINE)))
    return tuple([each["us"].to_numpy() for _, each in one.groupby("replicate")] for one in own)


def _us(rows: pd.DataFrame, phase: str, tokens: int) -> "pd.Series[float]":
    if phase in STEPS:
        return rows[STEPS[phase]]
    return rows["first_us"] if phase == FIRST else rows["rest_us"] / (tokens - 1)
