"""Time tiles of kernel.few at other splits than it chooses, with a cold L2, to fit `problem.cost`: 2 minutes.

``PYTHONPATH=lib python tools/gpu/splits.py`` checks every tile at random cases. It prints a line for each shape,
number of queries and tile: the chosen split and the fastest as clusters x CTAs, in µs with TB/s and TFLOP/s, and kernel
11. Then it prints the effects of early launches and of the merge's shared memory. At the end it prints the constants
whose choices come closest to the fastest split. Splits with a cost far above the least are not tried. Arguments such as
``1,32,8,8192,128/1/16``, batch, heads, kv_heads, keys, head_dim and queries, replace the tool's own shapes.
"""

import itertools
import math
import random
import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from statistics import mean, median
from typing import Any
from unittest.mock import patch

import torch

from attnlab.measuring.kernels import launch, maps, problem, rungs
from attnlab.measuring.subjects.implementation import Broken, Unsupported
from attnlab.study import ladder
from attnlab.study.ladder import Tile

SHAPES = (
    "1,32,8,1024,128/64/1",
    "1,32,8,8192,128/64/16/4/1",
    "1,32,8,32768,128/64/16",
    "8,32,8,1024,128/64",
    "8,32,8,8192,128/64/16",
    "9,32,8,8000,128/40",
    "9,32,8,8000,64/40",
    "1,4,4,8192,128/96",
    "1,1,1,8192,128/2657",
    "1,2,2,4096,128/4096",
    "1,2,2,4096,64/4096",
    "1,32,8,2048,128/256",
    "8,32,1,8192,128/8",
    "4,12,12,4096,64/8",
    "1,16,4,8192,256/64/16/4/1",
    "8,16,4,8192,256/64/16/1",
    "8,8,8,1024,256/16/1",
    "50,12,1,13930,256/18",
)
# Tiles beside those of the ladder: rows, warps, keys, stages, CTAs of a multiprocessor, whether warpgroups take turns.
OTHERS = {
    128: ((128, 12, 128, 3, 1, 0), (128, 12, 64, 6, 1, 1), (192, 16, 64, 5, 1, 0)),
    64: ((128, 12, 128, 6, 1, 0), (128, 12, 64, 12, 1, 1)),
    256: ((16, 8, 64, 3, 1, 0), (128, 12, 64, 2, 1, 0), (128, 12, 80, 2, 1, 1)),
}
PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 17, 24, 32, 33)
CASES, TOLERANCE = 40, {torch.float16: 4e-3, torch.bfloat16: 3e-2}
CALLS, REPLAYS = 16, 5
MOST_COST = 1.5
# The constants of `problem.cost`, and the values of each that are tried.
CONSTANTS = ((1, 2, 3, 4, 6, 8), (0.5, 1, 1.5, 2, 3, 4), (20, 40, 80, 160, 320), (400, 800, 1600, 3200, 6400))
NAMES = ("START_TILES", "MERGE_TILES", "CLUSTER_ROWS", "WORKSPACE_ROWS")

Split = tuple[int, int]
Given = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Inputs = list[Given]


def main(shapes: list[str]) -> None:
    started = time.monotonic()
    print(torch.cuda.get_device_name(), flush=True)
    variants = {head_dim: [variant(tile) for tile in _tiles(head_dim)] for head_dim in OTHERS}
    wrong = sum(_check(head_dim, of_dim) for head_dim, of_dim in variants.items())
    print(f"{wrong} wrong cases, {time.monotonic() - started:.0f} s", flush=True)
    fits = []
    for stated in shapes or SHAPES:
        sizes, *queries = stated.split("/")
        for number in map(int, queries):
            fits += _time(tuple(map(int, sizes.split(","))), number, variants)
    _fit(fits)
    print(f"{time.monotonic() - started:.0f} s", flush=True)
    sys.exit(wrong > 0)


