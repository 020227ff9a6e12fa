"""Tuning: which instances of which rungs are the fastest at a shape, for `kernel.best` on this device.

At each of `SHAPES`, the candidates pass the gate and are then timed in interleaved rounds on each of `VALUES`, of which
the one counts on which a candidate takes longest. Neither the shapes nor the inputs are those of any study here:
`kernel.best` is chosen on other cases than those on which it is then judged.
"""

import random
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch

from attnlab.base import paths
from attnlab.base.errors import UserError
from attnlab.measure.clocks import cuda_events
from attnlab.measure.clocks.in_process import WARM
from attnlab.measure.gate.gate import Gate
from attnlab.measure.instruments import devices, environment
from attnlab.measure.session.checks import few_heads
from attnlab.measure.subjects import rungs
from attnlab.measure.subjects.case import Case
from attnlab.measure.subjects.implementation import Broken, Implementation, OutOfMemory, Unsupported, attempt
from attnlab.measure.subjects.inputs import Windows
from attnlab.study import ladder, tuning
from attnlab.study.ladder import Rung, Tile
from attnlab.study.shapes import Shape
from attnlab.study.tuning import Choice, Tuning

ROUNDS = 9
VALUES = ("normal", "sd 6", "rising 24")
"""Values on which a kernel that goes by the scores may take long: besides normal ones, maxima that jump or rise."""
SEQ_LENS = (56, 120, 184, 248, 376, 504, 760, 1016, 1528, 2040, 4088, 8184)
"""A little below lengths that are used, so that as much of a tile is filled as there."""
HEADS = ((3, 8), (30, 8))
"""Batch and heads."""
SHAPES = [
    Shape(batch, heads, seq_len, head_dim, causal, "float16")
    for head_dim, causal, (batch, heads), seq_len in product((64, 128), (False, True), HEADS, SEQ_LENS)
]
ROUGH_CALLS = 3
TOO_SLOW = 3.0
"""A candidate that takes more than this many times as long as the fastest, by a few calls, is not timed."""
MOST_KEPT = 2.0
"""What takes no more than this many times as long as the fastest at a shape may be the fastest at one nearby, where the
other takes two rounds of the device instead of one."""
T = TypeVar("T")


class Candidate:
    """One tile of a rung at one shape."""

    def __init__(self, rung: Rung, tile: Tile, windows: Windows, shape: Shape) -> None:
        self.rung, self.tile, self.shape = rung, tile, shape
        self.implementation: Implementation = rungs.pinned(rung, tile)
        self.case = Case.of(self.implementation, windows, shape)

    @property
    def name(self) -> str:
        """The name of what is called."""
        return self.implementation.name

    def choice(self, latency_us: float) -> Choice:
        """The choice of this candidate."""
        shape = self.shape
        return Choice(
            heads=shape.batch * shape.heads,
            seq_len=shape.seq_len,
            head_dim=shape.head_dim,
            causal=shape.causal,
            rung=self.rung.name,
            tile=self.tile.name,
            latency_us=latency_us,
            source=ladder.hashes([self.rung])[self.rung.implementation],
        )


@dataclass
class Finalists:
    """The rungs whose tiles are candidates.

    Attributes:
        out: the tiles that failed once, each by its name and head_dim. They are no candidates any more.
    """

    rungs: list[Rung]
    device: torch.device
    out: set[tuple[str, int]] = field(default_factory=set)

    @classmethod
    def of(cls, every: tuple[Rung, ...], device: torch.device) -> "Finalists":
        """The rungs that are written for this very architecture; if there are none, all."""
        own = "sm_{}{}a".format(*torch.cuda.get_device_capability(device))
        return cls([rung for rung in every if own in rung.architectures] or list(every), device)

    def at(self, shape: Shape, windows: Windows) -> list[Candidate]:
        """Every tile that serves a shape."""
        axes = (shape.head_dim, shape.seq_len, shape.causal)
        found = [Candidate(rung, tile, windows, shape) for rung in self.rungs for tile in rung.tiles_for(*axes)]
        return [one for one in found if (one.name, shape.head_dim) not in self.out]

    def drop(self, one: Candidate, reason: str) -> None:
        """Leave a tile out from now on, and say why."""
        self.out.add((one.name, one.shape.head_dim))
        say(f"{one.name} is left out: at {one.shape}, {reason}")

    def tried(self, one: Candidate, work: Callable[[], T]) -> T | None:
        """The result of `work`; None if the candidate doesn't serve its shape here, or failed."""
        try:
            return attempt(work)
        except Unsupported:
            return None
        except (Broken, OutOfMemory) as error:
            self.drop(one, str(error))
            return None


def say(words: str) -> None:
    """Print a line about the progress."""
    print(f"tune: {words}", file=sys.stderr, flush=True)


