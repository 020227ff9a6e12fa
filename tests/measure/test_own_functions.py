"""Functions of a user: their calls, the errors for functions that can't be called, and runs with them."""

import importlib
import importlib.util
import multiprocessing
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from unittest.mock import Mock

import pytest
import torch
from conftest import EVERY_TIMING, Quickly, gated, timed, tiny_study, told
from torch._subclasses.fake_tensor import FakeTensorMode

from attnlab import measurement
from attnlab.base import paths
from attnlab.base.errors import Outdated
from attnlab.measuring import processes
from attnlab.measuring.instruments import environment
from attnlab.measuring.session import record, worker
from attnlab.measuring.session.subject import Job
from attnlab.measuring.subjects import registry
from attnlab.measuring.watch import Spoiled
from attnlab.runs import read, schema, stale
from attnlab.study import callables, studies
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing

OWN = "python.own.attention"
IMPORTED = "torch.set_default_dtype(torch.float64)\ntorch.backends.cuda.enable_flash_sdp(False)\n"
HEAD = "import torch\ndef attention(q, k, v, causal, scale):\n "
RIGHT = "mask = torch.ones(q.shape[2], k.shape[2], dtype=bool).tril(k.shape[2] - q.shape[2]) if causal else None\n "
RIGHT += "return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, scale=scale)\n"
SHAPE = Shape(2, 3, 17, 64, dtype="float32")
LONE = {"batch": 1, "heads": 2, "seq_len": 16, "head_dim": 32, "dtype": "float32"}

pytestmark = pytest.mark.usefixtures("locked")


# Calls


@pytest.mark.parametrize(
    "shape", [SHAPE, Shape(2, 3, 5, 64, True, "float16", kv_len=9), Shape(1, 2, 8, 32, dtype="bfloat16", scale=0.3)]
)
def test_a_function_passes_the_gate_as_an_implementation(write_module, shape):
    write_module(HEAD + RIGHT)
    subject, checks = gated(registry.find(OWN), shape)
    assert subject.reason == ""
    assert checks["passed"].all()


def test_the_example_of_the_page_passes_the_gate(write_module, tmp_path):
    page = (paths.ROOT / "docs" / "kernels.md").read_text()
    blocks = [
        re.search(rf"^```{start}.*?^```", page, re.DOTALL | re.MULTILINE)[0] for start in ("python", "\\ntitle: My f")
    ]
    text, stated = (block.partition("\n")[2].removesuffix("```") for block in blocks)
    write_module(text)
    (tmp_path / "mine.yaml").write_text(stated.replace("python.mine.", "python.own."))
    (name,) = callables.among(studies.load(tmp_path / "mine.yaml").implementations)
    for shape in (Shape(1, 2, 33, 64, True, kv_len=40), Shape(1, 2, 33, 64, layout="tokens first", scale=0.5)):
        assert gated(registry.find(name), shape)[0].reason == ""
    assert gated(registry.find(name), Shape(1, 4, 33, 64, kv_heads=2))[0].reason == "no grouped heads"


def test_it_is_called_by_its_place_and_with_a_scale_by_name(write_module):
    write_module("import operator\nattention = operator.itemgetter")  # which has no signature
    assert registry.find(OWN).name == OWN
    write_module("seen = []\ndef attention(*given, scale):\n seen.append((len(given), scale))\n return given[0] + 1")
    for scale in (0.0, 0.3):
        q = torch.zeros(1, 2, 8, 32)
        registry.find(OWN).bound((q, q, q), Shape(1, 2, 8, 32, scale=scale))()
    assert sys.modules["own"].seen == [(4, None), (4, 0.3)]


def test_its_gradients_are_those_that_torch_finds(write_module):
    training = Shape(1, 2, 16, 32, dtype="bfloat16", direction="training")
    write_module(HEAD + RIGHT)
    assert gated(registry.find(OWN), training)[0].reason == ""
    write_module(HEAD + "return (q @ k.mT).softmax(-1).matmul(v).detach()")
    assert gated(registry.find(OWN), training)[0].reason == "computes no gradients"


