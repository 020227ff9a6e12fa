"""The reference: attention on the same inputs by one of SDPA's backends, with which every timed output is compared.

The oracle takes too long to run after each sample. It checks the reference itself once for each shape, and again on
the inputs of an output that exceeds its bound.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from attnlab.measuring.gate.check import Error
from attnlab.measuring.gate.gate import Gate
from attnlab.measuring.gate.rounding import units
from attnlab.measuring.subjects import outputs
from attnlab.measuring.subjects.case import Output
from attnlab.measuring.subjects.implementation import (
    Broken,
    Implementation,
    Operands,
    OutOfMemory,
    Tensors,
    Unsupported,
    attempt,
    by_sequence,
)
from attnlab.measuring.subjects.inputs import Windows
from attnlab.measuring.subjects.oracle import composed
from attnlab.measuring.subjects.sdpa import REGISTRY

COMPOSED = Implementation("composed operations", composed, ragged=lambda *given: by_sequence(composed, *given))
REFERENCES = (*(REGISTRY[name] for name in ("sdpa.flash", "sdpa.efficient", "sdpa.math")), COMPOSED)
"""The fastest first. The gate takes the error of the last one as the framework's own."""

INPUTS = Operands()


@dataclass(frozen=True)
class Bound:
    """The allowed distance of an output tensor from the reference's: the gate's allowance plus the reference's error.

    Both may have been measured on other values than those that are compared. Rounding alone may cause an error of half
    a unit in the last place of the largest element, so that the reference's error counts as at least that. The gate's
    allowance already includes twice that.

    Attributes:
        unit: the unit in the last place of the largest element, on the values on which errors were measured.
    """

    gate: Error
    own: Error
    unit: float

    def at(self, unit: float) -> Error:
        """The allowed error if the largest element has this unit in the last place; it grows with the unit."""
        maximum = self.gate.maximum + max(self.own.maximum, self.unit / 2)
        grown = unit / self.unit if unit > self.unit > 0 else 1.0
        return Error(grown * maximum, self.gate.mean + self.own.mean)


class ReferenceCheck:
    """The reference's attention on the current inputs, by windows.

    Args:
        operands: the numbers that are multiplied; by default the unchanged inputs.

    Attributes:
        bounds: the allowed distance of each tensor of an output from the reference's.
    """

    def __init__(self, windows: Windows, operands: Operands = INPUTS) -> None:
        self._windows, self._operands = windows, operands
        self._candidates = tuple(map(operands.reference, REFERENCES))
        self._implementation = self._candidates[-1]
        self._seen: dict[int, tuple[Tensors, Tensors]] = {}
        self.bounds: list[Bound] = []

    def appoint(self, gate: Gate) -> None:
        """Choose the first of `REFERENCES` that passes a gate whose inputs are the current values of window 0.

        Raises:
            OutOfMemory: the device's memory holds none of them.
        """
        for candidate in self._candidates:
            self._implementation = candidate
            try:
                returned = attempt(lambda: self._computed(0))
                errors = gate.errors(returned)
            except (Unsupported, Broken):
                continue
            except OutOfMemory:
                if candidate is self._candidates[-1]:
                    raise
                continue
            if all(error.within(allowed) for error, allowed in zip(errors, gate.allowed, strict=True)):
                break
        self.bounds = _bounds(gate, returned, errors)

    @property
    def name(self) -> str:
        """The name of the chosen implementation."""
        return self._implementation.name

    def forget(self) -> None:
        """Drop the cached outputs, since the inputs have changed."""
        self._seen.clear()

    def look(self, window: int = 0) -> tuple[Tensors, Tensors]:
        """The output for the current values, and the largest element of each of its tensors."""
        if window not in self._seen:
            returned = self._computed(window)
            self._seen[window] = returned, tuple(map(_largest, returned))
        return self._seen[window]

    def widened(self, output: Tensor, window: int) -> Tensor:
        """Convert an output to the numbers that are compared."""
        return self._operands.of(self._windows, window).widened(output)

    def bounds_on(self, gate: Gate, window: int) -> list[Bound]:
        """The bounds for the current values, on which `gate` was made."""
        returned, _ = self.look(window)
        return _bounds(gate, returned, gate.errors(returned))

    def _computed(self, window: int) -> Tensors:
        on, refresh = self._implementation.on(self._windows)
        refresh()
        with self._implementation.selected():
            return outputs.each(on(window)())


