"""Take the samples for `attnlab.tune`: SDPA and the candidates of `attend`, on tensors of one layout.

Each candidate is prepared as `attend` prepares it, and is dropped if it fails the gate. Then candidates and SDPA, which
has 2 turns in each round, are timed in turns on each of `session.tune.VALUES`.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from attnlab.base.errors import UserError
from attnlab.measuring.clocks import cuda_events
from attnlab.measuring.gate.gate import Gate
from attnlab.measuring.instruments import devices
from attnlab.measuring.session.checks import few_heads
from attnlab.measuring.session.subject import Subject, alive
from attnlab.measuring.session.tune import ROUGH_CALLS, VALUES
from attnlab.measuring.subjects import inputs, registry
from attnlab.measuring.subjects.case import Case
from attnlab.measuring.subjects.implementation import Broken, Unsupported
from attnlab.runs import tuned
from attnlab.runs.schema import EXTREMES, FAILED, SKIPPED
from attnlab.serving import calls
from attnlab.study import implementations
from attnlab.study.implementations import FALLBACK
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing
from attnlab.study.values import NORMAL

WARMUP_CALLS = 10
TOO_SLOW = 1.5  # times as long as SDPA, by a few calls: such a candidate is not timed
SECONDS, FEWEST_ROUNDS, MOST_ROUNDS = 2.0, 7, 30  # of all rounds, whose number is within these limits
AROUND_US = 100.0  # of a sample, besides the calls in it
Timed = tuple[pd.DataFrame, dict[str, str]]
"""The samples as `frames.compare` takes them, and the reason why a candidate has none, by its name."""


def take(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None, timings: Sequence[Timing]) -> Timed:
    """Time all of `tuned.CANDIDATES` on tensors of this layout; the given tensors stay as they are.

    Raises:
        UserError: `attend` calls SDPA for such tensors in any case, or SDPA can't be timed on this machine now.
        torch.AcceleratorError: the device failed.
    """
    shape = require_shape(q, k, v, causal)
    try:
        with torch.cuda.device(q.get_device()), torch.no_grad(), torch.autocast("cuda", enabled=False):
            given = tuple(torch.empty_strided(t.size(), t.stride(), dtype=t.dtype, device=q.device) for t in (q, k, v))
            return _Layout(shape, given, scale).timed(timings)
    except torch.AcceleratorError:
        raise
    except (RuntimeError, Broken, Unsupported) as error:
        raise UserError(f"attnlab.tune can't measure this: {' '.join(str(error).split())}") from None
    finally:
        devices.release(q.device)


def require_shape(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Shape:
    """The shape of these tensors; UserError if they can't be timed."""
    if not calls.is_plain(q, k, v):
        raise UserError("attnlab.tune takes plain tensors on an NVIDIA GPU: for others, attend calls SDPA")
    if torch.cuda.is_current_stream_capturing():
        raise UserError("attnlab.tune can't measure while a CUDA graph is captured: call it before")
    shape = calls.shape_of(q, k, v, causal)
    if shape is None:
        raise UserError("attnlab.tune has nothing to choose: for tensors of these sizes and dtypes, attend calls SDPA")
    if any(torch._debug_has_internal_overlap(tensor) == 1 for tensor in (q, k, v)):
        raise UserError("attnlab.tune can't fill tensors whose elements share memory, as expanded ones do: copy them")
    return shape


