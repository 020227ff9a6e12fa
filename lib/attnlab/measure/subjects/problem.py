"""The problem of a kernel that takes views, as kernels/hopper.cuh declares it, and the schedule of its work items.

CTAs take an item each, round by round. Without the mask all take about equally long, and the last round is split into
shares. Under the mask heads are scheduled in sections, the longest items of each first, and to and fro from round to
round. `TileScheduler` in kernels/jobs.cuh carries it out.
"""

import ctypes
import math
from functools import lru_cache
from itertools import count

import numpy as np
from torch import Tensor

from attnlab.study.ladder import Tile

# Fitted to trials on an H200 and an H100, 25 shapes and tiles with up to 14 sections each: the choice was 0.3 % slower
# than the best section on average, and 2 % at most. Tiles that an item costs besides its own:
ITEM_TILES = 0.5
# What a section costs whose K and V fill the L2, if a head has one item; it falls with their number, to this power.
READ_COST, READ_POWER = 1.5, 1.5
# With fewer heads nothing is gained.
LEAST_HEADS = 4


class Divisor(ctypes.Structure):
    """A number above 0 and what makes dividing by it one multiplication (Granlund & Montgomery 1994, section 4).

    The quotient ``n // by`` is ``(2 * n * factor >> 32) >> shift`` for 0 <= n < 2**31.
    """

    _fields_ = (("by", ctypes.c_int), ("factor", ctypes.c_uint), ("shift", ctypes.c_uint))

    @classmethod
    def of(cls, by: int) -> "Divisor":
        """The divisor `by`, from 1 to 2**31 - 1."""
        shift = (by - 1).bit_length()
        return cls(by, -(-(2 ** (31 + shift)) // by), shift)


class Problem(ctypes.Structure):
    """Batch, heads and lengths, and the schedule of a persistent kernel's work items.

    `sharing` heads have the same K and V, and a head has `items` work items. Under the mask, items are scheduled in
    sections of `section` heads, `rest` in the last one. Without it, each after the first `whole` is split into
    `shares`, and from round to round each of the `ctas` CTAs moves on by `step`.
    """

    _fields_ = (
        ("batch", ctypes.c_int),
        *((name, Divisor) for name in ("heads", "sharing", "items")),
        *((name, ctypes.c_int) for name in ("queries", "keys", "earlier")),
        ("scale", ctypes.c_float),
        *((name, Divisor) for name in ("section", "section_items", "rest", "shares", "ctas")),
        *((name, ctypes.c_int) for name in ("whole", "step")),
    )

    @classmethod
    def of(cls, q: Tensor, k: Tensor, causal: bool, scale: float, tile: Tile, ctas: int, l2_bytes: int) -> "Problem":
        """The problem of these queries and keys, for so many CTAs that work with `tile`."""
        batch, heads, queries, head_dim = q.shape
        kv_heads, keys = k.shape[1:3]
        all_heads, items, jobs_per_item = batch * heads, tile.items(queries, 1), tile.rows // tile.box
        cached = 2 * k.element_size() * keys * head_dim * kv_heads / heads / l2_bytes
        section_heads = section(all_heads, queries, keys, tile.rows, tile.keys, ctas, cached) if causal else all_heads
        return cls(
            batch,
            *map(Divisor.of, (heads, heads // kv_heads, items)),
            queries,
            keys,
            keys - queries,
            scale,
            *map(Divisor.of, (section_heads, section_heads * items, all_heads % section_heads or section_heads)),
            *map(Divisor.of, (shares(all_heads * items, ctas, jobs_per_item), ctas)),
            all_heads * items // ctas * ctas,
            step(items * heads, ctas),
        )


def shares(items: int, ctas: int, most: int) -> int:
    """The shares, at most `most`, into which each item of the last round is split, so that they are one round."""
    left = items % ctas
    return min(most, ctas // left) if left else 1


def step(items: int, ctas: int) -> int:
    """How far each of the `ctas` CTAs moves on from round to round: it has a sequence's `items` equally often.

    Some take longer than others: a head's last one is shorter, and heads whose values rise cost more.
    """
    return next(step for step in count() if math.gcd(ctas + step, items) == 1)


@lru_cache(maxsize=4096)
def section(heads: int, queries: int, keys: int, rows: int, tile: int, ctas: int, cached: float) -> int:
    """The heads of the best section: the one with which the CTA that ends last ends soonest.

    Args:
        heads: over all batches.
        rows: queries of an item.
        tile: keys of a tile.
        cached: the part of the L2 that K and V of one head take.
    """
    if queries <= rows:
        return heads
    ends = queries - rows * np.arange(-(-queries // rows))  # behind the last query of each item
    tiles = np.ceil((keys - queries + ends) / tile) + ITEM_TILES
    sizes = [size for size in range(LEAST_HEADS, min(heads, ctas + 1)) if ctas % size == 0]
    read = READ_COST * cached / len(tiles) ** READ_POWER
    return min([*sizes, heads], key=lambda size: _longest(tiles, heads, size, ctas) * (1 + read * size))


def _longest(tiles: np.ndarray, heads: int, section: int, ctas: int) -> float:
    """The tiles of the CTA that has most, where a head's items have `tiles`, the longest first."""
    sections, rest = divmod(heads, section)
    dealt = np.concatenate([np.tile(np.repeat(tiles, section), sections), np.repeat(tiles, rest)])
    rounds = np.pad(dealt, (0, -len(dealt) % ctas)).reshape(-1, ctas)
    rounds[1::2] = rounds[1::2, ::-1]
    return float(rounds.sum(axis=0).max())
