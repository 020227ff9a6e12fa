"""The clocks of the panel that run in this process: ours, CUPTI through PyTorch's profiler, and Triton's."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from attnlab.measure.clocks import ours
from attnlab.measure.instruments import inspection
from attnlab.measure.subjects.case import Case
from attnlab.runs import methods
from attnlab.study.studies import Timing

# Calls that CUPTI traces in one sample: enough for a mean, few enough that its buffers never fill up.
TRACED_CALLS = 20
TRITON: dict[str, dict[str, int]] = {
    methods.TRITON_DO_BENCH: {"warmup": 5, "rep": 20},
    methods.TRITON_CUDAGRAPH: {"rep": 5},
}
"""How many milliseconds Triton warms up and repeats: less than its defaults, since it is asked in every round."""
WARM, COLD = Timing(clock="device", cache="warm"), Timing(clock="device", cache="cold")
TIMINGS = (WARM, COLD, Timing(clock="eager", cache="warm"), Timing(clock="eager", cache="cold"))
OURS = {methods.EAGER: TIMINGS[2], methods.DEVICE: WARM, methods.DEVICE_COLD: COLD}
Taken = dict[str, float]
"""Latencies in µs by method: one sample, or two that are read from the same trace."""


def methods_of(case: Case, device: torch.device) -> dict[str, Callable[[], Taken]]:
    """The methods that take turns, each as a function that takes a sample; a failure is recorded under its name."""
    taking: dict[str, Callable[[], Taken]] = {}
    for name, timing in OURS.items():
        taking[name] = partial(_sampled, name, ours.sampler(device, timing), case)
    for name, take in _THEIRS.items():
        taking[name] = partial(take, case)
    return taking


def _sampled(name: str, sampler: Callable[[Case], tuple[float, int]], case: Case) -> Taken:
    return {name: sampler(case)[0]}


def _calls_traced(case: Case) -> Taken:
    assert case.many is not None
    calls = min(TRACED_CALLS, case.many.calls)
    return {methods.CUPTI: _traced(partial(_call, case, calls))[0] / calls}


def _call(case: Case, calls: int) -> None:
    with case.selected():
        for _ in range(calls):
            case.call()


def _graph_traced(case: Case) -> Taken:
    assert case.many is not None
    kernels_us, span_us = _traced(case.many.graph.replay)
    return {methods.CUPTI_GRAPH: kernels_us / case.many.calls, methods.CUPTI_SPAN: span_us / case.many.calls}


def _traced(work: Callable[[], object]) -> tuple[float, float]:
    """What CUPTI says of `work`, done once untimed before: the sum of its kernels' durations, and their span, in µs."""
    with inspection.quiet(), profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
        work()
        torch.cuda.synchronize()
    events = [e for e in profiler.profiler.kineto_results.events() if _ran_on_device(e)]
    if not events or len(events) % 2:
        raise RuntimeError(f"CUPTI showed {len(events)} kernels for two equal pieces of work")
    timed = sorted(events, key=lambda event: event.start_ns())[len(events) // 2 :]
    start, end = timed[0].start_ns(), max(event.end_ns() for event in timed)
    return sum(event.duration_ns() for event in timed) / 1e3, (end - start) / 1e3


def _ran_on_device(event: Any) -> bool:
    # The profiler also lists the host's own waiting.
    return event.device_type().name == "CUDA" and "ynchronize" not in event.name()


def _triton(method: str, case: Case) -> Taken:
    from triton import testing

    bench = testing.do_bench if method == methods.TRITON_DO_BENCH else testing.do_bench_cudagraph
    with case.selected():
        return {method: 1e3 * float(bench(case.call, **TRITON[method], return_mode="median"))}


_THEIRS: dict[str, Callable[[Case], Taken]] = {
    methods.CUPTI: _calls_traced,
    methods.CUPTI_GRAPH: _graph_traced,
    **{method: partial(_triton, method) for method in TRITON},
}
IN_TURN = (*OURS, *_THEIRS)
"""The methods that take turns; ``cupti.span`` is read with ``cupti.graph``."""
