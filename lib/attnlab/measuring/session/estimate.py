"""How long a study will take on this device, from a few calls, before anything of it is measured.

Each implementation is called at its target with fewer keys and queries, then with more and more of them, as long as a
call takes no longer than `LONGEST_CALL_S`. So are the oracle and what keeps inputs new. The rest is arithmetic: what a
call takes at the study's shapes, by their FLOPs, and how many calls a sample, a warm-up and the gate make.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pandas as pd
import torch

from attnlab.base.errors import UserError
from attnlab.measuring import watch
from attnlab.measuring.clocks import cuda_events
from attnlab.measuring.instruments import devices
from attnlab.measuring.session.subject import Job
from attnlab.measuring.subjects import registry
from attnlab.measuring.subjects.implementation import Implementation, OutOfMemory, attempt, fatal
from attnlab.measuring.subjects.inputs import Windows
from attnlab.runs import read
from attnlab.study.implementations import REFERENCES, under_control
from attnlab.study.shapes import Shape
from attnlab.study.studies import Study, Timing

CALLS = 10
LEAST_S, MOST_S = 0.1, 1.0
"""The fastest of so many calls counts, of as many as take `LEAST_S`, and of no more than take `MOST_S`: where another
program has a core, a few calls in a row may all take ten times as long as others."""
LONGEST_CALL_S = 1.0
"""A call that would take longer, by the last one, is not made."""
FIRST_FLOPS = 2**30
"""The first call has no more FLOPs than this."""
# Besides its timed calls, as runs on an H200, an H100 and two cores show: seconds of a process, of a case (profiler,
# graphs, checks) and of a sample on the host; calls that tell whether a case is timed; calls that check it; oracles
# of a shape with the framework's own result.
PROCESS_S, CASE_S, SAMPLE_S = 5.0, 0.04, 120e-6
FIRST_CALLS, CHECK_CALLS, ORACLES = 3, 12, 6
PANEL_S = 270.0
DRAW, SCRAMBLE = "draw", "scramble"
Work = Callable[[Windows, Shape], object]


@dataclass
class Cost:
    """The cost of a call at some amounts of work: seconds, and the FLOPs of each shape, ascending.

    `new_shape_s` is what the first call at a shape takes besides: compiling, or choosing among plans. It is the least
    that it took, so that what is done once for all shapes doesn't count.
    """

    flops: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    new_shape_s: float = math.inf

    def at(self, flops: np.ndarray) -> np.ndarray:
        """Seconds of a call, interpolated on logarithmic axes, and beyond the largest in proportion to FLOPs.

        0 everywhere if it could be called nowhere.
        """
        if not self.flops:
            return np.zeros(flops.shape)
        within = np.exp(np.interp(np.log(flops), np.log(self.flops), np.log(self.seconds)))
        return np.asarray(within * np.maximum(1, flops / self.flops[-1]))

    def too_long(self, shape: Shape) -> bool:
        """Whether a call at a larger shape would take longer than `LONGEST_CALL_S`."""
        return bool(self.flops) and self.seconds[-1] * shape.flops / self.flops[-1] > LONGEST_CALL_S


def planned(study: Study, device: torch.device) -> tuple[float, list[float]]:
    """About how long a study takes on this device, in seconds: all replicates, one after the other, with what comes
    after them; and each of its shapes in one replicate, 0 where it doesn't fit the device's memory."""
    memory_bytes = devices.describe(device)["memory_bytes"] or math.inf  # 0 where the system doesn't say
    shapes = [shape for shape in study.shapes if shape.bytes < memory_bytes]
    costs = measured(study, shapes, device) if shapes else {}
    shapes_s = dict(zip(shapes, shape_seconds(study, shapes, costs, device), strict=True)) if shapes else {}
    replicate_s = PROCESS_S + sum(shapes_s.values()) + (stream_seconds(study, shapes, costs) if shapes else 0.0)
    panel_s = PANEL_S if study.panel and device.type == "cuda" else 0.0
    return study.replicates * replicate_s + panel_s, [shapes_s.get(shape, 0.0) for shape in study.shapes]


def recorded(job: Job) -> dict[Shape, float]:
    """About how long a replicate of each of the study's shapes takes, as it was estimated when the run began."""
    planned_s = read.read_manifest(job.run).get("planned_s") or [1.0] * len(job.study.shapes)
    return dict(zip(job.study.shapes, planned_s, strict=True))


