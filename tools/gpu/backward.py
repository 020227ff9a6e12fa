"""Check and time the backward pass next to SDPA's backends and flash-attn-4: minutes on an H200, and no run.

``PYTHONPATH=lib python3 tools/gpu/backward.py cases times`` runs these parts, without names all, each in a process that
ends after its seconds, and prints as it goes. `cases`, `values` and `repeats` hold O, dQ, dK and dV to the gate for
gradients, the last while copies keep the memory busy. A line begins with BAD where it fails.
`times` and `flash4` print µs and TFLOP/s of the backward pass alone (2.5 forward passes), and of both (3.5), as medians
of graph replays in turns. They print the SM clock meanwhile, too, and the cycles that a step of ours takes. `kernels`
prints the latency of each of our kernels.
"""

import argparse
import importlib
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnlab.compile import nvrtc
from attnlab.measuring.gate.gradients import check_gradients
from attnlab.measuring.instruments.telemetry import Telemetry
from attnlab.measuring.kernels import backward as ours
from attnlab.measuring.subjects.oracle import of_each_head
from attnlab.serving.training import attention
from attnlab.study.shapes import LAYOUTS, Shape
from attnlab.study.values import NORMAL, STANDARD

GPU = torch.device("cuda")
SECONDS = {"cases": 300, "values": 120, "repeats": 90, "kernels": 150, "times": 150, "flash4": 270}
"""Seconds after which each part is ended."""
TARGETS = (
    (4, 16, 4096, 128, "bfloat16", False),
    (4, 16, 4096, 128, "bfloat16", True),
    (1, 16, 16384, 128, "bfloat16", True),
    (8, 16, 2048, 64, "bfloat16", True),
    (32, 8, 512, 64, "float16", False),
    (32, 8, 512, 64, "float16", True),
)
ROUNDS, REPLAYS, CALLS = 12, 3, 4
"""Rounds in which graphs take turns, replays of a graph in each round, and calls in a graph."""
Call = Callable[[], Any]
WAITS = "wait_for_turn(problem.turns + tile, now.turn);"
_WITHOUT_TURNS: dict[Any, Any] = {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*SECONDS, []])
    parser.add_argument("--here", action="store_true", help="in this process, without an end")
    options = parser.parse_args()
    for name in options.parts or SECONDS:
        if options.here:
            print(torch.cuda.get_device_name(), name, flush=True)
            globals()[f"_{name}"]()
            continue
        try:
            command = [sys.executable, Path(__file__), name, "--here"]
            code = subprocess.run(command, timeout=SECONDS[name], check=False).returncode
            print(f"-- {name} ended with {code}", flush=True)
        except subprocess.TimeoutExpired:
            print(f"-- {name} did not end within {SECONDS[name]} s", flush=True)


# Errors --------------------------------------------------------------------------------------------------------------


def _cases() -> None:
    """Lengths around the edges of tiles, the smallest first; then 60 random lengths, groups, dtypes and layouts."""
    edges = ((1, 1), (63, 63), (64, 128), (65, 129), (128, 127), (300, 300), (1, 700), (700, 1), (2048, 2176))
    for queries, keys in edges:
        for head_dim in (64, 128):
            for causal in (False, True)[: 1 + (queries <= keys)]:
                _check(Shape(1, 2, queries, head_dim, causal, "bfloat16", kv_len=keys), [NORMAL], 7)
    drawn = random.Random(73)
    for number in range(60):
        kv_heads, group = drawn.choice((1, 2, 3)), drawn.choice((1, 1, 2, 4))
        causal, keys = drawn.random() < 0.5, round(2 ** drawn.uniform(0, 10.5))
        queries = drawn.choice(
            (keys, max(1, round(keys * drawn.random())) if causal else round(2 ** drawn.uniform(0, 10.5)))
        )
        shape = Shape(
            *(drawn.choice((1, 2, 3)), kv_heads * group, queries, drawn.choice((128, 128, 64)), causal),
            drawn.choice(ours.DTYPES),
            kv_heads=kv_heads,
            kv_len=keys,
            layout=drawn.choice(LAYOUTS),
        )
        _check(shape, [NORMAL], number)


def _values() -> None:
    """All input distributions of the studies, full and causal."""
    for dtype, causal, head_dim in (("bfloat16", True, 128), ("float16", False, 128), ("bfloat16", False, 64)):
        _check(Shape(2, 8, 1024, head_dim, causal, dtype), STANDARD, 3)


def _check(shape: Shape, kinds: Sequence[str], seed: int) -> bool:
    """Print a line for each input distribution; return whether all pass."""
    passed = True
    for kind in kinds:
        try:
            found = check_gradients(attention, shape, [kind], seed)
        except Exception as error:  # one failing case must not end the others
            print(f"BAD {shape} {kind}: {type(error).__name__}: {error}", flush=True)
            passed = False
            continue
        for check in found.values():
            said = f"{check.strain:.2f} of the allowed error, in {check.output}" if check.passed else check.reason
            print(f"{'' if check.passed else 'BAD '}{shape} {kind}: {said}", flush=True)
            passed &= check.passed
    return passed


