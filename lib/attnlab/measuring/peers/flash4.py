"""flash-attn-4. Its tensors are ``(batch, seq_len, heads, head_dim)``: views, without a copy."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnlab.measuring.peers import plans
from attnlab.measuring.subjects.implementation import Implementation, Unsupported
from attnlab.measuring.subjects.sdpa import offsets


def flash4(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None = None, **settings: Any) -> Tensor:
    """`flash_attn_func`, whose causal mask is aligned to the end. On Hopper it has no split-KV.

    Raises:
        Unsupported: the package is not installed, the device is no NVIDIA GPU, or the package refuses the tensors.
    """
    tensors = [tensor.transpose(1, 2) for tensor in (q, k, v)]
    return _called("flash_attn_func", *tensors, softmax_scale=scale, causal=causal, **settings).transpose(1, 2)


def flash4_ragged(q: Tensor, k: Tensor, v: Tensor, causal: bool, sequences: tuple[int, ...]) -> Tensor:
    """`flash_attn_varlen_func`; raises as `flash4` does."""
    lengths: dict[str, Any] = dict.fromkeys(
        ("cu_seqlens_q", "cu_seqlens_k"), offsets(sequences, q.device, torch.int32)
    ) | dict.fromkeys(("max_seqlen_q", "max_seqlen_k"), max(sequences))
    tensors = [tensor[0].transpose(0, 1) for tensor in (q, k, v)]
    return _called("flash_attn_varlen_func", *tensors, causal=causal, **lengths).transpose(0, 1).unsqueeze(0)


def _called(function: str, *tensors: Tensor, **settings: Any) -> Tensor:
    """The output of one of the package's functions; a failed assertion in it raises Unsupported."""
    call = getattr(plans.installed("flash_attn.cute", "flash-attn-4", tensors[0].device), function)
    try:
        output = call(*tensors, **settings)
    except AssertionError as error:
        raise Unsupported(f"flash-attn-4 refuses the tensors: {error}") from None
    return output[0] if isinstance(output, tuple) else output  # some versions return the log-sum-exp too


IMPLEMENTATION = Implementation("peer.flash4", flash4, ragged=flash4_ragged)
DETERMINISTIC = Implementation("peer.flash4_deterministic", partial(flash4, deterministic=True), repeats=True)
