"""Runs that were never measured: every latency, ceiling and error in them was chosen, so that results are known.

The target takes the baseline 40 µs, and n times the work takes n times as long. The samples of a case lie evenly around
its latency, `STEP` of it apart, in an order that mixes them: `ROUNDS` of them in a replicate.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from attnlab.base import rules
from attnlab.infer import cases, results
from attnlab.runs import read
from attnlab.runs import write as runs_write
from attnlab.study import implementations, studies
from attnlab.study.shapes import Shape

ROUNDS = 40
REPLICATES = 2
STEP = 1e-4
LAUNCHES = 10
TICK_US = 0.032
GAP_US = 5.0
UNIFORM = (ROUNDS**2 - 1) / 12  # variance of 0, 1, ... ROUNDS - 1

TARGET = Shape(2, 4, 128, 64)
CONSTANT = Shape(2, 4, 64, 64, causal=True)
ONE_BATCH = Shape(1, 4, 128, 64)
EIGHT_HEADS = Shape(2, 8, 128, 64)
LONG = Shape(2, 4, 256, 64)
SHORT = Shape(2, 4, 32, 64)

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
"""Fields of a study of the target alone, for what does not depend on how many shapes there are."""
# Relative to the baseline.
PACE = {"sdpa.auto": 1.0, "sdpa.flash": 0.8, "sdpa.cudnn": 1.005, "sdpa.efficient": 1.5, "sdpa.math": 4.0}
FATES = {
    ("sdpa.math", LONG): ("out of memory", "tried to allocate 2.00 GiB"),
    ("sdpa.cudnn", SHORT): ("skipped", "cuDNN takes no sequence this short"),
    ("sdpa.math", CONSTANT): ("failed", "before timing, call: error against float64: max 5.00e-03"),
    ("sdpa.math", EIGHT_HEADS): ("failed after timing", "after timing, graph: error against float64: max 5.00e-03"),
}
# What the rungs of `LADDER` are to gain over the one before, and what each needs: registers, bytes of shared memory,
# and CTAs that fit a multiprocessor.
RUNGS: dict[str, dict[str, Any]] = {
    "naive": {"after": "", "expected_speedup": 1.0, "needs": (40, 0, 16)},
    "tiled": {"after": "naive", "expected_speedup": 2.5, "needs": (96, 16384, 5)},
    "mma": {"after": "tiled", "expected_speedup": 3.0, "needs": (128, 32768, 4)},
    "swizzled": {"after": "mma", "expected_speedup": 5.0, "needs": (168, 49152, 3)},
    "pipelined": {"after": "swizzled", "expected_speedup": 1.2, "needs": (168, 65536, 3)},
    "wgmma": {"after": "pipelined", "expected_speedup": 1.3, "needs": (168, 131072, 1)},
}
PACE |= {"kernel.naive": 10.0, "kernel.tiled": 4.0, "kernel.mma": 5.0, "kernel.swizzled": 1.25} | {
    "kernel.pipelined": 1.0, "kernel.wgmma": 0.9
}  # fmt: skip
PACE |= {"peer.flex": 2.0, "peer.flash4": 0.95, "dispatch.attend": 1.0, "kernel.best": 0.76}
ROWS = 64
"""Query rows of a rung's work item."""
PERSISTENT = "wgmma"
L4_SHAPES = [Shape(b, h, s, 64, causal=True) for b, h, s in ((1, 1, 128), (4, 8, 128), (8, 8, 128), (8, 8, 256))] + [
    Shape(16, 8, 512, 64, causal=True)
]
CEILINGS = {"matmul.float16": (2.0, "TFLOP/s"), "copy": (100.0, "GB/s"), "l2": (400.0, "GB/s")} | {
    "exponentials": (100.0, "Gexp/s")
}
L2_BYTES = 200_000
CARD = {"sm_clock_mhz": "Int32", "power_w": "Float64", "temperature_c": "Int32", "throttle_reasons": "Int64"} | {
    "throttled": "boolean"
}
"""Types of what is read from the card beside a sample."""
GPU = {"compute_capability": "9.0", "multiprocessors": 132, "threads_per_multiprocessor": 2048} | {
    "registers_per_multiprocessor": 65536,
    "shared_bytes_per_multiprocessor": 233472,
}

