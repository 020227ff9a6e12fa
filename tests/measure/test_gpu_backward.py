"""Gradients on an NVIDIA GPU: against float64, bit by bit, on views and in a graph (`make test OF=gpu`)."""

from itertools import product

import pytest
import torch
from on_gpu import GPU, while_copying
from test_backward import SPOILED
from torch.utils.checkpoint import checkpoint

import attnlab
from attnlab.compile import nvrtc
from attnlab.measuring.gate.gradients import check_gradients
from attnlab.measuring.kernels import backward
from attnlab.measuring.subjects.implementation import Unsupported
from attnlab.measuring.subjects.oracle import composed, float64, gradients
from attnlab.serving import training
from attnlab.study.shapes import LAYOUTS, Shape
from attnlab.study.values import NORMAL, STANDARD

pytest.importorskip("cupy")
pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("locked_gpu")]


SIZES = ((1, 2, 2, 512, 512), (2, 4, 2, 77, 300), (1, 3, 1, 1, 129))


@pytest.fixture
def served(monkeypatch):
    """Our backward kernels; skips devices that they don't serve."""
    if torch.cuda.get_device_capability() != backward.CAPABILITY:
        pytest.skip("the backward kernel isn't written for this device")
    passes, call = [], backward.backward
    monkeypatch.setattr(backward, "backward", lambda *given: passes.append("backward") or call(*given))
    return passes


def drawn(batch, heads, kv_heads, queries, keys, head_dim, dtype, tokens_first=False):
    """Q, K, V and the gradient of O."""
    torch.manual_seed(0)
    sizes = [(heads, queries), (kv_heads, keys), (kv_heads, keys), (heads, queries)]
    if tokens_first:
        return [torch.randn(batch, s, n, head_dim, device=GPU, dtype=dtype).transpose(1, 2) for n, s in sizes]
    return [torch.randn(batch, n, s, head_dim, device=GPU, dtype=dtype) for n, s in sizes]


def of(q, k, v, dout, causal, scale=None):
    """Our gradients, from our forward and backward passes."""
    try:
        out, lse = backward.forward(q, k, v, causal, scale)
        return backward.backward(q, k, v, out, lse, dout, causal, scale)
    except Unsupported as error:
        if "compute capability" in str(error) or "written for" in str(error):
            pytest.skip(str(error))
        raise


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_pass_the_gate(served, dtype, head_dim, causal):
    for batch, heads, kv_heads, queries, keys in (*SIZES, (3, 2, 2, 1000, 1000), (1, 8, 2, 2048, 2100)):
        for layout, scale in product(LAYOUTS, (0.0, 0.3)):
            shape = Shape(batch, heads, queries, head_dim, causal, dtype, scale=scale, layout=layout)
            found = check_gradients(training.attention, shape.resized(kv_heads=kv_heads, kv_len=keys), [NORMAL])
            assert found[NORMAL].passed, f"{shape}: {found[NORMAL].reason}"
    passed_on_all_values(training.attention, Shape(2, 8, 512, head_dim, causal, dtype))


def passed_on_all_values(attention, shape, kinds=STANDARD):
    found = check_gradients(attention, shape, kinds)
    assert not {kind: check.reason for kind, check in found.items() if not check.passed}


@pytest.mark.parametrize("name", SPOILED)
def test_a_kernel_that_is_wrong_in_one_gradient_is_caught(served, monkeypatch, name):
    of_files = nvrtc.of_files
    monkeypatch.setattr(nvrtc, "of_files", lambda texts: of_files(texts).replace(*SPOILED[name]))
    for kept in ("_COMPILED", "_PREPARED"):
        monkeypatch.setattr(backward, kept, {})
    check = check_gradients(training.attention, Shape(2, 8, 512, 128, True, "bfloat16"), [NORMAL])[NORMAL]
    assert (check.output, check.passed) == (name, False)


