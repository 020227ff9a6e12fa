"""Tunings: the instance of a kernel that `kernel.best` runs at each shape, as `make tune` measured on one device."""

import math
from collections.abc import Collection
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel, model_validator

from attnlab.base import documents, paths
from attnlab.base.documents import Count, Positive, Size
from attnlab.base.errors import UserError
from attnlab.study import callables, ladder
from attnlab.study.implementations import FP8_ALIASES, FP8_KERNEL
from attnlab.study.ladder import BEST, PREFIX, Rung, Tile
from attnlab.study.shapes import Shape

# The least cost of a last round, in rounds; the cost above that grows with the number of its items. This was fitted
# to trials of every instance at 20 shapes on an H200 that no study here measures: the choice was 0.5 % slower than the
# fastest instance on average, and 4.8 % at most. With a last round that counts as a whole one, 1.5 % and 16 %.
LAST_ROUND = 0.3
FEW_QUERIES = 64
"""The most queries, over more keys, that count as few."""
MANY_KEYS = 1024
"""The least number of keys to split, if there are fewer tiles of rows than multiprocessors."""
BY_VALUES = dict.fromkeys(("lazy", "few", "pairs"), 0.94)
"""The factor on the latency of a kernel whose time depends on the values, if keys have several tiles.

Tuning keeps the slowest of 3 distributions. For these kernels it is "stairs", where exact kernels take up to 6 % less.
On the other 2 these kernels take 10 to 20 % less, and exact kernels take the same. So their mean over the 3 is at most
(1 + 2 x 0.9) / 3 = 0.93 of the slowest; the factor is a little larger."""
ROWS_COUNT = 2
"""The weight of distances in rows over heads or keys: more rows soon make a shape compute-bound."""


class Place(NamedTuple):
    """The fields of a `TileChoice` that describe its shape."""

    heads: int
    seq_len: int
    head_dim: int
    causal: bool
    rows: int


class TileChoice(BaseModel, extra="forbid", frozen=True, strict=True):
    """The fastest instance at one shape, or one that was slower there and may be faster nearby.

    Attributes:
        heads: heads over all batches; with `rows`, those of K and V.
        seq_len: the number of queries and of keys; with `rows`, of keys.
        rows: from `packed_rows` where keys may be split; 0 elsewhere.
        `rung`: the kernel's name in the ladder; `tile` the name of its tile for this head_dim, which may be empty.
        latency_us: the median.
    """

    heads: Size
    seq_len: Size
    head_dim: Size
    causal: bool
    rung: str
    tile: str
    latency_us: Positive
    rows: Count = 0

    @property
    def place(self) -> Place:
        """The fields that describe the shape."""
        return Place(self.heads, self.seq_len, self.head_dim, self.causal, self.rows)

    def distance(self, shape: Shape) -> float:
        """The distance of its lengths, heads and rows, if it has any, from those of a shape, in doublings."""
        heads = _heads(shape, self.rows)
        rows = (self.rows / shape.rows) ** ROWS_COUNT if self.rows else 1
        return math.hypot(*map(math.log2, (self.seq_len / shape.kv_len, self.heads / heads, rows)))

    def expected_us(self, tile: Tile, shape: Shape, multiprocessors: int) -> float:
        """The estimated latency of its tile at a near shape: its own, scaled by rounds and by passes.

        In a round each multiprocessor has one work item. Items that run at once on one multiprocessor share it, and
        count as if they took turns. In a pass an item reads as many keys as a tile holds. The latency is not scaled
        under a causal mask, where items of different lengths even out, nor with `rows`, where keys may be split.
        """
        latency_us = self.latency_us * (BY_VALUES.get(self.rung, 1.0) if shape.kv_len > tile.keys else 1.0)
        if self.causal or self.rows:
            return latency_us
        there, here = tile.items(shape.seq_len, shape.batch * shape.heads), tile.items(self.seq_len, self.heads)
        rounds = _rounds(there, multiprocessors) / _rounds(here, multiprocessors)
        return latency_us * rounds * math.ceil(shape.kv_len / tile.keys) / math.ceil(self.seq_len / tile.keys)

    def instance(self, every: Collection[Rung]) -> tuple[Rung, Tile]:
        """The kernel and the tile of this choice, from `every`, the tuned kernels."""
        named = (self.head_dim, self.tile)
        (rung,) = (rung for rung in every if rung.name == self.rung)
        return rung, next(tile for tile in rung.tiles if (tile.head_dim, tile.name) == named)


