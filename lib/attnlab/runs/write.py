"""Write a run: block by block while it is measured, as whole tables at the end.

While a run is recorded, each block of rows is a separate file in ``parts/``. It is written to a temporary name,
flushed and renamed, so a run that is killed at any moment holds whole blocks only. The name of a part holds the start
of its SHA-256. Once nothing is missing, the parts become one Parquet file per table, whose hashes the manifest holds.
"""

import hashlib
import io
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

import pandas as pd
import pyarrow as pa
from pyarrow import parquet

from attnlab.base import documents, files, paths
from attnlab.base.errors import UserError
from attnlab.base.files import write_atomically
from attnlab.runs import read
from attnlab.runs.checks import PLACE, judge
from attnlab.runs.schema import PARTS, SCHEMA, Manifest, folder, short_hash
from attnlab.study import studies

LAST = ("cases", "panel")
"""Tables whose blocks are written last of their shape or case, which then counts as recorded."""
BEGUN = "begun.json"
"""The file that states the work of a run that has no manifest yet."""


def create(name: str, manifest: Manifest) -> None:
    """Begin a run: make its folder, with a manifest that says that it isn't complete.

    Its ``order`` is the time at which it began. If the newest run isn't older, the ``order`` is that run's and a ``+``,
    which sorts after it. The cause is a clock that was set back, or a start within the same second.
    """
    target = folder(name)
    (target / PARTS).mkdir(parents=True, exist_ok=True)
    created = str(manifest.get("created") or datetime.now(UTC).isoformat(timespec="seconds"))
    newest = next(map(read.order, reversed(read.names())), "")
    order = created if created > newest else f"{newest}+"
    first = {"schema": SCHEMA, "name": name, "created": created}
    _write_manifest(target, first | manifest | {"order": order, "complete": False})


@contextmanager
def lock(name: str, stated: Manifest | None = None) -> Iterator[None]:
    """Hold the run for writing. A second process gets an error.

    Args:
        stated: the field of the manifest that states a new run's work. It is stored until there is a manifest. A run
            that was killed before that begins again only with the same work.

    Raises UserError: another process is measuring into this run, or its name is that of a file or of another folder. Or
    the run was killed before it had a manifest, and had other work.
    """
    target = folder(name)
    manifest = target / "manifest.json"

    def refuse() -> NoReturn:
        raise UserError(f"another process is measuring into the run {name!r}: wait for it, or name another")

    for there in (target, target / PARTS):
        if there.exists() and not there.is_dir():
            raise UserError(f"{paths.shown(there)} is a file: move it away, or name another run")
    with files.held(target / ".lock", refuse):
        try:
            is_new = not manifest.is_file()
            if is_new:
                _require_same_work(name, stated or {})
            try:
                if is_new and stated and not (target / BEGUN).is_file():
                    write_atomically(target / BEGUN, json.dumps(stated).encode())
                yield
            finally:
                (target / BEGUN).unlink(missing_ok=True)
        finally:
            if not manifest.is_file():
                _tidy(name)
                for emptied in (target / PARTS, target):
                    with suppress(OSError):  # not empty, so not ours
                        emptied.rmdir()


def begun(name: str) -> Manifest:
    """The work of a run that has no manifest yet, as `lock` keeps it; empty if there is none.

    Raises UserError: the file that holds it was changed.
    """
    path = folder(name) / BEGUN
    try:
        return dict(json.loads(path.read_text())) if path.is_file() else {}
    except (ValueError, TypeError):
        nothing = f"delete {paths.shown(path.parent)}/, which holds no sample"
        raise UserError(f"{paths.shown(path)} was changed: {nothing}") from None


def _require_same_work(name: str, stated: Manifest) -> None:
    """Raise UserError if a run without a manifest has other work, or its folder has files that no kill leaves."""
    target = folder(name)
    others = {path.name for path in target.iterdir()} - {".lock", BEGUN, PARTS, *_drafts(name)}
    if others or any((target / PARTS).glob("*.parquet")):
        raise UserError(f"{paths.shown(target)}/ is there and has no manifest.json: restore that, or name another run")
    if (before := begun(name)) and stated and before != stated:
        raise UserError(
            f"the run {name!r} was killed before anything was recorded, and is of another {next(iter(before))}: "
            "state the same, or choose another name"
        )


def _drafts(name: str) -> list[str]:
    """Names of temporary files that a killed process had not yet renamed."""
    return [path.name for end in ("json", "parquet") for path in folder(name).glob(f".*.{end}.*.tmp")]


def _tidy(name: str, *more: str) -> None:
    for left in (*_drafts(name), *more, ".lock"):
        (folder(name) / left).unlink(missing_ok=True)


