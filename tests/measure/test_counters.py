"""Counters: read from what ncu prints, taken or done without."""

import os
import re
import stat
import subprocess
import time
from pathlib import Path

import pytest
import small
from conftest import tiny_study

from attnlab import profile
from attnlab.measuring.instruments import counters
from attnlab.runs import metrics, read, write
from attnlab.runs.tables import TABLES
from attnlab.study.shapes import Shape

SHAPE = Shape(1, 4, 32, 64, dtype="float32")
HEADER = ["ID", "Kernel Name", "Block Size", "gpu__time_duration.sum", "sm__cycles_elapsed.max", "not__asked.sum"]
UNITS = ["", "", "", "ns", "cycle", ""]
FIRST = ["0", "void flash<64, (bool)0>(Params)", "(128, 1, 1)", "47,616", "83,000.5", "7"]
SECOND = ["1", "second", "(32, 1, 1)", "1,000", "n/a", "7"]


def printed(*rows: list[str], before: str = "==PROF== Connected to process 7\n") -> str:
    return before + "".join(",".join(f'"{cell}"' for cell in row) + "\n" for row in rows)


# What ncu prints


def test_the_counters_are_read_with_their_units_and_launches():
    (rows,) = counters.parse(printed(HEADER, UNITS, FIRST, SECOND))
    assert rows.to_dict("list") == {
        "function": ["void flash<64, (bool)0>(Params)"] * 2 + ["second"],
        "launch": [0, 0, 1],
        "metric": ["gpu__time_duration.sum", "sm__cycles_elapsed.max", "gpu__time_duration.sum"],
        "unit": ["ns", "cycle", "ns"],
        "value": [47616, 83000.5, 1000],
    }


def test_what_the_profiled_process_says_is_passed_over():
    (rows,) = counters.parse(printed(HEADER, UNITS, before="a warning\n") + "another\n" + printed(FIRST, before=""))
    assert rows["value"].tolist() == [47616, 83000.5]


def test_calls_are_told_apart_by_what_separates_them():
    waits = ["0", "void at::cuda::spin_kernel(long)", "(1, 1, 1)", "10", "10", "1"]
    first, second = counters.parse(printed(HEADER, UNITS, FIRST, waits, SECOND, FIRST, waits))
    assert first["function"].unique().tolist() == ["void flash<64, (bool)0>(Params)"]
    assert second["launch"].tolist() == [0, 1, 1]
    with pytest.raises(counters.Refused):
        counters.parse(printed(HEADER, UNITS, FIRST, waits, waits))


@pytest.mark.parametrize(
    ("output", "why"),
    [
        ("", "it said nothing"),
        (
            "==PROF== x\n==ERROR== ERR_NVGPUCTRPERM - no permission\n==ERROR== more\n",
            "ERR_NVGPUCTRPERM - no permission",
        ),
        ("Traceback\nImportError: no torch\n", "ImportError: no torch"),
        (printed(HEADER, UNITS, before="==WARNING== No kernels were profiled.\n"), "==WARNING== No kernels were"),
        (printed(HEADER, before="==ERROR== odd\n"), "odd"),
        ("x" * 1000, "x" * 199 + "…"),
    ],
)
def test_where_there_are_no_counters_the_reason_is_what_ncu_said(output, why):
    with pytest.raises(counters.Refused, match=f"^{re.escape(why)}"):
        counters.parse(output)


def test_no_metric_is_asked_for_twice_and_all_that_is_shown_is_asked_for():
    assert len(set(metrics.COUNTERS)) == len(metrics.COUNTERS)
    assert set(profile.UNITS.values()) <= set(metrics.COUNTERS)
    named = {value for name, value in vars(metrics).items() if name.isupper() and isinstance(value, str)}
    assert {name for name in named if "__" in name} <= set(metrics.COUNTERS)


# Taken, or done without


@pytest.fixture
def begun(begin):
    """A run that holds cases at its target: two and a control measured in both replicates, one that then failed."""
    study = tiny_study()
    name = begin(study)
    for table, key, rows in small.blocks(study, study.subjects, [("r01-s001", "sdpa.math")]):
        if "-s001" in key or table == "processes":
            write.add_part(name, table, key, rows)
    return name


@pytest.fixture
def ncu(tmp_path, monkeypatch):
    """Puts a shell script in the place of ncu."""

    def place(does: str) -> Path:
        path = tmp_path / "ncu"
        path.write_text(
            f'#!/bin/sh\nif [ "$1" = --version ]; then echo "Version 2025.3.1.0 (build 1)"; exit; fi\n{does}'
        )
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("ATTNLAB_NCU", os.fspath(path))
        return path

    return place


def is_running(process: Path) -> bool:
    try:
        return process.read_text().split()[2] != "Z"
    except OSError:
        return False


WAITS = ["1", "void at::cuda::spin_kernel(long)", "(1, 1, 1)", "10", "10", "1"]
# A call for each shape that is asked for.
PRINT = f"""cat <<'END'
{printed(HEADER, UNITS)}END
for word in "$@"; do case $word in '{{'*) cat <<'END'
{printed(FIRST, WAITS, before="")}END
;; esac; done
"""


def test_a_device_without_counters_is_told(begun):
    told = counters.take(begun, tiny_study(), "cpu")
    assert told == {"tool": "", "why": "Nsight Compute profiles NVIDIA GPUs, which this device is not", "command": ""}


