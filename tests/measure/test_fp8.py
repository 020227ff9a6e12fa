"""Quantizing Q, K and V to e4m3, and the resulting errors of attention."""

import ctypes
import math
import os
from itertools import product
from types import SimpleNamespace

import ladders
import pandas as pd
import pytest
import torch

import attnlab
from attnlab.base import paths
from attnlab.compile import nvrtc
from attnlab.measuring.fp8 import accuracy, quantizing
from attnlab.measuring.fp8.quantize import DTYPES, LARGEST, SCALES, _signs, quantize, rotate
from attnlab.measuring.gate.check import Deviation
from attnlab.measuring.subjects import oracle
from attnlab.study import ladder
from attnlab.study.shapes import Shape

CPU = torch.device("cpu")
ROWS = 16
# The relative error that division and multiplication in float32 add.
ROUNDED = 1 + 2.0**-20


def drawn(*sizes, dtype=torch.float32, seed=0):
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed)).to(dtype)


def quantized(tensor, scales="block"):
    return quantize(tensor, tensor, tensor, scales, of_block(scales))[2]


def of_block(scales):
    """The rows of a block, for scales of blocks; else None."""
    return ROWS if scales == "block" else None


def assert_close(tensor, found):
    """Each element has one rounding, to a number of e4m3 times the scale at its own indices."""
    given, scales = tensor.double(), torch.empty(tensor.shape, dtype=torch.float64)
    for b, h, row in product(*map(range, tensor.shape[:3])):
        scales[b, h, row] = found.scales[b % len(found.scales), h % found.scales.shape[1], row // found.rows]
    error = (found.dequantized().double() - given).abs()
    assert (error <= torch.maximum(given.abs() / 16, scales * 2.0**-10) * ROUNDED).all()


# Quantizing


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_element_is_rounded_once_in_a_view_as_in_a_copy(scales, dtype):
    tensor = drawn(2, 40, 3, 64, dtype=dtype).transpose(1, 2) * torch.logspace(-6, 3, 40)[:, None].to(dtype)
    for view in (tensor, tensor[:, :, 3:]):
        found = quantized(view, scales)
        assert found.values.dtype == torch.float8_e4m3fn
        assert_close(view, found)
        assert torch.equal(found.dequantized(), quantized(view.contiguous(), scales).dequantized())


@pytest.mark.parametrize(
    ("scales", "shape", "rows"), [("tensor", (1, 1, 1), 40), ("head", (2, 3, 1), 40), ("block", (2, 3, 3), ROWS)]
)
def test_a_scale_is_the_largest_of_what_it_is_for_over_448(scales, shape, rows):
    tensor = drawn(2, 3, 40, 64)
    found = quantized(tensor, scales)
    assert (tuple(found.scales.shape), found.rows, found.scales.dtype) == (shape, rows, torch.float32)
    for b, h, block in product(*map(range, shape)):
        every = [slice(None) if count == 1 else slice(n, n + 1) for n, count in ((b, shape[0]), (h, shape[1]))]
        part = tensor[*every, block * rows : (block + 1) * rows]
        assert found.scales[b, h, block] == part.abs().max() / LARGEST


def test_what_e4m3_has_comes_back_bit_for_bit():
    every = torch.arange(128, dtype=torch.uint8).view(torch.float8_e4m3fn).float()[:127]
    tensor = torch.cat([every, -every, every[-2:]]).view(1, 1, 4, 64) * 2.0**-5
    for scales in ("tensor", "head"):
        assert torch.equal(quantized(tensor, scales).dequantized(), tensor)


@pytest.mark.parametrize("scales", SCALES)
def test_zeros_stay_zeros(scales):
    for count in (32, 40):
        tensor = drawn(1, 2, 40, 64)
        tensor[:, :, :count] = 0
        found = quantized(tensor, scales)
        assert torch.equal(found.dequantized()[:, :, :count], tensor[:, :, :count])
        assert_close(tensor, found)


@pytest.mark.parametrize("scales", SCALES)
def test_what_is_not_finite_becomes_nan_and_nothing_else_does(scales):
    tensor = drawn(1, 2, 40, 64, dtype=torch.float16)
    places = [(0, 0, 3, 1), (0, 1, 7, 0), (0, 1, 20, 63)]
    for place in places:
        tensor[place] = 0
    expected = quantized(tensor, scales)
    for place, value in zip(places, (math.inf, -math.inf, math.nan), strict=True):
        tensor[place] = value
    found = quantized(tensor, scales)
    assert found.dequantized().isnan().nonzero().tolist() == [list(place) for place in places]
    assert torch.equal(found.dequantized().nan_to_num(nan=0.0), expected.dequantized())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_largest_and_the_least_numbers_of_a_dtype_are_kept(dtype):
    info = torch.finfo(dtype)
    largest = torch.full((1, 1, 2, 64), info.max, dtype=dtype)
    largest[..., 1, :] = -info.max / 2
    assert_close(largest, quantized(largest))
    least = torch.full((1, 1, 2, 64), info.smallest_normal * info.eps, dtype=dtype)
    assert_close(least, quantized(least))
    assert quantized(least).scales.min() >= torch.finfo(torch.float32).smallest_normal


@pytest.mark.parametrize(
    ("tensor", "options", "reason"),
    [
        (drawn(1, 1, 8, 64), {"scales": "row"}, "unknown scales 'row'; known are tensor, head, block"),
        (drawn(1, 1, 8, 64).double(), {}, "not torch.float64 of"),
        (drawn(1, 1, 0, 64), {}, r"of \[1, 1, 0, 64\]"),
        (drawn(1, 8, 64), {}, r"\(batch, heads, length, head_dim\), not torch.float32 of \[1, 8, 64\]"),
        (drawn(1, 1, 8, 64), {"scales": "block", "rows": 0}, "at least one row, not 0"),
        (drawn(1, 1, 8, 64), {"rows": 8}, "state scales=\"block\" with them, not 'head', or leave them out"),
        (drawn(1, 1, 8, 96), {"rotated": True}, "a power of two, not 96"),
    ],
)
def test_what_cannot_be_quantised_is_refused(tensor, options, reason):
    with pytest.raises(ValueError, match=reason):
        attnlab.quantize(tensor, tensor, tensor, **options)


# Rotating


@pytest.mark.parametrize("head_dim", [1, 2, 64, 128])
def test_rotating_leaves_scores_as_they_are(head_dim):
    q, k = drawn(1, 2, 30, head_dim), drawn(1, 2, 50, head_dim, seed=1)
    exact = q.double() @ k.double().transpose(2, 3)
    assert torch.allclose(rotate(q).double() @ rotate(k).double().transpose(2, 3), exact, atol=1e-4)
    lengths = rotate(q).norm(dim=-1)
    assert torch.allclose(lengths, q.norm(dim=-1), rtol=1e-5)


def test_rotating_spreads_an_outlier_and_v_is_left_alone():
    tensor = torch.zeros(1, 1, 2, 64)
    tensor[..., 7] = 80.0
    q, k, v = quantize(tensor, tensor, tensor, "tensor", rotated=True)
    assert torch.equal(q.dequantized().abs(), torch.full_like(tensor, 10.0))
    assert torch.equal(k.values.float(), q.values.float())
    assert torch.equal(v.dequantized(), tensor)


def test_the_default_device_and_dtype_change_nothing(monkeypatch):
    tensor = drawn(1, 2, 3, 64)
    right = quantize(tensor, tensor, tensor, rotated=True)
    _signs.cache_clear()
    monkeypatch.setattr(quantizing, "_function", lambda *_: SimpleNamespace(kernel=SimpleNamespace(ptr=0)))
    driver = SimpleNamespace(CUfunction=int, cuLaunchKernel=lambda *_: (0,), CUresult=SimpleNamespace(CUDA_SUCCESS=0))
    monkeypatch.setattr(quantizing, "_libraries", lambda: (None, driver))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 0, raising=False)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            found = quantize(tensor, tensor, tensor, rotated=True)
            (_, of_kernel), *_ = quantizing.quantized(3 * (tensor.half(),))
    finally:
        torch.set_default_dtype(torch.float32)
    for its, expected in zip(found, right, strict=True):
        assert torch.equal(its.dequantized(), expected.dequantized())
    assert (of_kernel.dtype, of_kernel.shape) == (torch.float32, (1, 2, 1))


