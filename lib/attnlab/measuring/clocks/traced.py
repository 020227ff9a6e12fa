"""The times of consecutive pieces of work, by CUPTI through PyTorch's profiler."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import torch
from torch.profiler import ProfilerActivity, profile

from attnlab.base.errors import UserError
from attnlab.measuring.instruments import inspection
from attnlab.measuring.instruments.tool import SEPARATOR
from attnlab.runs.schema import MEMSET

T = TypeVar("T")


@dataclass(frozen=True)
class Piece:
    """The time in which kernels ran, without memsets, and the time from the first start to the last end.

    Time in which 2 kernels ran counts once. With programmatic dependent launch, the duration of a kernel includes its
    wait for the previous kernel.
    """

    kernels_us: float
    span_us: float


class Trace:
    """Pieces of work, marked inside of `tracing`; afterwards, `pieces` has one `Piece` for each."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.marked = 0

    def mark(self, work: Callable[[], T]) -> T:
        """Queue a piece of work, and return its result."""
        torch.cuda._sleep(1)
        returned = work()
        torch.cuda._sleep(1)
        self.marked += 1
        return returned


@contextmanager
def tracing() -> Iterator[Trace]:
    """A context in which pieces of work are marked.

    Raises:
        UserError: CUPTI lost some of the work. It keeps at most 128 MB of records, for at least 10^5 kernels.
    """
    trace, tracer = Trace(), profile(activities=[ProfilerActivity.CUDA])
    with inspection.quiet():
        tracer.__enter__()
    try:
        yield trace
    finally:
        torch.cuda.synchronize()
        with inspection.quiet():
            tracer.__exit__(None, None, None)
    profiler: Any = tracer.profiler
    # The profiler also lists the host's own calls and its waiting.
    on_device = (event for event in profiler.kineto_results.events() if event.device_type().name == "CUDA")
    ran = (event for event in on_device if "ynchronize" not in event.name())
    trace.pieces += _pieces(sorted(ran, key=lambda event: event.start_ns()))
    if len(trace.pieces) != trace.marked:
        raise UserError(
            f"CUPTI showed {len(trace.pieces)} of {trace.marked} pieces of work: measure again, or leave the clock "
            "cupti out of the study"
        )


@cache
def available() -> bool:
    """Whether CUPTI sees the kernels that run on the device."""
    try:
        with tracing() as trace:
            tiny = torch.zeros(1, device="cuda")
            trace.mark(lambda: tiny.add_(1))
    except (UserError, RuntimeError):
        return False
    return True


def _pieces(events: list[Any]) -> Iterator[Piece]:
    inside: list[Any] | None = None
    for event in events:
        if SEPARATOR not in event.name():
            if inside is not None:
                inside.append(event)
        elif inside is None:
            inside = []
        else:
            if inside:
                yield _piece(inside)
            inside = None


def _piece(events: list[Any]) -> Piece:
    begin_ns = end_ns = events[0].start_ns()
    busy_ns = 0
    for event in (event for event in events if not event.name().startswith(MEMSET)):
        busy_ns += max(event.end_ns() - max(event.start_ns(), end_ns), 0)
        end_ns = max(end_ns, event.end_ns())
    return Piece(busy_ns / 1e3, (max(event.end_ns() for event in events) - begin_ns) / 1e3)
