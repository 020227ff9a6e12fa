"""Torch's timing functions, saved before any implementation is imported: it shares the process and may patch them."""

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

# Called by these names: an implementation that replaces a method inside a sample may put it back there too.
perf_counter_ns = time.perf_counter_ns
record = torch.cuda.Event.record
wait = torch.cuda.Event.synchronize
elapsed_ms = torch.cuda.Event.elapsed_time


@contextmanager
def intact() -> Iterator[None]:
    """A context in which an implementation runs; parts of the clock that it replaces are restored.

    Raises:
        Broken: it replaced a part, or reserved part of the L2, where lines outlast the flush of a cold sample.
    """
    set_aside = _set_aside_bytes()
    try:
        yield
    except Exception as error:  # may have come of what was replaced
        _put_back(set_aside, error)
        raise
    _put_back(set_aside)


def _now() -> dict[tuple[Any, str], Any]:
    functions = {(owner, name): getattr(owner, name, None) for owner, names in FUNCTIONS.items() for name in names}
    methods = {(owner, name): held for owner in CLASSES for name, held in vars(owner).items() if callable(held)}
    return functions | methods


_TAKEN = _now()


def _put_back(set_aside: int | None, cause: Exception | None = None) -> None:
    """Undo all replacements, additions and L2 reservations; if there were any, raise Broken, which names them."""
    now, found = _now(), []
    changed = [key for key in now | _TAKEN if now.get(key) is not _TAKEN.get(key)]
    for owner, name in changed:
        if (owner, name) in _TAKEN:
            setattr(owner, name, _TAKEN[owner, name])
        else:
            delattr(owner, name)
    if changed:
        names = ", ".join(f"{owner.__name__}.{name}" for owner, name in changed)
        found.append(f"replaced {names}, by which it is timed")
    if set_aside is not None and (size := _set_aside_bytes()) not in (None, set_aside):
        driver = maps.driver()
        driver.cuCtxSetLimit(driver.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE, set_aside)
        driver.cuCtxResetPersistingL2Cache()
        found.append(f"set {size} bytes of the L2 aside, where lines outlast a flush")
    if found:
        raise Broken(" and ".join(found)) from cause


def _set_aside_bytes() -> int | None:
    """The bytes of the L2 reserved for persisting lines; None if no GPU is in use, or it doesn't report them."""
    if not torch.cuda.is_initialized():
        return None
    try:
        driver = maps.driver()
    except Unsupported:
        return None
    error, size = driver.cuCtxGetLimit(driver.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE)
    return int(size) if error == driver.CUresult.CUDA_SUCCESS else None
