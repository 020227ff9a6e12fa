"""A stream of requests: its calls, their order, and how an interrupted run resumes it."""

from concurrent.futures import ThreadPoolExecutor

import pandas as pd
import pytest
import small
import torch
from conftest import tiny_study, told, torch_as_it_was

from attnlab.measuring.session import record, requests
from attnlab.measuring.subjects import implementation, registry, sdpa
from attnlab.runs import read, schema, write

AXES = {"batch": 1, "heads": 4, "head_dim": 32, "dtype": "float32"}
SWEEPS = {
    "seq_len": {**AXES, "seq_len": [16, 32]},
    "grouped": {**AXES, "seq_len": 16, "kv_heads": 2},
    "decode": {**AXES, "seq_len": 1, "kv_len": 48},
    "end to end": {**AXES, "batch": 3, "seq_len": 16, "lengths": "spread"},
    "training": {**AXES, "seq_len": 16, "dtype": "float16", "direction": ["training", "backward"], "values": "sd 24"},
}
# The math backend and SDPA's choice: both serve all these shapes on a CPU.
NAMES = ["sdpa.auto", "sdpa.math"]
REQUESTS = 20


def streaming(**changes):
    """A study with every kind of shape and a stream."""
    stated = {"implementations": NAMES, "target": AXES | {"seq_len": 16}, "sweeps": SWEEPS, "stream": REQUESTS}
    return tiny_study(**stated | {"samples": 2} | changes)


@pytest.fixture(scope="module")
def run(machine, tmp_path_factory):
    """A run of `streaming`, recorded in this process; read-only."""
    study = streaming()
    with pytest.MonkeyPatch.context() as patch, torch_as_it_was():
        patch.setenv("ATTNLAB_DATA", str(tmp_path_factory.mktemp("streamed")))
        write.create("streamed", machine | {"study": study.model_dump(mode="json"), "missing_clocks": []})
        return read.load(record.record("streamed", study, "cpu", ThreadPoolExecutor(1)))


def test_a_stream_is_recorded_and_read_back(run):
    assert run.complete
    assert set(run.cases["status"]) == {"measured"}, run.cases[["implementation", "reason"]].values.tolist()
    assert len(run.stream) == 2 * REQUESTS * len(NAMES)
    for replicate, rows in run.stream.groupby("replicate"):
        assert sorted(set(rows["position"])) == list(range(REQUESTS))
        (process,) = set(rows["process"])  # a separate process
        assert process in set(run.processes.loc[run.processes["replicate"] == replicate, "process"])
        assert process not in set(run.samples["process"])
    assert (run.stream["host_us"] > 0).all()
    assert (run.stream["latency_us"] >= run.stream["host_us"]).all()


# Interrupted runs


def test_a_run_killed_in_its_stream_takes_that_up_again_and_nothing_else(begin, one_thread, unlocked, monkeypatch):
    study, take = streaming(sweeps={"seq_len": SWEEPS["seq_len"]}), requests.take
    begin(study)
    calls = []

    def killed_in_the_second(run, study, replicate, *rest):
        calls.append(replicate)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return take(run, study, replicate, *rest)

    monkeypatch.setattr(requests, "take", killed_in_the_second)
    assert told(lambda: record.record("begun", study, "cpu", one_thread)).startswith("interrupted")
    cut = read.load("begun")
    assert not cut.complete
    assert len(cut.cases) == 2 * 2 * 3
    assert set(cut.stream["replicate"]) == {0}
    run = read.load(record.record("begun", study, "cpu", ThreadPoolExecutor(1)))
    assert run.complete
    assert calls == [0, 1, 1]
    pd.testing.assert_frame_equal(run.samples, cut.samples)
    pd.testing.assert_frame_equal(run.stream[run.stream["replicate"] == 0], cut.stream)
    assert len(run.stream) == 2 * REQUESTS * len(NAMES)


def test_jobs_are_those_that_lack_shapes_or_their_stream(begin, machine):
    study = streaming(replicates=3, sweeps={"seq_len": SWEEPS["seq_len"]})
    begin(study)
    first, second = study.shapes
    row = pd.DataFrame([{"implementation": "sdpa.auto"}])

    def jobs(part=""):
        return [(job.replicate, job.shapes) for job in record._jobs("begun", study, "cpu", part)]

    assert jobs() == [(replicate, (first, second)) for replicate in range(3)]
    assert jobs("stream") == [(replicate, ()) for replicate in range(3)]
    for replicate, shape in ((0, first), (0, second), (1, second)):
        write.add_part("begun", "cases", schema.shape_key(study, shape, replicate), row)
    write.add_part("begun", "stream", schema.replicate_key(0), row)
    assert jobs() == [(1, (first,)), (2, (first, second))]
    assert jobs("stream") == [(1, ()), (2, ())]


# Calls that are left out


def test_a_shape_is_asked_for_in_the_replicates_in_which_all_were_measured(begin, unlocked):
    study = streaming(sweeps={"seq_len": SWEEPS["seq_len"]})
    begin(study)
    short, long = study.shapes
    keys = [schema.shape_key(study, shape, replicate) for shape in (short, long) for replicate in (0, 1)]
    failed = [(key, "control.sdpa.auto") for key in keys] + [(schema.shape_key(study, long, 0), "sdpa.math")]
    for table, key, rows in small.blocks(study, study.subjects, failed):
        if not key.startswith(schema.shape_key(study, long, 1)):
            write.add_part("begun", table, key, rows)
    ready = requests._ready("begun", study, 0, torch.device("cpu"), 1)
    assert list(ready) == [short]
    assert [name for name, _ in ready[short][1]] == NAMES
    assert list(requests._ready("begun", study, 1, torch.device("cpu"), 1)) == [short]  # the long shape is left out
    assert requests._ready("begun", study, 2, torch.device("cpu"), 1) == {}


def test_no_request_comes_twice(begin, one_thread, unlocked, monkeypatch):
    seen = []

    def kept(name):
        def call(q, k, v, causal):
            seen.append((name, float(q.detach().flatten()[0])))
            return sdpa.sdpa(q, k, v, causal)

        return implementation.Implementation(name, call, ragged=lambda q, k, v, causal, _: call(q, k, v, causal))

    begin(streaming())
    monkeypatch.setattr(requests, "_all_measured", lambda *_: True)
    monkeypatch.setattr(registry, "find", kept)
    requests.take("begun", streaming(), 0, torch.device("cpu"), 1)
    answered = [value for name, value in seen if name == NAMES[0]][-REQUESTS:]
    assert len(set(answered)) == REQUESTS
    assert {value for name, value in seen[-REQUESTS * len(NAMES) :] if name == NAMES[1]} == set(answered)
