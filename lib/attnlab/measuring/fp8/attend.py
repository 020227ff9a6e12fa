"""`attnlab.attend` of tensors in e4m3 with scales: by `kernel.fp8` where it serves them, else by PyTorch."""

from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor

from attnlab.base.errors import UserError
from attnlab.measuring.fp8 import accuracy, kernel
from attnlab.measuring.fp8.quantize import E4M3, Quantized
from attnlab.measuring.kernels import rungs
from attnlab.measuring.subjects.implementation import Unsupported

OUTPUTS = (torch.float16, torch.bfloat16, E4M3)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scales: Sequence[Tensor],
    causal: bool = False,
    scale: float | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """softmax(scale·Q·Kᵀ)·V of tensors in e4m3, in `dtype`: float16 (the default), bfloat16 or e4m3.

    Args:
        scales: the factors of q, k and v: float32 ``(batch, heads, 1)``, as `quantize` gives them for each head, or
            with 1 in place of batch or heads. For an output in e4m3, its divisor is the 4th.

    Raises:
        ValueError: the arguments don't fit together; the message is one line.
    """
    dtype = OUTPUTS[0] if dtype is None else dtype
    if wrong := _unfit(q, k, v, scales, causal, scale, dtype):
        raise ValueError(f"attend {wrong}")
    if not q.numel():
        return torch.empty_like(q, dtype=dtype)
    if q.is_cuda:
        with suppress(Unsupported, UserError):
            return kernel.rung().of_scales(q, k, v, scales, causal, scale, dtype)
    tensors = zip((q, k, v), scales, strict=False)
    queries, keys, values = (Quantized(tensor, own, tensor.shape[2]) for tensor, own in tensors)
    of_output = scales[3] if dtype == E4M3 else None
    return accuracy.attention(queries, keys, values, causal, scale, dtype, out_scales=of_output)


def _unfit(
    q: Tensor, k: Tensor, v: Tensor, scales: Sequence[Tensor], causal: bool, scale: float | None, dtype: torch.dtype
) -> str:
    """The reason why attention of these arguments can't be computed; empty if it can."""
    scaled = {"q": q, "k": k, "v": v}
    for name, tensor in scaled.items():
        if not isinstance(tensor, Tensor) or tensor.dtype != E4M3:
            found = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            return f"takes scales with tensors in {E4M3}, and {name} is {found}"
        if tensor.device != q.device:
            return f"takes tensors on one device, and {name} is on {tensor.device}"
        if tensor.requires_grad:
            return f"computes no gradients of tensors in {E4M3}: {name} requires them"
    if dtype not in OUTPUTS:
        return f"gives {', '.join(map(str, OUTPUTS))} of tensors in {E4M3}, not {dtype}"
    if refused := rungs.unlike_grouped(q, k, v, causal, scale):
        return refused
    scaled |= {"the output": q} if dtype == E4M3 else {}
    if len(scales) != len(scaled):
        return f"takes the scales of {', '.join(scaled)} where it gives {dtype}, not {len(scales)} of them"
    for (name, tensor), own in zip(scaled.items(), scales, strict=True):
        if not isinstance(own, Tensor) or (own.dtype, own.device) != (torch.float32, q.device):
            return f"takes scales in torch.float32 on {q.device}: those of {name} are not"
        batch, heads = tensor.shape[:2]
        if own.ndim != 3 or any(n not in (1, most) for n, most in zip(own.shape, (batch, heads, 1), strict=True)):
            return f"takes scales ({batch} or 1, {heads} or 1, 1) of {name}, not {tuple(own.shape)}"
    return ""
