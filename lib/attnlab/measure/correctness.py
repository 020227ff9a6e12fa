"""The gate: nothing is timed whose result is wrong."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from attnlab.measure.attention import composed, float64
from attnlab.measure.inputs import Inputs

# How far an implementation may be from the oracle, in units of the framework's own low-precision error: the criterion
# of FlashAttention's test suite.
ALLOWED = 2.0


@dataclass(frozen=True)
class Error:
    """Distance of an output from the float64 oracle, in absolute values; infinite where an element isn't finite."""

    maximum: float
    mean: float

    @classmethod
    def between(cls, output: torch.Tensor, oracle: torch.Tensor) -> "Error":
        """Compare `output` with `oracle`, tensors of the same shape, a slab at a time to bound memory."""
        worst, total = 0.0, 0.0
        for got, right in zip(output.flatten(0, 1).split(64), oracle.flatten(0, 1).split(64), strict=True):
            distance = (got.double() - right).abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
            worst = max(worst, distance.max().item())
            total += distance.sum().item()
        return cls(worst, total / oracle.numel())


@dataclass(frozen=True)
class Check:
    """The verdict of the gate on one output.

    Attributes:
        error: of the implementation, against the oracle.
        framework_error: of the same formula composed from torch operations in the dtype of the inputs.
    """

    error: Error
    framework_error: Error

    @property
    def passed(self) -> bool:
        """Both the maximum and the mean error are at most twice the framework's."""
        return (
            self.error.maximum <= ALLOWED * self.framework_error.maximum
            and self.error.mean <= ALLOWED * self.framework_error.mean
        )

    @property
    def reason(self) -> str:
        """What to tell of a check that failed."""
        return (
            f"error against float64: max {self.error.maximum:.2e} mean {self.error.mean:.2e}, "
            f"allowed {ALLOWED:g}x max {self.framework_error.maximum:.2e} mean {self.framework_error.mean:.2e}"
        )


class Gate:
    """The oracle for one set of inputs, against which any number of outputs is checked."""

    def __init__(self, inputs: Inputs, causal: bool) -> None:
        self._oracle = float64(*inputs, causal)
        self._framework_error = Error.between(composed(*inputs, causal), self._oracle)

    def check(self, output: torch.Tensor) -> Check:
        """Check an output computed from the inputs of this gate."""
        return Check(Error.between(output, self._oracle), self._framework_error)


@contextmanager
def poisoned() -> Iterator[None]:
    """Inside, torch fills every fresh tensor with NaN: what an implementation doesn't write shows."""
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def on_poison(call: Callable[[], torch.Tensor]) -> torch.Tensor:
    """The output of `call` when its memory held NaN before."""
    with poisoned():
        return call()
