"""`attnlab.attention`: replaces PyTorch's functions by `attend`, for models whose code you can't change."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from functools import lru_cache, partial, update_wrapper
from math import isfinite
from threading import Lock
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.jit._trace import is_tracing
from torch.nn.attention import varlen

from attnlab.measuring.subjects import sdpa
from attnlab.serving import context, ragged, training
from attnlab.serving.attend import attend

SERVED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Functions that are kept, so that a compiled model finds the same one in each block.
KEPT = 16
# The name of PyTorch's function in a scripted model.
TORCHSCRIPT = "aten::scaled_dot_product_attention"
_lock = Lock()
Call = Callable[[], Tensor | None]
"""A call of attention; it returns None if the original function has to be called after all."""


@contextmanager
def attention() -> Iterator[None]:
    """Replace PyTorch's functions of attention by `attend` and `attend_ragged` within a block.

    These are ``torch.nn.functional.scaled_dot_product_attention`` and ``torch.nn.attention.varlen.varlen_attn``. The
    original function, PyTorch's or another library's, still computes calls that `attend` doesn't serve:

    - a mask, dropout, or gradients that our kernels don't serve;
    - `is_causal` with different numbers of queries and keys, or different numbers of heads without `enable_gqa`;
    - inputs that differ in dtype, device or head_dim, or don't have 4 dimensions;
    - nested tensors that aren't jagged, have holes, or are causal with other offsets of the keys;
    - `varlen_attn` with windows, pages, `seqused_k` or `return_aux`, or lengths that `kernel.ragged` doesn't serve.

    The end of the last of nested or concurrent blocks restores the original function; a saved function of the block
    calls it from then on. If another library replaced the function within the block, its function stays.

    The block affects all threads of the process. Code that imported a function by its name before, as in
    ``from torch.nn.functional import ...``, keeps PyTorch's. Under torch.compile there is no graph break.
    """
    with _lock:
        opened = []
        for module, name, asked in PLACES:
            there = getattr(module, name)
            opened.append(there if isinstance(there, _InPlace) else _in_place_of(there, asked))
            opened[-1].open()
            setattr(module, name, opened[-1])
    try:
        yield
    finally:
        with _lock:
            for (module, name, _), function in zip(PLACES, opened, strict=True):
                function.close()
                if not function.is_open and getattr(module, name) is function:
                    setattr(module, name, function.before)


class _InPlace:
    """A replacement of a function: in an open block it makes the call that `asked` returns, else it calls `before`."""

    def __init__(self, before: Callable[..., Tensor], asked: Callable[..., Call | None]) -> None:
        update_wrapper(self, before)
        self.before, self.asked, self.blocks, self.is_open = before, asked, 0, False

    def open(self) -> None:
        self.blocks += 1
        self.is_open = True
        if self.asked is _asked:
            torch.jit._builtins._register_builtin(self, TORCHSCRIPT)

    def close(self) -> None:
        self.blocks -= 1
        if not self.blocks:
            self.is_open = False
            torch.jit._builtins._get_builtin_table().pop(id(self), None)

    def __call__(self, *given: Any, **options: Any) -> Tensor:
        try:
            call = self.asked(*given, **options) if self.is_open else None
        except (AttributeError, TypeError):  # the function before says how it is called
            call = None
        if call is not None and (output := call()) is not None:
            return output
        mask = given[3] if len(given) > 3 else options.get("attn_mask")
        return sdpa.function_for(mask, self.before)(*given, **options)

    def __reduce__(self) -> str | tuple[Callable[..., Any], tuple[object]]:
        name = getattr(self, "__name__", "")
        if getattr(sys.modules.get(self.__module__), name, None) is self:  # pickle finds functions of Python by name
            return name
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
) -> Call | None:
    """The call that computes the same as PyTorch's function with these arguments; None if `attend` serves none."""
    if attn_mask is not None or dropout_p != 0 or not (isinstance(is_causal, bool) and isinstance(enable_gqa, bool)):
        return None
    q, k, v = query, key, value
    if isinstance(q, Tensor) and q.is_nested:
        return _asked_nested(q, k, v, is_causal, scale, enable_gqa)
    if not _is_served(q, k, v, scale) or q.dim() != 4:
        return None
    if context.needs_gradients(q, k, v):
        q, k, v = context.autocast(q, k, v)
        if not training.serves(q, k, v, is_causal, scale):
            return None
    (batch, heads, seq_len, head_dim), (kv_batch, kv_heads, kv_len, key_dim) = q.shape, k.shape
    if batch != kv_batch or head_dim != key_dim or (is_causal and seq_len != kv_len):
        return None
    return partial(attend, q, k, v, is_causal, scale) if _fit(heads, kv_heads, enable_gqa) else None


