"""Models of transformers: what they compute with `attend`, and a record from the command line to its end."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import transformers
from forks import live
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from attnlab import __main__, select_run
from attnlab.base.errors import Interrupted, Outdated, UserError
from attnlab.measure import processes, subjects
from attnlab.measure.session import models as session
from attnlab.measure.subjects import model
from attnlab.runs import models, read, schema, write
from attnlab.runs.manifest import ModelFields
from attnlab.study import models as stated
from attnlab.study.implementations import control
from attnlab.study.models import BASELINE, CANDIDATE

CPU = torch.device("cpu")
TINY = {"models": ["tiny-gpt2", "tiny-llama"], "batch": [2], "prompt": [12], "tokens": 3, "rounds": 2, "replicates": 2}


@pytest.fixture(params=TINY["models"])
def made(request, monkeypatch):
    """A tiny model that computes attention by `attend`, and how often it called that."""
    calls = []
    monkeypatch.setattr(
        model,
        "attend",
        lambda *args, inner=model.attend, **named: calls.append((*args, named["kv_lens"])) or inner(*args, **named),
    )
    model.register(CANDIDATE, model.attention)
    return model.build(stated.MODELS[request.param], 64, "float32", CPU), calls


def tokens(batch: int = 2, length: int = 12) -> torch.Tensor:
    return torch.randint(512, (batch, length), generator=torch.Generator().manual_seed(1))


def by_both(made, work) -> list[torch.Tensor]:
    found = []
    for attention in ("sdpa", CANDIDATE):
        made.set_attn_implementation(attention)
        found.append(work(made))
    return found


# -------------------------------------------------------------------------------------------------- what is computed


def test_a_prompt_gives_the_logits_of_transformers_own_sdpa(made):
    network, calls = made
    theirs, ours = by_both(network, lambda net: net(tokens(), use_cache=False).logits)
    torch.testing.assert_close(ours, theirs)
    assert len(calls) == 2  # a call for each layer
    assert all(causal for *_, causal, _, _ in calls)
    assert network.config._attn_implementation == CANDIDATE


def test_tokens_after_a_prompt_are_those_of_transformers_own_sdpa(made):
    network, calls = made
    theirs, ours = by_both(network, lambda net: model.generate(net, tokens(), 4).tokens)
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


def test_under_torch_compile_a_static_cache_breaks_no_graph(made):
    network, calls = made

    def compiled(net):
        held = CACHES["static"](net.config)
        net(tokens(), past_key_values=held)
        return torch.compile(net, fullgraph=True, backend="aot_eager")(tokens(length=3), past_key_values=held).logits

    theirs, ours = by_both(network, compiled)
    torch.testing.assert_close(ours, theirs)
    assert [q.shape[2] for q, *_ in calls] == [3, 3]


def test_a_causal_mask_aligned_to_the_beginning_is_left_to_transformers():
    q, k, v = torch.randn(1, 2, 4, 8), torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8)
    theirs, _ = sdpa_attention_forward(torch.nn.Identity(), q, k, v, None)
    ours, weights = model.attention(torch.nn.Identity(), q, k, v, None)
    assert torch.equal(ours, theirs)
    assert weights is None


# ----------------------------------------------------------------------------------------------------- what is stated


def test_a_plan_takes_what_is_not_stated_from_its_device():
    plan = stated.plan("cuda", batch=[1, 8])
    assert [model.name for model in plan.models] == ["gpt2", "llama-64", "llama-128"]
    assert {model.head_dim for model in plan.models} == {64, 128}
    assert [(w.batch, w.prompt) for w in plan.workloads(plan.models[0])] == [(1, 512), (1, 4096), (8, 512), (8, 4096)]
    assert plan.dtype == "float16"
    assert stated.plan("cpu").dtype == "float32"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--models", "gtp2"], "unknown model 'gtp2'; known are gpt2, llama-64, llama-128, tiny-gpt2, tiny-llama; did"),
        (["--tokens", "1"], "make model: tokens: input should be greater than or equal to 2, not 1"),
        (["--prompt", f"{10**12}"], "make model: prompt.0: input should be less than 2147483648, not 1000000000000"),
        (["--run", "dispatch"], "'dispatch' can't be the name of a run: data/dispatch/ holds no run"),
    ],
)
def test_what_can_not_be_measured_is_one_line(capsys, data, arguments, problem):
    assert __main__.main(["model", "--device", "cpu", *arguments]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"attnlab: {problem}")
    assert not data.exists()


def test_without_transformers_it_says_so(data, capsys, monkeypatch):
    for name in ("attnlab.measure.session.models", "attnlab.measure.subjects.model"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delattr(subjects, "model", raising=False)
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert __main__.main(["model"]) == 1
    assert (
        capsys.readouterr().err == "attnlab: models need transformers: it is not installed; `make model` sets it up\n"
    )
    assert not data.exists()


# --------------------------------------------------------------------------------------------------- what is recorded


MINE = models.run_of("mine")


def newest(refused=print) -> list[models.Record]:
    return models.newest(read.read_manifest(MINE)["device"]["name"], refused)


@pytest.fixture
def recording(data, unlocked, monkeypatch):
    """Records the tiny plan in this process."""
    monkeypatch.setattr(processes, "fresh_processes", lambda: ThreadPoolExecutor(1))
    return lambda name="mine": select_run.modelled(name, "cpu", TINY)


def test_a_record_holds_what_its_plan_states(recording):
    recording()
    (record,) = newest()
    assert record.manifest.complete
    assert (record.manifest.dispatch, record.manifest.queued) == ({}, True)
    assert record.manifest.command == "make model RUN=mine"
    assert record.manifest.environment.packages["transformers"][0].isdigit()
    attentions = {BASELINE, CANDIDATE, control(BASELINE)}
    samples = record.samples.groupby(["model", "replicate", "round"])
    assert len(samples) == 2 * 2 * 2
    assert all(set(rows["attention"]) == attentions and set(rows["position"]) == {0, 1, 2} for _, rows in samples)
    assert (record.samples["agreeing"] == 2 * 3).all()  # on a CPU all three are SDPA
    assert (record.samples["drafted_us"] > 0).all()
    assert record.samples[["graph_us", "drafted_graph_us"]].isna().all(axis=None)  # a CPU has no graphs
    assert len(record.outputs) == 2 * 2 * 3
    assert record.outputs["max_error"].between(0, 1e-4, inclusive="neither").all()
    assert set(record.outputs["reference"]) == {"float64"}
    spent = record.kernels.groupby(["model", "replicate", "attention", "phase"])
    assert len(spent) == len(record.kernels) == 2 * 2 * 2 * 2
    assert (record.kernels["attention_us"].between(0, record.kernels["total_us"], inclusive="neither")).all()
    assert not (schema.folder(MINE) / "parts").exists()


def test_a_record_that_was_interrupted_goes_on(recording, monkeypatch):
    taken = []

    def cut_off(job):
        if job.replicate == 1 and len(taken) == 2:
            raise KeyboardInterrupt
        taken.append(job.replicate)
        take(job)

    take = session.take
    monkeypatch.setattr(session, "take", cut_off)
    with pytest.raises(Interrupted, match=r"what was recorded of 'mine' is kept: `make model RUN=mine` goes on$"):
        recording()
    assert write.recorded(MINE, "samples") == {"r00-tiny-gpt2", "r00-tiny-llama"}
    assert newest() == []
    plan = ModelFields.model_validate(read.read_manifest(MINE)).plan
    with pytest.raises(Outdated, match=r"the dispatch table changed since the record 'mine' began: start a new one"):
        session.record_models("mine", plan, torch.device("cpu"), {"run": "another"}, ThreadPoolExecutor(1))
    taken.append("again")
    assert select_run.modelled("mine", "cpu", {}) == "mine"  # the plan is the one that it began with
    assert taken == [0, 0, "again", 1, 1]
    assert read.read_manifest(MINE)["complete"]
    with pytest.raises(UserError, match=r"^the record 'mine' is complete: name another with RUN$"):
        recording()


def test_what_was_changed_after_it_was_recorded_is_refused(data):
    live(MINE)
    path = schema.folder(MINE) / "samples.parquet"
    path.write_bytes(path.read_bytes() + b" ")
    refused: list[UserError] = []
    assert newest(refused.append) == []
    (error,) = refused
    assert "samples.parquet doesn't match its manifest: it was changed after it was recorded" in str(error)
