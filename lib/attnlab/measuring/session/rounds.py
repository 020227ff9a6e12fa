"""The rounds of one clock and cache at one shape."""

import math
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial

import torch

from attnlab.measuring.clocks import cuda_events, in_process
from attnlab.measuring.gate.reference_check import Bound, References, Tally
from attnlab.measuring.session.checks import gate_of
from attnlab.measuring.session.subject import Session, Subject, alive
from attnlab.measuring.subjects import outputs
from attnlab.measuring.subjects.implementation import Broken, Operands, OutOfMemory, attempt, fatal, raised
from attnlab.measuring.subjects.inputs import Windows
from attnlab.runs.schema import FAILED, OUT_OF_MEMORY, Row
from attnlab.study.studies import Timing

# One round in so many is followed by graphs that end early.
CUT_SHORT = 32
# CUPTI's records are read after so many rounds: it keeps only so much.
TRACED_ROUNDS = 25
# Starts in steps of 8 µs and strains of three digits take half the room in a run's file that all their digits would.
TICKS_PER_S = 2**17
Taken = tuple[Row, cuda_events.TakenSample]
Outputs = tuple[Tally, list[tuple[str, int, cuda_events.TakenSample]]]
"""The comparisons of one subject's outputs so far; for each, the words that its inputs were drawn for, the window and
the sample."""


class Rounds:
    """Rounds, in which every subject is timed once, in random order, on values that it has never seen."""

    def __init__(self, session: Session, timing: Timing, windows: Windows, references: References) -> None:
        self._session, self._timing, self._windows, self._references = session, timing, windows, references
        self._shape = windows.shape
        self._order = random.Random(session.seed(self._shape, str(timing)))
        self._count = session.job.study.rounds(timing)
        self._compared: dict[str, Outputs] = {}

    def take(self, subjects: list[Subject]) -> list[Row]:
        """Take all samples, a row each. Subjects with a wrong output are dropped."""
        timed = alive(subjects)
        for subject in timed:
            reference = self._references[subject.implementation.operands]
            tally = Tally(reference, 2 * self._count, self._session.device)
            self._compared[subject.implementation.name] = tally, []
        # Which rounds are followed by graphs that end early, nothing can know.
        cut_short = set(random.SystemRandom().sample(range(self._count), max(1, self._count // CUT_SHORT)))
        samples: list[Taken] = []
        for first in range(0, self._count, TRACED_ROUNDS):
            with cuda_events.sampling(self._session.device, self._timing) as sampler:
                for number in range(first, min(self._count, first + TRACED_ROUNDS)):
                    samples += self._round(alive(subjects), number, sampler)
                    if number in cut_short and self._timing == in_process.WARM:
                        self._cut_short(alive(subjects), number)
        for subject in timed:
            self._settle(subject)
        return [row | {"latency_us": sample.latency_us, "strain": sample.strain} for row, sample in samples]

    def _round(self, turns: list[Subject], number: int, sampler: cuda_events.Sampler) -> list[Taken]:
        purpose = f"round {number}"
        self._draw(purpose)
        drawn_bits = self._windows.bits()
        self._order.shuffle(turns)
        card = self._session.telemetry.read()
        state, taken = asdict(card) | {"throttled": card.throttled}, []
        for position, subject in enumerate(turns):
            with self._unless_refused(subject):
                with subject.running():
                    sample = sampler(subject.case)
                for output in outputs.each(sample.output):
                    if wrong := outputs.disguised(output, self._session.device):
                        raise Broken(wrong)
                started_s = round((time.monotonic() - self._session.started) * TICKS_PER_S) / TICKS_PER_S
                place = {"round": number, "position": position, "started_s": started_s}
                row = self._session.row(self._shape, subject) | self._timing.model_dump() | place | state
                taken.append((row | {"launches": sample.launches}, sample))
                self._compare(subject, sample, purpose, 0)
                if self._windows.bits() != drawn_bits:  # which would spoil the samples of others
                    self._draw(purpose)
                    raise Broken("changed its inputs")
        return taken

    def _cut_short(self, subjects: list[Subject], number: int) -> None:
        """Replay a shortened graph of each subject, which ends after a few calls, and compare its output."""
        purpose = f"round {number}, cut short"
        self._draw(purpose)
        for subject in subjects:
            many, cut = subject.case.many, subject.case.cut
            if many is None or cut is None:
                continue
            with self._unless_refused(subject), subject.running():
                with subject.case.scrambled():
                    many.graph.replay()
                cut.graph.replay()
                sample = cuda_events.TakenSample(math.nan, cut.calls, cut.output)
                self._compare(subject, sample, purpose, cut.window)

    def _compare(self, subject: Subject, sample: cuda_events.TakenSample, purpose: str, window: int) -> None:
        """Compare the output of a sample with the reference, and free it."""
        tally, compared = self._compared[subject.implementation.name]
        tally.compare(sample.output, window)
        sample.output = None
        compared.append((purpose, window, sample))

    def _settle(self, subject: Subject) -> None:
        """Record the strain of each sample, its error over the bound, and drop a subject with one above 1."""
        tally, compared = self._compared[subject.implementation.name]
        for (purpose, window, sample), comparison in zip(compared, tally.read(), strict=True):
            if comparison.strain > 1 and subject.alive:
                bounds = self._bounds_on(purpose, window, subject.implementation.operands)
                comparison = replace(comparison, bounds=bounds)
            sample.strain = in_three_digits(comparison.strain)
            if comparison.strain > 1 and subject.alive:
                subject.drop(FAILED, f"while timed, {self._timing}, {purpose}: {comparison}")

    def _bounds_on(self, purpose: str, window: int, operands: Operands) -> list[Bound]:
        """The bounds for the exact inputs of an output; if memory can't hold their oracle, those for all inputs."""
        self._draw(purpose)
        reference = self._references[operands]
        try:
            gate = attempt(partial(gate_of, self._windows, "", operands, window))
        except OutOfMemory:
            return reference.bounds
        return reference.bounds_on(gate, window)

    def _draw(self, purpose: str) -> None:
        self._windows.draw(self._session.seed(self._shape, f"{self._timing}, {purpose}"))
        for reference in self._references.values():
            reference.forget()

    @contextmanager
    def _unless_refused(self, subject: Subject) -> Iterator[None]:
        """A context in which a sample is taken; an error drops the subject, unless the device failed."""
        try:
            yield
        except (torch.OutOfMemoryError, OutOfMemory) as error:
            subject.drop(OUT_OF_MEMORY, f"while timed, {self._timing}: {error}")
        except Exception as error:  # at a shape that it served before
            if fatal(error):
                raise
            subject.drop(FAILED, f"while timed, {self._timing}: {raised(error)}")


def in_three_digits(strain: float) -> float:
    """A strain rounded up to 3 digits, so that a strain above 1 stays above 1."""
    if not 0 < strain < math.inf:
        return strain
    factor = 10.0 ** (2 - math.floor(math.log10(strain)))
    return math.ceil(strain * factor) / factor
