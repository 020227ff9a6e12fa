"""Our clocks. ``eager``: one call as a program makes it, with the launch gap. ``device``: without the launch gap.

Something untimed precedes every sample. For a ``warm`` cache it is the same work once more, so that the L2 holds what
this implementation leaves in it, and not what its neighbour in the round left. For a ``cold`` cache it is a write of
twice the size of the L2.

=========  =====  ====================================================================================
clock      cache  one sample
=========  =====  ====================================================================================
eager      warm   call, wait | event, call, event
eager      cold   flush, wait | event, call, event
device     warm   replay of k calls | event, replay of k calls, event          the mean of the k
device     cold   hold the stream, flush | event, replay of one call, event
=========  =====  ====================================================================================

On a CPU, `time.perf_counter_ns` takes the place of the events, and there is no ``device`` clock.
"""

import math
import time
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from statistics import median
from typing import Any

import torch

from attnlab.measure.instruments import devices
from attnlab.measure.subjects.case import Case, Replay
from attnlab.study.studies import Timing

# A graph is long enough that the microsecond which a pair of events costs is spread over many calls, and short enough
# that a sample is not yet an average over everything.
GRAPH_US = 400
GRAPH_CALLS = 64
# Cycles for which a stream is held while the host queues the events and the replay: 0.1 ms at 2 GHz.
HOLD_CYCLES = 200_000


class Flush:
    """Empties the last-level cache by writing twice its size."""

    def __init__(self, device: torch.device) -> None:
        self._buffer = torch.empty(2 * devices.last_level_cache_bytes(device), dtype=torch.int8, device=device)

    def __call__(self) -> None:
        self._buffer.zero_()


def available(device: torch.device, timing: Timing) -> bool:
    """Whether the device has this clock."""
    return device.type == "cuda" or timing.clock == "eager"


def sampler(device: torch.device, timing: Timing) -> Callable[[Case], tuple[float, int]]:
    """A function that takes one sample of a case and returns ``(latency_us, launches)``."""
    if device.type == "cpu":
        return _cpu_warm if timing.cache == "warm" else _CpuCold(device)
    if timing.clock == "eager":
        return _eager_warm if timing.cache == "warm" else _EagerCold(device)
    return _device_warm if timing.cache == "warm" else _DeviceCold(device)


def capture(case: Case, pool: Any) -> None:
    """Capture the graphs of a case, of one call and of several, into a memory pool that cases share.

    Sharing is safe, since replays never overlap, and each writes all that it reads except the inputs.
    """
    case.one = _captured(case, 1, pool)
    calls = _calls_that_fill(case.one)
    case.many = case.one if calls == 1 else _captured(case, calls, pool)


def roughly_us(case: Case, device: torch.device, calls: int = 10) -> float:
    """The mean latency of calls one after the other, in µs, for judging the warm-up."""
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
    """How long the device takes for `work`, in µs, without the launch gap before it."""
    return _between_events(work, hold=True) if device.type == "cuda" else _wall_us(work)


def calibrate(device: torch.device) -> dict[str, float]:
    """What the clock itself reads, in µs: its tick, a pair of events around nothing, and a graph of a tiny kernel."""
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
    """How many calls take about as long as a graph should, by consecutive replays of the graph of one."""

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
    # One pair is used for everything. CUDA creates an event when it is first recorded, which happens here: inside an
    # eager sample it would be timed.
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
    # The untimed replay also holds the stream: it runs longer than the host needs to queue what follows.
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
