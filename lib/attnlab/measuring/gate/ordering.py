"""Reveal work that the current stream does not order: by a call before its inputs are written, and by a capture."""

from contextlib import suppress
from functools import cache
from typing import Any

import torch
from torch import Tensor

from attnlab.measuring.instruments import devices
from attnlab.measuring.subjects.case import Call, Output, Replay

# Cycles for which the stream is held before it writes the inputs, from 2 ms at 2 GHz: tried until the call returns
# earlier. A call that waits for the device outlasts all of them, but has then also waited for its inputs.
HOLDS = (2**22, 2**25, 2**28)


class NotCaptured(Exception):
    """A call can't be captured in a graph: it does something that the current stream does not order."""


def before_inputs(call: Call, inputs: tuple[Tensor, ...], values: tuple[Tensor, ...]) -> Output:
    """The output of `call`, made while `inputs` are NaN and the current stream has not yet copied `values` there.

    Work that the current stream orders sees the values; work on any other stream that doesn't wait for it sees NaN.
    """
    if inputs[0].device.type != "cuda":
        return call()
    arrived = torch.cuda.Event()
    for cycles in HOLDS:
        for held in inputs:
            held.fill_(torch.nan)
        torch.cuda.synchronize()
        torch.cuda._sleep(cycles)
        for held, value in zip(inputs, values, strict=True):
            held.copy_(value)
        arrived.record()
        output = call()
        if not arrived.query():
            break
    return output


def captured(call: Call) -> Replay:
    """One call as a graph with its own memory pool. The call must have been made at least once before.

    Raises:
        NotCaptured: CUDA refused; the message is its reason. torch remains usable.
    """
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    torch.cuda.empty_cache()  # no memory can be freed during a capture
    torch.cuda.synchronize()
    try:
        with devices.no_garbage_collected(), torch.cuda.stream(_capturing()):
            graph.capture_begin(pool)
            try:
                output = call()
            finally:
                graph.capture_end()
    except torch.AcceleratorError as error:
        _give_up(graph, pool)
        if error.__context__ is not None and not isinstance(error.__context__, torch.AcceleratorError):
            raise error.__context__ from None  # the call's own error
        raise NotCaptured(str(error.__context__ or error).splitlines()[0]) from None
    return Replay(graph, 1, output)


@cache
def _capturing() -> torch.cuda.Stream:
    # Its high priority makes it differ from all streams that the call may have got from torch. All calls share it,
    # since cuBLAS keeps a workspace for each stream.
    return torch.cuda.Stream(priority=-1)


# Graphs whose capture failed. They have to stay alive, since torch's allocators still ask them about streams.
_failed: list[torch.cuda.CUDAGraph] = []


def _give_up(graph: torch.cuda.CUDAGraph, pool: Any) -> None:
    # Do the work of the end of a capture and of a graph: stop the use of the pool by the allocator, and release it.
    _failed.append(graph)
    device = torch.cuda.current_device()
    with suppress(RuntimeError):
        torch._C._cuda_endAllocateToPool(device, pool)
        torch._C._cuda_releasePool(device, pool)
    torch.cuda.synchronize()
    # torch's generator doesn't know either that the capture is over: it would refuse to draw outside of a capture.
    generator = torch.cuda.default_generators[device]
    generator.graphsafe_set_state(generator.clone_state())