# Functions that can't be called


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def atention(): pass", "/own.py has no 'attention'; did you mean 'atention'?"),
        ("attention = 3", "/own.py: attention is of type int, and no function"),
        ("def attention(q, k, v): pass", "/own.py: attention(q, k, v) has to take (q, k, v, causal, scale)"),
        ("import tritno", "/own.py can't be imported: ModuleNotFoundError: No module named 'tritno'"),
        ("def attention(:", "/own.py can't be imported: SyntaxError: invalid syntax (own.py, line 1)"),
        ("raise SystemExit(2)", "/own.py can't be imported: SystemExit: 2"),
        ("raise OSError('a\\nb ' + 400 * 'x')", "/own.py can't be imported: OSError: a b …"),
    ],
)
def test_what_cannot_be_called_is_said_in_a_line(write_module, text, said):
    write_module(text)
    found = told(lambda: registry.find(OWN))
    assert found.startswith(f"{OWN}: /")
    assert found.endswith(said)


# Errors at a shape


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ("raise NotImplementedError('16 queries\\n at most')", schema.SKIPPED, "16 queries at most"),
        ("raise NotImplementedError", schema.SKIPPED, "NotImplementedError"),
        ("raise ValueError('16 queries at most')", schema.SKIPPED, "16 queries at most"),
        ("raise KeyError('tile')", schema.FAILED, "KeyError: 'tile'"),
        ("return q @ q", schema.FAILED, "RuntimeError: Expected size for first two dimensions"),
        ("exit(3)", schema.FAILED, "SystemExit: 3"),
        ("raise KeyboardInterrupt", schema.FAILED, "KeyboardInterrupt"),
        ("raise MemoryError", schema.OUT_OF_MEMORY, "MemoryError"),
        ("raise torch.AcceleratorError('no driver\\nmore')", schema.FAILED, "AcceleratorError: no driver more"),
        ("raise torch.OutOfMemoryError('too large')", schema.OUT_OF_MEMORY, "too large"),
        ("return None", schema.FAILED, "returned NoneType, and no tensor"),
        ("return v[:, :, 1:] + 0", schema.FAILED, "returned (2, 3, 16, 64), not (2, 3, 17, 64)"),
        ("return (v + 0).half()", schema.FAILED, "returned torch.float16, not torch.float32"),
        ("return (v + 0).double()", schema.FAILED, "returned torch.float64, not torch.float32"),
        ("return v + 0", schema.FAILED, "error against float64: max"),
    ],
)
def test_what_goes_wrong_ends_the_case_alone(write_module, body, status, reason):
    write_module(HEAD + body)
    subject, _ = gated(registry.find(OWN), SHAPE)
    assert subject.status == status
    assert reason in subject.reason


def test_what_goes_wrong_while_it_is_timed_ends_the_case_alone(write_module):
    for error, reason in {"ValueError": "tired", "RuntimeError": "RuntimeError: tired"}.items():
        write_module(f"calls = []\n{HEAD}calls.append(0)\n if len(calls) > 40: raise {error}('tired')\n {RIGHT}")
        subject, samples = timed(registry.find(OWN), SHAPE, Timing(clock="eager", cache="warm"))
        assert (subject.status, len(samples) < 100) == (schema.FAILED, True)
        assert subject.reason == f"while timed, eager warm: {reason}"


