"""Reading runs: which there are, what one holds, and whether that is what was recorded."""

import hashlib
import io
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pyarrow

from attnlab.base import documents, paths
from attnlab.base.errors import UserError, suggestion
from attnlab.runs import consistency, schema
from attnlab.runs.held import Rows, refusal
from attnlab.runs.manifest import require as require_manifest
from attnlab.runs.tables import TABLES, Table
from attnlab.study import studies, values

JUDGED: set[str] = set()
"""The seals of runs that were checked against what they say. A seal covers every table."""


def names() -> list[str]:
    """All runs, the newest last, whatever its clock said."""
    order = {path.parent.name: _order(path) for path in paths.data().glob("*/manifest.json")}
    return sorted(order, key=lambda name: (order[name], name))


def newest_order() -> str:
    """By what the newest run is put in order; empty where there is none."""
    return max(map(_order, paths.data().glob("*/manifest.json")), default="")


def manifests(refused: Callable[[UserError], object] = lambda error: None) -> Iterator[tuple[str, schema.Manifest]]:
    """The runs that can be read, the newest first, each with its manifest.

    Args:
        refused: called with the reason for each run that can't be read.
    """
    for name in reversed(names()):
        try:
            yield name, read_manifest(name)
        except UserError as error:
            refused(error)


def load(name: str) -> schema.Run:
    """Read a run and hold it to what it says; a run that is not complete is read from its parts.

    Raises:
        UserError: there is no such run; it was changed after it was recorded; it is of another schema; or it holds what
            no run can hold, or what its study, its manifest or another of its tables contradicts.
    """
    name = str(name)  # a caller may take digits for a number
    manifest, frames = held(name)
    pyarrow.default_memory_pool().release_unused()  # to read and to judge takes as much again as is held
    return schema.Run(name, manifest, **frames)


def held(name: str) -> tuple[schema.Manifest, dict[str, pd.DataFrame]]:
    """The manifest and the tables of a run; raises UserError as `load`."""
    manifest = read_manifest(name)
    tables: dict[str, Rows] = {}
    if not manifest["complete"]:
        with suppress(FileNotFoundError):
            tables = tables_of_parts(name)
        # The process that measures it may have closed it in the meantime and removed parts that were not read yet.
        manifest = read_manifest(name)
    if manifest["complete"]:
        tables = {table.name: _whole_table(name, manifest, table) for table in TABLES.values()}
    elif not (schema.folder(name) / schema.PARTS).is_dir():
        raise UserError(f"the run {name!r} is not complete, and its folder {schema.PARTS}/ is missing: restore it")
    elif not tables:
        raise UserError(f"the run {name!r} was changed while it was read: read it again")
    if manifest["seal"] not in JUDGED:
        judge(tables, manifest)
        if manifest["complete"]:
            JUDGED.add(manifest["seal"])
    return manifest, {table: rows.typed().frame.reset_index(drop=True) for table, rows in tables.items()}


def judge(tables: dict[str, Rows], manifest: schema.Manifest) -> None:
    """Raise UserError at the first thing in tables that no run can hold, or that something else of the run contradicts.

    Args:
        tables: all that a run has.
    """
    for rows in tables.values():
        rows.require_valid()
    consistency.require({table: rows.typed() for table, rows in tables.items()}, manifest)


def read_manifest(name: str) -> schema.Manifest:
    """Read and check the manifest alone. Its study lists its kinds of values, also where it was recorded with `all`.

    Raises:
        UserError: as `load`.
    """
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
    oldest = schema.OLDEST if manifest.get("complete") else schema.SCHEMA
    if version not in range(oldest, schema.SCHEMA + 1):
        advice = "measure again" if isinstance(version, int) and version < oldest else "update attnlab"
        reads = f"{schema.OLDEST} to {schema.SCHEMA}, and of a run that was cut off {schema.SCHEMA} alone"
        raise UserError(f"{where} has schema {version}, this attnlab reads {reads}: {advice}")
    if manifest.get("seal") != documents.digest({key: value for key, value in manifest.items() if key != "seal"}):
        raise UserError(f"{where} was changed after it was recorded, so the run is refused: restore it")
    with suppress(TypeError, KeyError):  # what is wrong is said next
        stated = manifest["study"]
        manifest["study"] = stated | {"sweeps": studies.spelled_out(stated["sweeps"], values.RECORDED_ALL)}
    require_manifest(manifest, where)
    if manifest["name"] != path.parent.name:
        raise UserError(f"{where} is of the run {manifest['name']!r}: give the folder that name again")
    return manifest


def sources_changed(one: schema.Manifest, other: schema.Manifest) -> list[str]:
    """The files of the measuring code that differ between two runs."""
    here, there = one["sources"], other["sources"]
    return sorted(path for path in here | there if here.get(path) != there.get(path))


def _whole_table(name: str, manifest: schema.Manifest, table: Table) -> Rows:
    path = schema.folder(name) / f"{table.name}.parquet"
    where = paths.shown(path)
    if not path.is_file():
        raise UserError(f"{where} is missing, so the run is refused: restore it from where the run came from")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != manifest["files"][path.name]:
        raise UserError(f"{where} doesn't match its manifest: it was changed after it was recorded; restore it")
    later = {column.name: column.before for column in table.columns if column.since > manifest["schema"]}
    return Rows.joined(table, path.parent, {path: _frame(content, path).assign(**later)})


def tables_of_parts(name: str) -> dict[str, Rows]:
    """The tables of a run that is not complete, each put together from its parts.

    Raises:
        UserError: a part was changed after it was recorded.
        FileNotFoundError: the run was closed in the meantime.
    """
    parts = schema.folder(name) / schema.PARTS
    there = sorted(parts.glob("*.parquet"))  # listed once: blocks of one shape that come later are all left out

    def joined(table: Table) -> Rows:
        mine = [part for part in there if part.name.startswith(f"{table.name}.")]
        return Rows.joined(table, parts, {part: _frame(_verified(part), part) for part in mine})

    return {table.name: joined(table) for table in TABLES.values()}


def part(name: str, table: str, key: str) -> pd.DataFrame:
    """The rows of one block of a run that is not complete.

    Raises:
        UserError: it was changed after it was recorded.
    """
    (path,) = (schema.folder(name) / schema.PARTS).glob(f"{table}.{key}.*.parquet")
    return _frame(_verified(path), path)


def _frame(content: bytes, path: Path) -> pd.DataFrame:
    try:
        return pd.read_parquet(io.BytesIO(content))
    except (OSError, ValueError):  # pyarrow's errors are one or the other
        raise refusal(path, "it is no table in Parquet") from None


def _verified(part: Path) -> bytes:
    if not schema.PART.fullmatch(part.name):  # a copy, say
        raise UserError(f"{paths.shown(part)} has no name of what was recorded: give it that again, or move it away")
    if part.is_symlink() and not part.exists():
        raise refusal(part, f"{part.name} links to it, and it is not there")
    content = part.read_bytes()
    if schema.short_hash(content) != part.name.split(".")[2]:
        raise refusal(part, "it was changed after it was recorded")
    return content


def _order(manifest: Path) -> str:
    try:
        stated = json.loads(manifest.read_text())
        order = str(stated.get("order") or stated.get("created", ""))
        return order if schema.TIME.fullmatch(order) else ""
    except (OSError, ValueError, AttributeError, RecursionError):
        return ""