def rows_of(shape: Shape) -> int:
    """The queries of all heads that share a head of K and V, if queries are few and keys are more; else 0."""
    return shape.rows if shape.seq_len <= FEW_QUERIES and shape.seq_len < shape.kv_len else 0


def packed_rows(shape: Shape, multiprocessors: int) -> int:
    """The queries of all heads that share a head of K and V, if keys may be split; else 0.

    Keys may be split if queries are few, or if tiles of queries leave multiprocessors idle and keys are many.
    """
    tiles = shape.batch * shape.kv_heads * math.ceil(shape.rows / ladder.TILE_ROWS)
    unfilled = tiles < multiprocessors and shape.kv_len >= MANY_KEYS
    return shape.rows if unfilled else rows_of(shape)


def place(shape: Shape, multiprocessors: int) -> Place:
    """The `TileChoice.place` of a choice at a shape."""
    rows = packed_rows(shape, multiprocessors)
    return Place(_heads(shape, rows), shape.kv_len, shape.head_dim, shape.causal, rows)


def _heads(shape: Shape, rows: int) -> int:
    """The heads of a shape over all batches; with `rows`, those of K and V."""
    return shape.batch * (shape.kv_heads if rows else shape.heads)


def _rounds(items: int, multiprocessors: int) -> float:
    """The rounds that these work items take. The last round is shorter if fewer multiprocessors have an item."""
    whole, left = divmod(items, multiprocessors)
    return whole + (LAST_ROUND + (1 - LAST_ROUND) * left / multiprocessors if left else 0)


class Tuning(BaseModel, extra="forbid", frozen=True, strict=True):
    """The choices on one device: at each shape the fastest instance, and those that may be faster nearby.

    `sources` has the hash of each kernel that was a candidate, from `ladder.hashes`.
    """

    version: Literal[4] = 4
    device: str
    multiprocessors: Size
    torch: str
    command: str
    clock: str
    sources: dict[str, str]
    choices: list[TileChoice]

    @model_validator(mode="after")
    def _names_no_instance_twice(self) -> "Tuning":
        stated = [(choice.place, choice.rung, choice.tile) for choice in self.choices]
        if len(set(stated)) < len(stated):
            raise UserError("choices: two are for one shape and one instance: leave one")
        return self

    def choice(self, shape: Shape) -> TileChoice:
        """The choice expected to be the fastest here, among those at the nearest shape of the same head_dim and mask.

        Only instances that serve this shape, layout and scale for any values count. If keys may be split, choices at
        such shapes come first, with a tile for these rows. If this head_dim was not tuned, the choice is the ladder's
        last kernel that was chosen at another head_dim and serves the shape. It splits keys only if they may be split.
        Its `latency_us` is that of the other head_dim.

        Raises:
            UserError: no instance serves the shape, or a kernel changed after the tuning.
        """
        shape = shape.plain
        kinds = (True, False) if packed_rows(shape, self.multiprocessors) else (False,)
        for splits in kinds:
            kind = (shape.head_dim, shape.causal, splits)
            alike = [near for at, near in self.at.items() if (at.head_dim, at.causal, at.rows > 0) == kind]
            for near in sorted(alike, key=lambda near: near[0].distance(shape)):
                stated = [(choice, *self.instance(choice)) for choice in near]
                if serving := [one for one in stated if _serves(*one[1:], shape)]:
                    expected_us = [one.expected_us(tile, shape, self.multiprocessors) for one, _, tile in serving]
                    chosen, rung, tile = serving[expected_us.index(min(expected_us))]
                    tiles = rung.tiles_for(shape.head_dim, shape.kv_len, shape.causal, shape.rows)
                    return chosen if tile in tiles else chosen.model_copy(update={"tile": tiles[0].name})
        is_tuned = any(at.head_dim == shape.head_dim for at in self.at)
        elsewhere = {} if is_tuned else {choice.rung: choice for choice in self.choices}
        able = [rung for rung in self._ladder[0] if rung.name in elsewhere and rung.splits_keys in kinds]
        for rung in reversed(able):
            for tile in rung.tiles_for(shape.head_dim, shape.kv_len, shape.causal, shape.rows):
                here = place(shape, self.multiprocessors)._asdict() | {"tile": tile.name}
                chosen = elsewhere[rung.name].model_copy(update=here)
                if _serves(*self.instance(chosen), shape):
                    return chosen
        raise UserError(f"the tuning of {self.device} chose nothing that serves {shape.label}")

    def instance(self, choice: TileChoice) -> tuple[Rung, Tile]:
        """The kernel and the tile of a choice; UserError if the kernel changed after the tuning."""
        every, now = self._ladder
        name = PREFIX + choice.rung
        if name not in now or self.sources.get(name) not in now[name]:
            raise UserError(f"{name} changed since it was tuned: run `make tune`")
        return choice.instance(every)

    def running(self, shape: Shape) -> str:
        """The instance of `kernel.best` at a shape: kernel, tile and the kernel's hash; empty if none serves it."""
        try:
            choice = self.choice(shape)
        except UserError:
            return ""
        return f"{choice.rung} {choice.tile} {self.sources[PREFIX + choice.rung]}"

    @cached_property
    def _ladder(self) -> tuple[tuple[Rung, ...], dict[str, set[str]]]:
        """All kernels, and for each name the hashes that a tuning may have for it. The ladder is read once."""
        every = ladder.load()
        earlier = ladder.replaced(every)
        return every, {name: {own, earlier.get(name, own)} for name, own in ladder.hashes(every).items()}

    @cached_property
    def at(self) -> dict[Place, list[TileChoice]]:
        """The choices at each place."""
        found: dict[Place, list[TileChoice]] = {}
        for choice in self.choices:
            found.setdefault(choice.place, []).append(choice)
        return found


