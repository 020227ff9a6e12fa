"""A case as the clocks need it: a call, and the graphs captured from it."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

Output = torch.Tensor | tuple[torch.Tensor, ...]
Call = Callable[[], Output]


@dataclass(frozen=True)
class Replay:
    """A captured graph of `calls` calls; the last of them writes `output`."""

    graph: torch.cuda.CUDAGraph
    calls: int
    output: Output


@dataclass
class Case:
    """One implementation at one shape, ready to be timed.

    Attributes:
        call: takes no arguments and returns the output.
        selected: the context in which `call` runs its implementation.
        one: a graph of a single call, for cold samples; None until it is captured, and on a device without graphs.
        many: a graph of as many calls as fill a warm sample; likewise.
    """

    call: Call
    selected: Callable[[], AbstractContextManager[object]]
    one: Replay | None = None
    many: Replay | None = None
