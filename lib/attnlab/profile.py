"""The profiler's counters and the readings of other clocks, a row for each implementation and shape."""

from typing import Any

import numpy as np
import pandas as pd

from attnlab import cache, stats
from attnlab.runs import methods, metrics, schema

KEY = list(schema.CASE)
UNITS = {
    "tensor_cores_pct": metrics.TENSOR_CORES_USED,
    "exponentials_pct": metrics.XU_USED,
    "fma_pct": metrics.FMA_USED,
    "alu_pct": metrics.ALU_USED,
    "load_store_pct": metrics.LSU_USED,
    "issue_slots_pct": metrics.ISSUE_SLOTS_USED,
    "l1_pct": metrics.L1_USED,
    "l2_pct": metrics.L2_USED,
    "dram_pct": metrics.DRAM_USED,
}
"""The counter of each unit's use over a kernel's whole time, in percent of its peak rate."""
COUNTED = [
    *("launches", "cycles", "duration_us", *UNITS, *(f"wait_{reason}_pct" for reason in metrics.WAITS)),
    *("issued_pct", "idle_pct", "bank_conflicts_pct"),
]
SHORT_US, NEAR_US, NEAR_PCT = 20, 0.5, 1.0
"""2 clocks agree if they differ by at most NEAR_US below SHORT_US, and by at most NEAR_PCT above."""


def counters(run: schema.Run) -> pd.DataFrame:
    """Nsight Compute's counters of one call: implementation, the axes, launches, cycles, and shares in percent.

    `<unit>_pct` is the use of a unit in percent of its peak, weighted by the launches' cycles. `issued_pct`,
    `wait_<reason>_pct` and `idle_pct` are shares of the schedulers' cycles. In these an instruction was issued,
    every warp waited for this reason, or the multiprocessor had no work. `bank_conflicts_pct` is the share of accesses
    to shared memory that repeat. The frame is empty if the run was not profiled; `run.manifest["profile"]` says why.
    """
    return cache.kept(run.name, "counters", run.profile, make=lambda: _counters(run.profile))


def _counters(profile: pd.DataFrame) -> pd.DataFrame:
    launches = profile.pivot_table(index=[*KEY, "launch"], columns="metric", values="value", sort=False)
    wide = launches.reindex(columns=list(metrics.COUNTERS)).reset_index().groupby(KEY, sort=False, dropna=False)
    return pd.DataFrame(
        [dict(zip(KEY, key, strict=True)) | _counted(group) for key, group in wide], columns=[*KEY, *COUNTED]
    )


def _counted(launches: pd.DataFrame) -> dict[str, Any]:
    cycles = launches[metrics.CYCLES]
    row = {"launches": len(launches), "cycles": cycles.sum(), "duration_us": launches[metrics.DURATION].sum() / 1e3}
    row |= {name: _weighted(launches[metric], cycles) for name, metric in UNITS.items()}
    products = _weighted(launches[metrics.MATRIX_PRODUCTS_USED], cycles)
    if not np.isnan(products):  # without HFMA2.MMA, by which compilers load constants
        row["tensor_cores_pct"] = products
    row |= {name: 100 * spent / cycles.sum() for name, spent in _cycles(launches).sum().items()}
    accesses, repeats = (launches[m].sum(min_count=1) for m in (metrics.SHARED_ACCESSES, metrics.SHARED_CONFLICTS))
    return row | {"bank_conflicts_pct": 100 * repeats / accesses if accesses > 0 else np.nan}


def _weighted(values: pd.Series, weights: pd.Series) -> float:
    known = values.notna()
    return float(np.average(values[known], weights=weights[known])) if known.any() else np.nan


def _cycles(launches: pd.DataFrame) -> pd.DataFrame:
    """The schedulers' cycles of each launch, by their use."""
    elapsed, active = launches[metrics.CYCLES], launches[metrics.CYCLES_ACTIVE]
    issued = active * launches[metrics.ISSUED] / 100
    stalls = launches[[metrics.stalled(reason) for reason in metrics.WAITS]].clip(lower=0)
    waits = stalls.div(stalls.sum(axis=1), axis=0).mul(active - issued, axis=0)
    waits.columns = [f"wait_{reason}_pct" for reason in metrics.WAITS]
    return waits.assign(issued_pct=issued, idle_pct=(elapsed - active).clip(lower=0))


def clocks(run: schema.Run) -> pd.DataFrame:
    """The latency of the same calls by each clock method, next to our clock: implementation, the axes, method.

    Columns: median_us with low_us to high_us (order statistics); ours_us, the median of the device clock with the same
    cache; gap_us, the method minus ours, with gap_low_us to gap_high_us; gap_pct; near, whether they agree within 0.5
    µs below 20 µs and within 1 % above; why, the reason if the method read nothing. Methods that took turns with our
    clock in one process are compared round by round. The frame is empty if the run has no panel.
    """
    return cache.kept(run.name, "clocks", run.panel, make=lambda: _clocks(run.panel))


def _clocks(panel: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for key, case in panel.groupby(KEY, sort=False, dropna=False):
        by = {str(name): part.set_index("round") for name, part in case.groupby("method", sort=False)}
        for method, part in by.items():
            reading = _reading(part, by.get(methods.reference(method)))
            rows.append(dict(zip(KEY, key, strict=True)) | {"method": method} | reading)
    return pd.DataFrame(rows, columns=[*KEY, "method", *_NOTHING])


_NOTHING = dict.fromkeys(
    ["median_us", "low_us", "high_us", "ours_us", "gap_us", "gap_low_us", "gap_high_us", "gap_pct"], np.nan
) | {"near": False, "why": ""}


def _reading(part: pd.DataFrame, reference: pd.DataFrame | None) -> dict[str, Any]:
    theirs = part["latency_us"].dropna().astype(float)
    if theirs.empty:
        return _NOTHING | {"why": part["why"].iloc[0]}
    median = _middle(theirs)
    row = _NOTHING | {"median_us": median.estimate, "low_us": median.low, "high_us": median.high}
    ours = reference["latency_us"].dropna().astype(float) if reference is not None else theirs.head(0)
    if ours.empty:
        return row | {"why": "our clock has no reading"}
    usual = ours.median()
    gap = _middle(theirs - (ours if set(theirs.index) == set(ours.index) else usual))
    near = abs(gap.estimate) <= (NEAR_US if usual < SHORT_US else NEAR_PCT / 100 * usual)
    row |= {"ours_us": usual, "gap_us": gap.estimate, "gap_low_us": gap.low, "gap_high_us": gap.high}
    return row | {"gap_pct": 100 * gap.estimate / usual, "near": bool(near)}


def _middle(values: pd.Series) -> stats.Interval:
    """A median with its order-statistic interval; with too few values, from the smallest to the largest."""
    samples = values.to_numpy()
    found = stats.quantile_ci(samples, 0.5)
    return found or stats.Interval(float(np.median(samples)), float(samples.min()), float(samples.max()))
