"""Q, K and V in e4m3, with scales, by PyTorch's operations on any device.

On Hopper a kernel gives the same bits, for a scale per head (`quantizing`).

A scale is the largest finite magnitude of its elements over 448, the largest number of e4m3. An element is divided by
its scale in float32 and rounded to e4m3 once, to nearest even. The error is at most 1/16 of the element, or 2^-10 of
the scale if that is more. Elements that aren't finite become NaN, and are ignored for their scale.
"""

from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from attnlab.base.rules import SEED
from attnlab.measuring.fp8 import quantizing

E4M3 = torch.float8_e4m3fn
LARGEST = torch.finfo(E4M3).max
FIRST_E4M3 = (8, 9)
"""The first compute capability whose tensor cores multiply e4m3 numbers."""
SCALES = ("tensor", "head", "block")
"""The parts with a separate scale: a tensor, each head of each sequence, or each block of a head's rows."""
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def multiplies(device: torch.device) -> bool:
    """Whether a device is a GPU whose tensor cores multiply numbers in e4m3."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= FIRST_E4M3


@dataclass(frozen=True)
class Quantized:
    """A tensor ``(batch, heads, length, head_dim)`` in e4m3.

    Attributes:
        values: the tensor, each element over its scale.
        scales: in float32, ``(batch, heads, blocks)``; ``(1, 1, 1)`` for one scale.
        rows: the rows of a block; the last block may have fewer.
    """

    values: Tensor
    scales: Tensor
    rows: int

    def dequantized(self) -> Tensor:
        """The numbers that the tensor represents, in float32."""
        return self.values.float() * self.of_each_row()

    def of_each_row(self) -> Tensor:
        """The scale of each row, ``(batch, heads, length, 1)``; length is 1 if all rows share a scale."""
        length = self.values.shape[2]
        if self.rows >= length:
            return self.scales.unsqueeze(-1)
        return self.scales.repeat_interleave(self.rows, dim=-1)[..., :length].unsqueeze(-1)


def quantize(
    q: Tensor, k: Tensor, v: Tensor, scales: str = "head", rows: int | None = None, rotated: bool = False
) -> tuple[Quantized, Quantized, Quantized]:
    """Q, K and V in e4m3.

    Args:
        scales: one of `SCALES`.
        rows: the rows of a block, 64 by default; only for ``block``.
        rotated: whether Q and K are rotated first (`rotate`), which keeps scores and spreads large elements over a row.

    Raises:
        ValueError: `scales` is not in `SCALES`, or a block has no rows. A tensor is empty, not of `DTYPES`, or hasn't 4
            dimensions. Also `rows` without blocks, or a rotation whose head_dim is no power of 2.
    """
    if rows is not None and scales != "block":
        advice = f'state scales="block" with them, not {scales!r}, or leave them out'
        raise ValueError(f"rows are those of a block: {advice}")
    tensors = (q, k, v)
    if scales == "head" and quantizing.serves(*tensors):
        made = quantizing.quantized(tensors, _signs(q.shape[-1], torch.device("cpu")) if rotated else None)
        found = [Quantized(*one, tensor.shape[2]) for one, tensor in zip(made, tensors, strict=True)]
    else:
        turned = (rotate(q), rotate(k), v) if rotated else tensors
        found = [_quantized(tensor, scales, 64 if rows is None else rows) for tensor in turned]
    return found[0], found[1], found[2]


def rotates(head_dim: int) -> bool:
    """Whether rows of this many columns can be rotated."""
    return head_dim.bit_count() == 1


def rotate(tensor: Tensor) -> Tensor:
    """Rotate the rows of a tensor in float32: signs from a fixed seed, then a Hadamard transform over √head_dim.

    Every tensor of a head_dim has the same rotation, which therefore keeps the dot products of rows. Each step adds
    2 numbers, so that the bits are the same on every device.

    Raises:
        ValueError: the head_dim is no power of 2.
    """
    head_dim = tensor.shape[-1]
    if not rotates(head_dim):
        raise ValueError(f"rotating takes a head_dim that is a power of two, not {head_dim}")
    rotated, half = tensor.float() * _signs(head_dim, tensor.device), 1
    while half < head_dim:
        left, right = rotated.unflatten(-1, (-1, 2, half)).unbind(-2)
        rotated = torch.stack((left + right, left - right), dim=-2).flatten(-3)
        half *= 2
    return rotated * head_dim**-0.5


@cache
def _signs(head_dim: int, device: torch.device) -> Tensor:
    generator = torch.Generator("cpu").manual_seed(SEED)
    signs = 1 - 2 * torch.randint(2, (head_dim,), generator=generator, device="cpu")
    return signs.to(device, torch.float32)


def _quantized(tensor: Tensor, scales: str, rows: int) -> Quantized:
    if scales not in SCALES:
        raise ValueError(f"unknown scales {scales!r}; known are {', '.join(SCALES)}")
    if tensor.dtype not in DTYPES or tensor.ndim != 4 or not tensor.numel():
        dtypes = "float16, bfloat16 and float32 (batch, heads, length, head_dim)"
        raise ValueError(f"quantising takes {dtypes}, not {tensor.dtype} of {list(tensor.shape)}")
    if rows < 1:
        raise ValueError(f"a block has at least one row, not {rows}")
    length, given = tensor.shape[2], tensor.float()
    rows, unfit = rows if scales == "block" else length, ~given.isfinite()
    largest = given.abs().masked_fill(unfit, 0.0).amax(-1)
    largest = torch.nn.functional.pad(largest, (0, -length % rows)).unflatten(-1, (-1, rows)).amax(-1)
    if scales == "tensor":
        largest = largest.amax().view(1, 1, 1)
    # The smallest scale is the smallest normal number: a subnormal scale might be flushed to 0, or round to 0.
    # The divisor is a tensor: for a scalar on the host, a GPU would multiply by the reciprocal.
    found = (largest / torch.full_like(largest, LARGEST)).clamp(min=torch.finfo(torch.float32).tiny)
    # The result of a cast of an infinity to e4m3 depends on PyTorch's version.
    whole = Quantized(given, found, rows)
    values = (given / whole.of_each_row()).masked_fill(unfit, torch.nan).to(E4M3)
    return replace(whole, values=values)
