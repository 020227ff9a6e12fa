"""Watch a measuring process, to name the implementation that ends the process or never returns.

An implementation runs in the process of the clock: in another it would compete for the device with its baseline. So the
parent process watches it. Before each step, the measuring process writes to shared memory, the board, which
implementation it is about to call, at which shape, and with which time limit. The parent kills a process whose step
exceeds its limit. Then the work begins again in a fresh process (`attnlab.measuring.processes`), which skips the
failures so far.
"""

import ctypes
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Spoiled(Exception):
    """An implementation left its process unable to measure anything else; the message says how."""


Failures = dict[tuple[str, str], str]
"""The reason why an implementation failed, by its name and the place: the key of a shape, or "" for everywhere."""
MOST_BYTES = 4000


class WatchedStep(ctypes.Structure):
    """A step: one or more calls of an implementation. The board holds the last one.

    Attributes:
        within: whether the step has begun and not ended.
        begun_s: its start, by `time.monotonic`, which all processes share.
        limit_s: its time limit.
        words: the implementation and the place, a line each; empty if no step began.
    """

    within: bool
    begun_s: float
    limit_s: float
    words: bytes
    _fields_ = (
        ("within", ctypes.c_bool),
        ("begun_s", ctypes.c_double),
        ("limit_s", ctypes.c_double),
        ("words", ctypes.c_char * MOST_BYTES),
    )

    @property
    def overdue(self) -> bool:
        """Whether the step has exceeded its time limit."""
        return self.within and time.monotonic() > self.begun_s + self.limit_s

    @property
    def key(self) -> tuple[str, str]:
        """Its key in `Failures`."""
        implementation, _, place = self.words.decode(errors="replace").partition("\n")
        return implementation, place


_board: WatchedStep | None = None
_failures: Failures = {}


def begin(shared: WatchedStep, failures: Failures) -> None:
    """From now on, write this process's steps to a board, and skip implementations that failed before."""
    global _board, _failures
    _board, _failures = shared, failures


def failure(implementation: str, place: str = "") -> str:
    """The reason why an implementation must not be called at a place, since it ended a process; "" if it may be."""
    return _failures.get((implementation, ""), "") or _failures.get((implementation, place), "")


@contextmanager
def step(implementation: str, place: str, limit_s: float = math.inf) -> Iterator[None]:
    """A context in which an implementation is called, with a time limit.

    The place is the key of a shape, or "" for work that it needs at all shapes.
    """
    if _board is None:
        yield
        return
    _board.words = f"{implementation}\n{place}".encode()[:MOST_BYTES]
    _board.begun_s, _board.limit_s = time.monotonic(), limit_s
    _board.within = True  # last: a step of which only a part is written has not begun
    try:
        yield
    finally:
        _board.within = False
