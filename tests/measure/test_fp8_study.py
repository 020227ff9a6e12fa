"""FP8 in a run, without a GPU: PyTorch operations that round to e4m3 replace the kernel."""

from dataclasses import replace

import pytest
import torch
from conftest import gated, timed, told

from attnlab.measuring.fp8 import accuracy
from attnlab.measuring.fp8.quantize import E4M3, SCALES, quantize
from attnlab.measuring.fp8.subjects import SUBJECTS, E4M3Implementation, InE4M3
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
HEAD, ROTATED, TENSOR = InE4M3(), InE4M3(rotated=True), InE4M3("tensor")
ALONE = "forward passes, heads first, alone"
GIVEN = E4M3Implementation("peer.given", accuracy.attention, differentiable=False)
TURNED = replace(GIVEN, name="peer.rotated", operands=ROTATED)


def quantizing(q, k, v, causal, scale=None, operands=HEAD):
    return accuracy.attention(*operands.round(q, k, v), causal, scale, q.dtype)


QUANTIZING = Implementation("peer.quantizing", quantizing, operands=HEAD, differentiable=False)


def drawn(shape=SHAPE, count=1):
    windows = Windows(shape, CPU, count)
    windows.draw(1)
    return windows


def rounded(windows, operands, window=0):
    found = operands.rounded(windows)
    found.refresh()
    return found[window]


def same(first, second):
    return all(
        torch.equal(one.values.view(torch.uint8), other.values.view(torch.uint8))
        and torch.equal(one.scales.expand(other.scales.shape), other.scales)
        for one, other in zip(first, second, strict=True)
    )


# The inputs in e4m3


@pytest.mark.parametrize("operands", [HEAD, ROTATED], ids=str)
@pytest.mark.parametrize("kind", ["normal", "outliers", "sink 8"])
def test_each_window_is_what_its_heads_are_quantised_to(kind, operands):
    windows = Windows(SHAPE.resized(values=kind), CPU, 4)
    for seed in (1, 2):
        windows.draw(seed)
        found = [rounded(windows, operands, window) for window in range(4)]
        for given, held in zip(windows, found, strict=True):
            assert same(held, quantize(*given, rotated=operands.rotated))
    assert found[2][1].values.untyped_storage().data_ptr() == found[0][1].values.untyped_storage().data_ptr()


def test_one_scale_is_that_of_all_windows():
    windows = drawn(count=3)
    found = rounded(windows, TENSOR, 1)
    whole = quantize(*(memory.unsqueeze(0) for memory in windows.memory), scales="tensor")
    assert [tensor.scales.item() for tensor in found] == [tensor.scales.item() for tensor in whole]
    q, given = found[0], windows[1][0].float()
    assert ((q.dequantized() - given).abs() <= given.abs() / 16 + q.scales.item() * 2.0**-10).all()


