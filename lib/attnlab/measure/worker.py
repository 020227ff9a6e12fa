"""The unit of work: one replicate over a shard of the study's shapes, in a process of its own."""

import multiprocessing
import os
import random
import signal
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import pandas as pd
import torch

from attnlab import runs
from attnlab.errors import EnvironmentChanged
from attnlab.measure import ceilings, clocks, devices, environment, inputs, inspection, registry, stream
from attnlab.measure.attention import Broken, Implementation, OutOfMemory, Unsupported, attempt
from attnlab.measure.clocks import Case
from attnlab.measure.correctness import Check, Gate
from attnlab.measure.telemetry import Telemetry
from attnlab.shapes import Shape
from attnlab.studies import Study, Timing

# Warm-up goes on past the calls that the study asks for until two windows agree, or for this many windows.
WARMUP_WINDOW = 10
WARMUP_WINDOWS = 20
STEADY = 0.02
# Scores of which the gate compares the outcome on inputs that are not normal: 16 heads of 512 keys, and one of 2048.
COMPARED_SCORES = 2**22
T = TypeVar("T")


@dataclass(frozen=True)
class Job:
    """A replicate over a shard. `environment` is the hash that this process must find again."""

    run: str
    study: Study
    device: str
    replicate: int
    shapes: tuple[Shape, ...]
    environment: str


def survey(wanted: str, study: Study) -> dict[str, Any]:
    """What a manifest says of the machine: device, locked environment, ceilings, clocks. In a process of its own."""
    die_quietly()
    device = devices.resolve(wanted)
    environment.lock()
    dtypes = sorted({shape.dtype for shape in study.shapes})
    if device.type == "cuda":
        dtypes = sorted({*dtypes, "float16", "bfloat16", "float32"})
    return {
        "device": devices.describe(device),
        "environment": environment.fingerprint(device),
        "ceilings": ceilings.measure(device, dtypes),
        "clocks": clocks.calibrate(device),
        "telemetry": Telemetry(device).unavailable or "NVML",
    }


def measure(job: Job) -> None:
    """Measure what the run still lacks of `job`, a block at a time.

    Raises:
        UserError: the environment can't be locked.
        EnvironmentChanged: it isn't the one that the run began in.
    """
    die_quietly()
    started = time.monotonic()
    device = torch.device(job.device)
    environment.lock()
    found = environment.fingerprint(device)
    if found["hash"] != job.environment:
        before = runs.read_manifest(job.run)["environment"]
        changed = ", ".join(part for part in found if part != "hash" and found[part] != before.get(part))
        what = f" ({changed})" if changed else ""
        raise EnvironmentChanged(f"the environment changed since the run {job.run!r} began{what}: start a new run")
    session = Session(job, device, Telemetry(device), started)
    measuring = time.monotonic()
    for shape in job.shapes:
        _measure_shape(session, shape)
    if job.study.stream:
        _record_stream(session)
    row = {
        "process": session.process,
        "replicate": job.replicate,
        "setup_seconds": measuring - started,
        "measuring_seconds": time.monotonic() - measuring,
    }
    runs.add_part(job.run, "processes", f"{replicate_key(job.replicate)}-{session.process}", pd.DataFrame([row]))


@dataclass
class Session:
    """What holds for one process: its device, its telemetry, its random order and its name."""

    job: Job
    device: torch.device
    telemetry: Telemetry
    started: float
    process: str = field(default_factory=lambda: uuid.uuid4().hex[:8])

    @property
    def timings(self) -> list[Timing]:
        """The study's timings that the device has a clock for."""
        return [timing for timing in self.job.study.timings if clocks.available(self.device, timing)]

    def key(self, shape: Shape) -> str:
        """Names the blocks of a shape so that they sort in the order of the study."""
        return shape_key(self.job.study, shape, self.job.replicate)

    def seed(self, shape: Shape, purpose: str) -> int:
        """A seed of its own for each shape, replicate and purpose."""
        return zlib.crc32(f"{environment.SEED} {shape} {self.job.replicate} {purpose}".encode())


def replicate_key(replicate: int) -> str:
    """Key of what a replicate records once."""
    return f"r{replicate:02d}"


def shape_key(study: Study, shape: Shape, replicate: int) -> str:
    """Key of the blocks of one shape in one replicate."""
    return f"{replicate_key(replicate)}-s{study.shapes.index(shape):03d}"


