"""What goes wrong around a run: kills, full disks, crowds, clocks that jump, cards that fall silent."""

import contextlib
import errno
import io
import itertools
import os
import random
import shutil
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import forks as forking
import nbformat
import pandas as pd
import pytest
import small
import torch
import yaml
from conftest import SAMPLE, TINY, Quickly, files_of, held, tiny_study, told
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
BOTH_CACHES = [{"clock": "eager", "cache": "warm"}, {"clock": "eager", "cache": "cold"}]


@pytest.fixture
def study(tmp_path):
    """Writes a study of many tiny shapes."""

    def write(shapes: int) -> Path:
        axes = {"batch": 1, "heads": 1, "seq_len": list(range(1, shapes + 1)), "head_dim": 8, "dtype": "float32"}
        few = {"implementations": ["sdpa.math"], "baseline": "sdpa.math", "samples": 2, "replicates": 2}
        stated = TINY | few | {"target": axes | {"seq_len": 1}, "sweeps": {"seq_len": axes}}
        path = tmp_path / "many.yaml"
        path.write_text(yaml.safe_dump(stated))
        return path

    return write


def measuring(name: str, study: Path | None = None) -> tuple[str, ...]:
    """The step of a fork that measures into a run."""
    return "command", "measure", "--run", name, *(("--study", str(study)) if study else ())


@pytest.fixture
def held_up(forks, tmp_path):
    """Starts a fork that measures into a run, and is held up once it has recorded samples, while the context lasts."""

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
def test_killed_at_random_moments_a_run_loses_doubles_and_halves_nothing(forks, study, data, kills, shapes, capsys):
    path, draw, patience_s = study(shapes), random.Random(kills), 0.2  # about as long as recording a block takes
    status, said = forks.run(measuring("undisturbed", path))
    assert status == 0, said
    whole, parts = read.load("undisturbed"), {}
    killed = runs = written = 0
    while killed < kills or parts:
        name = f"killed-{runs}"
        fork = forks.start(measuring(name, path))
        if killed < kills:
            time.sleep(draw.uniform(0, 2 * patience_s))
            fork.kill()
        status, said = fork.end()
        assert status in (0, -signal.SIGKILL), said
        assert fork.gone()  # those that it forked hold the run's lock too, until they have died as well
        killed += status != 0
        if name not in read.names():
            assert not parts
        elif not read.load(name).complete:  # every block is whole, or this refuses it
            there = {path.name: path.read_bytes() for path in (schema.folder(name) / "parts").glob("*.parquet")}
            assert parts.items() <= there.items()
            patience_s *= 0.9 if len(there) > len(parts) else 1.1
            parts = there
        else:
            if status:  # killed as it was closed: the next takes away what is left
                status, said = forks.run(measuring(name, path))
                assert (status, len(said)) == (1, 1)
            written += require_whole(name, whole, parts)
            parts, runs = {}, runs + 1
    if kills > 100:
        with capsys.disabled():
            print(
                f"\n{killed} kills, {runs} runs completed; {written} samples written, each there once as it was written"
            )


def require_whole(name: str, whole: schema.Run, parts: dict[str, bytes]) -> int:
    """Require a complete run to hold all that one undisturbed holds, and of the parts before all samples as they were.

    Returns how many these are.
    """
    run = read.load(name)
    assert files_of(name) == {"manifest.json", *run.manifest["files"]}
    for columns, table in ((SAMPLE, "samples"), (CASE, "cases")):
        assert not getattr(run, table).duplicated(columns).any()
        pd.testing.assert_frame_equal(getattr(run, table)[columns], getattr(whole, table)[columns])
    blocks = [io.BytesIO(parts[name]) for name in sorted(parts) if name.startswith("samples.")]
    if not blocks:
        return 0
    written = pd.concat(map(pd.read_parquet, blocks), ignore_index=True)
    kept = run.samples.merge(written[SAMPLE], on=SAMPLE, how="inner")
    pd.testing.assert_frame_equal(kept, written)
    return len(written)


WRITING = ("write", "fsync", "replace", "mkdir")
"""The operations on the disk that a full one refuses."""
SHARE = pytest.mark.parametrize("share", [0.02, pytest.param(1, marks=pytest.mark.faults)])
"""The share of the steps on the disk that is drawn: every one in `make test OF=faults`."""


