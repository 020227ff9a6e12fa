"""Gradients on an NVIDIA GPU: against float64, bit by bit, on views and in a graph: `make test OF=gpu`."""

from itertools import product

import pytest
import torch
from on_gpu import GPU, while_copying

from attnlab.measuring.kernels import backward
from attnlab.measuring.subjects.implementation import Unsupported
from attnlab.measuring.subjects.oracle import float64, gradients

pytest.importorskip("cupy")
pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("locked_gpu")]


def drawn(batch, heads, kv_heads, queries, keys, head_dim, dtype, tokens_first=False):
    """Q, K, V and the gradient of O."""
    torch.manual_seed(0)
    sizes = [(heads, queries), (kv_heads, keys), (kv_heads, keys), (heads, queries)]
    if tokens_first:
        return [torch.randn(batch, s, n, head_dim, device=GPU, dtype=dtype).transpose(1, 2) for n, s in sizes]
    return [torch.randn(batch, n, s, head_dim, device=GPU, dtype=dtype) for n, s in sizes]


def of(q, k, v, dout, causal, scale=None):
    """Our gradients, after our forward pass."""
    try:
        out, lse = backward.forward(q, k, v, causal, scale)
        return backward.backward(q, k, v, out, lse, dout, causal, scale)
    except Unsupported as error:
        if "compute capability" in str(error) or "written for" in str(error):
            pytest.skip(str(error))
        raise


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_are_as_exact_as_the_formula_in_this_precision(dtype, head_dim, causal):
    sizes = ((1, 2, 2, 512, 512), (2, 4, 2, 77, 300), (1, 3, 1, 1, 129), (3, 2, 2, 1000, 1000), (1, 8, 2, 2048, 2100))
    for size, tokens_first, scale in product(sizes, (False, True), (None, 0.3)):
        q, k, v, dout = drawn(*size, head_dim, dtype, tokens_first)
        got = of(q, k, v, dout, causal, scale)
        *exact, _ = gradients(q.double(), k.double(), v.double(), dout.double(), causal, scale)
        plain = gradients(q, k, v, dout, causal, scale)[:3]
        for name, mine, formula, expected in zip(("dQ", "dK", "dV"), got, plain, exact, strict=True):
            error, bound = ((x.double() - expected).square().mean().sqrt() for x in (mine, formula))
            assert error <= 1.5 * bound + 1e-4 * expected.square().mean().sqrt(), (size, tokens_first, scale, name)
            assert mine.stride() == torch.empty_like(q if name == "dQ" else k).stride()


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
