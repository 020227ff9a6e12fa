"""Time kernel.few at other numbers of splits than it chooses, K and V from memory, to fit `problem.splits` to.

``PYTHONPATH=lib python tools/gpu/splits.py 1,32,8,8192,128 32,32,8,8192,128`` prints a line for each shape (batch,
heads, kv_heads, keys, head_dim) and number of queries: what was chosen and the four fastest, in µs, with TB/s.
"""

import math
import sys
from statistics import median
from unittest.mock import patch

import torch

from attnlab.measure.subjects import problem, rungs
from attnlab.study import ladder

QUERIES = (1, 4, 16, 64)
PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 33, 48, 66)
CALLS, REPLAYS = 24, 7


def main(shapes: list[str]) -> None:
    print(torch.cuda.get_device_name(), flush=True)
    for stated in shapes:
        for queries in QUERIES:
            _line(*map(int, stated.split(",")), queries)


def _line(batch: int, heads: int, kv_heads: int, keys: int, head_dim: int, queries: int) -> None:
    kv_bytes = 4 * batch * kv_heads * keys * head_dim
    memories = 1 + math.ceil(2 * torch.cuda.get_device_properties(0).L2_cache_size / kv_bytes)
    sizes = (batch, heads, queries, head_dim), *2 * [(batch, kv_heads, keys, head_dim)]
    inputs = [[torch.randn(size, device="cuda", dtype=torch.bfloat16) for size in sizes] for _ in range(memories)]
    took_us = {"chosen": _us(inputs, queries > 1)}
    for parts in PARTS:
        with patch.object(problem, "splits", lambda items, tiles, rows, held, parts=parts: min(parts, tiles)):
            took_us[str(parts)] = _us(inputs, queries > 1)
    best = sorted(took_us, key=took_us.__getitem__)[:4]
    words = [f"{name} {took_us[name]:.2f} ({kv_bytes / took_us[name] / 1e6:.2f} TB/s)" for name in ["chosen", *best]]
    print((batch, heads, kv_heads, keys, head_dim), f"queries {queries}:", ", ".join(words), flush=True)


def _us(inputs: list[list[torch.Tensor]], causal: bool) -> float:
    """The median over replays of a graph that goes from one memory to the next."""
    kernel = rungs.Kernel(ladder.rung("kernel.few"))  # one of its own keeps no launch of other splits
    kernel(*inputs[0], causal)
    torch.cuda.synchronize()
    graph, begin, end = torch.cuda.CUDAGraph(), *(torch.cuda.Event(enable_timing=True) for _ in "be")
    with torch.cuda.graph(graph):
        for number in range(CALLS):
            kernel(*inputs[number % len(inputs)], causal)
    graph.replay()
    samples = []
    for _ in range(REPLAYS):
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        samples.append(begin.elapsed_time(end) * 1e3 / CALLS)
    return median(samples)


if __name__ == "__main__":
    main(sys.argv[1:])
