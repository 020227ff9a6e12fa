"""The work of a measuring process: its job, its session, and the state of each implementation at a shape."""

import math
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch

from attnlab.base import rules
from attnlab.base.errors import UserError
from attnlab.measuring import watch
from attnlab.measuring.clocks import originals
from attnlab.measuring.instruments.telemetry import Telemetry
from attnlab.measuring.subjects import registry
from attnlab.measuring.subjects.case import Case
from attnlab.measuring.subjects.implementation import (
    Broken,
    Implementation,
    OutOfMemory,
    Unsupported,
    attempt,
    fatal,
    raised,
)
from attnlab.runs.schema import FAILED, MEASURED, OUT_OF_MEMORY, SKIPPED, Row
from attnlab.study.shapes import Shape
from attnlab.study.studies import Study

T = TypeVar("T")
STREAM_PART = "stream"
UNPREPARED: Row = {"kernels": "", "peak_memory_bytes": 0, "warmup_calls": 0, "steady": False, "alone_differing": None}
STATUSES: dict[type[Exception], str] = {Unsupported: SKIPPED, OutOfMemory: OUT_OF_MEMORY}
"""The statuses of subjects that were dropped for these errors; for others it is `FAILED`."""


@dataclass(frozen=True)
class Job:
    """Work for one process: a replicate of some of the study's shapes, or the part of a run that `part` names.

    Attributes:
        part: ``stream`` for a replicate's requests, or one of `worker.ONCE`; "" for shapes.
    """

    run: str
    study: Study
    device: str
    replicate: int
    shapes: tuple[Shape, ...]
    part: str = ""

    def __str__(self) -> str:
        if not self.shapes:
            return f"{self.part} of replicate {self.replicate}" if self.part == STREAM_PART else self.part
        count = len(self.shapes)
        return f"replicate {self.replicate}, {count} shape{'s' * (count != 1)} from {self.shapes[0].label}"


@dataclass
class Session:
    """One process: its job, device and telemetry, when it started, and its random name."""

    job: Job
    device: torch.device
    telemetry: Telemetry
    started: float
    process: str = field(default_factory=lambda: uuid.uuid4().hex[:8])

    def seed(self, shape: Shape, purpose: str) -> int:
        """A seed for one shape, replicate and purpose."""
        return zlib.crc32(f"{rules.SEED} {shape} {self.job.replicate} {purpose}".encode())

    def row(self, shape: Shape, subject: "Subject") -> Row:
        """The first columns of each table whose rows belong to a case."""
        measured = {"replicate": self.job.replicate, "process": self.process}
        return {"implementation": subject.implementation.name, **shape.axes, **measured}


@dataclass
class Subject:
    """An implementation at one shape: ready to be timed, or with the reason why it is not.

    Attributes:
        place: the key of the shape.
        limit_s: how long one of its steps may take, such as a check or a sample.
        details: columns of the table ``cases`` from the preparation, before which they are those of `UNPREPARED`.
        needs: columns of the table ``resources``, for a kernel of the ladder.
        earlier: fingerprints of the outputs that the gate has already seen.
    """

    implementation: Implementation
    case: Case
    status: str = MEASURED
    reason: str = ""
    place: str = ""
    limit_s: float = math.inf
    details: Row = field(default_factory=lambda: dict(UNPREPARED))
    needs: Row = field(default_factory=dict)
    earlier: set[bytes] = field(default_factory=set)

    @classmethod
    def named(cls, name: str, place: str, study: Study) -> "Subject":
        """The implementation of this name, without inputs; not looked up if it ended a process before."""
        limit_s = study.time_limit_s
        if why := watch.failure(name, place):
            return cls(Implementation(name, _ended), Case(_ended, nullcontext), FAILED, why)
        with watch.step(name, "", limit_s):
            implementation = registry.find(name)
        case = Case(partial(implementation.call), implementation.selected)
        # Until it is known how long a call takes: the first, which may compile, and two as long as they may be.
        return cls(implementation, case, place=place, limit_s=limit_s + 2e-3 * study.longest_call_ms)

    @property
    def alive(self) -> bool:
        """Whether the subject has not been dropped."""
        return self.status == MEASURED

    def drop(self, status: str, reason: str) -> None:
        """Stop measuring the subject at this shape, with a status and a reason."""
        self.status, self.reason = status, reason

    @contextmanager
    def running(self) -> Iterator[None]:
        """A context in which the implementation runs and is watched; raises Broken if it replaced parts of a clock."""
        with watch.step(self.implementation.name, self.place, self.limit_s), originals.intact():
            yield

    def attempt(self, work: Callable[[], T]) -> T | None:
        """The result of `work`; if it fails, None, and the subject is dropped with the reason."""

        def selected() -> T:
            with self.implementation.selected():
                return work()

        try:
            with self.running():
                return attempt(selected)
        except Exception as error:
            if fatal(error) or isinstance(error, UserError):
                raise
            self.drop(STATUSES.get(type(error), FAILED), raised(error))
        return None


def _ended(*_: Any, **__: Any) -> Any:
    raise Broken("ended a process before")


def alive(subjects: Iterable[Subject]) -> list[Subject]:
    """The subjects that have not been dropped."""
    return [subject for subject in subjects if subject.alive]


@contextmanager
def unless_refused(subjects: Iterable[Subject], what: str) -> Iterator[None]:
    """A context for work that all of these subjects need; if it is refused or lacks memory, they are dropped."""
    try:
        yield
    except Unsupported as error:
        for subject in alive(subjects):
            subject.drop(SKIPPED, str(error))
    except OutOfMemory as error:
        for subject in alive(subjects):
            subject.drop(OUT_OF_MEMORY, f"{what} don't fit: {error}")