def _tiles(head_dim: int) -> list[Tile]:
    """The ladder's tiles of a head_dim, and those of `OTHERS`."""
    own = [tile for tile in ladder.rung("kernel.few").tiles if tile.head_dim == head_dim]
    made = []
    for stated in OTHERS[head_dim]:
        template = dict(zip(("rows", "warps", "keys", "stages", "ctas", "turns"), stated, strict=True))
        rows, warps, keys, stages, *_ = stated
        shared = 2 * head_dim * (rows + 2 * stages * keys)
        name = "_".join(map(str, ("rows", *stated)))
        sizes: dict[str, Any] = {"rows": rows, "keys": keys, "threads": 32 * warps, "shared_bytes": shared}
        made.append(Tile(head_dim=head_dim, template=template, name=name, **sizes))
    return own + made


def variant(tile: Tile) -> rungs.Kernel:
    """kernel.few with this tile only, as a new kernel."""
    return rungs.Kernel(ladder.rung("kernel.few").model_copy(update={"tiles": [tile]}))


def _at(split: Split) -> ExitStack:
    """A context that sets the split: clusters, and CTAs in each; fewer clusters if there are few tiles."""
    stack = ExitStack()
    chosen = lambda items, tiles, *_: (min(split[0], max(1, tiles // split[1])), split[1])  # noqa: E731
    stack.enter_context(patch.object(problem, "splits", chosen))
    return stack


# Correctness


def _check(head_dim: int, variants: list[rungs.Kernel]) -> int:
    """Compare each variant with float64 at random shapes, views and lengths; returns the number of failures."""
    wrong, dtype = 0, torch.bfloat16 if head_dim >= 128 else torch.float16
    for kernel in variants:
        chance, worst, repeats = random.Random(0), 0.0, True
        for _ in range(CASES):
            batch, kv_heads, group = chance.randint(1, 3), chance.choice((1, 2, 8)), chance.choice((1, 2, 4, 7, 8, 32))
            queries = chance.choice((1, 2, 5, 16, 64, 300))
            group = min(group, 4) if queries > 64 else group
            keys = chance.randint(queries, 3000)
            q = torch.randn(batch, queries, kv_heads * group, head_dim, device="cuda", dtype=dtype).transpose(1, 2)
            cache = torch.randn(2, batch, kv_heads, keys + 64, head_dim, device="cuda", dtype=dtype)
            if chance.random() < 0.3:  # scores that rise, by a little or by far
                cache[0] *= torch.linspace(1, chance.choice((6, 90)), keys + 64, device="cuda", dtype=dtype)[:, None]
            k, v = cache[0, :, :, :keys], cache[1, :, :, :keys]
            lengths = [chance.choice((0, 1, keys, chance.randint(0, keys))) for _ in range(batch)]
            kv_lens = torch.tensor(lengths, device="cuda", dtype=torch.int32) if chance.random() < 0.5 else None
            split = chance.choice(((1, 1), (3, 1), (12, 1), (1, 2), (1, 4), (1, 8), (2, 4), (3, 8), (1, 16)))
            with _at(split):
                kernel._prepared.clear()
                if split[1] not in dict(kernel.prepared(q, k, v, True).compiled.held):
                    continue  # such a cluster finds no place
                try:
                    output = kernel(q, k, v, True, None, kv_lens)
                    repeats &= torch.equal(output, kernel(q, k, v, True, None, kv_lens))
                except (Broken, Unsupported) as refused:
                    print(f"  {kernel.rung.tiles[0].name}, {split}: {refused}", flush=True)
                    wrong += 1
                    continue
            expected = _float64(q, k, v, lengths if kv_lens is not None else [keys] * batch)
            error = (output.double() - expected).abs().max().item()
            worst = max(worst, error if error == error else math.inf)
            if not error < TOLERANCE[dtype]:
                wrong += 1
                print(
                    f"  WRONG {kernel.rung.tiles[0].name} {split} {tuple(q.shape)} {tuple(k.shape)}: {error}",
                    flush=True,
                )
        wrong += not repeats
        print(f"{head_dim} {kernel.rung.tiles[0].name}: worst {worst:.1e}, repeats itself: {repeats}", flush=True)
    return wrong


def _float64(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    """Attention under the mask, aligned to the end of each sequence; a query that sees no key gives 0."""
    _, heads, queries, head_dim = q.shape
    output = torch.zeros(q.shape, dtype=torch.float64, device="cuda")
    for number, length in enumerate(lengths):
        if not length:
            continue
        keys, values = (x[number, :, :length].double().repeat_interleave(heads // k.shape[1], 0) for x in (k, v))
        scores = q[number].double() @ keys.transpose(1, 2) / math.sqrt(head_dim)
        unseen = torch.ones(queries, length, dtype=torch.bool, device="cuda").triu(1 + length - queries)
        output[number] = scores.masked_fill(unseen, -math.inf).softmax(-1).nan_to_num(0) @ values
    return output


# Times


def apart(sizes: tuple[int, ...], queries: int) -> Inputs:
    """Q, K and V for enough calls that their K and V together exceed twice the L2, `CALLS` at most."""
    batch, heads, kv_heads, keys, head_dim = sizes
    memories = min(CALLS, 1 + math.ceil(2 * torch.cuda.get_device_properties(0).L2_cache_size / _kv_bytes(sizes)))
    drawn = partial(torch.randn, device="cuda", dtype=torch.bfloat16 if head_dim >= 128 else torch.float16)
    of_q, of_k = (batch, heads, queries, head_dim), (batch, kv_heads, keys, head_dim)
    return [(drawn(of_q), drawn(of_k), drawn(of_k)) for _ in range(memories)]


def _kv_bytes(sizes: tuple[int, ...]) -> int:
    batch, _, kv_heads, keys, head_dim = sizes
    return 4 * batch * kv_heads * keys * head_dim


def _time(sizes: tuple[int, ...], queries: int, variants: dict[int, list[rungs.Kernel]]) -> list[tuple]:
    """Print a line for each tile; returns the input of `_fit` for the ladder's tile."""
    batch, heads, kv_heads, keys, head_dim = sizes
    rows, kv_bytes, inputs = heads // kv_heads * queries, _kv_bytes(sizes), apart(sizes, queries)
    fits, own = [], [tile.name for tile in ladder.rung("kernel.few").tiles_for(head_dim, keys, True, rows)]
    seen = keys - (queries - 1) / 2  # by a query, on average
    for kernel in variants[head_dim]:
        tile = kernel.rung.tiles[0]
        if not (rows <= tile.rows <= 64 or tile.rows > 64 < rows):
            continue
        given = asked(kernel, inputs[0])
        chosen, *others = tried(*given)
        took = {split: us(kernel, inputs, split) for split in (chosen, *others)}
        best = sorted(took, key=took.__getitem__)[:5]
        words = [f"{c}x{n} {took[c, n]:.2f}" for c, n in [chosen, *best]]
        flops = 4 * batch * heads * queries * seen * head_dim
        speed = f"{kv_bytes / took[best[0]] / 1e6:.2f} TB/s, {flops / took[best[0]] / 1e6:.0f} TFLOP/s"
        print(f"{sizes} q={queries} {tile.name}: chosen {words[0]}; {', '.join(words[1:])}; {speed}", flush=True)
        if tile.name in own:
            print(f"    at {best[0]}: {_launches(kernel, inputs, best[0])}; held {given[3]}", flush=True)
            fits.append((given, took))
    lazy = ladder.rung("kernel.lazy")
    took_us = {tile.name: us(rungs.kernel(lazy, tile), inputs, (1, 1)) for tile in lazy.tiles_for(head_dim, keys, True)}
    print("    rung 11:", ", ".join(f"{name} {latency:.2f}" for name, latency in took_us.items()), flush=True)
    return fits


def asked(kernel: rungs.Kernel, given: Given) -> tuple[Any, ...]:
    """The arguments of `problem.splits` for these inputs."""
    with patch.object(problem, "splits", side_effect=problem.splits) as of_keys:
        kernel.prepare(*given, True, None)
    return tuple(of_keys.call_args.args)


def _costs(splits: Iterable[Split], sizes: tuple[Any, ...]) -> dict[Split, float]:
    items, tiles, rows, held, *others = sizes
    return {(c, n): problem.cost(c, n, items, tiles, rows, dict(held)[n], *others) for c, n in splits}


def tried(*sizes: Any) -> list[Split]:
    """The split that is chosen, then others with a cost of at most `MOST_COST` times the least, cheapest first."""
    _, tiles, _, held, *_ = sizes
    costs = _costs([(c, n) for n, _ in held for c in PARTS if c * n <= tiles], sizes)
    worth = [split for split in sorted(costs, key=costs.__getitem__) if costs[split] <= MOST_COST * min(costs.values())]
    return list(dict.fromkeys([problem.splits(*sizes), *worth]))


def _launches(kernel: rungs.Kernel, inputs: Inputs, split: Split) -> str:
    """The latencies in µs without early launches, and with the largest shared memory carveout for the merge."""
    waiting = us(kernel, inputs, split, early=False)
    merge = kernel.prepared(*inputs[0], True).compiled.other
    before = merge.preferred_shared_memory_carveout
    merge.preferred_shared_memory_carveout = 100
    carved = us(kernel, inputs, split)
    merge.preferred_shared_memory_carveout = before
    return (
        f"not early {waiting:.2f}, merge beside all shared memory {carved:.2f}, again {us(kernel, inputs, split):.2f}"
    )


def us(kernel: rungs.Kernel, inputs: Inputs, split: Split, early: bool = True) -> float:
    """The median latency in µs over replays of a graph whose calls rotate the inputs; infinite if a launch fails."""
    with _at(split), ExitStack() as stack:
        if not early:
            stack.enter_context(patch.object(launch, "early", late))
        kernel._prepared.clear()
        try:
            kernel(*inputs[0], True)
        except Broken:
            return math.inf
        torch.cuda.synchronize()
        graph, begin, end = torch.cuda.CUDAGraph(), *(torch.cuda.Event(enable_timing=True) for _ in "be")
        with torch.cuda.graph(graph):
            for number in range(CALLS):
                kernel(*inputs[number % len(inputs)], True)
    kernel._prepared.clear()
    graph.replay()
    samples = []
    for _ in range(REPLAYS):
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        samples.append(begin.elapsed_time(end) * 1e3 / CALLS)
    return median(samples)


_EARLY = launch.early


def late(ctas: int, threads: int, shared_bytes: int = 0, cluster: int = 1) -> object:
    """As `launch.early`, but only for the merge, which has no dynamic shared memory; other launches aren't early."""
    config = _EARLY(ctas, threads, shared_bytes, cluster)
    if shared_bytes:
        kinds = maps.driver().CUlaunchAttributeID
        kept = [x for x in config.attrs if x.id == kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION]
        config.attrs, config.numAttrs = kept, 1
    return config


# Constants


def _fit(fits: list[tuple]) -> None:
    """Print the declared constants, and those whose choices come closest to the fastest split."""
    declared = tuple(getattr(problem, name) for name in NAMES)
    found = sorted((_regrets(fits, constants), constants) for constants in itertools.product(*CONSTANTS))[:5]
    for (average, most), constants in [(_regrets(fits, declared), declared), *found]:
        print(
            dict(zip(NAMES, constants, strict=True)), f"{average:.1%} slower on average, {most:.0%} at most", flush=True
        )


def _regrets(fits: list[tuple], constants: tuple[float, ...]) -> tuple[float, float]:
    with ExitStack() as stack:
        for name, value in zip(NAMES, constants, strict=True):
            stack.enter_context(patch.object(problem, name, value))
        each = []
        for sizes, took in fits:
            costs = _costs(took, sizes)
            each.append(took[min(costs, key=costs.__getitem__)] / min(took.values()) - 1)
    return mean(each), max(each)


if __name__ == "__main__":
    main(sys.argv[1:])
