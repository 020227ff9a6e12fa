"""What samples are timed with, taken as this is imported: before any implementation, which shares the process."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from attnlab.measuring.kernels import maps
from attnlab.measuring.subjects.implementation import Broken, Unsupported

FUNCTIONS = {
    time: ("perf_counter_ns",),
    torch.cuda: ("CUDAGraph", "Event", "_sleep", "current_stream", "graph", "synchronize"),
}
CLASSES = (*torch.cuda.Event.__mro__[:-1], *torch.cuda.CUDAGraph.__mro__[:-1], torch.cuda.graph)
"""Classes of which no method may be replaced or added."""

# Called by these names: whoever replaces a method inside a sample may put it back there too.
perf_counter_ns = time.perf_counter_ns
record = torch.cuda.Event.record
wait = torch.cuda.Event.synchronize
elapsed_ms = torch.cuda.Event.elapsed_time


@contextmanager
def intact() -> Iterator[None]:
    """A context in which an implementation runs; whatever it replaces of the clock is put back.

    Raises:
        Broken: it replaced some of it, or set part of the L2 aside, where lines outlast the flush of a cold sample.
    """
    set_aside = _set_aside_bytes()
    try:
        yield
    except Exception as error:  # may have come of what was replaced
        if wrong := _undone(set_aside):
            raise Broken(wrong) from error
        raise
    if wrong := _undone(set_aside):
        raise Broken(wrong)


def _undone(set_aside: int | None) -> str:
    """What was replaced or set aside, in words, once it is put back; "" if nothing was."""
    found = []
    if replaced := _put_back():
        found.append(f"replaced {', '.join(replaced)}, by which it is timed")
    bytes_ = _set_aside_bytes()
    if set_aside is not None and bytes_ not in (None, set_aside):
        _set_aside(set_aside)
        found.append(f"set {bytes_} bytes of the L2 aside, where lines outlast a flush")
    return " and ".join(found)


def _now() -> dict[tuple[Any, str], Any]:
    functions = {(owner, name): getattr(owner, name, None) for owner, names in FUNCTIONS.items() for name in names}
    methods = {(owner, name): held for owner in CLASSES for name, held in vars(owner).items() if callable(held)}
    return functions | methods


_TAKEN = _now()


def _put_back() -> list[str]:
    """Undo whatever was replaced or added; returns the names."""
    now = _now()
    changed = [key for key in now | _TAKEN if now.get(key) is not _TAKEN.get(key)]
    for owner, name in changed:
        if (owner, name) in _TAKEN:
            setattr(owner, name, _TAKEN[owner, name])
        else:
            delattr(owner, name)
    return [f"{owner.__name__}.{name}" for owner, name in changed]


def _set_aside_bytes() -> int | None:
    """The part of the L2 that is for persisting lines; None where no GPU is in use, or it doesn't say."""
    if not torch.cuda.is_initialized():
        return None
    try:
        driver = maps.driver()
    except Unsupported:
        return None
    error, size = driver.cuCtxGetLimit(driver.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE)
    return int(size) if error == driver.CUresult.CUDA_SUCCESS else None


def _set_aside(size: int) -> None:
    driver = maps.driver()
    driver.cuCtxSetLimit(driver.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE, size)
    driver.cuCtxResetPersistingL2Cache()
