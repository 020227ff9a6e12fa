"""Tuning without a GPU: candidates, exclusions, and the written file. With a GPU: test_gpu_kernels.py."""

from itertools import product
from unittest.mock import Mock

import ladders
import pytest
import torch
from ladders import TILE, rung

from attnlab.base import paths
from attnlab.base.errors import UserError
from attnlab.measuring.clocks import cuda_events, originals
from attnlab.measuring.kernels import rungs
from attnlab.measuring.session import tune
from attnlab.measuring.subjects.case import Replay
from attnlab.measuring.subjects.implementation import Broken, Implementation, Unsupported
from attnlab.measuring.subjects.sdpa import sdpa
from attnlab.runs import read
from attnlab.study import ladder, studies, tuning
from attnlab.study.shapes import Shape

CPU = torch.device("cpu")
SMALL = [Shape(1, 2, seq_len, 64, dtype="bfloat16") for seq_len in (8, 16)]
HERE = "NVIDIA H200"
FINALISTS = tune.Finalists


class Clock:
    """A clock that only calls advance, by their stated latency."""

    ns = 0


def takes(ms: int):
    def call(q, k, v, causal):
        Clock.ns += ms * 1_000_000
        return sdpa(q, k, v, causal)

    return call


def wrong(q, k, v, causal):
    return 2 * sdpa(q, k, v, causal)


@pytest.fixture
def tuned(folder, monkeypatch):
    """Tunes functions of this process that replace tiles, by name; returns the choice at each of `SMALL`."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: HERE)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(tune, "SHAPES", SMALL)
    monkeypatch.setattr(originals, "perf_counter_ns", lambda: Clock.ns)

    def captured(case, pool):
        case.many = Replay(None, 1, case.call())

    monkeypatch.setattr(cuda_events, "capture", captured)

    def run(calls) -> list[tuning.TileChoice]:
        tiles = [TILE | {"name": name} for name in calls]
        ladders.write(folder, rung(*tiles))
        made = {name: Implementation(f"kernel.plain:{name}", call) for name, call in calls.items()}
        monkeypatch.setattr(rungs, "pinned", lambda rung, tile: made[tile.name])
        found = [[], *tune._choices(FINALISTS(ladder.load(), CPU, 4), {})]
        return found[-1]

    return run


def test_the_fastest_is_chosen_at_each_shape(tuned, capsys):
    choices = tuned({"slow": takes(5), "fast": takes(2)})
    assert [(choice.rung, choice.tile, choice.latency_us) for choice in choices] == [("plain", "fast", 2000)] * 2
    assert [choice.place for choice in choices] == [(2, 8, 64, False, 0), (2, 16, 64, False, 0)]
    assert [choice.instance(ladder.load())[1].name for choice in choices] == ["fast", "fast"]
    first, _ = capsys.readouterr().err.splitlines()
    assert first.startswith("tune: 1 of 2, B=1 H=2 S=8 D=64 full bfloat16: kernel.plain:fast, ")
    assert first.endswith(" us")


def test_who_fails_is_said_once_and_left_out(tuned, capsys):
    calls = {"wrong": wrong, "broken": Mock(side_effect=Broken("plain.cu does not compile")), "right": takes(1)}
    calls["elsewhere"] = Mock(side_effect=Unsupported("plain is written for sm_121a"))
    assert [choice.tile for choice in tuned(calls)] == ["right", "right"]
    failed, broken, *lines = capsys.readouterr().err.splitlines()
    at = "is left out: at B=1 H=2 S=8 D=64 full bfloat16"
    assert broken == f"tune: kernel.plain:broken {at}, plain.cu does not compile"
    assert failed.startswith(f"tune: kernel.plain:wrong {at}, error against float64: ")
    assert [line.split(",")[0] for line in lines] == ["tune: 1 of 2", "tune: 2 of 2"]


@pytest.fixture
def gpu(tuned, monkeypatch):
    """The machine of `tuned`, without locking the environment."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(tune.environment, "lock", lambda: None)
    monkeypatch.setattr(tune, "compile_all", lambda *_: None)
    monkeypatch.setattr(tune.devices, "describe", lambda _: {"multiprocessors": 4})
    monkeypatch.setattr(tune, "Finalists", lambda every, _, multiprocessors: FINALISTS(every, CPU, multiprocessors))


def test_after_an_interruption_tuning_goes_on(tuned, gpu, monkeypatch, capsys):
    choices = tuned({"fast": takes(1)})
    fastest = FINALISTS(ladder.load(), CPU, 4).fastest
    at = []

    def interrupted(self, shape):
        at.append(shape)
        if len(at) == 2:
            raise torch.AcceleratorError("an illegal access\nmore")
        return fastest(shape)

    monkeypatch.setattr(FINALISTS, "fastest", interrupted)
    with pytest.raises(UserError, match=r"^the device failed \(an illegal access\): `make tune` goes on from here$"):
        tune.tune()
    assert tuning.load(HERE).choices == choices[:1]
    assert tune.tune() == tuning.path(HERE)
    made = tuning.load(HERE)
    assert (made.choices, made.sources) == (choices, ladder.hashes())
    assert at == [*SMALL, SMALL[1]]
    tune.tune()
    assert len(at) == 3
    assert capsys.readouterr().err.splitlines()[-1] == "tune: no kernel changed since it was tuned at 2 of 2 shapes"


def test_without_a_choice_nothing_is_written(tuned, gpu):
    tuned({"elsewhere": Mock(side_effect=Unsupported("no"))})
    with pytest.raises(UserError, match=r"^no kernel of .*ladder\.toml could be timed on NVIDIA H200$"):
        tune.tune()
    assert not tuning.path(HERE).exists()


def test_no_study_and_no_published_run_has_a_shape_that_is_tuned_on():
    measured = {shape for path in paths.STUDIES.glob("*.yaml") for shape in studies.load(path.stem).shapes}
    for name in read.names():
        measured |= set(studies.recorded(read.read_manifest(name)).shapes)
    assert measured
    assert not measured & set(tune.SHAPES)
    assert len(set(tune.SHAPES)) == len(tune.SHAPES)
    tuned = {(shape.head_dim, shape.causal, shape.seq_len < shape.kv_len) for shape in tune.SHAPES}
    assert tuned == set(product((64, 128, 256), (False, True), (False, True)))
