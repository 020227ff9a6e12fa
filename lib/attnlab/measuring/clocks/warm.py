"""Cases that are warmed up, with their graphs or without, for the panel's clocks."""

import torch

from attnlab.base import rules
from attnlab.measuring.clocks import cuda_events
from attnlab.measuring.instruments import inspection
from attnlab.measuring.subjects import registry
from attnlab.measuring.subjects.case import Case
from attnlab.measuring.subjects.implementation import Unsupported, attempt
from attnlab.measuring.subjects.inputs import Windows
from attnlab.study.shapes import Shape

LONGEST_MS = 100.0
WARMUP_CALLS = 20


def prepared(implementation: str, shape: Shape, device: torch.device) -> Case:
    """A case that is warmed up.

    Raises:
        Unsupported: the implementation doesn't serve the shape here, or takes longer than the panel has time for.
        OutOfMemory: the device's memory doesn't hold the case.
        Broken: the implementation can't be called.
    """
    chosen = registry.find(implementation)
    windows = attempt(lambda: Windows(shape, device, cuda_events.most_calls(shape)))
    windows.draw(rules.SEED)
    case = attempt(lambda: Case.of(chosen, windows, shape))
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
        # As in a run: CUPTI has to be active before the graphs are captured that it is to trace later.
        inspection.kernels(case.call, device)
        attempt(lambda: cuda_events.capture(case, torch.cuda.graph_pool_handle()))
    return case