# Attention


@pytest.mark.parametrize(
    ("causal", "kv_heads", "kv_len", "scale"), [(False, 4, 48, None), (True, 2, 80, None), (True, 4, 48, 0.3)]
)
@pytest.mark.parametrize("scales", SCALES)
def test_attention_errs_by_the_rounding_of_its_probabilities(causal, kv_heads, kv_len, scale, scales):
    q = drawn(2, 4, 48, 64)
    k, v = drawn(2, kv_heads, kv_len, 64, seed=1), drawn(2, kv_heads, kv_len, 64, seed=2)
    found = quantize(q, k, v, scales, of_block(scales))
    output = accuracy.attention(*found, causal, scale, torch.float32).double()
    q, k, v = (tensor.dequantized().double() for tensor in found)
    # The error of a probability is 1/16 of it, or half a subnormal step, 2^-10, over a sum of at least 1.
    allowed = oracle.float64(q, k, v.abs(), causal, scale) / 16 + kv_len * v.abs().max() * 2.0**-18 + 1e-5
    error = (output - oracle.float64(q, k, v, causal, scale)).abs()
    assert (error <= allowed).all()
    assert error.max() > 1e-4  # the probabilities are rounded


# The loss of accuracy


def test_the_published_costs_are_what_is_computed():
    published = pd.read_csv(paths.ROOT / "data/reference/fp8_costs.csv")
    of_kind = published[published["values"] == "captured late"].set_index("rounded")["rmse"]
    found = accuracy.costs(Shape(1, 8, 512, 64, dtype="bfloat16", values="captured late"), CPU)
    assert {name: deviation.rmse for name, deviation in found.items()} == pytest.approx(dict(of_kind), rel=0.02)


