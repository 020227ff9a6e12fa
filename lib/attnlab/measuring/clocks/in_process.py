"""The clocks of the panel that run in this process: ours, CUPTI through PyTorch's profiler, and Triton's."""

from collections.abc import Callable
from functools import partial

import torch

from attnlab.measuring.clocks import cuda_events
from attnlab.measuring.clocks.traced import Piece, Trace
from attnlab.measuring.subjects.case import Case
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
    again = partial(_sampled, methods.DEVICE_REPEATED, cuda_events.sampler(device, WARM), _repeated(case))
    return {
        **{name: partial(_sampled, name, cuda_events.sampler(device, timing), case) for name, timing in OURS.items()},
        methods.DEVICE_REPEATED: again,
        **{name: partial(take, case) for name, take in _THEIRS.items()},
    }


def _repeated(case: Case) -> Case:
    """A case whose calls all read the same values: what the device clock would read of it if it trusted it."""
    repeated = Case(case.call, case.selected)
    cuda_events.capture(repeated, torch.cuda.graph_pool_handle())
    return repeated


def _sampled(name: str, sampler: cuda_events.Sampler, case: Case) -> Taken:
    return {name: sampler(case).latency_us}


def _calls_traced(case: Case) -> Taken:
    assert case.many is not None
    calls = min(TRACED_CALLS, case.many.calls)

    def called() -> None:
        with case.selected():
            for _ in range(calls):
                case.call()

    return {methods.CUPTI: _traced(called).kernels_us / calls}


def _graph_traced(case: Case) -> Taken:
    assert case.many is not None
    found = _traced(case.many.graph.replay)
    return {
        methods.CUPTI_GRAPH: found.kernels_us / case.many.calls,
        methods.CUPTI_SPAN: found.span_us / case.many.calls,
    }


def _traced(work: Callable[[], object]) -> Piece:
    """CUPTI's reading of `work`, which is done once untimed before."""
    with Trace() as trace:
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
