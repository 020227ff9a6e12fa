"""`attend` in models of transformers: the results equal those with their SDPA."""

import pytest
import torch
from conftest import keeping

import attnlab

transformers = pytest.importorskip("transformers")
from transformers.integrations.sdpa_attention import sdpa_attention_forward  # noqa: E402

from attnlab.serving import huggingface, ragged  # noqa: E402

NAME = "attnlab"
SIZES = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, "intermediate_size": 64}
FAMILIES = {
    "gpt2": lambda: transformers.GPT2Config(n_layer=2, n_head=2, n_embd=128, n_positions=64, vocab_size=512),
    "llama": lambda: transformers.LlamaConfig(**SIZES, num_key_value_heads=2, vocab_size=512),
}


@pytest.fixture(params=FAMILIES)
def made(request, monkeypatch):
    """A tiny model that can compute attention by `attend`, and the list of its calls."""
    calls, inner = [], huggingface.attend
    monkeypatch.setattr(
        huggingface, "attend", lambda *args, **named: calls.append((*args, named["kv_lens"])) or inner(*args, **named)
    )
    return of_tokens(FAMILIES[request.param]()), calls


def of_tokens(config):
    attnlab.register()
    torch.manual_seed(1)
    return transformers.AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)


def tokens(batch: int = 2, length: int = 12) -> torch.Tensor:
    return torch.randint(512, (batch, length), generator=torch.Generator().manual_seed(1))


def by_both(made, work) -> list[torch.Tensor]:
    found = []
    for attention in ("sdpa", NAME):
        made.set_attn_implementation(attention)
        found.append(work(made))
    return found


def test_tokens_after_a_prompt_are_those_of_transformers_own_sdpa(made):
    network, calls = made
    theirs, ours = by_both(
        network, lambda net: net.generate(tokens(), max_new_tokens=4, min_new_tokens=4, do_sample=False)
    )
    assert ours.tolist() == theirs.tolist()
    assert [(q.shape[2], k.shape[2], causal) for q, k, _, causal, *_ in calls[::2]] == [
        (12, 12, True),
        *((1, length, False) for length in (13, 14, 15)),
    ]


def after_a_cache(made, cache):
    """Logits of 3 tokens, and then of 1 more, after a prompt in a cache."""
    made(tokens(), past_key_values=cache)
    return torch.cat([made(tokens(length=length), past_key_values=cache).logits for length in (3, 1)], 1)


CACHES = {
    "dynamic": lambda config: transformers.DynamicCache(config=config),
    "static": lambda config: transformers.StaticCache(config=config, max_cache_len=40),
}


@pytest.mark.parametrize(("cache", "one_more"), [("dynamic", None), ("static", 16)])
def test_a_few_tokens_after_a_cache_are_attended_by_its_length(made, cache, one_more):
    network, calls = made
    theirs, ours = by_both(network, lambda net: after_a_cache(net, CACHES[cache](net.config)))
    torch.testing.assert_close(ours, theirs)
    a_layer = [(q.shape[2], lens if lens is None else lens.tolist()) for q, *_, lens in calls[::2]]
    assert a_layer[-2:] == [(3, [15, 15]), (1, one_more if one_more is None else [16, 16])]


@pytest.mark.parametrize("cache", CACHES)
def test_padding_before_a_cache_is_left_to_transformers(made, cache):
    network, calls = made
    padding = torch.ones(2, 15, dtype=torch.long)
    padding[0, :5] = 0

    def padded(net):
        held = CACHES[cache](net.config)
        net(tokens(), attention_mask=padding[:, :12], past_key_values=held)
        return net(tokens(length=3), attention_mask=padding, past_key_values=held).logits

    theirs, ours = by_both(network, padded)
    torch.testing.assert_close(ours, theirs)
    assert calls == []


