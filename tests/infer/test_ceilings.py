"""Ceilings and floors, worked by hand."""

import math

import pytest
import synthetic

from attnlab.infer.ceilings import Ceilings
from attnlab.literature import datasheets
from attnlab.study.shapes import Shape

# 4·2·4·128²·64 FLOPs, 4·2·4·128·64·2 bytes and 2·4·128² exponentials, over 2e6, 1e5 and 1e5 of them a microsecond.
TERMS = {"matmul.float16": 16.777216, "exponentials": 1.31072}


def ceilings(device: str = "NVIDIA H200", **rates: float | None) -> Ceilings:
    """The synthetic ceilings, where `rates` (a dot is two underscores) doesn't say otherwise."""
    chosen = {name: (rates.get(name.replace(".", "__"), rate), unit) for name, (rate, unit) in RATES.items()}
    return of_rates(chosen, device)


def of_rates(rates: dict[str, tuple[float | None, str]], device: str = "NVIDIA H200") -> Ceilings:
    return Ceilings(synthetic.manifest(synthetic.Recipe(device=device, ceilings=rates)))


RATES = synthetic.CEILINGS


def test_each_ceiling_allows_a_least_time():
    # Q, K, V and O take 524288 bytes, more than the 200000 of the L2: warm, at least 324288 come from memory.
    assert ceilings().terms_us(synthetic.TARGET, "cold") == pytest.approx(TERMS | {"copy": 5.24288})
    assert ceilings().terms_us(synthetic.TARGET, "warm") == pytest.approx(TERMS | {"l2": 1.31072, "copy": 3.24288})
    assert ceilings().bytes_us(synthetic.TARGET, "warm") == pytest.approx(3.24288)
    assert ceilings(l2=40.0).bytes_us(synthetic.TARGET, "warm") == pytest.approx(13.1072)


def test_a_warm_cache_that_holds_the_tensors_takes_the_place_of_memory():
    # 131072 bytes over 1e5 and 4e5 of them a microsecond.
    slow = ceilings(matmul__float16=100.0)
    assert slow.terms_us(synthetic.SHORT, "cold")["copy"] == pytest.approx(1.31072)
    assert slow.terms_us(synthetic.SHORT, "warm")["l2"] == pytest.approx(0.32768)
    assert slow.floor_us(synthetic.SHORT, "cold") == pytest.approx(1.31072)
    assert slow.floor_us(synthetic.SHORT, "warm") == pytest.approx(0.32768)
    assert [slow.limit(synthetic.SHORT, cache) for cache in ("cold", "warm")] == ["memory", "L2"]
    # Without the L2's own ceiling there is no term for it, and memory's does not apply.
    assert set(ceilings(l2=None).terms_us(synthetic.SHORT, "warm")) == {"matmul.float16", "exponentials"}


@pytest.mark.parametrize(("rate", "product_us"), [(4.0, 8.388608), (2.1, 15.978301), (1.9, 16.777216)])
def test_the_faster_of_the_librarys_product_and_wgmma_counts(rate, product_us):
    both = of_rates(RATES | {"wgmma.float16": (rate, "TFLOP/s")})
    assert both.floor_us(synthetic.TARGET, "warm") == pytest.approx(product_us)
    assert both.limit(synthetic.TARGET, "warm") == "matrix product"
    assert both.product("float16") == ("wgmma.float16" if rate > 2 else "matmul.float16")
    assert both.product("bfloat16") == "matmul.bfloat16"
    assert both.ridge("float16") == pytest.approx(10 * max(rate, 2.0))
    title = "wgmma, float16" if rate > 2 else "matrix product, float16"
    assert f"ceiling of {title}, not explained" in both.throughput_mark(synthetic.TARGET, product_us - 1)


def test_a_causal_mask_halves_flops_and_exponentials_but_not_bytes():
    terms = ceilings().terms_us(Shape(2, 4, 128, 64, causal=True), "warm")
    halved = {name: us * 129 / 256 for name, us in TERMS.items()}
    assert terms == pytest.approx(halved | {"l2": 1.31072, "copy": 3.24288})


@pytest.mark.parametrize(
    ("rates", "floor_us", "limit"),
    [
        ({}, 16.777216, "matrix product"),
        ({"matmul__float16": 16.0}, 3.24288, "memory"),
        ({"exponentials": 5.0}, 26.2144, "exponentials"),
        ({"matmul__float16": None}, 3.24288, "memory"),
        ({"matmul__float16": None, "copy": None, "exponentials": 50.0}, 2.62144, "exponentials"),
    ],
)
def test_the_floor_is_the_largest_of_the_terms_that_were_measured(rates, floor_us, limit):
    assert ceilings(**rates).floor_us(synthetic.TARGET, "warm") == pytest.approx(floor_us)
    assert ceilings(**rates).limit(synthetic.TARGET, "warm") == limit


