"""`attnlab.attention`: `attend` in place of PyTorch's function, for models that one can't change."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attnlab.measure.subjects.attend import attend

_lock = Lock()
_open: list[None] = []
"""One for each block that is open in this process; the last one to close puts PyTorch's function back."""


@contextmanager
def attention() -> Iterator[None]:
    """Replace ``torch.nn.functional.scaled_dot_product_attention`` by `attend` within a block.

    What `attend` doesn't compute is computed by PyTorch's function as before: with a mask, dropout or gradients, with
    `is_causal` where queries and keys differ in number, with unlike heads without `enable_gqa`, and from inputs that
    differ in dtype, device or head_dim, have other than four dimensions, or are to be cast by autocast. Blocks may be
    nested. It holds for all threads of the process while any block is open. Code that imported the function by its name
    before, as in ``from torch.nn.functional import ...``, keeps PyTorch's. Under torch.compile there is no graph break.
    """
    with _lock:
        if not _open:
            F.scaled_dot_product_attention = _attention  # type: ignore[assignment]
        _open.append(None)
    try:
        yield
    finally:
        with _lock:
            _open.pop()
            if not _open:
                F.scaled_dot_product_attention = scaled_dot_product_attention


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """PyTorch's function, by `attend` where that serves."""
    plain = attn_mask is None and not dropout_p and type(query) is type(key) is type(value) is Tensor
    if plain and _serves(query, key, value, is_causal, enable_gqa):
        return attend(query, key, value, is_causal, scale)
    return scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def _serves(q: Tensor, k: Tensor, v: Tensor, causal: bool, grouped: bool) -> bool:
    """Whether `attend` computes the same of these tensors."""
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return False
    if q.dim() != 4 or k.shape != v.shape or not q.dtype == k.dtype == v.dtype or not q.device == k.device == v.device:
        return False
    (batch, heads, seq_len, head_dim), (kv_batch, kv_heads, kv_len, key_dim) = q.shape, k.shape
    if batch != kv_batch or head_dim != key_dim or (causal and seq_len != kv_len):
        return False
    if heads != kv_heads and not (grouped and kv_heads and heads % kv_heads == 0):
        return False
    kind = q.device.type
    return not torch.is_autocast_enabled(kind) or q.dtype == torch.get_autocast_dtype(kind)
