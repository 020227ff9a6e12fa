"""Numbers as they are printed, worked by hand."""

import math

import pytest

from attnlab.exhibits import formats
from attnlab.infer.stats import Interval
from attnlab.study.shapes import Shape


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (47.4567, 3, "47.5"),
        (47.4567, 4, "47.46"),
        (0.0012345, 3, "0.00123"),
        (1234.5, 3, "1,234"),
        (1234567.0, 3, "1,234,567"),
        (123.4, 3, "123"),
        (1.0, 3, "1.00"),
        (-2.5, 2, "−2.5"),
        (1e-4, 3, "0.000100"),
        (2.391e-5, 3, "2.39e-05"),
        (-2.391e-5, 3, "−2.39e-05"),
        (0, 3, "0"),
        (math.inf, 3, "not finite"),
        (-math.inf, 3, "not finite"),
        (math.nan, 3, "—"),
        (None, 3, "—"),
    ],
)
def test_significant_digits(value, digits, text):
    assert formats.number(value, digits) == text


@pytest.mark.parametrize(
    ("estimate", "low", "high", "decimals"),
    [
        (40.0, 40.0, 40.11, 2),  # a width of 0.11
        (40.0, 40.0, 40.099, 3),
        (40.0, 39.0, 41.5, 1),
        (40.0, 20.0, 55.0, 1),  # the width asks for none, three digits of the estimate for one
        (400.0, 390.0, 405.0, 0),
        (4000.0, 0.0, 1e4, 0),
        (1.0, 1.0, 1.00000001, 4),  # never more than four
        (1.0, 1.0, 1.0, 2),
        (1.0, 1.0, math.inf, 2),
        (0.0, 0.0, 0.0, 3),
    ],
)
def test_an_interval_shows_its_width_to_two_digits_and_its_estimate_to_three(estimate, low, high, decimals):
    assert formats.decimals_for(Interval(estimate, low, high)) == decimals


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Interval(47.4567, 47.41, 47.52), "47.46 [47.41, 47.52]"),
        (Interval(1234.5, 1200.0, 1300.0), "1,234 [1,200, 1,300]"),
        (Interval(0.5, 0.5, 0.5), "0.500 [0.500, 0.500]"),
        (Interval(1.25, 1.2494, 1.2506), "1.2500 [1.2494, 1.2506]"),
        (Interval(math.nan, 1.0, 2.0), "—"),
    ],
)
def test_intervals(value, text):
    assert formats.interval(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (9.94, "9.9 %"),
        (0.0, "0.0 %"),
        (10.0, "10 %"),
        (41.94, "42 %"),
        (150.4, "150 %"),
        (-3.21, "−3.2 %"),
        (math.inf, "not finite"),
        (math.nan, "—"),
    ],
)
def test_percentages(value, text):
    assert formats.percent(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "1.0000"), (0.05, "0.0500"), (1e-4, "0.0001"), (9.9e-5, "<0.0001"), (0.0, "<0.0001")],
)
def test_pvalues(value, text):
    assert formats.pvalue(value) == text


def test_bytes_are_mebibytes():
    assert formats.mebibytes(2**20) == "1.00"
    assert formats.mebibytes(1536 * 2**10) == "1.50"
    assert formats.mebibytes(2**31) == "2,048"
    assert formats.mebibytes(math.nan) == "—"


@pytest.mark.parametrize(
    ("ends", "text"),
    [
        ((-20.0, -20.5, -19.5), "−20.0 % [−20.5, −19.5]"),
        ((300.0, 250.0, 350.0), "+300 % [+250, +350]"),
        ((0.123, -0.2, 0.4), "+0.1 % [−0.2, +0.4]"),
        ((math.nan, math.nan, math.nan), "—"),
    ],
)
def test_changes_in_percent(ends, text):
    assert formats.change(Interval(*ends)) == text


def test_factors_and_kibibytes():
    assert [formats.times(value) for value in (1.3, 10, 0.5)] == ["1.30×", "10.0×", "0.500×"]
    assert [formats.kibibytes(value) for value in (0, 1024, 49152, 131184)] == ["0", "1", "48", "128.1"]


