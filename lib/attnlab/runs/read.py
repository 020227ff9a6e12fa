"""Read runs: their names, their tables, and the check that these are as recorded."""

import hashlib
import io
import json
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pyarrow as pa
from pyarrow import parquet

from attnlab.base import documents, paths
from attnlab.base.errors import UserError, suggestion
from attnlab.base.texts import is_name
from attnlab.runs import checks, schema
from attnlab.runs.checks import refusal
from attnlab.runs.manifest import require as require_manifest
from attnlab.runs.tables import TABLES

JUDGED: set[str] = set()
"""The seals of runs that passed all checks. A seal covers every table."""


def names() -> list[str]:
    """All runs, the newest last, even if its machine's clock was set back."""
    there = (path.parent.name for path in paths.data().glob("*/manifest.json") if path.is_file())
    return sorted(there, key=lambda name: (order(name), name))


def load(name: str) -> schema.Run:
    """Read a run and check it; a run that is not complete is read from its parts.

    Raises UserError: there is no such run, it was changed after it was recorded, or it is of another schema. Or a row
    is invalid, or contradicts the study, the manifest or another table of the run.
    """
    name = str(name)  # a caller may pass digits as a number
    tables: dict[str, pd.DataFrame] = {}
    folder = schema.folder(name)
    if not read_manifest(name)["complete"]:
        with suppress(FileNotFoundError):
            tables = tables_of_parts(name)
    # The process that measures it may have closed it in the meantime and removed parts that were not read yet.
    manifest = read_manifest(name)
    if manifest["complete"]:
        tables = {table: _whole_table(folder / f"{table}.parquet", manifest, TABLES[table]) for table in TABLES}
    elif not (folder / schema.PARTS).is_dir():
        raise UserError(f"the run {name!r} is not complete, and its folder {schema.PARTS}/ is missing: restore it")
    elif not tables:
        raise UserError(f"the run {name!r} was changed while it was read: read it again")
    if manifest["seal"] not in JUDGED:
        checks.judge(tables, manifest, folder if manifest["complete"] else folder / schema.PARTS)
        if manifest["complete"]:
            JUDGED.add(manifest["seal"])
    frames = {table: rows.drop(columns=checks.PLACE, errors="ignore") for table, rows in tables.items()}
    pa.default_memory_pool().release_unused()  # reading and judging use twice the memory of the tables
    return schema.Run(name, manifest, **frames)


def read_manifest(name: str) -> schema.Manifest:
    """Read and check the manifest alone; raises UserError as `load`."""
    path = schema.folder(name) / "manifest.json"
    if not path.is_file():
        there = names()
        listed = ", ".join(there) or "none yet; `make measure` records one"
        raise UserError(f"there is no run {name!r}; those that are: {listed}{suggestion(name, there)}")
    where = paths.shown(path)
    try:
        manifest: schema.Manifest = json.loads(path.read_text())
        version = manifest["schema"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{where} is not a manifest: restore it from where the run came from") from None
    if version != schema.SCHEMA:
        by = f"attnlab {manifest.get('attnlab')} of commit {str(manifest.get('commit'))[:12]}"
        older = f"{by} reads it" if manifest.get("commit") and is_name(by) else "measure again"
        advice = older if isinstance(version, int) and version < schema.SCHEMA else "update attnlab"
        raise UserError(f"{where} has schema {version}, and this attnlab reads {schema.SCHEMA}: {advice}")
    if manifest.get("seal") != documents.digest({key: value for key, value in manifest.items() if key != "seal"}):
        raise UserError(f"{where} was changed after it was recorded, so the run is refused: restore it")
    require_manifest(manifest, where)
    if manifest["name"] != path.parent.name:
        raise UserError(f"{where} is of the run {manifest['name']!r}: give the folder that name again")
    return manifest


def _whole_table(path: Path, manifest: schema.Manifest, table: pa.Schema) -> pd.DataFrame:
    where = paths.shown(path)
    if not path.is_file():
        raise UserError(f"{where} is missing, so the run is refused: restore it from where the run came from")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != manifest["files"][path.name]:
        raise UserError(f"{where} doesn't match its manifest: it was changed after it was recorded; restore it")
    return checks.frame_of_files({path: _rows(content, path, table)}, table, manifest["seal"] in JUDGED)


def tables_of_parts(name: str) -> dict[str, pd.DataFrame]:
    """The tables of a run that is not complete, from `checks.frame_of_files`.

    Raises:
        UserError: a part was changed after it was recorded, or holds an invalid value.
        FileNotFoundError: the run was closed in the meantime.
    """
    there = sorted((schema.folder(name) / schema.PARTS).glob("*.parquet"))  # listed once: later blocks are left out
    return {table: _frame([part for part in there if part.name.startswith(f"{table}.")], table) for table in TABLES}


def part(name: str, table: str, key: str) -> pd.DataFrame:
    """The rows of one block of a run that is not complete.

    Raises UserError: it was changed after it was recorded.
    """
    (path,) = (schema.folder(name) / schema.PARTS).glob(f"{table}.{key}.*.parquet")
    return _frame([path], table).drop(columns=checks.PLACE)


def _frame(parts: list[Path], table: str) -> pd.DataFrame:
    held = {part: _rows(_verified(part), part, TABLES[table]) for part in parts}
    return checks.frame_of_files(held, TABLES[table])


def _rows(content: bytes, path: Path, table: pa.Schema) -> pa.Table:
    try:
        rows = parquet.ParquetFile(io.BytesIO(content)).read(columns=table.names)  # others may unpack to any size
        rows.validate(full=True)
    except (OSError, ValueError, pa.ArrowException):
        raise refusal(path, "it is no table in Parquet") from None
    return rows


def _verified(part: Path) -> bytes:
    if not schema.PART.fullmatch(part.name):  # e.g. a copy
        raise UserError(f"{paths.shown(part)} has no name of what was recorded: give it that again, or move it away")
    if part.is_symlink() and not part.exists():
        raise refusal(part, f"{part.name} links to it, and it is not there")
    content = part.read_bytes()
    if schema.short_hash(content) != part.name.split(".")[2]:
        raise refusal(part, "it was changed after it was recorded")
    return content


def order(name: str) -> str:
    """The `order` of a run in its manifest, by which runs are sorted; empty if that holds none."""
    try:
        stated = json.loads((paths.data() / name / "manifest.json").read_text())
        found = str(stated.get("order") or stated.get("created", ""))
        return found if schema.TIME.fullmatch(found) else ""
    except (OSError, ValueError, AttributeError, RecursionError):
        return ""
