"""Locks between processes, and atomic writes of files."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

from attnlab.base import paths
from attnlab.base.errors import UserError


@contextmanager
def held(path: Path, waiting: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Hold a file lock inside the context; the lock is also released if the process is killed.

    If another process holds the lock, `waiting` is called once before waiting.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(handle, fcntl.LOCK_EX)
            if _is_at(path, handle.fileno()):
                yield
                return


def _is_at(path: Path, descriptor: int) -> bool:
    # The previous holder may have removed the file, and another process may hold a new one.
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def require_writable(folder: Path, variable: str) -> None:
    """Make sure that a folder exists and is writable, before the work whose result is written there.

    Raises UserError, which says that the environment variable `variable` names the folder.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()
    except OSError as error:
        where = f"{paths.shown(folder)}: {error.strerror}"
        raise UserError(f"{where}: have it take files, or name another folder by {variable}") from None


def write_atomically(path: Path, content: bytes) -> None:
    """Write or replace a file as a whole or not at all, even if the process is killed or the machine loses power."""
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
    # Without this, the caller may remove the parts of the file, and a power loss then undo the new name.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
