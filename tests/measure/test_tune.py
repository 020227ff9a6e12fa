"""Tuning without a GPU: who is a candidate, who is left out, and what is written. With one: test_gpu_kernels.py."""

from functools import partial

import ladders
import pytest
import torch
from ladders import TILE, rung

from attnlab.base import paths
from attnlab.base.errors import UserError
from attnlab.measure.clocks import cuda_events, originals
from attnlab.measure.session import tune
from attnlab.measure.subjects import rungs
from attnlab.measure.subjects.case import Replay
from attnlab.measure.subjects.implementation import Broken, Implementation, Unsupported
from attnlab.measure.subjects.sdpa import sdpa
from attnlab.runs import read
from attnlab.study import ladder, studies, tuning
from attnlab.study.shapes import Shape

CPU = torch.device("cpu")
SMALL = [Shape(1, 2, seq_len, 64, dtype="bfloat16") for seq_len in (8, 16)]
HERE = "NVIDIA H200"
FINALISTS = tune.Finalists


class Clock:
    """A clock that stands still but for calls that say how long they take."""

    ns = 0


def takes(ms: int):
    def call(q, k, v, causal):
        Clock.ns += ms * 1_000_000
        return sdpa(q, k, v, causal)

    return call


def fails(error: Exception):
    def call(q, k, v, causal):
        raise error

    return call


def wrong(q, k, v, causal):
    return 2 * sdpa(q, k, v, causal)