def _repeats() -> None:
    """Compare the bits of repeated calls while another stream copies. Without turns, the bits must differ."""
    copied, side = torch.empty(2**28, dtype=torch.int8, device=GPU), torch.cuda.Stream()
    for batch, heads, kv_heads, length, head_dim in (
        *((1, 3, 3, 1000, 128), (4, 16, 16, 4096, 128), (2, 8, 2, 3000, 128), (8, 16, 16, 2048, 64)),
        (1, 2, 1, 9000, 64),
    ):
        for causal in (False, True):
            shape = Shape(batch, heads, length, head_dim, causal, "bfloat16", kv_heads=kv_heads)
            for seed in range(3):
                with torch.cuda.stream(side):
                    for _ in range(20):
                        copied.copy_(copied.clone())
                _check(shape, [NORMAL], seed)
    wrong = partial(_check, Shape(4, 16, 4096, 128, False, "bfloat16"), [NORMAL], 0)
    print("BAD: it passes" if _without_turns(ours.INSTANCES[128], wrong) else "which is as it has to be", flush=True)


def _forward(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """O and the log-sum-exp, by PyTorch's flash attention; for equal lengths of Q and K."""
    _, keys, vals = of_each_head(q, k, v)
    return torch.ops.aten._scaled_dot_product_flash_attention(q, keys, vals, 0.0, causal)[:2]


# Times ---------------------------------------------------------------------------------------------------------------


def _times() -> None:
    for target in TARGETS:
        q, k, v, dout, causal = _drawn(target)
        out, lse = _forward(q, k, v, causal)
        calls: dict[str, Call] = {"ours": lambda: ours.backward(q, k, v, out, lse, dout, causal)}  # noqa: B023
        both: dict[str, Call] = {
            "ours": lambda: ours.backward(q, k, v, *ours.forward(q, k, v, causal), dout, causal)  # noqa: B023
        }
        for name, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION)):

            def forward(backend: SDPBackend = backend) -> tuple[Tensor, list[Tensor]]:
                leaves: Any = [x.detach().requires_grad_() for x in (q, k, v)]  # noqa: B023
                with sdpa_kernel(backend), torch.enable_grad():
                    return F.scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], is_causal=causal), leaves  # noqa: B023

            calls[name], both[name] = _autograd(forward, dout)
        _show(target, calls, both)


def _flash4() -> None:
    flash_attn_func = importlib.import_module("flash_attn.cute").flash_attn_func

    for target in TARGETS:
        q, k, v, dout, causal = _drawn(target)
        out, lse = _forward(q, k, v, causal)
        outer = dout.transpose(1, 2)
        calls: dict[str, Call] = {"ours": lambda: ours.backward(q, k, v, out, lse, dout, causal)}  # noqa: B023
        both: dict[str, Call] = {}
        for name, deterministic in (("flash4", False), ("flash4 det.", True)):

            def forward(deterministic: bool = deterministic) -> tuple[Tensor, list[Tensor]]:
                leaves = [x.transpose(1, 2).detach().requires_grad_() for x in (q, k, v)]  # noqa: B023
                with torch.enable_grad():
                    output = flash_attn_func(*leaves, causal=causal, deterministic=deterministic)  # noqa: B023
                return (output[0] if isinstance(output, tuple) else output), leaves

            calls[name], both[name] = _autograd(forward, outer)
        _show(target, calls, both)


def _kernels() -> None:
    """Time our kernels: all; dQ rounded by a separate kernel; without turns; the kernels before and after alone."""
    launch = ours._launch
    for target in TARGETS:
        q, k, v, dout, causal = _drawn(target)
        out, lse = _forward(q, k, v, causal)

        def call() -> Any:
            return ours.backward(q, k, v, out, lse, dout, causal)  # noqa: B023

        apart = replace(ours.INSTANCES[target[3]], finishes=False)
        calls: dict[str, Call] = {
            "ours": call,
            "dQ rounded after": partial(_with_tiling, apart, call),
            "the same without turns": partial(_without_turns, apart, call),
            "before": partial(_alone, 0, call, launch),
            "after": partial(_with_tiling, apart, partial(_alone, 2, call, launch)),
        }
        _show(target, calls, {})


def _with_tiling(tiling: ours.Tiling, call: Call) -> Any:
    before = ours.INSTANCES[tiling.head_dim]
    ours.INSTANCES[tiling.head_dim] = tiling
    ours._PREPARED.clear()
    try:
        return call()
    finally:
        ours.INSTANCES[tiling.head_dim] = before
        ours._PREPARED.clear()


