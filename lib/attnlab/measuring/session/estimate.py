"""Estimate how long a study takes on this device, from a few calls before the study is measured.

Each implementation and the oracle are called at the target with fewer queries and keys, then with more and more. This
ends before a call that would take longer than `LONGEST_CALL_S`. The FLOPs of a shape give the time of a call there,
which is multiplied by the number of calls for samples, warm-up and checks.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from attnlab.base.errors import UserError
from attnlab.measuring import watch
from attnlab.measuring.clocks import cuda_events
from attnlab.measuring.instruments import devices
from attnlab.measuring.subjects import registry
from attnlab.measuring.subjects.implementation import Implementation, OutOfMemory, attempt, fatal
from attnlab.measuring.subjects.inputs import Windows
from attnlab.study.implementations import REFERENCES, under_control
from attnlab.study.shapes import Shape
from attnlab.study.studies import Study

LEAST_S = 0.1
"""Calls are repeated for this time and the fastest counts, since another program may slow some of them."""
LONGEST_CALL_S = 1.0
"""A call that would take longer, by extrapolation from the last one, is not made."""
FIRST_FLOPS = 2**30
"""The first call has no more FLOPs than this."""
# Costs in addition to timed calls, from runs on an H200, an H100 and 2 CPU cores: seconds of a process, of a case
# (profiler, graphs, checks) and of a sample on the host; untimed calls of a case; oracle calls of a shape, including
# the framework's own result.
PROCESS_S, CASE_S, SAMPLE_S = 5.0, 0.04, 120e-6
CALLS, ORACLES = 15, 6
PANEL_S = 270.0


@dataclass
class Cost:
    """Seconds of a call by the FLOPs of its shape, ascending; `first_s` is the least extra time of a first call."""

    flops: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    first_s: float = math.inf

    def at(self, flops: np.ndarray) -> np.ndarray:
        """Seconds of a call: interpolated on logarithmic axes, above them in proportion to FLOPs; 0 without calls."""
        if not self.flops:
            return np.zeros(flops.shape)
        within = np.exp(np.interp(np.log(flops), np.log(self.flops), np.log(self.seconds)))
        return np.asarray(within * np.maximum(1, flops / self.flops[-1]))


def planned(study: Study, device: torch.device) -> tuple[float, list[float]]:
    """Estimated seconds of a study on this device, for all replicates in turn and the parts after them. Then those of
    each shape in one replicate, 0 if it doesn't fit the device's memory."""
    memory_bytes = devices.describe(device)["memory_bytes"] or math.inf  # 0 where the system doesn't say
    shapes = [shape for shape in study.shapes if shape.bytes < memory_bytes]
    shapes_s, stream_s = _seconds(study, shapes, device) if shapes else ([], 0.0)
    by_shape = dict(zip(shapes, shapes_s, strict=True))
    panel_s = PANEL_S if study.panel and device.type == "cuda" else 0.0
    total_s = study.replicates * (PROCESS_S + sum(shapes_s) + stream_s) + panel_s
    return total_s, [by_shape.get(shape, 0.0) for shape in study.shapes]


def _seconds(study: Study, shapes: list[Shape], device: torch.device) -> tuple[list[float], float]:
    """Estimated seconds in one replicate: of each of these shapes, and of their stream of requests."""
    flops = np.array([shape.flops for shape in shapes], dtype=float)
    costs = measured(study, shapes, device)
    took = {name: cost.at(flops) for name, cost in costs.items()}
    rounds = {timing: study.rounds(timing) for timing in study.timings if cuda_events.available(device, timing)}
    # Each round also computes the output with which all others are compared.
    spent = ORACLES * took[REFERENCES[0]] + sum(rounds.values()) * took[study.baseline]
    plain = [shape.plain for shape in shapes]
    is_new = np.array([plain.index(shape) == number for number, shape in enumerate(plain)])
    spent += is_new * sum(costs[name].first_s for name in study.implementations if costs[name].flops)
    for name in study.subjects:
        call_s = took[under_control(name)]
        timed_s = study.warmup_calls * call_s
        for timing, count in rounds.items():
            graph_s = np.minimum(cuda_events.GRAPH_US * 1e-6, cuda_events.GRAPH_CALLS * call_s)
            work_s = call_s if timing.clock == "eager" or timing.cache == "cold" else np.maximum(call_s, graph_s)
            timed_s = timed_s + count * (SAMPLE_S + (1 + (timing.cache == "warm")) * work_s)  # warm: called twice
        case_s = CASE_S + CALLS * call_s + np.where(call_s * 1e3 <= study.longest_call_ms, timed_s, 0.0)
        spent += np.where([study.leaves_out(name, shape) for shape in shapes], 0.0, case_s)
    stream_s = study.stream * sum(took[name].mean() + SAMPLE_S for name in study.implementations)
    return [float(shape_s) for shape_s in spent], float(stream_s)


def measured(study: Study, shapes: list[Shape], device: torch.device) -> dict[str, Cost]:
    """By name, the cost of new inputs and a call, for each implementation and the oracle."""
    costs = {name: Cost() for name in [*study.implementations, REFERENCES[0]]}
    found: dict[str, Implementation] = {}
    for name in costs:
        if not watch.failure(name):
            with watch.step(name, "", study.time_limit_s):
                found[name] = registry.find(name)
    for shape in _called(study.target_shape.plain, shapes):
        short = [name for name in found if costs[name].at(np.array([shape.flops])) < LONGEST_CALL_S]
        if not short:
            break
        try:
            windows = attempt(partial(Windows, shape, device))
        except OutOfMemory:
            break
        for name in short:
            with watch.step(name, "", study.time_limit_s):
                _add(costs[name], partial(_attend, found[name], windows, shape), shape, device)
        devices.release(device)
    return costs


def _called(target: Shape, shapes: list[Shape]) -> list[Shape]:
    """The target with its queries and keys multiplied by 4 repeatedly, from little work to the most of any shape."""
    # With more keys than queries, only the number of keys changes. It stays at least the number of queries.
    axis, fewest = ("kv_len", target.seq_len) if target.kv_len > target.seq_len else ("seq_len", 1)
    least, most = min(FIRST_FLOPS, *(shape.flops for shape in shapes)), max(shape.flops for shape in shapes)
    called = [target]
    while called[0].flops > least and getattr(called[0], axis) // 4 >= fewest:
        called.insert(0, called[0].resized(**{axis: getattr(called[0], axis) // 4}))
    while called[-1].flops < most:
        called.append(called[-1].resized(**{axis: 4 * getattr(called[-1], axis)}))
    return called


def _add(cost: Cost, call: Callable[[], object], shape: Shape, device: torch.device) -> None:
    """Add the seconds of the fastest call at a shape; nothing if it can't be called."""
    took_s: list[float] = []
    try:
        first_s = cuda_events.timed(device, partial(attempt, call))[0] / 1e6
        while sum(took_s) < LEAST_S:
            took_s.append(cuda_events.timed(device, partial(attempt, call))[0] / 1e6)
    except Exception as error:
        if fatal(error) or isinstance(error, UserError):
            raise
        return
    cost.flops.append(shape.flops)
    cost.seconds.append(min(took_s))
    cost.first_s = min(cost.first_s, max(0.0, first_s - min(took_s)))


def _attend(implementation: Implementation, windows: Windows, shape: Shape) -> None:
    windows.draw(0)
    with implementation.selected():
        implementation.bound(windows[0], shape)()