def block_key(study: Study, shape: Shape, replicate: int, timing: Timing) -> str:
    """Key of a block of samples: one shape in one replicate under one timing."""
    return f"{shape_key(study, shape, replicate)}-{timing.clock}-{timing.cache}"


def _record_stream(session: Session) -> None:
    job = session.job
    calls = stream.take(
        job.run, job.study, job.replicate, session.device, zlib.crc32(f"stream {job.replicate}".encode())
    )
    runs.add_part(job.run, "stream", replicate_key(job.replicate), calls.assign(process=session.process))


@dataclass
class Subject:
    """An implementation on its way through one shape: ready to be timed, or with the reason why it isn't."""

    implementation: Implementation
    case: Case
    status: str = "measured"
    reason: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    earlier: set[bytes] = field(default_factory=set)
    """By what its outputs that the gate saw are known again."""

    @property
    def alive(self) -> bool:
        return self.status == "measured"


def _measure_shape(session: Session, shape: Shape) -> None:
    """One shape through the gate, the clocks and the gate again; its cases are recorded last, and close it."""
    key = session.key(shape)
    if key in runs.recorded(session.job.run, "cases"):
        return
    subjects = [_subject(name) for name in session.job.study.subjects]
    checks: list[dict[str, Any]] = []
    try:
        drawn = attempt(lambda: inputs.draw(shape, session.seed(shape, "timed"), session.device))
    except OutOfMemory as error:
        _all_out_of_memory(subjects, "Q, K and V", error)
    else:
        checks = _measure_subjects(session, shape, subjects, drawn)
    runs.add_part(session.job.run, "checks", key, pd.DataFrame(checks))
    if resources := [_resources_row(session, shape, s) for s in subjects if s.alive and "resources" in s.details]:
        runs.add_part(session.job.run, "resources", key, pd.DataFrame(resources))
    runs.add_part(session.job.run, "cases", key, pd.DataFrame([_case_row(session, shape, s) for s in subjects]))
    subjects.clear()
    devices.release(session.device)


def _measure_subjects(
    session: Session, shape: Shape, subjects: list[Subject], drawn: inputs.Inputs
) -> list[dict[str, Any]]:
    for subject in subjects:
        subject.case.call = subject.implementation.bound(drawn, shape)
    checks = _gate(session, shape, subjects, drawn, "before")
    inputs.redraw(drawn, shape, session.seed(shape, "timed"))
    _prepare(session, shape, subjects, drawn)
    for timing in session.timings:
        _record_block(session, shape, subjects, timing)
    return checks + _gate(session, shape, subjects, drawn, "after")


def _subject(name: str) -> Subject:
    implementation = registry.find(name)
    return Subject(implementation, Case(partial(implementation.call), implementation.selected))


def _all_out_of_memory(subjects: list[Subject], what: str, error: OutOfMemory) -> None:
    for subject in [subject for subject in subjects if subject.alive]:
        subject.status, subject.reason = "out of memory", f"{what} don't fit: {error}"


def _through(subject: Subject, work: Callable[[], T]) -> T | None:
    """Do `work` for a subject; if it can't, note why and lose nothing else."""
    try:
        with subject.implementation.selected():
            return attempt(work)
    except Unsupported as error:
        subject.status, subject.reason = "skipped", str(error)
    except OutOfMemory as error:
        subject.status, subject.reason = "out of memory", str(error)
    except Broken as error:
        subject.status, subject.reason = "failed", str(error)
    return None


def _gate(
    session: Session, shape: Shape, subjects: list[Subject], drawn: inputs.Inputs, moment: str
) -> list[dict[str, Any]]:
    """Check every subject on inputs that nothing has seen, of all kinds before timing; who fails is out."""
    rows: list[dict[str, Any]] = []
    for kind in _kinds(shape, moment):
        inputs.redraw(drawn, shape, session.seed(shape, f"{moment}, {kind}"), kind)
        heads = _heads(session, shape, kind)
        try:
            gate = attempt(partial(Gate, drawn, shape.causal, kind, heads, _end_to_end(shape)))
        except OutOfMemory as error:
            _all_out_of_memory(subjects, "the oracle's scores", error)
            return rows
        for subject in [subject for subject in subjects if subject.alive]:
            for route, check in _checks(session, subject, gate, kind):
                rows.append(_check_row(session, shape, subject, check, moment, kind, route))
                if not check.passed:
                    subject.status, subject.reason = "failed", f"{moment} timing, {_named(kind, route)}: {check.reason}"
                    break
            devices.release(session.device)
    return rows


