"""Attention with gradients: by our forward and backward kernels where both are faster than SDPA's."""

from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.compiler import assume_constant_result
from torch.utils.flop_counter import sdpa_backward_flop_count

from attnlab.measuring.kernels import backward
from attnlab.measuring.subjects import oracle
from attnlab.serving import context
from attnlab.serving.operator import define, laid_out, of_each_head

SHORTEST = 512
"""The fewest queries, and keys, for which both passes are faster than SDPA's at all measured shapes."""
SHORTEST_OF_MANY, MANY = 64, 2**32
"""The same where queries of all heads times keys times head_dim are `MANY`: the GPU then takes longer than the host."""


def serves(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> bool:
    """Whether `attention` takes such tensors, with any strides and addresses. torch.compile traces this."""
    if q.device.type != "cuda" or q.ndim != 4 or k.ndim != 4:
        return False
    shortest = SHORTEST_OF_MANY if q.numel() * k.shape[2] >= MANY else SHORTEST
    if q.shape[2] < shortest or k.shape[2] < shortest:
        return False
    return _is_ready(q.device.index) and not backward.unserved(q, k, v, causal, scale)


@assume_constant_result  # type: ignore[untyped-decorator]
def _is_ready(device: int) -> bool:
    return _readiness(device)


@cache
def _readiness(device: int) -> bool:
    """Whether the kernels support this device, and the packages that launch them are installed."""
    written = torch.cuda.get_device_capability(device) == backward.CAPABILITY
    return written and all(find_spec(name) for name in ("cupy", "cuda", "cuda.bindings"))


def is_traced(*tensors: Any) -> bool:
    """Whether torch.compile traces a call with these, and nothing else transforms it."""
    traced = all(isinstance(tensor, FakeTensor | FunctionalTensor) for tensor in tensors)
    return traced and not context.is_transformed()


def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Tensor:
    """softmax(scale·Q·Kᵀ)·V of tensors that `serves` takes. Autograd saves them, O and log-sum-exps.

    The gradients are bitwise reproducible. If they are to be differentiated again, PyTorch's operations compute them in
    float32, with all scores in memory.
    """
    return _Attention.apply(q, k, v, causal, scale)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Any:
        call = torch.ops.attnlab.attention_forward if _by_operator(q) else _forward
        output, sums = call(q, k, v, causal, scale)
        ctx.save_for_backward(q, k, v, output, sums)
        ctx.causal, ctx.scale = causal, scale
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, output, sums = ctx.saved_tensors
        if torch.is_grad_enabled():
            q, k, v, gradient = (tensor.float() for tensor in (q, k, v, gradient))
            wide = oracle.gradients(q, k, v, gradient, ctx.causal, ctx.scale)[:3]
            found = tuple(tensor.to(output.dtype) for tensor in wide)
        else:
            call = torch.ops.attnlab.attention_backward if _by_operator(gradient) else _backward
            found = call(q, k, v, output, sums, gradient, ctx.causal, ctx.scale)
        return (*found, None, None)


def _by_operator(tensor: Tensor) -> bool:
    """Whether a pass has to be an operator. Otherwise it takes 20 µs less of the host."""
    return context.is_watched() or type(tensor) is not Tensor


def _forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> tuple[Tensor, Tensor]:
    output, sums = backward.forward(q, k, v, causal, scale)
    return laid_out(output, q), sums


def _backward(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> tuple[Tensor, ...]:
    return tuple(map(laid_out, backward.backward(q, k, v, *others), (q, k, v)))


def _flops(q: torch.Size, k: torch.Size, v: torch.Size, *_: Any, **__: Any) -> int:
    return sdpa_backward_flop_count(q, *of_each_head(q, k, v))


define(
    "attention_forward",
    "bool causal, float? scale) -> (Tensor, Tensor)",
    _forward,
    lambda q, *_: (torch.empty_like(q), q.new_empty(q.shape[:3], dtype=torch.float32)),
)
define(
    "attention_backward",
    "Tensor out, Tensor lse, Tensor dout, bool causal, float? scale) -> (Tensor, Tensor, Tensor)",
    _backward,
    lambda q, k, v, *_: tuple(map(torch.empty_like, (q, k, v))),
    _flops,
)
