"""FP8 in a run, without a GPU: PyTorch's operations that round to e4m3 take the kernel's place."""

from dataclasses import replace

import pytest
import torch
from conftest import gated, timed, told

from attnlab.measuring.fp8 import accuracy
from attnlab.measuring.fp8.quantize import SCALES, quantize, rounded
from attnlab.measuring.fp8.subjects import SUBJECTS
from attnlab.measuring.gate.reference_check import ReferenceCheck
from attnlab.measuring.session.checks import gate_of
from attnlab.measuring.session.requests import _answered
from attnlab.measuring.subjects import oracle, outputs, registry, sdpa
from attnlab.measuring.subjects.case import Case
from attnlab.measuring.subjects.implementation import Implementation, Unsupported
from attnlab.measuring.subjects.inputs import Windows, draw
from attnlab.study import implementations
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing

CPU = torch.device("cpu")
SHAPE = Shape(2, 4, 65, 64, True, "bfloat16", kv_heads=2)
GIVEN = Implementation("peer.given", accuracy.attention, rounding="head", quantized=True, differentiable=False)


ROTATED = replace(GIVEN, name="peer.rotated", rounding="head, rotated")


def quantizing(q, k, v, causal, scale=None, rounding="head"):
    return accuracy.attention(*rounded(q, k, v, rounding), causal, scale, q.dtype)


QUANTIZING = Implementation("peer.quantizing", quantizing, rounding="head", differentiable=False)


def same(first, second):
    pairs = [
        (one.values.view(torch.uint8), other.values.view(torch.uint8)) for one, other in zip(first, second, strict=True)
    ]
    pairs += [(one.scales.expand(other.scales.shape), other.scales) for one, other in zip(first, second, strict=True)]
    return all(torch.equal(*pair) for pair in pairs)


# What is given in e4m3


@pytest.mark.parametrize("rotated", [False, True], ids=["as it is", "rotated"])
@pytest.mark.parametrize("kind", ["normal", "outliers", "sink 8"])
def test_each_window_is_what_its_heads_are_quantised_to(kind, rotated):
    windows = Windows(SHAPE.resized(values=kind), CPU, 4)
    rounded = windows.rounded("head, rotated" if rotated else "head")
    for seed in (1, 2):
        windows.draw(seed)
        rounded.refresh()
        for window in range(4):
            assert same(rounded[window], quantize(*windows[window], rotated=rotated))
    held = [rounded[window][1].values for window in range(3)]
    assert held[2].untyped_storage().data_ptr() == held[0].untyped_storage().data_ptr()


def test_one_scale_is_that_of_all_windows():
    windows = Windows(SHAPE, CPU, 3)
    windows.draw(1)
    found = windows.in_e4m3("tensor", 1)
    whole = quantize(*(memory.unsqueeze(0) for memory in windows._memory), scales="tensor")
    assert [tensor.scales.item() for tensor in found] == [tensor.scales.item() for tensor in whole]
    (q, _, _), given = found, windows[1][0].float()
    assert ((q.dequantized() - given).abs() <= given.abs() / 16 + q.scales.item() * 2.0**-10).all()


@pytest.mark.parametrize(
    "axes", [{"layout": "tokens first"}, {"lengths": "spread"}, {"direction": "training"}], ids=str
)
def test_what_is_quantised_for_no_window_is_skipped_with_the_reason(axes):
    windows = Windows(SHAPE.resized(kv_heads=4).resized(**axes), CPU)
    with pytest.raises(Unsupported, match="forward passes, heads first, alone"):
        Case.of(GIVEN, windows, SHAPE)


def test_rows_that_cant_be_rotated_are_skipped_with_the_reason():
    shape = SHAPE.resized(head_dim=96)
    with pytest.raises(Unsupported, match="rotating takes a head_dim that is a power of two, not 96"):
        Case.of(ROTATED, Windows(shape, CPU), shape)
    assert gated(GIVEN, shape)[0].status == "measured"