def test_a_deviation_is_the_root_of_the_mean_square_and_the_largest():
    exact = torch.zeros(1, 1, 1, 4, dtype=torch.float64)
    output = torch.tensor([3.0, -4.0, 0.0, 0.0]).view(exact.shape)
    assert Deviation.between(output, exact) == Deviation(2.5, 4.0)
    output[..., 0] = math.nan
    assert Deviation.between(output, exact) == Deviation(math.inf, math.inf)


# The kernel


def test_the_quantising_kernel_compiles_for_hopper_and_takes_what_it_is_given(monkeypatch):
    pytest.importorskip("cuda.bindings.nvrtc")
    monkeypatch.setenv("ATTNLAB_KERNELS", os.fspath(quantizing.SOURCE.parent))
    which = zip(2 * [*quantizing.ELEMENTS], product(quantizing.HEAD_DIMS, (False, True)), strict=True)
    names = [quantizing.expression(dtype, *both) for dtype, both in which]
    stated = ladders.rung(source=quantizing.SOURCE.name, function="quantize", architectures=["sm_90a"])
    rung = ladder.Rung.model_validate(stated)
    build = nvrtc.build(rung, "sm_90a", names)
    assert set(build.instances) == set(names), build.error
    assert build.warnings == ()
    for name, needs in build.instances.items():
        assert (needs.spill_bytes, needs.most_threads) == (0, quantizing.MOST_THREADS["true" in name])
        assert needs.parameters == (ctypes.sizeof(quantizing.Given),)


@pytest.mark.parametrize(
    ("tensor", "fits"),
    [
        (torch.zeros(2, 3, 5, 64, dtype=torch.float16), True),
        (torch.zeros(2, 5, 3, 64, dtype=torch.float16).transpose(1, 2), True),
        (torch.zeros(2, 3, 5, 64, dtype=torch.float16)[..., ::2], False),
        (torch.zeros(2, 3, 5, 68, dtype=torch.float16)[..., 4:], False),
        (torch.zeros(2, 3, 5, 32, dtype=torch.float16), False),
    ],
    ids=str,
)
def test_rows_are_read_in_whole_vectors(tensor, fits):
    assert quantizing._fits(tensor) == fits
    assert not quantizing.serves(tensor, tensor, tensor)  # on a CPU