def test_without_ceilings_there_is_no_floor():
    nothing = ceilings(matmul__float16=None, copy=None, exponentials=None, l2=None)
    assert nothing.terms_us(synthetic.TARGET, "warm") == {}
    assert math.isnan(nothing.floor_us(synthetic.TARGET, "warm"))
    assert nothing.limit(synthetic.TARGET, "warm") == "n/a"
    assert nothing.bandwidth_mark(synthetic.TARGET, 1e-3, "warm") == ""
    assert nothing.throughput_mark(synthetic.TARGET, 1e-3) == ""
    assert math.isnan(nothing.ridge("float16"))
    assert math.isnan(nothing.rate("copy"))
    assert all(ceiling.measured is None and ceiling.how == "not measured: why" for ceiling in nothing.all)


def test_a_dtype_whose_product_was_not_measured_has_no_such_term():
    shape = Shape(2, 4, 128, 64, dtype="float32")
    assert ceilings().terms_us(shape, "cold") == pytest.approx({"copy": 10.48576, "exponentials": 1.31072})
    assert math.isnan(ceilings().ridge("float32"))


def test_memory_and_matrix_product_meet_at_the_ridge():
    assert ceilings().ridge("float16") == pytest.approx(20)  # 2e12 FLOP/s over 1e11 byte/s
    short, long = Shape(2, 4, 39, 64), Shape(2, 4, 41, 64)  # intensity S/2
    assert [ceilings().limit(shape, "cold") for shape in (short, long)] == ["memory", "matrix product"]
    # 2·4·48·64·2 bytes a tensor, 196608 together; with 49 rows 200704, more than the L2 has.
    assert [ceilings().fits(Shape(2, 4, length, 64)) for length in (48, 49)] == [True, False]


L2 = "† above the copy ceiling: the tensors fit the last level of cache, explained by the L2's own ceiling"
WHY = ", not explained by a cache: take it for an error until it is explained"
COPY = (
    "‡ above the measured ceiling of memory copy, not explained by a cache: take it for an error unless the call "
    "mostly reads, which the copy doesn't"
)
PRODUCT = f"‡ above the measured ceiling of matrix product, float16{WHY}"
LARGE = Shape(64, 4, 16, 64)


@pytest.mark.parametrize(
    ("shape", "median_us", "bandwidth", "throughput"),
    [
        # S = 32: 131072 bytes fit 200000 of cache; copy 1.31072, L2 0.32768, product 1.048576 µs
        (synthetic.SHORT, 1.32, "", ""),
        (synthetic.SHORT, 1.31072, "", ""),
        (synthetic.SHORT, 1.2, L2, ""),
        (synthetic.SHORT, 1.0, L2, PRODUCT),
        # S = 128: product 16.78 µs
        (synthetic.TARGET, 17.0, "", ""),
        (synthetic.TARGET, 16.0, "", PRODUCT),
        # S = 16, B = 64: 2097152 bytes don't fit the cache; copy 20.97152 µs
        (LARGE, 20.97153, "", ""),
        (LARGE, 20.9, COPY, ""),
    ],
)
def test_what_lies_above_a_ceiling_is_explained_or_flagged(shape, median_us, bandwidth, throughput):
    assert ceilings().bandwidth_mark(shape, median_us, "warm") == bandwidth
    assert ceilings().bandwidth_mark(shape, median_us, "cold") == (bandwidth and COPY)
    assert ceilings().throughput_mark(shape, median_us) == throughput


def test_above_even_the_cache_is_flagged():
    slow_cache = ceilings(l2=105.0)  # 1.2483 µs
    assert slow_cache.bandwidth_mark(synthetic.SHORT, 1.25, "warm") == L2
    flagged = slow_cache.bandwidth_mark(synthetic.SHORT, 1.24, "warm")
    assert flagged == f"‡ above the measured ceilings of memory copy and L2 reads{WHY}"


def test_a_cache_that_was_not_measured_explains_nothing():
    mark = ceilings(l2=None).bandwidth_mark(synthetic.SHORT, 1.2, "warm")
    assert mark.startswith("†")
    assert mark.endswith("the tensors fit the last level of cache, whose ceiling was not measured")


def test_a_throughput_above_the_exponentials_is_flagged():
    slow = ceilings(exponentials=1.0)  # 131.072 µs
    assert slow.throughput_mark(synthetic.TARGET, 100.0) == f"‡ above the measured ceiling of exponentials{WHY}"
    assert slow.bandwidth_mark(synthetic.TARGET, 100.0, "warm") == ""


def test_the_datasheet_stands_beside_a_device_that_it_knows():
    both = of_rates(RATES | {"wgmma.bfloat16": (2.0, "TFLOP/s")})
    assert {ceiling.title: ceiling.datasheet for ceiling in both.all} == {
        "matrix product, float16": 989,
        "memory copy": 4800,
        "L2 reads": None,
        "exponentials": None,
        "wgmma, bfloat16": 989,
    }
    assert datasheets.datasheet("NVIDIA H200")["sm_clock_mhz"] == 1980
    assert datasheets.datasheet("NVIDIA H20") is None
    assert {ceiling.datasheet for ceiling in ceilings("Imaginary X1").all} == {None}


def test_a_measured_ceiling_is_the_median_of_its_samples():
    manifest = synthetic.manifest()
    manifest["ceilings"]["copy"]["samples"] = [90.0, 100.0, 130.0]
    measured = next(ceiling.measured for ceiling in Ceilings(manifest).all if ceiling.name == "copy")
    assert measured is not None
    assert (measured.estimate, measured.low, measured.high) == (100, 90, 130)
