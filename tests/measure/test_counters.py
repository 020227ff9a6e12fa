"""Counters: parsed from ncu's output, and runs without ncu."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import small
from conftest import tiny_study, wait_until
from reading import program

from attnlab import profile
from attnlab.measuring.instruments import counters
from attnlab.runs import metrics, read, write

HEADER = ["ID", "Kernel Name", "Block Size", "gpu__time_duration.sum", "sm__cycles_elapsed.max", "not__asked.sum"]
UNITS = ["", "", "", "ns", "cycle", ""]
FIRST = ["0", "void flash<64, (bool)0>(Params)", "(128, 1, 1)", "47,616", "83,000.5", "7"]
SECOND = ["1", "second", "(32, 1, 1)", "1,000", "n/a", "7"]
WAITS = ["1", "void at::cuda::spin_kernel(long)", "(1, 1, 1)", "10", "10", "1"]


def printed(*rows: list[str], before: str = "==PROF== Connected to process 7\n") -> str:
    return before + "".join(",".join(f'"{cell}"' for cell in row) + "\n" for row in rows)


# The output of ncu


def test_counters_are_read_by_call_and_launch_with_their_units_past_what_the_profiled_process_says():
    begins = printed(HEADER, UNITS, FIRST, SECOND, before="a warning\n")
    first, second = counters.parse(begins + "another\n" + printed(WAITS, SECOND, FIRST, WAITS, before=""))
    assert first.to_dict("list") == {
        "function": ["void flash<64, (bool)0>(Params)"] * 2 + ["second"],
        "launch": [0, 0, 1],
        "metric": ["gpu__time_duration.sum", "sm__cycles_elapsed.max", "gpu__time_duration.sum"],
        "unit": ["ns", "cycle", "ns"],
        "value": [47616, 83000.5, 1000],
    }
    assert second["launch"].tolist() == [0, 1, 1]
    with pytest.raises(counters.Refused):
        counters.parse(printed(HEADER, UNITS, FIRST, WAITS, WAITS))


@pytest.mark.parametrize(
    ("output", "why"),
    [
        ("", "it said nothing"),
        ("==PROF== x\n==ERROR== ERR_NVGPUCTRPERM - no permission\n==ERROR== more\n", "ERR_NVGPUCTRPERM - no perm"),
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


# Runs with and without ncu


@pytest.fixture
def asked(tmp_path):
    """A file with the arguments of each call of ncu that counts, one line a call."""
    return tmp_path / "asked"


@pytest.fixture
def ncu(asked, data, monkeypatch):
    """Begins a run, and puts a shell script in place of ncu."""
    write.create("begun", small.manifest(tiny_study()))

    def place(does: str) -> str:
        version = 'if [ "$1" = --version ]; then echo "Version 2025.3.1.0 (build 1)"; exit; fi'
        path = os.fspath(program(asked.with_name("ncu"), f'{version}\necho "$*" >> {asked}\n{does}'))
        monkeypatch.setenv("ATTNLAB_NCU", path)
        return path

    return place


@pytest.fixture
def two(monkeypatch):
    """Makes 2 implementations count as measured at the target of the run."""
    cases = [(name, tiny_study().target_shape) for name in ("sdpa.auto", "sdpa.flash")]
    monkeypatch.setattr(counters, "_counted", lambda *_: cases)


# One call for each requested shape.
PRINT = f"""cat <<'END'
{printed(HEADER, UNITS)}END
for word in "$@"; do case $word in '{{'*) cat <<'END'
{printed(FIRST, WAITS, before="")}END
;; esac; done
"""


def test_a_device_without_counters_and_an_ncu_that_is_not_there_are_told(monkeypatch):
    told = counters.take("none", tiny_study(), "cpu")
    assert told == {"tool": "", "why": "Nsight Compute profiles NVIDIA GPUs, which this device is not", "command": ""}
    monkeypatch.delenv("ATTNLAB_NCU", raising=False)
    monkeypatch.setenv("PATH", "")
    told = counters.take("none", tiny_study(), "cuda")
    lacking = "not installed: ncu, of Nsight Compute, is neither on PATH nor named by ATTNLAB_NCU"
    assert (told["tool"], told["why"]) == ("", lacking)
    monkeypatch.setenv("ATTNLAB_NCU", "/nowhere/ncu")
    assert counters.take("none", tiny_study(), "cuda")["why"] == "/nowhere/ncu does not run: No such file or directory"


def test_what_every_replicate_measured_is_profiled_once_and_beyond_the_target_unless_it_is_far_slower(ncu, asked):
    study = tiny_study(counted=[tiny_study().target | {"seq_len": 16}])
    ncu(PRINT)
    for table, key, rows in small.blocks(study, study.subjects, [("r01-s001", "sdpa.flash")]):
        if table == "samples":
            rows["latency_us"] *= rows["implementation"].map(lambda one: 3.0 if one == "sdpa.math" else 1.0)
        write.add_part("begun", table, key, rows)
    told = counters.take("begun", study, "cuda")
    assert (told["tool"], told["why"]) == ("ncu 2025.3.1.0", "")
    assert told["command"].startswith("ncu --clock-control none")
    assert 'python -m attnlab.measuring.instruments.counters IMPLEMENTATION \'{"batch": 1' in told["command"]
    rows = read.load("begun").profile
    shapes = rows.groupby("implementation")["seq_len"].agg(lambda column: sorted(set(column)))
    assert shapes.to_dict() == {"sdpa.auto": [16, 32], "sdpa.flash": [16], "sdpa.math": [32]}
    counters.take("begun", study, "cuda")
    (words,) = asked.read_text().splitlines()
    assert sorted(re.findall(r"(\S+) {", words)) == ["sdpa.auto", "sdpa.auto", "sdpa.flash", "sdpa.math"]
    assert "--clock-control none" in words
    assert ",".join(metrics.COUNTERS) in words


def test_backends_peers_and_kernels_are_counted_apart(ncu, monkeypatch):
    names = ["sdpa.auto", "peer.flex", "kernel.a", "sdpa.flash", "kernel.b"]
    taken = []
    monkeypatch.setattr(counters, "_counted", lambda *_: [(name, tiny_study().target_shape) for name in names])
    monkeypatch.setattr(counters, "_taken", lambda _, __, cases: taken.append([name for name, _ in cases]) or [])
    ncu("")
    counters.take("begun", tiny_study(), "cuda")
    assert taken == [["sdpa.auto", "sdpa.flash"], ["peer.flex"], ["kernel.a", "kernel.b"]]


def test_a_call_that_was_not_counted_costs_those_of_its_process(ncu):
    path = ncu(f"cat <<'END'\n{printed(HEADER, UNITS, FIRST)}END\n")
    with pytest.raises(counters.Refused, match=r"^1 of 2 calls were counted$"):
        counters.counters(path, [("sdpa.auto", tiny_study().target_shape.resized(seq_len=n)) for n in (16, 32)])


@pytest.mark.parametrize(
    ("does", "why", "times", "there"),
    [
        (f'case "$*" in *sdpa.auto*) echo "==ERROR== no"; exit 1;; esac\n{PRINT}', "sdpa.auto: no", 3, {"sdpa-flash"}),
        ('echo "==ERROR== ERR_NVGPUCTRPERM - not permitted"', "ERR_NVGPUCTRPERM - not permitted", 1, set()),
    ],
    ids=["one fails", "not permitted"],
)
def test_what_ncu_can_not_do_costs_its_own_counters_alone(ncu, two, asked, does, why, times, there):
    ncu(does)
    assert counters.take("begun", tiny_study(), "cuda")["why"] == why
    assert len(asked.read_text().splitlines()) == times
    assert set(write.recorded("begun", "profile")) == there


def is_running(process: Path) -> bool:
    try:
        return process.read_text().split()[2] != "Z"
    except OSError:
        return False


def test_who_takes_too_long_is_ended_with_all_it_started(ncu, two, tmp_path, monkeypatch):
    children, communicate = [], subprocess.Popen.communicate

    def once_it_has_started_a_child(process, timeout=None):
        if timeout and "--version" not in process.args:
            children.append(Path(f"/proc/{(tmp_path / 'child').read_text().strip()}/stat"))
        return communicate(process, timeout=timeout)

    os.mkfifo(tmp_path / "child")  # a reader waits for the writer
    monkeypatch.setattr(subprocess.Popen, "communicate", once_it_has_started_a_child)
    monkeypatch.setattr(counters, "TIMEOUT_S", 0.5)
    ncu(f"sleep 600 > /dev/null 2>&1 & echo $! > {tmp_path}/child; wait")
    told = counters.take("begun", tiny_study(), "cuda")
    assert told["why"] == "sdpa.auto: not done after 0.5 s; sdpa.flash: not done after 0.5 s"
    assert len(children) == 3  # of both together, and of each
    wait_until(lambda: not any(map(is_running, children)))
