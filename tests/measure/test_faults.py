"""Faults around a run: kills, full disks, concurrent processes, clocks that jump, cards that stop responding."""

import contextlib
import errno
import itertools
import os
import random
import shutil
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import forks as forking
import nbformat
import pandas as pd
import pytest
import small
import torch
from conftest import EVERY_TIMING, SAMPLE, TINY, Quickly, files_of, held, tiny_study, told
from forks import BLOCKS, live, watch
from test_measure import ANSWERS, Nvml

from attnlab import measurement, report
from attnlab.base import files, paths
from attnlab.base.errors import UserError
from attnlab.measuring.instruments import devices, telemetry
from attnlab.measuring.session import record, worker
from attnlab.runs import read, schema, write
from attnlab.runs.tables import TABLES
from attnlab.study import studies

CASE = [*schema.CASE, "replicate", "status"]
LEAST = tiny_study(replicates=1, implementations=["sdpa.auto"], sweeps={"target": TINY["target"]})


@pytest.fixture
def study(write_study):
    """A function that writes a study of many tiny shapes."""
    few = {"implementations": ["sdpa.math"], "baseline": "sdpa.math", "samples": 2, "replicates": 2}
    axes = {"batch": 1, "heads": 1, "seq_len": 1, "head_dim": 8, "dtype": "float32"}
    return lambda shapes: write_study(
        **few, target=axes, sweeps={"seq_len": axes | {"seq_len": [*range(1, shapes + 1)]}}
    )


def measuring(name: str, study: Path | None = None) -> tuple[str, ...]:
    """The step for a fork that measures a run."""
    return "command", "measure", "--run", name, *(("--study", str(study)) if study else ())


@pytest.fixture
def held_up(forks, tmp_path):
    """A context with a fork that measures a run, and is paused after its first recorded samples."""

    @contextlib.contextmanager
    def held_up(name, *steps):
        lock = tmp_path / "held up"
        with files.held(lock):
            fork = forks.start(("wait_at_block", 3, str(lock)), *steps)  # the first is of its process
            fork.wait_for(lambda: write.recorded(name, "samples"))
            yield fork

    return held_up


# Killed at any moment


@pytest.mark.parametrize(("kills", "shapes"), [(12, 6), pytest.param(200, 12, marks=pytest.mark.faults)])
def test_killed_at_random_moments_a_run_loses_doubles_and_halves_nothing(forks, study, data, kills, shapes):
    path, draw, patience_s = study(shapes), random.Random(kills), 0.2  # about as long as recording a block takes
    status, said = forks.run(measuring("undisturbed", path))
    assert status == 0, said
    whole, parts, killed, runs = read.load("undisturbed"), {}, 0, 0
    while killed < kills or parts:
        name = f"killed-{runs}"
        fork = forks.start(measuring(name, path))
        if killed < kills:
            time.sleep(draw.uniform(0, 2 * patience_s))
            fork.kill()
        status, said = fork.end()
        assert status in (0, -signal.SIGKILL), said
        fork.wait_till_gone()  # those that it forked hold the run's lock too, until they have died as well
        killed += status != 0
        if name not in read.names():
            assert not parts
        elif not (run := read.load(name)).complete:  # every block is whole, or this refuses it
            there = {path.name: path.read_bytes() for path in (schema.folder(name) / "parts").glob("*.parquet")}
            assert parts.items() <= there.items()
            patience_s *= 0.9 if len(there) > len(parts) else 1.1
            parts, written = there, run.samples
        else:
            if status:  # killed as it was closed: the next takes away what is left
                status, said = forks.run(measuring(name, path))
                assert (status, len(said)) == (1, 1)
            assert files_of(name) == {"manifest.json", *run.manifest["files"]}
            for columns, table in ((SAMPLE, "samples"), (CASE, "cases")):
                pd.testing.assert_frame_equal(getattr(run, table)[columns], getattr(whole, table)[columns])
            if parts and len(written):  # all as they were
                kept = run.samples.merge(written[SAMPLE], on=SAMPLE, how="inner")
                pd.testing.assert_frame_equal(kept, written)
            parts, runs = {}, runs + 1


def goes_on(name: str, whole: schema.Run) -> None:
    """Continue a run that was cut off, and check that no row is lost or repeated, and that no file is left over."""
    if (schema.folder(name) / "manifest.json").is_file():
        assert len(read.load(name).samples) in (0, len(whole.samples))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        live(name)
    run = read.load(name)
    assert run.complete
    assert [table for table in TABLES if not getattr(run, table).equals(getattr(whole, table))] == []
    assert files_of(name) == {"manifest.json", *run.manifest["files"]}
    shutil.rmtree(schema.folder(name))


