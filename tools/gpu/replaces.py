"""Time a kernel against its source of an earlier revision wherever the tuning names it: a minute, and no run.

``git archive HEAD~3 kernels | tar x -C /tmp`` and ``PYTHONPATH=lib python3 tools/gpu/replaces.py /tmp/kernels lazy``
time each instance at the shapes of `make tune` at which it is among the fastest 2, in fp16 or bf16. Values are normal,
and at every third shape also rise by 6 nats a tile. Graphs take turns. It prints the time over the earlier one's by
instance, the slowest shapes, and the largest difference of results. A kernel that is faster in the mean may state
`replaces` in its entry; NOTES.md has the shapes at which it isn't.
"""

import argparse
import multiprocessing
import os
import random
from pathlib import Path
from statistics import median
from time import monotonic

import numpy as np
import pandas as pd
import torch

from attnlab.base import paths
from attnlab.measuring.clocks import cuda_events
from attnlab.measuring.clocks.in_process import WARM
from attnlab.measuring.kernels import rungs
from attnlab.measuring.session.tune import SHAPES
from attnlab.measuring.subjects import inputs
from attnlab.measuring.subjects.case import Case
from attnlab.measuring.subjects.inputs import Windows
from attnlab.study import ladder, tuning
from attnlab.study.shapes import Shape

GPU = torch.device("cuda")
ROUNDS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("earlier", type=Path, help="a folder with its ladder.toml and sources")
    parser.add_argument("rung")
    parser.add_argument("--seconds", type=float, default=60.0, help="after which no shape begins")
    options = parser.parse_args()
    tuned, now = tuning.load(torch.cuda.get_device_name()), paths.kernels()
    near = [(shape, tuned.at.get(tuning.place(shape, tuned.multiprocessors), [])[:2]) for shape in SHAPES]
    cases = [(shape, choice.tile) for shape, choices in near for choice in choices if choice.rung == options.rung]
    random.Random(0).shuffle(cases)
    folders = (options.earlier, now)
    with multiprocessing.get_context("spawn").Pool() as pool:  # CuPy keeps what each process compiled
        instances = sorted({(shape.head_dim, shape.causal, tile) for shape, tile in cases})
        pool.starmap(_compile, [(folder, options.rung, *each) for folder in folders for each in instances], chunksize=1)
    until, rows = monotonic() + options.seconds, []
    for number, (shape, tile) in enumerate(cases):
        for kind in ["normal", "stairs 6"][: 1 if number % 3 else 2]:
            if monotonic() < until:
                dtype = ("float16", "bfloat16")[number % 2]
                rows.append(_row(shape.resized(dtype=dtype, values=kind), tile, options.rung, folders))
    print(f"{torch.cuda.get_device_name()}: {len(rows)} cases of {len(cases)} shapes; time over the earlier one's")
    found = pd.DataFrame(rows)
    groups = found.groupby(["head_dim", "tile", "causal", "values"])["ratio"]
    print(groups.agg(shapes="size", mean=lambda r: np.exp(np.log(r).mean()), most="max").round(3).to_string())
    print(found.sort_values("ratio").tail(15).round(3).to_string(index=False))
    print(f"mean {np.exp(np.log(found['ratio']).mean()):.3f}, results differ by {found['differs'].max():.2g} at most")


def _row(shape: Shape, tile: str, rung: str, folders: tuple[Path, Path]) -> dict[str, object]:
    windows = Windows(shape, GPU, cuda_events.most_calls(shape))
    windows.draw(1)
    cases: list[Case] = []
    outputs: list[torch.Tensor] = []
    pool = torch.cuda.graph_pool_handle()
    for folder in folders:
        kernel = _kernel(folder, rung, shape.head_dim, tile)
        cases.append(Case.of(rungs.named(rung, kernel), windows))
        outputs.append(cases[-1].call())  # type: ignore[arg-type]
        cuda_events.capture(cases[-1], pool)
    took: list[list[float]] = [[], []]
    with cuda_events.sampling(GPU, WARM) as sampler:
        for _ in range(ROUNDS):
            for which in random.sample(range(2), 2):
                took[which].append(sampler(cases[which]).latency_us)
    earlier_us, now_us = map(median, took)
    differs = (outputs[0].float() - outputs[1].float()).abs().max().item()
    about = {"head_dim": shape.head_dim, "tile": tile, "causal": shape.causal, "values": shape.values}
    return about | {"ratio": now_us / earlier_us, "earlier_us": earlier_us, "shape": shape.label, "differs": differs}


def _compile(folder: Path, rung: str, head_dim: int, causal: bool, tile: str) -> None:
    kernel = _kernel(folder, rung, head_dim, tile)
    own = kernel.rung.tiles[0]
    for dtype in ("float16", "bfloat16"):
        shape = Shape(1, 1, max(own.shortest, min(own.longest or 256, 256)), head_dim, causal, dtype)
        q, k, v = inputs.draw(shape, 1, GPU)
        kernel(q, k, v, causal)


_KERNELS: dict[tuple[object, ...], rungs.Kernel] = {}


def _kernel(folder: Path, name: str, head_dim: int, tile: str) -> rungs.Kernel:
    """An instance of this folder's kernel. Its first call, which comes next, reads the sources and compiles them."""
    os.environ["ATTNLAB_KERNELS"] = str(folder)
    key = (folder, head_dim, tile)
    if key not in _KERNELS:
        rung = ladder.rung(ladder.PREFIX + name)
        (own,) = (each for each in rung.tiles if (each.head_dim, each.name) == (head_dim, tile))
        _KERNELS[key] = rungs.kernel(rung, own)
    return _KERNELS[key]


if __name__ == "__main__":
    main()
