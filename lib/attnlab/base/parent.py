"""The process that started this one, Ctrl-C, which reaches both, and SIGTERM."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


def end_with_parent() -> None:
    """End this process as soon as the one that started it has ended, however it did."""
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
    """Inside, Ctrl-C raises KeyboardInterrupt and is kept in mind, as other code may swallow that.

    SIGTERM, by which containers and schedulers of jobs end a process, does the same.
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

    Callbacks of IPython and finalizers of Python swallow it, for instance.
    """
    if _INTERRUPTED:
        raise KeyboardInterrupt


@contextmanager
def ctrl_c_blocked() -> Iterator[None]:
    """Inside, Ctrl-C waits for the end; in a process or a thread that is started inside it stays blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