def _without_turns(tiling: ours.Tiling, call: Call) -> Any:
    """A call with additions to dQ in any order, for its latency only: its results may be wrong."""
    of_files, compiled = nvrtc.of_files, ours._COMPILED
    ours._COMPILED = _WITHOUT_TURNS
    nvrtc.of_files = lambda texts: of_files(texts).replace(WAITS, "")
    try:
        return _with_tiling(tiling, call)
    finally:
        nvrtc.of_files, ours._COMPILED = of_files, compiled


def _alone(number: int, call: Call, launch: Callable[..., None]) -> None:
    """Run only the kernel before the main one, or only the one after it."""
    numbers = iter(range(3))
    ours._launch = lambda *arguments: launch(*arguments) if next(numbers) == number else None
    try:
        call()
    finally:
        ours._launch = launch


def _drawn(target: tuple[Any, ...]) -> tuple[Tensor, Tensor, Tensor, Tensor, bool]:
    batch, heads, length, head_dim, dtype, causal = target
    q, k, v, dout = (
        torch.randn(batch, heads, length, head_dim, device=GPU).to(getattr(torch, dtype)) for _ in range(4)
    )
    return q, k, v, dout, causal


def _autograd(forward: Callable[[], tuple[Tensor, list[Tensor]]], dout: Tensor) -> tuple[Call, Call]:
    """The backward pass alone, and both passes, as calls."""
    kept: list[tuple[Tensor, list[Tensor]]] = []

    def alone() -> Any:
        if not kept:
            kept.append(forward())
        return torch.autograd.grad(*kept[0], dout, retain_graph=True)

    return alone, lambda: torch.autograd.grad(*forward(), dout)


def _show(target: tuple[Any, ...], calls: dict[str, Call], both: dict[str, Call]) -> None:
    batch, heads, length, head_dim, _, causal = target
    flop = 4 * batch * heads * length**2 * head_dim / (2 if causal else 1)
    for said, products, some in (("backward", 2.5, calls), ("both", 3.5, both)):
        if not some:
            continue
        took, clocks = _medians(some)
        mhz = statistics.median(clocks.values())
        told = [f"{name} {us:.1f} us {products * flop / us / 1e6:.0f}" for name, us in took.items()]
        if some is calls and "ours" in took:
            told.append(f"ours {took['ours'] * clocks['ours'] / _steps(target):.0f} cycles a step")
        print(f"{target} {said}, {mhz:.0f} MHz: {', '.join(told)}", flush=True)


def _steps(target: tuple[Any, ...]) -> float:
    """The mean number of steps of a CTA of our kernel."""
    batch, heads, length, head_dim, _, causal = target
    rows, ctas = ours.INSTANCES[head_dim].rows, torch.cuda.get_device_properties(GPU).multi_processor_count
    q = torch.empty(batch, heads, length, head_dim, device="meta")
    problem = ours.Gradients.of(q, q, causal, 1.0, rows, ctas)
    of_head = sum(problem.task_steps(member, causal, rows) for member in range(problem.tasks))
    return of_head * batch * heads / problem.grid(ctas)


def _medians(calls: dict[str, Call]) -> tuple[dict[str, float], dict[str, float]]:
    """The median µs of each call, by graphs in turns, and the median SM clock in MHz, read while its graphs run."""
    telemetry = Telemetry(GPU)
    clocks: dict[str, list[float]] = {name: [] for name in calls}
    graphs: dict[str, torch.cuda.CUDAGraph] = {}
    for name, call in calls.items():
        with _side_stream():
            try:
                for _ in range(2):
                    call()
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
                    for _ in range(CALLS):
                        call()
            except Exception as error:  # a peer that raises must not end the others
                print(f"  {name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
                torch.cuda.synchronize()
                continue
        graphs[name] = graph
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for number in range(ROUNDS + 1):
        for name in random.sample(list(graphs), len(graphs)):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(REPLAYS):
                graphs[name].replay()
            end.record()
            while not end.query():
                clocks[name].append(telemetry.read().sm_clock_mhz or 0)
            torch.cuda.synchronize()
            if number:
                times[name].append(1000 * begin.elapsed_time(end) / REPLAYS / CALLS)
    return {name: statistics.median(each) for name, each in times.items()}, {
        name: statistics.median(clocks[name] or [0]) for name in times
    }


_SIDE: list[torch.cuda.Stream] = []


@contextmanager
def _side_stream() -> Any:
    """One stream for all calls: PyTorch runs the backward pass on the stream of the forward pass, which is captured."""
    if not _SIDE:
        _SIDE.append(torch.cuda.Stream())
    _SIDE[0].wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(_SIDE[0]):
        yield
    torch.cuda.current_stream().wait_stream(_SIDE[0])


if __name__ == "__main__":
    main()
