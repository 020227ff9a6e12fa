"""The e4m3 kernel on an NVIDIA GPU: its errors over the formula's, views, scales and heads: `make test OF=gpu`."""

import pytest
import torch
from conftest import timed

import attnlab
from attnlab.base.rules import GATE_FACTOR
from attnlab.measuring.fp8 import accuracy, kernel, quantizing, subjects
from attnlab.measuring.fp8.quantize import E4M3, LARGEST, Quantized, quantize
from attnlab.measuring.gate.check import Error
from attnlab.measuring.subjects import inputs, oracle, outputs, registry
from attnlab.measuring.subjects.implementation import Unsupported
from attnlab.study import implementations
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing
from attnlab.study.values import STANDARD

pytest.importorskip("cupy")
pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("locked_gpu")]

GPU = torch.device("cuda")
KINDS = [kind for kind in STANDARD if not kind.startswith(("captured", "positional", "sd 4", "offset 4"))]
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


def launch(given, causal=True, dtype=torch.float16, of_output=()):
    tensors, scales = zip(*((one.values, one.scales) for one in given), strict=True)
    return kernel.rung().of_scales(*tensors, (*scales, *of_output), causal, None, dtype)


def of_sizes(sizes, head_dim):
    """Q, K and V in e4m3, and the mask."""
    batch, heads, queries, kv_heads, keys, causal = sizes
    return drawn(Shape(batch, heads, queries, head_dim, causal, kv_heads=kv_heads, kv_len=keys)), causal


def bytes_of(tensor):
    return tensor.view(torch.uint8)


def require_near(given, causal, output, of_output=None):
    """Fail if the mean or largest error exceeds the limit, a multiple of the error of PyTorch's operations."""
    exact = oracle.float64(*(one.dequantized() for one in given), causal)
    formula = accuracy.attention(*given, causal, None, output.dtype, out_scales=of_output)
    unit = 1 if of_output is None else of_output.unsqueeze(-1)
    allowed, found = (Error.between(one.float() * unit, exact) for one in (formula, output))
    limit = Error(GATE_FACTOR * allowed.maximum + 1e-6, GATE_FACTOR * allowed.mean + 1e-7)
    assert found.within(limit), (found, allowed)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_its_errors_are_at_most_twice_the_formulas(head_dim, sizes, dtype):
    given, causal = of_sizes(sizes, head_dim)
    require_near(given, causal, launch(given, causal, dtype))