@pytest.mark.parametrize(
    ("statement", "setting"),
    [
        ("torch.set_float32_matmul_precision('high')", "float32_matmul_precision"),
        ("torch.set_default_dtype(torch.float64)", "default_dtype"),
        ("torch.set_default_device('meta')", "default_device"),
        *((f"torch.backends.cuda.enable_{name}(False)", name) for name in ("cudnn_sdp", "flash_sdp", "math_sdp")),
        ("torch.set_num_threads(torch.get_num_threads() + 1)", "threads"),
        ("torch.set_autocast_enabled('cpu', True)", "autocast"),
        ("torch.set_autocast_dtype('cpu', torch.float16)", "autocast_dtype"),
        ("torch.set_grad_enabled(False)", "grad"),
        ("torch.use_deterministic_algorithms(False)", "deterministic_algorithms"),
        ("torch.set_flush_denormal(True)", "flush_denormal"),
        ("torch.backends.mkldnn.set_flags(False)", "mkldnn_enabled"),
    ],
)
def test_a_setting_that_a_function_changes_is_put_back_and_named(write_module, statement, setting):
    before = environment.settings() | {name: read() for name, (read, _) in environment.KEPT.items()}
    write_module(f"import torch\n{statement}\n{HEAD}{RIGHT}")
    registry.PUT_BACK.clear()
    subject, _ = gated(registry.find(OWN), SHAPE)
    assert (subject.reason, setting in registry.PUT_BACK[OWN]) == ("", True)
    write_module(f"{HEAD}{statement}\n {RIGHT}")
    subject, _ = gated(registry.find(OWN), SHAPE)
    assert subject.reason.startswith("changed settings of torch: ")
    assert setting in subject.reason
    assert environment.settings() | {name: read() for name, (read, _) in environment.KEPT.items()} == before


def test_a_setting_that_cannot_be_put_back_ends_the_process(write_module):
    write_module(f"modes = []\n{HEAD}modes.append(torch.inference_mode())\n modes[-1].__enter__()\n {RIGHT}")
    assert "that can't be put back" in told(lambda: gated(registry.find(OWN), SHAPE), Spoiled)
    for mode in reversed(sys.modules["own"].modes):
        mode.__exit__(None, None, None)


def test_a_module_next_to_a_study_is_for_those_next_to_it_alone(write_study, write_module, tmp_path):
    write_module(f"import absent_package\n{HEAD}{RIGHT}")
    (tmp_path / "absent_package.py").write_text("")
    sys.path.pop()
    with studies.modules_beside(write_study(implementations=["sdpa.auto", OWN])):
        assert registry.find(OWN).name == OWN
        assert "absent_package" in sys.modules
        del sys.modules["absent_package"]
        assert importlib.util.find_spec("absent_package") is None


@torch._dynamo.config.patch(recompile_limit=1)
def test_a_compiled_function_is_compiled_at_every_shape(begin, one_thread, write_module, unlocked):
    with FakeTensorMode():  # PyTorch 2.11 without a GPU crashes once the first thread that traced has ended
        pass
    # Without compilation, it raises an error.
    compiled = "if not torch.compiler.is_compiling(): raise TypeError('not compiled')\n "
    plain = "return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)\n"
    write_module(f"{HEAD}{compiled}{plain}attention = torch.compile(attention, backend='eager', dynamic=False)\n")
    axes = {"target": LONE, "sweeps": {"seq_len": LONE | {"seq_len": [2, 3, 16]}}}
    study = tiny_study(implementations=[OWN], baseline=OWN, replicates=1, samples=2, **axes)
    name = begin(study, kernels=callables.hashes([OWN]))
    assert read.load(record.record(name, study, "cpu", one_thread)).cases["reason"].tolist() == [""] * 6


# Runs


@pytest.fixture
def study(write_study, write_module, tmp_path) -> Iterator[studies.Study]:
    """A study of functions in the same folder: one is right, one wrong, and one serves no shape.

    A further one ends its process. Their import changes settings, and imports another module of the folder.
    """
    bodies = {"wrong": "return 1.01 * attention(q, k, v, causal, scale)", "ending": "os._exit(3)"}
    bodies["refusing"] = "raise NotImplementedError('not yet')"
    odd = [f"def {name}(q, k, v, causal, scale=None):\n {body}\n" for name, body in bodies.items()]
    write_module(f"import os, helper\n{HEAD}{RIGHT}{''.join(odd)}{IMPORTED}")
    (tmp_path / "helper.py").write_text("")
    sys.path.pop()
    named = ["sdpa.auto", OWN, "python.own.wrong", "python.own.refusing"]
    path = write_study(implementations=named, target=LONE, sweeps={"alone": LONE}, replicates=1)
    with studies.modules_beside(path):
        yield studies.load(path)


