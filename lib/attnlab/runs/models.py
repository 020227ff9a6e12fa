"""Records of models that generate: ``data/models/<name>/`` with a manifest, and tables as Parquet.

While one is measured, each block is a file of its own in ``parts/``, written whole or not at all; at the end, the
parts of a table become one file, whose SHA-256 the manifest holds.
"""

import hashlib
import io
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, model_validator

from attnlab.base import documents, paths
from attnlab.base.errors import UserError
from attnlab.base.files import write_atomically
from attnlab.runs import schema
from attnlab.runs.dispatch import Dispatch
from attnlab.study.models import Plan, Workload

WORKLOAD = ("model", "batch", "prompt")
_WHO = (*WORKLOAD, "attention", "replicate")
COLUMNS = {
    "kernels": (*_WHO, "phase", "attention_us", "total_us"),
    "outputs": (*_WHO, "max_error", "mean_error", "reference", "ran"),
    "samples": (*_WHO, "round", "position", "first_us", "rest_us", "agreeing"),
}
"""The columns of each table. A block's samples are written last: a block that has them is whole."""
FIRST, REST = PHASES = ("first token", "later tokens")


class Manifest(BaseModel):
    """What a record says of itself.

    Attributes:
        tick_us: the step of the clock.
        dispatch: the table that `attend` went by; None where it had none, as on a CPU.
        files: by table, the SHA-256 of its file, once the record is complete.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    version: Literal[1] = 1
    name: str
    created: str
    finished: str = ""
    attnlab: str
    commit: str
    device: dict[str, Any]
    environment: dict[str, Any]
    sources: dict[str, str]
    rules: dict[str, float]
    tick_us: float
    plan: Plan
    dispatch: Dispatch | None
    files: dict[str, str] = {}

    @model_validator(mode="after")
    def _names_what_is_shown(self) -> "Manifest":
        packages = self.environment.get("packages")
        held = {"device": self.device, "environment.packages": packages if isinstance(packages, dict) else {}}
        for field, names in {"device": ("kind", "name"), "environment.packages": ("torch", "transformers")}.items():
            if lacking := [name for name in names if not isinstance(held[field].get(name), str)]:
                raise UserError(f"{field}: {lacking[0]!r} is missing, or is no text")
        return self

    @property
    def complete(self) -> bool:
        """Whether everything that the plan states was recorded."""
        return bool(self.files)


@dataclass(frozen=True)
class Record:
    """A complete record.

    Attributes:
        samples: a row per generation: ``first_us`` until the first token of each prompt was on the host, ``rest_us``
            from then until the last, and how many tokens are those of the baseline in the same round.
        outputs: a row per attention, workload and replicate: absolute errors of the logits at the last token of the
            prompts, against the same weights in the wider type `reference`; and the kernel that `ran` the longest in
            the first layer's attention over the prompts.
        kernels: a row per attention, phase, workload and replicate: the device's time in attention, and in all.
    """

    manifest: Manifest
    samples: pd.DataFrame
    outputs: pd.DataFrame
    kernels: pd.DataFrame

    @property
    def workloads(self) -> list[Workload]:
        """Every workload of the plan."""
        plan = self.manifest.plan
        return [workload for model in plan.models for workload in plan.workloads(model)]

    def at(self, table: str, workload: Workload) -> pd.DataFrame:
        """The rows of a table that are of a workload."""
        rows: pd.DataFrame = getattr(self, table)
        named = dict(zip(WORKLOAD, (workload.model.name, workload.batch, workload.prompt), strict=True))
        return rows[np.logical_and.reduce([rows[axis] == value for axis, value in named.items()])]


def folder(name: str) -> Path:
    """The folder of a record, whether or not it exists; raises UserError where none can have this name."""
    return paths.data() / schema.MODELS / schema.folder(name).name


def table_path(name: str) -> Path:
    """The dispatch table that was made for a record, whether or not it exists."""
    return folder(name) / "dispatch.json"


def write(manifest: Manifest) -> None:
    """Write a manifest, and with it begin a record."""
    documents.write(folder(manifest.name) / "manifest.json", manifest)


def read(name: str) -> Manifest:
    """The manifest of a record.

    Raises:
        UserError: there is none of this name, or it can't be read.
    """
    path, command = folder(name) / "manifest.json", "make model"
    absent = f"there is no record {paths.shown(path.parent)}/: `{command}` makes one"
    return documents.read(path, Manifest, "manifest of a model's record", absent, command)


def newest(device_name: str, refused: Callable[[UserError], object] = lambda error: None) -> Record | None:
    """The complete record on a device that was begun last; None where there is none.

    Args:
        refused: called with the reason for each record that isn't what was recorded, and is passed over.
    """
    found = []
    for path in (paths.data() / schema.MODELS).glob("*/manifest.json"):
        try:
            found.append(read(path.parent.name))
        except UserError as error:
            refused(error)
    there = [one for one in found if one.complete and one.device["name"] == device_name]
    for chosen in sorted(there, key=lambda one: (one.created, one.name), reverse=True):
        try:
            return Record(chosen, **{table: _whole(chosen, table) for table in COLUMNS})
        except UserError as error:
            refused(error)
    return None


def _whole(manifest: Manifest, table: str) -> pd.DataFrame:
    path = folder(manifest.name) / f"{table}.parquet"
    content = path.read_bytes() if path.is_file() else b""
    if hashlib.sha256(content).hexdigest() != manifest.files.get(table):
        raise UserError(f"{paths.shown(path)} isn't what was recorded: restore it from where the record came from")
    return _frame(content, path, table, "restore it from where the record came from")


def _frame(content: bytes, path: Path, table: str, advice: str) -> pd.DataFrame:
    try:
        frame = pd.read_parquet(io.BytesIO(content))
    except (OSError, ValueError):  # pyarrow's errors are one or the other
        raise UserError(f"{paths.shown(path)} is no table in Parquet: {advice}") from None
    if lacking := [column for column in COLUMNS[table] if column not in frame]:
        raise UserError(f"{paths.shown(path)}: the column {lacking[0]!r} is missing: {advice}")
    return frame


def add(name: str, key: str, tables: dict[str, list[dict[str, Any]]]) -> None:
    """Record a block: rows of each table. Until its samples are there, the block counts as missing."""
    for table, columns in COLUMNS.items():
        buffer = io.BytesIO()
        pd.DataFrame(tables[table], columns=list(columns)).to_parquet(buffer, index=False)
        path = folder(name) / schema.PARTS / f"{table}.{key}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, buffer.getvalue())


def recorded(name: str) -> set[str]:
    """The keys of the blocks that a record holds."""
    return {path.name.split(".", 1)[1].removesuffix(".parquet") for path in _parts(name, "samples")}


def finish(name: str) -> None:
    """Turn the parts into one file for each table; can be repeated if it was killed.

    Raises:
        UserError: a part is no such table.
    """
    files = {}
    for table in COLUMNS:
        rows = [part for part in (_part(path, table) for path in _parts(name, table)) if not part.empty]
        whole = pd.concat(rows, ignore_index=True) if rows else pd.DataFrame(columns=list(COLUMNS[table]))
        content = io.BytesIO()
        whole.to_parquet(content, index=False, compression="zstd")
        write_atomically(folder(name) / f"{table}.parquet", content.getvalue())
        files[table] = hashlib.sha256(content.getvalue()).hexdigest()
    stamp = datetime.now(UTC).isoformat(timespec="seconds")
    write(read(name).model_copy(update={"files": files, "finished": stamp}))
    shutil.rmtree(folder(name) / schema.PARTS)


def _part(path: Path, table: str) -> pd.DataFrame:
    block = path.name.removeprefix(f"{table}.")
    return _frame(path.read_bytes(), path, table, f"delete *.{block} beside it and measure that again")


def _parts(name: str, table: str) -> list[Path]:
    return sorted((folder(name) / schema.PARTS).glob(f"{table}.*.parquet"))
