"""Dispatch tables: which implementation `attnlab.attend` calls at each shape, by the results of a run on one device."""

import hashlib
import math
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import BaseModel, model_validator

from attnlab.base import documents, paths
from attnlab.base.documents import Positive
from attnlab.base.errors import UserError
from attnlab.study import ladder, tuning
from attnlab.study.implementations import FALLBACK
from attnlab.study.ladder import BEST
from attnlab.study.shapes import Shape
from attnlab.study.tuning import Tuning

NEAREST = 4
"""The measured shapes by which one is judged that was not measured."""
SOFTENING = 0.3
"""What is added to distances, in doublings, so that a very near shape doesn't decide alone: it has its own noise."""
FARTHEST = 4.0
"""Where the nearest measured shape is more doublings away, nothing is known."""
TILE_QUERIES, TILE_KEYS = 64, 128
"""Lengths that need as many tiles of so many queries and keys lie at one place: a tile costs the same half empty."""


class Choice(BaseModel, extra="forbid", frozen=True, strict=True):
    """The implementation to call at one shape that was measured.

    Attributes:
        speedup: its speedup over the fallback by the clock where it gains least; `low` and `high` are the ends of the
            interval.
        speedups: of every candidate, the geometric mean of those by each clock, or if it is slower by any, the least;
            on the values where it gains least.
        instance: what `kernel.best` ran, as `Tuning.running` gives it; empty where it isn't among the candidates.
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
            raise UserError(
                f"{shape}: the interval from {self.low:g} to {self.high:g} doesn't hold the speedup of {self.speedup:g}"
            )
        return self

    @property
    def shape(self) -> Shape:
        """The shape that it is for."""
        return Shape(**{axis: getattr(self, axis) for axis in self.AXES})


class Regret(BaseModel, extra="forbid", frozen=True, strict=True):
    """How much longer the choices of a table take than the best ones, at shapes drawn at random that it doesn't hold.

    At each shape the values count on which a choice does worst.

    Attributes:
        best_pct: the share of the shapes at which nothing was more than 1 % faster than the choice.
        mean_pct: how much longer than the best the choices take, in the geometric mean.
        worst_pct: the same at the shape where it is most, `worst`. Of several medians the least is so partly by chance,
            and so is the worst of many shapes.
        certain_pct: the most where a verdict says that the best is faster than the choice; 0 where none does.
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
    """The choices by runs on one device, and what they say of shapes that these did not measure.

    Attributes:
        run: their names, by commas; `seal` likewise.
        timing: the clocks that the choices go by.
        sources: the hash of each rung that it names, as `ladder.hashes` gives it.
        error_pct: by implementation, how far its speedup at a measured shape is from the estimate by the others: the
            root mean square.
        regret: for each clock, what the choices cost at shapes drawn at random; empty where none were measured.
        drawn: those shapes by their labels, and what `kernel.best` ran there, as `Choice.instance`.
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

    @model_validator(mode="after")
    def _names_no_shape_twice(self) -> "Dispatch":
        if len(self._at) < len(self.choices):
            twice = next(choice.shape for choice in self.choices if self._at[choice.shape] is not choice)
            raise UserError(f"{twice} is there twice: leave one")
        return self

    @cached_property
    def named(self) -> list[str]:
        """The implementations other than the fallback that it may choose, without kernels that have changed since."""
        names = {choice.implementation for choice in self.choices} | {n for c in self.choices for n in c.speedups}
        rungs = set(self.sources) - {BEST}
        now = ladder.hashes() if rungs else {}
        changed = {name for name in rungs if self.sources[name] != now.get(name)}
        return sorted(names - changed - {FALLBACK})

    def choose(self, shape: Shape) -> str:
        """What to call at a shape: what was chosen there, or else what is expected to be the fastest.

        It is the fallback where nothing is expected to be faster, or nothing near was measured. A wrong choice costs as
        much as one that was not made, so none is asked to be ahead by the error of its estimate. Where `kernel.best`
        was chosen and now runs another instance, the shape counts as not measured.
        """
        measured = self._at.get(shape)
        if measured and (measured.implementation != BEST or self._holds(measured)):
            return measured.implementation if measured.implementation in self.named else FALLBACK
        expected = {name: speedup for name, speedup in self.estimate(shape).items() if name in self.named}
        best = max(expected, key=lambda name: expected[name], default=FALLBACK)
        return best if expected.get(best, 0) > 1 else FALLBACK

    def estimate(self, shape: Shape) -> dict[str, float]:
        """The speedups to be expected at a shape, of the candidates that all of the `NEAREST` measured ones have.

        It is the mean of their logarithms, weighted by the inverse square of the distance (Shepard 1968), among shapes
        of the same head_dim and mask, in 16 or in 32 bits alike. The shape itself is no neighbour of its own.
        """
        near = list(islice((pair for pair in self._near(shape) if self._holds(pair[1])), NEAREST))
        if not near or near[0][0] > FARTHEST:
            return {}
        weights = [1 / (distance + SOFTENING) ** 2 for distance, _ in near]
        speedups = [choice.speedups for _, choice in near]
        return {
            name: math.exp(
                sum(w * math.log(each[name]) for w, each in zip(weights, speedups, strict=True)) / sum(weights)
            )
            for name in sorted(set.intersection(*map(set, speedups)))
        }

    def still_runs(self, shape: Shape) -> bool:
        """Whether a shape was measured, and `kernel.best` runs the same there now."""
        measured = self._at.get(shape)
        ran = measured.instance if measured else self.drawn.get(shape.label)
        return ran is not None and not self._runs_another(shape, ran)

    def _holds(self, choice: Choice) -> bool:
        """Whether `kernel.best` still runs what was measured at a shape."""
        return BEST not in choice.speedups or not self._runs_another(choice.shape, choice.instance)

    def _runs_another(self, shape: Shape, ran: str) -> bool:
        """Whether `kernel.best` now runs another instance at a shape than the one it ran; asked once of each."""
        if shape not in self._asked:
            running = self._tuning.running(shape) if self._tuning else ""
            self._asked[shape] = ran != running
        return self._asked[shape]

    @cached_property
    def _tuning(self) -> Tuning | None:
        try:
            return tuning.load(self.device)
        except UserError:
            return None

    @cached_property
    def _asked(self) -> dict[Shape, bool]:
        return {}

    def _near(self, shape: Shape) -> list[tuple[float, Choice]]:
        """The measured shapes that are like one in what is no size, each with its distance, the nearest first."""
        own, place = self._at.get(shape), _place(shape)
        alike = self._places.get(_kind(shape), [])
        found = [(math.dist(place, its), choice) for choice, its in alike if choice is not own]
        return sorted(found, key=lambda pair: pair[0])

    @cached_property
    def _at(self) -> dict[Shape, Choice]:
        return {choice.shape: choice for choice in self.choices}

    @cached_property
    def _places(self) -> dict[tuple[int, bool, bool], list[tuple[Choice, tuple[float, ...]]]]:
        found: dict[tuple[int, bool, bool], list[tuple[Choice, tuple[float, ...]]]] = {}
        for shape, choice in self._at.items():
            found.setdefault(_kind(shape), []).append((choice, _place(shape)))
        return found


def _kind(shape: Shape) -> tuple[int, bool, bool]:
    return shape.head_dim, shape.causal, shape.dtype == "float32"


def _place(shape: Shape) -> tuple[float, ...]:
    """Where a shape lies among others, in doublings: by heads, queries, heads that share keys, and keys.

    Lengths count as whole tiles, but for few queries, which share one with other heads. By the lengths themselves, 155
    keys are next to 128, though they take cuDNN two tiles for one: it was called where `kernel.best` takes half as
    long.
    """
    queries = shape.seq_len if tuning.rows_of(shape) else _whole(shape.seq_len, TILE_QUERIES)
    sizes = shape.batch * shape.heads, queries, shape.heads // shape.kv_heads, _whole(shape.kv_len, TILE_KEYS)
    return tuple(map(math.log2, sizes))


def _whole(length: int, tile: int) -> int:
    return tile * math.ceil(length / tile)


def identity(device_name: str, torch: str | None = None) -> dict[str, str]:
    """The runs that the table of a device was made from, and its SHA-256 by the name of its file; empty without one.

    Raises:
        UserError: `load` refuses the table.
    """
    file = path(device_name)
    if not file.is_file():
        return {}
    return {"run": load(file, device_name, torch).run, file.name: hashlib.sha256(file.read_bytes()).hexdigest()}


def path(device_name: str) -> Path:
    """The file of the table for a device of this name."""
    return paths.preferred(paths.dispatch() / f"{paths.of_device(device_name)}.json")


def write(table: Dispatch) -> Path:
    """Write a table to where `attnlab.attend` looks for it on its device; returns the path."""
    return documents.write(path(table.device), table)


def load(source: Path, device_name: str, torch: str | None = None) -> Dispatch:
    """Read a table for use on a device.

    Args:
        torch: the version of PyTorch that will call what the table names; None where none will.

    Raises:
        UserError: the file doesn't exist, can't be read or holds no table; or the table was made on another device or
            under another PyTorch.
    """
    where, command = paths.shown(source), "make dispatch RUN=<run>"
    absent = f"there is no dispatch table {where}: `{command}` writes one"
    table = documents.read(source, Dispatch, "dispatch table", absent, command)
    otherwise = f"where other choices may be right: measure a run here, then `{command}`"
    if table.device != device_name:
        raise UserError(f"{where} was made on {table.device}, and this is {device_name}, {otherwise}")
    if torch is not None and table.torch != torch:
        raise UserError(f"{where} was made under PyTorch {table.torch}, and this is {torch}, {otherwise}")
    return table
