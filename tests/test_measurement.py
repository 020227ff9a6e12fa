"""Measuring and checking the functions of a notebook cell."""

import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest
import torch
from conftest import told

from attnlab import frames
from attnlab.measurement import _name, check, measure
from attnlab.measuring.subjects.handles import kernel, peer, sdpa
from attnlab.study.shapes import Shape
from attnlab.study.studies import sweep

CELL = """
import torch

def mine(q, k, v, causal, scale=None):
    scores = q @ k.transpose(-1, -2) * (scale or q.shape[-1] ** -0.5)
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=bool).triu(1), float("-inf"))
    return scores.softmax(-1) @ v

gain = torch.nn.Parameter(torch.ones(1))

def learned(q, k, v, causal, scale=None):
    return gain * mine(q, k, v, causal, scale)

def unscaled(q, k, v, causal, scale=None):
    return mine(q, k, v, causal, 1.0)

def short(q, k, v, causal, scale=None):
    if q.shape[2] > 32:
        raise ValueError("takes 32 queries at most")
    return mine(q, k, v, causal, scale)
"""
PLAIN = """#include <cuda_fp16.h>
extern "C" __global__ void plain(const half* q, const half* k, const half* v, half* o, int heads, int s, float scale) {
    o[blockIdx.x * blockDim.x + threadIdx.x] = v[threadIdx.x];
}"""
TARGET, SMALL = Shape(32, 8, 512, 64), Shape(1, 1, 8, 8, dtype="float32")


@pytest.fixture(scope="module")
def cell():
    """The functions of a cell, which no other process can import."""
    names = {"__name__": "__main__"}
    exec(CELL, names)
    return names


def test_lists_of_axes_are_multiplied_out():
    found = sweep(batch=2, heads=4, seq_len=[64, 128], head_dim=64, causal=(False, True))
    assert found == [Shape(2, 4, length, 64, causal) for length in (64, 128) for causal in (False, True)]
    assert "did you mean 'seq_len'?" in told(lambda: sweep(batch=1, heads=1, seqlen=3, head_dim=8))


def test_a_function_is_held_to_the_oracle(cell):
    shapes = sweep(batch=1, heads=2, seq_len=[1, 63], head_dim=32, causal=[False, True], dtype="float32")
    checks = check(cell["mine"], shapes)
    assert checks.passed.all()
    assert set(checks.inputs) == {"normal", "large logits", "constant rows"}
    assert set(checks.implementation) == {"mine"}
    assert (checks.max_error <= checks.allowed_max_error).all()
    wrong = check(cell["unscaled"], shapes)
    assert set(wrong[wrong.seq_len == 63].passed) == {False}
    assert wrong[~wrong.passed].fault.str.startswith("call: error against float64").all()


def test_a_shape_that_is_not_served_has_a_row_that_says_why(cell):
    checks = check(cell["short"], sweep(batch=1, heads=1, seq_len=[32, 33], head_dim=8, dtype="float32"))
    (row,) = checks[~checks.passed].itertuples()
    assert (row.seq_len, row.fault) == (33, "takes 32 queries at most")
    assert "has to take (q, k, v, causal, scale)" in told(lambda: check(lambda q: q, [Shape(1, 1, 2, 8)]))
    assert "there is no shape" in told(lambda: check(cell["mine"], []))


def test_functions_of_a_cell_are_measured_as_studies_are_and_nothing_is_left(cell, data, tmp_path, monkeypatch):
    script = ModuleType("__main__")
    script.__file__ = str(tmp_path / "script.py")
    Path(script.__file__).write_text("raise SystemExit('runs again')")
    monkeypatch.setitem(sys.modules, "__main__", script)
    shapes = sweep(batch=1, heads=2, seq_len=[32, 64], head_dim=16, dtype="float32")
    run = measure({"class": cell["learned"], "no scale": cell["unscaled"], "sdpa.auto": sdpa()}, shapes, samples=5)
    assert not data.exists() or not any(data.iterdir())
    assert set(run.samples.implementation) == {"class", "sdpa.auto", "control.sdpa.auto"}
    assert len(run.samples) == 2 * 3 * 5
    failed = run.cases[run.cases.status == "failed"]
    assert set(failed.implementation) == {"no scale"}
    verdicts = frames.compare(run.samples, "sdpa.auto")
    assert set(verdicts.candidate) == {"class"}


def test_a_run_is_kept_under_its_name(cell, data, threaded):
    made = measure({"mine": cell["mine"], "a": sdpa("math")}, [SMALL], baseline="a", run="kept", samples=3)
    kept = frames.load("kept")
    assert set(kept.samples.implementation) == {"python.cell.mine", "sdpa.math", "control.sdpa.math"}
    assert kept.samples.latency_us.tolist() == made.samples.latency_us.tolist()
    assert "is of another study" in told(lambda: measure({"a": sdpa("math")}, [SMALL], baseline="a", run="kept"))


