"""Attention in FP8 by PyTorch's operations, and its errors against float64 attention of the unrounded inputs."""

import math
from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor

from attnlab.measuring.fp8.quantize import E4M3, LARGEST, SCALES, Quantized, multiplies, quantize
from attnlab.measuring.gate.check import Deviation
from attnlab.measuring.subjects import inputs, oracle
from attnlab.study.shapes import Shape

PROBABILITY_SCALE = 2.0**8
"""The factor of probabilities before they are rounded: they are at most 1, and e4m3 has numbers up to 448."""
Attention = Callable[[Tensor, Tensor, Tensor, bool, float | None], Tensor]


def attention(
    q: Quantized,
    k: Quantized,
    v: Quantized,
    causal: bool,
    scale: float | None = None,
    dtype: torch.dtype = torch.float16,
    heads: Tensor | None = None,
    out_scales: Tensor | None = None,
) -> Tensor:
    """softmax(scale·Q·Kᵀ)·V of quantised inputs, from PyTorch's operations that round where an FP8 kernel does.

    Both products are of e4m3 numbers (`_product`). A probability is exp(score - the row's largest score). Each is
    multiplied by `PROBABILITY_SCALE` and rounded to e4m3. The output is divided by the sum of the unrounded ones, and
    rounded to `dtype`. For e4m3 it is first divided by its scale and clamped to ±448.

    Args:
        heads: indices of query heads over all batches, for an output ``(1, heads, length, head_dim)``; None for all.
        out_scales: the scales of an output in e4m3, ``(batch, heads, 1)`` or with 1 in place of either.
    """
    batch, count, seq_len, head_dim = q.values.shape
    kv_len = k.values.shape[2]
    chosen = torch.arange(batch * count, device=q.values.device) if heads is None else heads
    (queries, of_q), (keys, of_k), (values, of_v) = (_of_each_head(tensor, count) for tensor in (q, k, v))
    factor = 1 / math.sqrt(head_dim) if scale is None else scale
    hidden = oracle.masked(seq_len, kv_len, queries.device) if causal else None
    of_out = None if out_scales is None else out_scales.expand(batch, count, 1).reshape(-1, 1, 1)
    parts = []
    for some in chosen.split(max(1, oracle.REFERENCE_CHUNK // (seq_len * kv_len))):
        scores = _product(queries[some], keys[some].transpose(1, 2)) * of_q[some] * of_k[some].transpose(1, 2) * factor
        if hidden is not None:
            scores.masked_fill_(hidden, -math.inf)
        probabilities = (scores - scores.amax(-1, keepdim=True)).exp_()
        total = probabilities.sum(-1, keepdim=True) * PROBABILITY_SCALE
        rounded = (probabilities * PROBABILITY_SCALE).to(E4M3)
        if of_v.shape[1] == 1:
            output = _product(rounded, values[some]) * of_v[some]
        else:  # an e4m3 product can't apply a scale per key
            output = rounded.float() @ (values[some].view(E4M3).float() * of_v[some])
        output /= total
        if of_out is not None:
            output = (output / of_out[some]).clamp(-LARGEST, LARGEST)
        parts.append(output.to(dtype))
    return torch.cat(parts).view(q.values.shape if heads is None else (1, len(heads), seq_len, head_dim))


def _of_each_head(tensor: Quantized, count: int) -> tuple[Tensor, Tensor]:
    """For each of `count` query heads of each sequence: its e4m3 numbers as bytes, and a scale per row or for all."""
    values, scales = tensor.values, tensor.of_each_row()
    each = values.view(torch.uint8), scales.expand(*values.shape[:2], -1, -1)
    numbers, factors = (one.repeat_interleave(count // values.shape[1], 1).flatten(0, 1) for one in each)
    return numbers, factors


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Products of matrices of e4m3 numbers, or of their bytes, pair by pair, in float32.

    It uses FP8 tensor cores if there are any; torch adds up their low-precision partial sums in float32.
    """
    if not multiplies(a.device):
        return a.view(E4M3).float() @ b.view(E4M3).float()
    depth, columns = (-size % 16 for size in b.shape[1:])  # torch takes multiples of 16
    one = torch.ones((), dtype=torch.float32, device=a.device)
    left = torch.nn.functional.pad(a.view(torch.uint8), (0, depth)).view(E4M3)
    right = torch.nn.functional.pad(b.view(torch.uint8), (0, columns, 0, depth)).transpose(1, 2).contiguous().view(E4M3)
    pairs = zip(left, right, strict=True)
    made = [torch._scaled_mm(x, y.t(), one, one, out_dtype=torch.float32, use_fast_accum=False) for x, y in pairs]
    return torch.stack(made)[..., : b.shape[2]]


def in_half(
    sixteen: Attention,
    q: Quantized,
    k: Quantized,
    v: Quantized,
    causal: bool,
    scale: float | None = None,
    dtype: torch.dtype = torch.float16,
) -> Tensor:
    """Attention of quantised inputs by an implementation in float16, which represents e4m3 numbers exactly.

    Q is multiplied by the scales of Q and K, and rounded to 11 bits. The output is multiplied by the scale of V.
    """
    _, of_keys, of_values = oracle.of_each_head(q.scales, k.scales, v.scales)
    factor = PROBABILITY_SCALE * (1 / math.sqrt(q.values.shape[-1]) if scale is None else scale)
    queries = (q.values.float() * (q.scales * of_keys * factor).unsqueeze(-1)).half()
    keys = k.values.half() / PROBABILITY_SCALE  # exact; Q has the inverse factor, far from subnormals
    output = sixteen(queries, keys, v.values.half(), causal, 1.0)
    return (output.float() * of_values.unsqueeze(-1)).to(dtype)


def costs(shape: Shape, device: torch.device) -> dict[str, Deviation]:
    """The errors of attention against float64 on a shape's values, by the rounding of its inputs.

    The first has the shape's dtype, composed from single operations (`oracle.composed`). The others have e4m3 with each
    of `SCALES`, rotated or not, and blocks of 64 rows. All outputs have the shape's dtype.

    Raises:
        Unsupported: the captured values don't fit this shape.
    """
    q, k, v = inputs.draw(shape, 0, device)
    exact = oracle.float64(q, k, v, shape.causal, shape.scale)
    found = {shape.dtype: Deviation.between(oracle.composed(q, k, v, shape.causal, shape.scale), exact)}
    for scales, rotated in product(SCALES, (False, True)):
        quantized = quantize(q, k, v, scales, 64 if scales == "block" else None, rotated)
        output = attention(*quantized, shape.causal, shape.scale or None, q.dtype)
        found[f"e4m3 per {scales}{', rotated' * rotated}"] = Deviation.between(output, exact)
    return found
