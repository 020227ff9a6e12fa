"""Attention from elsewhere, callable if it is installed.

These are PyTorch's FlexAttention, flash-attn-4, cuDNN through its own frontend, FlashInfer and xFormers.
"""

import logging
from functools import cache
from typing import Any

import torch
from torch import Tensor

from attnlab.measuring.peers import cudnn, flashinfer, packages
from attnlab.measuring.subjects.implementation import Implementation, Unsupported
from attnlab.measuring.subjects.sdpa import offsets

# Shapes that one process may compile FlexAttention for, each separately; beyond that, torch silently falls back.
FLEX_SHAPES = 1024


def flex(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None = None) -> Tensor:
    """PyTorch's FlexAttention, compiled for each shape; a causal mask is a block mask, aligned to the end.

    Raises:
        Unsupported: the device is no NVIDIA GPU; on a CPU it has no backward pass and can't be captured in a graph.
    """
    if q.device.type != "cuda":
        raise Unsupported("peer.flex is measured only on an NVIDIA GPU")
    mask = _causal_blocks(q.shape[2], k.shape[2], q.device) if causal else None
    output: Tensor = _compiled_flex()(q, k, v, block_mask=mask, scale=scale, enable_gqa=k.shape[1] != q.shape[1])
    return output


def flash4(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None = None) -> Tensor:
    """flash-attn-4's `flash_attn_func`, whose causal mask is aligned to the end. On Hopper it can't split keys.

    Its tensors are ``(batch, seq_len, heads, head_dim)``: views, without a copy.

    Raises:
        Unsupported: the package is not installed, the device is no NVIDIA GPU, or the package refuses the tensors.
    """
    queries, keys, values = (tensor.transpose(1, 2) for tensor in (q, k, v))
    call = _flash4(q).flash_attn_func
    return _taken(call, queries, keys, values, softmax_scale=scale, causal=causal).transpose(1, 2)


def flash4_ragged(q: Tensor, k: Tensor, v: Tensor, causal: bool, sequences: tuple[int, ...]) -> Tensor:
    """flash-attn-4's `flash_attn_varlen_func`; raises as `flash4` does."""
    call = _flash4(q).flash_attn_varlen_func
    begins = offsets(sequences, q.device, torch.int32)
    queries, keys, values = (tensor[0].transpose(0, 1) for tensor in (q, k, v))
    output = _taken(
        call,
        queries,
        keys,
        values,
        cu_seqlens_q=begins,
        cu_seqlens_k=begins,
        max_seqlen_q=max(sequences),
        max_seqlen_k=max(sequences),
        causal=causal,
    )
    return output.transpose(0, 1).unsqueeze(0)


def _taken(call: Any, *tensors: Tensor, **settings: Any) -> Tensor:
    """The output of flash-attn-4, which asserts what it takes."""
    try:
        output = call(*tensors, **settings)
    except AssertionError as error:
        raise Unsupported(f"flash-attn-4 refuses the tensors: {error}") from None
    return output[0] if isinstance(output, tuple) else output  # some versions return the log-sum-exp beside it


def _flash4(q: Tensor) -> Any:
    if q.device.type != "cuda":
        raise Unsupported("flash-attn-4 needs an NVIDIA GPU")
    return packages.installed("flash_attn.cute", "flash-attn-4")


@cache
def _compiled_flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    torch._dynamo.config.recompile_limit = FLEX_SHAPES
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


@cache
def _causal_blocks(seq_len: int, kv_len: int, device: torch.device) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    earlier = kv_len - seq_len

    def seen(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return query + earlier >= key

    return create_block_mask(seen, None, None, seq_len, kv_len, device=str(device))


def xformers(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None = None) -> Tensor:
    """xFormers' `memory_efficient_attention`, which chooses among its own kernels.

    Its tensors are ``(batch, length, heads, head_dim)``, with grouped heads ``(batch, length, kv_heads, heads of each,
    head_dim)``: views, without a copy. The causal mask is the one that is aligned to the end.

    Raises:
        Unsupported: the package is not installed, holds no kernels for this PyTorch, or the device is no NVIDIA GPU.
    """
    if q.device.type != "cuda":
        raise Unsupported("xFormers is measured only on an NVIDIA GPU")
    fmha, shared = _memory_efficient(), q.shape[1] // k.shape[1]
    queries, keys, values = (tensor.transpose(1, 2) for tensor in (q, k, v))
    if shared > 1:
        queries = queries.unflatten(2, (k.shape[1], shared))
        keys, values = (tensor.unsqueeze(3).expand(-1, -1, -1, shared, -1) for tensor in (keys, values))
    mask = fmha.attn_bias.LowerTriangularFromBottomRightMask() if causal else None
    output: Tensor = fmha.memory_efficient_attention(queries, keys, values, attn_bias=mask, scale=scale)
    return output.reshape(q.transpose(1, 2).shape).transpose(1, 2)


@cache
def _memory_efficient() -> Any:
    logging.getLogger("xformers").setLevel(logging.ERROR)  # it warns in many lines of what is one reason here
    if not packages.installed("xformers", "xFormers")._has_cpp_library:
        raise Unsupported(f"the kernels of xFormers were compiled for another PyTorch than {torch.__version__}")
    return packages.installed("xformers.ops.fmha", "xFormers")


PEERS = (
    Implementation("peer.flex", flex),
    Implementation("peer.flash4", flash4, ragged=flash4_ragged),
    Implementation("peer.cudnn", cudnn.cudnn, differentiable=False),
    Implementation("peer.flashinfer", flashinfer.flashinfer, ragged=flashinfer.flashinfer_ragged, differentiable=False),
    Implementation("peer.xformers", xformers),
)
