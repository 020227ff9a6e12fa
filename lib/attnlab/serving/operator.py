"""The operators ``attention``, ``attention_of_lengths`` and ``attention_packed``: `attend` for torch.compile."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet
from torch.utils.flop_counter import register_flop_formula, sdpa_flop_count

from attnlab.measuring.subjects.implementation import Attention
from attnlab.serving import context
from attnlab.serving.calls import again

_LIBRARY = torch.library.Library("attnlab", "DEF")


def register(anew: Attention, of_lengths: Callable[..., Tensor], packed: Callable[..., Tensor]) -> None:
    """Define the operators. ``attention`` is `again`, or `anew` if that returns None; the others take lengths.

    Their outputs always have the strides of `torch.empty_like(q)`. ``attention`` has gradients, the others have none.
    """

    def new(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Tensor:
        _require_alike(k, v)
        return anew(q, k, v, causal, scale)

    def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
        output = again(q, k, v, causal, scale)
        return laid_out(new(q, k, v, causal, scale) if output is None else output, q)

    def differentiable(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
        output = again(q, k, v, causal, scale)  # tried first: its tensors need no gradients and aren't traced
        if output is None:
            watched = not type(q) is type(k) is type(v) is Tensor or torch._C._len_torch_dispatch_stack()
            if watched and not context.needs_gradients(q, k, v):
                with torch._C._AutoDispatchBelowAutograd():
                    return torch.ops.attnlab.attention.default(q, k, v, causal, scale)
            output = new(q, k, v, causal, scale)  # not by the dispatcher, which takes as long as a launch
        return laid_out(output, q)

    def like_q(call: Callable[..., Tensor], q: Tensor, *others: Any) -> Tensor:
        return laid_out(call(q, *others), q)

    _define_casting("attention", "{}", attention)
    of_lengths_options = "Tensor? kv_lens, {}, Tensor? q_lens=None, Tensor? block_table=None"
    _define_casting("attention_of_lengths", of_lengths_options, partial(like_q, of_lengths))
    _define_casting("attention_packed", "Tensor cu_seqlens_q, Tensor cu_seqlens_k, {}", partial(like_q, packed))
    _LIBRARY.impl("attention", differentiable, "Autograd")


def define(
    name: str,
    signature: str,
    call: Callable[..., Any],
    fake: Callable[..., Any],
    flops: Callable[..., int] | None = None,
) -> Any:
    """Define an operator with Q, K, V and the rest of `signature`; its FLOPs are by default those of a forward pass."""
    _LIBRARY.define(f"{name}(Tensor q, Tensor k, Tensor v, {signature}")
    _LIBRARY.impl(name, call, "CompositeExplicitAutograd")
    torch.library.register_fake(f"attnlab::{name}", fake, lib=_LIBRARY)
    operator = getattr(torch.ops.attnlab, name)
    register_flop_formula(operator)(flops or _flops)
    return operator


def _define_casting(name: str, options: str, forward: Callable[..., Tensor]) -> None:
    """Define an operator with SDPA's casts under autocast."""
    options = options.format("bool causal=False, float? scale=None")
    operator = define(name, f"{options}) -> Tensor", forward, _empty)

    def casting(key: DispatchKey, q: Tensor, k: Tensor, v: Tensor, *options: Any) -> Tensor:
        given = context.autocast(q, k, v)
        with torch._C._ExcludeDispatchKeyGuard(DispatchKeySet(key)):
            return operator.default(*given, *options)

    for key in context.AUTOCAST:
        _LIBRARY.impl(name, partial(casting, key), key.name)


def _flops(q: torch.Size, k: torch.Size, v: torch.Size, *others: Any, **_: Any) -> int:
    """The FLOPs of SDPA. Packed sequences count as 1 sequence, since the host doesn't know their lengths.

    The last argument of ``attention_of_lengths`` is a block table, whose pages count as full.
    """
    if others[4:] and others[4] is not None:
        k = v = torch.Size((q[0], k[1], others[4][1] * k[2], k[3]))
    if len(q) == 3:
        q, k, v = (torch.Size((1, shape[1], shape[0], shape[2])) for shape in (q, k, v))
    return sdpa_flop_count(*of_each_head(q, k, v))


def of_each_head(q: torch.Size, k: torch.Size, v: torch.Size) -> tuple[torch.Size, torch.Size, torch.Size]:
    """Sizes with a separate K and V for each head of Q: PyTorch 2.11 can't count FLOPs of heads that share them."""
    return q, torch.Size((*q[:-2], *k[-2:])), torch.Size((*q[:-2], *v[-2:]))


def laid_out(output: Tensor, like: Tensor) -> Tensor:
    """An output with the strides of `torch.empty_like(like)`."""
    # A new output is dense: with the strides of `like`, it is laid out as expected.
    if output.stride() == like.stride() or output.stride() == (expected := torch.empty_like(like)).stride():
        return output
    return expected.copy_(output)


def _require_alike(k: Tensor, v: Tensor) -> None:
    torch._check(v.shape == k.shape, lambda: f"V has to have the shape of K, {tuple(k.shape)}, not {tuple(v.shape)}")


def _empty(q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> Tensor:
    _require_alike(k, v)
    return torch.empty_like(q)
