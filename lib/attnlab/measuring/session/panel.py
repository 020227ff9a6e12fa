"""The panel: calls from microseconds to milliseconds, each timed by our clocks and by those of other tools.

=================  =====  ==========================================================================================
method             cache  one sample
=================  =====  ==========================================================================================
eager              warm   our clock
device             warm   our clock
device.cold        cold   our clock
device.repeated    warm   our clock around calls that all read the same values, which a run's samples never do
cupti              warm   CUPTI's durations of a call's kernels, called one after the other, mean of the calls
cupti.graph        warm   the same, in the graph that ``device`` replays
cupti.span         warm   from the first kernel's start in that graph to the last one's end, over its calls
triton.do_bench    cold   Triton's do_bench, median of its repetitions: it writes 256 MB before each
triton.cudagraph   warm   Triton's do_bench_cudagraph, median of its repetitions
nvbench.cold       cold   NVBench's mean time of one call's graph: it empties the L2 and holds the stream before each
nvbench.batch      warm   NVBench's mean time of the graph that ``device`` replays, over its calls
ncu                warm   Nsight Compute's durations of a call's kernels, each run alone
ncu.cold           cold   the same after our flush
=================  =====  ==========================================================================================

The first 9 run in one process and take turns. NVBench and Nsight Compute run in separate processes
(`attnlab.measuring.clocks.external_tools`). For each case, the canary also looks at the contents of the L2 when a
sample of each of our clocks begins. After the cases, loads without pause show how long a burst lasts.
"""

import math
import random
import time
from dataclasses import asdict
from itertools import product

import numpy as np
import torch

from attnlab.measuring import watch
from attnlab.measuring.clocks import cuda_events, external_tools
from attnlab.measuring.clocks.canary import Canary
from attnlab.measuring.clocks.in_process import IN_TURN, TIMINGS, graphed, methods_of
from attnlab.measuring.instruments import devices
from attnlab.measuring.instruments.telemetry import Telemetry
from attnlab.measuring.subjects.case import Case
from attnlab.measuring.subjects.implementation import Broken, OutOfMemory, Unsupported
from attnlab.runs import methods, metrics, write
from attnlab.runs.schema import Row, implementation_key
from attnlab.runs.tables import ENDURANCE, PANEL, RESIDENCY, frame_of
from attnlab.study.implementations import PEERS, SDPA
from attnlab.study.ladder import BEST, PREFIX
from attnlab.study.shapes import Shape
from attnlab.study.studies import Study

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
ROUNDS = 9
LOOKS = 3
LOAD_SEQ_LEN = 4096
REST_S = 1.0
LOAD_S = 3.0
# A slice of a load is long enough to read the card's state while it runs, so that the card never waits for a reading.
SLICE_US = 10_000
STEPS = 10
"""The time limit of a case of the panel, or of a load, in units of the study's `time_limit_s`."""


def cases(study: Study) -> list[tuple[str, Shape]]:
    """The panel's cases: a call as short as possible, the target's axes at growing lengths, and all implementations
    at the target and at a longer causal shape."""
    target = study.target_shape.resized(causal=False)
    shape = {length: target.resized(seq_len=length) for length in LENGTHS}
    tiny = target.resized(batch=1, heads=1, seq_len=128)
    causal = [target.resized(seq_len=length, causal=True) for length in (512, 2048)]
    stated = [
        *((name, tiny) for name in ("sdpa.flash", "sdpa.auto")),
        *((name, shape[length]) for length in LENGTHS for name in ("sdpa.flash", "sdpa.auto")),
        *(("sdpa.auto", masked) for masked in causal),
        ("sdpa.math", shape[64]),
        *((name, at) for at in (study.target_shape, *causal[1:]) for name in study.implementations),
    ]
    return [(name, at) for name, at in dict.fromkeys(stated) if not study.leaves_out(name, at)]


def take(run: str, study: Study, device: torch.device) -> None:
    """Take the cases that a run's panel still lacks, one at a time.

    A method that fails has a row with the reason; the other methods go on.
    """
    canary: Canary | str | None = None
    for number, (implementation, shape) in enumerate(cases(study)):
        key = f"c{number:02d}"
        if key in write.recorded(run, "panel"):
            continue
        canary = canary or _canary(device)
        with watch.step(implementation, key, STEPS * study.time_limit_s):
            taken = _case_rows(implementation, shape, device, canary, watch.failure(implementation, key))
        _add(run, key, *taken)
        devices.release(device)
    del canary
    devices.release(device)
    for tool in methods.TOOLS:
        if tool not in write.recorded(run, "panel"):
            _add(run, tool, *external_tools.rows(tool, cases(study)))


