"""Burst and sustained load: an idle card runs one implementation without pause until its clock has settled."""

import math
import time
from dataclasses import asdict

import torch

from attnlab.measuring import watch
from attnlab.measuring.clocks import cuda_events
from attnlab.measuring.clocks.in_process import graphed
from attnlab.measuring.instruments import devices
from attnlab.measuring.instruments.telemetry import Telemetry
from attnlab.measuring.session.panel import STEPS, reason
from attnlab.measuring.subjects.case import Case
from attnlab.measuring.subjects.implementation import Broken
from attnlab.runs import write
from attnlab.runs.schema import Row, implementation_key
from attnlab.runs.tables import ENDURANCE, frame_of
from attnlab.study.implementations import PEERS, SDPA
from attnlab.study.ladder import BEST, PREFIX
from attnlab.study.shapes import Shape
from attnlab.study.studies import Study

SEQ_LEN = 4096
REST_S = 1.0
LOAD_S = 3.0
# A slice is long enough to read the card's state while it runs, so that the card never waits for a reading.
SLICE_US = 10_000


def cases(study: Study) -> list[tuple[str, Shape]]:
    """The loads: SDPA's backends, peers and the best of the ladder, at a length that keeps the device busy."""
    kernels = [name for name in study.implementations if name.startswith(PREFIX)]
    backends = [name for name in study.implementations if name in {*SDPA, *PEERS}]
    shape = study.target_shape.resized(seq_len=SEQ_LEN, causal=False)
    return [(name, shape) for name in [*backends, *([BEST] if BEST in kernels else kernels[-1:])]]


def take(run: str, study: Study, device: torch.device) -> None:
    """Take the loads that a run still lacks. A load that fails has one row with the reason; the run goes on."""
    for implementation, shape in cases(study):
        key = implementation_key(implementation)
        if key not in write.recorded(run, "endurance"):
            with watch.step(implementation, key, STEPS * study.time_limit_s):
                rows = _rows(implementation, shape, device, watch.failure(implementation, key))
            write.add_part(run, "endurance", key, frame_of(ENDURANCE, rows))
            devices.release(device)


def _rows(implementation: str, shape: Shape, device: torch.device, failed: str = "") -> list[Row]:
    axes = {"implementation": implementation, **shape.axes}
    try:
        if failed:
            raise Broken(failed)
        return [axes | row for row in load(graphed(implementation, shape, device), device)]
    except Exception as error:  # a failed load must not end the run, which is complete without it
        return [axes | {"why": reason(error)}]


def load(case: Case, device: torch.device) -> list[Row]:
    """Replay a case without pause. Each slice has a row: its end, the latency of its calls and the card's state."""
    many = case.many
    assert many is not None
    telemetry = Telemetry(device)
    replay_us = cuda_events.timed_us(device, many.graph.replay)
    replays = max(1, math.ceil(SLICE_US / replay_us))
    devices.synchronize(device)
    time.sleep(REST_S)
    rows: list[Row] = []
    began = time.monotonic()
    before = _slice(many.graph, 0)
    running = _slice(many.graph, replays)
    while not rows or rows[-1]["started_s"] < LOAD_S:
        following = _slice(many.graph, replays)  # queued before the running one is waited for
        card = telemetry.read()
        running.synchronize()
        call_us = before.elapsed_time(running) * 1e3 / (replays * many.calls)
        taken = {"started_s": time.monotonic() - began, "latency_us": call_us, "why": ""}
        rows.append(taken | asdict(card) | {"throttled": card.throttled})
        before, running = running, following
    devices.synchronize(device)
    return rows


def _slice(graph: torch.cuda.CUDAGraph, replays: int) -> torch.cuda.Event:
    """Queue replays of a graph; returns the event at their end."""
    for _ in range(replays):
        graph.replay()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
