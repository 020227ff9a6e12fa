"""A case as the clocks need it: a call on each window of its inputs, and the graphs captured from these calls."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from attnlab.measuring.subjects.implementation import Implementation
from attnlab.measuring.subjects.inputs import Windows

Output = Tensor | tuple[Tensor, ...]
Call = Callable[[], Output]


@dataclass(frozen=True)
class Replay:
    """A captured graph of `calls` calls; the last of them reads the window `window` and writes `output`."""

    graph: torch.cuda.CUDAGraph
    calls: int
    output: Output
    window: int = 0


@dataclass
class Case:
    """One implementation at one shape, ready to be timed.

    Attributes:
        call: takes no arguments and returns the output for window 0.
        selected: the context in which `call` runs its implementation.
        one: a graph of a single call, for cold samples; None until it is captured, and on a device without graphs.
        many: a graph of as many calls as fill a warm sample; None as for `one`.
        cut: the first few calls of `many`, a random number of them; None if `many` has fewer than 3.
        windows: the inputs; without them, as in tests, every call is `call`.
        on: takes a window and returns the call on it.
        refresh: makes the operands, such as e4m3 ones, of calls that don't read the inputs themselves. It is called
            before each check or sample on new values.
    """

    call: Call
    selected: Callable[[], AbstractContextManager[object]]
    one: Replay | None = None
    many: Replay | None = None
    cut: Replay | None = None
    windows: Windows | None = None
    on: Callable[[int], Call] | None = None
    refresh: Callable[[], None] = lambda: None

    @classmethod
    def of(cls, implementation: Implementation, windows: Windows) -> "Case":
        """An implementation, bound to inputs; raises as `Implementation.on`."""
        on, refresh = implementation.on(windows)
        return cls(on(0), implementation.selected, windows=windows, on=on, refresh=refresh)

    def calls(self, count: int) -> list[Call]:
        """`count` calls, each on its own window, the last on window 0."""
        if self.on is None:
            return [self.call] * count
        return [*map(self.on, range(count - 1, 0, -1)), self.call]

    @contextmanager
    def scrambled(self) -> Iterator[None]:
        """A context in which calls see other values than afterwards."""
        with nullcontext() if self.windows is None else self.windows.scrambled():
            self.refresh()
            yield
        self.refresh()