@pytest.mark.parametrize("made", ["llama"], indirect=True)
def test_under_torch_compile_a_prompt_and_a_static_cache_break_no_graph(made):
    network, _ = made
    network.set_attn_implementation(NAME)
    graphs, held = [], CACHES["static"](network.config)
    compiled = torch.compile(network, fullgraph=True, backend=keeping(graphs))
    torch.testing.assert_close(compiled(tokens()).logits, network(tokens(), use_cache=False).logits)
    network(tokens(), past_key_values=held)
    ours = compiled(tokens(length=3), past_key_values=held).logits
    network.set_attn_implementation("sdpa")
    held = CACHES["static"](network.config)
    network(tokens(), past_key_values=held)
    torch.testing.assert_close(ours, network(tokens(length=3), past_key_values=held).logits)
    assert ["ops.attnlab.attention" in code for code in graphs] == [True, True]
    assert ["ops.attnlab.attention_of_lengths" in code for code in graphs] == [False, True]


def test_generate_compiles_the_steps_after_a_static_cache_once():
    """`generate` makes the mask of a step outside of the compiled model, and hands it to it."""
    network, graphs = of_tokens(FAMILIES["llama"]()), []
    settings = transformers.CompileConfig(backend=keeping(graphs), fullgraph=True, mode=None)
    settings._compile_all_devices = True  # by default, models on a CPU aren't compiled
    options = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False, "cache_implementation": "static"}
    theirs, ours = by_both(network, lambda net: net.generate(tokens(), compile_config=settings, **options))
    assert torch.equal(ours, theirs)
    assert ["ops.attnlab.attention_of_lengths" in code for code in graphs] == [False, True]


MASKING = {  # these change masks, or hand them on as those of another kind
    "bert": lambda: transformers.BertConfig(**SIZES, vocab_size=512),
    "doge": lambda: transformers.DogeConfig(**SIZES, num_key_value_heads=2, vocab_size=512),
}


@pytest.mark.parametrize("name", MASKING)
@pytest.mark.parametrize("cache", CACHES)
def test_models_that_handle_masks_themselves_get_those_of_transformers(name, cache):
    network = of_tokens(MASKING[name]())
    options = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, "disable_compile": True}
    options |= {"return_dict_in_generate": True, "output_logits": True, "cache_implementation": cache}
    theirs, ours = by_both(network, lambda net: torch.stack(net.generate(tokens(), **options).logits))
    torch.testing.assert_close(ours, theirs)


def test_a_causal_mask_aligned_to_the_beginning_is_left_to_transformers():
    q, k, v = torch.randn(1, 2, 4, 8), torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8)
    theirs, _ = sdpa_attention_forward(torch.nn.Identity(), q, k, v, None)
    ours, weights = huggingface.attention(torch.nn.Identity(), q, k, v, None)
    assert torch.equal(ours, theirs)
    assert weights is None


# Padded and packed sequences


def windowed(size):
    return transformers.MistralModel(
        transformers.MistralConfig(**SIZES, num_key_value_heads=2, vocab_size=512, sliding_window=size)
    )


OTHERS = {
    "encoder": lambda: transformers.BertModel(transformers.BertConfig(**SIZES, vocab_size=512)),
    "encoder and decoder": lambda: transformers.BartModel(
        transformers.BartConfig(
            **{"vocab_size": 512, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64},
            **{"encoder_attention_heads": 4, "decoder_attention_heads": 4, "decoder_ffn_dim": 64},
        )
    ),
    "window": lambda: windowed(4),
    "idle window": lambda: windowed(16),
}
PADDED = {
    "left": [[0] * 5 + [1] * 7, [1] * 12, [0] * 11 + [1]],
    "right": [[1] * 7 + [0] * 5, [1] * 12, [1] + [0] * 11],
    "both": [[0] * 3 + [1] * 7 + [0] * 2, [1] * 12, [0] * 11 + [1]],
    "gaps": [[1] * 3 + [0] * 2 + [1] * 7, [1] * 12, [1] * 12],
    "none": [[1] * 12] * 3,
}


@pytest.fixture
def kernel(monkeypatch):
    """The calls: sequence ends of Q and of K, and whether causal. SDPA of each sequence replaces the kernel."""
    calls = []

    def by_kernel(q, k, v, ends, key_ends, causal, scale):
        calls.append((ends.tolist(), key_ends.tolist(), causal))
        return ragged._each(q, k, v, ends, key_ends, causal, scale)

    monkeypatch.setattr(ragged, "by_kernel", by_kernel)
    monkeypatch.setattr(ragged, "head_dims", lambda *_: (16, 64))
    attnlab.register()
    torch.manual_seed(1)
    return calls


