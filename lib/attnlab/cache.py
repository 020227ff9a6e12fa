"""Costly frames are kept in `data/<run>/.cache/`, which git ignores.

A file's name is a hash of the inputs under a key that only this user has. So no file in a run from a stranger can
match. Any file may be removed at any time.
"""

import hashlib
import hmac
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pandas as pd

from attnlab.base import files, paths
from attnlab.runs import schema

SOURCES = ("stats.py", "frames.py", "profile.py", "base/rules.py", "runs/checks.py", "runs/tables.py")
"""A change to one of these files invalidates every kept frame."""
MOST_KEPT = 60
"""The most files that are kept per run; older ones are deleted."""


def kept(run: str, what: str, *content: pd.DataFrame, make: Callable[[], pd.DataFrame]) -> pd.DataFrame:
    """The result of `make()`, or its earlier result for the same content; `what` names function and arguments."""
    file = _file(run, "\n".join([what, *map(_digest, content)])) if run else None
    with suppress(OSError, ValueError):  # pyarrow's errors are one or the other
        if file is not None:
            return pd.read_parquet(file)
    made = make()
    _write(file, made)
    return made


def is_marked(run: str, what: str) -> bool:
    """Whether `mark` was called for the same run and words."""
    file = _file(run, what)
    return file is not None and file.is_file()


def mark(run: str, what: str) -> None:
    """Record for `is_marked` that the words `what` are true of a run."""
    _write(_file(run, what), pd.DataFrame())


def _file(run: str, what: str) -> Path | None:
    """The path of a kept frame; None if the run isn't in `data/`, or the user's key can be neither read nor made."""
    folder, key = schema.folder(run) if run else None, _key()
    if not (folder and key and folder.is_dir()):
        return None
    code = b"".join((Path(__file__).parent / name).read_bytes() for name in SOURCES)
    name = hmac.new(key, f"{pd.__version__}\n{what}".encode() + code, "sha256").hexdigest()[:24]
    return folder / ".cache" / f"{name}.parquet"


def _key() -> bytes:
    """This user's key, made at first use; empty if it can't be saved."""
    try:
        file = paths.cache() / "frames.key"
        if not file.is_file():
            file.parent.mkdir(parents=True, exist_ok=True)
            files.write_atomically(file, os.urandom(32))
            file.chmod(0o600)
        return file.read_bytes()
    except (OSError, RuntimeError):  # the last where there is no home
        return b""


def _write(file: Path | None, frame: pd.DataFrame) -> None:
    """Write a frame to its file, if the folder is writable."""
    if file is None:
        return
    with suppress(OSError):
        file.parent.mkdir(exist_ok=True)
        files.write_atomically(file, frame.to_parquet(compression="zstd"))
        newest_first = sorted(file.parent.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
        for old in newest_first[MOST_KEPT:]:
            old.unlink(missing_ok=True)


def _digest(content: pd.DataFrame) -> str:
    rows = pd.util.hash_pandas_object(content, index=False).to_numpy()
    return hashlib.sha256(rows.tobytes() + ",".join(content.columns).encode()).hexdigest()
