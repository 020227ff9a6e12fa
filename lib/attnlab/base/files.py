"""Files that are never left half-written: locks between processes, and the atomic write."""

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
    """Hold a lock while the context lasts; it also ends with the process, however that ends.

    Args:
        path: the file that is locked; created if it doesn't exist.
        waiting: called once, before waiting, if another process holds the lock.
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
    # Who held the lock until now may have removed the file, and another may hold a new one.
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def require_writable(folder: Path, variable: str) -> None:
    """Make sure that a folder is there and takes files, before work is done whose result it is for.

    Args:
        variable: of the environment, which names the folder.

    Raises:
        UserError: it isn't, or doesn't.
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
    # Otherwise, a machine that loses power may have removed the parts without having kept the new name.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
