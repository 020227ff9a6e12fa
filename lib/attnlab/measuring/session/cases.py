"""Measure the cases of one shape: the gate, preparation, samples, and the gate again."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from attnlab.base import rules
from attnlab.measuring.clocks import cuda_events
from attnlab.measuring.gate.reference_check import ReferenceCheck, References
from attnlab.measuring.instruments import devices, environment, inspection
from attnlab.measuring.session.checks import check_all
from attnlab.measuring.session.rounds import Rounds
from attnlab.measuring.session.subject import Session, Subject, alive, unless_refused
from attnlab.measuring.subjects.case import Case
from attnlab.measuring.subjects.implementation import Unsupported, attempt
from attnlab.measuring.subjects.inputs import Windows
from attnlab.runs import read, write
from attnlab.runs.schema import FAILED, SKIPPED, TOO_LONG, Row, block_key, shape_key
from attnlab.runs.tables import CASES, CHECKS, RESOURCES, SAMPLES, frame_of
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing

# Calls in a window, and the most windows: warm-up exceeds the study's calls until 2 windows in a row agree.
WARMUP_WINDOW = 10
WARMUP_WINDOWS = 20
# More calls than any step makes once it is known how long one takes.
STEP_CALLS = 400


def measure_shape(session: Session, shape: Shape) -> None:
    """Check and time all subjects at one shape, unless it is already recorded. Its cases are written last."""
    run, study = session.job.run, session.job.study
    key = shape_key(study, shape, session.job.replicate)
    if key in write.recorded(run, "cases"):
        return
    environment.compile_every_shape()
    subjects = [Subject.named(name, key, study) for name in study.subjects]
    for subject in subjects:
        if study.leaves_out(subject.implementation.name, shape):
            subject.drop(SKIPPED, "the study has it in other sweeps only")
    calls = cuda_events.most_calls(shape) if session.device.type == "cuda" else 1
    windows = first_windows(session, shape, subjects, calls)
    checks = _measure_subjects(session, subjects, windows) if windows is not None else []
    write.add_part(run, "checks", key, frame_of(CHECKS, checks))
    if resources := [session.row(shape, subject) | subject.needs for subject in alive(subjects) if subject.needs]:
        write.add_part(run, "resources", key, frame_of(RESOURCES, resources))
    cases = [
        session.row(shape, subject) | subject.details | {"status": subject.status, "reason": subject.reason}
        for subject in subjects
    ]
    write.add_part(run, "cases", key, frame_of(CASES, cases))
    subjects.clear()
    devices.release(session.device)


def first_windows(session: Session, shape: Shape, subjects: list[Subject], calls: int) -> Windows | None:
    """Make inputs of a shape for `calls` calls and bind subjects to them; if that fails, drop all and return None."""
    windows: Windows | None = None
    with unless_refused(subjects, "Q, K and V"):
        windows = attempt(lambda: Windows(shape, session.device, calls))
    if windows is None:
        return None
    for subject in alive(subjects):
        subject.case = subject.attempt(partial(Case.of, subject.implementation, windows)) or subject.case
    windows.draw(session.seed(shape, "first"))
    return windows


def _each(session: Session, subjects: list[Subject], work: Callable[[Subject], object]) -> None:
    for subject in alive(subjects):
        subject.attempt(partial(work, subject))
        devices.release(session.device)


def _measure_subjects(session: Session, subjects: list[Subject], windows: Windows) -> list[Row]:
    _each(session, subjects, partial(_require_short, session))  # before the gate, which calls each about 12 times
    every = dict.fromkeys(subject.implementation.operands for subject in subjects)
    references = {operands: ReferenceCheck(windows, operands) for operands in every}
    checks = check_all(session, subjects, windows, "before", references)
    windows.draw(session.seed(windows.shape, "timed"))
    _each(session, subjects, partial(_prepare, session))
    timings = [timing for timing in session.job.study.timings if cuda_events.available(session.device, timing)]
    if any(timing.clock != "eager" for timing in timings):
        pool = torch.cuda.graph_pool_handle()
        _each(session, subjects, lambda subject: cuda_events.capture(subject.case, pool))
    for timing in timings:
        _record_block(session, subjects, timing, windows, references)
    return checks + check_all(session, subjects, windows, "after")


def _prepare(session: Session, subject: Subject) -> None:
    case, details = subject.case, subject.details
    assert case.windows is not None
    shape = case.windows.shape
    case.refresh()
    q, k, v, *_ = inputs = case.windows[0]
    if subject.implementation.resources:
        subject.needs = subject.implementation.resources(q, k, v, shape.causal, shape.scale or None)
    inputs_bytes = sum(tensor.nbytes for tensor in inputs)
    details["kernels"] = "\n".join(inspection.kernels(case.call, session.device))
    details["peak_memory_bytes"] = inspection.peak_memory_bytes(case.call, inputs_bytes, session.device)
    details |= _warm_up(session, case)


def _require_short(session: Session, subject: Subject) -> None:
    """Raise Unsupported if a call takes longer than the study allows."""
    case, longest_ms = subject.case, session.job.study.longest_call_ms
    case.refresh()
    case.call()  # compiling at the first call is not counted
    for _ in range(2):  # one call may be delayed by chance
        call_ms = cuda_events.roughly_us(case, session.device, 1) / 1e3
        if call_ms <= longest_ms:
            subject.limit_s += STEP_CALLS * call_ms / 1e3
            return
    raise Unsupported(f"{TOO_LONG} {call_ms:.3g} ms, longer than the study's longest_call_ms of {longest_ms:g}")


def _warm_up(session: Session, case: Case) -> dict[str, Any]:
    """Call until 2 windows in a row agree; returns the number of calls, and whether windows agreed."""
    least = -(-session.job.study.warmup_calls // WARMUP_WINDOW)
    last, steady = cuda_events.roughly_us(case, session.device, WARMUP_WINDOW), False
    windows = 1
    while windows < least or (not steady and windows < WARMUP_WINDOWS):
        now = cuda_events.roughly_us(case, session.device, WARMUP_WINDOW)
        steady = abs(now - last) <= rules.STEADY * last
        last, windows = now, windows + 1
    return {"warmup_calls": windows * WARMUP_WINDOW, "steady": steady}


def _record_block(
    session: Session, subjects: list[Subject], timing: Timing, windows: Windows, references: References
) -> None:
    """Record the samples of one timing as one part. If the part exists, drop the subjects with wrong outputs in it."""
    job = session.job
    key = block_key(job.study, windows.shape, job.replicate, timing)
    if key in write.recorded(job.run, "samples"):
        samples = read.part(job.run, "samples", key)
        strains = samples[samples["strain"] > 1].groupby("implementation")["strain"].max()
        for subject in alive(subjects):
            if strain := strains.get(subject.implementation.name):
                wrong = f"an output's error was {strain:.3g} times what is allowed, before the run was interrupted"
                subject.drop(FAILED, f"while timed, {timing}: {wrong}")
    elif alive(subjects):
        rows = Rounds(session, timing, windows, references).take(subjects)
        write.add_part(job.run, "samples", key, frame_of(SAMPLES, rows))
