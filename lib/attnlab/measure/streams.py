"""Calls whose inputs the current stream has yet to write, and calls captured from it: what is not ordered shows."""

from contextlib import suppress
from functools import cache
from typing import Any

import torch

from attnlab.measure.clocks import Call, Output, Replay

# Cycles for which the stream is held before it writes the inputs, 2 ms at 2 GHz and more: the first that the host
# stays ahead of. A call that waits for the device itself outlasts them all, and has waited for its inputs.
HOLDS = (2**22, 2**25, 2**28)


class NotCaptured(Exception):
    """A call can't be captured in a graph: it does something that the current stream alone does not order."""


def before_inputs(call: Call, inputs: tuple[torch.Tensor, ...], values: tuple[torch.Tensor, ...]) -> Output:
    """The output of `call`, made while `inputs` hold NaN and the current stream has yet to copy `values` there.

    What is ordered by the current stream sees the values; work on any other stream that doesn't wait for it sees NaN.
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
    """One call as a graph with a memory pool of its own. Call it at least once before.

    Raises:
        NotCaptured: CUDA's reason is the message. torch is fit for use afterwards.
    """
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    torch.cuda.empty_cache()  # nothing can be freed while a capture is under way
    torch.cuda.synchronize()
    try:
        with torch.cuda.stream(_capturing()):
            graph.capture_begin(pool)
            try:
                output = call()
            finally:
                graph.capture_end()
    except torch.AcceleratorError as error:
        _give_up(graph, pool)
        if error.__context__ is not None and not isinstance(error.__context__, torch.AcceleratorError):
            raise error.__context__ from None  # what the call itself raised
        raise NotCaptured(str(error.__context__ or error).splitlines()[0]) from None
    return Replay(graph, 1, output)


@cache
def _capturing() -> torch.cuda.Stream:
    # Of high priority, so that it is none of the streams that whoever is called may have got from torch; and one for
    # all, since cuBLAS keeps a workspace for each.
    return torch.cuda.Stream(priority=-1)


# Graphs whose capture failed. torch's allocators go on asking them whether a stream is theirs, so they have to stay.
_failed: list[torch.cuda.CUDAGraph] = []


def _give_up(graph: torch.cuda.CUDAGraph, pool: Any) -> None:
    # What the end of a capture and of a graph do otherwise: stop allocating from the pool, and let go of it.
    _failed.append(graph)
    device = torch.cuda.current_device()
    with suppress(RuntimeError):
        torch._C._cuda_endAllocateToPool(device, pool)
        torch._C._cuda_releasePool(device, pool)
    torch.cuda.synchronize()
