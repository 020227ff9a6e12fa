"""`attnlab.attend`: attention by the implementation that a run found to be the fastest at such shapes, or by SDPA."""

from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor
from torch.compiler import is_compiling

from attnlab.base.errors import UserError
from attnlab.measuring.kernels.launch import layout
from attnlab.measuring.subjects import sdpa
from attnlab.measuring.subjects.implementation import Unsupported
from attnlab.serving import calls, context, operator, ragged, training
from attnlab.serving.calls import Ready, again, is_plain
from attnlab.serving.context import needs_gradients

use = calls.use
attend_ragged = ragged.attend_ragged


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    scale: float | None = None,
    autotune: bool = False,
    kv_lens: Tensor | None = None,
    scales: Sequence[Tensor] | None = None,
    dtype: torch.dtype | None = None,
    q_lens: Tensor | None = None,
    block_table: Tensor | None = None,
) -> Tensor:
    """softmax(scale·Q·Kᵀ)·V by the implementation that the dispatch table of this device chooses for the shape.

    docs/choosing.md says how the table chooses, and when SDPA is called. `attnlab.tune` overrides the table for layouts
    that it measured. The first call on a GPU reads the table: that of `use`, else that of `make dispatch` for this
    device. Under `torch.compile`, `attend` is the operator ``attnlab::attention``, or
    ``attnlab::attention_of_lengths`` with `kv_lens`.

    If gradients are needed, the table is not used. On a Hopper GPU our kernels compute both passes in float16 and
    bfloat16. This needs a head_dim of 64 or 128, at least 512 queries and keys, or 64 in large batches, and no
    `kv_lens`; otherwise SDPA is called. Our gradients are bitwise reproducible. PyTorch's operations compute those
    that are differentiated again.

    Args:
        q: ``(batch, heads, seq_len, head_dim)``, with any strides.
        k: ``(batch, kv_heads, kv_len, head_dim)``; kv_heads divides heads.
        v: as `k`.
        causal: whether queries ignore later keys. The mask is aligned to the end: the last query sees all keys, as
            with a cache. SDPA's `is_causal` is aligned to the beginning.
        scale: the factor of the scores; None for 1/√D.
        autotune: whether to call `attnlab.tune` first for a layout that it has not measured, which takes seconds per
            layout. If it can't measure, a warning says why. It isn't called while a graph is compiled or captured, if
            gradients are needed, or for tensors that SDPA computes in any case.
        kv_lens: the number of keys of each sequence, integers ``(batch,)`` on the device of `q`; None for all of k.
            Later keys are not read. A query that sees no key gives 0, and the last query sees all keys of its
            sequence. The table is not used. SDPA computes tensors that no kernel serves, with a mask and copies of k
            and v. The host doesn't wait for the device. The same lengths give the same bits; other lengths in the batch
            may change the bits of a sequence.
        scales: the scales of q, k and v in float8_e4m3fn, as `attnlab.quantize` returns them: float32
            ``(batch, heads, 1)``, where batch or heads may be 1. With `dtype=torch.float8_e4m3fn` a fourth scale, for
            the heads of q, divides the output, which is at most 448. `kernel.fp8` computes it if it can, otherwise
            PyTorch's operations with the same roundings. There are no gradients; `torch.compile` breaks its graph.
        dtype: the dtype of the output with `scales`: float16, the default, bfloat16, or float8_e4m3fn.
        q_lens: the number of queries of each sequence, as `kv_lens`; padding follows them. `kernel.ragged` neither
            reads nor writes padding, so the output is undefined there; SDPA writes 0. Under the mask the last of these
            queries sees all keys of its sequence.
        block_table: the page numbers of each sequence, int32 ``(batch, pages)`` on the device of `q`, with `kv_lens`.
            Then k and v are ``(all pages, kv_heads, page_size, head_dim)``, with any strides. For a cache of vLLM or
            flash-attn, ``(pages, page_size, kv_heads, head_dim)``, pass ``cache.transpose(1, 2)``. Sequences may share
            pages. Entries beyond a sequence's length are ignored. The others have to be valid page numbers. They are
            not checked, since the host would have to wait: with an invalid one a kernel fails, or reads other memory.
            Pages of a multiple of 16 keys are read in place, by `kernel.caches` for up to 128 queries and by
            `kernel.ragged` for more or with `q_lens`. Other pages are copied first, and so may be pages whose stride
            is no multiple of that of keys. Under the mask at D = 128 pages, and k and v with more rows than q, have
            another tile of `kernel.ragged` than prompts, so bits may differ.

    Raises:
        TypeError: q, k or v is not a tensor.
        ValueError: attention isn't defined for these shapes and dtypes, or scale, kv_lens, block_table, scales or
            dtype do not fit them.
        RuntimeError: the chosen implementation failed on tensors that it serves, or the device or its memory failed.
    """
    if scales is not None or dtype is not None:
        if scales is None:
            raise ValueError("attend takes dtype, of the output, where q, k and v come with scales")
        if autotune or any(given is not None for given in (kv_lens, q_lens, block_table)):
            raise ValueError("attend takes neither autotune nor kv_lens with scales")
        from attnlab.measuring.fp8 import attend as scaled  # needs pandas

        return scaled.attend(q, k, v, scales, causal, scale, dtype)
    if kv_lens is not None or q_lens is not None or block_table is not None:
        return _of_lengths(q, k, v, causal, scale, kv_lens, q_lens, block_table)
    if is_compiling():
        # The operator doesn't take other shapes of V, another batch of K, or subclasses. It has no rules for functorch.
        alike = v.shape == k.shape and q.shape[:1] == k.shape[:1] and type(q) is type(k) is type(v) is Tensor
        if not alike or context.asks_for_sdpa() or context.is_transformed():
            return sdpa.sdpa(q, k, v, causal, scale)
        # Cast in the graph: PyTorch 2.11 reuses a graph that was compiled under another autocast dtype.
        return torch.ops.attnlab.attention(*context.autocast(q, k, v), causal, scale)
    found = again(q, k, v, causal, scale) if not autotune or calls.last.settled else None
    if found is None and _is_watched(q, k, v):
        found = torch.ops.attnlab.attention(q, k, v, causal, scale)
    return anew(q, k, v, causal, scale, autotune) if found is None else found


