"""The panel of clocks: what is timed by what, what another tool says, and that none of them can cost a run."""

import json
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import small
import torch
from conftest import tiny_study

from attnlab.base.errors import Outdated
from attnlab.measure.clocks import canary, cuda_events, external_tools, in_process
from attnlab.measure.instruments import environment, tool
from attnlab.measure.session import load, once, panel, record
from attnlab.measure.subjects.case import Case, Replay
from attnlab.measure.subjects.implementation import Unsupported
from attnlab.runs import methods, read, schema, write
from attnlab.runs.tables import TABLES
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing

STUDY = tiny_study(panel=True)
CASES = panel.cases(STUDY)[:2]
CPU = torch.device("cpu")


# ------------------------------------------------------------------------------------------------------ what is timed


def test_the_panel_spans_lengths_on_the_targets_axes_and_begins_with_the_shortest():
    cases = panel.cases(STUDY)
    assert len(set(cases)) == len(cases)
    assert {shape.head_dim for _, shape in cases} == {64}
    assert {shape.dtype for _, shape in cases} == {"float32"}
    assert cases[0] == ("sdpa.flash", Shape(1, 1, 128, 64, dtype="float32"))
    assert max(shape.seq_len for _, shape in cases) == 8192
    assert {name for name, _ in cases} == {"sdpa.auto", "sdpa.flash", "sdpa.math"}


def test_the_backends_and_the_ladders_best_are_loaded_without_pause():
    def loaded(*names):
        study = tiny_study().model_copy(update={"implementations": list(names)})
        return [name for name, _ in load.cases(study)]

    assert loaded("sdpa.auto", "kernel.best", "kernel.one", "other") == ["sdpa.auto", "kernel.best"]
    assert loaded("sdpa.auto", "kernel.one", "kernel.two") == ["sdpa.auto", "kernel.two"]
    study = tiny_study()
    assert {shape.seq_len for _, shape in load.cases(study)} == {load.SEQ_LEN}


@pytest.mark.parametrize("clock", ["eager", "device"])
@pytest.mark.parametrize(("cache", "expected"), [("warm", ["call", "canary"]), ("cold", ["canary"])])
def test_what_stands_for_the_timed_comes_where_the_sampler_times(clock, cache, expected):
    done = []
    replay = Replay(SimpleNamespace(replay=lambda: done.append("call")), 1, torch.empty(0))
    case = Case(lambda: done.append("call"), nullcontext, replay, replay)
    timing = Timing(clock=clock, cache=cache)
    stand_in = canary.in_place_of_timed(case, timing, lambda: done.append("canary"))
    if clock == "eager":
        cuda_events.sampler(CPU, timing)(stand_in)
    else:  # as the device's samplers do
        for graph in [stand_in.many.graph] * 2 if cache == "warm" else [stand_in.one.graph]:
            graph.replay()
    assert done == expected


