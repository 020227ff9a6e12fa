"""Recording in real processes: killed, interrupted, crowded out, and gone on with."""

import errno
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import Executor, Future
from pathlib import Path

import pandas as pd
import pytest
import yaml
from conftest import Quickly, tiny_study

from attnlab import obtain, paths, runs, studies
from attnlab.analyse.results import infer
from attnlab.errors import EnvironmentChanged, UserError
from attnlab.measure import record, worker
from attnlab.shapes import Shape
from attnlab.studies import Timing

SAMPLE = ["implementation", *Shape.AXES, "clock", "cache", "replicate", "round"]
BOTH_CACHES = [{"clock": "eager", "cache": "warm"}, {"clock": "eager", "cache": "cold"}]


# A run as it comes out


def test_a_run_holds_every_sample_once(recorded):
    run = runs.load(recorded)
    assert run.complete
    assert len(run.samples) == 4 * 3 * 5 * 2
    assert not run.samples.duplicated(SAMPLE).any()
    assert set(run.samples["implementation"]) == {"sdpa.auto", "sdpa.flash", "sdpa.math", "control.sdpa.auto"}
    assert set(run.samples["seq_len"]) == {16, 32, 64}
    assert set(run.samples["replicate"]) == {0, 1}
    assert set(run.samples["round"]) == {0, 1, 2, 3, 4}
    assert set(run.samples["dtype"]) == {"float32"}
    assert (run.samples["latency_us"] > 0).all()
    assert (run.samples["launches"] == 1).all()
    assert run.samples["sm_clock_mhz"].isna().all()
    assert run.samples["throttled"].dtype == "boolean"


def test_each_replicate_is_a_process_of_its_own(recorded):
    run = runs.load(recorded)
    assert run.processes["replicate"].tolist() == [0, 1]
    by_replicate = run.samples.groupby("replicate")["process"].agg(lambda column: set(column))
    assert [len(processes) for processes in by_replicate] == [1, 1]
    assert by_replicate[0] | by_replicate[1] == set(run.processes["process"])
    assert len(set(run.processes["process"])) == 2
    assert (run.processes[["setup_seconds", "measuring_seconds"]] > 0).all().all()


def test_every_case_was_checked_before_and_after(recorded):
    run = runs.load(recorded)
    assert run.cases["status"].tolist() == ["measured"] * 24
    assert run.checks["passed"].tolist() == [True] * 96
    assert set(run.checks["route"]) == {"call"}
    assert (
        run.checks.groupby(["implementation", "seq_len", "replicate"])["moment"].agg(set).eq({"before", "after"}).all()
    )
    # Unseen inputs: no two checks of an implementation at a shape saw the same errors.
    errors = run.checks.groupby(["implementation", "seq_len"])["framework_mean_error"].nunique()
    assert (errors == 2 * (3 + 1)).all()


def test_the_manifest_tells_how_to_do_it_again(recorded):
    manifest = runs.read_manifest(recorded)
    assert studies.parse(manifest["study"], "manifest") == tiny_study()
    assert manifest["device"]["kind"] == "cpu"
    assert manifest["missing_clocks"] == []
    assert manifest["command"] == "make measure STUDY=tiny DEVICE=cpu"
    assert manifest["environment"]["settings"]["float32_matmul_precision"] == "highest"
    assert re.fullmatch("[0-9a-f]{64}", manifest["environment"]["hash"])
    assert manifest["ceilings"]["matmul.float32"]["unit"] == "TFLOP/s"
    assert manifest["ceilings"]["copy"]["unit"] == "GB/s"
    assert manifest["clocks"]["tick_us"] > 0
    assert set(manifest["files"]) == {f"{table}.parquet" for table in runs.TABLES}
    sources = {path.name for path in (paths.ROOT / "lib/attnlab/measure").iterdir() if path.suffix in (".py", ".cu")}
    assert set(manifest["sources"]) == sources
    assert all(re.fullmatch("[0-9a-f]{64}", value) for value in (manifest["sources"] | manifest["kernels"]).values())


