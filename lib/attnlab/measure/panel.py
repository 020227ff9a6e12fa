"""The panel: calls from microseconds to milliseconds, timed by our clocks and by everybody else's, in turn.

=================  =====  ==========================================================================================
method             cache  what one sample is
=================  =====  ==========================================================================================
eager              warm   our clock
device             warm   our clock
device.cold        cold   our clock
cupti              warm   CUPTI's durations of a call's kernels, called one after the other, mean of the calls
cupti.graph        warm   the same of the graph that ``device`` replays
cupti.span         warm   from the first kernel's start in that graph to the last one's end, over its calls
triton.do_bench    cold   Triton's do_bench, median of its repetitions: it writes 256 MB before each
triton.cudagraph   warm   Triton's do_bench_cudagraph, median of its repetitions
nvbench.cold       cold   NVBench's mean time of one call's graph: it empties the L2 and holds the stream before each
nvbench.batch      warm   NVBench's mean time of the graph that ``device`` replays, over its calls
ncu                warm   Nsight Compute's durations of a call's kernels, each run alone
ncu.cold           cold   the same after our flush
=================  =====  ==========================================================================================

Those of the first eight run in one process and take turns; NVBench and Nsight Compute want a process of their own
(`attnlab.measure.outside`). Beside them, the canary looks at what the L2 holds where a sample of each clock begins, and
a load without pause shows how long a burst lasts (`attnlab.measure.endurance`).
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch.profiler import ProfilerActivity, profile

from attnlab import runs
from attnlab.errors import EnvironmentChanged
from attnlab.measure import clocks, devices, endurance, environment, inputs, inspection, outside, registry, worker
from attnlab.measure.attention import Broken, OutOfMemory, Unsupported, attempt
from attnlab.measure.canary import Canary
from attnlab.measure.clocks import Case
from attnlab.measure.telemetry import Telemetry
from attnlab.shapes import Shape
from attnlab.studies import Study, Timing

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
ROUNDS = 9
LOOKS = 3
LONGEST_MS = 100.0
WARMUP_CALLS = 20
# Calls that CUPTI is shown in one sample: enough for a mean, few enough that its buffers never fill up.
TRACED_CALLS = 20
TRITON = {"triton.do_bench": {"warmup": 5, "rep": 20}, "triton.cudagraph": {"rep": 5}}
"""Milliseconds that Triton warms up and repeats for: less than its defaults, as there are rounds of it."""
WARM, COLD = Timing(clock="device", cache="warm"), Timing(clock="device", cache="cold")
TIMINGS = (WARM, COLD, Timing(clock="eager", cache="warm"), Timing(clock="eager", cache="cold"))
Method = Callable[[], dict[str, float]]
Row = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """The panel of a run. `environment` is the hash that the process must find again."""

    run: str
    study: Study
    device: str
    environment: str


def cases(study: Study) -> list[tuple[str, Shape]]:
    """What the panel times: the target's axes over lengths, from the shortest call that there is, short to long."""
    target = study.target_shape.resized(causal=False)
    shape = {length: target.resized(seq_len=length) for length in LENGTHS}
    tiny = target.resized(batch=1, heads=1, seq_len=128)
    causal = [target.resized(seq_len=length, causal=True) for length in (512, 2048)]
    return [
        *((name, tiny) for name in ("sdpa.flash", "sdpa.auto")),
        *((name, shape[length]) for length in LENGTHS for name in ("sdpa.flash", "sdpa.auto")),
        *(("sdpa.auto", masked) for masked in causal),
        ("sdpa.math", shape[64]),
    ]


def take(job: Job) -> None:
    """Take what the run still lacks of its panel, a case at a time.

    Whatever another tool can't do costs the panel that tool's row, which says why, and nothing else.

    Raises:
        EnvironmentChanged: the environment isn't the one that the run began in.
    """
    worker.die_quietly()
    device = torch.device(job.device)
    environment.lock()
    if environment.fingerprint(device)["hash"] != job.environment:
        raise EnvironmentChanged(f"the environment changed since the run {job.run!r} began: start a new run")
    chosen = cases(job.study)
    canary: Canary | str | None = None
    for number, (implementation, shape) in enumerate(chosen):
        key = f"c{number:02d}"
        if key in runs.recorded(job.run, "panel"):
            continue
        canary = canary or _canary(device)
        _add(job.run, key, *_case_rows(implementation, shape, device, canary))
        devices.release(device)
    del canary
    devices.release(device)
    for implementation, shape in endurance.cases(job.study):
        key = implementation.replace(".", "-")  # a key holds no dot: it ends at the first
        if key not in runs.recorded(job.run, "endurance"):
            runs.add_part(job.run, "endurance", key, frame("endurance", _loaded(implementation, shape, device)))
            devices.release(device)
    for tool in outside.TOOLS:
        if tool not in runs.recorded(job.run, "panel"):
            _add(job.run, tool, *outside.rows(tool, chosen))


