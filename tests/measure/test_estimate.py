"""The estimate of a study's duration: the cost of a call, and of the calls before the first sample."""

from unittest.mock import Mock

import numpy as np
import pytest
import torch
from conftest import TINY, tiny_study

from attnlab.measuring.clocks import originals
from attnlab.measuring.session import estimate
from attnlab.measuring.session.estimate import Cost
from attnlab.measuring.subjects import registry
from attnlab.measuring.subjects.implementation import Implementation

CPU = torch.device("cpu")


def test_a_cost_is_interpolated_and_grows_with_the_work_beyond_it():
    cost = Cost([1e6, 1e8], [1e-3, 1e-2])
    assert cost.at(np.array([1e5, 1e6, 1e7, 1e8, 1e9])) == pytest.approx([1e-3, 1e-3, 10**-2.5, 1e-2, 0.1])
    assert Cost().at(np.array([1e5, 1e9])).tolist() == [0, 0]


def test_a_shape_that_no_memory_holds_takes_no_time():
    huge = TINY["target"] | {"batch": 2**30}
    study = tiny_study(target=huge, sweeps={"batch": huge})
    assert estimate.planned(study, CPU) == (study.replicates * estimate.PROCESS_S, [0.0])


def test_nothing_is_called_for_long_and_what_is_not_served_takes_nothing(monkeypatch):
    called, now_us = [], [0]

    def read_ns():
        now_us[0] += 1000  # each reading takes 1 ms: the estimate repeats calls until it has enough time
        return 1000 * now_us[0]

    monkeypatch.setattr(originals, "perf_counter_ns", read_ns)

    def slow(q, k, v, causal):
        now_us[0] += q.shape[2] ** 2 + 7000 * (q.shape[2] not in called)
        called.append(q.shape[2])
        return torch.empty_like(q)

    refuses = Mock(side_effect=RuntimeError("not here"))
    found = {"sdpa.auto": Implementation("sdpa.auto", slow), "sdpa.math": Implementation("sdpa.math", refuses)}
    found["reference.float64"] = found["sdpa.math"]
    monkeypatch.setattr(registry, "find", found.get)
    long = TINY["target"] | {"seq_len": 4096}
    study = tiny_study(
        implementations=["sdpa.auto", "sdpa.math"], target=long, sweeps={"seq_len": long | {"seq_len": [32, 4096]}}
    )
    costs = estimate.measured(study, study.shapes, CPU)
    # 256² us are 66 ms, and 16 times that is too long.
    assert set(called) == {16, 64, 256}
    assert costs["sdpa.auto"].flops == [4 * 4 * length**2 * 64 for length in (16, 64, 256)]
    assert costs["sdpa.auto"].at(np.array([study.target_shape.flops]))[0] == pytest.approx(
        16**2 * (256**2 + 1000) * 1e-6
    )
    assert costs["sdpa.auto"].first_s == pytest.approx(7e-3)
    assert costs["sdpa.math"].flops == costs["reference.float64"].flops == []


def test_a_study_of_this_machine_has_an_estimate():
    study = tiny_study()
    seconds, _ = estimate.planned(study, CPU)
    assert study.replicates * estimate.PROCESS_S < seconds < 3600
