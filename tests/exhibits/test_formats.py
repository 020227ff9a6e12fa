"""Numbers as they are printed, worked by hand, and sentences from templates."""

import math
from functools import partial

import pytest
from jinja2 import UndefinedError

from attnlab.exhibits import formats, words
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
    ("show", "value", "text"),
    [
        (formats.interval, Interval(47.4567, 47.41, 47.52), "47.46 [47.41, 47.52]"),
        (formats.interval, Interval(1234.5, 1200.0, 1300.0), "1,234 [1,200, 1,300]"),
        (formats.interval, Interval(0.5, 0.5, 0.5), "0.500 [0.500, 0.500]"),
        (formats.interval, Interval(1.25, 1.2494, 1.2506), "1.2500 [1.2494, 1.2506]"),
        (formats.interval, Interval(math.nan, 1.0, 2.0), "—"),
        (formats.interval, Interval(-4.2, -7.9, -0.5), "−4.2 [−7.9, −0.5]"),
        (formats.interval, Interval(20.0, -math.inf, math.inf), "20.0 [−∞, ∞]"),
        (formats.interval, Interval(165.0, 1.6e-4, 1.67e8), "165 [<1, >100,000]"),  # of two replicates far apart
        (formats.interval, Interval(0.5, 0.02, 30.0), "0.500 [0.020, 30.000]"),
        (formats.interval, Interval(2.0, 1e-5, 3e3), "2.00 [<0.01, >1,000]"),
        (formats.percent, 9.94, "9.9 %"),
        (formats.percent, 10.0, "10 %"),
        (formats.percent, 150.4, "150 %"),
        (formats.percent, -3.21, "−3.2 %"),
        (formats.percent, math.inf, "not finite"),
        (formats.percent, math.nan, "—"),
        (formats.pvalue, 1.0, "1.0000"),
        (formats.pvalue, 1e-4, "0.0001"),
        (formats.pvalue, 9.9e-5, "<0.0001"),
        (formats.cudnn, "91900", "9.19.0"),
        (formats.cudnn, "8907", "8.9.7"),
        (formats.cudnn, "n/a", "n/a"),
        (formats.mebibytes, 1536 * 2**10, "1.50"),
        (formats.mebibytes, 2**31, "2,048"),
        (formats.mebibytes, math.nan, "—"),
        (formats.change, Interval(-20.0, -20.5, -19.5), "−20.0 % [−20.5, −19.5]"),
        (formats.change, Interval(300.0, 250.0, 350.0), "+300 % [+250, +350]"),
        (formats.change, Interval(0.123, -0.2, 0.4), "+0.1 % [−0.2, +0.4]"),
        (formats.change, Interval(65.0, -90.0, 2e8), "+65.0 % [−90.0, >100,000]"),
        (formats.change, Interval(math.nan, math.nan, math.nan), "—"),
        (formats.times, 1.3, "1.30×"),
        (formats.kibibytes, 131184, "128.1"),
        (formats.signed, 1.0, "+1.00"),
        (formats.signed, -0.333, "−0.33"),
        (formats.ended, "it\nfailed.", "it failed."),
        (formats.ended, "it", "it."),
        (formats.ended, 300 * "a", 199 * "a" + "…"),
        (partial(formats.count, one="case"), 0, "0 cases"),
        (partial(formats.count, one="case"), 1, "1 case"),
        (formats.listing, [], "none"),
        (formats.listing, ["a"], "a"),
        (formats.listing, ["a", "b", "c"], "a, b and c"),
    ],
)
def test_values_in_print(show, value, text):
    assert show(value) == text


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
    kinds = [Shape(2, 4, 64, 64, values=kind) for kind in ("normal", "sd 6", "zeros")]
    assert formats.shapes(kinds, kinds) == "B=2 H=4 S=64, 3 kinds of values"
    assert formats.shapes(kinds[1:2], kinds) == "B=2 H=4 S=64, sd 6 values"


def test_one_of_a_kind_is_no_plural():
    assert Shape(2, 4, 1, 64, kv_heads=1, kv_len=16).label == "(2, 4, 1, 64) float16, 1 KV head, 16 keys"
    assert Shape(2, 4, 8, 64, kv_len=1).label == "(2, 4, 8, 64) float16, 1 key"


# Sentences from templates


@pytest.fixture
def template(tmp_path, monkeypatch):
    """Writes a page of macros that `say` finds."""
    monkeypatch.setattr(words, "FOLDER", tmp_path)
    words._template.cache_clear()
    yield lambda text: (tmp_path / "page.md.j2").write_text(text)
    words._template.cache_clear()


def test_facts_are_printed_as_tables_print_them(template):
    template("{% macro told(median, share) %}{{ median | interval }} µs, {{ share | percent }}{% endmacro %}")
    assert words.say("page.told", median=Interval(47.46, 47.41, 47.52), share=12.3) == "47.46 [47.41, 47.52] µs, 12 %"


def test_lines_are_joined_within_a_paragraph_and_an_item(template):
    template("{% macro told() %}\nOne\nline.\n\n- an\n  item\n- another\n{% endmacro %}")
    assert words.say("page.told") == "One line.\n\n- an item\n- another"


def test_a_fact_that_is_missing_is_no_empty_text(template):
    template("{% macro told(median) %}{{ median }} µs{% endmacro %}")
    with pytest.raises(UndefinedError):
        words.say("page.told")