ROUTES = {
    "eager": attnlab.attend,
    "compiled": torch.compile(attnlab.attend, fullgraph=True),
    "compiled for any length": torch.compile(attnlab.attend, fullgraph=True, dynamic=True),
    "checkpoint": lambda *given: checkpoint(attnlab.attend, *given, use_reentrant=False),
}
THROUGH = [
    Shape(2, 16, 600, 128, True, "bfloat16", kv_heads=8, layout="tokens first"),
    Shape(1, 8, 513, 64, kv_len=700),
]


@pytest.mark.parametrize("shape", THROUGH, ids=str)
@pytest.mark.parametrize("route", ROUTES)
def test_gradients_through_attend_are_ours_and_pass_the_gate(served, route, shape):
    passed_on_all_values(ROUTES[route], shape, (NORMAL, "sink 13", "student 3"))
    assert served
    served.clear()
    check_gradients(ROUTES[route], shape.resized(seq_len=training.SHORTEST - 1), [NORMAL], repeats=False)
    assert not served


@pytest.mark.parametrize("cast", [False, True])
def test_odd_strides_autocast_and_gradients_that_are_differentiated_again(served, cast):
    wide = [torch.randn(1, 4, 520, 65, device=GPU, dtype=torch.float32 if cast else torch.bfloat16) for _ in range(3)]
    given = [tensor[..., :64].requires_grad_() for tensor in wide]
    exact = [tensor.detach().bfloat16().double().requires_grad_() for tensor in given]
    with torch.autocast("cuda", torch.bfloat16, enabled=cast):
        output = attnlab.attend(*given, True)
    results = []
    for found, inputs in ((output.double(), given), (composed(*exact, True), exact)):
        first = torch.autograd.grad(found.square().sum(), inputs, retain_graph=True)
        again = torch.autograd.grad(found.square().sum(), inputs, create_graph=True)
        results.append([*first, *again, *torch.autograd.grad(sum(each.square().sum() for each in again), inputs)])
    assert (served, output.dtype, results[0][0].dtype) == (2 * ["backward"], torch.bfloat16, given[0].dtype)
    for ours, theirs in zip(*results, strict=True):
        assert (ours - theirs).norm() < 0.03 * theirs.norm()


@pytest.mark.parametrize("causal", [False, True])
def test_log_sums_and_outputs_of_the_forward_pass(causal):
    for size, head_dim in product(((1, 2, 2, 500, 500), (2, 8, 2, 64, 700), (1, 4, 4, 4096, 4096)), (64, 128)):
        q, k, v, dout = drawn(*size, head_dim, torch.bfloat16)
        out, lse = backward.forward(q, k, v, causal)
        expected = gradients(q.double(), k.double(), v.double(), dout.double(), causal)[3]
        assert (lse.double() - expected).abs().max() < 0.01
        assert (out.double() - float64(q, k, v, causal)).abs().max() < 0.05


@pytest.mark.parametrize("causal", [False, True])
def test_the_same_bits_each_time_and_in_a_graph(causal):
    q, k, v, dout = drawn(2, 8, 4, 3000, 3000, 128, torch.bfloat16)
    first = of(q, k, v, dout, causal)
    out, lse = backward.forward(q, k, v, causal)
    for _ in while_copying(100):
        again = backward.backward(q, k, v, out, lse, dout, causal)
        assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = backward.backward(q, k, v, out, lse, dout, causal)
    for _ in range(5):
        graph.replay()
    assert all(torch.equal(x, y) for x, y in zip(first, captured, strict=True))


def test_a_gradient_of_a_sum_which_repeats_itself_in_memory():
    q, k, v, _ = drawn(1, 2, 2, 300, 300, 64, torch.float16)
    dout = torch.ones(1, device=GPU, dtype=torch.float16).expand(q.shape)
    *exact, _ = gradients(q.double(), k.double(), v.double(), dout.double(), True)
    for mine, expected in zip(of(q, k, v, dout, True), exact, strict=True):
        torch.testing.assert_close(mine.double(), expected, atol=0.02, rtol=0.02)