@pytest.mark.parametrize("share", [0.02, pytest.param(1, marks=pytest.mark.faults)])
@pytest.mark.parametrize("only", [(), ("write", "fsync", "replace", "mkdir")], ids=["killed", "full"])
def test_killed_or_without_room_at_a_step_on_the_disk_a_run_goes_on(forks, data, share, only):
    """Test at a random `share` of a run's disk operations: all of them for kills, those in `only` for a full disk."""
    paths.data().mkdir(parents=True, exist_ok=True)  # which the first run alone would do
    with pytest.MonkeyPatch.context() as patch:
        done = watch(patch, 0, forking.full, only)
        live("undisturbed")
    whole, count = read.load("undisturbed"), len(done)
    assert count > 20
    for step in random.Random(count).sample(range(1, count + 1), round(share * count)):
        name = f"cut-off-{step}"
        if not only:
            status, said = forks.run(("kill_at", step), ("live", name))
            assert status == -signal.SIGKILL, said
        else:
            with pytest.MonkeyPatch.context() as patch:
                done = watch(patch, step, forking.full, only)
                with contextlib.suppress(OSError):
                    live(name)
            assert len(done) >= step
            assert (schema.folder(name) / "manifest.json").is_file() or not schema.folder(name).exists()
            assert not list(data.rglob(".*.tmp"))
        goes_on(name, whole)


def test_killed_before_it_has_a_manifest_a_run_begins_again_with_the_same_study_alone(forks, study, data):
    status, said = forks.run(("kill_at_survey",), measuring("killed", study(2)))
    assert status == -signal.SIGKILL, said
    assert not (data / "killed" / "manifest.json").exists()
    status, said = forks.run(measuring("killed", study(3)))
    assert said == [
        "attnlab: the run 'killed' was killed before anything was recorded, and is of another study: state the "
        "same, or choose another name"
    ]
    begun = data / "killed" / write.BEGUN
    work = begun.read_text()
    begun.write_text("{")
    said = f"attnlab: {begun} was changed: delete {data}/killed/, which holds no sample"
    for step in (measuring("killed"), measuring("killed", study(2))):
        assert forks.run(step) == (1, [said])
    begun.write_text(work)
    status, said = forks.run(measuring("killed"))
    assert status == 0, said
    run = read.load("killed")
    assert run.complete
    assert len(studies.recorded(run.manifest).shapes) == 2
    assert files_of("killed") == {"manifest.json", *run.manifest["files"]}


def test_a_process_that_dies_among_its_blocks_is_told_in_a_line_and_gone_on_with(forks, study, data):
    command = measuring("dying", study(2))
    status, said = forks.run(("die_at_block", 6), command)
    assert status == 1
    assert said[-1] == (
        "attnlab: the measuring process died (killed, or out of host memory); what was recorded of 'dying' is kept: "
        "`make measure RUN=dying` goes on"
    )
    kept = read.load("dying").samples
    assert len(kept) == 4 + 4
    assert forks.run(command)[0] == 0
    pd.testing.assert_frame_equal(read.load("dying").samples.head(len(kept)), kept)


def test_two_processes_that_write_one_block_leave_one(data):
    # A process that measures outlives the one that started it, and held the lock, by a moment.
    write.create("one", small.manifest())
    write.add_part("one", *BLOCKS[0])
    rows = [BLOCKS[1][2].assign(latency_us=float(number)) for number in range(1, 9)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda frame: write.add_part("one", "samples", "a", frame), rows))
    assert len(read.load("one").samples) == 2


# Interrupted


@pytest.mark.parametrize(
    ("send", "how"), [(os.killpg, signal.SIGINT), (os.killpg, signal.SIGTERM), (os.kill, signal.SIGTERM)]
)
def test_an_interrupted_run_says_so_in_a_line_and_keeps_what_it_has(held_up, begin, send, how):
    name = begin(tiny_study(timings=EVERY_TIMING[3:]))
    with held_up(name, measuring(name)) as fork:
        send(fork.pid, how)
        status, lines = fork.end()
        fork.wait_till_gone()
    said = [line for line in lines if line.startswith("attnlab:")]
    assert said == [f"attnlab: interrupted; what was recorded of '{name}' is kept: `make measure RUN={name}` goes on"]
    assert lines[-1] == said[0]
    assert status == 130
    run = read.load(name)
    assert not run.complete
    assert len(run.samples) == 4 * 5


def test_where_interrupts_are_ignored_they_are_ignored_by_all(held_up, study, data):
    command = measuring("on", study(4))
    with held_up("on", ("ignore_interrupts",), command) as fork:
        fork.kill(signal.SIGINT)
    status, said = fork.end()
    assert status == 0, said
    assert read.load("on").complete


