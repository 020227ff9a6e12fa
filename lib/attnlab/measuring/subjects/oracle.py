"""Attention from PyTorch's basic operations: its result in the dtype of the inputs, and the float64 oracle."""

import math

import torch
from torch import Tensor

# Scores held at once, in elements: 2 GiB of float64.
REFERENCE_CHUNK = 2**28


def composed(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None = None) -> Tensor:
    """softmax(scale·Q·Kᵀ)·V from single operations in the dtype of the inputs; the default of `scale` is 1/√D.

    It computes a group of heads at a time, so that the scores of long sequences fit into memory. The numbers of queries
    and keys may differ; a causal mask is aligned to the end.
    """
    seq_len, kv_len, divisor = q.shape[2], k.shape[2], 1 / scale if scale else math.sqrt(q.shape[3])
    group = max(1, REFERENCE_CHUNK // (seq_len * kv_len))
    hidden = masked(seq_len, kv_len, q.device) if causal else None
    parts = []
    for queries, keys, values in zip(*(x.flatten(0, 1).split(group) for x in of_each_head(q, k, v)), strict=True):
        scores = (queries / divisor) @ keys.transpose(1, 2)
        if hidden is not None:
            scores.masked_fill_(hidden, -math.inf)
        parts.append(torch.softmax(scores, dim=-1) @ values)
    return torch.cat(parts).view(q.shape)


def masked(seq_len: int, kv_len: int, device: torch.device) -> Tensor:
    """The keys that a causal mask hides from each query, ``(seq_len, kv_len)``: the last query sees all."""
    return torch.ones(seq_len, kv_len, dtype=torch.bool, device=device).triu(1 + kv_len - seq_len)


def seen(ends: Tensor, queries: int, keys: int, causal: bool = True) -> Tensor:
    """The keys that each query sees if sequences have `ends` keys: ``(batch, 1, queries or 1, keys)``.

    Under a causal mask the last query sees all of its sequence.
    """
    end = ends.view(-1, 1, 1, 1)
    if causal:
        end = end - queries + 1 + torch.arange(queries, device=ends.device).view(-1, 1)
    return torch.arange(keys, device=ends.device) < end


def of_each_head(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Q, K and V, with keys and values repeated for the heads that share them."""
    shared = q.shape[1] // k.shape[1]
    return (q, k, v) if shared == 1 else (q, k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1))


def float64(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None = None) -> Tensor:
    """The oracle: `composed` in double precision, on the same input values."""
    return composed(q.double(), k.double(), v.double(), causal, scale)


def gradients(
    q: Tensor, k: Tensor, v: Tensor, dout: Tensor, causal: bool, scale: float | None = None
) -> tuple[Tensor, ...]:
    """dQ, dK and dV of `composed` from single operations in the dtype of the inputs, and the log-sum-exp of each row.

    dS is P∘(dO·Vᵀ - D), as in kernels: D is the row sum of dO∘O, in float32 or better, with O in its own dtype. The
    gradient of the output, `dout`, has the shape of Q.
    """
    seq_len, kv_len, shared = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
    factor, wide = scale or 1 / math.sqrt(q.shape[3]), torch.promote_types(q.dtype, torch.float32)
    group = max(1, REFERENCE_CHUNK // (seq_len * kv_len))
    hidden = masked(seq_len, kv_len, q.device) if causal else None
    parts = []
    for queries, keys, values, outer in zip(
        *(x.flatten(0, 1).split(group) for x in (*of_each_head(q, k, v), dout)), strict=True
    ):
        scores = (queries * factor) @ keys.transpose(1, 2)
        if hidden is not None:
            scores.masked_fill_(hidden, -math.inf)
        p = torch.softmax(scores, -1)
        d = (outer * (p @ values).to(wide)).sum(-1, keepdim=True)
        ds = (factor * p * (outer @ values.transpose(1, 2) - d)).to(q.dtype)
        parts.append((ds @ keys, ds.transpose(1, 2) @ queries, p.transpose(1, 2) @ outer, scores.logsumexp(-1)))
    dq, dk, dv, lse = (torch.cat(each) for each in zip(*parts, strict=True))
    of_kv = (x.view(k.shape[0], k.shape[1], shared, kv_len, -1).sum(2) for x in (dk, dv))
    return dq.view(q.shape), *of_kv, lse.view(q.shape[:3])
