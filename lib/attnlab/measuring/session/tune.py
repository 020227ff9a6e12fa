"""Tuning: find the fastest instances of the kernels at each shape, for `kernel.best` on this device.

At each of `SHAPES`, the candidates pass the gate. They are then timed in interleaved rounds on each of `VALUES`; the
distribution on which a candidate takes longest counts. No study has these shapes or inputs: `kernel.best` is chosen on
other cases than those on which it is judged. At a shape where no candidate changed since the last tuning, the choices
stay.
"""

import math
import multiprocessing
import os
import random
import sys
import zlib
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import product
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Any

import torch

from attnlab.base import paths
from attnlab.base.errors import UserError
from attnlab.measuring.clocks import cuda_events
from attnlab.measuring.clocks.in_process import WARM
from attnlab.measuring.gate.gate import Gate
from attnlab.measuring.instruments import devices, environment
from attnlab.measuring.kernels import rungs
from attnlab.measuring.session.checks import few_heads
from attnlab.measuring.session.subject import Subject, alive
from attnlab.measuring.subjects import inputs
from attnlab.measuring.subjects.case import Case
from attnlab.measuring.subjects.implementation import Broken, Unsupported
from attnlab.measuring.subjects.inputs import Windows
from attnlab.runs.schema import FAILED, OUT_OF_MEMORY
from attnlab.study import ladder, tuning
from attnlab.study.ladder import Rung, Tile
from attnlab.study.shapes import Shape
from attnlab.study.tuning import TileChoice, Tuning

ROUNDS = 9
VALUES = ("normal", "sd 6", "stairs 12")
"""Input distributions for kernels whose time depends on the scores: normal, and row maxima that jump or rise."""
SEQ_LENS = (56, 80, 120, 184, 248, 376, 504, 760, 1016, 1528, 2040, 4088, 8184)
"""A little below common lengths, so that tiles are filled as at those; and one a little above 64."""
HEADS = ((3, 8), (9, 7), (18, 7), (30, 8))
"""Batch and heads, so close that a kernel that fills the device at one fills it at those between."""
DENSE = [*product(HEADS, SEQ_LENS), *(((40, 30), seq_len) for seq_len in SEQ_LENS[:10])]
"""With 1,200 heads a call takes longer than its launch at any length; at the longest, 240 fill the device as well."""
FEW = [(3, 32, 8, queries, 3000) for queries in (1, 5, 14)] + [
    (batch, 32, 8, queries, keys)
    for batch, queries in (
        *((batch, 14) for batch in (1, 8, 9, 16, 30)),
        *((1, 40), (9, 40), (1, 60), (8, 60), (10, 60), (16, 60)),
    )
    for keys in (1000, 8000)
]
CHUNKS = [
    (1, 4, 4, 200, 8000),
    (1, 1, 1, 3000, 8000),
    (1, 2, 2, 4000, 4000),
    (1, 32, 8, 250, 2000),
    (1, 3, 3, 1000, 1100),
    (1, 8, 4, 50, 1600),
    (1, 2, 2, 110, 2200),
]
"""Batch, heads, KV heads, queries and keys: few queries over more keys, or more queries whose tiles don't fill the
device."""
PLACES = dict.fromkeys((64, 128), (DENSE, [*FEW, *CHUNKS]))
PLACES[256] = [*product(HEADS, (120, 376, 1016, 4088))], [*FEW, *CHUNKS[:4]]
"""By head_dim. At 256, only one kernel serves as many queries as keys, so that few shapes are enough."""
SHAPES = [
    Shape(batch, heads, seq_len, head_dim, causal, "float16")
    for head_dim, (dense, _) in PLACES.items()
    for causal, ((batch, heads), seq_len) in product((False, True), dense)
] + [
    Shape(batch, heads, queries, head_dim, causal, "float16", kv_heads=kv_heads, kv_len=keys)
    for head_dim, (_, cached) in PLACES.items()
    for causal, (batch, heads, kv_heads, queries, keys) in product((False, True), cached)
]
ROUGH_CALLS = 3
TOO_SLOW = 3.0
"""A candidate is not timed if a few calls take more than this many times as long as the fastest."""
MOST_COMPILERS = 32
"""The most processes that compile at once. Each has a context of 0.5 GB on the device."""
MOST_KEPT = 2.0
"""A tile is kept if its latency is at most this many times that of the fastest. At a shape nearby it may be the
fastest, if the other needs 2 rounds of the device there instead of 1."""


