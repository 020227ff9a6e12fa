"""`attnlab.attention`: `attend` in place of PyTorch's function, for models that one can't change."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, update_wrapper
from math import isfinite
from threading import Lock
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.jit._trace import is_tracing

from attnlab.serving import context
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

    The function that was there, PyTorch's or another library's, computes what `attend` doesn't: with a mask, dropout or
    gradients, with `is_causal` where queries and keys differ in number, with unlike heads without `enable_gqa`, and
    from inputs that differ in dtype, device or head_dim, or have other than four dimensions. It is put back when the
    last of the blocks ends that are nested, or open in other threads. Whoever saved the function of the block calls it
    from then on, too. What another library put in its place within the block stays.

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
    """PyTorch's function, by `attend` where that serves and a block is open; else by the function `before`.

    Attributes:
        blocks: how many blocks are open that put it in place.
    """

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
        """What was there before: in another process, no block is open."""
        return _itself, (self.before,)


_in_place_of = lru_cache(KEPT)(_InPlace)


def _itself(function: object) -> object:
    return function


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
    """The arguments of `attend` that computes the same as PyTorch's function does of these; None if none does."""
    usual = isinstance(is_causal, bool) and isinstance(enable_gqa, bool) and attn_mask is None and dropout_p == 0
    finite = scale is None or (isinstance(scale, int | float) and isfinite(scale))
    free = usual and finite and not is_tracing() and not context.asks_for_sdpa()
    serves = free and _serves(query, key, value, is_causal, enable_gqa)
    return (query, key, value, is_causal, scale) if serves else None


def _serves(q: Tensor, k: Tensor, v: Tensor, causal: bool, grouped: bool) -> bool:
    """Whether `attend` computes the same of these tensors."""
    if not type(q) is type(k) is type(v) is Tensor or q.is_nested or k.is_nested or v.is_nested:
        return False
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return False
    if q.dim() != 4 or k.shape != v.shape or q.dtype not in SERVED:
        return False
    if not q.dtype == k.dtype == v.dtype or not q.device == k.device == v.device:
        return False
    (batch, heads, seq_len, head_dim), (kv_batch, kv_heads, kv_len, key_dim) = q.shape, k.shape
    if batch != kv_batch or head_dim != key_dim or (causal and seq_len != kv_len):
        return False
    return heads == kv_heads or bool(grouped and kv_heads and heads % kv_heads == 0)