def tune() -> Path:
    """Choose at every one of `SHAPES`, and write the choices; returns their file.

    Raises:
        UserError: there is no NVIDIA GPU, no kernel could be timed on it, or it failed.
    """
    if not torch.cuda.is_available():
        raise UserError("tuning needs an NVIDIA GPU, and torch sees none here: run `make tune` where there is one")
    environment.lock()
    device = torch.device("cuda")
    try:
        choices = list(_choices(Finalists.of(ladder.load(), device)))
    except torch.AcceleratorError as error:
        raise UserError(f"the device failed ({str(error).splitlines()[0]}): nothing was written") from None
    name = torch.cuda.get_device_name(device)
    if not choices:
        raise UserError(f"no kernel of {paths.shown(paths.kernels() / 'ladder.toml')} could be timed on {name}")
    made = Tuning(
        device=name,
        multiprocessors=devices.describe(device)["multiprocessors"],
        torch=torch.__version__,
        command="make tune",
        clock=WARM.words,
        choices=choices,
    )
    return tuning.write(made)


def _choices(finalists: Finalists) -> Iterator[Choice]:
    for number, shape in enumerate(SHAPES, 1):
        try:
            fastest = _fastest(finalists, shape)
        except torch.OutOfMemoryError:
            say(f"{number} of {len(SHAPES)}, {shape}: the device's memory doesn't hold it")
            continue
        finally:
            devices.release(finalists.device)
        if not fastest:
            say(f"{number} of {len(SHAPES)}, {shape}: nothing serves it")
            continue
        one, latency_us = fastest[0]
        say(f"{number} of {len(SHAPES)}, {shape}: {one.name}, {latency_us:.4g} us")
        yield from (one.choice(latency_us) for one, latency_us in fastest)


def _fastest(finalists: Finalists, shape: Shape) -> list[tuple[Candidate, float]]:
    """The candidates at a shape that may be the fastest nearby, each with its median latency in µs, ascending."""
    windows = Windows(shape, finalists.device, cuda_events.most_calls(shape))
    windows.draw(_seed(shape, "checked"))
    rough_us = _rough(finalists, finalists.at(shape, windows))
    candidates = _right(finalists, rough_us, Gate(windows[0], shape.causal, heads=few_heads(shape)))
    latencies_us = _slowest(shape, _captured(finalists, candidates), windows, finalists.device)
    best_us = min(latencies_us.values(), default=0.0)
    near = [(one, latency_us) for one, latency_us in latencies_us.items() if latency_us <= MOST_KEPT * best_us]
    return sorted(near, key=lambda pair: pair[1])


def _rough(finalists: Finalists, candidates: list[Candidate]) -> dict[Candidate, float]:
    """About how long a call of each candidate that runs here takes, in µs."""
    rough_us = {}
    for one in candidates:
        if finalists.tried(one, one.case.call) is not None:  # what compiles now is not timed
            rough_us[one] = cuda_events.roughly_us(one.case, finalists.device, ROUGH_CALLS)
    return rough_us


def _right(finalists: Finalists, rough_us: dict[Candidate, float], gate: Gate) -> list[Candidate]:
    """The candidates that pass the gate, without those that are far slower than the fastest of them."""
    right: list[Candidate] = []
    for one in sorted(rough_us, key=lambda one: rough_us[one]):
        if right and rough_us[one] > TOO_SLOW * rough_us[right[0]]:
            break
        if _passes(finalists, one, gate):
            right.append(one)
    return right


def _passes(finalists: Finalists, one: Candidate, gate: Gate) -> bool:
    check = finalists.tried(one, partial(gate.examine, one.case.call, repeats=one.implementation.repeats))
    if check is not None and not check.passed:
        finalists.drop(one, check.reason)
    return check is not None and check.passed


def _captured(finalists: Finalists, candidates: list[Candidate]) -> list[Candidate]:
    """The candidates, with their graphs."""
    pool: Any = torch.cuda.graph_pool_handle()
    for one in candidates:
        finalists.tried(one, partial(cuda_events.capture, one.case, pool))
    return [one for one in candidates if one.case.many is not None]


def _slowest(
    shape: Shape, candidates: list[Candidate], windows: Windows, device: torch.device
) -> dict[Candidate, float]:
    """The median latency of each candidate in µs on the values of `VALUES` on which it takes longest."""
    found: dict[Candidate, float] = dict.fromkeys(candidates, 0.0)
    for kind in VALUES:
        windows.draw(_seed(shape, f"timed, {kind}"), kind)
        for one, latency_us in _sampled(candidates, device).items():
            found[one] = max(found[one], latency_us)
    return found


def _sampled(candidates: list[Candidate], device: torch.device) -> dict[Candidate, float]:
    """The median latency of each candidate in µs, from rounds in which all take turns in random order."""
    order = random.SystemRandom()
    samples_us: dict[Candidate, list[float]] = {one: [] for one in candidates}
    with cuda_events.sampling(device, WARM) as sampler:
        for _ in range(ROUNDS):
            for one in order.sample(candidates, len(candidates)):
                samples_us[one].append(sampler(one.case).latency_us)
    return {one: median(taken) for one, taken in samples_us.items()}


def _seed(shape: Shape, purpose: str) -> int:
    """A seed that no run has: a run makes its own of other words."""
    return zlib.crc32(f"tune {shape} {purpose}".encode())
