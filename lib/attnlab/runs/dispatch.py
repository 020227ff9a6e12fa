"""Dispatch tables: the implementation that `attnlab.attend` calls at each shape, from runs on one device."""

import hashlib
import math
from collections import defaultdict
from collections.abc import Callable
from functools import cache, cached_property
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import BaseModel, model_validator

from attnlab.base import documents, paths
from attnlab.base.documents import Positive
from attnlab.base.errors import UserError
from attnlab.study import ladder, tuning
from attnlab.study.implementations import FALLBACK
from attnlab.study.ladder import BEST, PREFIX
from attnlab.study.shapes import Shape

NEAREST = 4
"""The number of measured shapes that estimate a shape that was not measured."""
SOFTENING = 0.3
"""Added to distances, in doublings, so that one very near shape, which is noisy, doesn't decide alone."""
FARTHEST = 6.0
"""If the nearest measured shape is more doublings away, there is no estimate.

`h200-2026-11-30-drawn` was measured with 4. It calls SDPA at (32, 27, 3, 64) with 3 KV heads and 97 keys, 4.6 doublings
away. There SDPA takes 7 times as long as `kernel.best`.
"""
MARGIN = 1.05
"""The least speedup over the fallback for a kernel under another PyTorch than the table's, which may be faster.

Of the shapes in the tables of H100 and H200, 0.5 % are between 1 and this. No run compares SDPA of 2 versions.
"""
TILE_QUERIES, TILE_KEYS = 64, 128
"""Lengths with the same number of tiles count as equal: a partly filled tile costs as much as a full one."""


class Choice(BaseModel, extra="forbid", frozen=True, strict=True):
    """The implementation to call at one shape that was measured.

    Attributes:
        speedup: over the fallback, on the clock where it is smallest, with its interval `low` to `high`.
        speedups: the `choices.gain` of every candidate, on the input distribution where it is smallest.
        instance: that of `kernel.best`, from `Tuning.running`; empty if `kernel.best` isn't a candidate.
    """

    AXES: ClassVar[tuple[str, ...]] = Shape.AXES[:8]
    batch: int
    heads: int
    seq_len: int
    head_dim: int
    causal: bool
    dtype: str
    kv_heads: int
    kv_len: int
    implementation: str
    speedup: Positive
    low: Positive
    high: Positive
    speedups: dict[str, Positive] = {}
    instance: str = ""

    @model_validator(mode="after")
    def _is_of_a_shape(self) -> "Choice":
        try:
            shape = self.shape
        except ValueError as error:
            raise UserError(str(error)) from None
        if not self.low <= self.speedup <= self.high:
            interval = f"the interval from {self.low:g} to {self.high:g}"
            raise UserError(f"{shape}: {interval} doesn't hold the speedup of {self.speedup:g}")
        return self

    @property
    def shape(self) -> Shape:
        """The shape of the choice."""
        return Shape(**{axis: getattr(self, axis) for axis in self.AXES})


class Regret(BaseModel, extra="forbid", frozen=True, strict=True):
    """The extra time of a table's choices over the best ones, at shapes drawn at random that the table doesn't hold.

    Each shape counts with the input distribution on which its choice does worst.

    Attributes:
        best_pct: the share of the shapes at which no candidate was more than 1 % faster than the choice.
        mean_pct: the extra time of the choices over the best, in the geometric mean; `worst_pct` the most, at the
            shape `worst`, partly by chance; `certain_pct` the most that a verdict confirms, 0 if there is none.
        lead: the speedup of the choices over the fallback in the geometric mean; `least_lead` the lowest.
    """

    clock: str
    shapes: int
    best_pct: float
    mean_pct: float
    worst_pct: float
    worst: str
    certain_pct: float
    lead: float
    least_lead: float


