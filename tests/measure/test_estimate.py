"""The estimate of how long a study takes: its arithmetic by hand, and the calls that it makes first."""

import numpy as np
import pytest
import torch
from conftest import TINY, tiny_study

from attnlab.measure.clocks import originals
from attnlab.measure.session import estimate
from attnlab.measure.session.estimate import Cost
from attnlab.measure.subjects import registry
from attnlab.measure.subjects.implementation import Implementation
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing

CPU = torch.device("cpu")


def test_a_cost_is_interpolated_and_grows_with_the_work_beyond_it():
    cost = Cost([1e6, 1e8], [1e-3, 1e-2])
    assert cost.at(np.array([1e5, 1e6, 1e7, 1e8, 1e9])) == pytest.approx([1e-3, 1e-3, 10**-2.5, 1e-2, 0.1])
    assert Cost().at(np.array([1e5, 1e9])).tolist() == [0, 0]


def test_a_replicate_takes_what_its_calls_take():
    study = tiny_study(implementations=["sdpa.auto", "sdpa.math"], samples=10, stream=7)
    took = {"sdpa.auto": 0.1, "sdpa.math": 0.2, "reference.float64": 0.3, "draw": 0.01, "scramble": 0.001}
    costs = {name: Cost([1e9], [seconds], 0.0) for name, seconds in took.items()}
    assert max(shape.flops for shape in study.shapes) < 1e9  # so that every shape takes the same
    oracles = estimate.ORACLES * 0.3
    rounds = 10 * (0.01 + 0.1)
    cases = sum(
        estimate.CASE_S + (estimate.FIRST_CALLS + estimate.CHECK_CALLS + 20) * call
        + 10 * (estimate.SAMPLE_S + 2 * call + 2 * 0.001)
        for call in (0.1, 0.2, 0.1)
    )  # fmt: skip
    each = estimate.shape_seconds(study, study.shapes, costs, CPU)
    assert each == pytest.approx(3 * [oracles + rounds + cases])
    stream = estimate.stream_seconds(study, study.shapes, costs)
    assert stream == pytest.approx(7 * (0.1 + 0.2 + 2 * estimate.SAMPLE_S))
    # Beyond the longest call, a case is neither checked nor timed.
    short = study.model_copy(update={"longest_call_ms": 150.0})
    timed_s = (estimate.CHECK_CALLS + 20) * 0.2 + 10 * (estimate.SAMPLE_S + 2 * 0.2 + 2 * 0.001)
    assert estimate.shape_seconds(short, study.shapes, costs, CPU) == pytest.approx([one - timed_s for one in each])


def test_a_first_call_counts_once_for_shapes_that_differ_in_values_alone():
    axes = TINY["target"] | {"values": ["normal", "sd 4"]}
    study = tiny_study(implementations=["sdpa.auto", "sdpa.math"], sweeps={"values": axes, "batch": TINY["target"]})
    names = ("sdpa.auto", "sdpa.math", "reference.float64", "draw", "scramble")
    compiled, not_compiled = ({name: Cost([1e9], [0.1], new_s) for name in names} for new_s in (3.0, 0.0))
    compiled["sdpa.math"] = not_compiled["sdpa.math"] = Cost()  # not served
    both = (estimate.shape_seconds(study, study.shapes, costs, CPU) for costs in (compiled, not_compiled))
    assert [one - other for one, other in zip(*both, strict=True)] == pytest.approx([3.0, 0.0])


@pytest.mark.parametrize(
    ("clock", "cache", "call_us", "calls"),
    [
        ("device", "warm", 90.0, 2 * 5),  # a graph of five calls fills 400 us, and is replayed before
        ("device", "warm", 1.0, 2 * 64),
        ("device", "warm", 5000.0, 2),
        ("device", "warm", 0.0, 0),  # not served
        ("cupti", "warm", 90.0, 2 * 5),
        ("device", "cold", 100.0, 1),
        ("eager", "warm", 100.0, 2),
        ("eager", "cold", 100.0, 1),
    ],
)
def test_a_sample_takes_as_many_calls_as_its_clock_makes(clock, cache, call_us, calls):
    seconds = estimate._sample_s(Timing(clock=clock, cache=cache), np.array([call_us * 1e-6]), np.zeros(1))
    assert (seconds - estimate.SAMPLE_S) * 1e6 == pytest.approx([calls * call_us])


