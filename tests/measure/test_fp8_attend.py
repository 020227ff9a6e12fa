"""`attend` of tensors in e4m3 with scales: its result on a CPU, its errors for bad input, and the use of the kernel."""

import ctypes
import math
import re

import pytest
import torch
from conftest import told

import attnlab
from attnlab.base import paths
from attnlab.compile import check
from attnlab.measuring.fp8 import accuracy
from attnlab.measuring.fp8.attend import attend
from attnlab.measuring.fp8.kernel import AllScales, ScaledMaps, rung
from attnlab.measuring.fp8.quantize import E4M3, quantize
from attnlab.measuring.kernels.problem import Problem
from attnlab.measuring.subjects import oracle
from attnlab.measuring.subjects.implementation import Unsupported
from attnlab.study import implementations, ladder, tuning


def drawn(queries=40, keys=64, kv_heads=2, scales="head"):
    generator = torch.Generator().manual_seed(1)
    sizes = (2, 4, queries, 64), (2, kv_heads, keys, 64), (2, kv_heads, keys, 64)
    factors = torch.logspace(-1, 1, 8).view(2, 4, 1, 1)  # heads have different scales
    q, k, v = (torch.randn(size, generator=generator) * factors[:, : size[1]] for size in sizes)
    return quantize(q, k, v, scales)


def called(given, *arguments, **options):
    tensors, scales = zip(*((one.values, one.scales) for one in given), strict=True)
    return attnlab.attend(*tensors, *arguments, scales=scales, **options)


