"""The clocks. ``eager``: one call as a program makes it, launch gap included. ``device``: the launch gap removed.

Every sample is preceded by something untimed: for a ``warm`` cache the same work once more, so that the L2 holds what
this implementation leaves in it and not what its neighbour in the round did; for a ``cold`` one a write of twice its
size.

=========  =====  ====================================================================================
clock      cache  one sample
=========  =====  ====================================================================================
eager      warm   call, wait | event, call, event
eager      cold   flush, wait | event, call, event
device     warm   replay of k calls | event, replay of k calls, event          the mean of the k
device     cold   hold the stream, flush | event, replay of one call, event
=========  =====  ====================================================================================

On the CPU `time.perf_counter_ns` stands for the events, and there is no ``device`` clock.
"""

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from statistics import median
from typing import Any

import torch

from attnlab.measure import devices
from attnlab.studies import Timing

Output = torch.Tensor | tuple[torch.Tensor, ...]
Call = Callable[[], Output]

# A graph is made long enough that the microsecond which a pair of events costs is spread thin, and short enough that a
# sample stays a sample.
GRAPH_US = 400
GRAPH_CALLS = 64
# Cycles for which a held stream waits, while the host queues the events and the replay: 0.1 ms at 2 GHz.
HOLD_CYCLES = 200_000


@dataclass(frozen=True)
class Replay:
    """A captured graph of `calls` calls; `output` is what the last of them writes."""

    graph: torch.cuda.CUDAGraph
    calls: int
    output: Output


@dataclass
class Case:
    """One implementation at one shape, ready to be timed.

    Attributes:
        call: no arguments; returns the output.
        selected: the context in which `call` runs its implementation.
        one: a single call, for cold samples, where the device has graphs.
        many: as many calls as fill a warm sample.
    """

    call: Call
    selected: Callable[[], AbstractContextManager[object]]
    one: Replay | None = None
    many: Replay | None = None


class Flush:
    """Empties the last level of cache by writing twice its size."""

    def __init__(self, device: torch.device) -> None:
        self._buffer = torch.empty(2 * devices.last_level_cache_bytes(device), dtype=torch.int8, device=device)

    def __call__(self) -> None:
        self._buffer.zero_()


def available(device: torch.device, timing: Timing) -> bool:
    """Whether the device has this clock."""
    return device.type == "cuda" or timing.clock == "eager"


def sampler(device: torch.device, timing: Timing) -> Callable[[Case], tuple[float, int]]:
    """A function that takes one sample of a case: ``(latency_us, launches)``."""
    if device.type == "cpu":
        return _cpu_warm if timing.cache == "warm" else _CpuCold(device)
    if timing.clock == "eager":
        return _eager_warm if timing.cache == "warm" else _EagerCold(device)
    return _device_warm if timing.cache == "warm" else _DeviceCold(device)


def capture(case: Case, pool: Any) -> None:
    """Capture the graphs of a case, of one call and of several, into a memory pool that cases share.

    Sharing is safe as replays never overlap and each writes all that it reads but the inputs.
    """
    case.one = _captured(case, 1, pool)
    calls = _calls_that_fill(case.one)
    case.many = case.one if calls == 1 else _captured(case, calls, pool)


def roughly_us(case: Case, device: torch.device, calls: int = 10) -> float:
    """Mean latency of calls one after the other, to see warm-up settle."""
    with case.selected():
        if device.type == "cpu":
            return _wall_us(lambda: [case.call() for _ in range(calls)]) / calls
        start, end = _events()
        start.record()
        for _ in range(calls):
            case.call()
        end.record()
        end.synchronize()
    return start.elapsed_time(end) * 1e3 / calls


def timed_us(device: torch.device, work: Callable[[], object]) -> float:
    """How long the device takes over `work`, in us, without the launch gap before it."""
    return _between_events(work, hold=True) if device.type == "cuda" else _wall_us(work)


def calibrate(device: torch.device) -> dict[str, float]:
    """What the clock itself reads, in us: its tick, a pair of events around nothing, an empty graph."""
    if device.type == "cpu":
        resolution = time.get_clock_info("perf_counter").resolution * 1e6
        return {"tick_us": resolution, "nothing_us": median(_wall_us(lambda: None) for _ in range(200))}
    around_nothing = [_between_events(lambda: None, hold=True) for _ in range(200)]
    tiny = torch.zeros(1, device=device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tiny.add_(1)
    around_tiny = [_between_events(graph.replay, hold=True) for _ in range(200)]
    seen = sorted({round(value, 4) for value in around_nothing + around_tiny})
    steps = [b - a for a, b in pairwise(seen) if b - a > 1e-3]
    return {
        "tick_us": min(steps, default=0.0),
        "nothing_us": median(around_nothing),
        "smallest_graph_us": median(around_tiny),
    }


def _calls_that_fill(one: Replay, replays: int = 10) -> int:
    """How many calls take about as long as a graph should, by replays of one that follow one another."""

    def replay_all() -> None:
        for _ in range(replays):
            one.graph.replay()

    replay_all()
    call_us = _between_events(replay_all, hold=True) / replays
    return max(1, min(GRAPH_CALLS, math.ceil(GRAPH_US / call_us)))


def _captured(case: Case, calls: int, pool: Any) -> Replay:
    graph = torch.cuda.CUDAGraph()
    with case.selected(), torch.cuda.graph(graph, pool=pool):
        for _ in range(calls - 1):
            case.call()
        output = case.call()
    return Replay(graph, calls, output)


@cache
def _events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    # One pair, used over and over: CUDA creates an event when it is first recorded, which inside an eager sample
    # would be timed. The first recording happens here.
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    end.record()
    return start, end


def _between_events(work: Callable[[], object], hold: bool = False) -> float:
    start, end = _events()
    if hold:
        torch.cuda._sleep(HOLD_CYCLES)
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3


def _eager_warm(case: Case) -> tuple[float, int]:
    with case.selected():
        case.call()
        torch.cuda.synchronize()
        return _between_events(case.call), 1


class _EagerCold:
    def __init__(self, device: torch.device) -> None:
        self._flush = Flush(device)

    def __call__(self, case: Case) -> tuple[float, int]:
        with case.selected():
            self._flush()
            torch.cuda.synchronize()
            return _between_events(case.call), 1


def _device_warm(case: Case) -> tuple[float, int]:
    # The untimed replay also holds the stream: it runs for longer than the host needs to queue what follows.
    assert case.many is not None
    case.many.graph.replay()
    return _between_events(case.many.graph.replay) / case.many.calls, case.many.calls


class _DeviceCold:
    def __init__(self, device: torch.device) -> None:
        self._flush = Flush(device)

    def __call__(self, case: Case) -> tuple[float, int]:
        assert case.one is not None
        torch.cuda._sleep(HOLD_CYCLES)
        self._flush()
        return _between_events(case.one.graph.replay), 1


def _wall_us(work: Callable[[], object]) -> float:
    begin = time.perf_counter_ns()
    work()
    return (time.perf_counter_ns() - begin) / 1e3


def _cpu_warm(case: Case) -> tuple[float, int]:
    with case.selected():
        case.call()
        return _wall_us(case.call), 1


class _CpuCold:
    def __init__(self, device: torch.device) -> None:
        self._flush = Flush(device)

    def __call__(self, case: Case) -> tuple[float, int]:
        with case.selected():
            self._flush()
            return _wall_us(case.call), 1
