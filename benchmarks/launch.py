"""Prints what a call costs the host, part by part, calls back to back at a tiny shape, on an NVIDIA GPU.

    python benchmarks/launch.py          # PYTHONPATH=lib; also the last part of `make bench`

Each part is the median over rounds in which all parts take turns; a round is so many calls without waiting for the
device, which is waited for between rounds.
"""

import statistics
import sys
import time
from collections.abc import Callable, Hashable

import torch
import torch.nn.functional as F

import attnlab
from attnlab.measure.subjects import attend, best, inputs
from attnlab.measure.subjects.implementation import Unsupported
from attnlab.measure.subjects.launch import layout
from attnlab.study.shapes import Shape

TINY = Shape(1, 1, 64, 64)
CALLS, ROUNDS = 200, 101


def main() -> None:
    """Print a table: microseconds for a call of each part, and its share of SDPA's."""
    if not torch.cuda.is_available():
        sys.exit("attnlab: what a launch costs is measured on an NVIDIA GPU, and torch sees none here")
    found = host_us(parts())
    whole = found["F.scaled_dot_product_attention"]
    for name, cost_us in found.items():
        print(f"{name:<48} {cost_us:>7.2f} us {cost_us / whole:>6.2f}x")


def parts() -> dict[str, Callable[[], object]]:
    """What is timed, by name; kernels that this device doesn't serve are left out."""
    q, k, v = inputs.draw(TINY, 0, torch.device("cuda"))
    index = q.get_device()
    found: dict[str, Callable[[], object]] = {
        "F.scaled_dot_product_attention": lambda: F.scaled_dot_product_attention(q, k, v),
        "memory for the output": lambda: torch.empty_like(q),
        "torch's current stream": lambda: torch._C._cuda_getCurrentRawStream(index),
        "the layout of the inputs": lambda: layout(q, k, v, False, None),
        "attend, which calls SDPA": by_choice("sdpa.auto", lambda: attnlab.attend(q, k, v)),
        "the operator, which calls SDPA": by_choice("sdpa.auto", lambda: torch.ops.attnlab.attention(q, k, v)),
    }
    for name in ("kernel.overlap", "kernel.best"):
        call = best.implementation(name).call
        try:
            call(q, k, v, False)
        except Unsupported as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
            continue
        found[name] = lambda call=call: call(q, k, v, False)  # type: ignore[misc]
        found |= {
            f"attend, which calls {name}": by_choice(name, lambda: attnlab.attend(q, k, v)),
            f"the operator, which calls {name}": by_choice(name, lambda: torch.ops.attnlab.attention(q, k, v)),
        }
    return found


def by_choice(name: str, call: Callable[[], object]) -> Callable[[], object]:
    """A call for which `attend` chooses this implementation."""
    q, k, v = inputs.draw(TINY, 0, torch.device("cuda"))
    tuned = {attend.layout_words(q, k, v, False, None): name}
    prepared: dict[Hashable, attend._Ready] = {}

    def timed() -> object:
        if attend._prepared is not prepared:
            attend._looked, attend._table, attend._tuned = True, None, tuned
            attend._prepared, attend._last = prepared, attend._NOTHING
        return call()

    return timed


def host_us(timed: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The median host time of a call of each, in microseconds."""
    took: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(ROUNDS):
        for name, call in timed.items():
            torch.cuda.synchronize()
            begin = time.perf_counter_ns()
            for _ in range(CALLS):
                call()
            took[name].append((time.perf_counter_ns() - begin) / CALLS / 1000)
    return {name: statistics.median(values) for name, values in took.items()}


if __name__ == "__main__":
    main()
