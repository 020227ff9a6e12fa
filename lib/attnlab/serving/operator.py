"""The operators ``attention``, ``attention_of_lengths`` and ``attention_packed``: `attend` for torch.compile."""

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
from attnlab.serving.calls import again

_LIBRARY = torch.library.Library("attnlab", "DEF")


def register(anew: Attention, of_lengths: Callable[..., Tensor], packed: Callable[..., Tensor]) -> None:
    """Define the operators: `again`, or `anew` where that gives None; `of_lengths` and `packed`, which take lengths.

    Their outputs always have the strides of `torch.empty_like(q)`. ``attention`` has the gradients of PyTorch's
    scaled_dot_product_attention, which the backward pass calls again; the others have none.
    """

    def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
        output = again(q, k, v, causal, scale)
        return _laid_out(anew(q, k, v, causal, scale) if output is None else output, q, k, v)

    def differentiable(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
        output = again(q, k, v, causal, scale)  # looked at first: its tensors need no gradients, and nobody traces them
        if output is None:
            if context.needs_gradients(q, k, v):
                found: Tensor = _Differentiable.apply(q, k, v, causal, scale)
                return found
            if not type(q) is type(k) is type(v) is Tensor or torch._C._len_torch_dispatch_stack():
                return _below_autograd(q, k, v, causal, scale)
            output = anew(q, k, v, causal, scale)  # the dispatcher would take as long as a launch
        return _laid_out(output, q, k, v)

    def laid_out(call: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, *options: Any) -> Tensor:
        return _laid_out(call(q, k, v, *options), q, k, v)

    _define("attention", "{}", attention)
    _define("attention_of_lengths", "Tensor? kv_lens, {}, Tensor? q_lens=None", partial(laid_out, of_lengths))
    _define("attention_packed", "Tensor cu_seqlens_q, Tensor cu_seqlens_k, {}", partial(laid_out, packed))
    _LIBRARY.impl("attention", differentiable, "Autograd")


def _define(name: str, options: str, forward: Callable[..., Tensor]) -> None:
    """Define an operator with SDPA's casts under autocast and SDPA's count of FLOPs.

    The FLOPs of packed sequences depend on lengths that the host doesn't know: they count as one.
    """
    signature = options.format("bool causal=False, float? scale=None")
    _LIBRARY.define(f"{name}(Tensor q, Tensor k, Tensor v, {signature}) -> Tensor")
    _LIBRARY.impl(name, forward, "CompositeExplicitAutograd")
    torch.library.register_fake(f"attnlab::{name}", _empty, lib=_LIBRARY)
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
        if len(q) == 3:
            q, k, v = (torch.Size((1, shape[1], shape[0], shape[2])) for shape in (q, k, v))
        every = q[:-2]  # a key's head is multiplied with each query's that shares it; PyTorch 2.11 refuses to count so
        return sdpa_flop_count(q, (*every, *k[-2:]), (*every, *v[-2:]))


def _laid_out(output: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """An output with the strides of `torch.empty_like(q)`."""
    # A new output is dense: with the strides of `q`, it is laid out as expected.
    if output.stride() == q.stride() or output.stride() == (expected := _empty(q, k, v)).stride():
        return output
    return expected.copy_(output)


def _below_autograd(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Tensor:
    with torch._C._AutoDispatchBelowAutograd():
        output: Tensor = torch.ops.attnlab.attention.default(q, k, v, causal, scale)
    return output


def _empty(q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> Tensor:
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
            grouped = bool(q.shape[1] != k.shape[1])
            options = {"is_causal": ctx.causal and not aligned, "scale": ctx.scale, "enable_gqa": grouped}
            output = scaled_dot_product_attention(q, k, v, mask, **options)
            return (*torch.autograd.grad(output, given, gradient), None, None)