class Finalists:
    """The kernels whose tiles are candidates: those of this architecture alone; if there are none, all.

    The tiles that failed are no longer candidates: `out` has each by its name and head_dim.
    """

    def __init__(self, every: tuple[Rung, ...], device: torch.device, multiprocessors: int) -> None:
        own = "sm_{}{}a".format(*torch.cuda.get_device_capability(device))
        self.rungs = [rung for rung in every if own in rung.architectures] or list(every)
        self.device, self.multiprocessors = device, multiprocessors
        self.out: set[tuple[str, int]] = set()

    def able(self, shape: Shape) -> list[Rung]:
        """The kernels that are candidates at a shape."""
        splits = tuning.packed_rows(shape, self.multiprocessors) > 0
        return [rung for rung in self.rungs if rung.serves_queries(shape.seq_len) and (splits or not rung.splits_keys)]

    def tiles(self, shape: Shape) -> list[tuple[Rung, Tile]]:
        """Each candidate at a shape, with each of its tiles that serves the shape."""
        axes = (shape.head_dim, shape.kv_len, shape.causal, shape.rows)
        return [(rung, tile) for rung in self.able(shape) for tile in rung.tiles_for(*axes)]

    def fastest(self, shape: Shape) -> list[TileChoice]:
        """Time the candidates; returns the tiles that may be the fastest at a shape or nearby, the fastest first."""
        windows = Windows(shape, self.device, cuda_events.most_calls(shape))
        windows.draw(_seed(shape, "checked"))
        served = [(rung, tile, rungs.pinned(rung, tile)) for rung, tile in self.tiles(shape)]
        there = [one for one in served if (one[2].name, shape.head_dim) not in self.out]
        subjects = [Subject(called, Case.of(called, windows)) for *_, called in there]
        right = _right(self.device, subjects, Gate(windows[0], shape.causal, heads=few_heads(shape)))
        pool: Any = torch.cuda.graph_pool_handle()
        for subject in right:
            subject.attempt(partial(cuda_events.capture, subject.case, pool))
        latencies_us = _slowest(shape, alive(right), windows, self.device)
        for subject in subjects:
            if subject.status in (FAILED, OUT_OF_MEMORY):
                self.out.add((subject.implementation.name, shape.head_dim))
                say(f"{subject.implementation.name} is left out: at {shape}, {subject.reason}")
        most_us = MOST_KEPT * min(latencies_us.values(), default=0.0)
        kept_us = {name: latency_us for name, latency_us in latencies_us.items() if latency_us <= most_us}
        place = tuning.place(shape, self.multiprocessors)._asdict()
        found = [
            TileChoice(**place, rung=rung.name, tile=tile.name, latency_us=kept_us[one.name])
            for rung, tile, one in there
            if one.name in kept_us
        ]
        return sorted(found, key=lambda choice: choice.latency_us)


def say(words: str) -> None:
    """Print a line about the progress."""
    print(f"tune: {words}", file=sys.stderr, flush=True)


def compile_all(finalists: Finalists, shapes: list[Shape], dtypes: tuple[str, ...] = ("float16",)) -> None:
    """Compile every candidate, with a process for each core; CuPy caches the results for other processes."""
    smallest: dict[tuple[str, str, int, bool], tuple[Rung, Tile, Shape]] = {}
    for shape in sorted(shapes, key=attrgetter("query_elements")):
        for rung, tile in finalists.tiles(shape):
            smallest.setdefault((rung.name, tile.name, shape.head_dim, shape.causal), (rung, tile, shape))
    each = [(rung, tile, shape.resized(dtype=dtype)) for dtype in dtypes for rung, tile, shape in smallest.values()]
    if each:
        processes = min(len(each), len(os.sched_getaffinity(0)), MOST_COMPILERS)
        say(f"compiling {len(each)} instances by {processes} processes")
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            pool.starmap(_compile, each, chunksize=1)


def _compile(rung: Rung, tile: Tile, shape: Shape) -> None:
    """Compile an instance without a launch. Errors are ignored: they occur again when the instance is timed."""
    with suppress(Broken, Unsupported, torch.OutOfMemoryError):
        q, k, v, *_ = inputs.draw(shape, 1, torch.device("cuda"))
        rungs.kernel(rung, tile).prepare(q, k, v, shape.causal, None)