class Dispatch(BaseModel, extra="forbid", frozen=True, strict=True):
    """The choices from runs on one device, and estimates for shapes that these did not measure.

    Attributes:
        run: the names of the runs, separated by commas; `seal` likewise.
        timing: the clocks that decide the choices.
        sources: the hash of each kernel that the table names, from `ladder.hashes`.
        error_pct: by implementation, the root mean square distance of speedups from the estimates by other shapes.
        regret: for each clock; empty where no shapes were drawn at random.
        drawn: the instance of `kernel.best` at the shapes drawn at random, by their labels, as `Choice.instance`.
        dropped: labels of drawn shapes that don't count until they are measured again: `kernel.best` has changed there.
    """

    version: Literal[2] = 2
    run: str
    seal: str
    device: str
    torch: str
    timing: str
    choices: list[Choice]
    sources: dict[str, str] = {}
    error_pct: dict[str, float] = {}
    regret: list[Regret] = []
    drawn: dict[str, str] = {}
    dropped: list[str] = []

    @model_validator(mode="after")
    def _names_no_shape_twice(self) -> "Dispatch":
        if twice := [choice.shape for choice in self.choices if self._at[choice.shape] is not choice]:
            raise UserError(f"{twice[0]} is there twice: leave one")
        return self

    @cached_property
    def named(self) -> list[str]:
        """The implementations other than the fallback that the table may choose, without kernels that have changed."""
        names = {choice.implementation for choice in self.choices} | {n for c in self.choices for n in c.speedups}
        rungs = {name: source for name, source in self.sources.items() if name != BEST}
        now = ladder.hashes() if rungs else {}
        changed = {name for name, source in rungs.items() if source != now.get(name)}
        return sorted(names - changed - {FALLBACK})

    def choose(self, shape: Shape, torch: str | None = None) -> str:
        """The implementation to call at a shape: the one chosen there, or else the one expected to be the fastest.

        It is the fallback if no candidate is expected to be faster, or no near shape was measured. A wrong choice costs
        as much as a missed one, so the lead of a choice may be smaller than the error of its estimate. If `kernel.best`
        was chosen and now runs another instance, the shape counts as not measured.

        Args:
            torch: the version of PyTorch in use; None for the table's. Under another version PyTorch's backends are
                replaced by the fallback, and a kernel is called if its speedup over the fallback is above `MARGIN`.
        """
        moved = torch not in (None, self.torch)
        measured = self._at.get(shape)
        if not moved and measured and (measured.implementation != BEST or self._holds(measured)):
            return measured.implementation if measured.implementation in self.named else FALLBACK
        expected = measured.speedups if measured and self._holds(measured) else self.estimate(shape)
        names = [name for name in expected if name in self.named and not (moved and not name.startswith(PREFIX))]
        best = max(names, key=lambda name: expected[name], default=FALLBACK)
        return best if expected.get(best, 0) > (MARGIN if moved else 1) else FALLBACK

    def estimate(self, shape: Shape) -> dict[str, float]:
        """The expected speedups at a shape, of the candidates that all of its `NEAREST` measured shapes have.

        It is the mean of their logarithms, weighted by the inverse square of the distance (Shepard 1968). Neighbours
        have the same head_dim and mask, and also 16 or 32 bits. The shape itself doesn't count as a neighbour.
        """
        own, here = self._at.get(shape), _place(shape)
        alike = ((math.dist(here, its), choice) for choice, its in self._places.get(_kind(shape), []))
        by_distance = sorted((pair for pair in alike if pair[1] is not own), key=itemgetter(0))
        near = list(islice((pair for pair in by_distance if self._holds(pair[1])), NEAREST))
        if not near or near[0][0] > FARTHEST:
            return {}
        weights = [1 / (distance + SOFTENING) ** 2 for distance, _ in near]
        speedups = [choice.speedups for _, choice in near]
        everywhere = sorted(set.intersection(*map(set, speedups)))
        logs = {name: [math.log(each[name]) for each in speedups] for name in everywhere}
        return {name: math.exp(np.average(some, weights=weights)) for name, some in logs.items()}

    def still_runs(self, shape: Shape) -> bool:
        """Whether a shape was measured, and `kernel.best` still runs the same instance there, not a replacement."""
        measured = self._at.get(shape)
        ran = measured.instance if measured else self.drawn.get(shape.label)
        return ran is not None and ran == self._running(shape) and ran.partition(" ")[0] not in self._replaced

    @cached_property
    def _replaced(self) -> dict[str, str]:
        """The hashes of replaced kernels in tables, by the names of the kernels of the ladder that replace them."""
        return {name.removeprefix(PREFIX): own for name, own in ladder.replaced(ladder.load()).items()}

    def _holds(self, choice: Choice) -> bool:
        """Whether `kernel.best` still runs the instance that was measured at a shape, or its replacement."""
        if BEST not in choice.speedups or choice.instance == (running := self._running(choice.shape)):
            return True
        instance, _, _ = running.rpartition(" ")
        earlier = self._replaced.get(running.partition(" ")[0])
        return earlier is not None and choice.instance == f"{instance} {earlier}"

    @cached_property
    def _running(self) -> Callable[[Shape], str]:
        """The instance of `kernel.best` at a shape now, from `Tuning.running`; looked up once for each shape."""
        try:
            return cache(tuning.load(self.device).running)
        except UserError:
            return lambda shape: ""

    @cached_property
    def _at(self) -> dict[Shape, Choice]:
        return {choice.shape: choice for choice in self.choices}

    @cached_property
    def _places(self) -> dict[tuple[int, bool, bool], list[tuple[Choice, tuple[float, ...]]]]:
        found = defaultdict(list)
        for shape, choice in self._at.items():
            found[_kind(shape)].append((choice, _place(shape)))
        return found