References = Mapping[Operands, ReferenceCheck]
"""The reference checks of a shape, by operands."""


def _bounds(gate: Gate, returned: Tensors, errors: list[Error]) -> list[Bound]:
    units = [_unit(float(_largest(tensor)), tensor.dtype) for tensor in returned]
    return [Bound(*found) for found in zip(gate.allowed, errors, units, strict=True)]


@dataclass(frozen=True)
class Comparison:
    """The distance of an output from the reference's.

    Attributes:
        errors: that of each tensor; `units` are the units in the last place of their largest elements.
    """

    reference: str
    errors: list[Error]
    units: list[float]
    bounds: list[Bound]

    @property
    def strain(self) -> float:
        """The largest error in units of the allowed error; infinite if an element was not finite."""
        error, allowed = self._worst
        return error.strain(allowed)

    def __str__(self) -> str:
        error, allowed = self._worst
        return f"error against {self.reference} on the same inputs: {error}, allowed {allowed}"

    @property
    def _worst(self) -> tuple[Error, Error]:
        """The error of the tensor with the largest strain, and its allowed error."""
        allowed = (bound.at(unit) for bound, unit in zip(self.bounds, self.units, strict=True))
        return max(zip(self.errors, allowed, strict=True), key=lambda pair: pair[0].strain(pair[1]))


class Tally:
    """Comparisons of one case's outputs with the reference's. They stay on the device until they are read.

    Args:
        most: the most outputs that are compared.
    """

    def __init__(self, reference: ReferenceCheck, most: int, device: torch.device) -> None:
        self._reference, self._count = reference, 0
        self._found = torch.zeros(most, len(reference.bounds), 3, device=device)
        self._dtypes: tuple[torch.dtype, ...] = ()

    def compare(self, output: Output, window: int = 0) -> None:
        """Compare an output with the reference's, then fill it with NaN, so that the next call has to write it."""
        given = [tensor.detach() for tensor in outputs.each(output)]  # a module's parameters may require gradients
        returned = [self._reference.widened(tensor, window) for tensor in given]
        self._dtypes = tuple(tensor.dtype for tensor in returned)
        seen = zip(*self._reference.look(window), strict=True)
        for tensor, (right, largest), found in zip(returned, seen, self._found[self._count], strict=True):
            distance = tensor - right
            torch.linalg.vector_norm(distance, math.inf, dtype=torch.float32, out=found[0])
            torch.linalg.vector_norm(distance, 1, dtype=torch.float32, out=found[1])
            found[1] /= tensor.numel()
            found[2] = largest
        for tensor in given:
            tensor.fill_(torch.nan)
        self._count += 1

    def read(self) -> list[Comparison]:
        """The comparisons so far, in the order in which they were made."""
        found = self._found[: self._count].nan_to_num(nan=math.inf).tolist()
        return [self._comparison(tensors) for tensors in found]

    def _comparison(self, found: list[list[float]]) -> Comparison:
        errors = [Error(maximum, mean) for maximum, mean, _ in found]
        units = [_unit(largest, dtype) for (*_, largest), dtype in zip(found, self._dtypes, strict=True)]
        return Comparison(self._reference.name, errors, units, self._reference.bounds)


def _largest(tensor: Tensor) -> Tensor:
    return torch.linalg.vector_norm(tensor, math.inf, dtype=torch.float32)


def _unit(largest: float, dtype: torch.dtype) -> float:
    """The unit in the last place of a number of this size; 0 for 0 and infinity."""
    return units(torch.tensor(largest), dtype).item() if 0 < largest < math.inf else 0.0
