"""PyTorch's FlexAttention."""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from attnlab.measuring.subjects.implementation import Implementation, Unsupported

# The most shapes for which one process compiles it, each separately; beyond that, torch silently falls back.
SHAPES = 1024


def flex(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None = None) -> Tensor:
    """FlexAttention, compiled for each shape; a causal mask is a block mask, aligned to the end.

    Raises:
        Unsupported: the device isn't an NVIDIA GPU; on a CPU it has no backward pass and can't be captured in a graph.
    """
    if q.device.type != "cuda":
        raise Unsupported("FlexAttention is measured only on an NVIDIA GPU")
    mask = _causal_blocks(q.shape[2], k.shape[2], q.device) if causal else None
    output: Tensor = _compiled()(q, k, v, block_mask=mask, scale=scale, enable_gqa=k.shape[1] != q.shape[1])
    return output


@cache
def _compiled() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    torch._dynamo.config.recompile_limit = SHAPES
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


@cache
def _causal_blocks(seq_len: int, kv_len: int, device: torch.device) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    def seen(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return query + (kv_len - seq_len) >= key

    return create_block_mask(seen, None, None, seq_len, kv_len, device=str(device))


IMPLEMENTATION = Implementation("peer.flex", flex)