def test_what_can_not_travel_is_named(cell, data):
    held = threading.Lock()

    def holding(q, k, v, causal, scale=None):
        with held:
            return cell["mine"](q, k, v, causal, scale)

    said = told(lambda: measure({"holding": holding, "sdpa.auto": sdpa()}, [SMALL]))
    assert said.startswith("'holding' can't travel to the process that measures (cannot pickle '_thread.lock' object)")
    assert "is not among the implementations" in told(lambda: measure({"mine": cell["mine"]}, [SMALL]))
    taken = {"sdpa.auto": sdpa(), "control.sdpa.auto": cell["mine"]}
    assert "is the name of a control" in told(lambda: measure(taken, [SMALL]))


@pytest.mark.parametrize("call", [lambda: sdpa("flsh"), lambda: peer("flash"), lambda: kernel("pipelned")])
def test_a_name_that_is_none_is_told_with_one_that_is_near(call):
    assert "did you mean" in told(call)


def test_a_backend_is_callable_by_its_name():
    q, k, v = torch.randn(3, 1, 2, 16, 8)
    right = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert torch.allclose(sdpa("math")(q, k, v, True), right, atol=1e-5)


def test_a_kernel_of_the_ladder_is_compiled_with_other_arguments_and_another_text():
    pytest.importorskip("cuda.bindings")
    fast = kernel("pipelined")
    assert fast.name == "kernel.pipelined"
    (usual,) = fast.resources(TARGET).query("architecture == 'sm_80'").itertuples()
    with_two = {"template": {"warps": 2}, "sizes": {"rows": 64, "threads": 64, "shared_bytes": 40960}}
    small = kernel("pipelined", **with_two)
    (other,) = small.resources(TARGET).query("architecture == 'sm_80'").itertuples()
    assert (usual.threads, other.threads, other.ctas) == (128, 64, 2 * usual.ctas)
    edited = fast.edited("#pragma unroll", "#pragma unroll 1")
    assert edited.source.count("#pragma unroll 1") == fast.source.count("#pragma unroll")
    assert "for 64 threads: state other" in told(lambda: kernel("pipelined", template={"warps": 2}).resources(TARGET))
    assert "unknown field 'row'" in told(lambda: kernel("pipelined", sizes={"row": 1}))
    assert "has no template argument 'warp'" in told(lambda: kernel("pipelined", template={"warp": 2}))
    assert "the source holds no 'xyzzy'" in told(lambda: fast.edited("xyzzy", ""))
    assert "does not compile" in told(lambda: fast.edited("__global__", "__glbal__").resources(TARGET))
    assert "has no tile" in told(lambda: fast.resources(Shape(1, 1, 8, 8)))


def test_a_kernel_needs_no_entry_in_the_ladder(tmp_path):
    pytest.importorskip("cuda.bindings")
    (tmp_path / "plain.cu").write_text(PLAIN)
    stated = {"function": "plain", "grid": lambda shape: shape.batch * shape.heads * shape.seq_len, "threads": 64}
    mine = kernel("mine", tmp_path / "plain.cu", **stated)
    assert _name("mine", kernel("kernel.lazy", PLAIN, **stated)) == "python.cell.mine"  # not the ladder's
    (row,) = mine.resources(TARGET).itertuples()
    assert (row.ctas, row.threads, row.spill_bytes) == (32 * 8 * 512, 64, 0)
    assert mine.resources(TARGET).equals(kernel("mine", PLAIN, **stated).resources(TARGET))
    assert "mine does not compile: mine(2): error" in told(lambda: mine.edited("half* o", "hlf* o").resources(TARGET))
    assert "did you mean 'plain'?" in told(
        lambda: kernel("mine", PLAIN, **stated | {"function": "plan"}).resources(TARGET)
    )
    for lacking in ({}, stated | {"template": {"warps": 2}}):
        assert "state its function, grid and threads" in told(lambda given=lacking: kernel("mine", PLAIN, **given))
    assert "can't be read" in told(lambda: kernel("mine", str(tmp_path / "none.cu"), **stated))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_kernel_that_is_called_without_a_gpu_says_so():
    said = told(lambda: kernel("pipelined")(*torch.randn(3, 1, 1, 64, 64).half()))
    assert said == "the kernel 'pipelined' needs an NVIDIA GPU to be called; .resources(shape) compiles it here"


@pytest.mark.gpu
def test_kernels_of_a_cell_pass_and_are_timed_on_a_gpu(cell, data):
    small = kernel("pipelined", template={"warps": 2}, sizes={"rows": 64, "threads": 64, "shared_bytes": 40960})
    assert check(small, sweep(batch=1, heads=2, seq_len=[63, 512], head_dim=64, causal=[False, True])).passed.all()
    wrong = kernel(
        "mine", PLAIN, function="plain", grid=lambda shape: shape.batch * shape.heads * shape.seq_len, threads=64
    )
    assert not check(wrong, [Shape(1, 2, 64, 64)]).passed.any()
    timed = {"small": small, "wrong": wrong, "usual": kernel("pipelined"), "sdpa.auto": sdpa()}
    run = measure(timed, sweep(batch=2, heads=4, seq_len=[128, 512], head_dim=64), samples=10)
    assert set(frames.compare(run.samples, "sdpa.auto").candidate) == {"small", "usual"}
    assert set(run.cases[run.cases.status == "failed"].implementation) == {"wrong"}