TYPES = {"round": "Int64", "latency_us": "Float64", "value": "Float64", "started_s": "Float64"} | {
    column: dtype for column, dtype in worker.TELEMETRY_TYPES.items() if column != "throttle_reasons"
}


def frame(table: str, rows: list[Row]) -> pd.DataFrame:
    """Rows of one of the panel's tables, with the columns and types that they have in every run."""
    columns = runs.COLUMNS[table]
    types = {column: TYPES[column] for column in columns if column in TYPES}
    return pd.DataFrame(rows, columns=columns).astype(types)


def _add(run: str, key: str, timed: list[Row], seen: list[Row]) -> None:
    # What was timed comes last, and closes the block.
    runs.add_part(run, "residency", key, frame("residency", seen))
    runs.add_part(run, "panel", key, frame("panel", timed))


def prepared(implementation: str, shape: Shape, device: torch.device) -> tuple[Case, inputs.Inputs]:
    """A case that is warm, and its inputs.

    Raises:
        Unsupported: the device doesn't do it, or takes longer than the panel has time for.
        OutOfMemory: the device's memory doesn't hold it.
        Broken: it can't be called.
    """
    chosen = registry.find(implementation)
    drawn = attempt(lambda: inputs.draw(shape, environment.SEED, device))
    case = Case(chosen.bound(drawn, shape), chosen.selected)
    with chosen.selected():
        attempt(case.call)
    call_ms = min(clocks.roughly_us(case, device, 1) for _ in range(2)) / 1e3
    if call_ms > LONGEST_MS:
        raise Unsupported(f"one call takes {call_ms:.3g} ms, longer than the {LONGEST_MS:g} ms that the panel times")
    clocks.roughly_us(case, device, WARMUP_CALLS)
    return case, drawn


def _graphed(implementation: str, shape: Shape, device: torch.device) -> tuple[Case, inputs.Inputs]:
    case, drawn = prepared(implementation, shape, device)
    with case.selected():
        # As in a run: CUPTI is at work before graphs are captured, which it is to look into later.
        inspection.kernels(case.call, device)
        attempt(lambda: clocks.capture(case, torch.cuda.graph_pool_handle()))
    return case, drawn


def _case_rows(
    implementation: str, shape: Shape, device: torch.device, canary: Canary | str
) -> tuple[list[Row], list[Row]]:
    axes = {"implementation": implementation, **shape.axes}
    try:
        case, drawn = _graphed(implementation, shape, device)
        return _timed(case, device, axes), _looked(case, drawn, canary, axes)
    except Exception as error:  # a panel that fails must not cost the run, which is whole without it
        return [axes | {"method": method, "why": _reason(error)} for method in METHODS], []


def _loaded(implementation: str, shape: Shape, device: torch.device) -> list[Row]:
    axes = {"implementation": implementation, **shape.axes}
    try:
        case, _ = prepared(implementation, shape, device)
        return [axes | row for row in endurance.load(case, device)]
    except Exception as error:  # as above
        return [axes | {"why": _reason(error)}]


def _timed(case: Case, device: torch.device, axes: Row) -> list[Row]:
    """Rounds in which every method takes its turn, in an order drawn anew; who fails is out and says why."""
    telemetry, order = Telemetry(device), random.Random(str(axes))
    methods, rows = _methods(case, device), []
    for number in range(-1, ROUNDS):  # what a tool does only once, it does in a round that isn't kept
        names = list(methods)
        order.shuffle(names)
        for name in names:
            try:
                found = methods[name]()
            except torch.AcceleratorError:
                raise
            except Exception as error:  # other people's tools: whatever they raise is their reason
                del methods[name]
                rows.append(axes | {"method": name, "why": _reason(error)})
                continue
            if number >= 0:
                clock = {"sm_clock_mhz": telemetry.read().sm_clock_mhz, "round": number, "why": ""}
                rows += [axes | clock | {"method": method, "latency_us": value} for method, value in found.items()]
    return rows


