"""Implementations in FP8 that a study names, at shapes in float16 and bfloat16.

`kernel.fp8` and `peer.cudnn_fp8` are given Q, K and V in e4m3. These are rounded outside of the timed window, each
time that the inputs change. `kernel.fp8_quantizing` takes 16-bit tensors, and its time includes the rounding. Each
kernel has a variant whose Q and K are rotated before they are rounded; the kernel itself is the same. The reference is
attention of the dequantised e4m3 inputs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnlab.measuring.fp8 import accuracy, cudnn
from attnlab.measuring.fp8 import quantizing as quantizing_kernel
from attnlab.measuring.fp8.kernel import rung
from attnlab.measuring.fp8.quantize import E4M3, Quantized, quantize, rotates
from attnlab.measuring.instruments import devices
from attnlab.measuring.kernels import rungs
from attnlab.measuring.subjects.implementation import (
    Attention,
    Implementation,
    Numbers,
    Operands,
    Tensors,
    Unsupported,
)
from attnlab.measuring.subjects.inputs import Windows
from attnlab.measuring.subjects.oracle import composed
from attnlab.study.implementations import CUDNN_FP8, FP8_ALIASES, FP8_KERNEL, FP8_QUANTIZING, FP8_ROTATED
from attnlab.study.shapes import Shape


class RoundedWindows:
    """Windows of inputs in e4m3, as they were at the last refresh.

    All windows are rounded at once, so that neighbours share memory here too. A scale per head is that of the head
    alone; a scale per tensor is that of all windows.
    """

    def __init__(self, windows: Windows, operands: "InE4M3") -> None:
        self._windows, self._operands = windows, operands
        self._given = [tensor.unsqueeze(0) for tensor in windows.memory]
        self._values = [torch.empty_like(tensor, dtype=E4M3) for tensor in windows.memory]
        self._factors = [torch.empty(len(tensor), 1, 1, device=tensor.device) for tensor in windows.memory]
        self._graph: torch.cuda.CUDAGraph | None = None

    def __getitem__(self, window: int) -> tuple[Quantized, ...]:
        """Q, K and V of a window."""
        values, factors = (self._windows.within(each, window) for each in (self._values, self._factors))
        if self._operands.scales == "tensor":
            factors = tuple(factor[:1, :1] for factor in factors)
        return tuple(Quantized(v, f[..., 0], v.shape[2]) for v, f in zip(values, factors, strict=True))

    def refresh(self) -> None:
        """Round the current values of the inputs, on the current stream; on a GPU by one graph launch."""
        if self._values[0].is_cuda and self._graph is None:
            self._quantize()  # one-time work can't be captured
            self._graph = torch.cuda.CUDAGraph()
            with devices.no_garbage_collected(), torch.cuda.graph(self._graph):
                self._quantize()
        if self._graph is None:
            self._quantize()
        else:
            self._graph.replay()

    def _quantize(self) -> None:
        for one, values, factors in zip(self._operands.round(*self._given), self._values, self._factors, strict=True):
            values.copy_(one.values[0])
            factors.copy_(one.scales[0].unsqueeze(-1))


class RoundedNumbers(Numbers):
    """The numbers of a rounded window, from which the reference is computed.

    Only cuDNN takes one scale for a tensor, and its plan may write e4m3. Such an output is divided by the scale of V,
    and is widened before it is compared.
    """

    as_drawn = False

    def __init__(self, rounded: RoundedWindows, window: int, one_scale: bool, dtype: torch.dtype) -> None:
        self._rounded, self._window, self._one_scale, self._dtype = rounded, window, one_scale, dtype

    def now(self) -> Tensors:
        self._rounded.refresh()
        return tuple(tensor.dequantized() for tensor in self._rounded[self._window])

    def composed(
        self, attention: Attention, compared: Tensors, causal: bool, scale: float | None, heads: Tensor | None
    ) -> Tensors:
        q, k, v = self._rounded[self._window]
        output = accuracy.attention(q, k, v, causal, scale, self._dtype, heads)
        return (self.widened((output.float() / v.scales).to(E4M3)) if self._one_scale else output,)

    def widened(self, output: Tensor) -> Tensor:
        if output.dtype != E4M3 or not self._one_scale:
            return output
        return (output.float() * self._rounded[self._window][2].scales.view(())).to(self._dtype)


@dataclass(frozen=True)
class InE4M3(Operands):
    """Q, K and V rounded to e4m3.

    Attributes:
        scales: one of `quantize.SCALES` except blocks; `rotated` is whether Q and K are rotated first.
    """

    scales: str = "head"
    rotated: bool = False

    def round(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Quantized, Quantized, Quantized]:
        """Q, K and V in e4m3.

        Rotation keeps the products of rows, so that attention of the dequantised tensors needs no inverse rotation.
        """
        return quantize(q, k, v, self.scales, rotated=self.rotated)

    def rounded(self, windows: Windows) -> RoundedWindows:
        """The windows in e4m3, which `refresh` rounds from their values; kept with them.

        Raises:
            Unsupported: no head has rows in one window alone, the inputs are more than Q, K and V, or
                rows of this head_dim can't be rotated.
        """
        if windows.shape.by_token or len(windows.memory) != 3:
            raise Unsupported("inputs are quantised before they are timed for forward passes, heads first, alone")
        if self.rotated and not rotates(head_dim := windows.shape.head_dim):
            raise Unsupported(f"rotating takes a head_dim that is a power of two, not {head_dim}")
        if self not in windows.kept:
            windows.kept[self] = RoundedWindows(windows, self)
        found: RoundedWindows = windows.kept[self]
        return found

    def of(self, windows: Windows, window: int = 0) -> RoundedNumbers:
        dtype = windows.memory[0].dtype
        return RoundedNumbers(self.rounded(windows), window, self.scales == "tensor", dtype)

    def reference(self, plain: Implementation) -> Implementation:
        """SDPA's backends in float16, and the formula in e4m3, which is slower and farther from float64."""
        if plain.call is composed:
            return E4M3Implementation(f"{plain.name} in e4m3", accuracy.attention, operands=self)
        call = partial(accuracy.in_half, plain.call)
        return E4M3Implementation(f"{plain.name} of e4m3 in float16", call, plain.selected, operands=self)