def _is_served(q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> bool:
    """Whether `attend` serves these tensors: plain ones of one dtype and device, in no mode that asks for SDPA."""
    finite = scale is None or (isinstance(scale, int | float) and isfinite(scale))
    if not finite or is_tracing() or context.asks_for_sdpa() or not type(q) is type(k) is type(v) is Tensor:
        return False
    if q.is_nested or k.is_nested or v.is_nested:
        return False
    alike = q.dtype == k.dtype == v.dtype and q.device == k.device == v.device and q.dtype in SERVED
    return alike and k.shape == v.shape


def _fit(heads: int, kv_heads: int, grouped: bool) -> bool:
    return heads == kv_heads or bool(grouped and kv_heads and heads % kv_heads == 0)


def _asked_nested(q: Any, k: Any, v: Any, causal: bool, scale: float | None, grouped: bool) -> Call | None:
    """The call for nested tensors ``(batch, heads, lengths, head_dim)`` of the jagged layout."""
    given = (q, k, v)
    if any(each.layout is not torch.jagged or each.dim() != 4 or each._ragged_idx != 2 for each in given):
        return None
    ends, key_ends = q.offsets(), k.offsets()
    # PyTorch's backends align the causal mask to one end or the other: they agree on equal lengths.
    unlike = ends.shape != key_ends.shape or (causal and ends is not key_ends)
    if unlike or any(each.lengths() is not None for each in given):
        return None
    q_rows, k_rows, v_rows = (each.transpose(1, 2).values() for each in given)
    call = _asked_packed(q_rows, k_rows, v_rows, ends, key_ends, causal, scale, grouped)

    def nested() -> Tensor | None:
        if call is None or (rows := call()) is None:
            return None
        least, most = q._maybe_min_seqlen, q._maybe_max_seqlen
        return torch.nested.nested_tensor_from_jagged(rows, ends, min_seqlen=least, max_seqlen=most).transpose(1, 2)

    return nested


def _asked_varlen(
    query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor, max_q: int, max_k: int, **others: Any
) -> Call | None:
    """The call that computes the same as `varlen_attn` with these arguments; None if there is none."""
    window, grouped = tuple(others.pop("window_size", (-1, -1))), others.pop("enable_gqa", False)
    scale, splits = others.pop("scale", None), others.pop("num_splits", None)
    if window not in ((-1, -1), (-1, 0)) or splits not in (None, 1) or any(o is not None for o in others.values()):
        return None
    return _asked_packed(query, key, value, cu_seq_q, cu_seq_k, window == (-1, 0), scale, grouped)


def _asked_packed(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, causal: bool, scale: float | None, grouped: bool
) -> Call | None:
    """The call of the kernel for packed sequences; None if it can't serve them. Layouts are checked later."""
    casts = q.dim() != 3 or (context.is_autocast(q.device) and q.dtype != torch.get_autocast_dtype(q.device.type))
    wholes = cu_q.dtype in ragged.WHOLE and cu_k.dtype in ragged.WHOLE
    if casts or not wholes or context.needs_gradients(q, k, v):
        return None
    if not _is_served(q, k, v, scale) or not _fit(q.shape[1], k.shape[1], grouped):
        return None
    return partial(ragged.by_kernel, q, k, v, cu_q, cu_k, causal, scale)


PLACES = ((F, "scaled_dot_product_attention", _asked), (varlen, "varlen_attn", _asked_varlen))
"""Functions that are replaced, by module and name."""
