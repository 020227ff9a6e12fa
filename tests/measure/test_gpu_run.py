"""A whole run on an NVIDIA GPU, and its records: `make test OF=gpu`."""

import os

import pytest
from conftest import EVERY_TIMING, tiny_study

from attnlab.measuring.clocks import cuda_events
from attnlab.measuring.session import record
from attnlab.runs import read
from attnlab.study import studies

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def recorded_on_gpu(tmp_path_factory):
    """A run of 3 implementations at 2 shapes with every timing, in 2 fresh processes."""
    target = {"batch": 1, "heads": 2, "seq_len": 128, "head_dim": 64, "dtype": "float16"}
    study = tiny_study(
        device="cuda",
        implementations=["sdpa.flash", "sdpa.cudnn", "sdpa.math"],
        baseline="sdpa.flash",
        target=target,
        timings=EVERY_TIMING,
        sweeps={"seq_len": target | {"seq_len": [128, 256]}},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNLAB_DATA", os.fspath(tmp_path_factory.mktemp("gpu")))
        return read.load(record.record("gpu", study, "cuda"))


def test_a_run_on_the_gpu_is_complete(recorded_on_gpu):
    run = recorded_on_gpu
    assert run.complete
    assert run.cases["reason"].unique().tolist() == [""]
    assert run.cases["status"].tolist() == 4 * 2 * 2 * ["measured"]  # 3 implementations and the control
    study = studies.recorded(run.manifest)
    # Implementations, shapes, rounds of all timings, and replicates; each replicate is a process.
    assert len(run.samples) == 4 * 2 * sum(map(study.rounds, study.timings)) * 2
    assert set(run.processes["process"]) == set(run.samples["process"])
    assert run.samples.groupby("process")["replicate"].unique().map(list).sort_values().tolist() == [[0], [1]]
    assert (run.manifest["missing_clocks"], run.manifest["telemetry"]) == ([], "NVML")
    assert (run.samples["latency_us"] > 0).all()
    assert (run.samples["sm_clock_mhz"] > 100).all()
    assert (run.samples["power_w"] > 10).all()
    assert run.samples["throttled"].notna().all()


def test_short_kernels_are_timed_many_at_a_time_where_the_cache_is_warm_and_the_launch_gap_left_out(recorded_on_gpu):
    launches = recorded_on_gpu.samples.groupby(["clock", "cache"])["launches"]
    for timing in (("device", "warm"), ("cupti", "warm")):
        assert 1 < launches.min()[timing] <= launches.max()[timing] <= cuda_events.GRAPH_CALLS
    for timing in (("device", "cold"), ("eager", "warm"), ("eager", "cold")):
        assert launches.max()[timing] == launches.min()[timing] == 1


def test_counters_of_the_target_are_kept(recorded_on_gpu):
    profile, stated = recorded_on_gpu.profile, recorded_on_gpu.manifest["profile"]
    if not stated["tool"]:
        pytest.skip(stated["why"])
    assert stated["tool"].startswith("ncu 20")
    assert stated["why"] == ""
    assert set(profile["implementation"]) == set(studies.recorded(recorded_on_gpu.manifest).implementations)
    assert set(profile["seq_len"]) == {128}
    assert (profile["function"] != "").all()


def test_both_routes_were_checked(recorded_on_gpu):
    checks = recorded_on_gpu.checks
    assert checks["passed"].all()
    graphs = checks[checks["route"] != "call"]
    assert graphs["route"].str.fullmatch(r"graph of \d+").all()
    # Before: the call on 3 input distributions, and a graph of it. After: the call, and the timed graphs.
    routes = checks.groupby(["moment", "inputs"])["route"].agg(lambda column: len(column))
    cases = 4 * 2 * 2
    assert routes.to_dict() == {
        ("before", "normal"): 2 * cases, ("before", "large logits"): cases, ("before", "constant rows"): cases,
        ("after", "normal"): 3 * cases,
    }  # fmt: skip
    assert (graphs["route"] == "graph of 1").sum() == 2 * cases


def test_the_kernels_that_ran_are_recorded(recorded_on_gpu):
    kernels = recorded_on_gpu.cases.groupby("implementation")["kernels"].agg(lambda column: "\n".join(column).lower())
    assert "flash" in kernels["sdpa.flash"]
    assert "cudnn" in kernels["sdpa.cudnn"] or "sm90" in kernels["sdpa.cudnn"]
    assert "flash" not in kernels["sdpa.math"]
