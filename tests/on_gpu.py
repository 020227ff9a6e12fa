"""Helpers of GPU kernel tests: inputs, the kernels that a device serves, and the gate's verdict on outputs."""

from collections.abc import Callable, Iterator

import pytest
import torch

from attnlab.measuring.gate.gate import Gate
from attnlab.measuring.subjects import inputs
from attnlab.measuring.subjects.implementation import Unsupported
from attnlab.study.shapes import Shape

GPU = torch.device("cuda")


def drawn(shape: Shape, seed: int = 0) -> inputs.Inputs:
    return inputs.draw(shape, seed, GPU)


def served(kernel: Callable, shape: Shape) -> Callable:
    """The kernel, if it serves the shape on this device; else the test is skipped."""
    try:
        kernel(*drawn(shape), shape.causal)
    except Unsupported as error:
        pytest.skip(str(error))
    return kernel


def require_passed(kernel: Callable, given: inputs.Inputs, causal: bool, scale: float | None = None, at="") -> None:
    """Fail unless a kernel's outputs for these inputs pass the gate."""
    check = Gate(given, causal, scale=scale).examine(lambda: kernel(*given, causal, scale))
    assert check.passed, f"{at}: {check.reason}"


def while_copying(times: int = 2000) -> Iterator[int]:
    """Yield 0 to `times` - 1 while copies keep the device's memory busy."""
    source, side = torch.empty(2**28, dtype=torch.int8, device=GPU), torch.cuda.Stream()
    copied = torch.empty_like(source)
    for number in range(times):
        if number % 4 == 0:
            with torch.cuda.stream(side):
                copied.copy_(source)
        if number % 64 == 0:
            side.synchronize()
        yield number
