"""Runs as small as they can be: a study of one implementation on a CPU, what its manifest says, and valid blocks."""

from typing import Any

import pandas as pd
import synthetic
from synthetic import Part

from attnlab.runs import schema
from attnlab.runs.tables import TABLES
from attnlab.study import studies
from attnlab.study.shapes import Shape

AXES = {"batch": 1, "heads": 4, "seq_len": 16, "head_dim": 64, "dtype": "float32"}
STATED: dict[str, Any] = {
    "name": "small",
    "title": "Small",
    "device": "cpu",
    "implementations": ["sdpa.auto"],
    "baseline": "sdpa.auto",
    "target": AXES,
    "timings": [{"clock": "eager", "cache": "warm"}],
    "samples": 2,
    "panel": False,
    "sweeps": {"seq_len": AXES},
}


def study(**changes: Any) -> studies.Study:
    """The study with these fields instead of its own."""
    return studies.parse(STATED | changes, "small.yaml")


def manifest(of: studies.Study | None = None, **changes: Any) -> dict[str, Any]:
    """The manifest of a run that begins."""
    recipe = synthetic.Recipe(device="Imaginary X1", study={"device": "cpu"})
    return synthetic.manifest(recipe, of or study()) | changes


def blocks(of: studies.Study, names: list[str] | None = None) -> list[Part]:
    """All blocks of a run in the order in which they are recorded: latencies are 1, 2, ... us in each block.

    Args:
        names: what was measured; default the implementations of the study, without the control.
    """
    found: list[Part] = []
    for replicate in range(of.replicates):
        process = f"p{replicate}"
        spent = {"process": process, "replicate": replicate, "setup_seconds": 0.25}
        found.append(("processes", f"{schema.replicate_key(replicate)}-{process}", TABLES["processes"].frame([spent])))
        for shape in of.shapes:
            key = schema.shape_key(of, shape, replicate)
            where = [_case(name, shape, replicate) for name in names or of.implementations]
            found += [
                ("samples", schema.block_key(of, shape, replicate, timing), _samples(of, timing, where))
                for timing in of.timings
            ]
            found += [("checks", key, _checks(where)), ("cases", key, _cases(where))]
    return found


def _case(name: str, shape: Shape, replicate: int) -> dict[str, Any]:
    return {"implementation": name, **shape.axes, "replicate": replicate, "process": f"p{replicate}"}


def _samples(of: studies.Study, timing: studies.Timing, where: list[dict[str, Any]]) -> pd.DataFrame:
    rows = [
        case | timing.model_dump() | {"round": number, "position": position, "started_s": 0.5, "launches": 1}
        for number in range(of.samples)
        for position, case in enumerate(where)
    ]
    numbered = [row | {"latency_us": float(number), "strain": 0.5} for number, row in enumerate(rows, 1)]
    return TABLES["samples"].frame(numbered)


def _checks(where: list[dict[str, Any]]) -> pd.DataFrame:
    errors = dict.fromkeys(("max_error", "mean_error", "framework_max_error", "framework_mean_error"), 1e-6)
    made = {"route": "call", "differing": 0, "passed": True} | errors
    return TABLES["checks"].frame(
        [
            case | {"moment": moment, "inputs": case["values"]} | made
            for moment in ("before", "after")
            for case in where
        ],
    )


def _cases(where: list[dict[str, Any]]) -> pd.DataFrame:
    fate = {"status": schema.MEASURED, "reason": "", "kernels": "attention", "peak_memory_bytes": 4096}
    fate |= {"warmup_calls": 20, "steady": True}
    return TABLES["cases"].frame([case | fate for case in where])