def drawn(name: str, share: float, only: tuple[str, ...] = ()) -> list[int]:
    """Record a run undisturbed, and draw from the steps on the disk that this took, counted from 1."""
    paths.data().mkdir(parents=True, exist_ok=True)  # which the first run alone would do
    with pytest.MonkeyPatch.context() as patch:
        done = watch(patch, 0, forking.full, only)
        live(name)
    assert len(done) > 20
    return random.Random(len(done)).sample(range(1, len(done) + 1), round(share * len(done)))


def goes_on(name: str, whole: schema.Run) -> None:
    """Continue a run that was cut off, and check that it lost, doubled and left nothing."""
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


@SHARE
def test_killed_at_a_step_on_the_disk_a_run_goes_on(forks, data, share):
    steps = drawn("undisturbed", share)
    whole = read.load("undisturbed")
    for step in steps:
        name = f"killed-{step}"
        status, said = forks.run(("kill_at", step), ("live", name))
        assert status == -signal.SIGKILL, said
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


def test_a_measuring_process_does_not_outlive_the_one_that_started_it(held_up, begin):
    # It would measure on beside the process that resumes the run: the lock went with the parent.
    name = begin(tiny_study(timings=BOTH_CACHES))
    with held_up(name, measuring(name)) as fork:
        os.kill(fork.pid, signal.SIGKILL)
        assert fork.end()[0] == -signal.SIGKILL
        assert fork.gone()
    assert len(write.recorded(name, "processes")) == 1
    assert len(write.recorded(name, "samples")) == 1


# Interrupted


@pytest.mark.parametrize(
    ("send", "how"), [(os.killpg, signal.SIGINT), (os.killpg, signal.SIGTERM), (os.kill, signal.SIGTERM)]
)
def test_an_interrupted_run_says_so_in_a_line_and_keeps_what_it_has(held_up, begin, send, how):
    name = begin(tiny_study(timings=BOTH_CACHES))
    with held_up(name, measuring(name)) as fork:
        send(fork.pid, how)
        status, lines = fork.end()
        assert fork.gone()
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


@SHARE
def test_a_disk_that_fills_at_a_step_loses_nothing_and_leaves_nothing_half(data, share):
    steps = drawn("undisturbed", share, WRITING)
    whole = read.load("undisturbed")
    for step in steps:
        name = f"full-{step}"
        with pytest.MonkeyPatch.context() as patch:
            done = watch(patch, step, forking.full, WRITING)
            with contextlib.suppress(OSError):
                live(name)
        assert len(done) >= step
        begun = (schema.folder(name) / "manifest.json").is_file()
        assert begun or not schema.folder(name).exists()
        assert not list(data.rglob(".*.tmp"))
        goes_on(name, whole)


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
        (
            "measure",
            torch.AcceleratorError("CUDA error: an illegal access\nmore"),
            "the device failed (CUDA error: an ill",
        ),
        ("measure", MemoryError(), f"host memory ran out; {KEPT}`make measure RUN=begun` goes on"),
        ("measure", OSError("pyarrow's"), f"writing failed (pyarrow's); {KEPT}make room, then `make measure"),
        ("measure", OSError(errno.ENOSPC, "No space left"), f"the disk is full; {KEPT}make room, then `make measure"),
        ("survey", OSError(errno.ENOSPC, "No space left"), "the disk is full; nothing was recorded yet: make room"),
    ],
)
def test_what_ends_a_process_is_told_in_a_line(begin, monkeypatch, unlocked, one_thread, at, error, expected, data):
    def failing(*_):
        raise error

    monkeypatch.setattr(worker, at, failing)
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
    assert not run.samples.duplicated(SAMPLE).any()
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
    live("undisturbed")
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


def test_a_lock_that_was_taken_away_is_no_lock(data):
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

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "open", taken_away_once, raising=False)
        with (
            write.lock("one"),
            pytest.raises(UserError, match="another process is measuring into the run 'one'"),
            write.lock("one"),
        ):
            pass