@pytest.mark.parametrize(("value", "text"), [(1.0, "+1.00"), (-0.333, "−0.33"), (0.0, "+0.00")])
def test_signed_numbers(value, text):
    assert formats.signed(value) == text


@pytest.mark.parametrize(("amount", "text"), [(0, "0 cases"), (1, "1 case"), (2, "2 cases")])
def test_counts(amount, text):
    assert formats.count(amount, "case") == text


@pytest.mark.parametrize(
    ("text", "ended"), [("it\nfailed.", "it failed."), ("it", "it."), ("a long story", "a long s…")]
)
def test_a_sentence_ends_once(text, ended):
    assert formats.ended(text, 9 if "long" in text else 20) == ended


def test_many_shapes_are_grouped():
    full = [Shape(32, 8, length, 64) for length in (4096, 8192)]
    causal = [Shape(32, 8, length, 64, causal=True) for length in (4096, 8192)]
    assert formats.shapes(full, full) == "B=32 H=8 S=4096 and 8192"
    assert formats.shapes(full + causal, full) == "B=32 H=8 S=4096 and 8192, with and without the causal mask"
    assert formats.shapes([full[0], *causal], full) == (
        "B=32 H=8 S=4096, with and without the causal mask; B=32 H=8 S=8192, causal"
    )


def test_shapes_are_named_by_what_distinguishes_them_among_others():
    one, wide, brain = Shape(32, 8, 512, 64), Shape(32, 8, 512, 128), Shape(32, 8, 512, 64, dtype="bfloat16")
    assert formats.shapes([one]) == "B=32 H=8 S=512 D=64 float16"
    assert formats.shapes([wide], [one, wide]) == "B=32 H=8 S=512 D=128"
    assert formats.shapes([brain], [one, brain]) == "B=32 H=8 S=512 bfloat16"
    assert (
        formats.shapes([one, wide], [one, wide, brain]) == "B=32 H=8 S=512 D=64 float16; B=32 H=8 S=512 D=128 float16"
    )
    both = [one, Shape(8, 8, 512, 64, causal=True), wide]
    assert formats.shapes(both, both) == "B=32 H=8 S=512; B=8 H=8 S=512, causal (each D=64); B=32 H=8 S=512 D=128"


def test_shapes_are_told_apart_by_what_is_special():
    decoding = [Shape(2, 4, 1, 64, kv_heads=2, kv_len=keys) for keys in (128, 256)]
    assert formats.shapes(decoding, decoding) == "B=2 H=4 S=1, 2 KV heads, 128 keys; B=2 H=4 S=1, 2 KV heads, 256 keys"
    trained = [Shape(2, 4, length, 64, causal=True, direction="training") for length in (64, 128)]
    assert formats.shapes(trained, trained) == "B=2 H=4 S=64 and 128, causal, training"


def test_one_of_a_kind_is_no_plural():
    assert Shape(2, 4, 1, 64, kv_heads=1, kv_len=16).label == "(2, 4, 1, 64) float16, 1 KV head, 16 keys"
    assert Shape(2, 4, 8, 64, kv_len=1).label == "(2, 4, 8, 64) float16, 1 key"


@pytest.mark.parametrize(
    ("ends", "text"),
    [((-4.2, -7.9, -0.5), "−4.2 [−7.9, −0.5]"), ((20.0, -math.inf, math.inf), "20.0 [−∞, ∞]")],
)
def test_ends_below_zero_and_without_end(ends, text):
    assert formats.interval(Interval(*ends)) == text


def test_shapes():
    assert Shape(32, 8, 512, 64).label == "(32, 8, 512, 64) float16"
    assert Shape(1, 2, 3, 4, True, "float32").label == "(1, 2, 3, 4) float32, causal"


@pytest.mark.parametrize(
    ("words", "text"), [([], "none"), (["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")]
)
def test_listings(words, text):
    assert formats.listing(words) == text
