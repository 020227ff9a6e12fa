"""The operators ``attnlab::attention`` and ``attnlab::attention_of_lengths``: what torch.compile sees of `attend`."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import register_flop_formula, sdpa_flop_count

from attnlab.measuring.subjects.implementation import Attention
from attnlab.measuring.subjects.oracle import masked
from attnlab.serving import context

NAME = "attnlab::attention"
SCHEMA = "(Tensor q, Tensor k, Tensor v, bool causal=False, float? scale=None) -> Tensor"
OF_LENGTHS = "attention_of_lengths"
OF_LENGTHS_SCHEMA = "(Tensor q, Tensor k, Tensor v, Tensor kv_lens, bool causal=False, float? scale=None) -> Tensor"
_LIBRARY = torch.library.Library("attnlab", "DEF")


def register(again: Callable[..., Tensor | None], anew: Attention) -> None:
    """Make `again`, or `anew` where that gives None, the operator ``torch.ops.attnlab.attention``.

    Neither computes gradients. The operator's output has the strides of `torch.empty_like(q)`, whatever computed it.
    Its gradients are those of PyTorch's scaled_dot_product_attention, which the backward pass calls anew.
    """

    def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
        output = again(q, k, v, causal, scale)
        return _laid_out(anew(q, k, v, causal, scale) if output is None else output, q, k, v)

    def differentiable(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
        output = again(q, k, v, causal, scale)  # looked at first: its tensors need no gradients, and nobody traces them
        if output is None:
            if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
                found: Tensor = _Differentiable.apply(q, k, v, causal, scale)
                return found
            if not type(q) is type(k) is type(v) is Tensor or torch._C._len_torch_dispatch_stack():
                return _below_autograd(q, k, v, causal, scale)
            output = anew(q, k, v, causal, scale)  # the dispatcher would take as long as a launch
        return _laid_out(output, q, k, v)

    _LIBRARY.define(f"attention{SCHEMA}")
    _LIBRARY.impl("attention", attention, "CompositeExplicitAutograd")
    _LIBRARY.impl("attention", differentiable, "Autograd")
    torch.library.register_fake(NAME, _empty, lib=_LIBRARY)
    _follow_sdpa("attention")


def register_of_lengths(forward: Callable[..., Tensor]) -> None:
    """Make `forward`, which takes `kv_lens` too, the operator ``torch.ops.attnlab.attention_of_lengths``.

    It has no gradients. Its output has the strides of `torch.empty_like(q)`.
    """

    def attention(q: Tensor, k: Tensor, v: Tensor, kv_lens: Tensor, *options: Any) -> Tensor:
        return _laid_out(forward(q, k, v, kv_lens, *options), q, k, v)

    def empty(q: Tensor, k: Tensor, v: Tensor, kv_lens: Tensor, *options: Any) -> Tensor:
        return _empty(q, k, v)

    _LIBRARY.define(f"{OF_LENGTHS}{OF_LENGTHS_SCHEMA}")
    _LIBRARY.impl(OF_LENGTHS, attention, "CompositeExplicitAutograd")
    torch.library.register_fake(f"attnlab::{OF_LENGTHS}", empty, lib=_LIBRARY)
    _follow_sdpa(OF_LENGTHS)


def _follow_sdpa(name: str) -> None:
    """Let autocast cast the inputs of an operator as those of SDPA, and FLOPs be counted as SDPA's."""
    operator = getattr(torch.ops.attnlab, name)

    def casting(key: DispatchKey, q: Tensor, k: Tensor, v: Tensor, *options: Any) -> Tensor:
        given = context.autocast(q, k, v)
        with torch._C._ExcludeDispatchKeyGuard(DispatchKeySet(key)):
            output: Tensor = operator.default(*given, *options)
        return output

    for key in context.AUTOCAST:
        _LIBRARY.impl(name, partial(casting, key), key.name)

    @register_flop_formula(operator)
    def flops(q: torch.Size, k: torch.Size, v: torch.Size, *_: Any, **__: Any) -> int:
        every = q[:-2]  # a key's head is multiplied with each query's that shares it; PyTorch 2.11 refuses to count so
        return sdpa_flop_count(q, (*every, *k[-2:]), (*every, *v[-2:]))


def _laid_out(output: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """An output with the strides of `torch.empty_like(q)`."""
    # Whatever is newly allocated is dense: with the strides of `q`, it is laid out as expected.
    if output.stride() == q.stride() or output.stride() == (expected := _empty(q, k, v)).stride():
        return output
    return expected.copy_(output)


def _below_autograd(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Tensor:
    with torch._C._AutoDispatchBelowAutograd():
        output: Tensor = torch.ops.attnlab.attention.default(q, k, v, causal, scale)
    return output


def _empty(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
    torch._check(v.shape == k.shape, lambda: f"V has to have the shape of K, {tuple(k.shape)}, not {tuple(v.shape)}")
    return torch.empty_like(q)


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.causal, ctx.scale = causal, scale
        return _below_autograd(q, k, v, causal, scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        with torch.enable_grad():
            q, k, v = given = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
            queries, keys = q.shape[-2], k.shape[-2]
            aligned = ctx.causal and bool(queries != keys)
            # torch.compile traces this, and can't trace SDPA's own mask that is aligned to the end.
            mask = ~masked(queries, keys, q.device) if aligned else None
            output = scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=mask,
                is_causal=ctx.causal and not aligned,
                scale=ctx.scale,
                enable_gqa=bool(q.shape[1] != k.shape[1]),
            )
            return (*torch.autograd.grad(output, given, gradient), None, None)
