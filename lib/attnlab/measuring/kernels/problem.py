"""The problem structs that kernels take as arguments, and how work is distributed over CTAs.

A kernel that takes views has the struct of kernels/hopper.cuh. In each round, every CTA takes one work item. Without a
mask all items take about equally long, and those of the last round are split into shares. Under the mask heads are
scheduled in sections, the longest items first, and the order of the CTAs reverses from round to round.
`TileScheduler` in kernels/jobs.cuh implements this.

A kernel that splits keys has the struct of kernels/12_few.cu: each CTA has a tile of rows and a part of the keys.
"""

import ctypes
import math
import secrets
from functools import lru_cache
from itertools import count

import numpy as np
import torch
from torch import Tensor

from attnlab.study.ladder import Tile

# Fitted to trials on an H200 and an H100, 25 shapes and tiles with up to 14 sections each: the choice was 0.3 % slower
# than the best section on average, and 2 % at most. The fixed cost of a work item, in tiles of keys:
ITEM_TILES = 0.5
# The cost of a section whose K and V fill the L2, if a head has one item. It falls with the items, to this power.
READ_COST, READ_POWER = 1.5, 1.5
# With fewer heads, sections gain nothing.
LEAST_HEADS = 4
# For kernels that split keys; the unit of time is that of a CTA for a tile of keys. The fixed cost of a CTA, and of the
# second launch. The rows that are merged in this unit, in a cluster and through the workspace. The speedup of a
# multiprocessor's reads with 2 CTAs over 1. The time of a tile where a multiprocessor has 1 CTA of few rows and others
# are idle, and the most rows that are few. Fitted to trials of every split at 48 shapes on an H200: the choice was
# 0.5 % slower than the fastest on average, and 5 % at most.
START_TILES, MERGE_TILES = 6.0, 1.0
CLUSTER_ROWS, WORKSPACE_ROWS = 160, 3200
TOGETHER = 1.2
ALONE, FEW_ROWS = 0.8, 64
# For the kernel that splits keys by lengths: its parts for each resident CTA, about. In a simulation of CTAs that share
# the memory bandwidth, 3 parts lose 3 to 10 %, 1 part loses 10 to 30 %, and more parts write more results.
PARTS_HELD = 3
LEAST_TILES = 2  # of a part, as its source says
# The cluster sizes that the kernel's merge supports. Up to 8 are portable.
CLUSTERS = (1, 2, 4, 8, 16)
# More rounds of CTAs than this are not tried, unless there are as many without a split.
MOST_ROUNDS = 8