Fate = tuple[str, str]
Fates = dict[tuple[str, Shape], Fate]
Part = tuple[str, str, pd.DataFrame]
"""The table of a block of rows, its key and the rows."""


@dataclass(frozen=True)
class Recipe:
    """What sets a run apart from the ordinary one."""

    device: str = "NVIDIA H200"
    study: dict[str, Any] | None = None
    ceilings: dict[str, tuple[float | None, str]] | None = None
    fates: Fates | None = None
    shapes: int | None = None
    """Only so many shapes of the first replicate were recorded: the run is not complete."""
    counters: dict[str, list[dict[str, Any]]] | None = None
    """Of each implementation that was profiled at the target: its launches, a ``function`` and its metrics each."""
    latencies_us: dict[tuple[str, Shape], float] | None = None
    """Latencies of cases that differ from `latency_us`."""
    cards: tuple[tuple[str, float], ...] = ()
    """The card of each replicate, and how many times as long everything takes in it."""
    control_pace: float | None = None
    """The baseline was measured against itself, and took so many times as long the second time."""

    @property
    def stated(self) -> dict[str, Any]:
        return STUDY | (self.study or {})

    @cached_property
    def parsed(self) -> studies.Study:
        # As that of a run: its kernels needn't be in the ladder.
        return studies.recorded({"name": "synthetic", "study": self.stated})

    @property
    def kind(self) -> str:
        return "cpu" if self.stated["device"] == "cpu" else "cuda"


def latency_us(name: str, shape: Shape) -> float:
    """The latency in the middle of the samples of a case on the device's clock."""
    if (name, shape) == ("sdpa.flash", SHORT):
        return 1.2  # faster than the copy ceiling allows
    if (name, shape) == ("sdpa.efficient", ONE_BATCH):
        return 20.6  # 3 % more than the baseline, in noise of ±39 %
    half = 2 if shape.causal else 1
    return 40 * PACE[name] * shape.batch * shape.heads * shape.seq_len**2 / (8 * 128**2) / half


def latencies_us(name: str, shape: Shape, clock: str) -> np.ndarray:
    """The samples of one replicate in the order of the rounds."""
    mixed = np.arange(ROUNDS) * 7 % ROUNDS - (ROUNDS - 1) / 2
    noise = {("sdpa.auto", CONSTANT): 0.0, ("sdpa.efficient", ONE_BATCH): 0.02}.get((name, shape), STEP)
    return latency_us(name, shape) + GAP_US * (clock == "eager") + noise * latency_us(name, shape) * mixed


def peak_bytes(name: str, shape: Shape) -> int:
    return shape.bytes * (2 if name == "sdpa.math" else 1)


@contextmanager
def folders() -> Iterator[Path]:
    """Inside, runs and reports are kept in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNLAB_DATA", f"{name}/data")
        patch.setenv("ATTNLAB_REPORTS", f"{name}/reports")
        yield Path(name)


ORDINARY = Recipe()


@cache
def inferred() -> results.Results:
    """The ordinary run: an H200 with every kind of case."""
    return infer(ORDINARY)


@cache
def climbed() -> results.Results:
    """A run with kernels: one is slower than the one before it, one is refused at the target, one skips a length."""
    return infer(LADDER)


@cache
def led() -> results.Results:
    """A run in which `kernel.best` is beside SDPA's backends and a peer, and `sdpa.flash` failed at the target."""
    named = ["sdpa.auto", "sdpa.flash", "sdpa.cudnn", "peer.flash4", "kernel.wgmma", "kernel.best"]
    study = LADDER.study | {"implementations": named, "sweeps": {"seq_len": STUDY["sweeps"]["seq_len"]}}
    return infer(Recipe(study=study, fates={("sdpa.flash", TARGET): ("failed", "before timing")}))


@cache
def chosen() -> results.Results:
    """A run to choose a backend by: a grid, grouped heads, decoding, many lengths, training, and peers."""
    return infer(CHOICES)


@cache
def valued() -> results.Results:
    """A run of several kinds of values: one candidate's verdict turns with them, and one's does not."""
    return infer(VALUED)