@pytest.mark.parametrize(
    ("subject", "axes", "reason"),
    [
        (GIVEN, {"layout": "tokens first"}, ALONE),
        (GIVEN, {"lengths": "spread"}, ALONE),
        (GIVEN, {"direction": "training"}, ALONE),
        (TURNED, {"head_dim": 96}, "rotating takes a head_dim that is a power of two, not 96"),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_what_is_quantised_for_no_window_is_skipped_with_the_reason(subject, axes, reason):
    shape = SHAPE.resized(kv_heads=4).resized(**axes)
    assert reason in told(lambda: Case.of(subject, Windows(shape, CPU)), Unsupported)
    if subject is TURNED:
        Case.of(GIVEN, Windows(shape, CPU))


def test_a_call_sees_what_is_there_when_it_is_refreshed():
    windows = drawn()
    case = Case.of(GIVEN, windows)
    case.refresh()
    before = case.call()
    assert torch.equal(before, quantizing(*windows[0], True))
    with case.scrambled():
        inside = case.call()
        assert torch.equal(inside, quantizing(*windows[0], True))
    assert not torch.equal(inside, before)
    assert torch.equal(case.call(), before)
    windows.draw(2)
    stale, gate = case.call(), gate_of(windows, operands=HEAD)
    assert not gate.check(stale).passed
    assert gate.check(case.call()).passed
    windows.draw(3)
    _answered(case, CPU)
    assert torch.equal(case.call(), quantizing(*windows[0], True))


# The gate and the rounds


def passes_the_rounds(subject, shape, cache):
    judged, samples = timed(subject, shape, Timing(clock="eager", cache=cache), samples=4)
    assert judged.status == "measured", judged.reason
    assert len(samples) == 4
    assert all(sample["strain"] <= 1 for sample in samples)


@pytest.mark.parametrize(
    ("subject", "kind", "cache"),
    [
        *((GIVEN, kind, "warm") for kind in ("normal", "sd 6", "outliers")),
        (QUANTIZING, "normal", "cold"),
        (TURNED, "outliers", "cold"),
    ],
    ids=lambda one: getattr(one, "name", one),
)
def test_it_passes_the_gate_and_is_timed(subject, kind, cache):
    shape = SHAPE.resized(values=kind)
    judged, checks = gated(subject, shape)
    assert judged.status == "measured", judged.reason
    assert set(checks["inputs"]) == {kind, "large logits", "constant rows"}
    on_values = checks[checks["inputs"] == kind]
    assert (on_values["mean_error"] == on_values["framework_mean_error"]).all()
    # Rounding inputs adds an error like that of rounding probabilities.
    assert (on_values["drawn_rms_error"] > 1.2 * on_values["mean_error"]).all()
    assert checks[checks["inputs"] != kind]["drawn_rms_error"].isna().all()
    passes_the_rounds(subject, shape, cache)


def test_rotated_it_is_held_to_the_numbers_that_are_multiplied_and_nearer_to_what_was_drawn():
    shape = SHAPE.resized(values="rising 24")
    errors = [gated(one, shape)[1]["drawn_rms_error"].mean() for one in (TURNED, GIVEN)]
    assert errors[0] < 0.7 * errors[1]
    windows = drawn(shape)
    for own, other in ((HEAD, ROTATED), (ROTATED, HEAD)):
        gate = gate_of(windows, operands=own)
        assert gate.check(quantizing(*windows[0], True, operands=own)).passed
        assert not gate.check(quantizing(*windows[0], True, operands=other)).passed


def test_the_error_of_what_was_drawn_is_that_of_the_other_implementations_too():
    _, checks = gated(Implementation("sdpa.math", sdpa.sdpa), SHAPE)
    on_values = checks[checks["inputs"] == "normal"]
    assert (on_values["drawn_max_error"] == on_values["max_error"]).all()
    assert (on_values["drawn_rms_error"] > on_values["mean_error"]).all()


def test_the_gate_is_as_strict_with_fp8_as_its_formula():
    windows = drawn()
    q, k, v = windows[0]
    plain, in_fp8 = gate_of(windows), gate_of(windows, operands=HEAD)
    assert plain.check(oracle.float64(q, k, v, True).bfloat16()).passed
    right = quantizing(q, k, v, True)
    assert in_fp8.check(right).passed
    assert not plain.check(right).passed
    assert not in_fp8.check(right + 0.2).passed
    assert not in_fp8.check(quantizing(q / 100, k, v, True)).passed


@pytest.mark.parametrize("operands", [HEAD, ROTATED, TENSOR], ids=str)
@pytest.mark.parametrize("kind", ["normal", "sd 6", "outliers"])
def test_what_samples_are_compared_with_is_nearer_to_float64_than_the_formula(kind, operands):
    shape = SHAPE.resized(values=kind, dtype="float16")
    windows = drawn(shape)
    gate, reference = gate_of(windows, operands=operands), ReferenceCheck(windows, operands)
    reference.appoint(gate)
    assert reference.name == "sdpa.flash of e4m3 in float16"
    formula = accuracy.attention(*rounded(windows, operands), True)
    found, allowed = (gate.errors(one)[0] for one in (reference.look()[0], formula))
    assert found.mean < 0.15 * allowed.mean
    assert found.maximum < 0.5 * allowed.maximum


def narrow(fault=""):
    """An implementation that returns e4m3 over the scale of V, or has the named fault."""

    def call(q, k, v, causal, dtype, scale=None):
        output = outputs.like(q.values)
        right = accuracy.attention(q, k, v, causal, scale, torch.float32) / v.scales.max()
        if fault == "part":
            output[..., :32].copy_(right[..., :32])
            return output
        output.copy_(right / (2 if fault == "half" else 1))
        if fault == "nan":
            output[0, 0, 0, 0] = torch.nan
        return (output.float() * v.scales.max()).to(dtype) if fault == "widened" else output

    return replace(GIVEN, name="peer.narrow", call=call, operands=TENSOR)


@pytest.mark.parametrize("fault", ["", "widened"])
def test_one_scale_for_a_tensor_allows_an_output_in_e4m3(fault):
    subject = narrow(fault)
    passes_the_rounds(subject, SHAPE, "warm")
    checks = gated(subject, SHAPE)[1]
    assert (checks["mean_error"] <= 1.01 * checks["framework_mean_error"]).all()
    assert gated(replace(subject, operands=HEAD), SHAPE)[0].status == "failed"


@pytest.mark.parametrize(
    ("fault", "said"), [("part", "elements not written"), ("nan", "not finite"), ("half", "error")]
)
def test_what_is_wrong_with_an_output_in_e4m3_is_seen(fault, said):
    judged, _ = gated(narrow(fault), SHAPE)
    assert judged.status == "failed"
    assert said in judged.reason


# Names


def test_they_are_found_and_refused_in_one_line_without_a_gpu():
    assert tuple(one.name for one in SUBJECTS) == implementations.FP8
    for name in implementations.FP8:
        found = registry.find(implementations.control(name))
        assert found.operands.scales in SCALES
        assert found.operands.rotated is ("rotated" in name)
        assert implementations.in_fp8(found.name)
        assert told(found.bound(draw(SHAPE, 1, CPU), SHAPE), Unsupported)
    assert not implementations.in_fp8("kernel.best")
    assert found.operands.rounded(drawn())[0][0].values.dtype == E4M3