def _methods(case: Case, device: torch.device) -> dict[str, Method]:
    """What takes turns, by the name that its failure is recorded under."""
    assert case.many is not None
    eager, device_warm, device_cold = (clocks.sampler(device, t) for t in (TIMINGS[2], WARM, COLD))
    traced = min(TRACED_CALLS, case.many.calls)
    return {
        "eager": lambda: {"eager": eager(case)[0]},
        "device": lambda: {"device": device_warm(case)[0]},
        "device.cold": lambda: {"device.cold": device_cold(case)[0]},
        "cupti": lambda: {"cupti": _traced(partial(_calls, case, traced))[0] / traced},
        "cupti.graph": lambda: _graph_traced(case.many),
        "triton.do_bench": lambda: {"triton.do_bench": _triton(case, "triton.do_bench")},
        "triton.cudagraph": lambda: {"triton.cudagraph": _triton(case, "triton.cudagraph")},
    }


METHODS = ("eager", "device", "device.cold", "cupti", "cupti.graph", "triton.do_bench", "triton.cudagraph")
"""Those of this process, by the names of `_methods`; ``cupti.span`` is read with ``cupti.graph``."""


def _calls(case: Case, calls: int) -> None:
    with case.selected():
        for _ in range(calls):
            case.call()


def _graph_traced(many: clocks.Replay) -> dict[str, float]:
    kernels_us, span_us = _traced(many.graph.replay)
    return {"cupti.graph": kernels_us / many.calls, "cupti.span": span_us / many.calls}


def _traced(work: Callable[[], object]) -> tuple[float, float]:
    """CUPTI's view of `work` done once more after it was done untimed: its kernels' durations, and its span, in us."""
    with inspection.quiet(), profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
        work()
        torch.cuda.synchronize()
    events = [e for e in profiler.profiler.kineto_results.events() if _ran_on_device(e)]
    if not events or len(events) % 2:
        raise RuntimeError(f"CUPTI showed {len(events)} kernels for two equal pieces of work")
    timed = sorted(events, key=lambda event: event.start_ns())[len(events) // 2 :]
    start, end = timed[0].start_ns(), max(event.end_ns() for event in timed)
    return sum(event.duration_ns() for event in timed) / 1e3, (end - start) / 1e3


def _ran_on_device(event: Any) -> bool:
    # The profiler also lists the host's own waiting.
    return event.device_type().name == "CUDA" and "ynchronize" not in event.name()


def _triton(case: Case, method: str) -> float:
    from triton import testing

    bench = testing.do_bench if method == "triton.do_bench" else testing.do_bench_cudagraph
    with case.selected():
        return 1e3 * float(bench(case.call, **TRITON[method], return_mode="median"))


def _reason(error: Exception) -> str:
    said = " ".join(str(error).split())
    if isinstance(error, Unsupported | OutOfMemory | Broken):
        return said
    if isinstance(error, ImportError):
        return f"not installed: {said}"
    return f"{type(error).__name__}: {said}"


def _canary(device: torch.device) -> Canary | str:
    """The canary, or why there is none."""
    try:
        return Canary(device)
    except Exception as error:  # as above: its reason is all that the panel needs
        return _reason(error)


def _looked(case: Case, drawn: inputs.Inputs, canary: Canary | str, axes: Row) -> list[Row]:
    """What the canary saw of Q, K and V, for each clock and cache."""
    if isinstance(canary, str):
        return [axes | {"clock": t.clock, "cache": t.cache, "metric": "canary", "why": canary} for t in TIMINGS]
    rows = []
    for number in range(LOOKS):
        for timing in TIMINGS:
            where = axes | {"clock": timing.clock, "cache": timing.cache, "round": number, "why": ""}
            for name, seen in zip("qkv", canary.look(case, timing, list(drawn)), strict=True):
                found = {
                    f"canary.{name}.hits": ("%", seen.hits_pct),
                    f"canary.{name}.latency": ("cycles", float(np.median(seen.cycles))),
                    f"canary.{name}.hit": ("cycles", seen.hit_cycles),
                    f"canary.{name}.miss": ("cycles", seen.miss_cycles),
                }
                rows += [where | {"metric": m, "unit": u, "value": v} for m, (u, v) in found.items()]
    return rows
