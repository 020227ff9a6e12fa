"""The rung in e4m3 on an NVIDIA GPU: its errors over the formula's, views, scales and heads: `make test-gpu`."""

import pytest
import torch

import attnlab
from attnlab.measure.fp8 import accuracy, subjects
from attnlab.measure.fp8.quantize import Quantized, quantize
from attnlab.measure.subjects import inputs, oracle, outputs
from attnlab.measure.subjects.implementation import Unsupported
from attnlab.study.shapes import Shape

pytest.importorskip("cupy")
pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("locked_gpu")]

GPU = torch.device("cuda")
KINDS = ("normal", "sd 2", "sd 6", "sink 8", "sink 13", "rising 24", "falling 24", "outliers", "scales", "zeros")
# Batch, heads, queries, kv_heads, keys, mask.
SIZES = [(1, 2, 192, 2, 192, False), (1, 3, 1000, 3, 1000, True), (2, 6, 70, 2, 517, True), (2, 4, 333, 1, 700, False)]
MODEL = Shape(2, 8, 1024, 128, True, kv_heads=2)


@pytest.fixture(params=[64, 128], ids="D={}".format)
def head_dim(request):
    try:
        launch(drawn(MODEL.resized(head_dim=request.param)))
    except Unsupported as error:
        pytest.skip(str(error))
    return request.param


def drawn(shape, seed=0, scales="head"):
    return quantize(*inputs.draw(shape, seed, GPU), scales)


def launch(given, causal=True, dtype=torch.float16):
    kernel = subjects.rung()
    tensors, scales = zip(*((one.values, one.scales) for one in given), strict=True)
    return kernel.of_scales(*tensors, scales, causal, None, dtype)


def require_near(given, causal, output, times=2.0):
    """The mean error against float64 of what the tensors stand for, over that of PyTorch's operations."""
    exact = oracle.float64(*(one.dequantized() for one in given), causal)
    formula = accuracy.attention(*given, causal, None, output.dtype)
    found, limit = ((one.double() - exact).abs().mean().item() for one in (output, formula))
    assert found <= times * limit + 1e-7, f"{found:.2e} for {limit:.2e}"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_its_error_is_at_most_twice_the_formulas(head_dim, sizes, dtype):
    batch, heads, queries, kv_heads, keys, causal = sizes
    given = drawn(Shape(batch, heads, queries, head_dim, causal, kv_heads=kv_heads, kv_len=keys))
    require_near(given, causal, launch(given, causal, dtype))


@pytest.mark.parametrize("kind", KINDS)
def test_on_each_kind_of_values(head_dim, kind):
    given = drawn(MODEL.resized(head_dim=head_dim, values=kind))
    first, second = launch(given), launch(given)
    assert torch.equal(first, second)
    require_near(given, True, first)


@pytest.mark.parametrize("length", [2048, 8192])
def test_values_with_a_mean_are_summed_as_exactly(head_dim, length):
    """The tensor cores keep few bits of a sum: what is small beside it is cut off, always towards 0."""
    q, k, v = inputs.draw(Shape(1, 2, length, head_dim), 3, GPU)
    given = quantize(q, k, v + 1)
    require_near(given, False, launch(given, False))


def test_views_are_served_as_they_are(head_dim):
    q, k, v = drawn(MODEL.resized(head_dim=head_dim))
    views = [one.values.transpose(1, 2).contiguous().transpose(1, 2) for one in (q, k, v)]
    given = [Quantized(view, one.scales, one.rows) for view, one in zip(views, (q, k, v), strict=True)]
    output = launch(given)
    assert output.stride() == views[0].stride()
    assert torch.equal(output, launch((q, k, v)))


def test_a_tensors_scale_is_that_of_each_head(head_dim):
    q, k, v = drawn(MODEL.resized(head_dim=head_dim), scales="tensor")
    each = [Quantized(t.values, t.scales.expand(*t.values.shape[:2], 1).contiguous(), t.rows) for t in (q, k, v)]
    assert torch.equal(launch((q, k, v)), launch(each))


def test_it_writes_all_of_its_output_and_nothing_else(head_dim):
    given = drawn(Shape(1, 3, 333, head_dim, kv_heads=1))
    with outputs.guarded(outputs.POISONS[0]) as guards:
        output = launch(given, False)
    assert guards.overruns() == []
    assert guards.unwritten(output, output.clone()) == 0


def test_attend_takes_it(head_dim, monkeypatch):
    given = drawn(MODEL.resized(head_dim=head_dim))
    monkeypatch.setattr(accuracy, "attention", None)  # what is called where no kernel serves
    tensors, scales = zip(*((one.values, one.scales) for one in given), strict=True)
    assert torch.equal(attnlab.attend(*tensors, True, scales=scales), launch(given))


def test_a_graph_reads_scales_when_it_is_replayed(head_dim):
    given = drawn(MODEL.resized(head_dim=head_dim))
    launch(given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = launch(given)
    given[2].scales.mul_(2)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(output, launch(given))
