"""What both halves spell alike: tables, columns, types, keys, statuses, kinds of inputs."""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from attnlab.base import paths
from attnlab.base.errors import UserError
from attnlab.study.shapes import Shape
from attnlab.study.studies import Study, Timing

Row = dict[str, Any]
SCHEMA = 7
"""Version of the layout."""
CASE = ("implementation", *Shape.AXES)
MEASURED, SKIPPED, FAILED, OUT_OF_MEMORY = STATUSES = ("measured", "skipped", "failed", "out of memory")
"""What became of a case."""
TOO_LONG = "one call takes"
"""How the reason begins why a case was skipped whose call takes longer than the study allows."""
LARGE_LOGITS, CONSTANT_ROWS = EXTREMES = ("large logits", "constant rows")
"""Kinds of inputs that an implementation is checked on at each shape, besides the values that it is timed on."""
_SAMPLE = (
    "clock",
    "cache",
    "replicate",
    "process",
    "round",
    "position",
    "started_s",
    "launches",
    "latency_us",
    "strain",
)
_CARD = ("sm_clock_mhz", "power_w", "temperature_c", "throttle_reasons", "throttled")
_ERRORS = ("max_error", "mean_error", "framework_max_error", "framework_mean_error", "differing", "passed")
_FATE = ("status", "reason", "kernels", "peak_memory_bytes", "warmup_calls", "steady", "alone_differing")
_MACHINE = ("card", "ecc", "power_limit_w", "persistence", "mig", "cpu", "governor", "host")
_COMPILED = ("function", "architecture", "registers", "local_bytes", "static_shared_bytes", "dynamic_shared_bytes")
_LAUNCHED = ("threads", "ctas", "ctas_per_sm")
COLUMNS = {
    "samples": (*CASE, *_SAMPLE, *_CARD),
    "checks": (*CASE, "replicate", "process", "moment", "inputs", "route", *_ERRORS),
    "cases": (*CASE, "replicate", "process", *_FATE),
    "processes": ("process", "replicate", "setup_seconds", *_MACHINE),
    "resources": (*CASE, "replicate", "process", *_COMPILED, *_LAUNCHED),
    "profile": (*CASE, "function", "launch", "metric", "unit", "value"),
    "stream": (*CASE, "replicate", "process", "position", "latency_us", "host_us"),
    "panel": (*CASE, "method", "round", "latency_us", "sm_clock_mhz", "why"),
    "residency": (*CASE, "clock", "cache", "round", "metric", "unit", "value", "why"),
    "endurance": (
        *CASE,
        "started_s",
        "latency_us",
        *(column for column in _CARD if column != "throttle_reasons"),
        "why",
    ),
}
"""The columns of each table, in every run, whatever it holds so far."""
TABLES = tuple(COLUMNS)
PARTS = "parts"
"""The folder with the blocks of a run while it is measured, in the run's own."""
Manifest = dict[str, Any]
TELEMETRY_TYPES = {
    "sm_clock_mhz": "Int32",
    "power_w": "Float64",
    "temperature_c": "Int32",
    "throttle_reasons": "Int64",
    "throttled": "boolean",
}
TYPES = {"round": "Int64", "latency_us": "Float64", "value": "Float64", "started_s": "Float64"} | {
    column: dtype for column, dtype in TELEMETRY_TYPES.items() if column != "throttle_reasons"
}


def frame(table: str, rows: list[Row]) -> pd.DataFrame:
    """Rows as one of the panel's tables, with the columns and types that it has in every run."""
    columns = COLUMNS[table]
    types = {column: TYPES[column] for column in columns if column in TYPES}
    return pd.DataFrame(rows, columns=columns).astype(types)


def replicate_key(replicate: int) -> str:
    """The key of a block that a replicate records once."""
    return f"r{replicate:02d}"


def shape_key(study: Study, shape: Shape, replicate: int) -> str:
    """The key of the blocks of one shape in one replicate."""
    return f"{replicate_key(replicate)}-s{study.shapes.index(shape):03d}"


def block_key(study: Study, shape: Shape, replicate: int, timing: Timing) -> str:
    """The key of a block of samples: one shape in one replicate under one timing."""
    return f"{shape_key(study, shape, replicate)}-{timing.clock}-{timing.cache}"


