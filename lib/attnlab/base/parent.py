"""End with the parent process, and handle Ctrl-C and SIGTERM."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


def end_with_parent() -> None:
    """End this process as soon as its parent process has ended, even if the parent was killed."""
    if (parent := multiprocessing.parent_process()) is None:
        return

    def end() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


_INTERRUPTED: list[int] = []
"""The signals that arrived inside of `interruptible`."""


@contextmanager
def interruptible() -> Iterator[None]:
    """A context in which Ctrl-C raises KeyboardInterrupt and is recorded, since other code may swallow that.

    SIGTERM, with which containers and job schedulers end a process, does the same.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in before.items():
        signal.signal(number, handler if handler is signal.SIG_IGN else _interrupt)
    try:
        yield
    finally:
        _INTERRUPTED.clear()
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, _: object) -> None:
    _INTERRUPTED.append(number)
    raise KeyboardInterrupt


def raise_if_interrupted() -> None:
    """Raise KeyboardInterrupt if a signal arrived inside `interruptible`, even if the first exception was swallowed.

    For example, IPython callbacks and Python finalizers swallow it.
    """
    if _INTERRUPTED:
        raise KeyboardInterrupt


@contextmanager
def ctrl_c_blocked() -> Iterator[None]:
    """A context that delays Ctrl-C until its end; in processes and threads started inside, Ctrl-C stays blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