def tune() -> Path:
    """Choose the fastest tiles at each of `SHAPES`, and write the choices after each shape; returns their file.

    Raises UserError: there is no NVIDIA GPU, no kernel could be timed on it, or the GPU failed.
    """
    if not torch.cuda.is_available():
        raise UserError("tuning needs an NVIDIA GPU, and torch sees none here: run `make tune` where there is one")
    environment.lock()
    device, name, path = torch.device("cuda"), torch.cuda.get_device_name(), None
    finalists = Finalists(ladder.drawn(), device, devices.describe(device)["multiprocessors"])
    held = _held(finalists, name)
    compile_all(finalists, [shape for shape in SHAPES if shape not in held])
    try:
        for choices in _choices(finalists, held):
            made = Tuning(
                device=name,
                multiprocessors=finalists.multiprocessors,
                torch=torch.__version__,
                command="make tune",
                clock=WARM.words,
                sources=ladder.hashes(finalists.rungs),
                choices=choices,
            )
            path = tuning.write(made)
    except torch.AcceleratorError as error:
        raise UserError(f"the device failed ({str(error).splitlines()[0]}): `make tune` goes on from here") from None
    if path is None:
        raise UserError(f"no kernel of {paths.shown(paths.kernels() / 'ladder.toml')} could be timed on {name}")
    return path


def _held(finalists: Finalists, name: str) -> dict[Shape, list[TileChoice]]:
    """The choices of the last tuning of this device, at shapes where no candidate changed since."""
    try:
        before = tuning.load(name)
    except UserError:
        return {}
    if before.torch != torch.__version__:
        return {}
    changed = {name for name, _ in ladder.hashes(finalists.rungs).items() - before.sources.items()}
    found = {shape: before.at.get(tuning.place(shape, finalists.multiprocessors), []) for shape in SHAPES}
    same = (shape for shape in SHAPES if changed.isdisjoint(rung.implementation for rung in finalists.able(shape)))
    return {shape: found[shape] for shape in same if found[shape]}


def _choices(finalists: Finalists, held: dict[Shape, list[TileChoice]]) -> Iterator[list[TileChoice]]:
    """The choices at all shapes so far: first those that still hold, then again after each tuned shape."""
    if held:
        say(f"no kernel changed since it was tuned at {len(held)} of {len(SHAPES)} shapes")
        yield [choice for choices in held.values() for choice in choices]
    for number, shape in enumerate(SHAPES, 1):
        if shape in held:
            continue
        said = "nothing serves it"
        try:
            held[shape] = finalists.fastest(shape)
        except torch.OutOfMemoryError:
            said = "the device's memory doesn't hold it"
        finally:
            devices.release(finalists.device)
        if fastest := held.get(shape):
            called = rungs.pinned(*fastest[0].instance(finalists.rungs)).name
            said = f"{called}, {fastest[0].latency_us:.4g} us"
        say(f"{number} of {len(SHAPES)}, {shape}: {said}")
        if fastest:
            yield [choice for one in SHAPES for choice in held.get(one, [])]


def _right(device: torch.device, subjects: list[Subject], gate: Gate) -> list[Subject]:
    """The tiles that pass the gate, without those that a few calls show to be far slower than the fastest."""
    rough_us: dict[str, float] = {}
    for subject in subjects:
        if subject.attempt(subject.case.call) is not None:  # compiling is not timed
            rough_us[subject.implementation.name] = cuda_events.least_us(subject.case, device, ROUGH_CALLS)
    right: list[Subject] = []
    most_us = math.inf
    for subject in sorted(alive(subjects), key=lambda one: rough_us[one.implementation.name]):
        if rough_us[subject.implementation.name] > most_us:
            break
        check = subject.attempt(partial(gate.examine, subject.case.call, repeats=subject.implementation.repeats))
        if check is not None and not check.passed:
            subject.drop(FAILED, check.reason)
        if subject.alive:
            right.append(subject)
            most_us = TOO_SLOW * rough_us[right[0].implementation.name]
    return right


def _slowest(shape: Shape, subjects: list[Subject], windows: Windows, device: torch.device) -> dict[str, float]:
    """The median latency of each tile by name, in µs, on the input distribution of `VALUES` where it is largest.

    In each round, all tiles take turns in random order.
    """
    order, found_us = random.SystemRandom(), dict.fromkeys([one.implementation.name for one in subjects], 0.0)
    for kind in VALUES:
        windows.draw(_seed(shape, f"timed, {kind}"), kind)
        samples_us: dict[str, list[float]] = {name: [] for name in found_us}
        with cuda_events.sampling(device, WARM) as sampler:
            for _ in range(ROUNDS):
                for one in order.sample(subjects, len(subjects)):
                    samples_us[one.implementation.name].append(sampler(one.case).latency_us)
        found_us = {name: max(slowest_us, median(samples_us[name])) for name, slowest_us in found_us.items()}
    return found_us


def _seed(shape: Shape, purpose: str) -> int:
    """A seed that no run has: runs make theirs from other words."""
    return zlib.crc32(f"tune {shape} {purpose}".encode())
