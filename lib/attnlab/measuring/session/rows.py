"""Rows of a run's tables, as the session records them."""

import math
import time
from dataclasses import asdict

from attnlab.measuring.gate.check import Check
from attnlab.measuring.instruments.telemetry import Reading
from attnlab.measuring.session.subject import Session, Subject
from attnlab.runs.schema import Row
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing

# Starts in steps of 8 µs and strains of three digits take half the room in a run's file that all their digits would.
TICKS_PER_S = 2**17


def sample(
    session: Session,
    shape: Shape,
    subject: Subject,
    timing: Timing,
    turn: tuple[int, int],
    launches: int,
    card: Reading,
) -> Row:
    """A row of ``samples`` but for its latency and its strain, which are known later.

    Args:
        turn: the round, and the position in its random order.
        card: the state of the card when the round began.
    """
    number, position = turn
    place = {"round": number, "position": position, "started_s": started_s(session)}
    state = asdict(card) | {"throttled": card.throttled, "launches": launches}
    return _case(session, shape, subject) | timing.model_dump() | place | state


def started_s(session: Session) -> float:
    """How long ago the session began."""
    return round((time.monotonic() - session.started) * TICKS_PER_S) / TICKS_PER_S


def in_three_digits(strain: float) -> float:
    """A strain rounded up, so that one above 1 stays above it."""
    if not 0 < strain < math.inf:
        return strain
    factor = 10.0 ** (2 - math.floor(math.log10(strain)))
    return math.ceil(strain * factor) / factor


def check(session: Session, shape: Shape, subject: Subject, found: Check, moment: str, kind: str, route: str) -> Row:
    """A row of ``checks``."""
    return {
        **_case(session, shape, subject),
        "moment": moment,
        "inputs": kind,
        "route": route,
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


def resources(session: Session, shape: Shape, subject: Subject) -> Row:
    """A row of ``resources``."""
    return _case(session, shape, subject) | subject.details["resources"]


def case(session: Session, shape: Shape, subject: Subject) -> Row:
    """A row of ``cases``."""
    details = subject.details
    return {
        **_case(session, shape, subject),
        "status": subject.status,
        "reason": subject.reason,
        "kernels": "\n".join(details.get("kernels", [])),
        "peak_memory_bytes": details.get("peak_memory_bytes", 0),
        "warmup_calls": details.get("warmup_calls", 0),
        "steady": details.get("steady", False),
        "alone_differing": details.get("alone_differing"),
    }


def _case(session: Session, shape: Shape, subject: Subject) -> Row:
    measured = {"replicate": session.job.replicate, "process": session.process}
    return {"implementation": subject.implementation.name, **shape.axes, **measured}
