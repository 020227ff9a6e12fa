"""Synthetic runs: every latency, ceiling and error in them was chosen, so that the results are known.

The baseline takes 40 µs at the target, and n times the work takes n times as long. The samples of a case are evenly
spaced around its latency, `STEP` of it apart, in a mixed order: `ROUNDS` of them in a replicate.
"""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import ladders
import numpy as np
import pandas as pd
import pytest

from attnlab import frames
from attnlab.base import rules
from attnlab.runs import read, schema
from attnlab.runs import write as runs_write
from attnlab.runs.tables import TABLES, frame_of
from attnlab.study import implementations, studies
from attnlab.study.shapes import Shape

ROUNDS, REPLICATES, STEP, GAP_US = 40, 2, 1e-4, 5.0
TARGET, LONG, SHORT = Shape(2, 4, 128, 64), Shape(2, 4, 256, 64), Shape(2, 4, 32, 64)

AXES = {"batch": 2, "heads": 4, "head_dim": 64, "dtype": "float16"}
STUDY: dict[str, Any] = {
    "name": "synthetic",
    "title": "Chosen latencies",
    "device": "cuda",
    "implementations": ["sdpa.auto", "sdpa.flash", "sdpa.cudnn", "sdpa.efficient", "sdpa.math"],
    "baseline": "sdpa.auto",
    "target": AXES | {"seq_len": 128},
    "timings": [{"clock": "device", "cache": "warm"}, {"clock": "eager", "cache": "warm"}],
    "samples": ROUNDS,
    "replicates": REPLICATES,
    "sweeps": {
        "seq_len": [AXES | {"seq_len": [32, 64, 128, 256]}],
        "batch": [AXES | {"batch": [1, 2], "seq_len": 128}],
        "heads": [AXES | {"heads": [4, 8], "seq_len": 128}],
        "causal seq_len": [AXES | {"seq_len": [64, 128], "causal": True}],
    },
}
AT_TARGET: dict[str, Any] = {"timings": STUDY["timings"][:1], "sweeps": {"seq_len": [AXES | {"seq_len": 128}]}}
"""Fields of a study of the target alone, for tests that don't depend on the number of shapes."""
PACE = {"sdpa.auto": 1.0, "sdpa.flash": 0.8, "sdpa.cudnn": 1.005, "sdpa.efficient": 1.5, "sdpa.math": 4.0}
PACE |= {"kernel.naive": 10.0, "kernel.tiled": 4.0, "kernel.mma": 5.0, "kernel.best": 0.76, "peer.flex": 2.0} | {
    "dispatch.attend": 0.75
}
"""Latencies relative to the baseline."""
RUNGS = {"naive": "", "tiled": "naive", "mma": "tiled"}
"""The kernels of a ladder, each with its predecessor."""
CEILINGS = {"matmul.float16": (2.0, "TFLOP/s"), "copy": (100.0, "GB/s"), "l2": (400.0, "GB/s")} | {
    "exponentials": (100.0, "Gexp/s")
}
CARD = {"sm_clock_mhz": "Int32", "power_w": "Float64", "temperature_c": "Int32", "throttle_reasons": "Int64"} | {
    "throttled": "boolean"
}
"""Types of the telemetry that is read with a sample."""
GPU = {"compute_capability": "9.0", "multiprocessors": 132}
NO_GPU = {"cuda": "n/a", "cudnn": "n/a", "driver": "n/a"}
Fate = tuple[str, str]
Row = dict[str, Any]
MEASURED: Fate = ("measured", "")


@dataclass(frozen=True)
class Recipe:
    """The differences of a run from the default one."""

    device: str = "NVIDIA H200"
    study: dict[str, Any] | None = None
    ceilings: dict[str, tuple[float | None, str]] | None = None
    fates: dict[tuple[str, Shape], Fate] = field(default_factory=dict)
    """The status and reason of cases that were not measured."""
    latencies_us: dict[tuple[str, Shape], float] | None = None
    """Latencies of cases for which `latency_us` doesn't hold."""
    control_pace: float | None = None
    """The latency of the control, the baseline's second turn, over the baseline's; None for no control."""

    @cached_property
    def parsed(self) -> studies.Study:
        # As that of a recorded run: its kernels needn't be in the ladder.
        return studies.recorded({"name": "synthetic", "study": STUDY | (self.study or {})})

    @property
    def gpu(self) -> bool:
        return self.parsed.device != "cpu"


def latency_us(name: str, shape: Shape) -> float:
    """The median latency of a case by the device clock, in µs."""
    half = 2 if shape.causal else 1
    return 40 * PACE[name] * shape.batch * shape.heads * shape.seq_len**2 / (8 * 128**2) / half


GONE = ("failed", "before timing, call: error against float64: max 5.00e-03")
LONELY = Recipe(
    device="Imaginary X1",
    study={"device": "cpu", "implementations": ["sdpa.auto"], "sweeps": {"seq_len": STUDY["sweeps"]["seq_len"]}},
    ceilings={"matmul.float16": (2.0, "TFLOP/s"), "copy": (100.0, "GB/s")}
    | {"l2": (None, "GB/s"), "exponentials": (None, "Gexp/s")},
)


