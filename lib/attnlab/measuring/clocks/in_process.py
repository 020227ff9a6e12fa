"""The clocks of the panel that run in this process: ours, CUPTI through PyTorch's profiler, and Triton's."""

from collections.abc import Callable
from functools import partial

import torch

from attnlab.base import rules
from attnlab.measuring.clocks import cuda_events
from attnlab.measuring.clocks.traced import Piece, tracing
from attnlab.measuring.instruments import inspection
from attnlab.measuring.subjects import registry
from attnlab.measuring.subjects.case import Case
from attnlab.measuring.subjects.implementation import Unsupported, attempt
from attnlab.measuring.subjects.inputs import Windows
from attnlab.runs import methods
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing

# For the panel's cases: the longest call, and the number of calls of the warm-up.
LONGEST_MS = 100.0
WARMUP_CALLS = 20
# Calls that CUPTI traces in one sample: enough for a mean, few enough that its buffers never fill up.
TRACED_CALLS = 20
TRITON: dict[str, dict[str, int]] = {
    methods.TRITON_DO_BENCH: {"warmup": 5, "rep": 20},
    methods.TRITON_CUDAGRAPH: {"rep": 5},
}
"""The milliseconds for which Triton warms up and repeats: less than its defaults, since every round calls it."""
WARM, COLD = Timing(clock="device", cache="warm"), Timing(clock="device", cache="cold")
TIMINGS = (WARM, COLD, Timing(clock="eager", cache="warm"), Timing(clock="eager", cache="cold"))
OURS = {methods.EAGER: TIMINGS[2], methods.DEVICE: WARM, methods.DEVICE_COLD: COLD}
Taken = dict[str, float]
"""Latencies in µs by method: 1 sample, or 2 from the same trace."""


def prepared(implementation: str, shape: Shape, device: torch.device) -> Case:
    """A case that is warmed up.

    Raises:
        Unsupported: the implementation doesn't serve the shape on this device, or takes longer than `LONGEST_MS`.
        OutOfMemory: the device's memory doesn't hold the case.
        Broken: the implementation can't be called.
    """
    chosen = registry.find(implementation)
    windows = attempt(lambda: Windows(shape, device, cuda_events.most_calls(shape)))
    windows.draw(rules.SEED)
    case = attempt(lambda: Case.of(chosen, windows))
    attempt(case.refresh)
    with chosen.selected():
        attempt(case.call)
    call_ms = cuda_events.least_us(case, device, 1) / 1e3
    if call_ms > LONGEST_MS:
        raise Unsupported(f"one call takes {call_ms:.3g} ms, longer than the {LONGEST_MS:g} ms that the panel times")
    cuda_events.roughly_us(case, device, WARMUP_CALLS)
    return case


def graphed(implementation: str, shape: Shape, device: torch.device) -> Case:
    """A case that is warmed up and has its graphs; raises as `prepared` does."""
    case = prepared(implementation, shape, device)
    with case.selected():
        # As in a run: CUPTI has to be active before the capture of graphs that it traces later.
        inspection.kernels(case.call, device)
        attempt(lambda: cuda_events.capture(case, torch.cuda.graph_pool_handle()))
    return case


def methods_of(case: Case, device: torch.device) -> dict[str, Callable[[], Taken]]:
    """The methods that take turns, each as a function that takes a sample; a failure is recorded under its name."""
    again = partial(_sampled, methods.DEVICE_REPEATED, cuda_events.sampler(device, WARM), _repeated(case))
    return {
        **{name: partial(_sampled, name, cuda_events.sampler(device, timing), case) for name, timing in OURS.items()},
        methods.DEVICE_REPEATED: again,
        **{name: partial(take, case) for name, take in _THEIRS.items()},
    }


def _repeated(case: Case) -> Case:
    """A case whose calls all read the same values, as if the implementation were trusted not to cache results."""
    repeated = Case(case.call, case.selected)
    cuda_events.capture(repeated, torch.cuda.graph_pool_handle())
    return repeated


def _sampled(name: str, sampler: cuda_events.Sampler, case: Case) -> Taken:
    return {name: sampler(case).latency_us}


def _calls_traced(case: Case) -> Taken:
    assert case.many is not None
    calls = min(TRACED_CALLS, case.many.calls)
    with case.selected():
        traced = _traced(lambda: [case.call() for _ in range(calls)])
    return {methods.CUPTI: traced.kernels_us / calls}


def _graph_traced(case: Case) -> Taken:
    assert case.many is not None
    found = _traced(case.many.graph.replay)
    return {
        methods.CUPTI_GRAPH: found.kernels_us / case.many.calls,
        methods.CUPTI_SPAN: found.span_us / case.many.calls,
    }


def _traced(work: Callable[[], object]) -> Piece:
    """The times of `work` by CUPTI, after 1 untimed execution."""
    with tracing() as trace:
        work()
        trace.mark(work)
    return trace.pieces[0]


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
IN_TURN = (*OURS, methods.DEVICE_REPEATED, *_THEIRS)
"""The methods that take turns; ``cupti.span`` is read with ``cupti.graph``."""