def _serves(rung: Rung, tile: Tile, shape: Shape) -> bool:
    fits = tile.serves_length(shape.kv_len) and rung.serves_queries(shape.seq_len)
    return fits and rung.serves_rows(tile, shape.rows) and (rung.strided or not shape.special)


def path(device_name: str) -> Path:
    """The file of the tuning of a device of this name."""
    return paths.preferred(paths.kernels() / "tuned" / f"{paths.of_device(device_name)}.json")


def write(tuning: Tuning) -> Path:
    """Write a tuning to the file that `kernel.best` reads on its device; returns the path."""
    return documents.write(path(tuning.device), tuning)


def load(device_name: str) -> Tuning:
    """The tuning of the device of this name; UserError if its file is absent, invalid, or of another device."""
    source, absent = path(device_name), f"no tuning for {device_name}: run `make tune`"
    tuning = documents.read(source, Tuning, "tuning", absent, "make tune")
    if tuning.device != device_name:
        made = f"{paths.shown(source)} was made on {tuning.device}"
        raise UserError(f"{made}, and this is {device_name}: run `make tune`")
    return tuning


def hashes(names: Collection[str], device_name: str) -> dict[str, str]:
    """The hash of each existing kernel among `names`, and of each user's function, by implementation.

    A kernel's is from `ladder.hashes`; aliases of `kernel.fp8` have its hash. That of `kernel.best` is a SHA-256 over
    the choices for this device and the hashes of their kernels, which are returned too. A function's is its file's.

    Raises:
        UserError: `kernel.best` is among the names, and the file of the tuning is invalid; or a module is not found.
    """
    own = callables.hashes(names)
    if not any(name.startswith(PREFIX) for name in names):
        return own  # without reading the ladder
    kernels = ladder.hashes()
    found = own | {name: value for name, value in kernels.items() if name in names}
    if FP8_KERNEL in kernels:  # the quantising code is part of the measuring half
        found |= {name: kernels[FP8_KERNEL] for name in FP8_ALIASES if name in names}
    if BEST in names and path(device_name).is_file():
        choices = load(device_name).choices
        launched = {name: kernels.get(name, "") for name in sorted({PREFIX + choice.rung for choice in choices})}
        content = {"choices": [choice.model_dump() for choice in choices], "kernels": launched}
        found |= {name: value for name, value in launched.items() if value}
        found[BEST] = documents.digest(content)
    return found