def test_a_clock_that_the_device_lacks_is_named(data, one_thread, unlocked):
    study = tiny_study(timings=[{"clock": "device", "cache": "cold"}, *BOTH_CACHES[:1]], replicates=1, samples=2)
    run = runs.load(record.record("one", study, "cpu", Quickly(one_thread)))
    assert run.manifest["missing_clocks"] == ["device cold"]
    assert set(run.samples["clock"]) == {"eager"}


def test_blocks_sort_in_the_order_of_the_study():
    study = tiny_study()
    shape = study.shapes[2]
    assert worker.shape_key(study, shape, 1) == "r01-s002"
    assert worker.block_key(study, shape, 11, Timing(clock="eager", cache="cold")) == "r11-s002-eager-cold"


def test_a_new_name_tells_the_device_and_the_time(monkeypatch):
    def named(name, kind):
        monkeypatch.setattr(record.devices, "describe", lambda device: {"name": name, "kind": kind})
        return record.new_name(None)

    assert re.fullmatch(r"h200-\d{8}-\d{6}", named("NVIDIA H200", "cuda"))
    assert re.fullmatch(r"a100-sxm4-40gb-\d{8}-\d{6}", named("NVIDIA A100-SXM4-40GB", "cuda"))
    assert re.fullmatch(r"gpu-\d{8}-\d{6}", named("NVIDIA Graphics Device", "cuda"))
    assert re.fullmatch(r"cpu-\d{8}-\d{6}", named("AMD EPYC 9654", "cpu"))


# Cut off