def infer(recipe: Recipe) -> schema.Run:
    """The run of a recipe as `frames.load` gives it, made once in this process and shared. Read-only."""
    if (key := repr(recipe)) not in _INFERRED:
        with tempfile.TemporaryDirectory() as data, pytest.MonkeyPatch.context() as patch:
            patch.setenv("ATTNLAB_DATA", data)
            write("synthetic", recipe)
            # Tests that load such a run themselves check its validity.
            read.JUDGED.add(read.read_manifest("synthetic")["seal"])
            _INFERRED[key] = frames.with_blocks(read.load("synthetic"))
    return _INFERRED[key]


_INFERRED: dict[Any, schema.Run] = {}


def write(name: str, recipe: Recipe = Recipe()) -> None:
    """Write the folder of a complete run, with each table as one part."""
    study, stated = recipe.parsed, manifest(recipe)
    profile = {"profile": stated.pop("profile")}
    runs_write.create(name, stated)
    found: dict[str, list[Any]] = {}
    subjects = study.implementations if recipe.control_pace is None else study.subjects
    timings = [timing for timing in study.timings if recipe.gpu or timing.clock == "eager"]
    fate = lambda name, shape, key: recipe.fates.get((name, shape), MEASURED)  # noqa: E731
    for table, _, rows in blocks(study, subjects, fate, partial(_samples, recipe), timings, _machine(recipe)):
        found.setdefault(table, []).extend(rows)
    for table, rows in found.items():
        frame = pd.concat(rows).astype(CARD) if table == "samples" else frame_of(TABLES[table], rows)
        runs_write.add_part(name, table, "all", frame)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs_write, "judge", lambda *_: None)  # tests that load the run judge it
        runs_write.finish(name, profile)


def blocks(
    study: studies.Study,
    subjects: list[str],
    fate: Callable[[str, Shape, str], Fate],
    samples: Callable[..., list[Any]],
    timings: list[studies.Timing],
    machine: Row,
) -> Iterator[tuple[str, str, list[Any]]]:
    """The table, the key and the rows of all blocks of a run, in the order of recording.

    Args:
        fate: the status and reason of a case in the block of a key.
        samples: samples of the timed cases at a shape under a timing, with the columns replicate and process.
        machine: columns of the processes.
    """
    for replicate in range(study.replicates):
        where = {"replicate": replicate, "process": f"p{replicate}"}
        process = f"{schema.replicate_key(replicate)}-p{replicate}"
        yield "processes", process, [where | {"setup_seconds": 0.25} | machine]
        for shape in study.shapes:
            key = schema.shape_key(study, shape, replicate)
            fates = {name: fate(name, shape, key) for name in subjects}
            timed = [name for name, (status, why) in fates.items() if status == "measured" or "after timing" in why]
            for timing in timings if timed else ():
                yield "samples", f"{key}-{timing.clock}-{timing.cache}", samples(timed, shape, timing, where)
            checked = [row for name in subjects for row in checks(name, shape, where, fates[name])]
            yield "checks", key, sorted(checked, key=lambda row: row["moment"] == "after")
            if kernels := [name for name in timed if name.removeprefix("kernel.") in RUNGS]:
                yield "resources", key, [_resources(name, shape, where) for name in kernels]
            yield "cases", key, [case(name, shape, where, fates[name]) for name in subjects]


def _machine(recipe: Recipe) -> dict[str, Any]:
    """The columns that describe the machine of every process."""
    card = {"card": "0a1b2c3d", "ecc": True, "power_limit_w": 700.0, "persistence": True, "mig": False}
    card = card if recipe.gpu else dict.fromkeys(card)
    return card | {"cpu": "Imaginary C1", "governor": "performance", "host": "4d5e6f"}


def manifest(recipe: Recipe = Recipe(), study: studies.Study | None = None) -> dict[str, Any]:
    """A manifest like that of the measuring half."""
    study = study or recipe.parsed
    gpu = recipe.gpu
    device = {"kind": "cuda" if gpu else "cpu", "name": recipe.device, "l2_bytes": 200_000, "memory_bytes": 2**37}
    device |= GPU if gpu else {"threads": 2}
    card = {"sm_clock_max_mhz": 1980, "power_limit_w": 700.0} if gpu else {"unavailable": "no NVIDIA GPU"}
    environment = {
        "settings": {"tf32_matmul": False, "seed": 42},
        "python": "3.13.1",
        "system": "Linux x86_64",
        "packages": {"torch": "2.11.0", "numpy": "2.3.0"},
        **({"cuda": "13.0", "cudnn": "91300", "driver": "580.65"} if gpu else NO_GPU),
        "card": card,
        "hash": "e" * 64,
    }
    return {
        "attnlab": "0.1.0",
        "commit": "c" * 40,
        "command": "make measure STUDY=synthetic",
        "device": device,
        "environment": environment,
        "ceilings": {
            name: {"unit": unit, "samples": [rate] * 3 if rate else []}
            | {"how": "chosen" if rate else "not measured: why", "sm_clock_mhz": 1980 if gpu and rate else None}
            for name, (rate, unit) in (recipe.ceilings or CEILINGS).items()
        },
        "clocks": {"tick_us": 0.032, "nothing_us": 1.5},
        "surveyed": {name: _machine(recipe)[name] or "" for name in ("card", "host", "cpu", "governor")},
        "telemetry": "NVML" if gpu else "the device is no NVIDIA GPU",
        "study": study.model_dump(mode="json"),
        "missing_clocks": [] if gpu else [str(t) for t in study.timings if t.clock == "device"],
        "rules": rules.recorded(),
        "sources": {"measuring/clocks/cuda_events.py": "5" * 64},
        "ladder": [_rung(name) for name in RUNGS if f"kernel.{name}" in study.implementations],
        "dispatch": {},
        "captured": {},
        "kernels": {name: "7" * 64 for name in study.implementations if name.startswith("kernel.")},
        "profile": {"tool": "", "why": "nothing was profiled", "command": ""},
    }