# A disk without room


@pytest.mark.parametrize("begun", [0, 1, 3])
def test_a_file_that_may_not_grow_is_told_in_a_line_and_gone_on_with(forks, study, data, begun):
    command = measuring("full", study(2))
    if begun:
        forks.run(("die_at_block", begun), command)
    before = held(data)
    status, said = forks.run(("limit_files", 2000), command)
    assert status == 1
    kept = "what was recorded of 'full' is kept: make room, then `make measure RUN=full` goes on"
    kept = kept if begun else "nothing was recorded yet: make room"
    assert said[-1] == f"attnlab: writing failed ({os.strerror(errno.EFBIG)}); {kept}"
    assert held(data) == before
    assert forks.run(command)[0] == 0
    assert read.load("full").complete


KEPT = "what was recorded of 'begun' is kept: "


@pytest.mark.parametrize(
    ("at", "error", "expected"),
    [
        ("measure", torch.AcceleratorError("CUDA error: a fault\nmore"), "the device failed (CUDA error: a fault); "),
        ("measure", MemoryError(), f"host memory ran out; {KEPT}`make measure RUN=begun` goes on"),
        ("measure", OSError("pyarrow's"), f"writing failed (pyarrow's); {KEPT}make room, then `make measure"),
        ("measure", OSError(errno.ENOSPC, "No space left"), f"the disk is full; {KEPT}make room, then `make measure"),
        ("survey", OSError(errno.ENOSPC, "No space left"), "the disk is full; nothing was recorded yet: make room"),
    ],
)
def test_what_ends_a_process_is_told_in_a_line(begin, monkeypatch, unlocked, one_thread, at, error, expected, data):
    monkeypatch.setattr(worker, at, Mock(side_effect=error, __name__=at))
    name = begin(tiny_study()) if at == "measure" else "new"
    assert told(lambda: record.record(name, tiny_study(), "cpu", one_thread)).startswith(expected)
    assert os.listdir(data) == (["begun"] if at == "measure" else [])


# More than one at once


def test_of_two_that_measure_into_one_run_one_is_refused(forks, held_up, study, data):
    command = measuring("shared", study(6))
    with held_up("shared", command) as first:
        status, said = forks.run(command)
    assert status == 1
    assert said == ["attnlab: another process is measuring into the run 'shared': wait for it, or name another"]
    assert first.end()[0] == 0
    run = read.load("shared")
    assert set(run.processes["process"]) == set(run.samples["process"])


def test_of_two_that_render_one_run_one_waits(begin, monkeypatch):
    name, said, rendered = begin(tiny_study()), [], threading.Event()

    def executed(*_):
        rendered.set()
        return "01_environment", nbformat.v4.new_notebook()

    monkeypatch.setattr(report, "_execute", executed)
    monkeypatch.setattr(report, "_say", said.append)
    with ThreadPoolExecutor(1) as pool:
        with files.held(paths.reports() / name / ".lock"):
            waiting = pool.submit(report.render, name, ["01_environment"])
            while not said:
                time.sleep(0.001)
            assert not rendered.is_set()
        assert waiting.result(timeout=60).is_file()
    assert said == [f"{paths.reports() / name}/: another process is rendering it; waiting"]


def test_a_run_that_is_closed_while_it_is_read_is_read_whole(data, monkeypatch):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write, "finish", lambda name: None)
        live("closing")
    tables_of_parts = read.tables_of_parts

    def closed_meanwhile(name):
        monkeypatch.setattr(read, "tables_of_parts", tables_of_parts)
        write.finish(name)
        return tables_of_parts(name)

    monkeypatch.setattr(read, "tables_of_parts", closed_meanwhile)
    assert read.load("closing").samples["latency_us"].tolist() == [1.0, 2.0]


def test_a_lock_that_was_taken_away_is_no_lock(data, monkeypatch):
    write.create("one", {"study": {"name": "tiny"}})
    with write.lock("one"):
        (data / "one" / ".lock").unlink()  # as `finish` does
        with write.lock("one"):
            pass
    opened, removed = open, []

    def taken_away_once(path, mode):
        handle = opened(path, mode)
        if not removed:
            removed.append(Path(path).unlink())
        return handle

    monkeypatch.setattr(files, "open", taken_away_once, raising=False)
    refused = pytest.raises(UserError, match="another process is measuring into the run 'one'")
    with write.lock("one"), refused, write.lock("one"):
        pass


# A clock that jumps


def showing(moments):
    """A clock that returns the next of these moments at each reading."""
    return type("Clock", (datetime,), {"now": lambda tz=None: next(moments)})


