"""xFormers' `memory_efficient_attention`, which chooses among its own kernels."""

import logging
from functools import cache
from typing import Any

import torch
from torch import Tensor

from attnlab.measuring.peers import plans
from attnlab.measuring.subjects.implementation import Implementation, Unsupported


def xformers(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None = None) -> Tensor:
    """xFormers' attention; the causal mask is aligned to the end.

    It gets views, without a copy: ``(batch, length, heads, head_dim)``, with grouped heads ``(batch, length, kv_heads,
    heads / kv_heads, head_dim)``.

    Raises:
        Unsupported: the package is not installed, has no kernels for this PyTorch, or the device isn't an NVIDIA GPU.
    """
    fmha, shared = _memory_efficient(q.device), q.shape[1] // k.shape[1]
    queries, keys, values = (tensor.transpose(1, 2) for tensor in (q, k, v))
    if shared > 1:
        queries = queries.unflatten(2, (k.shape[1], shared))
        keys, values = (tensor.unsqueeze(3).expand(-1, -1, -1, shared, -1) for tensor in (keys, values))
    mask = fmha.attn_bias.LowerTriangularFromBottomRightMask() if causal else None
    output: Tensor = fmha.memory_efficient_attention(queries, keys, values, attn_bias=mask, scale=scale)
    return output.reshape(q.transpose(1, 2).shape).transpose(1, 2)


@cache
def _memory_efficient(device: torch.device) -> Any:
    logging.getLogger("xformers").setLevel(logging.ERROR)  # it warns in many lines about one cause
    if not plans.installed("xformers", "xFormers", device)._has_cpp_library:
        raise Unsupported(f"the kernels of xFormers were compiled for another PyTorch than {torch.__version__}")
    return plans.installed("xformers.ops.fmha", "xFormers", device)


IMPLEMENTATION = Implementation("peer.xformers", xformers)
