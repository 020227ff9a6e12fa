"""Rows of a run's tables, as the session records them."""

import time
from typing import Any

from attnlab.measure.clocks.cuda_events import Taken
from attnlab.measure.gate.check import Check
from attnlab.measure.instruments.telemetry import Reading
from attnlab.measure.session.subject import Session, Subject
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing

Row = dict[str, Any]


def sample(
    session: Session,
    shape: Shape,
    subject: Subject,
    timing: Timing,
    turn: tuple[int, int],
    taken: Taken,
    card: Reading,
) -> Row:
    """A row of ``samples``.

    Args:
        turn: the round, and the position in its random order.
        card: the state of the card when the round began.
    """
    return {
        **_case(shape, subject),
        "clock": timing.clock,
        "cache": timing.cache,
        **_process(session),
        "round": turn[0],
        "position": turn[1],
        "started_s": time.monotonic() - session.started,
        "launches": taken.launches,
        "latency_us": taken.latency_us,
        "strain": taken.strain,
        "sm_clock_mhz": card.sm_clock_mhz,
        "power_w": card.power_w,
        "temperature_c": card.temperature_c,
        "throttle_reasons": card.throttle_reasons,
        "throttled": card.throttled,
    }


def check(session: Session, shape: Shape, subject: Subject, found: Check, moment: str, kind: str, route: str) -> Row:
    """A row of ``checks``."""
    return {
        **_case(shape, subject),
        **_process(session),
        "moment": moment,
        "inputs": kind,
        "route": route,
        "max_error": found.error.maximum,
        "mean_error": found.error.mean,
        "framework_max_error": found.framework_error.maximum,
        "framework_mean_error": found.framework_error.mean,
        "differing": found.differing,
        "passed": found.passed,
    }


def resources(session: Session, shape: Shape, subject: Subject) -> Row:
    """A row of ``resources``."""
    return {**_case(shape, subject), **_process(session), **subject.details["resources"]}


def case(session: Session, shape: Shape, subject: Subject) -> Row:
    """A row of ``cases``."""
    details = subject.details
    return {
        **_case(shape, subject),
        **_process(session),
        "status": subject.status,
        "reason": subject.reason,
        "kernels": "\n".join(details.get("kernels", [])),
        "peak_memory_bytes": details.get("peak_memory_bytes", 0),
        "warmup_calls": details.get("warmup_calls", 0),
        "steady": details.get("steady", False),
        "alone_differing": details.get("alone_differing"),
    }


def _case(shape: Shape, subject: Subject) -> Row:
    return {"implementation": subject.implementation.name, **shape.axes}


def _process(session: Session) -> Row:
    return {"replicate": session.job.replicate, "process": session.process}