def _rung(name: str) -> dict[str, Any]:
    number = list(RUNGS).index(name) + 1
    stated = {"name": name, "title": f"step {number}", "source": f"{number}_{name}.cu", "function": name}
    stated |= {"after": RUNGS[name], "hypothesis": f"Chosen, so that {name} takes as long as it does."}
    return ladders.rung(**stated, expected_speedup=2.0, dtypes=["float16"], architectures=["sm_90"])


def _resources(name: str, shape: Shape, where: Row) -> Row:
    needs = {"registers": 40, "local_bytes": 0, "static_shared_bytes": 1024, "dynamic_shared_bytes": 0}
    launched = {"function": name, "architecture": "sm_90", "threads": 128, "ctas": 16, "ctas_per_sm": 4}
    return {"implementation": name, **shape.axes, **where} | needs | launched


def _samples(recipe: Recipe, names: list[str], shape: Shape, timing: studies.Timing, where: Row) -> list[pd.DataFrame]:
    gpu, rounds = recipe.gpu, np.repeat(np.arange(ROUNDS), len(names))
    gap_us = GAP_US * (gpu and timing.clock == "eager")
    columns = {**shape.axes, **timing.model_dump(), **where, "round": rounds} | {
        "implementation": names * ROUNDS,
        "position": [recipe.parsed.subjects.index(name) for name in names] * ROUNDS,
        "latency_us": np.stack([_latencies_us(name, shape, gap_us, recipe) for name in names], axis=1).ravel(),
        "started_s": rounds / 100,
        "launches": 10 if timing.clock == "device" else 1,
        "strain": 0.5,
        "sm_clock_mhz": 1980 - rounds if gpu else None,
        "power_w": 500.0 if gpu else None,
        "temperature_c": 50 if gpu else None,
        "throttle_reasons": np.where(rounds == 3, 4, 0) if gpu else None,
        "throttled": (rounds == 3) if gpu else None,
    }
    return [pd.DataFrame(columns)]


def _latencies_us(name: str, shape: Shape, gap_us: float, recipe: Recipe) -> np.ndarray:
    """The samples of one replicate, in the order of the rounds."""
    mixed = 1 + STEP * (np.arange(ROUNDS) * 7 % ROUNDS - (ROUNDS - 1) / 2)
    if (name, shape) in (recipe.latencies_us or {}):
        return recipe.latencies_us[name, shape] * mixed + gap_us
    if not implementations.is_control(name):
        return latency_us(name, shape) * mixed + gap_us
    us = latency_us(implementations.under_control(name), shape) * mixed + gap_us
    # In another order than the baseline's; else all pairs of samples would have the same ratio.
    return (recipe.control_pace or 1) * np.roll(us, 11)


def checks(name: str, shape: Shape, where: Row, fate: Fate) -> list[Row]:
    both = ["before", "after"]
    moments = [] if fate[0] == "skipped" else both if fate[0] == "measured" or "after" in fate[1] else ["before"]
    failing = moments[-1] if fate[0] == "failed" else None
    return [
        {"implementation": name, **shape.axes, **where, "moment": moment, "inputs": shape.values, "route": "call"}
        | {"max_error": 5e-3 if moment == failing else 1e-3, "mean_error": 1e-4}
        | {"framework_max_error": 1e-3, "framework_mean_error": 1e-4, "differing": 0, "passed": moment != failing}
        | {"allowed_max_error": 2e-3, "allowed_mean_error": 2e-4}
        | {"drawn_rms_error": 2e-4, "drawn_max_error": 1e-3}
        for moment in moments
    ]


def case(name: str, shape: Shape, where: Row, fate: Fate) -> Row:
    measured = fate[0] == "measured"
    row = {"implementation": name, **shape.axes, **where, "status": fate[0], "reason": fate[1]}
    row |= {"kernels": f"void {name.split('.')[1]}_kernel<128>(float*)\nsecond" if measured else ""}
    row |= {"peak_memory_bytes": shape.bytes if measured else 0}
    return row | {"warmup_calls": 20 if measured else 0, "steady": measured, "alone_differing": None}