def test_a_call_sees_what_is_there_when_it_is_refreshed():
    windows = Windows(SHAPE, CPU)
    case = Case.of(GIVEN, windows, SHAPE)
    windows.draw(1)
    case.refresh()
    before = case.call()
    assert torch.equal(before, quantizing(*windows[0], True))
    with case.scrambled():
        inside = case.call()
        assert torch.equal(inside, quantizing(*windows[0], True))
    assert not torch.equal(inside, before)
    assert torch.equal(case.call(), before)
    windows.draw(2)
    _answered(case, CPU)
    assert torch.equal(case.call(), quantizing(*windows[0], True))


# The gate and the rounds


@pytest.mark.parametrize("subject", [GIVEN, QUANTIZING, ROTATED], ids=lambda one: one.name)
@pytest.mark.parametrize("kind", ["normal", "sd 6", "outliers"])
def test_it_passes_the_gate_and_is_timed(subject, kind):
    shape = SHAPE.resized(values=kind)
    judged, checks = gated(subject, shape)
    assert judged.status == "measured", judged.reason
    assert set(checks["inputs"]) == {kind, "large logits", "constant rows"}
    on_values = checks[checks["inputs"] == kind]
    assert (on_values["mean_error"] == on_values["framework_mean_error"]).all()
    # Rounding inputs costs as much again as rounding probabilities does.
    assert (on_values["drawn_rms_error"] > 1.2 * on_values["mean_error"]).all()
    assert checks[checks["inputs"] != kind]["drawn_rms_error"].isna().all()
    for cache in ("warm", "cold"):
        judged, samples = timed(subject, shape, Timing(clock="eager", cache=cache), samples=5)
        assert judged.status == "measured", judged.reason
        assert len(samples) == 5
        assert all(sample["strain"] <= 1 for sample in samples)


def test_rotated_it_is_held_to_the_numbers_that_are_multiplied_and_nearer_to_what_was_drawn():
    shape = SHAPE.resized(values="rising 24")
    errors = [gated(one, shape)[1]["drawn_rms_error"].mean() for one in (ROTATED, GIVEN)]
    assert errors[0] < 0.7 * errors[1]
    windows = Windows(shape, CPU)
    windows.draw(1)
    output = {rounding: quantizing(*windows[0], True, rounding=rounding) for rounding in ("head", "head, rotated")}
    for rounding, other in (("head", "head, rotated"), ("head, rotated", "head")):
        gate = gate_of(shape, windows, rounding=rounding)
        assert gate.check(output[rounding]).passed
        assert not gate.check(output[other]).passed


def test_the_error_of_what_was_drawn_is_that_of_the_other_implementations_too():
    _, checks = gated(Implementation("sdpa.math", sdpa.sdpa), SHAPE)
    on_values = checks[checks["inputs"] == "normal"]
    assert (on_values["drawn_max_error"] == on_values["max_error"]).all()
    assert (on_values["drawn_rms_error"] > on_values["mean_error"]).all()


def test_the_gate_is_as_strict_with_fp8_as_its_formula():
    windows = Windows(SHAPE, CPU)
    windows.draw(1)
    q, k, v = windows[0]
    exact = oracle.float64(q, k, v, True).bfloat16()
    assert gate_of(SHAPE, windows).check(exact).passed
    in_fp8 = gate_of(SHAPE, windows, rounding="head")
    right = quantizing(q, k, v, True)
    assert in_fp8.check(right).passed
    assert not in_fp8.check(right + 0.2).passed
    per_tensor = accuracy.attention(*quantize(q / 100, k, v), True, None, q.dtype)
    assert not in_fp8.check(per_tensor).passed
    assert not gate_of(SHAPE, windows).check(right).passed


