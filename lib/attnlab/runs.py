"""The run folder: the only thing that the measuring and the analysing half share.

While a run is recorded, each block of rows is a file of its own in ``parts/``, written to a temporary name, flushed
and renamed, so that a run killed at any moment holds whole blocks only. A part carries the start of its SHA-256 in its
name. When nothing is missing any more, the parts become one Parquet file a table, whose hashes the manifest holds.
"""

import fcntl
import hashlib
import io
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from attnlab import locks, paths, studies
from attnlab.errors import UserError
from attnlab.shapes import Shape

SCHEMA = 3
CASE = ("implementation", *Shape.AXES)
_SAMPLE = ("clock", "cache", "replicate", "process", "round", "position", "started_s", "launches", "latency_us")
_CARD = ("sm_clock_mhz", "power_w", "temperature_c", "throttle_reasons", "throttled")
_ERRORS = ("max_error", "mean_error", "framework_max_error", "framework_mean_error", "passed")
_FATE = ("status", "reason", "kernels", "peak_memory_bytes", "warmup_calls", "steady")
_COMPILED = ("function", "architecture", "registers", "local_bytes", "static_shared_bytes", "dynamic_shared_bytes")
_LAUNCHED = ("threads", "ctas", "ctas_per_sm")
COLUMNS = {
    "samples": (*CASE, *_SAMPLE, *_CARD),
    "checks": (*CASE, "replicate", "process", "moment", "inputs", "route", *_ERRORS),
    "cases": (*CASE, "replicate", "process", *_FATE),
    "processes": ("process", "replicate", "setup_seconds", "measuring_seconds"),
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
"""What the tables of a run hold, which a run of which nothing was recorded yet has too."""
TABLES = tuple(COLUMNS)
Manifest = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """A run as it was recorded.

    Attributes:
        manifest: schema, environment and its hash, device, ceilings, clocks, study, ladder, hashes of the files.
        samples: a row per sample; latencies in us, clocks in MHz, power in W, ``started_s`` since its process began.
        checks: a row per correctness check; errors are absolute, against the float64 oracle. ``inputs`` says of which
            kind those were: "normal", "large logits" or "constant rows", whose errors have nothing in common.
        cases: a row per case and replicate: what became of it, the kernels that ran, its peak memory in bytes.
        processes: a row per process that measured, with its seconds.
        resources: a row per case of a kernel of the ladder that was measured, and replicate: what was compiled, what it
            needs, what was launched, and how many CTAs a multiprocessor holds at once.
        profile: a row per launch and metric of Nsight Compute in one call of a case.
        stream: a row per call of a stream of requests: ``latency_us`` until its output was there, ``host_us`` until the
            call came back.
        panel: a row per case, method and round: the same call timed by every clock at hand. A method that couldn't be
            used has a row that says why.
        residency: what the L2 holds where a sample begins, and what a call then reads from memory: a row per case,
            clock, cache, round and metric.
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
    def complete(self) -> bool:
        """Whether every block that the study asks for was recorded."""
        return bool(self.manifest["complete"])


def names() -> list[str]:
    """The runs that are there, the newest last: whatever its clock said, a run comes after the one that it follows."""
    begun = _all_begun()
    return sorted(begun, key=lambda name: (_place(name, begun), name))


def folder(name: str) -> Path:
    """The folder of the run `name`, whether or not it is there."""
    if not name or name != Path(name).name or name.startswith("."):
        raise UserError(f"{name!r} can't be the name of a run: it is a folder in {paths.shown(paths.data())}/")
    return paths.data() / name


def load(name: str) -> Run:
    """Read a run and check it against its manifest.

    Raises:
        UserError: there is no such run, it was changed after it was recorded, or a newer attnlab wrote it.
    """
    manifest = read_manifest(name)
    tables: dict[str, pd.DataFrame] = {}
    if not manifest["complete"]:
        with suppress(FileNotFoundError):
            tables = _tables_from_parts(name)
        # Who measures it may have closed it meanwhile, and taken parts away that were not read yet.
        manifest = read_manifest(name)
    if manifest["complete"]:
        tables = _whole_tables(name, manifest)
    elif not tables:
        raise UserError(f"the run {name!r} was changed while it was read: read it again")
    if manifest["schema"] < 2:  # all its checks were on normal inputs
        tables["checks"] = tables["checks"].assign(inputs="normal")
    if manifest["schema"] < 3:  # all its shapes were plain self-attention, forward
        tables = {table: plain(frame) if "seq_len" in COLUMNS[table] else frame for table, frame in tables.items()}
    if manifest["schema"] == SCHEMA:
        _require_columns(name, tables)
    return Run(name, manifest, **tables)


def read_manifest(name: str) -> Manifest:
    """Read and check the manifest alone; raises as `load` does."""
    path = folder(name) / "manifest.json"
    if not path.is_file():
        there = ", ".join(names()) or "none yet; `make report` records one"
        raise UserError(f"there is no run {name!r}; those that are: {there}")
    where = paths.shown(path)
    try:
        manifest: Manifest = json.loads(path.read_text())
        schema = manifest["schema"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{where} is not a manifest: restore it from where the run came from") from None
    if not isinstance(schema, int) or schema > SCHEMA:
        raise UserError(f"{where} has schema {schema}, this attnlab reads up to {SCHEMA}: update attnlab")
    if manifest.get("seal") != digest({key: value for key, value in manifest.items() if key != "seal"}):
        raise UserError(f"{where} was changed after it was recorded, so the run is refused: restore it")
    return manifest


def create(name: str, manifest: Manifest) -> None:
    """Begin a run: its folder, with a manifest that says it isn't complete.

    If by the clock the newest run isn't older, because the clock was set back or tells seconds only, the manifest says
    that this run ``follows`` it.
    """
    target = folder(name)
    (target / "parts").mkdir(parents=True, exist_ok=True)
    stamp = str(manifest.get("created") or datetime.now(UTC).isoformat(timespec="seconds"))
    others = _all_begun()
    newest = max(others, key=lambda other: (_place(other, others), other), default="")
    follows = {"follows": newest} if newest and _place(newest, others)[0] >= stamp else {}
    begun = {"schema": SCHEMA, "name": name, "created": stamp, **follows, **manifest, "complete": False}
    _write_manifest(target, begun)


@contextmanager
def lock(name: str) -> Iterator[None]:
    """Hold the run for writing; a second process that asks is refused.

    Raises:
        UserError: another process is measuring into this run, or what is there is none.
    """
    target = folder(name)
    if target.exists() and not target.is_dir():
        raise UserError(f"{paths.shown(target)} is a file: move it away, or name another run")
    target.mkdir(parents=True, exist_ok=True)
    with open(target / ".lock", "w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Who held it until now may have taken it away, and a third may hold the one that came after it.
            mine = os.path.samestat(os.fstat(handle.fileno()), os.stat(target / ".lock"))
        except (BlockingIOError, FileNotFoundError):
            mine = False
        if not mine:
            raise UserError(f"another process is measuring into the run {name!r}: wait for it, or name another")
        try:
            _require_run_or_nothing(target)
            yield
        finally:
            if not (target / "manifest.json").is_file():
                _take_away(target)


def _require_run_or_nothing(target: Path) -> None:
    """Raise UserError if a folder without a manifest holds more than a run leaves that was killed as it began."""
    if (target / "manifest.json").is_file():
        return
    others = {path.name for path in target.iterdir()} - {".lock", "parts", *_drafts(target)}
    if others or any((target / "parts").glob("*.parquet")):
        raise UserError(f"{paths.shown(target)}/ is there and has no manifest.json: restore that, or name another run")


def _take_away(target: Path) -> None:
    """Remove what is there of a run that was never begun, and nothing else."""
    for draft in _drafts(target):
        (target / draft).unlink(missing_ok=True)
    (target / ".lock").unlink(missing_ok=True)
    for emptied in (target / "parts", target):
        with suppress(OSError):  # it isn't empty, so it isn't ours
            emptied.rmdir()


def add_part(name: str, table: str, key: str, rows: pd.DataFrame) -> None:
    """Record the rows of one block for good, or, if that fails, nothing of them. A block that is there stays."""
    buffer = io.BytesIO()
    rows.to_parquet(buffer, index=False)
    content = buffer.getvalue()
    parts = folder(name) / "parts"
    # A process that outlives the one that started it by a moment may be writing the same block.
    with locks.held(parts / ".lock"):
        if key not in recorded(name, table):
            _write_atomically(parts / f"{table}.{key}.{_short_hash(content)}.parquet", content)


def recorded(name: str, table: str) -> set[str]:
    """The keys of the blocks of one table that a run not yet complete holds."""
    return {path.name.split(".")[1] for path in (folder(name) / "parts").glob(f"{table}.*.parquet")}


def finish(name: str, told: Manifest | None = None) -> None:
    """Turn the parts into one file a table. Killed anywhere, it can be run again.

    Args:
        told: what the manifest is to say besides, of what was only known at the end.
    """
    target = folder(name)
    if not read_manifest(name)["complete"]:
        _close(name, target, told or {})
    shutil.rmtree(target / "parts", ignore_errors=True)
    for draft in _drafts(target):
        (target / draft).unlink(missing_ok=True)
    (target / ".lock").unlink(missing_ok=True)


def close_early(name: str, told: Manifest | None = None) -> None:
    """Close a run that was cut off with what it holds, and have its manifest say how much of its study that is.

    Args:
        told: what the manifest is to say besides.

    Raises:
        UserError: it is complete, is being measured into, or holds no replicate that is whole.
    """
    manifest = read_manifest(name)
    if manifest["complete"]:
        raise UserError(f"the run {name!r} is complete: there is nothing to close")
    study = studies.recorded(manifest)
    with lock(name):
        held = Counter(key.split("-")[0] for key in recorded(name, "cases"))
        whole = sum(count == len(study.shapes) for count in held.values())
        if not whole:
            raise UserError(f"no replicate of {name!r} is whole yet: `make measure RUN={name}` goes on")
        closed = {"replicates": whole, "shapes": held.total(), "planned": len(study.shapes) * study.replicates}
        finish(name, {**(told or {}), "closed_early": closed})


def _close(name: str, target: Path, told: Manifest) -> None:
    files = {}
    for table, frame in _tables_from_parts(name).items():
        path = target / f"{table}.parquet"
        content = _packed(frame)
        _write_atomically(path, content)
        files[path.name] = hashlib.sha256(content).hexdigest()
    stamp = datetime.now(UTC).isoformat(timespec="seconds")
    manifest = read_manifest(name) | told | {"complete": True, "finished": stamp, "files": files}
    _write_manifest(target, manifest)


def _packed(frame: pd.DataFrame) -> bytes:
    # A time never comes twice: a dictionary of them would be longer than they are.
    times = [column for column in frame.columns if column == "started_s"]
    buffer = io.BytesIO()
    frame.to_parquet(
        buffer,
        index=False,
        compression="zstd",
        compression_level=19,
        use_dictionary=[column for column in frame.columns if column not in times],
        column_encoding=dict.fromkeys(times, "BYTE_STREAM_SPLIT"),
    )
    return buffer.getvalue()


def digest(content: Any) -> str:
    """SHA-256 of anything that is JSON, independent of the order of keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _whole_tables(name: str, manifest: Manifest) -> dict[str, pd.DataFrame]:
    tables = {}
    for table in TABLES:
        path = folder(name) / f"{table}.parquet"
        if path.name not in manifest["files"]:  # its schema didn't have this table
            tables[table] = pd.DataFrame(columns=COLUMNS[table])
            continue
        where = paths.shown(path)
        if not path.is_file():
            raise UserError(f"{where} is missing, so the run is refused: restore it from where the run came from")
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != manifest["files"][path.name]:
            raise UserError(f"{where} doesn't match its manifest: it was changed after it was recorded; restore it")
        tables[table] = pd.read_parquet(io.BytesIO(content))
    return tables


def _tables_from_parts(name: str) -> dict[str, pd.DataFrame]:
    tables = {}
    for table in TABLES:
        parts = sorted((folder(name) / "parts").glob(f"{table}.*.parquet"))
        frames = [pd.read_parquet(io.BytesIO(_verified(part))) for part in parts]
        filled = [frame for frame in frames if not frame.empty]
        tables[table] = pd.concat(filled, ignore_index=True) if filled else pd.DataFrame(columns=COLUMNS[table])
    return tables


def is_of(rows: pd.DataFrame, shape: Shape) -> pd.Series:
    """Which rows of a table are of a shape."""
    return np.logical_and.reduce([rows[axis] == value for axis, value in shape.axes.items()])


def plain(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of a table that only holds forward passes of plain self-attention, with all axes of a shape."""
    return frame.assign(kv_heads=frame["heads"], kv_len=frame["seq_len"], lengths="equal", direction="forward")


def _verified(part: Path) -> bytes:
    content = part.read_bytes()
    if _short_hash(content) != part.name.split(".")[2]:
        raise UserError(f"{paths.shown(part)} was changed after it was recorded: delete it and measure it again")
    return content


def _require_columns(name: str, tables: dict[str, pd.DataFrame]) -> None:
    for table, frame in tables.items():
        if missing := [column for column in COLUMNS[table] if column not in frame]:
            where = paths.shown(folder(name))
            raise UserError(f"{where}: {table} lack the column {missing[0]!r}: restore it from where the run came from")


def _short_hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _write_manifest(target: Path, manifest: Manifest) -> None:
    body = {key: value for key, value in manifest.items() if key != "seal"}
    sealed = body | {"seal": digest(body)}
    _write_atomically(target / "manifest.json", json.dumps(sealed, indent=1).encode() + b"\n")


def _write_atomically(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _flush(path.parent)


def _flush(folder: Path) -> None:
    # Without it a machine that loses power may forget the new name, and remember that the parts were removed.
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _drafts(target: Path) -> list[str]:
    """Names of what a process that was killed had not yet renamed."""
    names = ["manifest.json", *(f"{table}.parquet" for table in TABLES)]
    return [path.name for name in names for path in target.glob(f".{name}.*.tmp")]


def _all_begun() -> dict[str, tuple[str, str]]:
    return {path.parent.name: _begun(path) for path in paths.data().glob("*/manifest.json")}


def _begun(manifest: Path) -> tuple[str, str]:
    """When a run began by the clock of its machine, and the run that it follows, if its manifest names one."""
    try:
        stated = json.loads(manifest.read_text())
        return str(stated.get("created", "")), str(stated.get("follows", ""))
    except (OSError, ValueError, AttributeError, RecursionError):
        return "", ""


def _place(name: str, begun: dict[str, tuple[str, str]]) -> tuple[str, int]:
    """By what runs are ordered: the latest time among a run and those it follows, and how many came since that."""
    chain: dict[str, str] = {}
    while name in begun and name not in chain:
        chain[name], name = begun[name]
    latest, since = "", 0
    for created in reversed(chain.values()):
        latest, since = (created, 0) if created > latest else (latest, since + 1)
    return latest, since
