"""What computes attention in FP8 where a study names it, at shapes in float16 and bfloat16.

`kernel.fp8` and `peer.cudnn_fp8` are given Q, K and V in e4m3, which is done outside of what is timed, each time that
the inputs change. What `kernel.fp8_quantizing` is timed with is all that a program does which has them in 16 bits. Of
each, there is one whose Q and K are rotated before they are rounded; the rung can't tell.
"""

from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from attnlab.measuring.fp8 import cudnn
from attnlab.measuring.fp8 import quantizing as quantizing_kernel
from attnlab.measuring.fp8.quantize import E4M3, ROTATED, Quantized, rounded
from attnlab.measuring.kernels import rungs
from attnlab.measuring.subjects.implementation import Implementation, Unsupported
from attnlab.study import ladder
from attnlab.study.implementations import CUDNN_FP8, FP8_ALIASES, FP8_KERNEL, FP8_QUANTIZING, FP8_ROTATED


def kernel(
    q: Quantized, k: Quantized, v: Quantized, causal: bool, dtype: torch.dtype, scale: float | None = None
) -> Tensor:
    """The rung in e4m3; raises as `rungs.Kernel.of_scales` does."""
    scales = (q.scales, k.scales, v.scales)
    return rung().of_scales(q.values, k.values, v.values, scales, causal, scale, dtype)


def quantizing(rounding: str, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None = None) -> Tensor:
    """The same of 16-bit tensors, which it rounds (`quantize.rounded`).

    Raises:
        Unsupported: the rung doesn't serve this, or the quantising kernel can't be compiled here.
        Broken: as `rungs.Kernel.of_scales` does.
    """
    if not quantizing_kernel.serves(q, k, v):
        dims = " or ".join(map(str, quantizing_kernel.HEAD_DIMS))
        raise Unsupported(f"{FP8_QUANTIZING[0]} takes float16 or bfloat16 of head_dim {dims} on Hopper, where CuPy is")
    return kernel(*rounded(q, k, v, rounding), causal, q.dtype, scale)


def _resources(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None = None) -> dict[str, Any]:
    """What the rung needs for tensors of this layout, contiguous and in e4m3."""
    queries, keys, values = (torch.empty(tensor.shape, dtype=E4M3, device=tensor.device) for tensor in (q, k, v))
    return rungs.needs(rung().prepared_scaled(queries, keys, values, causal, scale, q.dtype))


@cache
def rung() -> rungs.Kernel:
    """`kernel.fp8` on tensors in e4m3; raises UserError where the ladder lacks it."""
    return rungs.of(ladder.rung(FP8_KERNEL))


def _ours(name: str) -> Implementation:
    rounding, quantizes = f"head{ROTATED * (name in FP8_ROTATED)}", name in FP8_QUANTIZING
    return Implementation(
        name,
        partial(quantizing, rounding) if quantizes else kernel,
        resources=_resources,
        differentiable=False,
        repeats=True,
        rounding=rounding,
        quantized=not quantizes,
    )


SUBJECTS = (
    *map(_ours, (FP8_KERNEL, *FP8_ALIASES)),
    Implementation(CUDNN_FP8, cudnn.attention, differentiable=False, rounding="tensor", quantized=True),
)
