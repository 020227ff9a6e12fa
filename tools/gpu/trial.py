"""Time kernels that are being written, on every input distribution, with SDPA's backends and peers: minutes, no run.

``ATTNLAB_KERNELS=<folder> python tools/gpu/trial.py lazy,mine sdpa.cudnn,peer.flash4 32,8,512,64 32,8,2048,64c`` times
kernels of that folder. A shape is batch,heads,seq_len,head_dim, or these and kv_heads,kv_len, then `c` for causal and
`b` for bf16. Graphs take turns in random order. A line has medians in µs. The line below has the mean and the largest
error against float64, over those of the first implementation that isn't in the folder. With ``--apart``, tensors that
are together larger than the L2 take turns, so that K and V come from memory; their TB/s are printed too.
"""

import argparse
import math
import random
from statistics import median

import torch

from attnlab.measuring.clocks import cuda_events
from attnlab.measuring.clocks.in_process import WARM
from attnlab.measuring.subjects import registry
from attnlab.measuring.subjects.case import Call, Case
from attnlab.measuring.subjects.implementation import Broken, Unsupported
from attnlab.measuring.subjects.inputs import Windows
from attnlab.measuring.subjects.oracle import float64, of_each_head
from attnlab.study import values
from attnlab.study.ladder import PREFIX
from attnlab.study.shapes import Shape

DEVICE = torch.device("cuda")
COMPARED_HEADS = 4
"""Heads of the first sequence over which errors are taken."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rungs", help="names of rungs, separated by commas")
    parser.add_argument("others", help="implementations beside them")
    parser.add_argument("shapes", nargs="+")
    parser.add_argument("--values", default=",".join(values.STANDARD), help="kinds, separated by commas")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--apart", action="store_true", help="K and V from memory")
    options = parser.parse_args()
    others = options.others.split(",")
    names = [*others, *(PREFIX + name for name in options.rungs.split(","))]
    print(torch.cuda.get_device_name())
    for stated in options.shapes:
        print(f"{stated:>28}  " + " ".join(f"{name:>14}" for name in names))
        for kind in options.values.split(","):
            _time(shape_of(stated, kind), names, others[0], options.rounds, options.apart)


def shape_of(stated: str, kind: str) -> Shape:
    batch, heads, seq_len, head_dim, *more = (int(size) for size in stated.rstrip("cb").split(","))
    ending = stated[len(stated.rstrip("cb")) :]
    kv_heads, kv_len = more or (0, 0)
    dtype = "bfloat16" if "b" in ending else "float16"
    causal = "c" in ending
    return Shape(batch, heads, seq_len, head_dim, causal, dtype, kv_heads=kv_heads, kv_len=kv_len, values=kind)


def _case(name: str, all_windows: list[Windows], shape: Shape) -> Case:
    """A case on one set of inputs, or on several: each call of a graph reads the next set."""
    implementation = registry.find(name)
    if len(all_windows) == 1:
        return Case.of(implementation, all_windows[0])

    def on(call: int) -> Call:
        return implementation.bound(all_windows[call % len(all_windows)][0], shape)

    return Case(on(0), implementation.selected, on=on)


def _time(shape: Shape, names: list[str], first: str, rounds: int, apart: bool) -> None:
    """Print a line of medians and a line of errors at a shape; a dash for implementations that don't serve it."""
    kv_bytes = 2 * shape.key_elements * 2
    l2_bytes = torch.cuda.get_device_properties(DEVICE).L2_cache_size
    memories = 1 + math.ceil(2 * l2_bytes / kv_bytes) if apart else 1
    try:
        all_windows = [Windows(shape, DEVICE, 1 if apart else cuda_events.most_calls(shape)) for _ in range(memories)]
    except Unsupported as error:
        print(f"{shape.values:>28}  {error}")
        return
    windows = all_windows[0]
    for number, memory in enumerate(all_windows):
        memory.draw(number)
    cases: dict[str, Case] = {}
    errors: dict[str, tuple[float, float]] = {}
    q, k, v = (tensor[:1, :COMPARED_HEADS].double() for tensor in of_each_head(*windows[0]))
    exact = float64(q, k, v, shape.causal)
    for name in names:
        case = _case(name, all_windows, shape)
        try:
            with case.selected():
                output = case.call()
            cuda_events.capture(case, torch.cuda.graph_pool_handle())
        except (Unsupported, Broken) as error:
            print(f"  {name}: {error}")
            continue
        distance = (output[:1, :COMPARED_HEADS].double() - exact).abs()  # type: ignore[call-overload]
        cases[name], errors[name] = case, (distance.mean().item(), distance.max().item())
    latencies: dict[str, list[float]] = {name: [] for name in cases}
    with cuda_events.sampling(DEVICE, WARM) as sampler:
        for number in range(rounds):
            if not apart:
                windows.draw(number)
            for name in random.sample(list(cases), len(cases)):
                latencies[name].append(sampler(cases[name]).latency_us)
    mean, largest = errors.get(first, (0.0, 0.0))
    took = [f"{median(latencies[name]):14.2f}" if name in cases else f"{'-':>14}" for name in names]
    erred = [f"{errors[n][0] / mean:8.2f},{errors[n][1] / largest:5.2f}" if n in errors and mean else "" for n in names]
    if apart:
        rates = {name: kv_bytes / median(taken_us) / 1e6 for name, taken_us in latencies.items()}
        took = [f"{words} {rates.get(name, 0):.2f} TB/s" for words, name in zip(took, names, strict=True)]
    print(f"{shape.values:>28}  {' '.join(took)}\n{'':>30}{' '.join(f'{words:>14}' for words in erred)}", flush=True)


if __name__ == "__main__":
    main()
