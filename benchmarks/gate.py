"""Counts how often the gate fails correct implementations that round in another order: writes data/reference/gate.csv.

    PYTHONPATH=lib python benchmarks/gate.py        # about an hour of CPU time, on all cores

The shapes are the smallest of the studies in each dtype, or smaller, with few heads. Fewer elements make it more likely
that the framework's largest error is small by luck. `tail` is the probability of a strain above 1, by a Pareto
distribution fitted to the largest 2 % of strains. `at_most` is the 95 % upper bound by Clopper and Pearson.
"""

import math
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain

import pandas as pd
import scipy.stats
import torch
from torch import Tensor

from attnlab.base import paths
from attnlab.measuring.gate.gate import Gate
from attnlab.measuring.subjects import inputs
from attnlab.measuring.subjects.implementation import Implementation
from attnlab.measuring.subjects.oracle import masked
from attnlab.measuring.subjects.outputs import each
from attnlab.measuring.subjects.sdpa import REGISTRY
from attnlab.study.shapes import Shape

AT_ONCE = 50
FLOAT32, HALF = Shape(1, 8, 64, 64, dtype="float32"), Shape(1, 1, 64, 64)
OTHERS = ("sd 6", "sink 13", "positional 25", "rising 24", "falling 24", "scales", "outliers", "offset 1", "zeros")
DRAWS = dict.fromkeys([FLOAT32, FLOAT32.resized(causal=True), HALF, HALF.resized(causal=True)], 40_000)
DRAWS |= {HALF.resized(dtype="bfloat16"): 40_000, HALF.resized(seq_len=1, kv_len=1024, dtype="bfloat16"): 40_000}
DRAWS |= {shape.resized(values=kind): 2000 for shape in (FLOAT32, HALF) for kind in OTHERS}
DRAWS |= {shape.resized(causal=True, direction="training"): 2000 for shape in (FLOAT32.resized(heads=2), HALF)}


def online(q: Tensor, k: Tensor, v: Tensor, causal: bool, tile: int, split: int = 1, factor: float = 1.0) -> Tensor:
    """FlashAttention's algorithm in float32, from the last tile to the first; P times `factor` is rounded as V is."""
    scores = q.float() @ k.mT.float() * (math.log2(math.e) / math.sqrt(q.shape[-1]))
    if causal:
        scores = scores.masked_fill(masked(q.shape[2], k.shape[2], q.device), -math.inf)
    tiles = list(zip(scores.split(tile, -1), v.split(tile, -2), strict=True))[::-1]
    parts = []
    for some in (tiles[first::split] for first in range(min(split, len(tiles)))):
        top, total, o = torch.full_like(scores[..., :1], -1e30), torch.zeros(()), torch.zeros(())
        for part, values in some:
            raised = torch.maximum(top, part.amax(-1, keepdim=True))
            p, kept = factor * (part - raised).exp2(), (top - raised).exp2()
            total, top = total * kept + p.sum(-1, keepdim=True), raised
            o = o * kept + p.to(v.dtype).float() @ values.float()
        parts.append((top, total, o))
    top = torch.stack([part[0] for part in parts]).amax(0)
    total, o = (torch.stack([(part[0] - top).exp2() * part[at] for part in parts]).sum(0) for at in (1, 2))
    return (o / total).to(q.dtype)


RIGHT = [REGISTRY["sdpa.flash"], REGISTRY["sdpa.math"]]
RIGHT += [Implementation(f"tiles of {tile}", partial(online, tile=tile)) for tile in (16, 32, 128)]
RIGHT += [Implementation("split", partial(online, tile=16, split=4))]
RIGHT += [Implementation("P scaled", partial(online, tile=64, factor=1 / 3))]


def strains(shape: Shape, seed: int) -> list[dict[str, float]]:
    """The strain of each correct implementation on some draws of the inputs."""
    together = shape.resized(batch=AT_ONCE * shape.batch)
    given, returned = inputs.draw(together, seed, torch.device("cpu")), {}
    for one in RIGHT:
        with one.selected():
            returned[one.name] = each(one.bound(given, together)())
    draws = [slice(at, at + shape.batch) for at in range(0, together.batch, shape.batch)]
    gates = [Gate(tuple(tensor[draw] for tensor in given), shape.causal, shape.values) for draw in draws]
    return [
        {name: gate.check(tuple(tensor[draw] for tensor in found)).strain for name, found in returned.items()}
        for draw, gate in zip(draws, gates, strict=True)
    ]


def row(shape: Shape, name: str, found: pd.Series) -> dict[str, object]:
    """The row of the table for an implementation at a shape."""
    refused, logs = int((found > 1).sum()), found.clip(lower=1e-9).map(math.log).nlargest(max(10, len(found) // 50))
    excess = (logs - logs.min()).sum() / (len(logs) - 1)
    tail = len(logs) / len(found) * math.exp(min(0.0, logs.min()) / excess) if excess else 0.0
    counted = {"draws": len(found), "refused": refused, "largest_strain": found.max(), "tail": tail}
    at_most = scipy.stats.beta.ppf(0.95, refused + 1, len(found) - refused)
    return {"shape": str(shape), "implementation": name, **counted, "at_most": at_most}


if __name__ == "__main__":
    rows = []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(mp_context=context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for shape, draws in DRAWS.items():
            found = pd.DataFrame(chain.from_iterable(pool.map(partial(strains, shape), range(draws // AT_ONCE))))
            rows += [row(shape, name, found[name]) for name in found]
            print(shape, found.max().round(3).to_dict(), flush=True)
            pd.DataFrame(rows).to_csv(paths.REFERENCE / "gate.csv", index=False, float_format="%.3g")