@pytest.fixture
def tuned(tmp_path, monkeypatch):
    """Tunes tiles that are functions of this process, by name: what is chosen at each of `SMALL`."""
    monkeypatch.setenv("ATTNLAB_KERNELS", str(tmp_path / "kernels"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: HERE)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(tune, "SHAPES", SMALL)
    monkeypatch.setattr(originals, "perf_counter_ns", lambda: Clock.ns)

    def captured(case, pool):
        case.many = Replay(None, 1, case.call())

    monkeypatch.setattr(cuda_events, "capture", captured)

    def run(calls, **limits) -> list[tuning.Choice]:
        tiles = [TILE | {"name": name} | limits.get(name, {}) for name in calls]
        ladders.write(tmp_path / "kernels", rung(*tiles))
        made = {name: Implementation(f"kernel.plain:{name}", call) for name, call in calls.items()}
        monkeypatch.setattr(rungs, "pinned", lambda rung, tile: made[tile.name])
        found = [[], *tune._choices(FINALISTS(ladder.load(), CPU, 4), {})]
        return found[-1]

    return run


def test_the_fastest_is_chosen_at_each_shape(tuned, capsys):
    choices = tuned({"slow": takes(5), "fast": takes(2)})
    assert [(choice.rung, choice.tile) for choice in choices] == [("plain", "fast")] * 2
    assert [choice.place for choice in choices] == [(2, 8, 64, False, 0), (2, 16, 64, False, 0)]
    assert [choice.latency_us for choice in choices] == [2000, 2000]
    assert [choice.instance(ladder.load())[1].name for choice in choices] == ["fast", "fast"]
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("tune: 1 of 2, B=1 H=2 S=8 D=64 full bfloat16: kernel.plain:fast, ")
    assert lines[0].endswith(" us")


def test_who_may_be_faster_at_another_shape_is_kept_too(tuned):
    choices = tuned({"near": takes(8), "fast": takes(4), "far": takes(9)})
    assert [(choice.seq_len, choice.tile, choice.latency_us) for choice in choices] == [
        (8, "fast", 4000),
        (8, "near", 8000),
        (16, "fast", 4000),
        (16, "near", 8000),
    ]


def test_a_tile_is_a_candidate_where_it_serves(tuned):
    choices = tuned({"fast": takes(1), "slow": takes(3)}, fast={"longest": 8})
    assert [choice.tile for choice in choices] == ["fast", "slow"]
    assert [choice.tile for choice in tuned({"fast": takes(1), "slow": takes(2)}, fast={"masks": ["causal"]})] == [
        "slow",
        "slow",
    ]


def test_who_fails_is_said_once_and_left_out(tuned, capsys):
    calls = {"wrong": wrong, "broken": fails(Broken("plain.cu does not compile")), "right": takes(1)}
    calls["elsewhere"] = fails(Unsupported("plain is written for sm_121a"))
    assert [choice.tile for choice in tuned(calls)] == ["right", "right"]
    failed, broken, *lines = capsys.readouterr().err.splitlines()
    at = "is left out: at B=1 H=2 S=8 D=64 full bfloat16"
    assert broken == f"tune: kernel.plain:broken {at}, plain.cu does not compile"
    assert failed.startswith(f"tune: kernel.plain:wrong {at}, error against float64: ")
    assert [line.split(",")[0] for line in lines] == ["tune: 1 of 2", "tune: 2 of 2"]


def test_who_is_far_slower_does_not_take_the_time_of_the_others(tuned):
    called = []

    def slow(q, k, v, causal):
        called.append(1)
        return takes(20)(q, k, v, causal)

    assert [choice.tile for choice in tuned({"fast": takes(1), "slow": slow})] == ["fast", "fast"]
    assert len(called) == 2 * (1 + 2 * tune.ROUGH_CALLS)


def test_a_host_that_is_held_up_once_costs_no_candidate(tuned, monkeypatch):
    held_up = iter([1e6])
    roughly_us = tune.cuda_events.roughly_us
    monkeypatch.setattr(tune.cuda_events, "roughly_us", lambda *given: roughly_us(*given) + next(held_up, 0))
    monkeypatch.setattr(tune, "TOO_SLOW", 100)
    monkeypatch.setattr(tune, "MOST_KEPT", 100)
    chosen = [choice.tile for choice in tuned({"first": takes(1), "second": takes(1)})]
    assert sorted(chosen) == ["first", "first", "second", "second"]


def test_a_shape_that_nothing_serves_has_no_choice(tuned, capsys):
    assert tuned({"elsewhere": fails(Unsupported("no"))}) == []
    lines = capsys.readouterr().err.splitlines()
    assert lines[1:] == ["tune: 2 of 2, B=1 H=2 S=16 D=64 full bfloat16: nothing serves it"]


@pytest.mark.parametrize(
    ("listed", "capability", "finalists"),
    [
        ((["sm_80"], ["sm_80", "sm_90a"], ["sm_90a"]), (9, 0), ["r1", "r2"]),
        ((["sm_80"], ["sm_80", "sm_90a"], ["sm_90a"]), (8, 0), ["r0", "r1", "r2"]),
        ((["sm_80"], ["sm_80"], ["sm_90"]), (9, 0), ["r0", "r1", "r2"]),
    ],
)
def test_finalists_are_written_for_this_architecture_if_any_is(tmp_path, monkeypatch, listed, capability, finalists):
    entries = [rung(name=f"r{number}", architectures=names) for number, names in enumerate(listed)]
    monkeypatch.setenv("ATTNLAB_KERNELS", str(ladders.write(tmp_path / "kernels", *entries)))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    assert [one.name for one in tune.Finalists(ladder.load(), CPU, 4).rungs] == finalists


@pytest.fixture
def gpu(monkeypatch):
    """A machine of which torch says that it has an H200, with an environment that needs no locking."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: HERE)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(tune.environment, "lock", lambda: None)
    monkeypatch.setattr(tune.devices, "describe", lambda _: {"multiprocessors": 4})
    monkeypatch.setattr(tune, "Finalists", partial(on_cpu, tune.Finalists))


def on_cpu(made, every, device, multiprocessors):
    return made(every, CPU, multiprocessors)


def test_the_choices_are_written_for_this_device(tuned, gpu):
    choices = tuned({"fast": takes(1)})
    assert tune.tune() == tuning.path(HERE)
    made = tuning.load(HERE)
    assert made.choices == choices
    assert made.sources == ladder.hashes()
    assert (made.torch, made.command, made.clock) == (torch.__version__, "make tune", "device clock, warm cache")


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
    tune.tune()
    assert tuning.load(HERE).choices == choices
    assert at == [*SMALL, SMALL[1]]
    tune.tune()
    assert len(at) == 3
    assert capsys.readouterr().err.splitlines()[-1] == "tune: no kernel changed since it was tuned at 2 of 2 shapes"


@pytest.mark.parametrize("changed", ["source", "torch"])
def test_what_changed_is_tuned_anew(tuned, gpu, monkeypatch, changed):
    tuned({"fast": takes(1)})
    tune.tune()
    if changed == "source":
        source = paths.kernels() / "plain.cu"
        source.write_text(source.read_text() + "int changed;")
    else:
        monkeypatch.setattr(torch, "__version__", "another")
    made = tune.tune()
    assert tuning.load(HERE).sources == ladder.hashes()
    assert made == tuning.path(HERE)


def test_without_a_choice_nothing_is_written(tuned, gpu):
    tuned({"elsewhere": fails(Unsupported("no"))})
    with pytest.raises(UserError, match=r"^no kernel of .*ladder\.toml could be timed on NVIDIA H200$"):
        tune.tune()
    assert not tuning.path(HERE).exists()


def test_no_study_and_no_published_run_has_a_shape_that_is_tuned_on():
    measured = {shape for path in paths.STUDIES.glob("*.yaml") for shape in studies.load(path.stem).shapes}
    for name, manifest in read.manifests():
        measured |= set(studies.recorded(manifest | {"name": name}).shapes)
    assert measured
    assert not measured & set(tune.SHAPES)
    assert len(set(tune.SHAPES)) == len(tune.SHAPES)