@pytest.mark.parametrize("size", [16 * 2**20, 2**20, 16_384])
def test_the_canary_reads_lines_all_over_a_set_and_nothing_beside_it(size):
    bird = object.__new__(canary.Canary)
    bird._random = np.random.default_rng(0)
    lines = bird._lines(size)
    assert lines.shape == (canary.LOADS,)
    assert 0 <= lines.min() < lines.max() < size // canary.LINE_BYTES
    assert len(set(lines)) == min(canary.LOADS, size // canary.LINE_BYTES)


def test_a_line_counts_as_a_hit_when_it_is_nearer_to_a_hit():
    assert canary.Sighting(np.array([200, 390, 410, 700]), 200.0, 600.0).hits_pct == 50


# ------------------------------------------------------------------------------------------------ rounds and failures


def timed(monkeypatch, taking):
    monkeypatch.setattr(panel, "methods_of", lambda case, device: dict(taking))
    return panel._timed(None, CPU, {"implementation": "sdpa.auto"})


def test_every_method_takes_its_turn_in_every_round_but_the_first_which_is_not_kept(monkeypatch):
    taken = []
    taking = {name: lambda name=name: taken.append(name) or {name: len(taken)} for name in ("eager", "device")}
    rows = timed(monkeypatch, taking)
    assert len(taken) == 2 * (panel.ROUNDS + 1)
    for name in taking:
        assert [row["round"] for row in rows if row["method"] == name] == list(range(panel.ROUNDS))
    assert all(row["latency_us"] > 2 for row in rows)


def test_a_method_that_fails_says_why_once_and_costs_no_other(monkeypatch):
    def absent():
        raise ImportError("No module named 'triton'")

    rows = timed(monkeypatch, {"triton.do_bench": absent, "device": lambda: {"device": 1.0}})
    assert [row["why"] for row in rows if row["method"] == "triton.do_bench"] == [
        "not installed: No module named 'triton'"
    ]
    assert sum(row["method"] == "device" for row in rows) == panel.ROUNDS


def test_a_case_that_the_device_refuses_has_a_row_for_each_method_that_says_so(monkeypatch):
    def refuse(*_):
        raise Unsupported("no such shape here")

    monkeypatch.setattr(panel, "graphed", refuse)
    timed, seen = panel._case_rows(*CASES[0], CPU, "no canary")
    assert {row["why"] for row in timed} == {"no such shape here"}
    assert [row["method"] for row in timed] == list(in_process.IN_TURN)
    assert seen == []
    monkeypatch.setattr(load, "prepared", refuse)
    assert [row["why"] for row in load._rows(*CASES[0], CPU)] == ["no such shape here"]


def test_without_the_canary_each_clock_and_cache_says_why():
    rows = panel._looked(None, "not installed: CuPy", {})
    assert {(row["clock"], row["cache"]) for row in rows} == {(t.clock, t.cache) for t in in_process.TIMINGS}
    assert {row["why"] for row in rows} == {"not installed: CuPy"}


# -------------------------------------------------------------------------------------------------------- in the run


@pytest.fixture
def parts(monkeypatch, tmp_path):
    """The panel of a run that is begun, with stand-ins that take each of its pieces at once."""
    monkeypatch.setenv("ATTNLAB_DATA", str(tmp_path))
    monkeypatch.setattr(environment, "lock", lambda: None)
    monkeypatch.setattr(
        environment,
        "fingerprint",
        lambda *_: {"driver": "now", "packages": {"torch": "2.11.0", "numpy": "2.3.0"}, "hash": "e"},
    )
    monkeypatch.setattr(panel, "_canary", lambda device: "none")
    taken = []

    def row(name, shape, **more):
        taken.append((name, shape))
        return {"implementation": name, **shape.axes, **more}

    monkeypatch.setattr(
        panel, "_case_rows", lambda name, shape, *_: ([row(name, shape, method="device", round=0, latency_us=1.0)], [])
    )
    monkeypatch.setattr(load, "_rows", lambda name, shape, *_: [row(name, shape, started_s=1.0, latency_us=2.0)])
    monkeypatch.setattr(
        external_tools,
        "rows",
        lambda tool, cases: ([row(*cases[0], method=methods.of_tool(tool)["warm"], round=0, latency_us=1.0)], []),
    )
    begun = small.manifest(STUDY)
    write.create("begun", begun | {"environment": begun["environment"] | {"driver": "then", "hash": "d"}})
    return once.parts("begun", STUDY, "cpu", "e")[:2], taken


def test_panel_and_loads_are_recorded_a_piece_at_a_time_and_go_on_where_they_stood(parts):
    parts, taken = parts
    assert [part.name for part in parts] == ["panel", "loads"]
    assert list(map(once.take, parts)) == [{}, {}]
    whole, blocks = len(taken), schema.folder("begun") / "parts"
    assert whole == len(panel.cases(STUDY)) + len(load.cases(STUDY)) + len(methods.TOOLS)
    for name in ("panel.c03.*", "panel.ncu.*", "endurance.sdpa-math.*"):
        (block,) = blocks.glob(name)
        block.unlink()
    for part in parts:
        once.take(part)
    assert len(taken) == whole + 3
    run = read.load("begun")
    assert len(run.panel) == len(panel.cases(STUDY)) + len(methods.TOOLS)
    for table in ("panel", "residency", "endurance"):
        assert list(getattr(run, table).columns) == TABLES[table].names


def test_panel_and_loads_are_not_taken_in_another_environment(parts):
    parts, taken = parts
    for part in parts:
        with pytest.raises(Outdated, match=r"^the environment changed since .* 'begun' began \(driver\): start"):
            once.take(replace(part, environment="d"))
    assert taken == []


@pytest.mark.parametrize(
    ("device", "wanted", "taken"),
    [("cuda", True, ["panel", "loads", "counters"]), ("cuda", False, ["counters"]), ("cpu", True, [])],
)
def test_a_run_takes_once_what_its_study_asks_for_on_a_gpu(monkeypatch, device, wanted, taken):
    asked, manifest = [], {}
    monkeypatch.setattr(record.read, "read_manifest", lambda name: manifest)
    monkeypatch.setattr(record.write, "state", lambda name, more: manifest.update(more))

    class Pool:
        def map(self, work, parts):
            asked.extend(part.name for part in parts)
            return iter([{"why": part.name} for part in parts])

    for _ in range(2):
        lacking = record._lacking_once("any", tiny_study(panel=wanted), device, "e")
        record._measure(Pool(), "any", lacking, [])
    assert asked == taken
    why = "counters" if taken else "Nsight Compute profiles NVIDIA GPUs, which this device is not"
    assert manifest["profile"]["why"] == why


# ---------------------------------------------------------------------------------------------------- other processes


NCU = """==PROF== Connected
plan: {"case": 0, "round": 0, "cache": "warm", "why": ""}
plan: {"case": 0, "round": 0, "cache": "cold", "why": ""}
plan: {"case": 1, "why": "no such shape here"}
"ID","Kernel Name","gpu__time_duration.sum","dram__bytes_read.sum"
"","","ns","byte"
"0","flash<128>","5,000","1,024"
"1","combine","1000","n/a"
"2","at::cuda::spin_kernel(long)","9","0"
"3","flash<128>","7,000","4,096"
"4","at::cuda::spin_kernel(long)","9","0"
"5","at::cuda::spin_kernel(long)","9","0"
"""


@pytest.fixture
def said(monkeypatch):
    """What every program that is started prints."""
    words = {"said": NCU}
    monkeypatch.setenv("ATTNLAB_NCU", "/usr/bin/ncu")
    monkeypatch.setattr(tool, "output", lambda command, timeout_s: words["said"])
    return words


def test_ncus_launches_are_summed_by_the_call_that_they_belong_to(said):
    timed, seen = external_tools.rows("ncu", CASES)
    assert [(row["method"], row.get("latency_us")) for row in timed] == [
        ("ncu", 6.0),
        ("ncu.cold", 7.0),
        ("ncu", None),
        ("ncu.cold", None),
    ]
    assert [row["why"] for row in timed] == ["", "", "no such shape here", "no such shape here"]
    assert seen[1]["cache"] == "cold"
    assert seen[1]["value"] == 4096
    assert np.isnan(seen[0]["value"])


@pytest.mark.parametrize(
    ("output", "why"),
    [
        ("", "it said nothing"),
        ("==ERROR== ERR_NVGPUCTRPERM - no permission\n", "ERR_NVGPUCTRPERM - no permission"),
        (NCU.rsplit("\n", 2)[0], "3 calls were made and 2 profiled"),
    ],
)
def test_what_ncu_could_not_do_is_told_for_every_case(said, output, why):
    said["said"] = output
    timed, seen = external_tools.rows("ncu", CASES)
    assert len(timed) == 2 * len(CASES)
    assert all(row["why"].startswith(why) for row in timed)
    assert seen == []


def test_a_tool_that_is_not_installed_is_told(monkeypatch):
    monkeypatch.delenv("ATTNLAB_NCU", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(external_tools.util, "find_spec", lambda name: None)
    for name in methods.TOOLS:
        timed, _ = external_tools.rows(name, CASES)
        assert {row["method"] for row in timed} == set(methods.of_tool(name).values())
        assert all(row["why"].startswith("not installed") for row in timed)


def nvbench(**state):
    axes = [{"name": "warm", "value": "1"}, {"name": "round", "value": "2"}]
    summaries = [{"tag": "nv/batch/time/gpu/mean", "data": [{"value": "0.0004"}]}]
    state = {"is_skipped": False, "axis_values": axes, "summaries": summaries} | state
    return {"benchmarks": [{"name": "case1", "states": [state]}]}


def test_nvbenchs_time_of_a_graph_is_told_by_the_call():
    plan = [{"case": 1, "cache": "warm", "calls": 64}, {"case": 1, "cache": "cold", "calls": 1}]
    (row,) = external_tools._states(nvbench(), CASES, plan)
    assert (row["implementation"], row["method"], row["round"]) == ("sdpa.auto", "nvbench.batch", 2)
    assert row["latency_us"] == pytest.approx(6.25)


def test_what_nvbench_skipped_or_left_out_is_told():
    first = [{"name": "warm", "value": "0"}, {"name": "round", "value": "0"}]
    (row,) = external_tools._states(nvbench(is_skipped=True, skip_reason="too long", axis_values=first), CASES, [])
    assert (row["method"], row["why"]) == ("nvbench.cold", "too long")
    with pytest.raises(tool.Refused, match="nv/batch/time/gpu/mean"):
        external_tools._states(nvbench(summaries=[]), CASES, [{"case": 1, "cache": "warm", "calls": 1}])


def test_the_cases_reach_the_other_process_as_they_are():
    *_, module, program, stated = external_tools._command("ncu", CASES)
    assert (module, program) == ("attnlab.measure.clocks.external_tools", "ncu")
    assert [(name, Shape(**axes)) for name, axes in json.loads(stated)] == CASES
