"""`attend` in models of Hugging Face transformers, through their attention interface."""

from inspect import getclosurevars
from types import FunctionType
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.nn.functional import pad
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, sdpa_mask
from transformers.utils.import_utils import is_tracing

from attnlab.measuring.subjects import oracle
from attnlab.serving import context, ragged
from attnlab.serving.attend import attend, attend_ragged
from attnlab.study.tuning import FEW_QUERIES

BEYOND = ("position_bias", "softcap", "s_aux", "cache")
"""Arguments for attention that isn't softmax(scale·Q·Kᵀ)·V."""
# Attributes of masks. Copies and parts lack them, so that a model may change a mask of its own.
ENDS = "attnlab_ends"
"""The ends of packed sequences in Q and K, and `causal`."""
LENGTHS = "attnlab_lengths"
"""For a few queries after a cache, the number of used keys of each sequence, int32 ``(batch,)``."""


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
    """`attend` with the parameters of transformers' attention functions.

    Transformers' own SDPA computes dropout, biases, and masks without an attribute of `_mask`. It also computes a
    causal prompt over more keys than queries, whose mask transformers aligns to the beginning. `kernel.ragged` takes
    the `ENDS` of a mask, and without a mask `cu_seq_lens_q` and `cu_seq_lens_k`. Padded rows of its output are 0.

    Args:
        query: ``(batch, heads, seq_len, head_dim)``.
        key: ``(batch, kv_heads, kv_len, head_dim)``; `value` likewise.
        attention_mask: from transformers, or from `_mask`.

    Returns ``(batch, seq_len, heads, head_dim)``, and None for the weights.
    """
    causal = query.shape[2] > 1 and (getattr(module, "is_causal", True) if is_causal is None else is_causal)
    plain = not dropout and all(others.get(name) is None for name in BEYOND) and key.shape == value.shape
    lengths = _told(attention_mask, LENGTHS, query, key)
    known = others.get("cu_seq_lens_q"), others.get("cu_seq_lens_k")
    output = _in_a_row((query, key, value), attention_mask, causal, scaling, known) if plain else None
    if output is not None:
        return output, None
    if lengths is not None:
        causal = query.shape[2] > 1
    elif attention_mask is not None or (causal and query.shape[2] != key.shape[2]):
        plain = False
    if not plain:
        masked = (attention_mask, dropout, scaling, is_causal)
        return sdpa_attention_forward(module, query, key, value, *masked, **others)
    return attend(query, key, value, causal, scaling, kv_lens=lengths).transpose(1, 2).contiguous(), None


def _told(mask: Tensor | None, attribute: str, q: Tensor, k: Tensor) -> Any:
    """An attribute of a mask for all sequences, queries and keys; None for masks that are others, or lack it."""
    found = getattr(mask, attribute, None)
    if mask is None or found is None or len(q) != len(k) or mask.shape != (len(q), 1, q.shape[2], k.shape[2]):
        return None
    return found


def _in_a_row(
    given: tuple[Tensor, Tensor, Tensor], mask: Tensor | None, causal: bool, scale: float | None, known: tuple[Any, Any]
) -> Tensor | None:
    """O of packed sequences, by the mask's ends or else the `known` ones; None for a mask that isn't served."""
    q, k, _ = given
    batch, _, queries, head_dim = q.shape
    if mask is not None:
        told = _told(mask, ENDS, q, k)
        if not told or context.needs_gradients(*given) or head_dim not in ragged.head_dims(q.dtype, q.device):
            return None
        *found, causal = told
        known = known if found[0] is None else found
    if known[0] is None or known[1] is None:
        return None
    compute: Any = attend_ragged if mask is None else ragged.by_kernel
    output = compute(*(tensor.transpose(1, 2).flatten(0, 1) for tensor in given), *known, causal, scale)
    return None if output is None else output.unflatten(0, (batch, queries)).contiguous()