@pytest.mark.parametrize("scales", ["tensor", "head"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_what_it_gives_is_near_float64_of_what_the_tensors_stand_for(scales, causal, dtype):
    given = drawn(scales=scales)
    output = called(given, causal, 0.2, dtype=dtype)
    exact = oracle.float64(*(one.dequantized() for one in given), causal, 0.2)
    assert output.dtype == (dtype or torch.float16)
    assert (output.double() - exact).norm() < 0.05 * exact.norm()
    assert torch.equal(output, accuracy.attention(*given, causal, 0.2, dtype or torch.float16))


@pytest.mark.parametrize("each", [(1, 1, 1), (2, 1, 1), (1, 4, 1), (2, 4, 1)], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_an_output_in_e4m3_is_over_its_scale(each, causal):
    q, k, v = drawn()
    of_output = torch.linspace(0.02, 0.05, math.prod(each)).view(each)
    tensors, scales = (q.values, k.values, v.values), (q.scales, k.scales, v.scales, of_output)
    output = attnlab.attend(*tensors, causal, scales=scales, dtype=E4M3)
    exact = oracle.float64(*(one.dequantized() for one in (q, k, v)), causal)
    assert (output.dtype, output.shape) == (E4M3, exact.shape)
    wide = accuracy.attention(q, k, v, causal, None, torch.float32)
    expected = (wide / of_output.unsqueeze(-1)).clamp(-448, 448).to(E4M3)
    assert torch.equal(output.view(torch.uint8), expected.view(torch.uint8))
    stated = output.double() * of_output.unsqueeze(-1)
    held = exact.abs() < 400 * of_output.unsqueeze(-1)
    assert held.float().mean() > 0.9
    assert (stated - exact)[held].norm() < 0.06 * exact[held].norm()


Q, K, V = drawn()
S = Q.scales, K.scales, V.scales
GIVEN, HALF = tuple(one.values for one in (Q, K, V)), V.values.half()
FEWER = tuple(tensor[:, :, :30] for tensor in GIVEN[1:])


@pytest.mark.parametrize(
    ("given", "options", "words"),
    [
        ((*GIVEN[:2], HALF), {"scales": S}, "takes scales with tensors in torch.float8_e4m3fn, and v is *float16"),
        (GIVEN, {}, "takes tensors in torch.float8_e4m3fn with their scales, as scales=*"),
        (3 * (HALF,), {"dtype": torch.float16}, "takes dtype, of the output, where q, k and v come with scales"),
        (GIVEN, {"scales": S, "autotune": True}, "takes neither autotune nor kv_lens with scales"),
        (GIVEN, {"scales": S[:2]}, "takes the scales of q, k, v where it gives *float16, not 2 of them"),
        (GIVEN, {"scales": (*S, S[1]), "dtype": E4M3}, "takes scales (2 or 1, 4 or 1, 1) of the output, not (2, 2, 1)"),
        (GIVEN, {"scales": (*S[:2], S[2].double())}, "takes scales in torch.float32 on cpu: *v*"),
        (GIVEN, {"scales": (S[1], *S[1:])}, "takes scales (2 or 1, 4 or 1, 1) of q, not (2, 2, 1)"),
        (GIVEN, {"scales": S, "dtype": torch.float32}, "gives *.float16, *.bfloat16, *.float8_e4m3fn of *float32"),
        (GIVEN, {"scales": S, "scale": -1.0}, "takes a scale above 0, not -1"),
        ((Q.values, *FEWER), {"scales": S, "causal": True}, "takes no more queries than keys*"),
        ((Q.values[:, :3], *GIVEN[1:]), {"scales": S}, "takes as many heads of K and V as divide those of Q, not *"),
    ],
    ids=str,
)
def test_what_doesnt_fit_is_said_in_one_line(given, options, words):
    said = told(lambda: attnlab.attend(*given, **options), ValueError)
    assert re.fullmatch(f"attend {re.escape(words).replace(re.escape('*'), '.*')}", said)


def test_zeros_and_the_least_scales_give_zeros_and_no_queries_nothing():
    zeros = torch.zeros(1, 1, 4, 64)
    assert torch.equal(called(quantize(zeros, zeros, zeros), True), zeros.half())
    assert attend(Q.values[:, :, :0], *GIVEN[1:], S).shape == (2, 4, 0, 64)


def test_it_is_a_rung_that_nothing_tunes():
    entry = ladder.rung("kernel.fp8")
    assert entry.scaled
    assert entry not in ladder.drawn()
    assert set(implementations.FP8) < set(implementations.known())
    assert tuning.hashes(implementations.FP8, "any") == dict.fromkeys(
        implementations.FP8[:-1], ladder.hashes([entry])["kernel.fp8"]
    )
    assert "in e4m3 with their scales" in told(lambda: rung()(HALF, HALF, HALF, False), Unsupported)


def test_the_scales_of_a_launch_are_where_the_tensors_are():
    maps = ScaledMaps.__new__(ScaledMaps)
    maps._scales = AllScales()
    q, k, v, o = torch.ones(2, 4, 1), torch.ones(1, 1, 1), torch.ones(2, 8, 1)[:, ::2], torch.ones(1, 4, 1)
    places = maps._scales.q, maps._scales.k, maps._scales.v, maps._scales.o
    right = [(q.data_ptr(), 4, 1), (k.data_ptr(), 0, 0), (v.data_ptr(), 8, 2), (o.data_ptr(), 0, 1)]
    maps.scale((q, k, v))
    assert [(place.at, place.batch, place.head) for place in places] == [*right[:3], (None, 0, 0)]
    maps.scale((q, k, v, o))
    assert [(place.at, place.batch, place.head) for place in places] == right


@pytest.mark.parametrize(("dtype", "count"), [(torch.float16, 4), (torch.bfloat16, 2), (E4M3, 3)])
def test_the_rung_reads_no_scales_that_it_was_not_given(dtype, count):
    with pytest.raises(Unsupported, match="takes the scales of Q, K and V, and that of an output in e4m3 alone"):
        rung().of_scales(*GIVEN, (S * 2)[:count], False, None, dtype)


def test_scales_are_as_the_kernel_declares_them():
    source = (paths.kernels() / "13_fp8.cu").read_text()
    body = source.split("struct Scales {")[1].split("};")[0]
    declared = re.findall(r"\bint ([\w, ]+);", body)
    assert [name for names in declared for name in names.split(", ")] == ["batch", "head"]
    assert "const float* at;" in body
    assert "struct AllScales { Scales q, k, v, o; };" in source
    assert check.PASSED["tensor maps", "scaled problem"][4:] == (ctypes.sizeof(Problem), ctypes.sizeof(AllScales))


@pytest.mark.parametrize("tile", ladder.rung("kernel.fp8").tiles, ids=lambda tile: tile.title)
def test_shared_memory_holds_all_that_a_tile_needs(tile):
    t = tile.template
    ring = t["stages"] * t["keys"] * 3 * tile.head_dim
    assert ring + t["consumers"] * 256 * tile.head_dim < tile.shared_bytes <= ladder.MOST_SHARED_BYTES