@dataclass(frozen=True)
class E4M3Implementation(Implementation):
    """`call` takes each of Q, K and V as `Quantized`, and the output's dtype as the keyword `dtype`."""

    operands: InE4M3 = InE4M3()

    def bound(self, given: Tensors, shape: Shape) -> Callable[[], Any]:
        if shape.trains or shape.ragged:
            return super().bound(given, shape)  # which refuses these
        return self._on(self.operands.round(*given), shape)

    def on(self, windows: Windows) -> tuple[Callable[[int], Callable[[], Any]], Callable[[], None]]:
        rounded = self.operands.rounded(windows)
        return lambda window: self._on(rounded[window], windows.shape), rounded.refresh

    def _on(self, given: tuple[Quantized, ...], shape: Shape) -> Callable[[], Any]:
        scale = {"scale": shape.scale} if shape.scale else {}
        return partial(self.call, *given, shape.causal, dtype=getattr(torch, shape.dtype), **scale)


def kernel(
    q: Quantized, k: Quantized, v: Quantized, causal: bool, dtype: torch.dtype, scale: float | None = None
) -> Tensor:
    """The output of the kernel in e4m3; raises as `ScaledKernel.of_scales` does."""
    scales = (q.scales, k.scales, v.scales)
    return rung().of_scales(q.values, k.values, v.values, scales, causal, scale, dtype)


def quantizing(operands: InE4M3, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None = None) -> Tensor:
    """The same for 16-bit tensors, which it rounds first; raises Unsupported if the quantising kernel can't."""
    if not quantizing_kernel.serves(q, k, v):
        dims = " or ".join(map(str, quantizing_kernel.HEAD_DIMS))
        raise Unsupported(f"{FP8_QUANTIZING[0]} takes float16 or bfloat16 of head_dim {dims} on Hopper, where CuPy is")
    return kernel(*operands.round(q, k, v), causal, q.dtype, scale)


def _resources(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None = None) -> dict[str, Any]:
    """The resources of the kernel for contiguous e4m3 tensors of this shape."""
    queries, keys, values = (torch.empty(tensor.shape, dtype=E4M3, device=tensor.device) for tensor in (q, k, v))
    return rungs.needs(rung().prepared_scaled(queries, keys, values, causal, scale, q.dtype))


def _ours(name: str) -> Implementation:
    operands = InE4M3(rotated=name in FP8_ROTATED)
    options: dict[str, Any] = {"resources": _resources, "differentiable": False, "repeats": True, "operands": operands}
    if name in FP8_QUANTIZING:
        return Implementation(name, partial(quantizing, operands), **options)
    return E4M3Implementation(name, kernel, **options)


SUBJECTS = (
    *map(_ours, (FP8_KERNEL, *FP8_ALIASES)),
    E4M3Implementation(CUDNN_FP8, cudnn.attention, differentiable=False, operands=InE4M3("tensor")),
)