def add_part(name: str, table: str, key: str, rows: pd.DataFrame) -> None:
    """Record the rows of one block, all or none of them. A block that already exists stays."""
    content = rows.to_parquet(index=False)
    take_part(name, f"{table}.{key}.{short_hash(content)}.parquet", content)


def take_part(name: str, part: str, content: bytes) -> None:
    """Record a block under the name that it already has, e.g. from another machine's run folder."""
    table, key, digest, _ = part.split(".")
    if short_hash(content) != digest:
        raise OSError(f"the block {part} arrived with other content than its name says")
    parts = folder(name) / PARTS
    # A process that briefly outlives the one that started it may be writing the same block.
    with files.held(parts / ".lock"):
        if key not in recorded(name, table):
            write_atomically(parts / part, content)


def recorded(name: str, table: str) -> set[str]:
    """The keys of a table's blocks in a run that isn't complete yet."""
    return {path.name.split(".")[1] for path in (folder(name) / PARTS).glob(f"{table}.*.parquet")}


def state(name: str, more: Manifest) -> None:
    """Add fields to the manifest of a run that isn't complete yet."""
    _write_manifest(folder(name), read.read_manifest(name) | more)


def finish(name: str, more: Manifest | None = None) -> None:
    """Turn the parts into one file per table, and add `more` fields to the manifest. If it is killed, run it again.

    Raises UserError: parts were lost or changed since they were recorded. All are kept.
    """
    target, manifest = folder(name), read.read_manifest(name)
    if not manifest["complete"]:
        tables = read.tables_of_parts(name)
        # The machine's clock may have been set back since.
        finished = max(datetime.now(UTC), datetime.fromisoformat(manifest["created"])).isoformat(timespec="seconds")
        manifest |= (more or {}) | {"complete": True, "finished": finished, "files": {}}
        judge(tables, manifest, target / PARTS)
        for table, rows in tables.items():
            content = _packed(rows.drop(columns=PLACE))
            write_atomically(target / f"{table}.parquet", content)
            manifest["files"][f"{table}.parquet"] = hashlib.sha256(content).hexdigest()
        _write_manifest(target, manifest)
    shutil.rmtree(target / PARTS, ignore_errors=True)
    _tidy(name, BEGUN)


def require_incomplete(name: str, manifest: Manifest) -> None:
    """Raise UserError if a run is complete, and remove parts that are left of it if it was killed while it closed."""
    if manifest["complete"]:
        finish(name)
        raise UserError(f"the run {name!r} is complete: `make report RUN={name}` renders it")


def close_early(name: str) -> None:
    """Close a run that was cut off; if it lacks anything, its manifest then states how much it holds.

    Raises UserError: the run is complete, is being measured into, or holds no whole replicate.
    """
    manifest = read.read_manifest(name)
    if manifest["complete"]:
        raise UserError(f"the run {name!r} is complete: there is nothing to close")
    study = studies.recorded(manifest)
    with lock(name):
        held = Counter(key.split("-")[0] for key in recorded(name, "cases"))
        whole = sum(count == len(study.shapes) for count in held.values())
        if not whole:
            goes_on = f"`make measure RUN={name}` goes on, or says why it can't"
            raise UserError(f"no replicate of {name!r} is whole: {goes_on}; then delete {paths.shown(folder(name))}/")
        closed = {"replicates": whole, "shapes": held.total(), "planned": len(study.shapes) * study.replicates}
        lacks_stream = study.stream and len(recorded(name, "stream")) < study.replicates
        if "profile" in manifest and closed["shapes"] == closed["planned"] and not lacks_stream:
            return finish(name)  # it was cut off while it was closed
        uncounted = {"tool": "", "why": "the run was closed before its counters were taken", "command": ""}
        finish(name, {"profile": uncounted} | manifest | {"closed_early": closed})


def _packed(frame: pd.DataFrame) -> bytes:
    # No time occurs twice, so a dictionary of them would be longer than the column. `runs.tables` has the schema.
    times = [column for column in frame.columns if column == "started_s"]
    buffer = io.BytesIO()
    parquet.write_table(
        pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None),
        buffer,
        compression="zstd",
        compression_level=19,
        use_dictionary=[column for column in frame.columns if column not in times],
        column_encoding=dict.fromkeys(times, "BYTE_STREAM_SPLIT"),
        store_schema=False,
        write_statistics=False,
    )
    return buffer.getvalue()


def _write_manifest(target: Path, manifest: Manifest) -> None:
    body = {key: value for key, value in manifest.items() if key != "seal"}
    sealed = body | {"seal": documents.digest(body)}
    write_atomically(target / "manifest.json", json.dumps(sealed, indent=1).encode() + b"\n")
