"""Which implementation a measuring process is calling, so that one that ends the process, or never returns, is named.

An implementation shares the process of the clock: in another it would compete for the device with its baseline. So the
process that started it watches it. Before each step, it writes on a board, memory that both share, which implementation
it is about to call, where, and until when. A step that outlasts its time is ended. Then the work begins again in a
fresh process (`attnlab.measuring.processes`), which knows the failures so far and doesn't repeat them.
"""

import math
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_char
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import Any


class Spoiled(Exception):
    """An implementation left its process in a state in which nothing else can be measured; the message says how."""


SIZE = 4096
_HEAD = struct.Struct("?ddH")
Failures = dict[tuple[str, str], str]
"""The reason why an implementation failed, by its name and the place: the key of a shape, or "" for everywhere."""


@dataclass(frozen=True)
class WatchedStep:
    """A call, or several, of one implementation.

    Attributes:
        within: whether it has begun and not ended.
        begun_s: when it began, by `time.monotonic`, which all processes share.
        limit_s: how long it may take.
    """

    within: bool
    begun_s: float
    limit_s: float
    implementation: str
    place: str

    @property
    def overdue(self) -> bool:
        """Whether it has taken longer than it may."""
        return self.within and time.monotonic() > self.begun_s + self.limit_s

    def same(self, other: "WatchedStep") -> bool:
        """Whether it is of the same implementation at the same place."""
        return (self.implementation, self.place) == (other.implementation, other.place)


_board: Any = None
_failures: Failures = {}


def board(context: BaseContext) -> Any:
    """Memory that a process shares with those that it starts with this context."""
    return context.RawArray(c_char, SIZE)


def begin(shared: Any, failures: Failures) -> None:
    """Write this process's steps on a board from now on, and leave out implementations that failed before."""
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


def failed(failures: Failures, step: WatchedStep) -> bool:
    """Whether a step is of an implementation that is known to fail there."""
    return (step.implementation, step.place) in failures


def failure(implementation: str, place: str = "") -> str:
    """How an implementation ended a process at a place or everywhere, and isn't called there; "" if it may be."""
    return _failures.get((implementation, ""), "") or _failures.get((implementation, place), "")


@contextmanager
def step(implementation: str, place: str, limit_s: float = math.inf) -> Iterator[None]:
    """Inside, an implementation is called.

    Args:
        place: the key of a shape, or "" for work that it needs everywhere.
        limit_s: how long that may take.
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
