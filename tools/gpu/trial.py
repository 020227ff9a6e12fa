"""Time kernels that are being written, on every kind of values, beside SDPA's backends and peers: minutes, and no run.

``ATTNLAB_KERNELS=<folder> python tools/gpu/trial.py lazy,mine sdpa.cudnn,peer.flash4 32,8,512,64 32,8,2048,64c`` times
rungs of that folder. A shape is batch,heads,seq_len,head_dim, followed by `c` for causal and `b` for bf16. Graphs take
turns in random order; the median in µs is printed, and below it the mean and the largest error against
float64, over those of the first implementation that isn't one of the rungs.
"""

import argparse
import random
from statistics import median

import torch

from attnlab.measure.clocks import cuda_events
from attnlab.measure.clocks.in_process import WARM
from attnlab.measure.subjects import registry
from attnlab.measure.subjects.case import Case
from attnlab.measure.subjects.implementation import Broken, Unsupported
from attnlab.measure.subjects.inputs import Windows
from attnlab.measure.subjects.oracle import float64
from attnlab.study import values
from attnlab.study.ladder import PREFIX
from attnlab.study.shapes import Shape

DEVICE = torch.device("cuda")
COMPARED_HEADS = 4
"""Heads of the first sequence, over which errors are taken."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rungs", help="names of rungs, separated by commas")
    parser.add_argument("others", help="implementations beside them")
    parser.add_argument("shapes", nargs="+")
    parser.add_argument("--values", default=",".join(values.STANDARD), help="kinds, separated by commas")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    others = options.others.split(",")
    names = [*others, *(PREFIX + name for name in options.rungs.split(","))]
    print(torch.cuda.get_device_name())
    for stated in options.shapes:
        print(f"{stated:>28}  " + " ".join(f"{name:>14}" for name in names))
        for kind in options.values.split(","):
            _time(_shape(stated, kind), names, others[0], options.rounds)


def _shape(stated: str, kind: str) -> Shape:
    sizes = [int(size) for size in stated.rstrip("cb").split(",")]
    ending = stated[len(stated.rstrip("cb")) :]
    return Shape(*sizes, causal="c" in ending, dtype="bfloat16" if "b" in ending else "float16", values=kind)


def _time(shape: Shape, names: list[str], first: str, rounds: int) -> None:
    """Print a line of medians and a line of errors at a shape; a dash for what doesn't serve it."""
    try:
        windows = Windows(shape, DEVICE, cuda_events.most_calls(shape))
    except Unsupported as error:
        print(f"{shape.values:>28}  {error}")
        return
    windows.draw(0)
    cases: dict[str, Case] = {}
    errors: dict[str, tuple[float, float]] = {}
    exact = float64(*(tensor[:1, :COMPARED_HEADS].double() for tensor in windows[0]), shape.causal)
    for name in names:
        case = Case.of(registry.find(name), windows, shape)
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
            windows.draw(number)
            for name in random.sample(list(cases), len(cases)):
                latencies[name].append(sampler(cases[name]).latency_us)
    mean, largest = errors[first]
    took = [f"{median(latencies[name]):14.2f}" if name in cases else f"{'-':>14}" for name in names]
    erred = [f"{errors[n][0] / mean:8.2f},{errors[n][1] / largest:5.2f}" if n in errors and mean else "" for n in names]
    print(f"{shape.values:>28}  {' '.join(took)}\n{'':>30}{' '.join(f'{words:>14}' for words in erred)}", flush=True)


if __name__ == "__main__":
    main()
