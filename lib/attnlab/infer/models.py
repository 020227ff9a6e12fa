"""How models generate with `attend` and with transformers' SDPA: verdicts, outputs, and the share of attention."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from attnlab.infer import stats
from attnlab.infer.bootstrap import Interval
from attnlab.runs.models import FIRST, PHASES, WORKLOAD, Record
from attnlab.study.implementations import control
from attnlab.study.models import BASELINE, CANDIDATE, Workload

Samples = list[np.ndarray]


@dataclass(frozen=True)
class Comparison:
    """`attend` against transformers' SDPA in one phase of a workload.

    Attributes:
        baseline: the median latency in µs, of the first token or of each later one; `candidate` likewise.
        smallest_effect: what the baseline against itself leaves to be seen, a fraction.
    """

    workload: Workload
    phase: str
    baseline: Interval
    candidate: Interval
    verdict: stats.Verdict
    smallest_effect: float


@dataclass(frozen=True)
class Agreement:
    """The outputs of an attention in one workload, over all replicates.

    Attributes:
        max_error: of the logits against the reference; `mean_error` likewise.
        agreeing: tokens that are those of the baseline, of `tokens`.
    """

    workload: Workload
    attention: str
    max_error: float
    mean_error: float
    agreeing: int
    tokens: int


def workloads(record: Record) -> list[Workload]:
    """Every workload of a record."""
    plan = record.manifest.plan
    return [workload for model in plan.models for workload in plan.workloads(model)]


def comparisons(record: Record) -> list[Comparison]:
    """Every workload in both phases: one family of tests, with Holm's p-values."""
    tick_us = record.manifest.tick_us
    places = [(workload, phase) for phase in PHASES for workload in workloads(record)]
    sides = [_sides(record, *place) for place in places]
    alone = [stats.difference_pvalue(baseline, candidate, paired=True) for baseline, candidate, _ in sides]
    found = []
    for place, (baseline, candidate, again), pvalue in zip(places, sides, stats.holm(alone), strict=True):
        smallest = stats.smallest_effect(baseline, again, tick=tick_us, paired=True)
        verdict = stats.verdict(
            baseline, candidate, tick=tick_us, paired=True, pvalue=float(pvalue), smallest_effect=smallest
        )
        sdpa, ours = (stats.bootstrap_ci(side, tick=tick_us) for side in (baseline, candidate))
        found.append(Comparison(*place, sdpa, ours, verdict, smallest))
    return found


def _sides(record: Record, workload: Workload, phase: str) -> tuple[Samples, ...]:
    """The latencies in µs of the baseline, the candidate and the control, an array per replicate."""
    rows = _of(record.samples, workload)
    us = rows["first_us"] if phase == FIRST else rows["rest_us"] / (record.manifest.plan.tokens - 1)
    taken = rows.assign(us=us).sort_values(["replicate", "round"])
    own = (taken[taken["attention"] == name] for name in (BASELINE, CANDIDATE, control(BASELINE)))
    return tuple([each["us"].to_numpy() for _, each in one.groupby("replicate")] for one in own)


def agreements(record: Record) -> list[Agreement]:
    """The outputs of each attention in each workload."""
    found = []
    for workload in workloads(record):
        outputs, samples = _of(record.outputs, workload), _of(record.samples, workload)
        for attention, errors in outputs.groupby("attention", sort=False):
            generations = samples[samples["attention"] == attention]
            tokens = len(generations) * workload.batch * record.manifest.plan.tokens
            worst, mean = errors["max_error"].max(), errors["mean_error"].mean()
            agreeing = int(generations["agreeing"].sum())
            found.append(Agreement(workload, str(attention), float(worst), float(mean), agreeing, tokens))
    return found


def shares_pct(record: Record, workload: Workload, phase: str) -> dict[str, float]:
    """By attention, the median over replicates of its share of the device's time; empty where it wasn't taken."""
    rows = _of(record.kernels, workload)
    rows = rows[rows["phase"] == phase]
    shares = 100 * rows["attention_us"].astype(float) / rows["total_us"].astype(float)
    return {str(name): float(value) for name, value in shares.groupby(rows["attention"], sort=False).median().items()}


def _of(rows: pd.DataFrame, workload: Workload) -> pd.DataFrame:
    named = dict(zip(WORKLOAD, (workload.model.name, workload.batch, workload.prompt), strict=True))
    return rows[np.logical_and.reduce([rows[axis] == value for axis, value in named.items()])]
