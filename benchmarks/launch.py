"""Prints the host time of a call and of its parts, in back-to-back calls at a tiny shape, on an NVIDIA GPU.

    python benchmarks/launch.py          # PYTHONPATH=lib

Each value is the median over rounds in which all parts take turns. A round makes a number of calls without waiting for
the device; the program waits between rounds.
"""

import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

import attnlab
from attnlab.measuring.kernels import best
from attnlab.measuring.kernels.launch import layout
from attnlab.measuring.subjects import inputs
from attnlab.measuring.subjects.implementation import Unsupported
from attnlab.serving import calls
from attnlab.study.shapes import Shape

TINY = Shape(1, 1, 64, 64)
CALLS, ROUNDS = 200, 101
SDPA, KERNELS = "sdpa.auto", ("kernel.overlap", "kernel.best")
# Goals for attend and for the operator when they call this implementation: at most these multiples of SDPA's time.
GOALS = {SDPA: (1.10, 1.25)} | dict.fromkeys(KERNELS, (0.75, 0.95))
Part = tuple[Callable[[], object], str, float | None]
"""A call, the implementation that `attend` chooses in it, and the goal as a multiple of SDPA's time, if it has one."""


def main() -> None:
    """Print a table: host time in µs for a call of each part, its ratio to SDPA's, and the goal for this ratio."""
    if not torch.cuda.is_available():
        sys.exit("attnlab: what a launch costs is measured on an NVIDIA GPU, and torch sees none here")
    timed = parts()
    found = host_us(timed)
    whole = found["F.scaled_dot_product_attention"]
    for name, cost_us in found.items():
        goal = timed[name][2]
        print(f"{name:<48} {cost_us:>7.2f} us {cost_us / whole:>6.2f}x" + (f", goal {goal:.2f}x" if goal else ""))


def parts() -> dict[str, Part]:
    """The timed parts by name, without kernels that don't serve this device."""
    q, k, v = inputs.draw(TINY, 0, torch.device("cuda"))
    index = q.get_device()
    alone: dict[str, Callable[[], object]] = {
        "F.scaled_dot_product_attention": lambda: F.scaled_dot_product_attention(q, k, v),
        "memory for the output": lambda: torch.empty_like(q),
        "torch's current stream": lambda: torch._C._cuda_getCurrentRawStream(index),
        "the layout of the inputs": lambda: layout(q, k, v, False, None),
    }
    for name in KERNELS:
        call = best.implementation(name).call
        try:
            call(q, k, v, False)
        except Unsupported as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
            continue
        alone[name] = lambda call=call: call(q, k, v, False)  # type: ignore[misc]
    found: dict[str, Part] = {name: (call, SDPA, None) for name, call in alone.items()}
    for name in (SDPA, *KERNELS):
        if name == SDPA or name in alone:
            called = "SDPA" if name == SDPA else name
            by_attend, by_operator = GOALS[name]
            found[f"attend, which calls {called}"] = (lambda: attnlab.attend(q, k, v), name, by_attend)
            operator = lambda: torch.ops.attnlab.attention(q, k, v)  # noqa: E731
            found[f"the operator, which calls {called}"] = (operator, name, by_operator)
    return found


def host_us(timed: dict[str, Part]) -> dict[str, float]:
    """The median host time in µs for a call of each part."""
    calls.use()
    q, k, v = inputs.draw(TINY, 0, torch.device("cuda"))
    words = calls.layout_words(q, k, v, False, None)
    took: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(ROUNDS):
        for name, (call, chosen, _) in timed.items():
            calls.settle(words, chosen)
            call()
            torch.cuda.synchronize()
            begin = time.perf_counter_ns()
            for _ in range(CALLS):
                call()
            took[name].append((time.perf_counter_ns() - begin) / CALLS / 1000)
    return {name: statistics.median(values) for name, values in took.items()}


if __name__ == "__main__":
    main()