@cache
def lonely() -> results.Results:
    """A run on a CPU of which the datasheets know nothing: one implementation, one clock, no telemetry."""
    return infer(LONELY)


@cache
def controlled() -> results.Results:
    """The ordinary run, whose baseline takes as long when it is measured again."""
    return infer(Recipe(control_pace=1.0))


@cache
def biased() -> results.Results:
    """The baseline takes 3 % longer the second time: that much, this machine makes of nothing."""
    return infer(Recipe(control_pace=1.03))


@cache
def unclaimable() -> results.Results:
    """One candidate, faster by too little for a claim."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PACE, "sdpa.flash", 0.95)
        return few("sdpa.flash")


@cache
def contradicted() -> results.Results:
    """One candidate at the target, faster by the device clock and slower with the launch."""
    of = infer(Recipe(study=AT_TARGET | {"implementations": ["sdpa.auto", "sdpa.flash"], "timings": STUDY["timings"]}))
    slow = of.run.samples["implementation"].eq("sdpa.flash") & of.run.samples["clock"].eq("eager")
    run = replace(of.run, samples=of.run.samples.assign(latency_us=of.run.samples["latency_us"] + 20.0 * slow))
    return results.Results(run, cases.infer(run))


def few(*names: str) -> results.Results:
    """Few candidates at `TARGET` and `ONE_BATCH`, under one timing."""
    study = {"implementations": ["sdpa.auto", *names], "timings": STUDY["timings"][:1]}
    return infer(Recipe(study=study | {"sweeps": {"batch": STUDY["sweeps"]["batch"]}}, fates={}))


def of_values(*names: str) -> results.Results:
    """Few candidates of `VALUED`, at the target alone."""
    return infer(of_kinds({name: VALUED_US[name] for name in ("sdpa.auto", *names)}))


def changed(of: results.Results, table: pd.DataFrame | None = None, **fields: Any) -> results.Results:
    """Results with these fields of their run in place of its own; of a manifest, with these entries."""
    manifest = of.run.manifest | fields.pop("manifest", {})
    run = replace(of.run, manifest=manifest, **fields)
    return results.Results(run, of.table if table is None else table)


def bare(name: str) -> results.Results:
    """A run on the disk without inference, for what rests on samples alone."""
    return results.Results(read.load(name), pd.DataFrame(columns=cases.COLUMNS))


CPU = {"device": "cpu", "timings": [{"clock": "device", "cache": "warm"}, {"clock": "eager", "cache": "warm"}]}
LADDER = Recipe(
    study={
        "implementations": ["sdpa.auto", "sdpa.flash", "sdpa.cudnn", *(f"kernel.{name}" for name in RUNGS)],
        "timings": STUDY["timings"][:1],
        "sweeps": {name: STUDY["sweeps"][name] for name in ("seq_len", "causal seq_len")}
        | {"causal small": [shape.axes for shape in L4_SHAPES]},
    },
    fates={
        ("kernel.pipelined", TARGET): ("failed", "before timing, call: error against float64: max 5.00e-03"),
        ("kernel.naive", LONG): ("skipped", "one call takes 31 ms, longer than longest_call_ms = 20"),
        ("kernel.tiled", L4_SHAPES[0]): ("skipped", "no such shape"),
    },
)
BACKENDS = ["sdpa.auto", "sdpa.flash", "sdpa.math", "peer.flex", "peer.flash4"]
HALF, DOUBLE, CHEAP = Shape(2, 4, 64, 64), Shape(2, 4, 256, 64), Shape(4, 8, 64, 64)
PLAIN, PAIRS, SHARED = (Shape(2, 4, 128, 64, causal=True, kv_heads=heads) for heads in (4, 2, 1))
NEAR, FAR = (Shape(2, 4, 1, 64, kv_heads=1, kv_len=keys) for keys in (256, 1024))
PACKED, LOST = (Shape(4, 4, length, 64, causal=True, lengths="spread") for length in (128, 256))
TRAINED = Shape(2, 4, 128, 64, causal=True, direction="training")
GONE = ("failed", "before timing, call: error against float64: max 5.00e-03")
# Of the baseline; the others by their pace.
BASE_US = {NEAR: 3.328, FAR: 26.3168, PACKED: 10.0, TRAINED: 100.0}
CHOICES = Recipe(
    study={
        "implementations": BACKENDS,
        "sweeps": {
            "seq_len": [AXES | {"seq_len": [64, 128, 256]}],
            "batch": [AXES | {"batch": [1, 2, 4], "seq_len": 128}],
            "grid seq_len": [AXES | {"batch": [2, 4], "heads": [4, 8], "seq_len": [64, 128]}],
            "grouped kv_heads": [AXES | {"seq_len": 128, "causal": True, "kv_heads": [4, 2, 1]}],
            "decode kv_len": [AXES | {"seq_len": 1, "kv_heads": 1, "kv_len": [256, 1024]}],
            "end to end seq_len": [AXES | {"batch": 4, "seq_len": [128, 256], "causal": True, "lengths": "spread"}],
            "padded seq_len": [AXES | {"batch": 4, "seq_len": [128, 256], "causal": True}],
            "training seq_len": [AXES | {"seq_len": 128, "causal": True, "direction": "training"}],
        },
    },
    latencies_us={(name, shape): us * PACE[name] for name in BACKENDS for shape, us in BASE_US.items()}
    | {
        ("sdpa.math", HALF): 8.0,  # as long as flash
        ("sdpa.flash", DOUBLE): 200.0,  # longer than the baseline
        ("peer.flex", DOUBLE): 200.0,  # the least by which it is slower
        ("sdpa.flash", CHEAP): 25.6,  # 100 ns a token
        ("sdpa.flash", PAIRS): 8.0,
        ("sdpa.flash", SHARED): 4.0,
    },
    fates={(name, LOST): GONE for name in BACKENDS}
    | {
        ("peer.flex", NEAR): ("out of memory", "tried to allocate 2.00 GiB"),
        ("peer.flex", FAR): ("out of memory", "tried to allocate 2.00 GiB"),
        ("peer.flash4", TRAINED): ("skipped", "no gradients on this device"),
        ("peer.flash4", DOUBLE): ("failed", "before timing, call: error against float64: max 7.00e-03"),
        ("sdpa.auto", PACKED): GONE,
    },
)
# By implementation, on each kind of values at the target; None where it failed.
VALUED_US: dict[str, dict[str, float | None]] = {
    "sdpa.auto": {"normal": 40.0, "sd 4": 40.0, "sink 8": 40.0, "rising 24": 40.0, "zeros": 30.0},
    "sdpa.flash": {"normal": 25.0, "sd 4": 32.0, "sink 8": 40.0, "rising 24": 50.0, "zeros": 12.0},
    "sdpa.cudnn": {"normal": 32.0, "sd 4": 33.0, "sink 8": 32.0, "rising 24": 32.0, "zeros": 24.0},
    "sdpa.efficient": {"normal": 20.0, "sd 4": 20.0, "sink 8": None, "rising 24": 20.0, "zeros": 10.0},
    "sdpa.math": {"normal": None, "sd 4": None, "sink 8": None, "rising 24": None, "zeros": 10.0},
}


def of_kinds(us: dict[str, dict[str, float | None]], **study: Any) -> Recipe:
    """A run of these latencies on these kinds of values at the target, and nowhere else."""
    kinds = [kind for by_kind in us.values() for kind in by_kind]
    stated = {
        "implementations": list(us),
        "timings": STUDY["timings"][:1],
        "sweeps": {"values": [AXES | {"seq_len": 128, "values": list(dict.fromkeys(kinds))}]},
    }
    cases = {(name, TARGET.resized(values=kind)): us[name][kind] for name in us for kind in us[name]}
    return Recipe(
        control_pace=1.0,
        study=stated | study,
        latencies_us={case: us for case, us in cases.items() if us is not None},
        fates={case: GONE for case, us in cases.items() if us is None},
    )


VALUED = of_kinds(
    VALUED_US,
    sweeps={
        "values": [AXES | {"seq_len": 128, "values": list(VALUED_US["sdpa.auto"])}],
        "long values": [AXES | {"seq_len": 256, "values": ["sd 4", "normal"]}],
        "seq_len": [AXES | {"seq_len": [64, 128]}],
        "training seq_len": [AXES | {"seq_len": 128, "direction": "training"}],
        "end to end seq_len": [AXES | {"seq_len": 128, "lengths": "spread"}],
    },
)
LONELY = Recipe(
    device="Imaginary X1",
    study=CPU | {"implementations": ["sdpa.auto"], "sweeps": {"seq_len": STUDY["sweeps"]["seq_len"]}},
    ceilings={"matmul.float16": (2.0, "TFLOP/s"), "copy": (100.0, "GB/s")}
    | {"l2": (None, "GB/s"), "exponentials": (None, "Gexp/s")},
)


def infer(recipe: Recipe) -> results.Results:
    """A run by a recipe, and what is inferred from it, in this process: once for all who ask. Not to be changed."""
    # What tests patch for a while makes another run of the same recipe.
    key = (repr(recipe), repr(PACE), _samples, _read)
    if key not in _INFERRED:
        with folders():
            write("synthetic", recipe)
            # What no run may hold is asked once, of each recipe here that has a name: tests/runs/test_bad_runs.py.
            read._JUDGED.add(read.read_manifest("synthetic")["seal"])
            run = read.load("synthetic")
        _INFERRED[key] = results.Results(run, cases.infer(run))
    return _INFERRED[key]


_INFERRED: dict[Any, results.Results] = {}


def write(name: str, recipe: Recipe = ORDINARY) -> None:
    """Write the folder of a run."""
    study = recipe.parsed
    fates = FATES if recipe.fates is None else recipe.fates
    stated = manifest(recipe, study)
    told_last = {"profile": stated.pop("profile")}
    runs_write.create(name, stated)
    complete = recipe.shapes is None
    shapes = list(enumerate(study.shapes))[: recipe.shapes]
    places = [(replicate, *shape) for replicate in range(study.replicates if complete else 1) for shape in shapes]
    parts = [part for place in places for part in _shape(study, recipe, fates, *place)]
    for implementation, launches in (recipe.counters or {}).items():
        rows = _profile(implementation, study.target_shape, launches)
        parts.append(("profile", implementation.replace(".", "-"), rows))
    rows = [{"process": f"p{number}", "replicate": number} for number in range(study.replicates if complete else 1)]
    processes = pd.DataFrame(rows).assign(setup_seconds=1.0, **_machine(recipe))
    if recipe.cards:
        processes["card"] = [card for card, _ in recipe.cards][: len(processes)]
    parts = [*(_whole(parts) if complete else parts), ("processes", "all", processes)]
    for table, key, rows in parts:
        runs_write.add_part(name, table, key, rows)
    if complete:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runs_write, "judge", lambda tables, manifest: None)  # whoever loads it does that
            runs_write.finish(name, told_last)


def _whole(parts: list[Part]) -> list[Part]:
    """Each table as one part: its rows are in the order that all parts would give them."""
    tables: dict[str, list[tuple[str, pd.DataFrame]]] = {}
    for table, key, rows in parts:
        tables.setdefault(table, []).append((key, rows))
    ordered = {table: sorted(blocks, key=lambda block: block[0]) for table, blocks in tables.items()}
    return [(table, "all", pd.concat([rows for _, rows in blocks])) for table, blocks in ordered.items()]


def _machine(recipe: Recipe) -> dict[str, Any]:
    """What every process of a run ran on."""
    card: dict[str, Any] = dict.fromkeys(("card", "ecc", "power_limit_w", "persistence", "mig"))
    if recipe.kind == "cuda":
        card = {"card": "0a1b2c3d", "ecc": True, "power_limit_w": 700.0, "persistence": True, "mig": False}
    return card | {"cpu": "Imaginary C1", "governor": "performance", "host": "4d5e6f"}


def _profile(implementation: str, shape: Shape, launches: list[dict[str, Any]]) -> pd.DataFrame:
    where = {"implementation": implementation, **shape.axes}
    rows = [
        where | {"function": launch["function"], "launch": number, "metric": metric, "unit": "", "value": value}
        for number, launch in enumerate(launches)
        for metric, value in launch.items()
        if metric != "function"
    ]
    return pd.DataFrame(rows)


def manifest(recipe: Recipe = ORDINARY, study: studies.Study | None = None) -> dict[str, Any]:
    """A manifest as the measuring half writes it."""
    study = study or recipe.parsed
    gpu = recipe.kind == "cuda"
    device = {"kind": recipe.kind, "name": recipe.device, "l2_bytes": L2_BYTES, "memory_bytes": 2**37}
    device |= GPU if gpu else {"threads": 2}
    card = {"sm_clock_max_mhz": 1980, "power_limit_w": 700.0} if gpu else {"unavailable": "no NVIDIA GPU"}
    environment = {
        "settings": {"tf32_matmul": False, "seed": 42},
        "python": "3.13.1",
        "system": "Linux x86_64",
        "packages": {"torch": "2.11.0", "numpy": "2.3.0"},
        "cuda": "13.0" if gpu else "n/a",
        "cudnn": "91300" if gpu else "n/a",
        "driver": "580.65" if gpu else "n/a",
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
        "clocks": {"tick_us": TICK_US, "nothing_us": 1.5},
        "surveyed": {name: _machine(recipe)[name] or "" for name in ("card", "host", "cpu", "governor")},
        "telemetry": "NVML" if gpu else "the device is no NVIDIA GPU",
        "study": study.model_dump(mode="json"),
        "missing_clocks": [] if gpu else [str(t) for t in study.timings if t.clock == "device"],
        "rules": rules.recorded(),
        "sources": {"measure/clocks/cuda_events.py": "5" * 64},
        "ladder": [_rung(name) for name in RUNGS if f"kernel.{name}" in study.implementations],
        "dispatch": {},
        "kernels": {name: "7" * 64 for name in study.implementations if name.startswith("kernel.")},
        "profile": {"tool": "ncu 2025.3.1.0", "why": "", "command": "ncu python"}
        if recipe.counters
        else {"tool": "", "why": "nothing was profiled", "command": ""},
    }


def _shape(study: studies.Study, recipe: Recipe, fates: Fates, replicate: int, index: int, shape: Shape) -> list[Part]:
    """What a replicate records of a shape."""
    key = f"r{replicate:02d}-s{index:03d}"
    where = {"replicate": replicate, "process": f"p{replicate}"}
    subjects = study.implementations if recipe.control_pace is None else study.subjects
    fate = {n: _fate(fates.get((n, shape), ("measured", "")), replicate) for n in subjects}
    timed = [n for n in subjects if fate[n][0] == "measured" or "after" in fate[n][1]]
    there = [timing for timing in study.timings if timed and (recipe.kind == "cuda" or timing.clock == "eager")]
    parts = []
    for timing in there:
        rows = pd.concat([_samples(n, shape, timing, where, recipe) for n in timed]).astype(CARD)
        parts.append(("samples", f"{key}-{timing.clock}-{timing.cache}", rows.sort_values("round", kind="stable")))
    checked = [n for n in subjects if fate[n][0] in ("measured", "failed")]
    rows = [row for n in checked for row in checks(n, shape, where, fate[n])]
    parts.append(("checks", key, pd.DataFrame(rows)))
    kernels = [n for n in timed if n.removeprefix("kernel.") in RUNGS and fate[n][0] == "measured"]
    if used := [_resources(n, shape, where) for n in kernels]:
        parts.append(("resources", key, pd.DataFrame(used)))
    return [*parts, ("cases", key, pd.DataFrame([case(n, shape, where, fate[n]) for n in subjects]))]


def _rung(name: str) -> dict[str, Any]:
    stated = {key: value for key, value in RUNGS[name].items() if key != "needs"}
    number = list(RUNGS).index(name) + 1
    return stated | {
        "name": name,
        "title": f"step {number}",
        "source": f"{number}_{name}.cu",
        "function": name,
        "hypothesis": f"Chosen, so that {name} takes as long as it does.",
        "dtypes": ["float16"],
        "architectures": ["sm_90"],
        "arguments": "pointers",
        "persistent": name == PERSISTENT,
        "tiles": [{"head_dim": 64, "rows": ROWS, "keys": 64, "threads": 128, "shared_bytes": RUNGS[name]["needs"][1]}],
    }


def _resources(name: str, shape: Shape, where: dict[str, Any]) -> dict[str, Any]:
    registers, shared_bytes, ctas_per_sm = RUNGS[name.removeprefix("kernel.")]["needs"]
    items = -(-shape.seq_len // ROWS) * shape.batch * shape.heads
    most = GPU["multiprocessors"] * ctas_per_sm if name == f"kernel.{PERSISTENT}" else items
    return {"implementation": name, **shape.axes, **where, "function": name, "architecture": "sm_90"} | {
        "registers": registers, "local_bytes": 0, "static_shared_bytes": 1024, "dynamic_shared_bytes": shared_bytes
    } | {"threads": 128, "ctas": min(items, most), "ctas_per_sm": ctas_per_sm}  # fmt: skip


def _fate(fate: Fate, replicate: int) -> Fate:
    if not fate[0].endswith(" after timing"):
        return fate
    return (fate[0].removesuffix(" after timing"), fate[1]) if replicate == 0 else ("measured", "")


def _samples(name: str, shape: Shape, timing: studies.Timing, where: dict[str, Any], recipe: Recipe) -> pd.DataFrame:
    gpu = recipe.kind == "cuda"
    rounds = np.arange(ROUNDS)
    columns = {"implementation": name, **shape.axes, **timing.model_dump(), **where, "round": rounds} | {
        "position": recipe.parsed.subjects.index(name),
        "started_s": rounds / 100,
        "launches": LAUNCHES if timing.clock == "device" else 1,
        "latency_us": _read(name, shape, timing.clock if gpu else "device", recipe)
        * (recipe.cards[where["replicate"]][1] if recipe.cards else 1),
        "strain": 0.5,
        "sm_clock_mhz": 1980 - rounds if gpu else None,
        "power_w": 500.0 if gpu else None,
        "temperature_c": 50 if gpu else None,
        "throttle_reasons": np.where(rounds == 3, 4, 0) if gpu else None,
        "throttled": (rounds == 3) if gpu else None,
    }
    return pd.DataFrame(columns)


def _read(name: str, shape: Shape, clock: str, recipe: Recipe) -> np.ndarray:
    if (name, shape) in (recipe.latencies_us or {}):
        mixed = latencies_us("sdpa.auto", TARGET, "device") / latency_us("sdpa.auto", TARGET)
        return recipe.latencies_us[name, shape] * mixed + GAP_US * (clock == "eager")
    if not implementations.is_control(name):
        return latencies_us(name, shape, clock)
    # Not in the order of the baseline, with which each sample would make the same pair.
    return (recipe.control_pace or 1) * np.roll(latencies_us(implementations.under_control(name), shape, clock), 11)


def checks(name: str, shape: Shape, where: dict[str, Any], fate: Fate) -> list[dict[str, Any]]:
    moments = ["before", "after"] if fate[0] == "measured" or "after" in fate[1] else ["before"]
    failing = moments[-1] if fate[0] == "failed" else None
    return [
        {"implementation": name, **shape.axes, **where, "moment": moment, "inputs": shape.values, "route": "call"}
        | {"max_error": 5e-3 if moment == failing else 1e-3, "mean_error": 1e-4}
        | {"framework_max_error": 1e-3, "framework_mean_error": 1e-4, "differing": 0, "passed": moment != failing}
        | {"allowed_max_error": 2e-3, "allowed_mean_error": 2e-4}
        | {"drawn_rms_error": 2e-4, "drawn_max_error": 1e-3}
        for moment in moments
    ]


def case(name: str, shape: Shape, where: dict[str, Any], fate: Fate) -> dict[str, Any]:
    measured = fate[0] == "measured"
    row = {"implementation": name, **shape.axes, **where, "status": fate[0], "reason": fate[1]}
    row |= {"kernels": f"void {name.split('.')[1]}_kernel<128>(float*)\nsecond" if measured else ""}
    row |= {"peak_memory_bytes": peak_bytes(name, shape) if measured else 0}
    return row | {"warmup_calls": 20 if measured else 0, "steady": measured, "alone_differing": None}
