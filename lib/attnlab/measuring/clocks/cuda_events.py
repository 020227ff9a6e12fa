"""Our clocks. ``eager``: one call as a program makes it, with the launch gap. ``device``: without the launch gap.
``cupti``: the time in which kernels of a call ran, by CUPTI; overlaps count once (`attnlab.measuring.clocks.traced`).

Untimed work precedes every sample. For a ``warm`` cache it is the same work on other values; then the timed values are
written. So the L2 holds data that this implementation and the writer of its inputs left there. For a ``cold`` cache
it is a write of twice the size of the L2.

=========  =====  ============================================================================================
clock      cache  one sample
=========  =====  ============================================================================================
eager      warm   scramble, call, restore, wait | event, call, event
eager      cold   flush, wait | event, call, event
device     warm   scramble, replay of k calls, restore | event, replay of k calls, event       the mean of the k
device     cold   hold the stream, flush | event, replay of one call, event
cupti      warm   scramble, replay of k calls, restore | replay of k calls                     the mean of the k
=========  =====  ============================================================================================

The timing of FP8 without quantising excludes the rounding of inputs to FP8, which follows each change of the inputs.

An implementation can't gain by caching results. Values are drawn again before each round, and scrambled during the
warm-up: the implementation sees them for the first time when it is timed. Each of the k calls that are timed together
reads a separate window of the inputs (`attnlab.measuring.subjects.inputs.Windows`).

On a CPU, `time.perf_counter_ns` replaces the events, and ``eager`` is the only clock.
"""

import math
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from statistics import median
from typing import Any

import torch

from attnlab.measuring.clocks import originals, traced
from attnlab.measuring.instruments import devices
from attnlab.measuring.subjects.case import Call, Case, Replay
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing

# The time of a graph in µs, and its most calls: enough to spread the 1 µs of a pair of events over many calls.
GRAPH_US = 400
GRAPH_CALLS = 64
# More than any device reaches: it bounds the calls of a graph before any call is timed.
FLOPS_PER_US = 1e9
# Cycles for which a stream is held while the host queues the events and the replay: 0.1 ms at 2 GHz.
HOLD_CYCLES = 200_000


@dataclass
class TakenSample:
    """A sample: the latency of a call, the number of calls timed together, and the output of the last.

    `strain` is that output's error in units of the allowed error, once it is known.
    """

    latency_us: float
    launches: int
    output: Any
    strain: float = math.nan


Sampler = Callable[[Case], TakenSample]


def flushing(device: torch.device) -> Callable[[], object]:
    """A function that empties the last-level cache, by writing twice its size."""
    return torch.empty(2 * devices.last_level_cache_bytes(device), dtype=torch.int8, device=device).zero_


def available(device: torch.device, timing: Timing) -> bool:
    """Whether the device has this clock."""
    if timing.clock == "cupti":
        return device.type == "cuda" and traced.available()
    return device.type == "cuda" or timing.clock == "eager"


def sampler(device: torch.device, timing: Timing) -> Sampler:
    """A function that takes one sample of a case."""
    flush = flushing(device) if timing.cache == "cold" else None
    if timing.clock == "eager" or device.type == "cpu":
        return partial(_eager, device, flush)
    return partial(_device_cold, flush) if flush else _device_warm


@contextmanager
def sampling(device: torch.device, timing: Timing) -> Iterator[Sampler]:
    """A context with a function that takes samples. CUPTI's samples get their latencies at the end of the context."""
    if timing.clock != "cupti":
        yield sampler(device, timing)
        return
    with traced.tracing() as trace:
        samples: list[TakenSample] = []

        def take(case: Case) -> TakenSample:
            assert case.many is not None
            with case.scrambled():
                case.many.graph.replay()
            trace.mark(case.many.graph.replay)
            samples.append(TakenSample(math.nan, case.many.calls, case.many.output))
            return samples[-1]

        yield take
    for sample, piece in zip(samples, trace.pieces, strict=True):
        sample.latency_us = piece.kernels_us / sample.launches


def most_calls(shape: Shape) -> int:
    """The most calls that a graph at this shape may need: the number of windows of its inputs."""
    return max(1, min(GRAPH_CALLS, math.ceil(GRAPH_US * FLOPS_PER_US / shape.flops)))


def capture(case: Case, pool: Any) -> None:
    """Capture the graphs of a case, of one call and of several, into a memory pool that cases share.

    Sharing is safe, since replays never overlap, and each writes all that it reads except the inputs.
    """
    with case.selected():
        case.one = _captured([case.call], pool)
        most = GRAPH_CALLS if case.windows is None else len(case.windows)
        calls = case.calls(min(most, _calls_that_fill(case.one)))
        if len(calls) == 1:
            case.many = case.one
            return
        for call in calls:  # one-time work of a call can't be captured
            call()
        case.many = _captured(calls, pool)
        if len(calls) > 2:
            # A random end: an implementation can't predict the last call of a graph.
            last = random.SystemRandom().randrange(1, len(calls) - 1)
            case.cut = _captured(calls[:-last], pool, last)


