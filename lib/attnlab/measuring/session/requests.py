"""Time a stream of requests of random shapes, as a program that waits for each request sees it.

Every implementation of the study answers each request, in random order, one call after the other. Unlike in a round,
no call is repeated to warm the cache for the one that is timed.
"""

import random
from functools import partial

import pandas as pd
import torch

from attnlab.base.errors import UserError
from attnlab.measuring import watch
from attnlab.measuring.clocks import originals
from attnlab.measuring.instruments import devices
from attnlab.measuring.subjects import registry
from attnlab.measuring.subjects.case import Case
from attnlab.measuring.subjects.implementation import OutOfMemory, attempt
from attnlab.measuring.subjects.inputs import Windows
from attnlab.runs import read, schema
from attnlab.runs.tables import STREAM, frame_of
from attnlab.study.shapes import Shape
from attnlab.study.studies import Study

WARMUP_CALLS = 3
STREAM_PLACE = "stream"
Requests = dict[Shape, tuple[Windows, list[tuple[str, Case]]]]


def take(run: str, study: Study, replicate: int, device: torch.device, seed: int) -> pd.DataFrame:
    """The calls of one replicate's stream, a row each.

    By the host's clock, ``latency_us`` is from before the call until its output is complete. ``host_us`` is until the
    call returns, which on a GPU is earlier. Requests have only shapes at which all implementations were measured in
    this replicate.

    Raises UserError: the device's memory doesn't hold the inputs of all shapes at once.
    """
    try:
        answering = attempt(partial(_ready, run, study, replicate, device, seed))
    except OutOfMemory as error:
        why = f"the stream of {run!r} keeps inputs of all its shapes, which don't fit ({error})"
        raise UserError(f"{why}: ask for fewer shapes in a new run, or leave `stream` out") from None
    order = random.Random(seed)
    rows = []
    for position, shape in enumerate(order.choices(list(answering), k=study.stream) if answering else ()):
        windows, answers = answering[shape]
        windows.draw(order.randrange(2**31))  # each request has new values
        order.shuffle(answers)
        for name, case in answers:
            with watch.step(name, STREAM_PLACE, study.time_limit_s):
                answered = _answered(case, device)
            row: schema.Row = {"implementation": name, **shape.axes, "replicate": replicate, "position": position}
            rows.append(row | answered)
    return frame_of(STREAM, rows)


def _answered(case: Case, device: torch.device) -> dict[str, float]:
    with case.selected():
        case.refresh()
        devices.synchronize(device)
        begin = originals.perf_counter_ns()
        case.call()
        returned = originals.perf_counter_ns()
        devices.synchronize(device)
        end = originals.perf_counter_ns()
    return {"latency_us": (end - begin) / 1e3, "host_us": (returned - begin) / 1e3}


def _ready(run: str, study: Study, replicate: int, device: torch.device, seed: int) -> Requests:
    """By shape at which all implementations were measured: its inputs, and each implementation bound and warmed up."""
    answering: Requests = {}
    if any(watch.failure(name, STREAM_PLACE) for name in study.implementations):
        return answering
    cases = read.load(run).cases
    cases = cases[cases["replicate"] == replicate]
    for shape in study.shapes:
        if not _all_measured(cases, study, shape):
            continue
        windows = Windows(shape, device)
        windows.draw(seed)
        cases_by_name = [(name, Case.of(registry.find(name), windows)) for name in study.implementations]
        for name, case in cases_by_name:
            with watch.step(name, STREAM_PLACE, study.time_limit_s):
                for _ in range(WARMUP_CALLS):
                    _answered(case, device)
        answering[shape] = windows, cases_by_name
    return answering


def _all_measured(cases: pd.DataFrame, study: Study, shape: Shape) -> bool:
    fates = cases[schema.is_equal(cases, shape.axes) & cases["implementation"].isin(study.implementations)]
    return not fates.empty and bool((fates["status"] == schema.MEASURED).all())