@pytest.mark.parametrize("scales", ["head", "head, rotated", "tensor"])
@pytest.mark.parametrize("kind", ["normal", "sd 6", "outliers"])
def test_what_samples_are_compared_with_is_nearer_to_float64_than_the_formula(kind, scales):
    shape = SHAPE.resized(values=kind, dtype="float16")
    windows = Windows(shape, CPU)
    windows.draw(1)
    gate, reference = gate_of(shape, windows, rounding=scales), ReferenceCheck(windows, shape, scales)
    reference.appoint(gate)
    assert reference.name == "sdpa.flash of e4m3 in float16"
    found, formula = (
        gate.errors(one)[0] for one in (reference.look()[0], accuracy.attention(*windows.in_e4m3(scales), True))
    )
    assert found.mean < 0.15 * formula.mean
    assert found.maximum < 0.5 * formula.maximum


@pytest.mark.parametrize(("scales", "status"), [("tensor", "measured"), ("head", "failed")])
def test_who_takes_one_scale_may_give_e4m3(scales, status):
    def narrow(q, k, v, causal, dtype, scale=None):
        return accuracy.in_e4m3(accuracy.attention(q, k, v, causal, scale, dtype), v.scales.max())

    subject = replace(GIVEN, name="peer.narrow", call=narrow, rounding=scales)
    judged, _ = gated(subject, SHAPE)
    assert judged.status == status, judged.reason


@pytest.mark.parametrize(("scales", "status"), [("tensor", "measured"), ("head", "failed")])
def test_its_output_in_e4m3_is_widened_where_it_is_compared(scales, status):
    def narrow(q, k, v, causal, dtype, scale=None):
        output = outputs.like(q.values)
        return output.copy_(accuracy.attention(q, k, v, causal, scale, torch.float32) / v.scales.max())

    subject = replace(GIVEN, name="peer.narrow", call=narrow, rounding=scales)
    judged, checks = gated(subject, SHAPE)
    assert judged.status == status, judged.reason
    if status == "measured":
        assert (checks["mean_error"] <= 1.01 * checks["framework_mean_error"]).all()
        judged, samples = timed(subject, SHAPE, Timing(clock="eager", cache="warm"), samples=3)
        assert judged.status == "measured", judged.reason
        assert all(sample["strain"] <= 1 for sample in samples)


@pytest.mark.parametrize(
    ("fault", "said"), [("part", "elements not written"), ("nan", "not finite"), ("half", "error")]
)
def test_what_is_wrong_with_an_output_in_e4m3_is_seen(fault, said):
    def wrong(q, k, v, causal, dtype, scale=None):
        output = outputs.like(q.values)
        right = (accuracy.attention(q, k, v, causal, scale, torch.float32) / v.scales.max()).to(output.dtype)
        if fault == "part":
            output[..., :32].copy_(right[..., :32])
            return output
        output.copy_(right.float() / (2 if fault == "half" else 1))
        if fault == "nan":
            output[0, 0, 0, 0] = torch.nan
        return output

    judged, _ = gated(replace(GIVEN, name="peer.wrong", call=wrong, rounding="tensor"), SHAPE)
    assert judged.status == "failed"
    assert said in judged.reason


def test_who_is_given_the_inputs_of_before_is_wrong():
    windows = Windows(SHAPE, CPU)
    case = Case.of(GIVEN, windows, SHAPE)
    windows.draw(1)
    case.refresh()
    windows.draw(2)
    stale = case.call()
    gate = gate_of(SHAPE, windows, rounding="head")
    assert not gate.check(stale).passed
    assert gate.check(case.call()).passed


# Names


def test_they_are_found_and_refused_in_one_line_without_a_gpu():
    assert tuple(one.name for one in SUBJECTS) == implementations.FP8
    for name in implementations.FP8:
        found = registry.find(implementations.control(name))
        scales = found.rounding.removesuffix(", rotated")
        assert scales in SCALES
        assert (scales != found.rounding) is ("rotated" in name)
        assert implementations.in_fp8(found.name)
        assert told(found.bound(draw(SHAPE, 1, CPU), SHAPE), Unsupported)
    assert not implementations.in_fp8("kernel.best")
