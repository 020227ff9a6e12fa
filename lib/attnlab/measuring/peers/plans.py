"""The plans that a library offers for tensors of one layout: all are tried, and the fastest is kept."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import TypeVar

import torch

T = TypeVar("T")

# A plan is timed by so many calls at once, in so many rounds if it isn't far slower than the fastest in a first one.
CALLS, ROUNDS, FAR_SLOWER = 5, 9, 1.5
# Cycles for which a stream is held until the calls are queued, 0.5 ms at 2 GHz; twice as many where they were too few.
HOLD_CYCLES, MOST_HOLD_CYCLES = 1_000_000, 64_000_000


def unless_refused(work: Callable[[], T], refusals: tuple[type[Exception], ...], reasons: list[str]) -> T | None:
    """The result of `work`; None if it raises one of `refusals`, and then the first line of the reason is appended.

    What the device itself raises, when it fails or its memory is full, is no refusal.
    """
    try:
        return work()
    except (torch.AcceleratorError, torch.OutOfMemoryError):
        raise
    except refusals as error:
        reasons.append(next(iter(str(error).splitlines()), type(error).__name__))
        return None


def fastest(calls: Sequence[Callable[[], object]]) -> int:
    """Which of these calls takes the GPU the least time, by the median over rounds in which they take turns."""
    first_ms = [_calls_ms(call) for call in calls]
    near = [number for number, ms in enumerate(first_ms) if ms <= FAR_SLOWER * min(first_ms)]
    rounds = [{number: _calls_ms(calls[number]) for number in near} for _ in range(ROUNDS)]
    return min(near, key=lambda number: median(ms[number] for ms in rounds))


def _calls_ms(call: Callable[[], object], hold_cycles: int = HOLD_CYCLES) -> float:
    """How long the GPU takes for a few calls one after the other, in ms, without what the host takes to queue them."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(hold_cycles)
    start.record()
    for _ in range(CALLS):
        call()
    end.record()
    began_early = start.query()  # before all were queued: the GPU may have waited for the host
    end.synchronize()
    if began_early and hold_cycles < MOST_HOLD_CYCLES:
        return _calls_ms(call, 2 * hold_cycles)
    return start.elapsed_time(end)
