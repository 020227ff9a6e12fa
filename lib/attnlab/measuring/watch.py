"""Watch a measuring process, to name the implementation that ends the process or never returns.

An implementation runs in the process of the clock: in another it would compete for the device with its baseline. So the
parent process watches it. Before each step, the measuring process writes to shared memory, the board, which
implementation it is about to call, at which shape, and with which time limit. The parent kills a process whose step
exceeds its limit. Then the work begins again in a fresh process (`attnlab.measuring.processes`), which skips the
failures so far.
"""

import math
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


class Spoiled(Exception):
    """An implementation left its process unable to measure anything else; the message says how."""


SIZE = 4096
"""The bytes of a board."""
_HEAD = struct.Struct("?ddH")
Failures = dict[tuple[str, str], str]
"""The reason why an implementation failed, by its name and the place: the key of a shape, or "" for everywhere."""


@dataclass(frozen=True)
class WatchedStep:
    """A step: one or more calls of an implementation.

    Attributes:
        within: whether the step has begun and not ended.
        begun_s: its start, by `time.monotonic`, which all processes share.
        limit_s: its time limit.
    """

    within: bool
    begun_s: float
    limit_s: float
    implementation: str
    place: str

    @property
    def overdue(self) -> bool:
        """Whether the step has exceeded its time limit."""
        return self.within and time.monotonic() > self.begun_s + self.limit_s

    @property
    def key(self) -> tuple[str, str]:
        """Its key in `Failures`."""
        return self.implementation, self.place


_board: Any = None
_failures: Failures = {}


def begin(shared: Any, failures: Failures) -> None:
    """From now on, write this process's steps to a board, and skip implementations that failed before."""
    global _board, _failures
    _board, _failures = shared, failures


def read(shared: Any) -> WatchedStep | None:
    """The last step on a board; None if none began."""
    within, begun_s, limit_s, size = _HEAD.unpack(shared[: _HEAD.size])
    if not size:
        return None
    words = bytes(shared[_HEAD.size : _HEAD.size + size]).decode(errors="replace")
    implementation, _, place = words.partition("\n")  # the next one may be half written, which has not begun then
    return WatchedStep(within, begun_s, limit_s, implementation, place)


def failure(implementation: str, place: str = "") -> str:
    """The reason why an implementation must not be called at a place, since it ended a process; "" if it may be."""
    return _failures.get((implementation, ""), "") or _failures.get((implementation, place), "")


@contextmanager
def step(implementation: str, place: str, limit_s: float = math.inf) -> Iterator[None]:
    """A context in which an implementation is called.

    Args:
        place: the key of a shape, or "" for work that it needs at all shapes.
        limit_s: the time limit of the step.
    """
    if _board is None:
        yield
        return
    words = f"{implementation}\n{place}".encode()[: SIZE - _HEAD.size]
    _board[_HEAD.size : _HEAD.size + len(words)] = words
    began = time.monotonic(), limit_s, len(words)
    _board[: _HEAD.size] = _HEAD.pack(True, *began)
    try:
        yield
    finally:
        _board[: _HEAD.size] = _HEAD.pack(False, *began)