class Divisor(ctypes.Structure):
    """A positive divisor, with the factor and shift that replace division (Granlund & Montgomery 1994, section 4).

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

    `sharing` query heads have the same K and V, and a head has `items` work items. If each of these heads has one block
    of queries, they count as 1 head: its blocks are its own and `joined` others', `head_step` apart, and see all keys.
    Otherwise its blocks are `row_step` apart. `last_key` is the last key that a head's first query sees.

    Under the mask, items are scheduled in sections of `section` heads, the last of `rest`. Without it, items after the
    first `whole` are split into `shares`, and from round to round each of the `ctas` CTAs moves on by `step`.
    """

    _fields_ = (
        ("batch", ctypes.c_int),
        *((name, Divisor) for name in ("heads", "sharing", "items")),
        *(
            (name, ctypes.c_int)
            for name in ("queries", "keys", "earlier", "last_key", "joined", "head_step", "row_step")
        ),
        ("scale", ctypes.c_float),
        *((name, Divisor) for name in ("section", "section_items", "rest", "shares", "ctas")),
        *((name, ctypes.c_int) for name in ("whole", "step")),
    )

    @classmethod
    def of(cls, q: Tensor, k: Tensor, causal: bool, scale: float, tile: Tile, ctas: int, l2_bytes: int) -> "Problem":
        """The problem for these Q and K, with `ctas` CTAs of this tile."""
        batch, _, queries, head_dim = q.shape
        kv_heads, keys = k.shape[1:3]
        heads, rows = scheduled(q, kv_heads, tile)
        joined = q.shape[1] // heads
        all_heads, items, jobs_per_item = batch * heads, tile.items(rows, 1), tile.rows // tile.box
        cached = 2 * k.element_size() * keys * head_dim * kv_heads / heads / l2_bytes
        sections = causal and joined == 1
        section_heads = section(all_heads, queries, keys, tile.rows, tile.keys, ctas, cached) if sections else all_heads
        return cls(
            batch,
            *map(Divisor.of, (heads, heads // kv_heads, items)),
            rows,
            keys,
            keys if joined > 1 else keys - queries,
            keys - queries,
            *((joined - 1, 1, 0) if joined > 1 else (0, 0, tile.box)),
            scale,
            *map(Divisor.of, (section_heads, section_heads * items, all_heads % section_heads or section_heads)),
            *map(Divisor.of, (shares(all_heads * items, ctas, jobs_per_item), ctas)),
            all_heads * items // ctas * ctas,
            step(items * heads, ctas),
        )


def scheduled(q: Tensor, kv_heads: int, tile: Tile) -> tuple[int, int]:
    """The heads of a batch that a kernel schedules, and the rows of each.

    If a head is one block of queries and an item has several, all heads that share K and V count as one.
    """
    _, heads, queries, _ = q.shape
    joins = queries <= tile.box < tile.rows and kv_heads < heads
    return (kv_heads, heads // kv_heads * tile.box) if joins else (heads, queries)


def shares(items: int, ctas: int, most: int) -> int:
    """The number of shares, at most `most`, of each item of the last round, so that all shares fit in one round."""
    left = items % ctas
    return min(most, ctas // left) if left else 1


def step(items: int, ctas: int) -> int:
    """The step of each of the `ctas` CTAs from round to round, so that it has each of a head's `items` equally often.

    Items take unequal times: a head's last one is shorter, and heads whose values rise cost more.
    """
    return next(step for step in count() if math.gcd(ctas + step, items) == 1)


@lru_cache(maxsize=4096)
def section(heads: int, queries: int, keys: int, rows: int, tile: int, ctas: int, cached: float) -> int:
    """The number of heads of a section that minimises the time until the last CTA ends.

    Args:
        heads: over all batches.
        rows: queries of an item.
        tile: keys of a tile.
        cached: the share of the L2 that K and V of one head take.
    """
    if queries <= rows:
        return heads
    ends = queries - rows * np.arange(-(-queries // rows))  # behind the last query of each item
    tiles = np.ceil((keys - queries + ends) / tile) + ITEM_TILES
    sizes = [size for size in range(LEAST_HEADS, min(heads, ctas + 1)) if ctas % size == 0]
    read = READ_COST * cached / len(tiles) ** READ_POWER
    return min([*sizes, heads], key=lambda size: _longest(tiles, heads, size, ctas) * (1 + read * size))


def _longest(tiles: np.ndarray, heads: int, section: int, ctas: int) -> float:
    """The most tiles that a CTA has, if a head's items have `tiles`, the longest first."""
    sections, rest = divmod(heads, section)
    dealt = np.concatenate([np.tile(np.repeat(tiles, section), sections), np.repeat(tiles, rest)])
    rounds = np.pad(dealt, (0, -len(dealt) % ctas)).reshape(-1, ctas)
    rounds[1::2] = rounds[1::2, ::-1]
    return float(rounds.sum(axis=0).max())


# The resident CTAs of a device, for each cluster size.
Held = tuple[tuple[int, int], ...]


class Strides(ctypes.Structure):
    """The strides of a tensor ``(batch, heads, rows, head_dim)`` in elements, without the innermost, which is 1."""

    _fields_ = tuple((name, ctypes.c_longlong) for name in ("batch", "head", "row"))


class Packing(ctypes.Structure):
    """The problem of a kernel that splits keys: `group` query heads share each of the `kv_heads`.

    A head's keys are split over `clusters` of `cluster` CTAs, with `split_keys` each; `masked` is 1 under the mask.
    """

    _COUNTS = ("queries", "keys", "group", "kv_heads", "clusters", "cluster", "split_keys", "masked")
    _fields_ = (
        *((name, Strides) for name in "qkvo"),
        *((name, ctypes.c_int) for name in _COUNTS),
        ("scale", ctypes.c_float),
    )

    @classmethod
    def of(
        cls, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, tile: Tile, held: Held, ctas_per_sm: int
    ) -> "Packing":
        """The problem for these tensors on a device with `held` resident CTAs, `ctas_per_sm` on each multiprocessor."""
        batch, heads, queries, _ = q.shape
        kv_heads, keys = k.shape[1:3]
        group, tiles = heads // kv_heads, -(-keys // tile.keys)
        rows = group * queries
        items, hidden = tile.items(rows, batch * kv_heads), (queries - 1) / keys if causal else 0.0
        clusters, cluster = splits(items, tiles, min(rows, tile.rows), held, ctas_per_sm, hidden)
        of_part = -(-tiles // (clusters * cluster))
        output = torch.empty_like(q, device="meta")  # it has the strides that O will have
        return cls(
            *(Strides(*tensor.stride()[:3]) for tensor in (q, k, v, output)),
            *(queries, keys, group, kv_heads, -(-tiles // (of_part * cluster)), cluster, of_part * tile.keys, causal),
            scale,
        )

    def parts(self, batch: int) -> int:
        """The most parts, each a CTA, into which keys are split, for one head of K and V of all sequences."""
        return batch * int(self.clusters * self.cluster)

    def partial_results(self, batch: int) -> int:
        """The most partial results in the workspace, for one head of K and V of all sequences."""
        return batch * int(self.clusters) if self.clusters > 1 else 0


class Caches(Packing):
    """The problem of a kernel that splits keys by sequence lengths, and sets `clusters` and `split_keys` on the device.

    It aims at `wanted` parts of the keys of a head of K and V over all sequences. With a block table, `batch` strides
    of K and V are 0, and pages are `k_page` and `v_page` apart. TMA has boxes of `box` keys, and pages that are
    `k_step` and `v_step` rows apart. `mark` is a random multiple of 256, with which counters in the workspace begin.
    """

    _fields_ = (
        *((name, ctypes.c_longlong) for name in ("k_page", "v_page")),
        ("mark", ctypes.c_ulonglong),
        *((name, ctypes.c_int) for name in ("batch", "wanted", "tile_keys", "last_page")),
        ("page", Divisor),
        *((name, ctypes.c_int) for name in ("k_step", "v_step", "box")),
    )

    @classmethod
    def of_lengths(
        cls, q: Tensor, k: Tensor, v: Tensor, pages: int, causal: bool, scale: float, tile: Tile, held: int
    ) -> "Caches":
        """The problem for these tensors on a device with `held` resident CTAs.

        Args:
            pages: the number of each sequence, if K and V are ``(pages, kv_heads, page_size, head_dim)``; 0 if they
                are ``(batch, kv_heads, keys, head_dim)``.
        """
        (batch, heads, queries, _), (_, kv_heads, page, _) = q.shape, k.shape
        group, keys = heads // kv_heads, page * (pages or 1)
        most = batch * -(-keys // (LEAST_TILES * tile.keys))
        strides = [list(tensor.stride()[:3]) for tensor in (q, k, v, torch.empty_like(q, device="meta"))]
        apart = [own[0] for own in strides[1:3]]
        if pages:
            strides[1][0] = strides[2][0] = 0
        return cls(
            *(Strides(*own) for own in strides),
            *(queries, keys, group, kv_heads, 0, 1, 0, causal),
            scale,
            *apart,
            256 * secrets.randbits(56),
            batch,
            max(1, min(PARTS_HELD * held // tile.items(group * queries, kv_heads), most)),
            tile.keys,
            max(pages - 1, 0),
            Divisor.of(page),
            box=math.gcd(page, tile.keys) if pages else tile.keys,
        )

    def parts(self, batch: int) -> int:
        return int(self.wanted) + batch

    def partial_results(self, batch: int) -> int:
        # A sequence of n parts has more than n / 2 times the keys of one.
        return 0 if self.keys <= LEAST_TILES * self.tile_keys else min(self.parts(batch), 2 * self.wanted)


@lru_cache(maxsize=4096)
def splits(items: int, tiles: int, rows: int, held: Held, ctas_per_sm: int, hidden: float = 0.0) -> tuple[int, int]:
    """The number of clusters, and of CTAs in each, over which keys are split for the least `cost`.

    Args:
        items: tiles of rows over all heads of K and V; the keys of each are split.
        tiles: tiles of keys.
        rows: the rows of a tile that are used.
        held: the resident CTAs of the device, for each cluster size.
        ctas_per_sm: the CTAs that share a multiprocessor.
        hidden: the share of the keys that the mask hides from the first query.
    """
    return min(
        (cost(clusters, cluster, items, tiles, rows, at_once, ctas_per_sm, hidden), clusters, cluster)
        for cluster, at_once in held
        for clusters in range(1, max(1, min(tiles, MOST_ROUNDS * at_once // items)) // cluster + 1)
    )[1:]


def cost(
    clusters: int, cluster: int, items: int, tiles: int, rows: int, at_once: int, ctas_per_sm: int, hidden: float = 0.0
) -> float:
    """The estimated time of a split, in units of a CTA's time for a tile of keys.

    CTAs that share the memory's bandwidth count as if they took turns. So do 2 CTAs on one multiprocessor while others
    have 1, except that 2 read faster. A cluster ends at once if its rows see none of its keys.

    Args:
        at_once: the resident CTAs of the device in such clusters; the others are as for `splits`.
    """
    ctas = items * cluster * (clusters - (clusters - 1) * hidden / 2)
    load = ctas * ctas_per_sm / at_once
    if ctas > at_once:
        rounds = math.ceil(ctas / at_once) * float(ctas_per_sm)
    elif load > 1:
        rounds = max(load, math.ceil(load) / TOGETHER)
    else:
        rounds = max(load, ALONE) if ctas_per_sm == 1 and rows <= FEW_ROWS else 1.0
    took = rounds * (-(-tiles // (clusters * cluster)) + START_TILES)
    if cluster > 1:
        took += rows / CLUSTER_ROWS
    if clusters > 1:
        took += MERGE_TILES + items * rows * clusters / WORKSPACE_ROWS
    return took
