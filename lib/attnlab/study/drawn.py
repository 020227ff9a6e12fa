"""Draw shapes at random, reproducibly for a seed. They are on no grid, and test how good choices are."""

import math
import random

from attnlab.study.shapes import Shape

MOST_FLOPS = 2e12
"""Shapes with more are drawn again: their calls take milliseconds on any GPU, and choosing is easy."""
MOST_BYTES = 2e9
QUERIES = {"all": 0.7, "chunk": 0.15, "few": 0.15}
"""The probability that a shape has as many queries as keys, a chunk after cached keys, or at most `FEW`."""
FEW = 64


def draw(count: int, seed: int, law: str = "models") -> list[Shape]:
    """Draw `count` different shapes. Sizes are log-uniform. Both laws draw 1 to 64 sequences.

    ``models``: 16 to 8192 queries, up to 32,768 keys; numbers of heads, and of heads that share keys, are typical ones.
    ``log-uniform``: 1 to 64 heads, of which up to 16 share keys. 25 % of the shapes have 1 to 64 queries over 64 to
    32,768 keys, the others 16 to 16,384 queries and as many keys. In 10 % of the shapes head_dim is 256. Both laws draw
    the other head dimensions, dtype and mask uniformly.
    """
    source, shape_of = random.Random(seed), {"models": _of_models, "log-uniform": _log_uniform}[law]
    found: dict[Shape, None] = {}
    while len(found) < count:
        shape = shape_of(source)
        if shape.flops <= MOST_FLOPS and shape.bytes <= MOST_BYTES:
            found[shape] = None
    return list(found)


def _between(source: random.Random, least: int, most: int) -> int:
    return round(math.exp(source.uniform(math.log(least), math.log(most))))


def _of_models(source: random.Random) -> Shape:
    (kind,) = source.choices(list(QUERIES), weights=list(QUERIES.values()))
    keys = _between(source, 16, 8192) if kind == "all" else _between(source, 512, 32768)
    queries = keys if kind == "all" else _between(source, *((1, FEW) if kind == "few" else (FEW, keys)))
    sharing = source.choice((1, 1, 2, 4, 8))
    kv_heads = source.choice((1, 2, 3, 4, 6, 8, 12, 16))
    return Shape(
        _between(source, 1, 64),
        kv_heads * sharing,
        queries,
        source.choice((64, 128)),
        source.random() < 0.5 or 1 < queries < keys,
        source.choice(("float16", "bfloat16")),
        kv_heads=kv_heads,
        kv_len=keys,
    )


def _log_uniform(source: random.Random) -> Shape:
    is_few = source.random() < 0.25
    keys = _between(source, FEW, 32768) if is_few else _between(source, 16, 16384)
    queries = _between(source, 1, FEW) if is_few else keys
    batch, heads, most = (_between(source, 1, n) for n in (64, 64, 16))
    sharing = max(count for count in range(1, most + 1) if heads % count == 0)
    (head_dim,) = source.choices((64, 128, 256), weights=(9, 9, 2))
    causal, dtype = source.random() < 0.5, source.choice(("float16", "bfloat16"))
    return Shape(batch, heads, queries, head_dim, causal, dtype, kv_heads=heads // sharing, kv_len=keys)