@pytest.mark.parametrize("each", [False, True], ids=["one scale", "a scale for each head"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_an_output_in_e4m3_is_the_other_one_rounded(head_dim, sizes, each):
    """With a scale that maps the largest element, of the tensor or of each head, to 448."""
    given, causal = of_sizes(sizes, head_dim)
    exact = oracle.float64(*(one.dequantized() for one in given), causal)
    most = exact.abs().amax((2, 3)) if each else exact.abs().amax().view(1, 1)
    of_output = (most / LARGEST).float().unsqueeze(-1)
    output = launch(given, causal, E4M3, [of_output])
    assert output.dtype == E4M3
    require_near(given, causal, output, of_output)
    nearest = launch(given, causal).float() / of_output.unsqueeze(-1)
    apart = (output.float() - nearest).abs()
    assert (apart <= nearest.abs() / 15 + 2.0**-9).all()  # half a unit, and a float16 rounding across the middle


@pytest.mark.parametrize("scale", [1e-30, torch.finfo(torch.float32).tiny, 1e30])
def test_what_an_output_in_e4m3_has_no_number_for_is_the_nearest(head_dim, scale):
    q, k, v = drawn(MODEL.resized(head_dim=head_dim))
    nothing = Quantized(torch.zeros_like(v.values.view(torch.uint8)).view(E4M3), v.scales, v.rows)
    of_output = [torch.full((1, 1, 1), scale, device=GPU)]
    assert not launch((q, k, nothing), True, E4M3, of_output).view(torch.uint8).bitwise_and(127).any()
    output = launch((q, k, v), True, E4M3, of_output).float()
    assert output.isfinite().all()
    assert (output.abs() == (LARGEST if scale < 1 else 0)).float().mean() > 0.999


@pytest.mark.parametrize("dtype", [torch.float16, E4M3], ids=str)
def test_views_are_read_and_an_output_follows_them_and_leaves_other_memory(head_dim, dtype):
    given = drawn(Shape(2, 3, 333, head_dim, kv_heads=1))
    of_output = [torch.full((1, 3, 1), 0.002, device=GPU)] if dtype == E4M3 else []
    views = [Quantized(x.values.transpose(1, 2).contiguous().transpose(1, 2), x.scales, x.rows) for x in given]
    with outputs.guarded(outputs.POISONS[0]) as guards:
        output = launch(views, False, dtype, of_output)
    assert guards.overruns() == []
    assert guards.unwritten(output, output.clone()) == 0
    assert output.stride() == views[0].values.stride()
    assert torch.equal(bytes_of(output), bytes_of(launch(given, False, dtype, of_output)))


@pytest.mark.parametrize("kind", KINDS)
def test_on_each_kind_of_values(head_dim, kind):
    given = drawn(MODEL.resized(head_dim=head_dim, values=kind))
    first, second = launch(given), launch(given)
    assert torch.equal(first, second)
    require_near(given, True, first)


@pytest.mark.parametrize("length", [2048, 8192])
def test_values_with_a_mean_are_summed_as_exactly(head_dim, length):
    """Tensor cores keep few bits of a sum: they truncate small terms, always towards 0."""
    q, k, v = inputs.draw(Shape(1, 2, length, head_dim), 3, GPU)
    given = quantize(q, k, v + 1)
    require_near(given, False, launch(given, False))


@pytest.mark.parametrize("causal", [False, True])
def test_scores_below_zero_have_a_largest_too(head_dim, causal):
    """The maximum compares floats as integers, whose order is reversed below 0."""
    q, k, v = inputs.draw(MODEL.resized(head_dim=head_dim), 5, GPU)
    given = quantize(q.abs(), -k.abs(), v)
    require_near(given, causal, launch(given, causal))


def test_a_tensors_scale_is_that_of_each_head(head_dim):
    q, k, v = drawn(MODEL.resized(head_dim=head_dim), scales="tensor")
    each = [Quantized(t.values, t.scales.expand(*t.values.shape[:2], 1).contiguous(), t.rows) for t in (q, k, v)]
    assert torch.equal(launch((q, k, v)), launch(each))


def test_attend_takes_it(head_dim, monkeypatch):
    given = drawn(MODEL.resized(head_dim=head_dim))
    monkeypatch.setattr(accuracy, "attention", None)  # used when no kernel serves the call
    tensors, scales = zip(*((one.values, one.scales) for one in given), strict=True)
    assert torch.equal(attnlab.attend(*tensors, True, scales=scales), launch(given))
    of_output = torch.full((1, 1, 1), 0.01, device=GPU)
    narrow = attnlab.attend(*tensors, True, scales=(*scales, of_output), dtype=E4M3)
    assert torch.equal(bytes_of(narrow), bytes_of(launch(given, True, E4M3, [of_output])))


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


# The quantizing kernel


@pytest.fixture
def quantising():
    if not quantizing.serves(torch.zeros(1, 1, 1, 64, dtype=torch.float16, device=GPU)):
        pytest.skip("the kernel needs a Hopper GPU and CuPy")


def require_same(found, right):
    for one, other in zip(found, right, strict=True):
        assert torch.equal(one.scales.cpu(), other.scales.cpu())
        assert torch.equal(bytes_of(one.values.cpu()), bytes_of(other.values.cpu()))


def odd(tensor):
    """The tensor with non-finite numbers, subnormals, or zeros in some of its heads."""
    special = torch.tensor([torch.inf, -torch.inf, torch.nan, -0.0, 0.0, 6e-8, -6e-8, 448.0], device=GPU)
    tensor[0, 0, :3, :8] = special.to(tensor.dtype)
    tensor[0, 1] = 0
    tensor[-1, -1] *= 2.0**-14
    return tensor


@pytest.mark.usefixtures("quantising")
@pytest.mark.parametrize("rotated", [False, True], ids=["as it is", "rotated"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("columns", [64, 128])
@pytest.mark.parametrize("length", [1, 7, 513, 4099])
def test_the_kernel_quantises_to_the_same_bits(monkeypatch, length, columns, dtype, rotated):
    generator = torch.Generator(GPU).manual_seed(length)
    sizes = [(2, 4, length, columns), (2, 2, length + 5, columns), (2, length + 5, 2, columns)]
    q, k, v = (odd(torch.randn(each, generator=generator, device=GPU).to(dtype)) for each in sizes)
    given = q, k, v.transpose(1, 2)
    found = quantize(*given, rotated=rotated)
    monkeypatch.setattr(quantizing, "serves", lambda *_: False)
    for where in (GPU, torch.device("cpu")):
        require_same(found, quantize(*(x.to(where) for x in given), rotated=rotated))


@pytest.mark.usefixtures("quantising")
@pytest.mark.parametrize("exponent", [-130, -100, -60, 100])
def test_scales_far_from_one_divide_as_exactly(monkeypatch, exponent):
    given = [torch.randn(1, 2, 300, 64, device=GPU).mul(2.0**exponent).bfloat16() for _ in range(3)]
    found = quantize(*given)
    monkeypatch.setattr(quantizing, "serves", lambda *_: False)
    require_same(found, quantize(*(x.cpu() for x in given)))


# In a run


@pytest.mark.parametrize("values", ["normal", "sd 6", "outliers"])
@pytest.mark.parametrize("name", implementations.FP8)
def test_it_passes_the_gate_and_the_rounds(head_dim, name, values):
    shape = Shape(2, 8, 1024, head_dim, dtype="bfloat16", values=values)
    subject, samples = timed(registry.find(name), shape, Timing(clock="device", cache="warm"), "cuda", samples=8)
    if subject.status == "skipped":
        pytest.skip(subject.reason)
    assert subject.status == "measured", subject.reason
    assert len(samples) == 8


@pytest.mark.parametrize("served", [True, False], ids=["by the kernel", "by PyTorch"])
@pytest.mark.parametrize("rotated", [False, True], ids=["as it is", "rotated"])
def test_what_is_quantised_follows_what_is_drawn(head_dim, rotated, served, monkeypatch):
    if not served:
        monkeypatch.setattr(quantizing, "serves", lambda *_: False)
    shape = Shape(2, 8, 512, head_dim)
    windows = inputs.Windows(shape, GPU, 5)
    rounded = subjects.InE4M3(rotated=rotated).rounded(windows)
    for seed in (1, 2):
        windows.draw(seed)
        rounded.refresh()
        for window in range(5):
            require_same(rounded[window], quantize(*windows[window], rotated=rotated))