def test_replicates_and_the_panel_are_added(monkeypatch):
    monkeypatch.setattr(estimate, "shape_seconds", lambda *arguments: 3 * [30.0])
    monkeypatch.setattr(estimate, "stream_seconds", lambda *arguments: 5.0)
    total_s, shapes_s = estimate.planned(tiny_study(replicates=3), CPU)
    assert total_s == 3 * (estimate.PROCESS_S + 90 + 5)
    assert shapes_s == 3 * [30.0]
    assert estimate.planned(tiny_study(panel=True), CPU)[0] == 2 / 3 * total_s  # the panel is of a GPU


def test_a_shape_that_no_memory_holds_takes_no_time():
    huge = TINY["target"] | {"batch": 2**30}
    study = tiny_study(target=huge, sweeps={"batch": huge})
    assert estimate.planned(study, CPU) == (study.replicates * estimate.PROCESS_S, [0.0])


@pytest.mark.parametrize(
    ("target", "axis", "sizes"),
    [
        (Shape(1, 4, 512, 64), "seq_len", [32, 128, 512]),
        (Shape(1, 4, 1, 64, kv_len=64), "kv_len", [16, 64]),
        (Shape(8, 8, 2**14, 64), "seq_len", [256, 1024, 4096, 16384]),  # the first: 2^30 FLOPs
    ],
)
def test_calls_climb_from_little_work_to_the_most_of_the_study(target, axis, sizes):
    others = [target, *([target.resized(**{axis: 16})] if sizes[0] < 256 else [])]
    called = estimate._called(target, others)
    assert [getattr(shape, axis) for shape in called] == sizes
    assert called[-1] == target


def test_keys_stay_as_many_as_queries_under_the_mask():
    target = Shape(1, 4, 96, 64, causal=True, kv_len=2048)
    assert estimate._called(target, [target, Shape(1, 4, 16, 64)])[0].kv_len == 128


def test_nothing_is_called_for_long_and_what_is_not_served_takes_nothing(monkeypatch):
    called, now_us = [], [0]
    monkeypatch.setattr(originals, "perf_counter_ns", lambda: 1000 * now_us[0])

    def slow(q, k, v, causal):
        now_us[0] += q.shape[2] ** 2 + 7000 * (q.shape[2] not in called)
        called.append(q.shape[2])
        return torch.empty_like(q)

    def refuses(q, k, v, causal):
        raise RuntimeError("not here")

    found = {"sdpa.auto": Implementation("sdpa.auto", slow), "sdpa.math": Implementation("sdpa.math", refuses)}
    found["reference.float64"] = found["sdpa.math"]
    monkeypatch.setattr(registry, "find", found.get)
    long = TINY["target"] | {"seq_len": 4096}
    study = tiny_study(
        implementations=["sdpa.auto", "sdpa.math"], target=long, sweeps={"seq_len": long | {"seq_len": [32, 4096]}}
    )
    costs = estimate.measured(study, study.shapes, CPU)
    # 256² us are 66 ms, and sixteen times that is too long.
    assert set(called) == {64, 256}
    assert costs["sdpa.auto"].flops == [4 * 4 * length**2 * 64 for length in (64, 256)]
    assert costs["sdpa.auto"].at(np.array([study.target_shape.flops]))[0] == pytest.approx(4096**2 * 1e-6)
    assert costs["sdpa.auto"].new_shape_s == pytest.approx(7e-3)
    assert costs["sdpa.math"].flops == costs["reference.float64"].flops == []
    assert min(len(costs[name].flops) for name in ("draw", "scramble")) >= 2


def test_a_study_of_this_machine_has_an_estimate():
    study = tiny_study()
    seconds, _ = estimate.planned(study, CPU)
    assert study.replicates * estimate.PROCESS_S < seconds < 3600


def test_calls_go_on_while_another_program_may_have_the_core(monkeypatch):
    took_us = iter([9e3, *12 * [6e3], *1000 * [300.0]])
    monkeypatch.setattr(estimate.cuda_events, "timed", lambda device, work: (next(took_us), work()))
    cost = Cost()
    estimate._add(cost, lambda: None, Shape(1, 2, 16, 32), CPU)
    assert cost.seconds == [pytest.approx(300e-6)]
