"""The verdict of the gate on one output: its errors, the allowed errors, and other faults."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attnlab.base.rules import GATE_FACTOR

OUTPUTS = ("O", "dQ", "dK", "dV")
"""The tensors that a call returns: O in a forward pass, the gradients in a backward pass, and all in training."""


@dataclass(frozen=True)
class Error:
    """Absolute errors of an output against the float64 oracle; infinite if an element isn't finite."""

    maximum: float
    mean: float

    @classmethod
    def between(cls, output: Tensor, oracle: Tensor) -> "Error":
        """Compare 2 tensors of the same shape, a slab at a time to bound memory."""
        worst, total = 0.0, 0.0
        for got, right in zip(output.flatten(0, 1).split(64), oracle.flatten(0, 1).split(64), strict=True):
            distance = (got.double() - right).abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
            worst = max(worst, distance.max().item())
            total += distance.sum().item()
        return cls(worst, total / oracle.numel())

    def within(self, allowed: "Error") -> bool:
        """Whether neither the maximum nor the mean exceeds the allowed error."""
        return self.maximum <= allowed.maximum and self.mean <= allowed.mean

    def strain(self, allowed: "Error") -> float:
        """The larger of both errors, in units of the allowed ones."""
        each = (self.maximum, allowed.maximum), (self.mean, allowed.mean)
        return max(error / most if most else math.inf if error else 0.0 for error, most in each)

    def __str__(self) -> str:
        return f"max {self.maximum:.2e} mean {self.mean:.2e}"


@dataclass(frozen=True)
class Deviation:
    """The distance of an output from the oracle: root mean square and maximum; infinite if an element is NaN."""

    rmse: float
    maximum: float

    @classmethod
    def between(cls, output: Tensor, exact: Tensor) -> "Deviation":
        distance = (output.double() - exact).abs().nan_to_num(nan=math.inf)
        return cls(distance.square().mean().sqrt().item(), distance.max().item())


NONE, UNBOUNDED = Error(0.0, 0.0), Error(math.inf, math.inf)


@dataclass(frozen=True)
class Check:
    """The verdict of the gate on one output.

    Attributes:
        error: the error of the implementation.
        framework_error: the error of the same formula composed from torch operations, in the dtype of the inputs.
        unavoidable: the error that the rounding of scores in float32 causes; see `Gate`.
        rounded_once: the largest error that rounding the output to its dtype may cause; see `Gate`.
        faults: faults other than the error, in words.
        differing: the number of elements in which 2 runs on the same inputs differ.
        drawn: the distance of O, or of the gradients of a backward pass alone, from the exact ones of the inputs
            before any rounding; None on extremes.
        output: the tensor of `OUTPUTS` with these errors; if there are several, the one with the largest `strain`.
    """

    error: Error
    framework_error: Error
    unavoidable: Error = NONE
    rounded_once: float = 0.0
    faults: tuple[str, ...] = ()
    output: str = OUTPUTS[0]
    differing: int = 0
    drawn: Deviation | None = None

    @property
    def passed(self) -> bool:
        """Whether the maximum and the mean error are small enough, and nothing else is wrong."""
        return not self.faults and self.error.within(self.allowed)

    @property
    def reason(self) -> str:
        """The reason why a check failed."""
        wrong = not self.error.within(self.allowed)
        unit = Error(self.allowed.maximum / GATE_FACTOR, self.allowed.mean / GATE_FACTOR)
        of = "" if self.output == OUTPUTS[0] else f" of {self.output}"
        distance = f"error{of} against float64: {self.error}, allowed {GATE_FACTOR:g}x {unit}"
        return "; ".join([*self.faults, *([distance] if wrong or not self.faults else [])])

    @property
    def strain(self) -> float:
        """The larger of both errors, in units of the allowed ones."""
        return self.error.strain(self.allowed)

    @property
    def allowed(self) -> Error:
        """The largest errors that pass."""
        return Error(
            GATE_FACTOR * (max(self.framework_error.maximum, self.unavoidable.maximum) + self.rounded_once),
            GATE_FACTOR * max(self.framework_error.mean, self.unavoidable.mean),
        )