def _add(run: str, key: str, timed: list[Row], seen: list[Row]) -> None:
    # The latencies come last: with them, the block counts as recorded.
    write.add_part(run, "residency", key, frame_of(RESIDENCY, seen))
    write.add_part(run, "panel", key, frame_of(PANEL, timed))


def _case_rows(
    implementation: str, shape: Shape, device: torch.device, canary: Canary | str, failed: str = ""
) -> tuple[list[Row], list[Row]]:
    axes = {"implementation": implementation, **shape.axes}
    try:
        if failed:
            raise Broken(failed)
        case = graphed(implementation, shape, device)
        return _timed(case, device, axes), _looked(case, canary, axes)
    except Exception as error:  # a failed panel must not end the run, which is complete without it
        return [axes | {"method": method, "why": reason(error)} for method in IN_TURN], []


def _timed(case: Case, device: torch.device, axes: Row) -> list[Row]:
    """Take rounds of all methods in random order. A method that fails drops out, with a row for the reason."""
    telemetry, order = Telemetry(device), random.Random(str(axes))
    taking, rows = methods_of(case, device), []
    for number in range(-1, ROUNDS):  # the first round isn't kept: tools do one-time work in it
        names = list(taking)
        order.shuffle(names)
        for name in names:
            try:
                found = taking[name]()
            except torch.AcceleratorError:
                raise
            except Exception as error:  # the error of another tool is its reason
                del taking[name]
                rows.append(axes | {"method": name, "why": reason(error)})
                continue
            if number >= 0:
                clock = {"sm_clock_mhz": telemetry.read().sm_clock_mhz, "round": number, "why": ""}
                rows += [axes | clock | {"method": method, "latency_us": value} for method, value in found.items()]
    return rows


def reason(error: Exception) -> str:
    """The reason why a case could not be timed, in one line."""
    ours = isinstance(error, Unsupported | OutOfMemory | Broken)
    kind = "" if ours else "not installed: " if isinstance(error, ImportError) else f"{type(error).__name__}: "
    return kind + " ".join(str(error).split())


def _canary(device: torch.device) -> Canary | str:
    try:
        return Canary(device)
    except Exception as error:  # as above
        return reason(error)


def _looked(case: Case, canary: Canary | str, axes: Row) -> list[Row]:
    if isinstance(canary, str):
        absent = axes | {"metric": metrics.CANARY, "why": canary}
        return [absent | {"clock": timing.clock, "cache": timing.cache} for timing in TIMINGS]
    assert case.windows is not None
    rows = []
    for number, timing in product(range(LOOKS), TIMINGS):
        where = axes | {"clock": timing.clock, "cache": timing.cache, "round": number, "why": ""}
        for name, seen in zip("qkv", canary.look(case, timing, list(case.windows[0])), strict=True):
            for what, unit, value in (
                (metrics.HITS, "%", seen.hits_pct),
                (metrics.LATENCY, "cycles", float(np.median(seen.cycles))),
                (metrics.HIT, "cycles", seen.hit_cycles),
                (metrics.MISS, "cycles", seen.miss_cycles),
            ):
                rows.append(where | {"metric": metrics.of_canary(name, what), "unit": unit, "value": value})
    return rows


# Loads: an idle card runs one implementation without pause until its clock has settled.


def loads(study: Study) -> list[tuple[str, Shape]]:
    """The loads: SDPA's backends, peers and the best of the ladder, at a length that keeps the device busy."""
    kernels = [name for name in study.implementations if name.startswith(PREFIX)]
    backends = [name for name in study.implementations if name in {*SDPA, *PEERS}]
    shape = study.target_shape.resized(seq_len=LOAD_SEQ_LEN, causal=False)
    return [(name, shape) for name in [*backends, *([BEST] if BEST in kernels else kernels[-1:])]]


def take_loads(run: str, study: Study, device: torch.device) -> None:
    """Take the loads that a run still lacks. A load that fails has one row with the reason; the run goes on."""
    for implementation, shape in loads(study):
        key = implementation_key(implementation)
        if key not in write.recorded(run, "endurance"):
            with watch.step(implementation, key, STEPS * study.time_limit_s):
                rows = _load_rows(implementation, shape, device, watch.failure(implementation, key))
            write.add_part(run, "endurance", key, frame_of(ENDURANCE, rows))
            devices.release(device)


def _load_rows(implementation: str, shape: Shape, device: torch.device, failed: str = "") -> list[Row]:
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