def _kind(shape: Shape) -> tuple[int, bool, bool]:
    return shape.head_dim, shape.causal, shape.dtype == "float32"


def _place(shape: Shape) -> tuple[float, ...]:
    """The coordinates of a shape, in doublings: heads, queries, heads that share keys, and keys.

    Lengths count as whole tiles, except few queries, which share a tile with other heads. As plain numbers, 155 keys
    would be near 128, though cuDNN needs 2 tiles for 155 and 1 for 128.
    """
    queries = shape.seq_len if tuning.rows_of(shape) else TILE_QUERIES * math.ceil(shape.seq_len / TILE_QUERIES)
    keys = TILE_KEYS * math.ceil(shape.kv_len / TILE_KEYS)
    sizes = shape.batch * shape.heads, queries, shape.heads // shape.kv_heads, keys
    return tuple(map(math.log2, sizes))


def identity(device_name: str) -> dict[str, str]:
    """The runs of a device's table, and its SHA-256 by file name; empty if there is no table; raises as `load`."""
    file = path(device_name)
    if not file.is_file():
        return {}
    return {"run": load(file, device_name).run, file.name: hashlib.sha256(file.read_bytes()).hexdigest()}


def path(device_name: str) -> Path:
    """The file of the table for a device of this name."""
    return paths.preferred(paths.dispatch() / f"{paths.of_device(device_name)}.json")


def write(table: Dispatch) -> Path:
    """Write a table to the file that `attnlab.attend` reads on its device; returns the path."""
    return documents.write(path(table.device), table)


def load(source: Path, device_name: str) -> Dispatch:
    """Read a table for use on a device.

    Raises UserError: the file doesn't exist or holds no table, or it was made on another device.
    """
    where, command = paths.shown(source), "make dispatch RUN=<run>"
    absent = f"there is no dispatch table {where}: `{command}` writes one"
    table = documents.read(source, Dispatch, "dispatch table", absent, command)
    if table.device != device_name:
        otherwise = f"where other choices may be right: measure a run here, then `{command}`"
        raise UserError(f"{where} was made on {table.device}, and this is {device_name}, {otherwise}")
    return table
