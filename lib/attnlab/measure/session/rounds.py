"""One shape through the gate, the clocks in random rounds, and the gate again."""

import random
from functools import partial
from typing import Any

import pandas as pd
import torch

from attnlab.measure.clocks import ours
from attnlab.measure.instruments import devices, inspection
from attnlab.measure.session import rows
from attnlab.measure.session.checks import check_all
from attnlab.measure.session.rows import Row
from attnlab.measure.session.subject import Session, Subject, alive, drop_all
from attnlab.measure.subjects import inputs
from attnlab.measure.subjects.case import Case
from attnlab.measure.subjects.implementation import OutOfMemory, Unsupported, attempt
from attnlab.runs import rules, write
from attnlab.runs.schema import OUT_OF_MEMORY, block_key, typed
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing

# Warm-up goes on past the calls that the study asks for until two windows agree, or for this many windows.
WARMUP_WINDOW = 10
WARMUP_WINDOWS = 20


def measure_shape(session: Session, shape: Shape) -> None:
    """Check and time all subjects at one shape, unless it is already recorded. Its cases are written last."""
    key = session.key(shape)
    if key in write.recorded(session.job.run, "cases"):
        return
    subjects = [Subject.named(name) for name in session.job.study.subjects]
    checks: list[Row] = []
    try:
        drawn = attempt(lambda: inputs.draw(shape, session.seed(shape, "timed"), session.device))
    except OutOfMemory as error:
        drop_all(subjects, "Q, K and V", error)
    else:
        checks = _measure_subjects(session, shape, subjects, drawn)
    write.add_part(session.job.run, "checks", key, pd.DataFrame(checks))
    if resources := [rows.resources(session, shape, s) for s in alive(subjects) if "resources" in s.details]:
        write.add_part(session.job.run, "resources", key, pd.DataFrame(resources))
    write.add_part(session.job.run, "cases", key, pd.DataFrame([rows.case(session, shape, s) for s in subjects]))
    subjects.clear()
    devices.release(session.device)


def _measure_subjects(session: Session, shape: Shape, subjects: list[Subject], drawn: inputs.Inputs) -> list[Row]:
    for subject in subjects:
        subject.case.call = subject.implementation.bound(drawn, shape)
    checks = check_all(session, shape, subjects, drawn, "before")
    inputs.redraw(drawn, shape, session.seed(shape, "timed"))
    _prepare(session, shape, subjects, drawn)
    for timing in session.timings:
        _record_block(session, shape, subjects, timing)
    return checks + check_all(session, shape, subjects, drawn, "after")


def _prepare(session: Session, shape: Shape, subjects: list[Subject], drawn: inputs.Inputs) -> None:
    """Warm up, record kernels, memory and resources, and capture graphs."""
    for subject in alive(subjects):
        subject.attempt(partial(_prepare_case, session, shape, subject, drawn))
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
    """Raise Unsupported if a call takes longer than the study allows."""
    longest_ms = session.job.study.longest_call_ms
    for _ in range(2):  # one call may have been held up
        call_ms = ours.roughly_us(case, session.device, 1) / 1e3
        if call_ms <= longest_ms:
            return
    raise Unsupported(f"one call takes {call_ms:.3g} ms, longer than the study's longest_call_ms of {longest_ms:g}")


def _capture(session: Session, subjects: list[Subject]) -> None:
    pool = torch.cuda.graph_pool_handle()
    for subject in alive(subjects):
        subject.attempt(partial(ours.capture, subject.case, pool))
        devices.release(session.device)


def _warm_up(session: Session, case: Case) -> dict[str, Any]:
    """Call until two windows in a row agree; returns how many calls that took, and whether they ever agreed."""
    least = -(-session.job.study.warmup_calls // WARMUP_WINDOW)
    last, steady = ours.roughly_us(case, session.device, WARMUP_WINDOW), False
    windows = 1
    while windows < least or (not steady and windows < WARMUP_WINDOWS):
        now = ours.roughly_us(case, session.device, WARMUP_WINDOW)
        steady = abs(now - last) <= rules.STEADY * last
        last, windows = now, windows + 1
    return {"warmup_calls": windows * WARMUP_WINDOW, "steady": steady}


def _record_block(session: Session, shape: Shape, subjects: list[Subject], timing: Timing) -> None:
    """Take the samples of one timing in rounds, and record them as one part."""
    job = session.job
    key = block_key(job.study, shape, job.replicate, timing)
    turns = alive(subjects)
    if key in write.recorded(job.run, "samples") or not turns:
        return
    sampler = ours.sampler(session.device, timing)
    order = random.Random(session.seed(shape, str(timing)))
    samples: list[Row] = []
    for number in range(job.study.samples):
        order.shuffle(turns)
        card = session.telemetry.read()
        for position, subject in enumerate(turns):
            try:
                taken = sampler(subject.case)
            except torch.OutOfMemoryError as error:
                subject.drop(OUT_OF_MEMORY, f"while timed, {timing}: {error}")
                continue
            samples.append(rows.sample(session, shape, subject, timing, (number, position), taken, card))
        turns = alive(turns)
    write.add_part(job.run, "samples", key, typed(pd.DataFrame(samples)))
