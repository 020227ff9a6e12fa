"""PyTorch's SDPA: each of its backends, on dense and on nested tensors."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.compiler import is_compiling
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import CausalBias, causal_lower_right
from torch.nn.functional import scaled_dot_product_attention  # the original, even if `attnlab.attention` replaces it
from torch.overrides import handle_torch_function

from attnlab.measuring.subjects.implementation import Implementation, Tensors, Unsupported, by_sequence
from attnlab.measuring.subjects.oracle import float64, masked, of_each_head
from attnlab.study.shapes import Shape


def sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None = None) -> Tensor:
    """PyTorch's scaled_dot_product_attention, by default with the scale 1/√D; a causal mask is aligned to the end."""
    stated = options(q, k, causal, scale)
    return function_for(stated.get("attn_mask"), scaled_dot_product_attention)(q, k, v, **stated)


def function_for(attn_mask: Any, otherwise: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function that computes with this mask: for a `CausalBias` its own, which works within `attnlab.attention`."""

    def by_bias(*given: Any, **stated: Any) -> Tensor:  # it has to be asked by the function that is in its place now
        return handle_torch_function(F.scaled_dot_product_attention, (attn_mask,), *given, **stated)

    return by_bias if isinstance(attn_mask, CausalBias) else otherwise


def options(q: Tensor, k: Tensor, causal: bool, scale: float | None) -> dict[str, Any]:
    """The keyword arguments of PyTorch's function for tensors of these shapes."""
    if q.is_nested and q.layout is torch.strided and not causal:  # such tensors have no shape
        return {"scale": scale}
    if q.shape == k.shape:  # checked first, since a user's own call checks nothing
        return {"is_causal": causal, "scale": scale}
    # While torch.compile traces, sizes are symbols: their comparison can't be an argument.
    grouped = {"enable_gqa": True} if q.ndim > 3 and k.shape[-3] != q.shape[-3] else {}
    # A batch of no sequences has nothing to mask.
    if not causal or bool(k.shape[-2] == q.shape[-2]) or bool(q.numel() == 0):
        return {"is_causal": causal, "scale": scale, **grouped}
    queries, keys = q.shape[-2], k.shape[-2]
    traced = is_compiling() or torch._C._len_torch_dispatch_stack()  # SDPA's own mask can't be traced
    mask = ~masked(queries, keys, q.device) if traced else causal_lower_right(queries, keys)
    return {"attn_mask": mask, "scale": scale, **grouped}


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


def sdpa_varlen(q: Tensor, k: Tensor, v: Tensor, causal: bool, sequences: tuple[int, ...]) -> Tensor:
    """`torch.nn.attention.varlen`; raises Unsupported if PyTorch lacks it or there is no NVIDIA GPU."""
    if not q.is_cuda or find_spec("torch.nn.attention.varlen") is None:
        raise Unsupported("torch.nn.attention.varlen is in newer PyTorch, for an NVIDIA GPU")
    from torch.nn.attention.varlen import varlen_attn

    call: Any = varlen_attn
    tensors = [tensor[0].transpose(0, 1) for tensor in (q, k, v)]
    ends, window = offsets(sequences, q.device, torch.int32), (-1, 0) if causal else (-1, -1)
    output: Tensor = call(*tensors, ends, ends, max(sequences), max(sequences), window_size=window)
    return output.transpose(0, 1).unsqueeze(0)


class PaddedCall:
    """SDPA of sequences padded to the longest, with a mask of their keys; O is packed again. Padding isn't timed."""

    def __init__(self, given: Tensors, causal: bool, sequences: tuple[int, ...]) -> None:
        self._given, self._longest, device = given, max(sequences), given[0].device
        ends, places = torch.tensor(sequences, device=device), torch.arange(max(sequences), device=device)
        self._rows = (places < ends[:, None]).flatten().nonzero().squeeze(1)
        self._mask = (places < ends[:, None])[:, None, None]
        if causal:  # padding follows the tokens
            self._mask = self._mask & ~masked(self._longest, self._longest, device)
        q = given[0]
        self._padded = [q.new_zeros(len(sequences) * self._longest, *q.shape[1::2]) for _ in given]
        self.refresh()

    def refresh(self) -> None:
        """Pad the current values."""
        for padded, packed in zip(self._padded, of_each_head(*self._given), strict=True):
            padded[self._rows] = packed[0].transpose(0, 1)

    def __call__(self) -> Tensor:
        q, k, v = (tensor.unflatten(0, (-1, self._longest)).transpose(1, 2) for tensor in self._padded)
        output = scaled_dot_product_attention(q, k, v, attn_mask=self._mask)
        return output.transpose(1, 2).flatten(0, 1)[self._rows].transpose(0, 1).unsqueeze(0)


@dataclass(frozen=True)
class Padded(Implementation):
    """SDPA as in a program that pads its sequences: `PaddedCall`."""

    def bound(self, given: Tensors, shape: Shape) -> Callable[[], Any]:
        return PaddedCall(given, shape.causal, shape.sequences) if shape.ragged else super().bound(given, shape)


def _rounded(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None = None) -> Tensor:
    """The oracle in the dtype of the inputs, as a case has to return it."""
    return float64(q, k, v, causal, scale).to(q.dtype)


def _of_one_length(*_: Any, **__: Any) -> Tensor:
    raise Unsupported("takes sequences of unlike lengths alone")


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
    Padded("sdpa.padded", _of_one_length),
    Implementation("sdpa.each", _of_one_length, ragged=partial(by_sequence, sdpa)),
    Implementation("sdpa.varlen", _of_one_length, ragged=sdpa_varlen),
    Implementation("reference.float64", _rounded, ragged=partial(by_sequence, _rounded)),
)
REGISTRY = {implementation.name: implementation for implementation in _IMPLEMENTATIONS}