def roughly_us(case: Case, device: torch.device, calls: int = 10) -> float:
    """The mean latency of calls one after the other, in µs, for judging the warm-up."""
    with case.selected():
        return timed(device, lambda: [case.call() for _ in range(calls)])[0] / calls


def least_us(case: Case, device: torch.device, calls: int) -> float:
    """The smaller of 2 `roughly_us`, in case the host is delayed once."""
    return min(roughly_us(case, device, calls) for _ in range(2))


def timed(device: torch.device, work: Callable[[], Any], hold: bool = False) -> tuple[float, Any]:
    """The device's time for `work`, in µs, and its result; `hold` delays a GPU's stream until the work is queued."""
    if device.type == "cpu":
        begin = originals.perf_counter_ns()
        returned = work()
        return (originals.perf_counter_ns() - begin) / 1e3, returned
    start, end = _events()
    if hold:
        torch.cuda._sleep(HOLD_CYCLES)
    originals.record(start)
    returned = work()
    originals.record(end)
    originals.wait(end)
    return originals.elapsed_ms(start, end) * 1e3, returned


def timed_us(device: torch.device, work: Callable[[], object]) -> float:
    """The device's time for `work`, in µs, without the launch gap before it."""
    return timed(device, work, hold=True)[0]


def calibrate(device: torch.device) -> dict[str, float]:
    """The clock's limits, in µs: its tick, the time between 2 consecutive events, and that of a tiny kernel's graph."""
    around_nothing = [timed_us(device, lambda: None) for _ in range(200)]
    if device.type == "cpu":
        return {"tick_us": time.get_clock_info("perf_counter").resolution * 1e6, "nothing_us": median(around_nothing)}
    around_tiny = [timed_us(device, _tiny().graph.replay) for _ in range(200)]
    seen = sorted({round(value, 4) for value in around_nothing + around_tiny})
    steps = [b - a for a, b in pairwise(seen) if b - a > 1e-3]
    return {
        "tick_us": min(steps, default=0.0),
        "nothing_us": median(around_nothing),
        "smallest_graph_us": median(around_tiny),
    }


def _calls_that_fill(one: Replay) -> int:
    """The number of calls that take about `GRAPH_US`, from consecutive replays of the graph of 1 call."""
    replays = 10

    def replay_all() -> None:
        for _ in range(replays):
            one.graph.replay()

    replay_all()
    call_us = timed_us(torch.device("cuda"), replay_all) / replays
    return max(1, min(GRAPH_CALLS, math.ceil(GRAPH_US / call_us)))


def _captured(calls: list[Call], pool: Any, window: int = 0) -> Replay:
    *others, last = calls
    graph = torch.cuda.CUDAGraph()
    with devices.no_garbage_collected(), torch.cuda.graph(graph, pool=pool):
        for call in others:
            call()
        output = last()
    return Replay(graph, len(calls), output, window)


@cache
def _tiny() -> Replay:
    tiny = torch.zeros(1, device="cuda")
    return _captured([lambda: tiny.add_(1)], None)


@cache
def _events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    # All samples share one pair. CUDA creates an event when it is first recorded: here, and not inside an eager sample,
    # where that would be timed.
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    end.record()
    return start, end


def _eager(device: torch.device, flush: Callable[[], object] | None, case: Case) -> TakenSample:
    with case.selected():
        if flush:
            case.refresh()
            flush()
        else:
            with case.scrambled():
                case.call()
        devices.synchronize(device)
        latency_us, output = timed(device, case.call)
    return TakenSample(latency_us, 1, output)


def _device_warm(case: Case) -> TakenSample:
    # The untimed replay also holds the stream: it runs longer than the host needs to queue the timed one.
    assert case.many is not None
    with case.scrambled():
        case.many.graph.replay()
    # A graph begins about 2 µs sooner after another graph than after the kernels that write the values.
    _tiny().graph.replay()
    took_us, _ = timed(torch.device("cuda"), case.many.graph.replay)
    return TakenSample(took_us / case.many.calls, case.many.calls, case.many.output)


def _device_cold(flush: Callable[[], object], case: Case) -> TakenSample:
    assert case.one is not None
    case.refresh()
    torch.cuda._sleep(HOLD_CYCLES)
    flush()
    return TakenSample(timed(torch.device("cuda"), case.one.graph.replay)[0], 1, case.one.output)