def shape_seconds(study: Study, shapes: list[Shape], costs: dict[str, Cost], device: torch.device) -> list[float]:
    """About how long each of these shapes takes in one replicate, in seconds."""
    flops = np.array([shape.flops for shape in shapes], dtype=float)
    timings = [timing for timing in study.timings if cuda_events.available(device, timing)]
    took = {name: cost.at(flops) for name, cost in costs.items()}
    # In each round, inputs are drawn, and the output that all others are compared with is computed.
    round_s = took[DRAW] + took[study.baseline]
    spent = ORACLES * took[REFERENCES[0]] + sum(study.rounds(timing) for timing in timings) * round_s
    is_new = ~pd.Series([shape.plain for shape in shapes]).duplicated().to_numpy()
    spent += is_new * sum(costs[name].new_shape_s for name in study.implementations if costs[name].flops)
    for name in map(under_control, study.subjects):
        call_s = took[name]
        samples_s = sum(study.rounds(timing) * _sample_s(timing, call_s, took[SCRAMBLE]) for timing in timings)
        measured_s = (CHECK_CALLS + study.warmup_calls) * call_s + samples_s
        spent += CASE_S + FIRST_CALLS * call_s + np.where(call_s * 1e3 <= study.longest_call_ms, measured_s, 0.0)
    return [float(shape_s) for shape_s in spent]


def stream_seconds(study: Study, shapes: list[Shape], costs: dict[str, Cost]) -> float:
    """About how long the stream of requests of these shapes takes in one replicate, in seconds."""
    flops = np.array([shape.flops for shape in shapes], dtype=float)
    return float(study.stream * sum(costs[name].at(flops).mean() + SAMPLE_S for name in study.implementations))


def _sample_s(timing: Timing, call_s: np.ndarray, scramble_s: np.ndarray) -> np.ndarray:
    """One sample: the timed work and, if the cache is warm, the same work before it on scrambled inputs."""
    single = timing.clock == "eager" or timing.cache == "cold"
    fill = np.ceil(cuda_events.GRAPH_US / np.maximum(call_s * 1e6, 1e-3))
    work_s = call_s * (1 if single else np.clip(fill, 1, cuda_events.GRAPH_CALLS))
    # Comparing an output takes about as long as scrambling inputs, and so does writing over a cache.
    return SAMPLE_S + (2 * (work_s + scramble_s) if timing.cache == "warm" else work_s + 2 * scramble_s)


def measured(study: Study, shapes: list[Shape], device: torch.device) -> dict[str, Cost]:
    """The costs of a call of each implementation and of the oracle, and of drawing and scrambling inputs."""
    names = dict.fromkeys([*study.implementations, REFERENCES[0]])
    works: dict[str, Work] = {}
    for name in names:
        if not watch.failure(name):
            with watch.step(name, "", study.time_limit_s):
                works[name] = partial(_attend, registry.find(name))
    works |= {DRAW: lambda windows, shape: windows.draw(0), SCRAMBLE: _scramble}
    costs = {name: Cost() for name in (*names, *works)}
    for shape in _called(study.target_shape.plain, shapes):
        if costs[DRAW].flops and all(cost.too_long(shape) for cost in costs.values() if cost.flops):
            break
        try:
            windows = attempt(partial(Windows, shape, device))
            attempt(partial(windows.draw, 0))
        except OutOfMemory:
            break
        for name, work in works.items():
            if not costs[name].too_long(shape):
                with watch.step(name, "", study.time_limit_s):
                    _add(costs[name], partial(work, windows, shape), shape, device)
        devices.release(device)
    return costs


def _called(target: Shape, shapes: list[Shape]) -> list[Shape]:
    """The target with other numbers of queries and of keys, from little work to as much as any of the shapes has.

    Each has four times as many as the one before: what a new shape is compiled or planned for takes most of the time.
    """
    # Of more keys than queries, keys change, and under the mask stay as many as these.
    axis, fewest = ("kv_len", target.seq_len) if target.kv_len > target.seq_len else ("seq_len", 1)
    least, most = (end(shape.flops for shape in shapes) for end in (min, max))
    first = target
    while first.flops > min(least, FIRST_FLOPS) and getattr(first, axis) // 2 >= fewest:
        first = first.resized(**{axis: getattr(first, axis) // 2})
    called = [first]
    while called[-1].flops < most:
        called.append(called[-1].resized(**{axis: 2 * getattr(called[-1], axis)}))
    return called[::-2][::-1]


def _add(cost: Cost, call: Callable[[], object], shape: Shape, device: torch.device) -> None:
    """Add what a call takes at a shape, undisturbed; nothing where it can't be called."""
    took_s: list[float] = []
    try:
        first_s = cuda_events.timed(device, partial(attempt, call))[0] / 1e6
        while not took_s or (sum(took_s) < MOST_S and (len(took_s) < CALLS or sum(took_s) < LEAST_S)):
            took_s.append(cuda_events.timed(device, partial(attempt, call))[0] / 1e6)
    except Exception as error:
        if fatal(error) or isinstance(error, UserError):
            raise
        return
    cost.flops.append(shape.flops)
    cost.seconds.append(min(took_s))
    cost.new_shape_s = min(cost.new_shape_s, max(0.0, first_s - min(took_s)))


def _attend(implementation: Implementation, windows: Windows, shape: Shape) -> None:
    with implementation.selected():
        implementation.bound(windows[0], shape)()


def _scramble(windows: Windows, shape: Shape) -> None:
    with windows.scrambled():
        pass
