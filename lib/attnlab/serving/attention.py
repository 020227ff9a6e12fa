"""`attnlab.attention`: `attend` in place of PyTorch's function, for models that one can't change."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from functools import lru_cache, update_wrapper
from math import isfinite
from threading import Lock
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.jit._trace import is_tracing

from attnlab.serving import context, training
from attnlab.serving.attend import attend

SERVED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Functions that are kept, so that a compiled model finds the same one in each block.
KEPT = 16
# The name of PyTorch's function in a scripted model.
TORCHSCRIPT = "aten::scaled_dot_product_attention"
_lock = Lock()


@contextmanager
def attention() -> Iterator[None]:
    """Replace ``torch.nn.functional.scaled_dot_product_attention`` by `attend` within a block.

    The function before, PyTorch's or another library's, computes all other calls. These have a mask, dropout, gradients
    that our kernels don't serve, `is_causal` with unlike numbers of queries and keys, or unlike heads without
    `enable_gqa`. Or inputs differ in dtype, device or head_dim, or don't have 4 dimensions. The function before is put
    back when the last of nested or concurrent blocks ends; a saved function of the block calls it from then on. A
    function that another library put in its place within the block stays.

    The block holds for all threads of the process. Code that imported the function by its name before, as in
    ``from torch.nn.functional import ...``, keeps PyTorch's. Under torch.compile there is no graph break.
    """
    with _lock:
        there = F.scaled_dot_product_attention
        function = there if isinstance(there, _InPlace) else _in_place_of(there)
        function.open()
        F.scaled_dot_product_attention = function
    try:
        yield
    finally:
        with _lock:
            function.close()
            if not function.is_open and F.scaled_dot_product_attention is function:
                F.scaled_dot_product_attention = function.before


class _InPlace:
    """PyTorch's function: `attend` where that serves and one of the `blocks` is open, else the function `before`."""

    def __init__(self, before: Callable[..., Tensor]) -> None:
        update_wrapper(self, before)
        self.before, self.blocks, self.is_open = before, 0, False

    def open(self) -> None:
        self.blocks += 1
        self.is_open = True
        torch.jit._builtins._register_builtin(self, TORCHSCRIPT)

    def close(self) -> None:
        self.blocks -= 1
        if not self.blocks:
            self.is_open = False
            torch.jit._builtins._get_builtin_table().pop(id(self), None)

    def __call__(self, *given: Any, **options: Any) -> Tensor:
        try:
            asked = _asked(*given, **options) if self.is_open else None
        except TypeError:  # the function before says how it is called
            asked = None
        return self.before(*given, **options) if asked is None else attend(*asked)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object]]:
        return copy, (self.before,)  # a function's copy is itself: in another process, no block is open


_in_place_of = lru_cache(KEPT)(_InPlace)


def _asked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor, Tensor, bool, float | None] | None:
    """The arguments with which `attend` computes the same as PyTorch's function with these; None if it can't."""
    if attn_mask is not None or dropout_p != 0 or not (isinstance(is_causal, bool) and isinstance(enable_gqa, bool)):
        return None
    finite = scale is None or (isinstance(scale, int | float) and isfinite(scale))
    if not finite or is_tracing() or context.asks_for_sdpa():
        return None
    q, k, v = query, key, value
    if not type(q) is type(k) is type(v) is Tensor or q.is_nested or k.is_nested or v.is_nested:
        return None
    alike = q.dtype == k.dtype == v.dtype and q.device == k.device == v.device and q.dtype in SERVED
    if q.dim() != 4 or k.shape != v.shape or not alike:
        return None
    if context.needs_gradients(q, k, v):
        q, k, v = context.autocast(q, k, v)
        if not training.serves(q, k, v, is_causal, scale):
            return None
    (batch, heads, seq_len, head_dim), (kv_batch, kv_heads, kv_len, key_dim) = q.shape, k.shape
    if batch != kv_batch or head_dim != key_dim or (is_causal and seq_len != kv_len):
        return None
    serves = heads == kv_heads or (enable_gqa and kv_heads and heads % kv_heads == 0)
    return (q, k, v, is_causal, scale) if serves else None