def test_where_the_clock_goes_back_the_newest_run_is_still_the_last(data, monkeypatch):
    hours = (datetime(2026, 11, 21, hour, tzinfo=UTC) for hour in range(11, 0, -1))
    monkeypatch.setattr(write, "datetime", showing(hours))
    for name in ("c", "a", "b"):
        write.create(name, small.manifest(tiny_study()))
    assert read.names() == ["c", "a", "b"]
    assert measurement._unfinished(tiny_study(), "Imaginary X1") == "b"
    # It is put right in part: still before the first of them, but after the last.
    write.create("0", small.manifest(created="2026-11-21T10:30:00+00:00"))
    assert read.names() == ["c", "a", "b", "0"]
    # When the clock is right again, order goes by it.
    write.create("a-later", small.manifest(created="2026-11-21T13:00:00+00:00"))
    assert read.names() == ["c", "a", "b", "0", "a-later"]
    assert read.read_manifest("a-later")["order"] == "2026-11-21T13:00:00+00:00"


def test_a_name_that_the_clock_gives_twice_is_given_once(data, monkeypatch):
    monkeypatch.setattr(record, "datetime", showing(itertools.repeat(datetime(2026, 11, 21, 6, 45, 1, tzinfo=UTC))))
    names = []
    for _ in range(3):
        names.append(record.new_name(devices.describe(torch.device("cpu"))))
        write.create(names[-1], {"study": {"name": "tiny"}})
    assert names == ["cpu-20261121-064501", "cpu-20261121-064501-2", "cpu-20261121-064501-3"]
    assert read.names() == names


def test_latencies_do_not_know_what_time_it_is(begin, monkeypatch, unlocked, one_thread):
    asked = itertools.count()
    monkeypatch.setattr(time, "time", lambda: 1.8e9 - 3600 * next(asked))
    samples = read.load(record.record(begin(LEAST), LEAST, "cpu", one_thread)).samples
    assert samples["latency_us"].between(0, 1e7, inclusive="neither").all()
    assert samples["started_s"].is_monotonic_increasing
    assert samples["started_s"].iloc[0] > 0


# A card that falls silent


ANSWERING = dict.fromkeys(ANSWERS, 1410)


def test_a_card_that_falls_silent_costs_its_readings_and_nothing_else(begin, monkeypatch, unlocked, one_thread):
    modes = len(telemetry.Telemetry(torch.device("cpu")).modes())
    monkeypatch.setattr(telemetry, "pynvml", Nvml(ANSWERING, modes + 4 * 3))
    card = telemetry.Telemetry(torch.device("cpu"))
    card._handle = object()
    monkeypatch.setattr(worker, "Telemetry", lambda device: card)
    run = read.load(record.record(begin(LEAST), LEAST, "cpu", one_thread))
    assert run.complete
    heard = run.samples["sm_clock_mhz"].notna()
    assert heard.tolist() == [True] * 6 + [False] * 4
    assert run.samples["throttled"].notna().tolist() == heard.tolist()


@pytest.mark.parametrize("answers", range(4))
def test_nvml_may_fail_at_any_question(monkeypatch, answers):
    monkeypatch.setattr(telemetry, "pynvml", Nvml(ANSWERING, answers))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="1"))
    card = telemetry.Telemetry(torch.device("cuda"))
    assert card.unavailable == ("" if answers > 1 else "NVML: GPU is lost")
    assert card.driver == ("1410" if answers > 2 else "n/a")
    assert card.read() == telemetry.Reading(sm_clock_mhz=1410 if answers > 3 else None)
    assert all(value is None for key, value in card.limits().items() if key != "unavailable")


def test_what_changed_of_the_environment_is_named_with_what_brings_it_back(begin, machine, unlocked):
    now = machine["environment"]["packages"]
    assert set(now) == {"torch", "numpy"}  # what else is installed, a CPU doesn't use
    packages = {"packages": now | {"numpy": "1.0", "pytest": "n/a"}}
    pip = f"{sys.executable} -m pip"
    undoes = f"`{pip} install numpy==1.0 && {pip} uninstall --yes pytest` undoes that, or start a new run"
    versions = f"numpy is {now['numpy']}, was 1.0; pytest is {pytest.__version__}, was n/a"
    for name, changed, said in (
        ("begun", {"driver": "580.1"}, "(driver): start a new run"),
        ("other", packages, f"({versions}): {undoes}"),
    ):
        begin(tiny_study(), name, environment=machine["environment"] | changed | {"hash": 64 * "0"})
        found = told(lambda name=name: record.record(name, tiny_study(), "cpu", Quickly(ThreadPoolExecutor(1))))
        assert found == f"the environment changed since the run {name!r} began {said}"