class _Layout:
    """Tensors of a layout, and each implementation's call on them."""

    def __init__(self, shape: Shape, given: tuple[Tensor, ...], scale: float | None) -> None:
        self._shape, self._given, self._scale, self._device = shape, given, scale, given[0].device
        self._subjects = [self._subject(name) for name in tuned.CANDIDATES]
        self._baseline, *self._candidates = self._subjects
        self._rough_us: dict[str, float] = {}

    def timed(self, timings: Sequence[Timing]) -> Timed:
        self._fill(NORMAL)
        self._drop_slow()
        for kind in (NORMAL, *EXTREMES):
            self._check(kind)
        self._fill(NORMAL)
        pool = torch.cuda.graph_pool_handle()
        for subject in alive(self._subjects):
            cuda_events.roughly_us(subject.case, self._device, WARMUP_CALLS)
            subject.attempt(partial(cuda_events.capture, subject.case, pool))
        self._require_sdpa()
        tick_us = cuda_events.calibrate(self._device)["tick_us"]
        rows = [row for kind in VALUES for timing in timings for row in self._rows(kind, timing, tick_us)]
        return pd.DataFrame(rows), {one.implementation.name: one.reason for one in self._candidates if not one.alive}

    def _subject(self, name: str) -> Subject:
        subject = Subject(registry.find(name), Case(lambda: self._given, nullcontext))
        q, k, v = self._given
        if call := subject.attempt(partial(calls.call_of, name, q, k, v, self._shape.causal, self._scale)):
            subject.case.call = partial(call, q, k, v)
        return subject

    def _fill(self, kind: str) -> None:
        seed = random.SystemRandom().getrandbits(32)
        for held, value in zip(self._given, inputs.draw(self._shape, seed, self._device, kind), strict=True):
            held.copy_(value)

    def _require_sdpa(self) -> None:
        if not self._baseline.alive:
            raise UserError(f"attnlab.tune can't time SDPA on these tensors: {self._baseline.reason}")

    def _drop_slow(self) -> None:
        for subject in alive(self._subjects):
            if subject.attempt(subject.case.call) is not None:  # what compiles now is not timed
                us = cuda_events.least_us(subject.case, self._device, ROUGH_CALLS)
                self._rough_us[subject.implementation.name] = us
        self._require_sdpa()
        for subject in alive(self._candidates):
            times = self._rough_us[subject.implementation.name] / self._rough_us[FALLBACK]
            if times > TOO_SLOW:
                subject.drop(SKIPPED, f"takes {times:.2g} times as long as {FALLBACK}")

    def _check(self, kind: str) -> None:
        """Drop the candidates that fail the gate. SDPA stays without a check."""
        self._fill(kind)
        gate = Gate(self._given, self._shape.causal, kind, few_heads(self._shape), scale=self._scale)
        for subject in alive(self._candidates):
            call, repeats = subject.case.call, subject.implementation.repeats
            routes = [partial(gate.examine, call, subject.earlier, repeats)]
            if kind == NORMAL and self._device.type == "cuda":
                routes.append(partial(gate.examine_captured, call, repeats))
            for route in routes:
                check = subject.attempt(route) if subject.alive else None
                if check is not None and not check.passed:
                    subject.drop(FAILED, check.reason)

    def _rows(self, kind: str, timing: Timing, tick_us: float) -> Iterator[dict[str, Any]]:
        """A row for each sample by one clock on one input distribution."""
        self._fill(kind)
        cases = {one.implementation.name: one.case for one in alive(self._subjects)}
        each_us = [self._rough_us[name] for name in (*cases, FALLBACK)]
        cases[implementations.control(FALLBACK)] = self._baseline.case
        round_us = sum(2 * (us + max(us, cuda_events.GRAPH_US) + AROUND_US) for us in each_us)
        rounds = max(FEWEST_ROUNDS, min(MOST_ROUNDS, int(1e6 * SECONDS / len(VALUES) / round_us)))
        order = random.SystemRandom()
        turns = [name for _ in range(rounds) for name in order.sample(list(cases), len(cases))]
        with cuda_events.sampling(self._device, timing) as sampler:
            taken = [sampler(cases[name]) for name in turns]
        tick_us /= min(sample.launches for sample in taken)
        for name, sample in zip(turns, taken, strict=True):
            yield row(name, kind, timing, sample.latency_us, tick_us)


def row(implementation: str, values: str, timing: Timing, latency_us: float, tick_us: float = 0.0) -> dict[str, Any]:
    """A sample of the one shape that is timed, as a row of `frames.compare`'s samples."""
    sizes = {"batch": 1, "heads": 1, "seq_len": 1, "head_dim": 8, "values": values}
    return {"implementation": implementation, "latency_us": latency_us, "tick_us": tick_us} | sizes | dict(timing)
