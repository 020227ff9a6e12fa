"""Measure the phases of a CTA of kernel.few by the clock of its multiprocessor: seconds a shape, and no run.

``PYTHONPATH=lib python3 tools/gpu/phases.py 1,32,8,8192,128/64/16 1,32,8,1024,128/64/16/1`` takes batch, heads,
kv_heads, keys, head_dim and numbers of queries, as `splits.py` does. It runs each tile of the ladder that serves them,
at the chosen split and the cheapest others, with K and V from memory. It prints the µs of a call, with and without time
stamps. It also prints when the first, the median and the last CTA of the last call reach each phase. These times are in
µs since the previous call released them. A stamp is a store of one thread.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import cupy
import numpy as np
import splits
import torch

from attnlab.compile import nvrtc
from attnlab.measuring.instruments import environment
from attnlab.measuring.instruments.telemetry import Telemetry
from attnlab.study import ladder
from attnlab.study.ladder import Rung

MOST_CTAS, OTHERS = 4096, 2
# The code before each phase's stamp, in the order of the source. Tiles of few rows use no wgmma, and skip some phases.
PHASES = {
    "begun": "const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;",
    "let go": "wait_for_previous();",
    "loads begun": "launch_next();  // once all CTAs run: what is launched waits by itself\n",
    "Q there": "publish_to_tma();\n        synchronize(1, THREADS);",
    "K there": "await(0);",
    "scores": "finish_products<0>(s);",
    "softmax": "exponentiate_lazily(0);\n            pack_probabilities();",
    "last product": "multiply_probabilities_by_values(at(2 * tiles - 1));\n            finish_products<0>(out);",
    "all warps": "synchronize(1, THREADS);  // all tiles are read by all, and their memory now holds results\n",
    "own results": "if (column == 0) parts[row * WIDTH + LOG] = log;\n        });\n    }\n",
    "whole cluster": "synchronize_cluster();",
    "merged": "else merge_results(Size<16>());",
    "ended": "leave_cluster();  // nobody ends whose memory is still read\n",
}
STAMPS = f"""
extern "C" __device__ unsigned long long phases[{MOST_CTAS}][{len(PHASES)}];
__device__ __forceinline__ void stamp(int phase) {{
    if (threadIdx.x > 0 || blockIdx.x >= {MOST_CTAS}) return;
    unsigned long long cycles;
    asm volatile("mov.u64 %0, %clock64;" : "=l"(cycles) : : "memory");
    phases[blockIdx.x][phase] = cycles;
}}
"""


def main(shapes: list[str]) -> None:
    environment.lock()
    print(torch.cuda.get_device_name(), flush=True)
    for stated in shapes:
        sizes, *queries = stated.split("/")
        for number in map(int, queries):
            _show(tuple(map(int, sizes.split(","))), number)


def _show(sizes: tuple[int, ...], queries: int) -> None:
    inputs, rows = splits.apart(sizes, queries), sizes[1] // sizes[2] * queries
    for tile in ladder.rung("kernel.few").tiles_for(sizes[4], sizes[3], True, rows):
        plain = splits.variant(tile)
        for split in splits.tried(*splits.asked(plain, inputs[0]))[: 1 + OTHERS]:
            with _stamped() as modules:
                stamped = splits.variant(tile)
                splits.us(stamped, inputs, split)
                _stamps(modules).fill(0)  # clears the stamps of other splits
                took = splits.us(plain, inputs, split), splits.us(stamped, inputs, split)
            print(f"{sizes} q={queries} {tile.name} {split}: {took[0]:.2f}, with stamps {took[1]:.2f}", flush=True)
            for phase, times in _times(_stamps(modules).get()).items():
                print(f"{phase:>18} " + " ".join(f"{x:6.2f}" for x in np.quantile(times, (0, 0.5, 1))), flush=True)


@contextmanager
def _stamped() -> Iterator[list[Any]]:
    """A context that compiles kernels with stamps and appends them to the list."""
    modules: list[Any] = []
    own, program = cupy.RawModule, nvrtc.program

    def kept(**options: Any) -> Any:
        modules.append(own(**options))
        return modules[-1]

    with ExitStack() as stack:
        stack.enter_context(patch.object(cupy, "RawModule", kept))
        stack.enter_context(patch.object(nvrtc, "program", lambda rung: with_stamps(program(rung), rung)))
        yield modules


def with_stamps(source: str, rung: Rung) -> str:
    """The source with a stamp at each phase."""
    place = source.index(f"{rung.function}(const T* q")
    for number, before in enumerate(PHASES.values()):
        place = source.index(before, place) + len(before)
        source = f"{source[:place]} stamp({number});{source[place:]}"
    return source.replace('#include "jobs.cuh"', f'#include "jobs.cuh"{STAMPS}', 1)


def _stamps(modules: list[Any]) -> Any:
    return cupy.ndarray((MOST_CTAS, len(PHASES)), cupy.uint64, modules[-1].get_global("phases"))


def _times(cycles: np.ndarray) -> dict[str, np.ndarray]:
    """The times in µs at which CTAs of the last call reached each phase, since the release of each CTA."""
    mhz = Telemetry(torch.device("cuda", 0)).read().sm_clock_mhz
    assert mhz, "the clock of multiprocessors is not known without NVML"
    since = (cycles.astype(float) - cycles[:, [list(PHASES).index("let go")]]) / mhz
    reached = {phase: cycles[:, number] > 0 for number, phase in enumerate(PHASES)}
    return {phase: since[ctas, number] for number, (phase, ctas) in enumerate(reached.items()) if ctas.any()}


if __name__ == "__main__":
    main(sys.argv[1:])