class Command:
    """`python -m attnlab` in a process group of its own, of which nothing is left behind."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "attnlab", *arguments]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            # Whoever runs the tests in the background hands them SIGINT ignored, and that is inherited.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        if self.members():
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    def members(self) -> list[int]:
        """The processes of the group that still run."""
        there = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
            except OSError:
                continue
            if int(group) == self.process.pid and state != "Z":
                there.append(int(stat.parent.name))
        return there

    def gone(self, patience_s: float = 30) -> bool:
        """Whether every process of the group ends by itself; what only tidies up may take a moment longer."""
        deadline = time.monotonic() + patience_s
        while self.members() and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.members() == []

    def wait_for(self, name: str, table: str, count: int = 1) -> None:
        while len(runs.recorded(name, table)) < count:
            assert self.process.poll() is None, self.process.stderr.read()
            time.sleep(0.002)

    def end(self) -> tuple[int, list[str]]:
        """The exit status and the lines on stderr."""
        error = self.process.communicate(timeout=120)[1]
        assert "Traceback" not in error
        return self.process.returncode, error.splitlines()


def test_a_run_that_is_killed_goes_on_and_loses_and_doubles_nothing(begin):
    study = tiny_study(timings=BOTH_CACHES, implementations=["sdpa.auto", "sdpa.math"])
    name = begin(study)
    with Command("measure", "--run", name) as command:
        command.wait_for(name, "cases")
        os.killpg(command.process.pid, signal.SIGKILL)
        assert command.process.wait() == -signal.SIGKILL
    cut = runs.load(name)
    assert not cut.complete
    assert 0 < len(cut.samples) < 2 * 3 * 3 * 5 * 2
    blocks = runs.recorded(name, "samples")

    with Command("measure", "--run", name) as command:
        status, lines = command.end()
    assert status == 0, lines
    run = runs.load(name)
    assert run.complete
    assert len(run.samples) == 2 * 3 * 3 * 5 * 2
    assert not run.samples.duplicated(SAMPLE).any()
    kept = run.samples[run.samples["process"].isin(cut.samples["process"])].reset_index(drop=True)
    pd.testing.assert_frame_equal(kept, cut.samples)
    keys = (run.samples["replicate"].astype(str) + run.samples["seq_len"].astype(str) + run.samples["cache"]).nunique()
    assert len(blocks) < keys == 12
    assert len(run.cases) == 2 * 3 * 3
    assert not run.cases.duplicated(["implementation", "seq_len", "replicate"]).any()
    assert len(run.checks) == 2 * 3 * 3 * (3 + 1)
    assert not (paths.data() / name / "parts").exists()


def test_an_interrupted_run_says_so_in_a_line_and_keeps_what_it_has(begin):
    name = begin(tiny_study(timings=BOTH_CACHES))
    with Command("measure", "--run", name) as command:
        command.wait_for(name, "samples")
        os.killpg(command.process.pid, signal.SIGINT)
        status, lines = command.end()
        assert command.gone()
    said = [line for line in lines if line.startswith("attnlab:")]
    assert said == [f"attnlab: interrupted; what was recorded of '{name}' is kept: `make measure RUN={name}` goes on"]
    assert lines[-1] == said[0]
    assert status == 130
    run = runs.load(name)
    assert not run.complete
    assert len(run.samples) > 0
    assert len(run.samples) % 20 == 0


def test_a_measuring_process_does_not_outlive_the_one_that_started_it(begin):
    # It would measure on beside the process that resumes the run: the lock went with the parent.
    study = tiny_study(timings=BOTH_CACHES, samples=300)
    name = begin(study)
    with Command("measure", "--run", name) as command:
        command.wait_for(name, "samples")
        command.process.kill()
        command.process.wait()
        assert command.gone()
    assert runs.recorded(name, "processes") == set()
    assert len(runs.recorded(name, "samples")) < 6


class Handing(Executor):
    """Hands something else than what it was given to another executor."""

    def __init__(self, executor: Executor, work, *arguments) -> None:
        self._executor, self._work = executor, (work, *arguments)

    def submit(self, work, /, *arguments, **named) -> Future:
        return self._executor.submit(*self._work)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._executor.shutdown(wait, cancel_futures=cancel_futures)


def test_a_process_that_dies_is_told_in_a_line(begin):
    name = begin(tiny_study())
    with pytest.raises(UserError) as caught:
        record.record(name, tiny_study(), "cpu", Handing(record.fresh_processes(), os._exit, 9))
    assert str(caught.value) == (
        "the measuring process died (killed, or out of host memory); what was recorded of 'begun' is kept: "
        "`make measure RUN=begun` goes on"
    )
    assert not runs.load(name).complete


def test_a_full_disk_is_told_in_a_line_and_the_run_goes_on_when_there_is_room(begin, unlocked, monkeypatch, one_thread):
    from concurrent.futures import ThreadPoolExecutor

    study = tiny_study(replicates=1)
    name = begin(study)
    add, added = runs.add_part, []

    def full(*arguments):
        if len(added) == 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        added.append(arguments[1])
        add(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(runs, "add_part", full)
        with pytest.raises(UserError) as caught:
            record.record(name, study, "cpu", one_thread)
    assert str(caught.value) == (
        "the disk is full; what was recorded of 'begun' is kept: make room, then `make measure RUN=begun` goes on"
    )
    assert added == ["samples", "checks", "cases", "samples"]
    kept = runs.load(name).samples
    assert len(kept) == 40
    record.record(name, study, "cpu", ThreadPoolExecutor(1))
    run = runs.load(name)
    assert len(run.samples) == 60
    pd.testing.assert_frame_equal(run.samples.iloc[:40], kept)


def test_another_environment_refuses_to_go_on(begin, machine, one_thread, unlocked):
    name = begin(tiny_study(), environment=machine["environment"] | {"hash": 64 * "0"})
    with pytest.raises(
        EnvironmentChanged, match=r"^the environment changed since the run 'begun' began: start a new run$"
    ):
        record.record(name, tiny_study(), "cpu", one_thread)
    assert runs.load(name).samples.empty


def test_another_study_is_refused(begin, one_thread):
    name = begin(tiny_study())
    with pytest.raises(UserError, match=r"^the run 'begun' is of another study \(tiny\): choose another name$"):
        record.record(name, tiny_study(samples=6), "cpu", one_thread)
    assert runs.read_manifest(name)["study"]["samples"] == 5


def test_a_complete_run_is_not_measured_into(recorded, one_thread):
    with pytest.raises(UserError, match=r"^the run 'recorded' is complete: `make report RUN=recorded` renders it$"):
        record.record(recorded, tiny_study(), "cpu", one_thread)
    assert len(runs.load(recorded).samples) == 120


def test_two_do_not_measure_into_one_run(begin, one_thread):
    name = begin(tiny_study())
    with runs.lock(name), pytest.raises(UserError, match=r"^another process is measuring into the run 'begun'"):
        record.record(name, tiny_study(), "cpu", one_thread)


def test_cuda_without_a_gpu_is_refused_before_anything_is_written(data, monkeypatch):
    monkeypatch.setattr(record.devices.torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match=r"^device: cuda was asked for, but torch sees no NVIDIA GPU here"):
        record.record("one", tiny_study(device="cuda"), "cuda")
    assert not data.exists()


# Getting hold of a run


@pytest.fixture
def threaded(monkeypatch, unlocked):
    """`record` measures in this process, and surveys quickly."""
    from concurrent.futures import ThreadPoolExecutor

    monkeypatch.setattr(record, "fresh_processes", lambda: Quickly(ThreadPoolExecutor(1)))


def test_a_named_run_is_what_is_got(recorded):
    got = obtain.results(run=recorded, device="none")
    assert got.run.name == recorded
    assert got.study == tiny_study()


def test_what_was_cut_off_is_gone_on_with(begin, threaded, capsys):
    study = tiny_study(replicates=1)
    name = begin(study)
    assert obtain.measured("", study, "cpu") == name
    assert f"{name}: going on where it was cut off\n" in capsys.readouterr().err
    assert len(runs.load(name).samples) == 60


def test_a_named_run_that_was_cut_off_is_shown_as_it_is_or_gone_on_with(begin, threaded):
    study = tiny_study(replicates=1)
    name = begin(study)
    complete = obtain.results(run=name, device="auto")
    assert complete.run.complete
    assert len(complete.run.samples) == 60


def test_in_another_environment_a_new_run_begins(begin, machine, threaded, capsys):
    study = tiny_study(replicates=1)
    begin(study, environment=machine["environment"] | {"hash": 64 * "0"})
    name = obtain.measured("", study, "cpu")
    assert name.startswith("cpu-")
    assert runs.load(name).complete
    assert "begun: the environment changed since; beginning a new run\n" in capsys.readouterr().err


def test_the_newest_complete_run_of_a_study_is_taken_and_nothing_measured(begin, threaded, write_study, data):
    path = write_study(replicates=1)
    study = studies.load(path)
    for name, created in (("b", "2026-01-01"), ("a", "2026-01-02")):
        record.record(begin(study, name, created=created), study, "cpu", record.fresh_processes())
    begin(study, "c")
    begin(tiny_study(samples=7), "d")
    (data / "broken").mkdir()
    (data / "broken" / "manifest.json").write_text("{")
    for device in ("none", "auto", "cpu"):
        assert obtain.results(study=str(path), device=device).run.name == "a"
    with pytest.raises(UserError, match=r"^no run of the study 'tiny' is there and device=none measures nothing"):
        obtain.results(study=str(write_study(samples=9)), device="none")


def test_a_device_that_there_is_no_word_for(recorded):
    with pytest.raises(UserError, match=r"^unknown device 'gpu'; choose one of auto, cuda, cpu, none$"):
        obtain.results(run=recorded, device="gpu")


def test_a_study_file_is_measured_as_it_stands(data, write_study, threaded):
    path = write_study(replicates=1)
    got = obtain.results(study=str(path), device="cpu")
    assert got.run.manifest["study"] == studies.load(path).model_dump(mode="json")
    assert got.run.manifest["study"]["sweeps"]["seq_len"] == [yaml.safe_load(path.read_text())["sweeps"]["seq_len"]]


def test_the_baseline_takes_every_turn_twice_and_stays_out_of_the_table(recorded):
    run = runs.load(recorded)
    turns = run.samples.groupby("implementation").size()
    assert turns["control.sdpa.auto"] == turns["sdpa.auto"]
    table = infer(run)
    assert set(table["implementation"]) == {"sdpa.auto", "sdpa.flash", "sdpa.math"}
