"""Exports a run as plain files, for readers without attnlab: JSON, NumPy arrays and a report in Markdown."""

import hashlib
import io
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from attnlab.base import paths
from attnlab.base.errors import UserError
from attnlab.base.files import held
from attnlab.exhibits.markdown import without_html
from attnlab.export import explained, report
from attnlab.export.records import Records
from attnlab.infer.results import Results

SUMS = "SHA256SUMS"


def folder(run: str) -> Path:
    """Where a run is exported to."""
    return paths.exports() / run


def write(results: Results, target: Path) -> None:
    """Export a run to a folder, whole or not at all; an earlier export of the same run is replaced.

    Raises:
        UserError: the folder holds something else.
        OSError: it can't be written.
    """
    files = contents(results)
    with held(target.parent / f".{target.name}.lock"):
        require_place(target, results.run.name)
        made, old = (target.with_name(f".{target.name}.{state}") for state in ("new", "old"))
        for left_over in (made, old):  # from a process that was killed
            shutil.rmtree(left_over, ignore_errors=True)
        try:
            _fill(made, files)
            _replace(target, made, old)
        finally:
            shutil.rmtree(made, ignore_errors=True)


def _fill(made: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = made / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _replace(target: Path, made: Path, old: Path) -> None:
    if target.exists():
        target.rename(old)
    try:
        made.rename(target)
    except OSError:
        if old.exists():
            old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def require_place(target: Path, run: str) -> None:
    """Make sure that a folder doesn't exist, is empty, or holds an export of this run and nothing else.

    Raises:
        UserError: the folder holds something else.
        OSError: its parent can't be created.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    where = f"{paths.shown(target.parent)}/{target.name}"
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise UserError(f"{where} is no folder of an export: move it away")
    there = {path.relative_to(target).as_posix() for path in target.rglob("*") if not path.is_dir()}
    if not there:
        return
    exported = _exported(target)
    if exported is None:
        raise UserError(f"{where}/ is there and is no export: move it away")
    if exported != run:
        raise UserError(f"{where}/ is an export of the run {exported!r}: move it away")
    if foreign := sorted(there - {SUMS} - _listed(target)):
        raise UserError(f"{where}/ holds {foreign[0]!r}, which the export didn't write: move it away")


def contents(results: Results) -> dict[str, bytes]:
    """The files of an export by name. The same run gives the same bytes."""
    records = Records(results)
    arrays = {one.file: _array(one.samples) for found in records.latencies.values() for one in found}
    files = {
        "summary.json": _json(records.summary()),
        **{f"{name}.json": _json(records.config(shape)) for shape, name in records.configs.items()},
        "env.json": _json(records.environment()),
        "comparison.md": without_html(report.report(results)).encode(),
        "README.md": without_html(explained.readme(results, next(iter(arrays), ""))).encode(),
        **arrays,
    }
    sums = "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in sorted(files.items()))
    return files | {SUMS: sums.encode()}


def strict(value: Any) -> Any:
    """A value that strict JSON can hold: NaN and NA become null, an infinity becomes its name."""
    if isinstance(value, dict):
        return {str(key): strict(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [strict(held) for held in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return None if pd.isna(value) else value


def _json(record: dict[str, Any]) -> bytes:
    return json.dumps(strict(record), ensure_ascii=False, allow_nan=False, indent=1).encode() + b"\n"


def _array(samples: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, samples, allow_pickle=False)
    return buffer.getvalue()


def _exported(target: Path) -> str | None:
    """The run of which a folder holds an export; None where it holds none."""
    try:
        summary = json.loads((target / "summary.json").read_text())
        return str(summary["run"]["name"]) if summary["format"]["name"] == "attnlab export" else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _listed(target: Path) -> set[str]:
    try:
        lines = (target / SUMS).read_text().splitlines()
    except (OSError, ValueError):
        return set()
    return {line[66:] for line in lines}