def test_a_run_measures_functions_in_processes_of_its_own(begin, study, write_module, unlocked, monkeypatch):
    monkeypatch.setattr(processes, "CONTEXT", multiprocessing.get_context("fork"))
    study = study.model_copy(update={"implementations": [*study.implementations, "python.own.ending"]})
    name = begin(study, kernels=callables.hashes(study.implementations))
    run = read.load(record.record(name, study, "cpu"))
    cases = run.cases.set_index("implementation")
    measured = {"sdpa.auto", OWN, "control.sdpa.auto"}
    failed = {"python.own.wrong": schema.FAILED, "python.own.ending": schema.FAILED}
    fates = dict.fromkeys(measured, schema.MEASURED) | {"python.own.refusing": schema.SKIPPED} | failed
    assert cases["status"].to_dict() == fates
    assert set(run.samples["implementation"]) == measured
    assert run.checks.loc[run.checks["implementation"] == "python.own.wrong", "passed"].tolist() == [False]
    assert cases.at["python.own.ending", "reason"] == "ended its process (exit status 3)"

    assert stale.stale(run) == {}
    path = write_module("another")
    assert stale.stale(run) == dict.fromkeys(study.implementations[1:])
    path.unlink()
    importlib.invalidate_caches()
    assert stale.stale(run) == {}  # a missing file can't be compared


@pytest.mark.gpu
def test_on_a_gpu_a_function_is_captured_unless_it_waits_for_the_device(data, write_module, write_study, unlocked):
    waits = "def waits(q, k, v, causal, scale=None):\n q.sum().item()\n return attention(q, k, v, causal, scale)\n"
    write_module(HEAD + RIGHT + waits)
    names, target = [OWN, "python.own.waits"], LONE | {"head_dim": 64, "dtype": "float16"}
    stated = {"timings": EVERY_TIMING, "target": target, "sweeps": {"alone": target}, "replicates": 1}
    path = write_study(device="cuda", implementations=["sdpa.auto", *names], **stated)
    run = read.load(record.record("own", studies.load(path), "cuda"))
    fates = run.cases.set_index("implementation")["status"]
    assert fates[names].tolist() == [schema.MEASURED, schema.FAILED]


def test_a_run_begins_with_the_hashes_and_goes_on_only_with_the_same_files(data, study, write_module, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(worker, "measure", Mock(side_effect=KeyboardInterrupt))
        told(lambda: record.record("one", study, "cpu", Quickly(ThreadPoolExecutor(1))))
    manifest = read.read_manifest("one")
    assert manifest["kernels"] == callables.hashes(study.implementations)
    write_module("another")
    going_on = partial(record.record, "one", study, "cpu", ThreadPoolExecutor(1))
    # Each process checks, too: a file may change while a run measures, and another host may have another file.
    process = partial(worker.measure, Job("one", study, "cpu", 0, ()))
    for refused in (going_on, process):
        assert told(refused, Outdated) == (
            f"{', '.join(study.implementations[1:])} changed since the run 'one' began: start a new run"
        )


@pytest.mark.parametrize(("own", "stated"), [([OWN], "RUN=one STUDY='my own/tiny.yaml'"), ([], "RUN=one")])
def test_to_go_on_is_to_name_the_study_beside_which_a_function_lies(monkeypatch, own, stated):
    monkeypatch.setattr(record, "record", lambda *given: given[-1])
    study = tiny_study(implementations=["sdpa.auto", *own])
    assert measurement.measured("one", study, "cpu", stated="my own/tiny.yaml") == f"make measure {stated}"
    assert measurement.measured("", study, "cpu", call="") == ""  # measured from a cell, and not kept


def test_a_study_of_what_cannot_be_called_begins_no_run(data, one_thread, write_module, capsys):
    study = tiny_study(implementations=["sdpa.auto", OWN])
    assert "there is no module 'own'" in told(lambda: record.record("one", study, "cpu", Quickly(one_thread)))
    assert capsys.readouterr().err == ""  # no survey of the machine
    write_module("attention = 3")
    assert told(lambda: record.record("one", study, "cpu", Quickly(one_thread))).endswith("int, and no function")
    assert not (data / "one" / "manifest.json").exists()
