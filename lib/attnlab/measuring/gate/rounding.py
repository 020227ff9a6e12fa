"""The errors that rounding causes in every implementation: of the output, and of scores to float32."""

import math

import torch
from torch import Tensor

from attnlab.measuring.gate.check import Error
from attnlab.measuring.subjects.implementation import Tensors
from attnlab.measuring.subjects.oracle import masked, of_each_head

# Scores held at once, in elements: several arrays of 128 MiB of float64.
HELD_SCORES = 2**24


def units(of: Tensor, dtype: torch.dtype) -> Tensor:
    """The unit in the last place of numbers in a dtype; for subnormal ones, that of the smallest normal number."""
    return torch.finfo(dtype).eps * torch.exp2(of.abs().clamp(min=torch.finfo(dtype).tiny).frexp().exponent - 1.0)


def unavoidable(
    given: Tensors, causal: bool, oracle: Tensor, sequences: tuple[int, ...], scale: float | None = None
) -> Error:
    """The largest and mean standard deviation of the output, if scores have independent errors of 1 float32 ulp.

    The ulp is that of scale·|q|·|k|, the largest value that the terms of a score can add up to. To first order, the
    deviation is this ulp times √(Σ P_j² (v_j - o)²), where P is the row of the softmax.

    Args:
        given: Q, K and V of a forward pass.
        oracle: its exact output.
        sequences: the lengths of sequences that are packed end to end; empty if a batch has one length.
    """
    q, k, v = given
    lengths = sequences or (q.shape[2],)
    keys = sequences or (k.shape[2],)
    q, k, v = of_each_head(q, k, v)
    apart = zip(q.split(lengths, 2), k.split(keys, 2), v.split(keys, 2), oracle.split(lengths, 2), strict=True)
    errors = [(_of_slabs(*each, causal=causal, scale=scale), each[0].numel()) for each in apart]
    mean = sum(error.mean * elements for error, elements in errors) / oracle.numel()
    return Error(max(error.maximum for error, _ in errors), mean)


def _of_slabs(q: Tensor, k: Tensor, v: Tensor, oracle: Tensor, causal: bool, scale: float | None) -> Error:
    seq_len, kv_len, factor = q.shape[-2], k.shape[-2], scale or 1 / math.sqrt(q.shape[-1])
    hidden = masked(seq_len, kv_len, q.device) if causal else None
    largest, total, ulp = 0.0, 0.0, 0.0
    group = max(1, HELD_SCORES // (seq_len * kv_len))
    slabs = zip(*(tensor.flatten(0, 1).split(group) for tensor in (q, k, v, oracle)), strict=True)
    for queries, keys, values, exact in slabs:
        queries, keys, values = queries.double(), keys.double(), values.double()
        scores = factor * (queries @ keys.transpose(1, 2))
        if hidden is not None:
            scores.masked_fill_(hidden, -math.inf)
        weights = scores.softmax(-1).square_()
        variance = weights @ values**2 - 2 * exact * (weights @ values) + exact**2 * weights.sum(-1, keepdim=True)
        deviation = variance.clamp_(min=0).sqrt_()
        largest = max(largest, deviation.max().item())
        total += deviation.sum().item()
        most = queries.norm(dim=-1).amax(-1) * keys.norm(dim=-1).amax(-1)
        ulp = max(ulp, torch.finfo(torch.float32).eps * most.max().item() * factor)
    return Error(ulp * largest, ulp * total / oracle.numel())


def unavoidable_in_training(given: Tensors, causal: bool, scale: float | None = None) -> tuple[Error, ...]:
    """Likewise for O, dQ, dK and dV, if each element of dO·Vᵀ and each row of dO∘O has an error of 1 ulp too.

    The ulp is that of |dO|·|v|, the largest value that their terms can add up to. D is the sum of a row of dO∘O, and
    dS = P∘(dO·Vᵀ - D). An error a of a score changes P by P∘(a - Σ P·a) and D by Σ dS·a. The errors b of dO·Vᵀ and d
    of D change dS by P∘(b - d). Each output's variance is the sum of the squares of these terms' factors.

    Args:
        given: Q, K, V and the gradient of O.
    """
    q, k, v, gradient = (tensor.double() for tensor in given)
    shared = q.shape[1] // k.shape[1]
    found: tuple[list[Tensor], ...] = ([], [], [], [])
    heads = (x.flatten(0, 1) for x in (*of_each_head(q, k, v), gradient))
    for queries, keys, values, towards in zip(*heads, strict=True):
        for variances, variance in zip(found, _variances(queries, keys, values, towards, causal, scale), strict=True):
            variances.append(variance)
    errors = []
    for variances, together in zip(found, (1, 1, shared, shared), strict=True):
        deviation = torch.stack(variances).unflatten(0, (-1, together)).sum(1).clamp_(min=0).sqrt_()
        errors.append(Error(deviation.max().item(), deviation.mean().item()))
    return tuple(errors)


def _variances(
    q: Tensor, k: Tensor, v: Tensor, gradient: Tensor, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The variances of O, dQ, dK and dV of one head."""
    factor, eps = scale or 1 / math.sqrt(q.shape[-1]), torch.finfo(torch.float32).eps
    scores = factor * (q @ k.T)
    if causal:
        scores.masked_fill_(masked(len(q), len(k), q.device), -math.inf)
    p = scores.softmax(-1)
    o, products = p @ v, gradient @ v.T
    ds = p * (products - (gradient * o).sum(-1, keepdim=True))
    of_score = (eps * factor * q.norm(dim=-1).max() * k.norm(dim=-1).max()) ** 2
    of_product = (eps * gradient.norm(dim=-1).max() * v.norm(dim=-1).max()) ** 2
    p2, ds2, both = p**2, ds**2, p * ds
    sum_p2, sum_ds2, sum_both = (x.sum(-1, keepdim=True) for x in (p2, ds2, both))
    keys, change = p @ k, ds @ k
    to_o = p2 @ v**2 - 2 * o * (p2 @ v) + o**2 * sum_p2
    to_dq = ds2 @ k**2 - 2 * keys * (ds2 @ k) + keys**2 * sum_ds2 + change**2 * sum_p2
    to_dq -= 2 * change * (both @ k - keys * sum_both)
    to_dk = (ds2 * (1 - 4 * p + sum_p2) + p2 * sum_ds2 + 2 * both * sum_both).T @ q**2
    to_dv = (p2 * (1 - 2 * p + sum_p2)).T @ gradient**2
    return (
        of_score * to_o,
        factor**2 * (of_score * to_dq + of_product * (p2 @ k**2 + keys**2)),
        factor**2 * (of_score * to_dk + of_product * 2 * (p2.T @ q**2)),
        of_score * to_dv,
    )