def test_a_lock_says_that_it_waits_only_if_it_does(tmp_path):
    said = []
    with files.held(tmp_path / "folder" / ".lock", lambda: said.append("waits")):
        assert said == []
    with ThreadPoolExecutor(1) as pool:
        with files.held(tmp_path / ".lock"):

            def second():
                with files.held(tmp_path / ".lock", lambda: said.append("waits")):
                    return True

            waiting = pool.submit(second)
            while not said:
                time.sleep(0.001)
            assert not waiting.done()
        assert waiting.result(timeout=30)


# A clock that jumps


class Jumping(datetime):
    """A clock that is set back by an hour each time it is read."""

    asked = 0

    @classmethod
    def now(cls, tz=None):
        cls.asked += 1
        return datetime(2026, 11, 21, 12, tzinfo=UTC) - timedelta(hours=cls.asked)


def test_where_the_clock_goes_back_the_newest_run_is_still_the_last(data, monkeypatch):
    monkeypatch.setattr(write, "datetime", Jumping)
    for name in ("c", "a", "b"):
        write.create(name, small.manifest(tiny_study()))
    assert read.names() == ["c", "a", "b"]
    created = [read.read_manifest(name)["created"] for name in read.names()]
    assert created == sorted(created, reverse=True)
    assert measurement._unfinished(tiny_study(), "Imaginary X1") == "b"
    # It is put right in part: still before the first of them, but after the last.
    write.create("0", small.manifest(created="2026-11-21T10:30:00+00:00"))
    assert read.names() == ["c", "a", "b", "0"]
    # When the clock is right again, order goes by it.
    write.create("a-later", small.manifest(created="2026-11-21T13:00:00+00:00"))
    assert read.names() == ["c", "a", "b", "0", "a-later"]
    assert read.read_manifest("a-later")["order"] == "2026-11-21T13:00:00+00:00"


def test_a_name_that_the_clock_gives_twice_is_given_once(data, monkeypatch):
    class Stopped(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime(2026, 11, 21, 6, 45, 1, tzinfo=UTC)

    monkeypatch.setattr(record, "datetime", Stopped)
    names = []
    for _ in range(3):
        names.append(record.new_name(devices.describe(torch.device("cpu"))))
        write.create(names[-1], {"study": {"name": "tiny"}})
    assert names == ["cpu-20261121-064501", "cpu-20261121-064501-2", "cpu-20261121-064501-3"]
    assert read.names() == names


def test_latencies_do_not_know_what_time_it_is(begin, monkeypatch, unlocked, one_thread):
    asked = itertools.count()
    monkeypatch.setattr(time, "time", lambda: 1.8e9 - 3600 * next(asked))
    study = tiny_study(replicates=1, implementations=["sdpa.auto"])
    samples = read.load(record.record(begin(study), study, "cpu", one_thread)).samples
    assert samples["latency_us"].between(0, 1e7, inclusive="neither").all()
    assert samples["started_s"].is_monotonic_increasing
    assert samples["started_s"].iloc[0] > 0


# A card that falls silent


def silent(after: int) -> Nvml:
    """An NVML that answers a number of questions and then fails."""
    return Nvml(dict.fromkeys(ANSWERS, 1410), after)


def test_a_card_that_falls_silent_costs_its_readings_and_nothing_else(begin, monkeypatch, unlocked, one_thread):
    monkeypatch.setattr(telemetry, "pynvml", silent(len(telemetry.Telemetry(torch.device("cpu")).modes()) + 4 * 7))
    card = telemetry.Telemetry(torch.device("cpu"))
    card._handle = object()
    monkeypatch.setattr(worker, "Telemetry", lambda device: card)
    study = tiny_study(replicates=1, implementations=["sdpa.auto"])
    run = read.load(record.record(begin(study), study, "cpu", one_thread))
    assert run.complete
    assert len(run.samples) == 2 * 3 * 5
    heard = run.samples["sm_clock_mhz"].notna()
    assert heard.tolist() == [True] * 14 + [False] * 16
    assert run.samples["throttled"].notna().tolist() == heard.tolist()


@pytest.mark.parametrize("answers", range(4))
def test_nvml_may_fail_at_any_question(monkeypatch, answers):
    monkeypatch.setattr(telemetry, "pynvml", silent(answers))
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
