"""The process that started this one, Ctrl-C, which reaches both, and SIGTERM."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


def end_with_parent() -> None:
    """End this process as soon as the one that started it has ended, however it did."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os._exit(1)


@contextmanager
def terminated_as_by_ctrl_c() -> Iterator[None]:
    """Inside, SIGTERM, by which containers and schedulers of jobs end a process, does what Ctrl-C does."""
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, before if before is signal.SIG_IGN else signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def ctrl_c_blocked() -> Iterator[None]:
    """Inside, Ctrl-C waits for the end; in a process or a thread that is started inside it stays blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