def _kinds(shape: Shape, moment: str) -> tuple[str, ...]:
    """Kinds of inputs to check on: all before timing, but in training, whose gradients a saturated softmax has none."""
    return inputs.KINDS if moment == "before" and shape.direction == "forward" else (inputs.NORMAL,)


def _end_to_end(shape: Shape) -> tuple[int, ...]:
    return shape.sequences if shape.lengths == "spread" else ()


def _heads(session: Session, shape: Shape, kind: str) -> list[int] | None:
    """Heads whose values the gate compares: all on normal inputs; on others as many as bound what the oracle costs.

    They are drawn at random, and an implementation can't know which.
    """
    heads = shape.heads * (1 if shape.lengths == "spread" else shape.batch)
    compared = max(1, COMPARED_SCORES * heads // shape.scores)
    if kind == inputs.NORMAL or compared >= heads:
        return None
    return sorted(random.Random(session.seed(shape, f"heads, {kind}")).sample(range(heads), compared))


def _checks(session: Session, subject: Subject, gate: Gate, kind: str) -> Iterator[tuple[str, Check]]:
    """Check what a subject computes from the inputs as they are now, by each route that is timed.

    Before there are graphs to be timed, on a GPU one of a single call is captured for normal inputs and thrown away.
    """
    call = subject.case.call
    called = _through(subject, lambda: gate.examine(call, subject.earlier))
    if called is not None:
        yield "call", called
    if not subject.alive:
        return
    timed = list(filter(None, dict.fromkeys((subject.case.one, subject.case.many))))
    for replay in timed:
        yield f"graph of {replay.calls}", gate.examine_replay(replay)
    if not timed and session.device.type == "cuda" and kind == inputs.NORMAL:
        captured = _through(subject, lambda: gate.examine_captured(call))
        if captured is not None:
            yield "graph of 1", captured


def _named(kind: str, route: str) -> str:
    return route if kind == inputs.NORMAL else f"{route}, {kind}"


def _prepare(session: Session, shape: Shape, subjects: list[Subject], drawn: inputs.Inputs) -> None:
    """Warm up, look at kernels, memory and resources, and capture graphs."""
    for subject in [subject for subject in subjects if subject.alive]:
        _through(subject, partial(_prepare_case, session, shape, subject, drawn))
        devices.release(session.device)
    if any(timing.clock == "device" for timing in session.timings):
        _capture(session, subjects)


def _prepare_case(session: Session, shape: Shape, subject: Subject, drawn: inputs.Inputs) -> None:
    case, inputs_bytes = subject.case, sum(tensor.nbytes for tensor in drawn)
    case.call()
    _require_short(session, case)
    if subject.implementation.resources:
        subject.details["resources"] = subject.implementation.resources(drawn[0], shape.causal)
    subject.details["kernels"] = inspection.kernels(case.call, session.device)
    subject.details["peak_memory_bytes"] = inspection.peak_memory_bytes(case.call, inputs_bytes, session.device)
    subject.details |= _warm_up(session, case)


def _require_short(session: Session, case: Case) -> None:
    """Raise Unsupported if a call takes longer than the study times."""
    longest_ms = session.job.study.longest_call_ms
    for _ in range(2):  # one call may have been held up
        call_ms = clocks.roughly_us(case, session.device, 1) / 1e3
        if call_ms <= longest_ms:
            return
    raise Unsupported(f"one call takes {call_ms:.3g} ms, longer than the study's longest_call_ms of {longest_ms:g}")


def _capture(session: Session, subjects: list[Subject]) -> None:
    pool = torch.cuda.graph_pool_handle()
    for subject in [subject for subject in subjects if subject.alive]:
        _through(subject, partial(clocks.capture, subject.case, pool))
        devices.release(session.device)


def _warm_up(session: Session, case: Case) -> dict[str, Any]:
    """Call until two windows in a row agree; say how many calls that took and whether they ever did."""
    least = -(-session.job.study.warmup_calls // WARMUP_WINDOW)
    last, steady = clocks.roughly_us(case, session.device, WARMUP_WINDOW), False
    windows = 1
    while windows < least or (not steady and windows < WARMUP_WINDOWS):
        now = clocks.roughly_us(case, session.device, WARMUP_WINDOW)
        steady = abs(now - last) <= STEADY * last
        last, windows = now, windows + 1
    return {"warmup_calls": windows * WARMUP_WINDOW, "steady": steady}


def _record_block(session: Session, shape: Shape, subjects: list[Subject], timing: Timing) -> None:
    """The rounds of one timing, kept as one part."""
    job = session.job
    key = block_key(job.study, shape, job.replicate, timing)
    alive = [subject for subject in subjects if subject.alive]
    if key in runs.recorded(job.run, "samples") or not alive:
        return
    take = clocks.sampler(session.device, timing)
    order = random.Random(session.seed(shape, str(timing)))
    rows = []
    for number in range(job.study.samples):
        order.shuffle(alive)
        telemetry = session.telemetry.read()
        for position, subject in enumerate(alive):
            try:
                latency_us, launches = take(subject.case)
            except torch.OutOfMemoryError as error:
                subject.status, subject.reason = "out of memory", f"while timed, {timing}: {error}"
                continue
            rows.append(
                {
                    "implementation": subject.implementation.name,
                    **shape.axes,
                    "clock": timing.clock,
                    "cache": timing.cache,
                }
                | {"replicate": job.replicate, "process": session.process, "round": number, "position": position}
                | {"started_s": time.monotonic() - session.started, "launches": launches, "latency_us": latency_us}
                | {"sm_clock_mhz": telemetry.sm_clock_mhz, "power_w": telemetry.power_w}
                | {"temperature_c": telemetry.temperature_c, "throttle_reasons": telemetry.throttle_reasons}
                | {"throttled": telemetry.throttled}
            )
        alive = [subject for subject in alive if subject.alive]
    runs.add_part(job.run, "samples", key, _typed(pd.DataFrame(rows)))


TELEMETRY_TYPES = {
    "sm_clock_mhz": "Int32",
    "power_w": "Float64",
    "temperature_c": "Int32",
    "throttle_reasons": "Int64",
    "throttled": "boolean",
}


def _typed(rows: pd.DataFrame) -> pd.DataFrame:
    # A machine without NVML has only empty readings, which must not change the columns' types.
    return rows.astype(TELEMETRY_TYPES)


def _check_row(
    session: Session, shape: Shape, subject: Subject, check: Check, moment: str, kind: str, route: str
) -> dict[str, Any]:
    return {
        "implementation": subject.implementation.name,
        **shape.axes,
        "replicate": session.job.replicate,
        "process": session.process,
        "moment": moment,
        "inputs": kind,
        "route": route,
        "max_error": check.error.maximum,
        "mean_error": check.error.mean,
        "framework_max_error": check.framework_error.maximum,
        "framework_mean_error": check.framework_error.mean,
        "passed": check.passed,
    }


def _resources_row(session: Session, shape: Shape, subject: Subject) -> dict[str, Any]:
    return {
        "implementation": subject.implementation.name,
        **shape.axes,
        "replicate": session.job.replicate,
        "process": session.process,
        **subject.details["resources"],
    }


def _case_row(session: Session, shape: Shape, subject: Subject) -> dict[str, Any]:
    details = subject.details
    return {
        "implementation": subject.implementation.name,
        **shape.axes,
        "replicate": session.job.replicate,
        "process": session.process,
        "status": subject.status,
        "reason": subject.reason,
        "kernels": "\n".join(details.get("kernels", [])),
        "peak_memory_bytes": details.get("peak_memory_bytes", 0),
        "warmup_calls": details.get("warmup_calls", 0),
        "steady": details.get("steady", False),
    }


def die_quietly() -> None:
    """Let this process, which a run started, end without a word when the run is stopped."""
    # Ctrl-C reaches the whole process group; the parent says what it means, a traceback from here would not.
    parent = multiprocessing.parent_process()
    if parent is not None:
        # The lock on the run goes with the parent: whoever resumes must not find us measuring beside them.
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        return  # nohup, or a shell's background job: the parent goes on after Ctrl-C, and needs us
    with suppress(ValueError):  # not in the main thread, as when an executor of threads runs a test
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _end_with(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os._exit(1)
