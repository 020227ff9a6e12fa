"""Run the gate for all subjects of a shape, on each input distribution and by each route."""

import random
from collections.abc import Iterator
from functools import partial
from itertools import product

from attnlab.measuring.gate import alone
from attnlab.measuring.gate.check import Check
from attnlab.measuring.gate.gate import Gate
from attnlab.measuring.gate.reference_check import INPUTS, References
from attnlab.measuring.instruments import devices
from attnlab.measuring.session.subject import Session, Subject, alive, unless_refused
from attnlab.measuring.subjects.implementation import Operands, attempt
from attnlab.measuring.subjects.inputs import Windows
from attnlab.runs.schema import EXTREMES, FAILED, Row
from attnlab.study.shapes import Shape

# On the extremes, the gate compares as many heads as have this many scores: 16 with 512 keys, or 1 with 2048. On the
# timed values it compares all heads: they may differ, and their errors set the bounds of timed outputs.
COMPARED_SCORES = 2**22


def check_all(
    session: Session, subjects: list[Subject], windows: Windows, moment: str, references: References | None = None
) -> list[Row]:
    """Check every subject on unseen inputs, ``before`` or ``after`` timing; returns a row per check.

    A subject that fails is dropped. The gate on the shape's values appoints the witness of each of the references.
    """
    shape, checked = windows.shape, list[Row]()
    first = next(other for other in session.job.study.shapes if other.plain == shape.plain)
    # Of shapes that differ only in values, the first has the extremes. In training there are none: the gradients of a
    # saturated softmax are zero.
    extremes = EXTREMES if moment == "before" and not shape.trains and shape == first else ()
    every = dict.fromkeys(subject.implementation.operands for subject in subjects)
    for kind, operands in product((shape.values, *extremes), every):
        held = [subject for subject in alive(subjects) if subject.implementation.operands == operands]
        if not held:
            continue
        windows.draw(session.seed(shape, f"{moment}, {kind}"), kind)
        with unless_refused(held, "the oracle's scores"):
            gate = attempt(partial(gate_of, windows, kind, operands))
            if references is not None and kind == shape.values:
                references[operands].appoint(gate)
        for subject in alive(held):  # none without a gate
            for route, check in _by_route(session, subject, gate, kind):
                where = {"moment": moment, "inputs": kind, "route": route}
                checked.append(session.row(shape, subject) | where | _row(check))
                if not check.passed:
                    at = f"{route}, {kind}" if kind in EXTREMES else route
                    subject.drop(FAILED, f"{moment} timing, {at}: {check.reason}")
                    break
            # In replicate 0 only: it depends on the code alone, and plans and compiles again for a batch of 1.
            asks_alone = moment == "before" and kind == shape.values and not session.job.replicate
            if asks_alone and subject.alive:
                asked = partial(alone.differing, subject.implementation, windows[0], shape)
                subject.details["alone_differing"] = subject.attempt(asked)
            devices.release(session.device)
    return checked


def _row(found: Check) -> Row:
    return {
        "max_error": found.error.maximum,
        "mean_error": found.error.mean,
        "framework_max_error": found.framework_error.maximum,
        "framework_mean_error": found.framework_error.mean,
        "allowed_max_error": found.allowed.maximum,
        "allowed_mean_error": found.allowed.mean,
        "drawn_rms_error": found.drawn and found.drawn.rmse,
        "drawn_max_error": found.drawn and found.drawn.maximum,
        "differing": found.differing,
        "passed": found.passed,
    }


def gate_of(windows: Windows, kind: str = "", operands: Operands = INPUTS, window: int = 0) -> Gate:
    """The gate for a window of inputs: `kind` is one of `schema.EXTREMES`, or empty for the shape's values.

    Raises Unsupported: as `Operands.of`, which gives the numbers that are multiplied.
    """
    shape = windows.shape
    kind = kind or shape.values
    heads = few_heads(shape) if kind in EXTREMES else None
    sequences = shape.sequences if shape.ragged else ()
    numbers = operands.of(windows, window)
    backward = shape.direction == "backward"
    return Gate(windows[window], shape.causal, kind, heads, sequences, shape.scale or None, numbers, backward)


def few_heads(shape: Shape) -> list[int] | None:
    """Random heads with about `COMPARED_SCORES` scores, which the gate compares; None for all heads.

    The operating system's generator draws them, so that no implementation can derive them from the run's seed.
    """
    heads = shape.heads * (1 if shape.ragged else shape.batch)
    compared = max(1, COMPARED_SCORES * heads // shape.scores)
    if compared >= heads:
        return None
    return sorted(random.SystemRandom().sample(range(heads), compared))


def _by_route(session: Session, subject: Subject, gate: Gate, kind: str) -> Iterator[tuple[str, Check]]:
    """Check a subject's outputs for the current inputs, by each route that is timed."""
    call, repeats = subject.case.call, subject.implementation.repeats
    subject.case.refresh()
    called = subject.attempt(lambda: gate.examine(call, subject.earlier, repeats))
    if called is None:
        return
    yield "call", called
    timed = list(filter(None, dict.fromkeys((subject.case.one, subject.case.many))))
    for replay in timed:
        with subject.running():
            replayed = gate.examine_replay(replay, repeats)
        yield f"graph of {replay.calls}", replayed
    if not timed and session.device.type == "cuda" and kind not in EXTREMES:  # before graphs are captured for timing
        captured = subject.attempt(lambda: gate.examine_captured(call, repeats))
        if captured is not None:
            yield "graph of 1", captured
