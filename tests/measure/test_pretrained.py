"""A model of one's own: that the weights of its folder run, on passages of its text, and what is refused."""

import hashlib
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file

from attnlab import __main__, select_run
from attnlab.base.errors import Interrupted, UserError
from attnlab.measure import pretrained, processes
from attnlab.measure.session import models as session
from attnlab.measure.subjects import model
from attnlab.runs import models, read

CPU = torch.device("cpu")
SIZES = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 128, "intermediate_size": 64}
LLAMA = SIZES | {"num_key_value_heads": 2, "vocab_size": 300, "max_position_embeddings": 64, "eos_token_id": 7}
PLAN = {"batch": [2], "prompt": [8], "tokens": 3, "rounds": 2, "replicates": 2}
WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "that", "one", "dog", "ran"]


def saved(folder, config=None):
    """A folder with a model as `save_pretrained` writes it."""
    torch.manual_seed(1)
    made = transformers.AutoModelForCausalLM.from_config(config or transformers.LlamaConfig(**LLAMA))
    if made.config.model_type == "llama":
        step_to_likely_ends(made)
    made.save_pretrained(folder)
    return folder


def step_to_likely_ends(made):
    """Train for some steps until the model ends every sequence at once, as its configuration has it."""
    optimizer = torch.optim.Adam(made.parameters(), lr=1e-2)
    tokens = torch.randint(256, (4, 16))
    for _ in range(10):
        made(tokens, labels=torch.full_like(tokens, made.config.eos_token_id)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("models") / "Mine-1.5")


@pytest.fixture
def folder(there, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(there, tmp_path / there.name)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "book.txt"
    path.write_bytes(np.random.default_rng(0).bytes(400))
    return path


def add_tokenizer(folder):
    known = {word: number for number, word in enumerate([*WORDS, "?"])}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(known, unk_token="?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(folder)


# -------------------------------------------------------------------------------------------------------- the weights


def test_the_weights_of_the_folder_are_those_that_run(there):
    tokens = torch.randint(300, (2, 12))
    loaded = transformers.AutoModelForCausalLM.from_pretrained(there)
    ours = model.build(there, 0, "float32", CPU)
    torch.testing.assert_close(ours(tokens).logits, loaded(tokens).logits)
    assert loaded(tokens).logits.argmax(-1).eq(7).all()


def test_every_generation_is_as_long_as_stated_whatever_the_folder_prefers(folder):
    preferred = {"do_sample": True, "temperature": 9.0, "repetition_penalty": 9.0, "max_length": 1}
    transformers.GenerationConfig(eos_token_id=7, **preferred).save_pretrained(folder)
    made = model.generate(model.build(folder, 0, "float32", CPU), torch.randint(300, (2, 12)), 5)
    assert made.tokens.tolist() == [[7] * 5] * 2


def test_the_hash_is_what_sha256sum_prints_and_changes_with_the_weights(folder, text):
    first = pretrained.read(str(folder), str(text), "cpu").model.weights
    printed = subprocess.run(
        "LC_ALL=C; sha256sum *.json *.safetensors | sha256sum", shell=True, cwd=folder, capture_output=True, text=True
    )
    assert printed.stdout.split()[0] == first
    changed = model.build(folder, 0, "float32", CPU)
    changed.lm_head.weight.add_(1)
    changed.save_pretrained(folder)
    assert pretrained.read(str(folder), str(text), "cpu").model.weights != first


# -------------------------------------------------------------------------------------------------------- the prompts


def test_without_a_tokenizer_tokens_are_bytes(there, text):
    own = pretrained.read(str(there), str(text), "cpu")
    assert bytes(own.tokens.tolist()) == text.read_bytes()
    assert own.text.tokens == "bytes"
    assert (own.text.name, own.text.sha256) == ("book.txt", hashlib.sha256(text.read_bytes()).hexdigest())


def test_with_a_tokenizer_tokens_are_its_own(folder, text, monkeypatch):
    monkeypatch.setattr(pretrained, "PIECE", 40)
    add_tokenizer(folder)
    text.write_text(" ".join(WORDS))
    own = pretrained.read(str(folder), str(text), "cpu")
    assert own.text.tokens == "tokenizer"
    assert own.tokens[:8].tolist() == list(range(8))
    assert own.tokens.max() < 300


# --------------------------------------------------------------------------------------------------------- the record


@pytest.fixture
def recording(data, unlocked, monkeypatch, there, text):
    """Records the model in this process."""
    monkeypatch.setattr(processes, "fresh_processes", lambda: ThreadPoolExecutor(1))
    return lambda stated=PLAN, weights=there: select_run.modelled("mine", "cpu", stated, str(weights), str(text))


def test_a_record_that_was_cut_off_goes_on_with_the_same_files_alone(recording, monkeypatch, folder, text):
    with monkeypatch.context() as patched:
        patched.setattr(session, "take", lambda job: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(Interrupted, match=r'RUN=mine PARAMS="weights=Mine-1\.5 text=book\.txt"` goes on'):
            recording()
    for others in (lambda: select_run.modelled("mine", "cpu", {}), lambda: recording(PLAN | {"batch": [1]})):
        with pytest.raises(UserError, match=r'is of another plan: `make model RUN=mine PARAMS="weights=Mine-1\.5 text'):
            others()
    changed = model.build(folder, 0, "float32", CPU)
    changed.lm_head.weight.add_(1)
    changed.save_pretrained(folder)
    with pytest.raises(UserError, match="is of another plan"):
        recording({}, folder)
    assert recording({}) == "mine"
    assert read.read_manifest(models.run_of("mine"))["complete"]


# ---------------------------------------------------------------------------------------------------------- bad input


def lacking(name):
    return lambda folder: (folder / name).unlink()


def holding(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def of_another(config):
    return lambda folder: saved(folder, config)


def not_all(folder):
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


small_vocabulary = of_another(transformers.GPT2Config(n_layer=1, n_embd=64, n_head=2, vocab_size=100))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (shutil.rmtree, "weights: FOLDER is no folder: name one that save_pretrained wrote"),
        (lacking("config.json"), "weights: FOLDER lacks config.json: name a folder that save_pretrained wrote"),
        (holding("config.json", b"{}"), "weights: transformers can't load FOLDER: Unrecognized model in FOLDER"),
        (not_all, "weights: FOLDER lacks model.norm.weight, of 1 tensors that are missing"),
        (small_vocabulary, "weights: FOLDER has no tokenizer, and a vocabulary of 100 below 256: save its tokenizer"),
        (
            of_another(transformers.FalconConfig(**SIZES, vocab_size=300)),
            "weights: FOLDER: the attention of FalconForCausalLM doesn't go through transformers' attention interface",
        ),
    ],
)
def test_a_folder_that_can_not_be_measured_is_one_line(capfd, data, folder, text, change, problem):
    change(folder)
    capfd.readouterr()
    assert __main__.main(["model", "--device", "cpu", "--weights", str(folder), "--text", str(text)]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"attnlab: {problem.replace('FOLDER', str(folder))}")
    assert not data.exists()


# ------------------------------------------------------------------------------------------- the small model of tools/
