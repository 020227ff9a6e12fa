"""Shapes drawn at random, each time the same for a seed: shapes of no grid, by which choices are judged."""

import math
import random

from attnlab.study.shapes import Shape

MOST_FLOPS = 2e12
"""A shape with more is drawn again: its call takes milliseconds on any GPU, where choosing is easy."""
MOST_BYTES = 2e9
QUERIES = {"all": 0.7, "chunk": 0.15, "few": 0.15}
"""How often a shape has as many queries as keys, a chunk of them after what a cache holds, or at most `FEW`."""
FEW = 64


def draw(count: int, seed: int) -> list[Shape]:
    """As many different shapes as `count`.

    Lengths and batches are drawn evenly over doublings: 16 to 8192 queries, up to 32,768 keys, 1 to 64 sequences.
    Heads, heads that share keys and values, head_dim, dtype and mask are drawn evenly of those that models have.
    """
    source = random.Random(seed)
    found: dict[Shape, None] = {}
    while len(found) < count:
        shape = _shape(source)
        if shape.flops <= MOST_FLOPS and shape.bytes <= MOST_BYTES:
            found[shape] = None
    return list(found)


def _shape(source: random.Random) -> Shape:
    def log_uniform(least: int, most: int) -> int:
        return round(math.exp(source.uniform(math.log(least), math.log(most))))

    (kind,) = source.choices(list(QUERIES), weights=list(QUERIES.values()))
    keys = log_uniform(16, 8192) if kind == "all" else log_uniform(512, 32768)
    queries = keys if kind == "all" else log_uniform(*((1, FEW) if kind == "few" else (FEW, keys)))
    sharing = source.choice((1, 1, 2, 4, 8))
    kv_heads = source.choice((1, 2, 3, 4, 6, 8, 12, 16))
    return Shape(
        log_uniform(1, 64),
        kv_heads * sharing,
        queries,
        source.choice((64, 128)),
        source.random() < 0.5 or 1 < queries < keys,
        source.choice(("float16", "bfloat16")),
        kv_heads=kv_heads,
        kv_len=keys,
    )
