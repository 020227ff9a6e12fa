"""Input distributions: their syntax, the errors for unknown ones, and the shapes that have them."""

from functools import partial

import pytest
from conftest import TINY, tiny_study, told

from attnlab.study import studies, values
from attnlab.study.shapes import Shape

KNOWN = (
    "known are normal, sd 2, sd 4, sd 6, sd 12, sd 24, sd 60, sink 8, sink 13, late 20, positional 25, rising 24, "
    "falling 24, stairs 12, scales, outliers, student 3, offset 1, captured early, captured middle, captured late, "
    "mixture, zeros, or other amounts"
)
AXES = {"batch": 1, "heads": 4, "seq_len": 16, "head_dim": 64, "dtype": "float32"}


def test_kinds_that_are_timed_by_default_and_other_amounts_and_layers_may_be_stated():
    for kind in (*values.STANDARD, "sd 0.5", "sink 100", "rising 0", "student 2.5", "captured layer_3.attn-2"):
        assert " ".join(values.split(kind)).strip() == kind
        assert Shape(**AXES, values=kind).values == kind


@pytest.mark.parametrize(
    "kind",
    [
        *("", " ", "Normal", "nromal", "large logits", "constant rows", "all", " normal", "normal "),
        *("sd", "sink", "positional", "rising", "falling", "offset", "captured"),  # without an amount, or a layer
        *("normal 1", "scales 2", "outliers 6", "zeros 0", "mixture 6", "student", "student 0", "student t 3"),
        *("sink ", "sink  8", "sink eight", "sink -8", "sink 8 9", "sink 8\n", "sink 1e3", "sink .5", "sink inf"),
        *("captured early late", "captured ../early", "captured\tearly"),
    ],
)
def test_what_is_no_kind_is_told_in_one_line_with_those_that_are(kind):
    said = f"unknown values {kind!r}; {KNOWN}"
    for state in (values.split, values.placed, lambda kind: Shape(**AXES, values=kind)):
        assert told(partial(state, kind), ValueError) == said


@pytest.mark.parametrize("kind", [8, None, True, ["normal"], {"sink": 8}])
def test_what_is_no_text_is_no_kind(kind):
    assert told(partial(Shape, **AXES, values=kind), ValueError) == f"values must be the name of a kind, not {kind!r}"


# In a study


@pytest.mark.parametrize("every", ["all", ["all"]])
def test_all_stands_for_each_kind_that_is_timed_by_default(every):
    study = tiny_study(sweeps=TINY["sweeps"] | {"values": AXES | {"seq_len": [16, 48], "values": every}})
    swept = [Shape(**AXES | {"seq_len": seq_len}, values=kind) for seq_len in (16, 48) for kind in values.STANDARD]
    assert study.shapes == list(dict.fromkeys([*tiny_study().shapes, *swept]))
    assert studies.parse(study.model_dump(mode="json"), "manifest") == study


@pytest.mark.parametrize(
    ("axes", "problem"),
    [
        ({"values": "sink"}, f"sweeps.values: unknown values 'sink'; {KNOWN}"),
        ({"values": ["all", "sink 9"]}, f"sweeps.values: unknown values 'all'; {KNOWN}"),
        (
            {"values": "positional 25", "head_dim": 4},
            "sweeps.values: values: positional 25 is for a head_dim of at least 8, not 4",
        ),
        (
            {"values": "all", "seq_len": list(range(1, 1001))},
            f"sweeps: {3 + 1000 * len(values.STANDARD)} shapes, and a run can hold 10000: state fewer values",
        ),
    ],
)
def test_a_mistake_in_a_study_is_one_line(axes, problem):
    assert told(lambda: tiny_study(sweeps=TINY["sweeps"] | {"values": AXES | axes})) == f"tiny.yaml: {problem}"


# At a shape


def test_a_shape_names_its_values_unless_they_are_normal():
    plain, sink = Shape(**AXES), Shape(**AXES, causal=True, kv_heads=2, values="sink 8")
    assert sink.special == ["2 KV heads", "sink 8 values"]
    assert sink.label == "(1, 4, 16, 64) float32, causal, 2 KV heads, sink 8 values"
    assert str(sink) == "B=1 H=4 S=16 D=64 causal float32 2 KV heads sink 8 values"
    assert "values" not in plain.label + str(plain)
    assert Shape(**sink.axes) == sink != sink.resized(values="sink 13")
    assert sink.resized(seq_len=32).values == "sink 8"
    assert (sink.flops, sink.bytes) == (sink.resized(values="normal").flops, sink.resized(values="normal").bytes)