@pytest.mark.parametrize("side", PADDED)
def test_padded_prompts_reach_the_kernel_by_their_lengths(made, kernel, side):
    network, calls = made
    mask, given = torch.tensor(PADDED[side]), tokens(3)
    theirs, ours = by_both(network, lambda net: net(given, attention_mask=mask, use_cache=False).logits)
    torch.testing.assert_close(ours[mask.bool()], theirs[mask.bool()])
    assert ours.isfinite().all()
    assert (len(kernel), len(calls)) == {"gaps": (0, 0), "none": (0, 2)}.get(side, (2, 0))
    if side == "both":
        first = [0, 3, 3, 10, 10, 12], [0, 0, 3, 10, 12, 12], True
        assert [each if isinstance(each, bool) else each[:6] for each in kernel[0]] == list(first)
    network.requires_grad_()
    network(given, attention_mask=mask).logits.sum().backward()
    with torch.no_grad():
        tokens_of = by_both(
            network, lambda net: net.generate(given, attention_mask=mask, max_new_tokens=3, do_sample=False)
        )
    if side == "left":
        assert torch.equal(*tokens_of)
        assert len(kernel) == 4  # transformers computes those after the prompt


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("side", ["left", "both", "gaps"])
def test_masks_are_those_of_transformers_in_encoders_cross_attention_and_windows(kernel, name, side):
    network = OTHERS[name]().eval().requires_grad_(False)
    mask, given = torch.tensor(PADDED[side]), {"input_ids": tokens(3)}
    if name == "encoder and decoder":
        given["decoder_input_ids"] = tokens(3).flip(1)  # cross-attention with as many queries as keys
    theirs, ours = by_both(network, lambda net: net(**given, attention_mask=mask).last_hidden_state)
    where = slice(None) if name == "encoder and decoder" else mask.bool()
    torch.testing.assert_close(ours[where], theirs[where])
    assert len(kernel) == (0 if side == "gaps" else {"encoder and decoder": 4, "window": 0}.get(name, 2))


LENGTHS = [3, 1, 8]


@pytest.mark.parametrize("made", ["llama"], indirect=True)
@pytest.mark.parametrize("batch", [1, 2])
def test_packed_sequences_reach_the_kernel(made, kernel, batch):
    """By positions that begin again, and by sequence ends without such positions."""
    network, calls = made
    places, ends = torch.cat([torch.arange(length) for length in LENGTHS])[None], torch.tensor([0, 3, 4, 12])
    given = {"input_ids": tokens(batch), "use_cache": False}
    theirs, ours = by_both(network, lambda net: net(**given, position_ids=places).logits)
    torch.testing.assert_close(ours, theirs)
    ends = torch.tensor([0, 3, 4, 12, 15, 16, 24][: 1 + 3 * batch], dtype=torch.int32)
    assert kernel == 2 * [(ends.tolist(), ends.tolist(), True)]
    known = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": 8, "max_length_k": 8}
    torch.testing.assert_close(network(**given, **known).logits, theirs)
    assert not calls


@pytest.mark.parametrize("made", ["llama"], indirect=True)
def test_compiled_packed_sequences_break_no_graph_and_are_compiled_once(made, monkeypatch):
    monkeypatch.setattr(ragged, "head_dims", lambda *_: (16, 64))
    network, _ = made
    network.set_attn_implementation(NAME)
    graphs = []
    compiled = torch.compile(network, fullgraph=True, dynamic=True, backend=keeping(graphs))
    for lengths in (LENGTHS, [7, 9], [2, 2, 2, 2, 5]):
        places = torch.cat([torch.arange(length) for length in lengths])[None]
        ends = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
        given = {"input_ids": tokens(1, sum(lengths)), "position_ids": places, "use_cache": False}
        known = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends}
        torch.testing.assert_close(compiled(**given, **known).logits, network(**given).logits)
    assert [code.count("ops.attnlab.attention_packed") for code in graphs] == [2]