def test_an_ncu_that_is_not_there_is_told(begun, monkeypatch):
    monkeypatch.delenv("ATTNLAB_NCU", raising=False)
    monkeypatch.setenv("PATH", "")
    told = counters.take(begun, tiny_study(), "cuda")
    assert told["tool"] == ""
    assert told["why"] == "not installed: ncu, of Nsight Compute, is neither on PATH nor named by ATTNLAB_NCU"
    monkeypatch.setenv("ATTNLAB_NCU", "/nowhere/ncu")
    assert counters.take(begun, tiny_study(), "cuda")["why"] == "/nowhere/ncu does not run: No such file or directory"


def test_what_every_replicate_measured_is_profiled_once(begun, ncu, tmp_path):
    ncu(f'echo "$*" >> {tmp_path}/asked\n{PRINT}')
    told = counters.take(begun, tiny_study(), "cuda")
    assert (told["tool"], told["why"]) == ("ncu 2025.3.1.0", "")
    rows = read.load(begun).profile
    assert list(rows.columns) == TABLES["profile"].names
    assert rows["implementation"].unique().tolist() == ["sdpa.auto", "sdpa.flash"]
    assert set(rows["seq_len"]) == {32}
    asked = (tmp_path / "asked").read_text().splitlines()
    assert len(asked) == 1
    assert re.findall(r"(\S+) {", asked[0]) == ["sdpa.auto", "sdpa.flash"]
    assert "--clock-control none" in asked[0]
    assert ",".join(metrics.COUNTERS) in asked[0]
    assert told["command"].startswith("ncu --clock-control none")
    assert 'python -m attnlab.measuring.instruments.counters IMPLEMENTATION \'{"batch": 1' in told["command"]
    counters.take(begun, tiny_study(), "cuda")
    assert len((tmp_path / "asked").read_text().splitlines()) == 1


def test_backends_peers_and_kernels_are_counted_apart():
    names = ["sdpa.auto", "peer.flex", "kernel.a", "sdpa.flash", "kernel.b"]
    families = counters._families({name: [tiny_study().target_shape] for name in names})
    assert [list(family) for family in families] == [
        ["sdpa.auto", "sdpa.flash"],
        ["peer.flex"],
        ["kernel.a", "kernel.b"],
    ]


def test_beyond_the_target_what_is_far_slower_is_not_counted(begin, ncu, tmp_path):
    study = tiny_study(counted=[tiny_study().target | {"seq_len": 16}])
    name = begin(study)
    for table, key, rows in small.blocks(study, study.subjects):
        if table == "samples":
            rows["latency_us"] *= rows["implementation"].map(lambda one: 3.0 if one == "sdpa.math" else 1.0)
        write.add_part(name, table, key, rows)
    ncu(f'echo "$*" >> {tmp_path}/asked\n{PRINT}')
    assert counters.take(name, study, "cuda")["why"] == ""
    rows = read.load(name).profile
    shapes = rows.groupby("implementation")["seq_len"].agg(lambda column: sorted(set(column)))
    assert shapes.to_dict() == {"sdpa.auto": [16, 32], "sdpa.flash": [16, 32], "sdpa.math": [32]}
    assert (tmp_path / "asked").read_text().count('"seq_len"') == 5


def test_a_call_that_was_not_counted_costs_those_of_its_process(ncu):
    ncu(f"cat <<'END'\n{printed(HEADER, UNITS, FIRST)}END\n")
    study = tiny_study()
    shapes = [study.target_shape, study.target_shape.resized(seq_len=16)]
    with pytest.raises(counters.Refused, match=r"^1 of 2 calls were counted$"):
        counters.counters(os.environ["ATTNLAB_NCU"], {"sdpa.auto": shapes})


def test_what_ncu_can_not_do_costs_its_own_counters_alone(begun, ncu):
    ncu(f'case "$*" in *sdpa.auto*) echo "==ERROR== no such thing"; exit 1;; esac\n{PRINT}')
    told = counters.take(begun, tiny_study(), "cuda")
    assert told["why"] == "sdpa.auto: no such thing"
    assert read.load(begun).profile["implementation"].unique().tolist() == ["sdpa.flash"]


def test_who_may_not_read_counters_is_refused_once(begun, ncu, tmp_path):
    ncu(f'echo x >> {tmp_path}/asked\necho "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission"')
    told = counters.take(begun, tiny_study(), "cuda")
    assert told["why"] == "ERR_NVGPUCTRPERM - The user does not have permission"
    assert (tmp_path / "asked").read_text() == "x\n"
    assert read.load(begun).profile.empty


def test_who_takes_too_long_is_ended_with_all_it_started(begun, ncu, tmp_path, monkeypatch):
    children, communicate = [], subprocess.Popen.communicate

    def once_it_has_started_a_child(process, timeout=None):
        if timeout and "--version" not in process.args:
            children.append(Path(f"/proc/{(tmp_path / 'child').read_text().strip()}/stat"))
        return communicate(process, timeout=timeout)

    os.mkfifo(tmp_path / "child")  # whoever reads it waits for who writes it
    monkeypatch.setattr(subprocess.Popen, "communicate", once_it_has_started_a_child)
    monkeypatch.setattr(counters, "TIMEOUT_S", 0.5)
    ncu(f"sleep 600 > /dev/null 2>&1 & echo $! > {tmp_path}/child; wait")
    told = counters.take(begun, tiny_study(), "cuda")
    assert told["why"] == "sdpa.auto: not done after 0.5 s; sdpa.flash: not done after 0.5 s"
    assert len(children) == 3  # of both together, and of each
    deadline = time.monotonic() + 60
    while any(map(is_running, children)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_running, children))
