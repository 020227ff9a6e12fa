"""The error that rounding the scores to float32 causes, however good an implementation is."""

import math

import torch
from torch import Tensor

from attnlab.measure.gate.check import Error
from attnlab.measure.subjects.implementation import Tensors
from attnlab.measure.subjects.oracle import masked, of_each_head

# Scores held at once, in elements: several arrays of 128 MiB of float64.
HELD_SCORES = 2**24


def unavoidable(
    given: Tensors, causal: bool, oracle: Tensor, sequences: tuple[int, ...], scale: float | None = None
) -> Error:
    """The standard deviation of the output when each score is independently off by one float32 ulp: largest and mean.

    The ulp is that of scale·|q|·|k|, the largest value that the terms of a score can add up to. To first order, the
    deviation is this ulp times √(Σ P_j² (v_j - o)²), where P is the row of the softmax.

    Args:
        given: Q, K and V of a forward pass.
        oracle: its exact output.
        sequences: the lengths of sequences that lie end to end; empty if a batch has one length.
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
