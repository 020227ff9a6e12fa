"""Models of Hugging Face transformers that compute attention by `attend`, through transformers' attention interface."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.generation import BaseStreamer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import causal_mask_function, sdpa_mask

from attnlab.base import rules
from attnlab.base.errors import UserError
from attnlab.measure.instruments import devices
from attnlab.measure.subjects import oracle
from attnlab.measure.subjects.attend import attend
from attnlab.study.implementations import control
from attnlab.study.models import BASELINE, CANDIDATE, DRAFTED, Model
from attnlab.study.tuning import FEW_QUERIES

REGISTERED = {BASELINE: "sdpa", CANDIDATE: CANDIDATE, control(BASELINE): "sdpa"}
"""The attentions that take turns, each with its name in transformers; the baseline has a second turn as its control."""
LOCAL = {"local_files_only": True, "trust_remote_code": False}
"""How anything is read from a folder: nothing is downloaded, and no code of the folder runs."""
BEYOND = ("position_bias", "softcap", "s_aux", "cache")
"""Arguments of other attentions than softmax(scale·Q·Kᵀ)·V."""
Attention = Callable[..., tuple[Tensor, None]]


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
    """`attend` as transformers calls an attention; what `attend` doesn't compute goes to transformers' own SDPA.

    That is whatever has a mask, such as padding, or dropout or a bias; and a causal prompt over more keys than queries,
    whose mask transformers aligns to the beginning. A mask that `_mask` made as lengths is no mask to `attend`.

    Args:
        query: ``(batch, heads, seq_len, head_dim)``.
        key: ``(batch, kv_heads, kv_len, head_dim)``; `value` likewise.
        attention_mask: as transformers makes it, or what `_mask` made.

    Returns:
        ``(batch, seq_len, heads, head_dim)``, and no weights.
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
    """The mask that transformers makes for SDPA, but for what `attend` computes without one.

    There is none for a plain causal prompt, under torch.compile either: for PyTorch before 2.14, transformers makes one
    there. Of a few queries after a cache, it is the number of keys of each sequence, int32 ``(batch,)``: so many of a
    static cache are in use, and all of another one.

    Args: as `transformers.masking_utils.sdpa_mask`.
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
    """Whether it is known that no token of a batch is padding. Finding that out waits for the device."""
    if attention_mask is None:
        return True
    traced = torch.compiler.is_compiling() or (attention_mask.is_cuda and torch.cuda.is_current_stream_capturing())
    return not traced and bool(attention_mask.all())


def register(name: str = "attnlab", function: Attention = attention) -> None:
    """Let models of transformers name an attention as `attn_implementation`, with the masks that they make for SDPA."""
    transformers.AttentionInterface.register(name, function)
    transformers.AttentionMaskInterface.register(name, _mask)


def registered(name: str) -> Attention:
    """The attention function that models of transformers call by a name."""
    found: Attention = transformers.AttentionInterface()[name]
    return found


def build(of: Model | Path, positions: int, dtype: str, device: torch.device) -> Any:
    """A model of transformers: of a folder, or by its sizes with random weights, the same each time on a device.

    Args:
        positions: the most tokens of a sequence; a folder states its own.

    Raises:
        UserError: the folder lacks a part of the weights.
    """
    how = {"dtype": getattr(torch, dtype), "attn_implementation": REGISTERED[BASELINE]}
    if isinstance(of, Path):
        made = _loaded(of, how).to(device)
    else:
        torch.manual_seed(rules.SEED)
        with device:
            made = transformers.AutoModelForCausalLM.from_config(_config(of, positions), **how)
    # Every generation is as long as the others, and takes the likeliest tokens, whatever the folder prefers.
    made.generation_config = transformers.GenerationConfig(use_cache=True)
    return made.eval().requires_grad_(False)


def _loaded(folder: Path, how: dict[str, Any]) -> Any:
    transformers.utils.logging.disable_progress_bar()
    made, found = transformers.AutoModelForCausalLM.from_pretrained(
        folder, **LOCAL, use_safetensors=True, output_loading_info=True, **how
    )
    if missing := sorted(found["missing_keys"]):  # which transformers would draw at random
        raise UserError(f"weights: {folder} lacks {missing[0]}, of {len(missing)} tensors that are missing")
    return made


def _config(model: Model, positions: int) -> Any:
    hidden = model.heads * model.head_dim
    no_ends = {"bos_token_id": None, "eos_token_id": None}  # every generation is as long as the others
    if model.family == "gpt2":
        return transformers.GPT2Config(
            **no_ends,
            n_layer=model.layers,
            n_head=model.heads,
            n_embd=hidden,
            n_inner=model.intermediate,
            n_positions=positions,
            vocab_size=model.vocabulary,
        )
    return transformers.LlamaConfig(
        **no_ends,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.kv_heads,
        head_dim=model.head_dim,
        hidden_size=hidden,
        intermediate_size=model.intermediate,
        max_position_embeddings=positions,
        vocab_size=model.vocabulary,
    )


@dataclass(frozen=True)
class Generation:
    """What a model generated, ``(batch, tokens)``, and when its tokens were on the host, in µs.

    Attributes:
        first_us: from the call to the first token of each prompt.
        rest_us: from then to the last.
    """

    tokens: Tensor
    first_us: float
    rest_us: float


class _Stamps(BaseStreamer):
    """Notes when tokens arrive on the host: the prompts first, then one for each of them at a time."""

    def __init__(self) -> None:
        self.at_ns: list[int] = []

    def put(self, value: Tensor) -> None:
        self.at_ns.append(time.perf_counter_ns())

    def end(self) -> None:
        pass


def generate(model: Any, prompts: Tensor, tokens: int) -> Generation:
    """Continue prompts, ``(batch, length)``, by the most likely tokens, with a cache of keys and values."""
    stamps, everything = _Stamps(), torch.ones_like(prompts)
    begin = time.perf_counter_ns()
    made = model.generate(prompts, attention_mask=everything, max_new_tokens=tokens, do_sample=False, streamer=stamps)
    _, first, *later = stamps.at_ns
    last = later[-1] if later else first
    return Generation(made[:, prompts.shape[1] :].cpu(), (first - begin) / 1e3, (last - first) / 1e3)


def steps(model: Any, prompts: Tensor) -> dict[str, Callable[[], object]]:
    """What takes single steps after prompts, ``(batch, length)``, by the columns of `schema.STEPS`.

    Keys and values are in a static cache, and each step begins at the end of the prompts. On a CPU there are no graphs.
    """
    length = prompts.shape[1]
    cache = transformers.StaticCache(config=model.config, max_cache_len=length + DRAFTED)
    model(prompts, past_key_values=cache, logits_to_keep=1)

    def step(tokens: int) -> Tensor:
        for layer in cache.layers:
            layer.cumulative_length.fill_(length)
        logits: Tensor = model(prompts[:, :tokens], past_key_values=cache).logits
        return logits

    one, drafted = partial(step, 1), partial(step, DRAFTED)
    if not prompts.is_cuda:
        return {"drafted_us": drafted}
    return {"drafted_us": drafted, "drafted_graph_us": _graph(drafted).replay, "graph_us": _graph(one).replay}


def _graph(call: Callable[[], object]) -> torch.cuda.CUDAGraph:
    for _ in range(2):  # what is done at first calls only can't be captured
        call()
    graph = torch.cuda.CUDAGraph()
    with devices.no_garbage_collected(), torch.cuda.graph(graph):
        graph.held = call()  # type: ignore[attr-defined]
    return graph
