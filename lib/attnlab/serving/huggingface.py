"""`attend` in models of Hugging Face transformers, through their attention interface."""

from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import causal_mask_function, sdpa_mask

from attnlab.measuring.subjects import oracle
from attnlab.serving.attend import attend
from attnlab.study.tuning import FEW_QUERIES

BEYOND = ("position_bias", "softcap", "s_aux", "cache")
"""Arguments of other attentions than softmax(scale·Q·Kᵀ)·V."""


def attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """`attend` as transformers calls an attention.

    Transformers' own SDPA computes masks, such as padding, dropout and biases; and a causal prompt over more keys than
    queries, whose mask transformers aligns to the beginning. Lengths that `_mask` made are no mask to `attend`.

    Args:
        query: ``(batch, heads, seq_len, head_dim)``.
        key: ``(batch, kv_heads, kv_len, head_dim)``; `value` likewise.
        attention_mask: as transformers makes it, or as `_mask` does.

    Returns ``(batch, seq_len, heads, head_dim)``, and no weights.
    """
    causal = query.shape[2] > 1 and (getattr(module, "is_causal", True) if is_causal is None else is_causal)
    plain = not dropout and all(others.get(name) is None for name in BEYOND) and key.shape == value.shape
    lengths = attention_mask if attention_mask is not None and attention_mask.ndim == 1 else None
    if lengths is not None and not plain:
        attention_mask = oracle.seen(lengths, query.shape[2], key.shape[2])
    if not plain or (lengths is None and (attention_mask is not None or (causal and query.shape[2] != key.shape[2]))):
        masked = (attention_mask, dropout, scaling, is_causal)
        return sdpa_attention_forward(module, query, key, value, *masked, **others)
    return attend(query, key, value, causal, scaling, kv_lens=lengths).transpose(1, 2).contiguous(), None


def _mask(**given: Any) -> Tensor | None:
    """The mask of `transformers.masking_utils.sdpa_mask`, unless `attend` computes without one.

    A plain causal prompt has no mask, also under torch.compile, where transformers makes one for PyTorch before 2.14.
    For a few queries after a cache it is the number of keys of each sequence that are in use, int32 ``(batch,)``.
    """
    q_length, kv_length, q_offset = given["q_length"], given["kv_length"], given.get("q_offset", 0)
    attention_mask, local_size = given.get("attention_mask"), given.get("local_size")
    whole = attention_mask is None and isinstance(q_offset, int) and not q_offset and q_length == kv_length
    if given.get("allow_is_causal_skip", True) and whole and (local_size is None or kv_length < local_size):
        return None
    causal = given.get("mask_function", causal_mask_function) is causal_mask_function
    plain = causal and local_size is None and not given.get("kv_offset")
    after_cache = isinstance(q_offset, Tensor) or (q_length > 1 and q_offset > 0)
    if plain and after_cache and q_length <= FEW_QUERIES and _pads_nothing(attention_mask):
        ends = torch.full((given["batch_size"],), q_length, device=given.get("device", "cpu")) + q_offset
        return ends.to(torch.int32)  # once for all layers
    made: Tensor | None = sdpa_mask(**given)
    return made


def _pads_nothing(attention_mask: Tensor | None) -> bool:
    """Whether it is known that no token of a batch is padding. The answer waits for the device."""
    if attention_mask is None:
        return True
    traced = torch.compiler.is_compiling() or (attention_mask.is_cuda and torch.cuda.is_current_stream_capturing())
    return not traced and bool(attention_mask.all())


def register(name: str = "attnlab") -> None:
    """Let models of transformers take `attend` by this name as `attn_implementation`, with the masks made for SDPA."""
    transformers.AttentionInterface.register(name, attention)
    transformers.AttentionMaskInterface.register(name, _mask)
