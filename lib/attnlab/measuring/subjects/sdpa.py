"""PyTorch's SDPA: each of its backends, on dense and on nested tensors."""

from functools import cache, partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention  # its own, whatever `attnlab.attention` puts in its place

from attnlab.measuring.subjects.implementation import Implementation, by_sequence
from attnlab.measuring.subjects.oracle import float64, masked


def sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None = None) -> Tensor:
    """PyTorch's scaled_dot_product_attention, by default with the scale 1/√D; a causal mask is aligned to the end."""
    return scaled_dot_product_attention(q, k, v, **options(q, k, causal, scale))


def options(q: Tensor, k: Tensor, causal: bool, scale: float | None) -> dict[str, Any]:
    """The arguments of PyTorch's function besides Q, K and V, for tensors of these shapes."""
    if q.is_nested and q.layout is torch.strided and not causal:  # such tensors have no shape
        return {"scale": scale}
    if q.shape == k.shape:  # looked at first, since a user's own call would look at nothing
        return {"is_causal": causal, "scale": scale}
    grouped = q.ndim > 3 and bool(k.shape[-3] != q.shape[-3])  # while torch.compile traces, sizes are symbols
    # A batch of no sequences has nothing to mask.
    if not causal or bool(k.shape[-2] == q.shape[-2]) or bool(q.numel() == 0):
        return {"is_causal": causal, "scale": scale, "enable_gqa": grouped}
    queries, keys = q.shape[-2], k.shape[-2]
    traced = is_compiling() or torch._C._len_torch_dispatch_stack()  # and SDPA's own mask can't be
    mask = ~masked(queries, keys, q.device) if traced else causal_lower_right(queries, keys)
    return {"attn_mask": mask, "scale": scale, "enable_gqa": grouped}


def sdpa_ragged(q: Tensor, k: Tensor, v: Tensor, causal: bool, sequences: tuple[int, ...]) -> Tensor:
    """SDPA of sequences that are packed end to end, as nested tensors of the jagged layout, without a copy."""
    begins = offsets(sequences, q.device)
    queries, keys, values = (
        torch.nested.nested_tensor_from_jagged(
            tensor[0].transpose(0, 1), begins, min_seqlen=min(sequences), max_seqlen=max(sequences)
        ).transpose(1, 2)
        for tensor in (q, k, v)
    )
    output = scaled_dot_product_attention(queries, keys, values, is_causal=causal)
    return output.transpose(1, 2).values().transpose(0, 1).unsqueeze(0)


@cache
def offsets(sequences: tuple[int, ...], device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    """The offset of each sequence, and the end of the last one."""
    return torch.tensor([0, *accumulate(sequences)], dtype=dtype, device=device)


def _backend(name: str, backend: SDPBackend) -> Implementation:
    return Implementation(name, sdpa, lambda: sdpa_kernel([backend]), ragged=sdpa_ragged)


_IMPLEMENTATIONS = (
    Implementation("sdpa.auto", sdpa, ragged=sdpa_ragged),
    _backend("sdpa.flash", SDPBackend.FLASH_ATTENTION),
    _backend("sdpa.cudnn", SDPBackend.CUDNN_ATTENTION),
    _backend("sdpa.efficient", SDPBackend.EFFICIENT_ATTENTION),
    _backend("sdpa.math", SDPBackend.MATH),
    Implementation("reference.float64", float64, ragged=partial(by_sequence, float64)),
)
REGISTRY = {implementation.name: implementation for implementation in _IMPLEMENTATIONS}