def typed(rows: pd.DataFrame) -> pd.DataFrame:
    """Samples with the types that telemetry has in every run, also on a machine without NVML."""
    return rows.astype(TELEMETRY_TYPES)


@dataclass(frozen=True)
class Run:
    """A run as it was recorded.

    Attributes:
        manifest: schema, rules, environment and its hash, device, ceilings, clocks, study, ladder, hashes of the files.
        samples: a row per sample; latencies in us, clocks in MHz, power in W, ``started_s`` since its process began.
            ``strain`` is the error of what was computed, in units of what is allowed; at most 1.
        checks: a row per correctness check; errors are absolute, against the float64 oracle. ``inputs`` are the shape's
            values or one of `EXTREMES`; errors on different kinds can't be compared with each other. ``differing``
            counts the elements in which two runs on the same inputs differ.
        cases: a row per case and replicate: its status, the kernels that ran, its peak memory in bytes, and in how many
            elements a sequence alone differs from the same one in the batch.
        processes: a row per process that measured, with its seconds, its card (the start of a hash of its UUID) and how
            that is set, its CPU and governor, and its host (likewise a hash).
        resources: a row per replicate and measured case of a kernel of the ladder: what was compiled, what it needs,
            what was launched, and how many CTAs a multiprocessor holds at once.
        profile: a row per launch and metric of Nsight Compute in one call of a case.
        stream: a row per call of a stream of requests: ``latency_us`` until its output was complete, ``host_us`` until
            the call returned.
        panel: a row per case, method and round: the same call timed by every available clock. A method that couldn't be
            used has a row that says why.
        residency: a row per case, clock, cache, round and metric: what the L2 holds when a sample begins, and what a
            call then reads from memory.
        endurance: a row per slice of a load without pause, from a card at rest: ``started_s`` since the load began.
    """

    name: str
    manifest: Manifest
    samples: pd.DataFrame
    checks: pd.DataFrame
    cases: pd.DataFrame
    processes: pd.DataFrame
    resources: pd.DataFrame
    profile: pd.DataFrame
    stream: pd.DataFrame
    panel: pd.DataFrame
    residency: pd.DataFrame
    endurance: pd.DataFrame

    @property
    def cards(self) -> set[str]:
        """The cards that its processes ran on, each by the start of the hash of its UUID; none on a CPU."""
        return set(self.processes["card"].dropna()) - {""}

    @property
    def complete(self) -> bool:
        """Whether every block that the study asks for was recorded, or the run was closed early."""
        return bool(self.manifest["complete"])


MODELS = "models"
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
"""The names that runs may have. Programs that are handed paths take other characters for their own."""
TAKEN = (paths.REFERENCE.name, "dispatch", MODELS)
"""Folders beside the runs: what others published, dispatch tables, and records of models that generate."""


def folder(name: str) -> Path:
    """The folder of the run `name`, whether or not it exists.

    Raises:
        UserError: no run can have this name.
    """
    if not name or name != Path(name).name or name.startswith("."):
        raise UserError(f"{name!r} can't be the name of a run: it is a folder in {paths.shown(paths.data())}/")
    if not NAME.fullmatch(name):
        raise UserError(
            f"{name!r} can't be the name of a run: use letters, digits and '_', from the second on also '-' and '.'"
        )
    if name in TAKEN:
        raise UserError(f"{name!r} can't be the name of a run: data/{name}/ holds no run; choose another name")
    return paths.data() / name


def digest(content: Any) -> str:
    """SHA-256 of anything that JSON can hold, independent of the order of keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def is_of(rows: pd.DataFrame, shape: Shape) -> pd.Series:
    """A mask of the rows of a table that are of a shape."""
    return np.logical_and.reduce([rows[axis] == value for axis, value in shape.axes.items()])


def is_under(rows: pd.DataFrame, timing: Timing) -> pd.Series:
    """A mask of the rows of a table that were taken under a timing."""
    return (rows["clock"] == timing.clock) & (rows["cache"] == timing.cache)


def short_hash(content: bytes) -> str:
    """The start of a SHA-256, by which the name of a part is checked against its content."""
    return hashlib.sha256(content).hexdigest()[:16]
