"""The panel of clocks: the tool of each timing, parsed outputs of other tools, and failures that don't stop a run."""

from unittest.mock import Mock

import numpy as np
import pytest
import small
import torch
from conftest import tiny_study

from attnlab.base.errors import Outdated
from attnlab.measuring.clocks import external_tools, in_process
from attnlab.measuring.instruments import environment, tool
from attnlab.measuring.session import panel, worker
from attnlab.measuring.session.subject import Job
from attnlab.measuring.subjects.implementation import Unsupported
from attnlab.runs import methods, read, schema, write

STUDY = tiny_study(panel=True)
CASES = panel.cases(STUDY)[:2]
CPU = torch.device("cpu")


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
    absent = Mock(side_effect=ImportError("No module named 'triton'"))
    rows = timed(monkeypatch, {"triton.do_bench": absent, "device": lambda: {"device": 1.0}})
    (why,) = (row["why"] for row in rows if row["method"] == "triton.do_bench")
    assert why == "not installed: No module named 'triton'"
    assert sum(row["method"] == "device" for row in rows) == panel.ROUNDS


def test_a_case_that_the_device_refuses_has_a_row_for_each_method_that_says_so(monkeypatch):
    refuse = Mock(side_effect=Unsupported("no such shape here"))
    monkeypatch.setattr(panel, "graphed", refuse)
    timed, seen = panel._case_rows(*CASES[0], CPU, "no canary")
    assert {row["why"] for row in timed} == {"no such shape here"}
    assert [row["method"] for row in timed] == list(in_process.IN_TURN)
    assert seen == []
    assert [row["why"] for row in panel._load_rows(*CASES[0], CPU)] == ["no such shape here"]


@pytest.fixture
def parts(monkeypatch, data):
    """The panel of a new run, whose parts return at once, and the list of cases that they took."""
    taken = []

    def row(name, shape, **more):
        taken.append((name, shape))
        return {"implementation": name, **shape.axes, "latency_us": 1.0, **more}

    def of_tool(tool, cases):
        return [row(*cases[0], method=methods.TOOLS[tool]["warm"], round=0)], []

    monkeypatch.setattr(environment, "lock", lambda: None)
    monkeypatch.setattr(environment, "fingerprint", lambda *_: small.manifest()["environment"])
    monkeypatch.setattr(panel, "_canary", lambda device: "none")
    monkeypatch.setattr(panel, "_case_rows", lambda name, shape, *_: ([row(name, shape, method="device", round=0)], []))
    monkeypatch.setattr(panel, "_load_rows", lambda name, shape, *_: [row(name, shape, started_s=1.0)])
    monkeypatch.setattr(external_tools, "rows", of_tool)
    write.create("begun", small.manifest(STUDY))
    return [Job("begun", STUDY, "cpu", 0, (), part) for part in worker.ONCE[:2]], taken


def test_panel_and_loads_are_recorded_a_piece_at_a_time_and_go_on_where_they_stood(parts):
    parts, taken = parts
    assert [part.part for part in parts] == ["panel", "loads"]
    assert list(map(worker.take, parts)) == [{}, {}]
    whole, blocks = len(taken), schema.folder("begun") / "parts"
    assert whole == len(panel.cases(STUDY)) + len(panel.loads(STUDY)) + len(methods.TOOLS)
    for name in ("panel.c03.*", "panel.ncu.*", "endurance.sdpa-math.*"):
        (block,) = blocks.glob(name)
        block.unlink()
    for part in parts:
        worker.take(part)
    assert len(taken) == whole + 3
    run = read.load("begun")
    assert len(run.panel) == len(panel.cases(STUDY)) + len(methods.TOOLS)


def test_panel_and_loads_are_not_taken_in_another_environment(parts, monkeypatch):
    parts, taken = parts
    other = small.manifest()["environment"] | {"driver": "newer", "hash": "d"}
    monkeypatch.setattr(environment, "fingerprint", lambda *_: other)
    for part in parts:
        with pytest.raises(Outdated, match=r"^the environment changed since .* 'begun' began \(driver\): start"):
            worker.take(part)
    assert taken == []


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
    """A function that makes every started program print these words."""
    monkeypatch.setenv("ATTNLAB_NCU", "/usr/bin/ncu")
    return lambda words: monkeypatch.setattr(tool, "output", lambda command, timeout_s: words)


def test_ncus_launches_are_summed_by_the_call_that_they_belong_to(said):
    said(NCU)
    timed, seen = external_tools.rows("ncu", CASES)
    why = "no such shape here"
    assert [(row["method"], row.get("latency_us"), row["why"]) for row in timed] == [
        ("ncu", 6.0, ""),
        ("ncu.cold", 7.0, ""),
        ("ncu", None, why),
        ("ncu.cold", None, why),
    ]
    assert (seen[1]["cache"], seen[1]["value"]) == ("cold", 4096)
    assert np.isnan(seen[0]["value"])


@pytest.mark.parametrize(
    ("output", "why"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - no permission\n", "ERR_NVGPUCTRPERM - no permission"),
        (NCU.rsplit("\n", 2)[0], "3 calls were made and 2 profiled"),
    ],
)
def test_what_ncu_could_not_do_is_told_for_every_case(said, output, why):
    said(output)
    timed, seen = external_tools.rows("ncu", CASES)
    assert [row["why"].startswith(why) for row in timed] == [True] * 2 * len(CASES)
    assert seen == []


def test_a_tool_that_is_not_installed_is_told(monkeypatch):
    monkeypatch.delenv("ATTNLAB_NCU", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(external_tools.util, "find_spec", lambda name: None)
    for name in methods.TOOLS:
        timed, _ = external_tools.rows(name, CASES)
        assert {row["method"] for row in timed} == set(methods.TOOLS[name].values())
        assert all(row["why"].startswith("not installed") for row in timed)
