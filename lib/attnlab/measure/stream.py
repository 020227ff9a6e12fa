"""A stream of requests, each of another shape than the one before: what a program that serves them waits for.

Each request is answered by every implementation of the study, in random order, one call after the other. Unlike in a
round, nothing is repeated to warm the cache for the call that is timed.
"""

import random
import time
from functools import partial

import pandas as pd
import torch

from attnlab import runs
from attnlab.errors import UserError
from attnlab.measure import devices, inputs, registry
from attnlab.measure.attention import OutOfMemory, attempt
from attnlab.measure.clocks import Case
from attnlab.shapes import Shape
from attnlab.studies import Study

WARMUP_CALLS = 3
Requests = dict[Shape, list[tuple[str, Case]]]


def take(run: str, study: Study, replicate: int, device: torch.device, seed: int) -> pd.DataFrame:
    """The calls of one replicate's stream, a row each.

    ``latency_us`` is from before the call until its output is there, by the host's clock; ``host_us`` until the call
    came back, which on a GPU is before the output is there. A shape at which an implementation has no latency in this
    replicate is not asked for.

    Raises:
        UserError: the device's memory doesn't hold the inputs of all shapes at once.
    """
    try:
        answering = attempt(partial(_ready, run, study, replicate, device, seed))
    except OutOfMemory as error:
        raise UserError(
            f"the stream of {run!r} keeps inputs of all its shapes at hand, which don't fit ({error}): ask for fewer "
            "shapes in a new run, or leave `stream` out"
        ) from None
    order = random.Random(seed)
    rows = []
    for position, shape in enumerate(order.choices(list(answering), k=study.stream) if answering else ()):
        answers = answering[shape]
        order.shuffle(answers)
        for name, case in answers:
            row = {"implementation": name, **shape.axes, "replicate": replicate, "position": position}
            rows.append(row | _answered(case, device))
    return pd.DataFrame(rows, columns=[c for c in runs.COLUMNS["stream"] if c != "process"])


def _answered(case: Case, device: torch.device) -> dict[str, float]:
    with case.selected():
        devices.synchronize(device)
        begin = time.perf_counter_ns()
        case.call()
        returned = time.perf_counter_ns()
        devices.synchronize(device)
        end = time.perf_counter_ns()
    return {"latency_us": (end - begin) / 1e3, "host_us": (returned - begin) / 1e3}


def _ready(run: str, study: Study, replicate: int, device: torch.device, seed: int) -> Requests:
    """Every shape at which all implementations were measured, with each bound to inputs and warmed up."""
    answering: Requests = {}
    cases = runs.load(run).cases
    cases = cases[cases["replicate"] == replicate]
    for shape in study.shapes:
        if not _all_measured(cases, study, shape):
            continue
        drawn = inputs.draw(shape, seed, device)
        answering[shape] = []
        for name in study.implementations:
            implementation = registry.find(name)
            case = Case(implementation.bound(drawn, shape), implementation.selected)
            for _ in range(WARMUP_CALLS):
                _answered(case, device)
            answering[shape].append((name, case))
    return answering


def _all_measured(cases: pd.DataFrame, study: Study, shape: Shape) -> bool:
    fates = cases[runs.is_of(cases, shape) & cases["implementation"].isin(study.implementations)]
    return not fates.empty and bool((fates["status"] == "measured").all())
