"""Which kernels a call runs, and how much memory it holds at its peak."""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

from attnlab.measuring.instruments import devices
from attnlab.measuring.subjects import outputs
from attnlab.measuring.subjects.case import Call


def kernels(call: Call, device: torch.device) -> list[str]:
    """The names of the kernels that ran on a GPU, or of framework operators on a CPU, the longest first."""
    activity = ProfilerActivity.CUDA if device.type == "cuda" else ProfilerActivity.CPU
    with quiet(), profile(activities=[activity]) as profiler:
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
    spent: Counter[str] = Counter()
    for event in profiler.events():
        if device.type == "cpu":
            spent[event.name] += event.self_cpu_time_total
        elif event.device_type == DeviceType.CUDA:  # the profiler also lists the host's own calls and its waiting
            spent[event.name] += event.self_device_time_total
    return [name for name, _ in spent.most_common() if "ynchronize" not in name]


def peak_memory_bytes(call: Call, inputs_bytes: int, device: torch.device) -> int:
    """The most memory allocated at once during a call: Q, K and V, the output, and any workspace."""
    if device.type == "cuda":
        with devices.no_garbage_collected():  # it would free memory of earlier calls during this one
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            call()
            torch.cuda.synchronize()
            return inputs_bytes + int(torch.cuda.max_memory_allocated()) - before
    with quiet(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        output = call()
    # Events are ordered by time; an allocation is positive and a release negative.
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = (event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))
    return inputs_bytes + max([sum(tensor.nbytes for tensor in outputs.each(output)), *accumulate(changes)])


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the output of the profiler's own library off the standard error stream."""
    kept, sink = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(sink)
