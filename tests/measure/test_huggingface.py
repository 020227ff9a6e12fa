"""`attend` in models of transformers: they compute what they do with their own SDPA."""

import pytest
import torch

import attnlab

transformers = pytest.importorskip("transformers")
from transformers.integrations.sdpa_attention import sdpa_attention_forward  # noqa: E402

from attnlab.serving import huggingface  # noqa: E402

NAME = "attnlab"
FAMILIES = {
    "gpt2": lambda: transformers.GPT2Config(n_layer=2, n_head=2, n_embd=128, n_positions=64, vocab_size=512),
    "llama": lambda: transformers.LlamaConfig(
        **{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
        **{"hidden_size": 64, "intermediate_size": 64, "vocab_size": 512},
    ),
}


@pytest.fixture(params=FAMILIES)
def made(request, monkeypatch):
    """A tiny model that may compute attention by `attend`, and how often it called that."""
    calls, inner = [], huggingface.attend
    monkeypatch.setattr(
        huggingface, "attend", lambda *args, **named: calls.append((*args, named["kv_lens"])) or inner(*args, **named)
    )
    attnlab.register()
    torch.manual_seed(1)
    network = transformers.AutoModelForCausalLM.from_config(FAMILIES[request.param]())
    return network.eval().requires_grad_(False), calls


def tokens(batch: int = 2, length: int = 12) -> torch.Tensor:
    return torch.randint(512, (batch, length), generator=torch.Generator().manual_seed(1))


def by_both(made, work) -> list[torch.Tensor]:
    found = []
    for attention in ("sdpa", NAME):
        made.set_attn_implementation(attention)
        found.append(work(made))
    return found


def test_a_prompt_gives_the_logits_of_transformers_own_sdpa(made):
    network, calls = made
    theirs, ours = by_both(network, lambda net: net(tokens(), use_cache=False).logits)
    torch.testing.assert_close(ours, theirs)
    assert len(calls) == 2  # a call for each layer
    assert all(causal for *_, causal, _, _ in calls)
    assert network.config._attn_implementation == NAME


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
    """Logits of three tokens, and then of one more, after a prompt in a cache."""
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
    compiled = torch.compile(
        network, fullgraph=True, backend=lambda graph, _: graphs.append(graph.code) or graph.forward
    )
    torch.testing.assert_close(compiled(tokens()).logits, network(tokens(), use_cache=False).logits)
    network(tokens(), past_key_values=held)
    ours = compiled(tokens(length=3), past_key_values=held).logits
    network.set_attn_implementation("sdpa")
    held = CACHES["static"](network.config)
    network(tokens(), past_key_values=held)
    torch.testing.assert_close(ours, network(tokens(length=3), past_key_values=held).logits)
    assert ["ops.attnlab.attention" in code for code in graphs] == [True, True]
    assert ["ops.attnlab.attention_of_lengths" in code for code in graphs] == [False, True]


def test_a_causal_mask_aligned_to_the_beginning_is_left_to_transformers():
    q, k, v = torch.randn(1, 2, 4, 8), torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8)
    theirs, _ = sdpa_attention_forward(torch.nn.Identity(), q, k, v, None)
    ours, weights = huggingface.attention(torch.nn.Identity(), q, k, v, None)
    assert torch.equal(ours, theirs)
    assert weights is None