def _mask(**given: Any) -> Tensor | None:
    """The mask of `transformers.masking_utils.sdpa_mask`, unless `attend` computes without one.

    A plain causal prompt has no mask, also under torch.compile, where transformers makes one for PyTorch before 2.14.
    For a few queries after a cache, the mask has the attribute `LENGTHS`; for a padded or packed prompt, `ENDS`.
    """
    q_length, kv_length, q_offset = given["q_length"], given["kv_length"], given.get("q_offset", 0)
    attention_mask, local_size = given.get("attention_mask"), given.get("local_size")
    from_start = isinstance(q_offset, int) and not q_offset
    whole = attention_mask is None and from_start and q_length == kv_length
    if given.get("allow_is_causal_skip", True) and whole and (local_size is None or kv_length < local_size):
        return None
    function = given.get("mask_function", causal_mask_function)
    parts = _parts(function)
    idle = local_size is not None and kv_length < local_size
    if idle and parts and [*parts] == ["sliding_window_overlay", "causal_mask_function"]:
        function, local_size = causal_mask_function, None  # all keys are within the window
    plain, causal = local_size is None and not given.get("kv_offset"), function is causal_mask_function
    after_cache = q_length <= FEW_QUERIES and (isinstance(q_offset, Tensor) or (q_length > 1 and q_offset > 0))
    told = attention_mask is None or not is_tracing(attention_mask)
    if plain and causal and after_cache and told and (attention_mask is None or attention_mask.all()):  # waits for it
        ends = torch.full((given["batch_size"],), q_length, device=given.get("device", "cpu")) + q_offset
        lengths = ends.to(torch.int32)  # once for all layers
        seen = oracle.seen(lengths, q_length, kv_length)
        setattr(seen, LENGTHS, lengths)
        return seen
    found = None
    if plain and whole and not given.get("use_vmap"):
        found = _packed(parts)
    elif plain and from_start and attention_mask is not None and q_length > 1:
        keys_fit = attention_mask.shape[1] == kv_length and (q_length == kv_length or not causal)
        if keys_fit and (causal or function is bidirectional_mask_function) and told:
            found, pads = _padded(attention_mask.bool(), q_length, causal)
            known = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
            given |= known if pads else {"attention_mask": None}  # transformers would wait for the device again
    made: Tensor | None = sdpa_mask(**given)
    if made is not None and found is not None:
        setattr(made, ENDS, found)
    return made


def _parts(function: Any) -> dict[str, Any] | None:
    """By name, the mask functions that transformers' `and_masks` combined into this one; None for others.

    Under torch.compile, which can't inspect it, the result is empty.
    """
    if not isinstance(function, FunctionType) or function.__name__ != "and_mask":
        return None
    parts = () if is_tracing() else getclosurevars(function).nonlocals.get("mask_functions", (None,))
    return {getattr(part, "__qualname__", "").partition(".")[0]: part for part in parts}


def _packed(parts: dict[str, Any] | None) -> tuple[Tensor | None, Tensor | None, bool] | None:
    """`ENDS` of transformers' mask for packed causal sequences; None for others. The host reads their number.

    Under torch.compile the ends are None, and those with which the model is called are used.
    """
    if not parts:
        return None if parts is None else (None, None, True)
    if [*parts] != ["packed_sequence_mask_function", "remap_positions_for_packed_sequence"]:
        return None
    packs, places = (getclosurevars(part).nonlocals for part in parts.values())
    sequences = packs["packed_sequence_mask"]
    if places["mask_function"] is not causal_mask_function or is_tracing(sequences):
        return None
    begins = sequences.diff(dim=1, prepend=sequences[:, :1] - 1).flatten().nonzero().flatten()
    ends = pad(begins, (0, 1), value=sequences.numel()).to(torch.int32)
    return ends, ends, True


def _padded(real: Tensor, queries: int, causal: bool) -> tuple[tuple[Tensor, Tensor, bool] | None, bool]:
    """`ENDS` of a mask ``(batch, keys)`` of real tokens, and whether it has padding; waits for the device.

    `ENDS` is None if the real tokens of a sequence have gaps. Padding counts as sequences of queries without keys, and
    of keys without queries. Without the causal mask, queries may be of another batch, so that only keys have padding.
    """
    batch, keys = real.shape
    first, place = real.int().argmax(1), torch.arange(keys, device=real.device)
    end = first + real.sum(1)
    gapless = ((place >= first[:, None]) & (place < end[:, None])) == real
    pads, has_gaps = (~torch.stack([real.all(), gapless.all()])).tolist()
    none, every = torch.zeros_like(end), torch.full_like(end, keys)
    of_keys = [none, first, end, every, every] if causal else [first, end, every]
    of_queries = [first, first, end, end, every] if causal else [none, none + queries, none + queries]
    begins = torch.arange(batch, device=real.device)[:, None]
    each = torch.stack(of_queries, 1) + begins * queries, torch.stack(of_keys, 1) + begins * keys
    ends, key_ends = (pad(ends.flatten(), (1, 0)).to(torch.int32) for ends in each)
    return (None if has_gaps else (ends, key_ends, causal)), pads


def register(name: str = "attnlab") -> None:
    """Register `attend` with transformers: models take this name as `attn_implementation`, with the masks for SDPA."""
    transformers.AttentionInterface.register(name, attention)
    transformers.AttentionMaskInterface.register(name, _mask)
