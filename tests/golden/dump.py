"""Dump what the inference of 29 November 2026 (81cd18ee) says of four runs: cases, comparisons, controls.

Kept as the record of how these files came to be; it runs at that commit alone.
"""

import sys
from pathlib import Path

import pandas as pd

from attnlab.infer import results
from attnlab.study import implementations

HERE = Path(__file__).parent


def row(shape, timing, name, verdict, **more):
    """One comparison, flat."""
    interval = verdict.speedup
    return {
        "candidate": name,
        **shape.axes,
        **timing.model_dump(),
        "speedup": interval.estimate,
        "low": interval.low,
        "high": interval.high,
        "p_holm": verdict.pvalue,
        "delta": verdict.delta,
        "g": verdict.g,
        "decision": verdict.decision,
        "claimable": verdict.claimable,
        **more,
    }


for name in sys.argv[1:]:
    found = results.load(name)
    columns = [*results.CASE, *results.TIMING, "samples", "median_us", "low_us", "high_us", "p95_us", "lag1"]
    columns += ["flops", "bytes", "floor_us", "limit"]
    found.table[columns].to_parquet(HERE / f"{name}.cases.parquet", compression="zstd", index=False)
    rows = []
    for (shape, timing), family in found.families.items():
        for candidate, verdict in family.verdicts.items():
            more = {"p": family.unadjusted[candidate], "smallest_effect": family.smallest_effect}
            rows.append(row(shape, timing, candidate, verdict, **more))
        if family.control:
            control = implementations.control(found.study.baseline)
            more = {"p": family.control.pvalue, "smallest_effect": family.smallest_effect}
            rows.append(row(shape, timing, control, family.control, **more))
    table = pd.DataFrame(rows)
    table.to_parquet(HERE / f"{name}.comparisons.parquet", compression="zstd", index=False)
    print(name, len(found.table), len(table))
