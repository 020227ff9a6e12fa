"""A canary: a kernel that replaces the timed call, and finds out which cache lines the L2 holds when timing begins.

It reads lines of Q, K and V that were chosen beforehand, one after the other, and times each of them. The times of a
hit and of a miss are measured first, on lines that are certain to hit or to miss.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from attnlab.measuring.clocks import cuda_events
from attnlab.measuring.instruments import devices
from attnlab.measuring.subjects.case import Case, Replay
from attnlab.study.studies import Timing

LOADS = 1024
LINE_BYTES = 128
# How many times the size of the L2 is written before a line is read that must have left it.
SWEEP = 8


@dataclass(frozen=True)
class Sighting:
    """The canary's reading of one tensor: the cycles of each line, and those of a certain hit and a certain miss."""

    cycles: np.ndarray
    hit_cycles: float
    miss_cycles: float

    @property
    def hits_pct(self) -> float:
        """The percentage of lines whose time was nearer to that of a hit than to that of a miss."""
        return 100 * float(np.mean(self.cycles < (self.hit_cycles + self.miss_cycles) / 2))


class Canary:
    """Reads lines of tensors. Raises ImportError without CuPy."""

    def __init__(self, device: torch.device) -> None:
        import cupy

        self._device = device
        source = Path(__file__).with_suffix(".cu").read_text()
        self._kernel = cupy.RawModule(code=source, options=("-std=c++17",)).get_function("canary")
        self._random = np.random.default_rng(0)
        l2_bytes = devices.last_level_cache_bytes(device)
        small = torch.ones(l2_bytes // 32, dtype=torch.int8, device=device)
        large = torch.empty(SWEEP * l2_bytes, dtype=torch.int8, device=device)
        (read, hits), (read_front, misses) = self._prepared([small]), self._prepared([large[: l2_bytes // 32]])
        read()
        read()
        # Written from front to back, so that everything else is written after the part that is read.
        for part in large.chunk(SWEEP):
            part.fill_(1)
        read_front()
        self.hit_cycles, self.miss_cycles = (float(np.median(cycles.cpu().numpy())) for cycles in (hits, misses))

    def look(self, case: Case, timing: Timing, sets: list[torch.Tensor]) -> list[Sighting]:
        """Take one sample of a case with the clock's own sampler, reading lines of `sets` instead of the timed call."""
        read, cycles = self._prepared(sets)
        cuda_events.sampler(self._device, timing)(in_place_of_timed(case, timing, read))
        return [Sighting(row, self.hit_cycles, self.miss_cycles) for row in cycles.cpu().numpy()]

    def _prepared(self, sets: list[torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        """A launch that reads lines of each tensor, and the tensor to which it writes the cycles of each read."""
        import cupy

        where = torch.from_numpy(np.stack([self._lines(held.nbytes) for held in sets])).to(self._device)
        addresses = torch.tensor([held.data_ptr() for held in sets], dtype=torch.int64, device=self._device)
        cycles = torch.zeros(where.shape, dtype=torch.int32, device=self._device)

        def read() -> None:  # it keeps the tensors alive whose addresses it passes
            lines, chosen, taken = (np.uint64(tensor.data_ptr()) for tensor in (addresses, where, cycles))
            arguments = (lines, chosen, np.int32(LOADS), taken)
            with cupy.cuda.Stream.from_external(torch.cuda.current_stream()):
                self._kernel((len(sets),), (1,), arguments, shared_mem=4 * LOADS + 4)

        return read, cycles

    def _lines(self, nbytes: int) -> np.ndarray:
        # A random line from each of as many equal stretches: neighbouring lines could be fetched from memory together.
        lines = nbytes // LINE_BYTES
        stretch = max(1, lines // LOADS)
        picks = np.arange(LOADS) * stretch + self._random.integers(0, stretch, LOADS)
        return self._random.permutation(picks % max(1, lines)).astype(np.int32)


def in_place_of_timed(case: Case, timing: Timing, work: Callable[[], Any]) -> Case:
    """A copy of `case` whose timed call is replaced by `work`; its untimed preparation stays the same."""
    untimed: list[Callable[[], Any]] = []
    if timing.cache == "warm":
        untimed = [case.call if timing.clock == "eager" or case.many is None else case.many.graph.replay]
    works = cycle([*untimed, work])  # first the untimed call of a sampler, then the timed one

    def turn() -> Any:
        return next(works)()

    graph: Any = SimpleNamespace(replay=turn)
    replay = Replay(graph, 1, torch.empty(0))
    return replace(case, call=turn, one=replay, many=replay)