def _is_watched(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether a dispatch mode, such as one that counts FLOPs or traces, has to see the operator instead of a kernel."""
    return torch._C._len_torch_dispatch_stack() > 0 and is_plain(q, k, v) and not needs_gradients(q, k, v)


def anew(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None, autotune: bool = False) -> Tensor:
    """`attend` if nothing is traced, without a reuse of the last call."""
    plain = is_plain(q, k, v)
    if (plain or training.is_traced(q, k, v)) and needs_gradients(q, k, v):
        given = context.autocast(q, k, v)
        if training.serves(*given, causal, scale):
            return training.attention(*given, causal, scale)
        if plain:
            return calls.sdpa_of(*given, causal, scale)(*given)
    if not plain:
        calls.require_attention(q, k, v, scale)
        return sdpa.sdpa(q, k, v, causal, scale)
    # Guards don't check autocast's dtype, so this call isn't kept as the last one.
    casts = context.is_autocast(q.device)
    if casts:
        q, k, v = context.autocast(q, k, v)
    key = layout(q, k, v, causal, scale)
    ready = calls.prepared.get(key)
    if ready is None or (autotune and not ready.settled):
        ready = _prepare(key, q, k, v, causal, scale, autotune)
    differentiable = q.requires_grad or k.requires_grad or v.requires_grad
    if not differentiable and not casts and not torch._C._len_torch_dispatch_stack():
        # Prepared in another state of torch, such as inference_mode. Guards need 3 different tensors.
        if q is not k is not v is not q and not ready.is_alike(q, k, v):
            ready = calls.keep(key, replace(ready, is_alike=calls.guards(q, k, v)))
        calls.last = ready
    try:
        return ready.call(q, k, v)
    except Unsupported:
        return calls.sdpa_of(q, k, v, causal, scale)(q, k, v)


def _prepare(key: Hashable, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None, tunes: bool) -> Ready:
    calls.require_attention(q, k, v, scale)
    settled = tunes and not torch.cuda.is_current_stream_capturing() and not torch._C._len_torch_dispatch_stack()
    if settled and calls.shape_of(q, k, v, causal):
        from attnlab.serving import tune  # needs pandas and scipy

        tune.ensure(q, k, v, causal, scale)
    try:
        call = calls.call_of(calls.choose(q, k, v, causal, scale), q, k, v, causal, scale)
    except Unsupported:
        call = calls.sdpa_of(q, k, v, causal, scale)
    return calls.keep(key, Ready(calls.guards(q, k, v), causal, scale, call, settled))


def _of_lengths(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    scale: float | None,
    kv_lens: Tensor | None,
    q_lens: Tensor | None,
    block_table: Tensor | None,
) -> Tensor:
    """`attend` if each sequence has its own number of keys, or of queries."""
    given = {name: each for name, each in (("kv_lens", kv_lens), ("q_lens", q_lens)) if each is not None}
    calls.require_tensors(q, k, v, **given, **({} if block_table is None else {"block_table": block_table}))
    for name, each in given.items():
        fits = each.layout is torch.strided and not each.is_nested and each.shape == q.shape[:1]
        if (q.ndim, k.ndim) != (4, 4) or not fits or each.dtype not in ragged.WHOLE:
            raise ValueError(f"{name} has to hold a whole number for each sequence of q {tuple(q.shape)}")
    if block_table is not None:
        _require_table(block_table, q, k, v, kv_lens)
    if needs_gradients(q, k, v) or (is_compiling() and context.asks_for_sdpa()):
        return ragged.masked(q, *ragged.gathered(k, v, block_table), kv_lens, causal, scale, q_lens)
    if is_compiling() or _is_watched(q, k, v):
        q, k, v = context.autocast(q, k, v)
        return torch.ops.attnlab.attention_of_lengths(q, k, v, kv_lens, causal, scale, q_lens, block_table)
    return _of_lengths_forward(q, k, v, kv_lens, causal, scale, q_lens, block_table)


def _require_table(block_table: Tensor, q: Tensor, k: Tensor, v: Tensor, kv_lens: Tensor | None) -> None:
    """Raise ValueError unless k and v are paged caches that fit the table."""
    if kv_lens is None:
        raise ValueError("attend takes block_table with kv_lens")
    if block_table.dtype != torch.int32 or block_table.ndim != 2 or block_table.shape[0] != q.shape[0]:
        raise ValueError(
            f"block_table has to be int32, with a row of pages for each sequence of q {tuple(q.shape)}, not "
            f"{block_table.dtype} {tuple(block_table.shape)}"
        )
    if k.ndim != 4 or v.shape != k.shape or not k.shape[0]:
        raise ValueError(f"k and v have to be pages of one shape, not {tuple(k.shape)} and {tuple(v.shape)}")


def _of_lengths_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kv_lens: Tensor | None,
    causal: bool = False,
    scale: float | None = None,
    q_lens: Tensor | None = None,
    block_table: Tensor | None = None,
) -> Tensor:
    """`_of_lengths` if nothing is traced and no gradients are needed."""
    dense = None  # K and V of each sequence, once they are copied from pages
    if is_plain(q, k, v):
        most = k.shape[2] * (1 if block_table is None else block_table.shape[1])
        lengths = (_counts(q_lens, q.shape[2]), _counts(kv_lens, most))
        if q_lens is not None or q.shape[2] > ragged.MOST_FEW:
            with suppress(Unsupported, UserError):
                return ragged.padded(*context.autocast(q, k, v), causal, scale, *lengths, block_table)
            if block_table is not None:
                with suppress(Unsupported, UserError):
                    dense = ragged.gathered(k, v, block_table)
                    return ragged.padded(*context.autocast(q, *dense), causal, scale, *lengths)
        if q_lens is None:
            with suppress(Unsupported, UserError):
                return ragged.split(*context.autocast(q, k, v), causal, scale, lengths[1], block_table)
    return ragged.masked(q, *(dense or ragged.gathered(k, v, block_table)), kv_lens, causal, scale, q_lens)


def _counts(lengths: Tensor | None, most: int) -> Tensor | None:
    """Contiguous lengths in int32, as kernels read them; those in int64 are clamped to [-1, `most`] first."""
    if lengths is None:
        return None
    return (lengths.clamp(-1, most) if lengths.dtype == torch.int64 else lengths).to(torch.int32).contiguous()


operator.register(anew, _of_lengths_forward, ragged.packed)
