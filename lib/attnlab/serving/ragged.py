"""Attention of sequences of unequal lengths, packed, padded or paged: by kernels, or by SDPA if these can't."""

from contextlib import suppress
from functools import cache, partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.compiler import assume_constant_result, is_compiling
from torch.nn.functional import scaled_dot_product_attention

from attnlab.base.errors import UserError
from attnlab.measuring.kernels import rungs
from attnlab.measuring.kernels.rungs import CACHES, FEW, RAGGED, Kernel
from attnlab.measuring.subjects import oracle, sdpa
from attnlab.measuring.subjects.implementation import Unsupported
from attnlab.serving import calls, context, training
from attnlab.serving.calls import is_plain
from attnlab.study import ladder

WHOLE = (torch.int32, torch.int64, torch.int16, torch.int8, torch.uint8)
"""Dtypes of lengths."""
MOST_FEW = 128
"""The most queries of a sequence for which a kernel that splits keys is faster."""


@cache
def kernel(name: str = RAGGED) -> Kernel:
    """A kernel of the ladder, by default that for sequences of unequal lengths; UserError if there is none."""
    return rungs.of(ladder.rung(name))


def attend_ragged(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """softmax(scale·Q·Kᵀ)·V of packed sequences, each of which attends only to itself.

    On a Hopper GPU `kernel.ragged` computes it for float16 and bfloat16 with a head_dim of 64 or 128. Then the host
    doesn't wait, and a graph may be replayed with other lengths. Otherwise the host reads the lengths and computes one
    sequence after the other: by SDPA, or with gradients by our kernels as in `attend`. Under `torch.compile` it is the
    operator ``attnlab::attention_packed``.

    Args:
        q: ``(tokens, heads, head_dim)``, with any strides.
        k: ``(tokens of K, kv_heads, head_dim)``; kv_heads divides heads.
        v: as `k`.
        cu_seqlens_q: the offset of each sequence's first query, and the end of the last sequence: integers
            ``(sequences + 1,)`` on the device of `q`. Numbers of 32 bits outside of the tensor are clamped to its ends.
        cu_seqlens_k: the same for keys.
        causal: as for `attend`: the last query of a sequence sees all its keys.
        scale: the factor of the scores; None for 1/√D.

    Returns:
        O, ``(tokens, heads, head_dim)``. A query that sees no key gives 0. Rows outside all sequences are undefined.

    Raises:
        TypeError, ValueError: as `attend`.
    """
    calls.require_tensors(q, k, v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    ends = (cu_seqlens_q, cu_seqlens_k)
    if any(each.dtype not in WHOLE or each.ndim != 1 or each.shape != cu_seqlens_q.shape for each in ends):
        raise ValueError("cu_seqlens_q and cu_seqlens_k have to hold one whole number more than there are sequences")
    if (q.ndim, k.ndim) != (3, 3) or v.shape != k.shape or not cu_seqlens_q.numel():
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in (q, k, v))
        raise ValueError(
            f"attend_ragged takes q, k and v (tokens, heads, head_dim), v in the shape of k, not {shapes}, and "
            "cu_seqlens that hold at least 0"
        )
    if is_compiling() and not context.needs_gradients(q, k, v):
        q, k, v = context.autocast(q, k, v)
        return torch.ops.attnlab.attention_packed(q, k, v, *ends, causal, scale)
    return packed(q, k, v, *ends, causal, scale)


def packed(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, causal: bool = False, scale: float | None = None
) -> Tensor:
    """`attend_ragged` if nothing is traced."""
    output = by_kernel(q, k, v, cu_q, cu_k, causal, scale)
    return _each(*context.autocast(q, k, v), cu_q, cu_k, causal, scale) if output is None else output


def by_kernel(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, causal: bool, scale: float | None
) -> Tensor | None:
    """`attend_ragged` by the kernel alone, also under torch.compile; None for tensors that it doesn't serve."""
    if context.needs_gradients(q, k, v):
        return None
    if context.is_watched():
        if q.shape[2] not in head_dims(q.dtype, q.device):
            return None
        return torch.ops.attnlab.attention_packed(*context.autocast(q, k, v), cu_q, cu_k, causal, scale)
    if is_plain(q, k, v):
        with suppress(Unsupported, UserError):
            given = by_head(*context.autocast(q, k, v))
            launch: Any = kernel().packed(*given, causal, scale).launch
            output = launch.packed(*given, *(ends.to(torch.int32).contiguous() for ends in (cu_q, cu_k)))
            return output.transpose(1, 2).squeeze(0)
    return None


@assume_constant_result  # type: ignore[untyped-decorator]
def head_dims(dtype: torch.dtype, device: torch.device) -> tuple[int, ...]:
    """The head_dims for which the kernel has tiles on a device; it may still not serve a layout."""
    rung = kernel().rung
    fits = device.type == "cuda" and str(dtype).removeprefix("torch.") in rung.dtypes
    fits = fits and rung.architecture(torch.cuda.get_device_capability(device)) is not None
    return tuple(tile.head_dim for tile in rung.tiles) if fits else ()


def by_head(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Packed tensors as one sequence ``(1, heads, tokens, head_dim)``."""
    q, k, v = (tensor.unsqueeze(0).transpose(1, 2) for tensor in (q, k, v))
    return q, k, v


def padded(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    scale: float | None,
    q_lens: Tensor | None,
    kv_lens: Tensor | None,
    block_table: Tensor | None = None,
) -> Tensor:
    """The output for padded sequences with int32 lengths ``(batch,)``; Unsupported if the kernel can't serve them."""
    launch: Any
    if block_table is None:
        launch = kernel().prepared(q, k, v, causal, scale).launch
    else:
        block_table = block_table.contiguous()
        launch = kernel().paged(q, k, v, block_table.shape[1], causal, scale).launch
    return launch.of_lengths(q, k, v, kv_lens, q_lens, block_table)


def split(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    scale: float | None,
    kv_lens: Tensor | None,
    block_table: Tensor | None,
) -> Tensor:
    """The output of few queries over caches with int32 lengths; Unsupported if no kernel can serve them."""
    if block_table is None:
        try:
            return kernel(CACHES)(q, k, v, causal, scale, kv_lens)
        except Unsupported:  # such as sequences that aren't whole rows apart, which only its TMA needs
            return kernel(FEW)(q, k, v, causal, scale, kv_lens)
    launch: Any = kernel(CACHES).paged(q, k, v, block_table.shape[1], causal, scale).launch
    return launch.of_lengths(q, k, v, kv_lens, block_table.contiguous())


def gathered(k: Tensor, v: Tensor, block_table: Tensor | None) -> tuple[Tensor, Tensor]:
    """K and V of each sequence, copied from its pages; unchanged without a table."""
    if block_table is None:
        return k, v
    pages = block_table.long().clamp(0, k.shape[0] - 1)  # entries beyond a sequence's end are arbitrary
    k, v = (tensor[pages].transpose(1, 2).flatten(2, 3) for tensor in (k, v))
    return k, v


def masked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kv_lens: Tensor | None,
    causal: bool,
    scale: float | None,
    q_lens: Tensor | None = None,
) -> Tensor:
    """SDPA of padded sequences; rows without a query are 0."""
    if not is_compiling():
        calls.require_attention(q, k, v, scale)
    batch, (queries, keys) = q.shape[0], (q.shape[2], k.shape[2])
    every = torch.full((batch,), keys, device=q.device)
    ends = every if kv_lens is None else kv_lens.to(q.device, torch.int64).clamp(0, keys)
    own = oracle.seen(ends, queries, keys, causal=False)
    seen = own.expand(-1, -1, queries, -1)
    if q_lens is not None:
        counts = q_lens.to(q.device, torch.int64).clamp(0, queries)
        seen = seen & oracle.seen(counts, queries, queries, causal=False).transpose(2, 3)
        ends = ends + queries - counts  # a sequence's last query is before the tensor's
    if causal:
        seen = seen & oracle.seen(ends, queries, keys)
    k, v = (
        tensor.masked_fill(~own.transpose(2, 3), 0) for tensor in (k, v)
    )  # padding may hold NaN, and 0 * V must not
    grouped = {"enable_gqa": True} if q.shape[1] != k.shape[1] else {}  # where torch.compile traces, sizes are symbols
    output = _by_sdpa(q, k, v, attn_mask=seen, scale=scale, **grouped)
    return output.masked_fill(~seen.any(3, keepdim=True), 0)


def _by_sdpa(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    if is_compiling():
        return scaled_dot_product_attention(q, k, v, **options)
    function = scaled_dot_product_attention if q.numel() and k.numel() else calls.of_nothing
    call = partial(function, **options)
    return (calls.aligned(call, q, k, v) if is_plain(q, k, v) else call)(q, k, v)


def _each(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, causal: bool, scale: float | None) -> Tensor:
    """One packed sequence after the other; rows outside all sequences are 0."""
    output = torch.zeros_like(q)
    queries, keys = (
        [min(max(end, 0), most) for end in ends.tolist()] for ends, most in ((cu_q, len(q)), (cu_k, len(k)))
    )
    for (first, end), (first_key, end_key) in zip(pairwise(queries), pairwise(keys), strict=True):
        if first < end:
            parts = by_head(q[first:end], k[first_key:end_key], v[first_key:end_key])
            output[first:end] = _alone(*parts, causal, scale).squeeze(0).transpose(0, 1)
    return output


def _alone(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Tensor:
    """Attention of one sequence: SDPA, or our kernels with gradients where they serve it."""
    queries, keys = q.shape[2], k.shape[2]
    if not keys or (causal and queries > keys):  # a query that sees no key
        return masked(q, k, v, None, causal, scale)
    calls.require_attention(q, k, v, scale)
    if not is_plain(q, k, v):
        return sdpa.sdpa(q, k, v, causal, scale)
    if context.needs_gradients(q, k, v) and training.serves(q, k, v, causal, scale):
        return training.attention(q, k, v, causal, scale)
    return calls.sdpa_of(q, k, v, causal, scale)(q, k, v)
