"""Time calls between other kernels, as in a model, where the caches don't hold what the call before left: a minute.

``python tools/gpu/between.py kernel.few,sdpa.flash,sdpa.cudnn 4,32,1,64,8,520`` prints, for each implementation, the µs
of a call in a row and after kernels that evict instructions, data, or both: the difference of two graphs, one with the
calls and one without. Shapes are as `trial.py` has them. With ``--late`` kernels that split keys wait until what is
before them has ended, as others do.
"""

import argparse
import random
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median
from unittest.mock import patch

import cupy
import torch
from splits import late
from trial import shape_of

from attnlab.measure.clocks import cuda_events
from attnlab.measure.instruments import devices
from attnlab.measure.subjects import launch, registry
from attnlab.measure.subjects.implementation import Broken, Unsupported
from attnlab.measure.subjects.inputs import Windows

DEVICE = torch.device("cuda")
INSTRUCTIONS = 16384
"""Of 16 bytes each: twice what a multiprocessor's caches hold."""
CALLS, REPLAYS = 16, 15
Work = Callable[[], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", help="implementations, separated by commas")
    parser.add_argument("shapes", nargs="+")
    parser.add_argument("--late", action="store_true")
    options = parser.parse_args()
    code, data = _code(), _data()
    between = {"in a row": [], "instructions": [code], "data": [data], "both": [data, code]}
    print(f"{torch.cuda.get_device_name()}\n{'':>40}" + "".join(f"{words:>14}" for words in between), flush=True)
    with ExitStack() as stack:
        if options.late:
            stack.enter_context(patch.object(launch, "early", late))
        for stated in options.shapes:
            shape = shape_of(stated, "normal")
            windows = Windows(shape, DEVICE)
            windows.draw(0)
            for name in options.names.split(","):
                call = registry.find(name).bound(windows[0], shape)
                try:
                    took = [f"{_us(call, others):14.2f}" for others in between.values()]
                except (Unsupported, Broken) as error:
                    took = [f"  {error}"]
                print(f"{stated:>24} {name:>15}{''.join(took)}", flush=True)


def _code() -> Work:
    """A kernel that runs more instructions than caches hold, from top to bottom, on every multiprocessor."""
    steps = "".join(f"x = x * {1 + number / 2**22:.9f}f + {number}.0f;" for number in range(INSTRUCTIONS // 2))
    source = f'extern "C" __global__ void code(float* at) {{ float x = *at; {steps} if (x == 1) *at = x; }}'
    kernel = cupy.RawModule(code=source, options=("-std=c++17",)).get_function("code")
    at = torch.zeros(1, device=DEVICE)
    ctas = devices.describe(DEVICE)["multiprocessors"]

    def run() -> None:
        with cupy.cuda.Stream.from_external(torch.cuda.current_stream()):
            kernel((ctas,), (32,), (cupy.uint64(at.data_ptr()),))

    return run


def _data() -> Work:
    """A kernel that goes through more memory than the L2 holds, as the weights of a layer."""
    memory = torch.zeros(2 * devices.last_level_cache_bytes(DEVICE), dtype=torch.int8, device=DEVICE)
    return lambda: memory.add_(1)


def _us(call: Work, others: list[Work]) -> float:
    """The time of a call that each of the others runs before, in µs."""
    graphs = [_graph([*others, call]), *([_graph(others)] if others else [])]
    taken: list[list[float]] = [[] for _ in graphs]
    for _ in range(REPLAYS):
        for number in random.sample(range(len(graphs)), len(graphs)):
            taken[number].append(cuda_events.timed_us(DEVICE, graphs[number].replay))
    with_it, *without = map(median, taken)
    return (with_it - sum(without)) / CALLS


def _graph(works: list[Work]) -> torch.cuda.CUDAGraph:
    for work in works:
        work()  # what is done at first calls only can't be captured
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with devices.no_garbage_collected(), torch.cuda.graph(graph):
        for _ in range(CALLS):
            for work in works:
                work()
    graph.replay()
    return graph


if __name__ == "__main__":
    main()
