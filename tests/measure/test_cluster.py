"""Measuring on a cluster of CPU workers: what comes home, and whatever may go wrong on the way."""

import asyncio
import logging
import multiprocessing
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import faulty
import pandas as pd
import pytest
from conftest import SAMPLE, files_of, tiny_study
from forks import Fork, Forks

from attnlab import __main__ as command_line
from attnlab.base.errors import UserError
from attnlab.measuring.session import record
from attnlab.measuring.session.subject import Job
from attnlab.runs import read, schema, write
from attnlab.study.shapes import Shape

distributed = pytest.importorskip("distributed")
from attnlab.measuring.cluster import fleet, remote, run_sync  # noqa: E402

FEW = {"implementations": ["sdpa.math"], "baseline": "sdpa.math", "samples": 2}


class Cluster:
    """A scheduler and workers, each a process of its own, as on several hosts; they end with the context."""

    def __init__(self, forks: Forks, folder: Path) -> None:
        self._forks, self._folder = forks, folder
        self.flags = folder / "flags"
        self.flags.mkdir()
        self.workers: list[Fork] = []
        file = folder / "scheduler.json"
        self.scheduler = forks.start(("call", "hosts", "scheduler", str(file)))
        self.scheduler.wait_for(lambda: file.is_file() and file.read_text().endswith("}"))
        self.client = distributed.Client(scheduler_file=str(file), set_as_default=False)
        self.address = self.client.scheduler.address

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *exception: object) -> None:
        with suppress(Exception):
            self.client.close()
        for fork in [*self.workers, self.scheduler]:
            fork.kill()

    def add(self, count: int = 1, path: str = "", threads: int = 1) -> list[Fork]:
        """Start workers and wait for them."""
        before = self.client.nthreads().keys()
        step = ("call", "hosts", "worker", self.address, str(self.flags), path, threads)
        added = [self._forks.start(step) for _ in range(count)]
        self.workers += added
        wait_until(lambda: len(self.client.nthreads().keys() - before) >= count)
        return added

    def lose(self, worker: Fork) -> None:
        """Kill a worker, but not the processes that it started; returns when the scheduler has noticed."""
        before = len(self.client.nthreads())
        os.kill(worker.pid, signal.SIGKILL)
        self.workers.remove(worker)
        wait_until(lambda: len(self.client.nthreads()) < before)

    @contextmanager
    def started(self, *words: str, **environment: str):
        """A worker as a user starts it; it ends with the context."""
        before = self.client.nthreads().keys()
        command = [sys.executable, "-m", "dask", "worker", self.address, "--no-dashboard", *words]
        modules = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
        variables = os.environ | {"ATTNLAB_DATA": "/nowhere", "PYTHONPATH": modules} | environment
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(command, env=variables, cwd=self._folder, start_new_session=True, **quiet)
        try:
            wait_until(lambda: self.client.nthreads().keys() - before)
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            wait_until(lambda: not self.client.nthreads().keys() - before)

    @contextmanager
    def fleet(self):
        with distributed.Client(self.address, set_as_default=False) as client, fleet.Fleet(client, "cpu") as executor:
            yield executor

    def measure(self, study, name: str) -> schema.Run:
        """Measure into a run that was begun, which then is whole."""
        with self.fleet() as executor:
            record.record(name, study, "cpu", executor)
        return require_whole(name, study)


def wait_until(there, patience_s: float = 120) -> None:
    deadline = time.monotonic() + patience_s
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def meanwhile(act):
    """Do something in a thread while the context lasts, which ends after it."""
    thread = threading.Thread(target=act)
    thread.start()
    try:
        yield
    finally:
        thread.join()


@pytest.fixture(autouse=True)
def quiet():
    logging.getLogger("distributed").setLevel(logging.CRITICAL)


@pytest.fixture(scope="module")
def shared(forks, tmp_path_factory):
    """A cluster of two workers."""
    with Cluster(forks, tmp_path_factory.mktemp("shared")) as cluster:
        cluster.add(2)
        yield cluster


@pytest.fixture
def two(shared):
    """The shared cluster, without flags, with two workers whatever a test before did to it."""
    for flag in shared.flags.iterdir():
        flag.unlink()
    shared.add(2 - len(shared.workers))
    return shared


@pytest.fixture
def cluster(forks, tmp_path):
    with Cluster(forks, tmp_path) as cluster:
        yield cluster


@pytest.fixture
def instead(monkeypatch):
    """Have the measuring processes do something else."""
    return lambda work: monkeypatch.setattr(record, "_take", work)


def require_whole(name: str, study) -> schema.Run:
    """The run, complete, with every sample once."""
    run = read.load(name)
    assert run.complete
    assert not run.samples.duplicated(SAMPLE).any()
    timings = [timing for timing in study.timings if timing.clock == "eager"]
    count = len(study.shapes) * len(study.subjects) * study.samples * study.replicates * len(timings)
    assert len(run.samples) == count
    assert not run.cases.duplicated([*schema.CASE, "replicate"]).any()
    assert len(run.cases) == len(study.shapes) * len(study.subjects) * study.replicates
    assert set(run.samples["process"]) <= set(run.processes["process"])
    assert files_of(name) == {"manifest.json", *run.manifest["files"]}
    return run


def lines(capsys) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if line]


# Undisturbed


def test_a_run_on_two_workers_is_that_of_one(two, begin, capsys):
    study = tiny_study(stream=3)
    run = two.measure(study, begin(study))
    # What is compared was measured by one process, and the replicates by different workers.
    by_shape = run.samples.groupby([*Shape.AXES, "replicate"])["process"].nunique()
    assert (by_shape == 1).all()
    assert run.samples.groupby("replicate")["process"].nunique().tolist() == [2, 2]
    assert len(run.stream) == 2 * 3 * 3
    said = lines(capsys)
    begun = [line.split(": replicate ") for line in said if ": replicate " in line]
    assert {shapes for _, shapes in begun} == {f"{r}, {s}" for r in (0, 1) for s in ("1 shape", "2 shapes")}
    assert len({card for card, _ in begun}) == 2
    for shapes in ("1 shape", "2 shapes"):
        assert len({card for card, what in begun if what.endswith(f", {shapes}")}) == 2
    assert said[-1] == "begun: 6 of 6 shapes measured"


def test_a_worker_as_a_user_starts_it(cluster, begin):
    study = tiny_study(replicates=1, **FEW)
    with cluster.started("--nthreads", "1", "--nanny"):
        cluster.measure(study, begin(study))


def test_a_new_run_is_surveyed_by_a_worker(two, data, write_study, capsys):
    study = write_study(replicates=1, **FEW)
    words = ["measure", "--run", "new", "--study", str(study), "--device", "cpu", "--scheduler", two.address]
    assert command_line.main(words) == 0
    assert read.load("new").complete
    assert any(re.match(r"the cluster's dashboard: http://127.0.0.1:\d+/status$", line) for line in lines(capsys))
    manifest = read.read_manifest("new")
    assert len(manifest["planned_s"]) == 3
    assert manifest["command"].endswith(" SCHEDULER=tcp://HOST:PORT")


def test_what_a_run_takes_once_is_taken_on_several_cards_at_the_same_time(two):
    with two.fleet() as executor:
        assert list(executor.map(faulty.meets, ["part a", "part b"])) == ["part a of 2", "part b of 2"]


def test_while_a_part_is_taken_the_other_card_measures_replicates(two, begin):
    study = tiny_study(**FEW)
    name = begin(study)
    environment = read.read_manifest(name)["environment"]["hash"]
    jobs = [Job(name, study, "cpu", number, tuple(study.shapes), environment) for number in range(study.replicates)]
    with two.fleet() as executor:
        done = executor.map(faulty.meets, ["part a", *jobs])
        assert next(done) == "part a of 2"
        assert list(done) == [None] * len(jobs)
    assert len(write.recorded(name, "cases")) == len(study.shapes) * study.replicates


# Workers


@pytest.mark.parametrize("kills", [2, pytest.param(100, marks=pytest.mark.faults)])
def test_killed_workers_lose_and_double_nothing(two, begin, instead, kills, capsys):
    instead(faulty.slowly)
    study = tiny_study(replicates=3, **FEW)
    draw, done, killed, runs = random.Random(kills), threading.Event(), Counter(), 0

    def kill():
        while not done.is_set() and killed.total() < kills:
            # Mostly soon after a piece came home, and so in the middle of a shape; else while processes start.
            name = f"run-{runs}"
            before, deadline = write.recorded(name, "samples"), time.monotonic() + 10
            while write.recorded(name, "samples") == before and time.monotonic() < deadline and not done.is_set():
                time.sleep(0.02)
            moment = "in a shape" if write.recorded(name, "samples") != before else "before one"
            time.sleep(draw.uniform(0, 0.5))
            if not done.is_set():
                two.lose(draw.choice(two.workers))
                two.add()
                killed[moment] += 1

    while killed.total() < kills:
        name = begin(study, f"run-{runs}")
        with meanwhile(kill):
            two.measure(study, name)
            done.set()
        done.clear()
        runs += 1
    said = lines(capsys)
    assert all(line.count("\n") == 0 and "Traceback" not in line for line in said)
    if kills > 10:
        with capsys.disabled():
            print(f"\n{killed.total()} workers killed, {dict(killed)}, in {runs} runs: every sample there, once")


def test_workers_join_and_are_lost_until_none_is_left(cluster, begin, instead, monkeypatch):
    monkeypatch.setattr(fleet, "PATIENCE_S", 1.0)
    with (
        pytest.raises(UserError, match=r"^the scheduler has no idle workers after 1 s: start them with"),
        cluster.fleet(),
    ):
        pass
    instead(faulty.waits)
    two_timings = [{"clock": "eager", "cache": "warm"}, {"clock": "eager", "cache": "cold"}]
    study, said, say = tiny_study(timings=two_timings, replicates=3), [], fleet._say
    go_on = cluster.flags / faulty.GO_ON
    monkeypatch.setattr(fleet, "_say", lambda words: (said.append(words), say(words)))
    (first,) = cluster.add()

    def replace_first():
        try:
            wait_until(lambda: write.recorded("one", "samples"))
            cluster.add()
            wait_until(lambda: any(line.endswith(": joined, 2 now") for line in said))
            cluster.lose(first)
        finally:
            go_on.touch()

    with meanwhile(replace_first):
        cluster.measure(study, begin(study, "one"))
    go_on.unlink()
    (lost,) = [line for line in said if "lost" in line]
    assert re.fullmatch(r"\S+, tcp://127.0.0.1:\d+: its worker was lost; 1 left", lost)
    assert len({line.partition(": replicate")[0] for line in said if ": replicate" in line}) == 2

    def lose_all():
        try:
            wait_until(lambda: write.recorded("two", "samples"))
            cluster.lose(cluster.workers[0])
        finally:
            go_on.touch()

    with meanwhile(lose_all), pytest.raises(UserError) as caught:
        cluster.measure(study, begin(study, "two"))
    assert str(caught.value) == "no worker is left; what was recorded of 'two' is kept: `make measure RUN=two` goes on"
    assert len(read.load("two").samples) > 0


def test_workers_that_differ_are_refused_and_the_others_measure(two, begin, tmp_path, capsys):
    study = tiny_study(replicates=1, **FEW)
    other = tmp_path / "other" / "numpy-1.99.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 1.99\n")
    bare = tmp_path / "bare" / "attnlab.py"
    bare.parent.mkdir()
    bare.write_text("raise ModuleNotFoundError(\"No module named 'attnlab'\")\n")
    differing = [*two.add(path=str(other.parent)), *two.add(threads=2)]
    with two.started("--nthreads", "1", "--no-nanny", PYTHONPATH=str(bare.parent)):
        two.measure(study, begin(study))
    for worker in differing:
        two.lose(worker)
    said = sorted(line.partition(" is left out: ")[2] for line in lines(capsys) if "left out" in line)
    assert len(said) == 3
    assert said[0] == (
        "No module named 'attnlab'; PYTHONPATH has to lead to lib/ there, and its packages to be installed"
    )
    assert said[1] == "it has 2 threads, and one measures at a time: start it with --nthreads 1"
    assert re.fullmatch(r"its environment is another \(packages: numpy is 1.99, for the others [\d.]+\)", said[2])


def test_workers_without_the_device_are_refused(two, capsys):
    with (
        pytest.raises(UserError, match=r"^none of the cluster's workers can measure: the lines above say why$"),
        distributed.Client(two.address, set_as_default=False) as client,
    ):
        fleet.Fleet(client, "cuda")
    said = lines(capsys)
    assert len(said) == 2
    why = "UserError: cuda was asked for, but torch sees no NVIDIA GPU here"
    assert not [line for line in said if why not in line]


def test_a_worker_answers_while_it_stops_what_nobody_waits_for(monkeypatch):
    idle = SimpleNamespace(status=None, get_current_task=lambda: "task", state=SimpleNamespace(tasks={}))
    monkeypatch.setattr(remote, "get_worker", lambda: idle)
    with ThreadPoolExecutor() as threads:
        answered = threads.submit(lambda: asyncio.run(remote.answer(time.sleep, 2)))
        wait_until(multiprocessing.active_children)
        ended = remote.carry_out(pickle.dumps(remote.Task(time.sleep, (3600,), {}, "")))
        assert answered.result() is None
    assert isinstance(ended.error, BrokenProcessPool)


# Cards and processes


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (faulty.fails_once, "CUDA error: an illegal memory access was encountered"),
        (faulty.dies_once, "A process in the process pool was terminated abruptly while .*"),
    ],
)
def test_a_card_on_which_a_process_fails_is_done_without(two, begin, instead, capsys, fault, why):
    instead(fault)
    study = tiny_study(**FEW)
    two.measure(study, begin(study))
    (left_out,) = [line for line in lines(capsys) if "left out" in line]
    assert re.search(rf"is left out: {why}, at .*32.*, replicate \d; 1 left$", left_out)


def test_a_candidate_that_breaks_every_card_stops_the_run(two, begin, instead):
    instead(faulty.fails_always)
    study = tiny_study(replicates=1, **FEW)
    with pytest.raises(UserError) as caught, two.fleet() as executor:
        record.record(begin(study), study, "cpu", executor)
    assert str(caught.value).startswith(
        "the device failed (CUDA error: an illegal memory access was encountered); what was recorded of 'begun' is kept"
    )
    kept = read.load("begun")
    assert not kept.samples["seq_len"].eq(faulty.BAD).any()
    assert not kept.samples.empty


def test_a_block_that_arrives_damaged_is_not_taken(begin):
    name = begin(tiny_study())
    with pytest.raises(OSError, match=r"arrived with other content than its name says$"):
        run_sync.take(name, {f"samples.r00-x.{64 * '0'}.parquet": b"damaged"})
    assert write.recorded(name, "samples") == set()


# The scheduler and the client


def measuring(two: Cluster, forks: Forks, name: str) -> Fork:
    """The command as a user gives it, in a process group of its own; it doesn't come to its end."""
    waiting = ("call", "hosts", "waiting")
    return forks.start(waiting, ("command", "measure", "--run", name, "--scheduler", two.address))


def test_a_lost_scheduler_ends_the_run_in_a_line(cluster, forks, begin):
    cluster.add(2)
    name = begin(tiny_study(replicates=3))
    client = measuring(cluster, forks, name)
    client.wait_for(lambda: write.recorded(name, "samples"))
    cluster.scheduler.kill()
    status, said = client.end()
    assert status == 1
    assert said[-1] == (
        f"attnlab: the scheduler is lost; what was recorded of '{name}' is kept: `make measure RUN={name} "
        "SCHEDULER=tcp://HOST:PORT` goes on"
    )
    assert len(read.load(name).samples) > 0


def test_a_client_that_is_killed_is_resumed(two, forks, begin):
    study = tiny_study(replicates=2)
    name = begin(study)
    client = measuring(two, forks, name)
    client.wait_for(lambda: len(write.recorded(name, "samples")) >= 2)
    client.kill()
    assert client.end()[0] == -signal.SIGKILL  # and so gave up the lock on the run
    kept = read.load(name).samples
    # What still measured for the client that is gone stops, and nothing of it arrives any more.
    run = two.measure(study, name)
    again = run.samples.merge(kept[SAMPLE], on=SAMPLE, how="inner")
    pd.testing.assert_frame_equal(
        again.sort_values(SAMPLE, ignore_index=True), kept.sort_values(SAMPLE, ignore_index=True), check_dtype=False
    )


def test_an_interrupted_client_says_so_keeps_whole_shapes_and_goes_on_with_the_others(cluster, forks, begin, capsys):
    cluster.add(1)
    study = tiny_study(replicates=1, **FEW)
    assert len(study.shapes) > 2  # of one piece
    name = begin(study)
    client = measuring(cluster, forks, name)
    client.wait_for(lambda: write.recorded(name, "cases"))
    assert any(cluster.client.processing().values())  # they came home before the piece had ended
    client.kill(signal.SIGINT)
    status, said = client.end()
    assert status == 130
    assert said[-1] == (
        f"attnlab: interrupted; what was recorded of '{name}' is kept: `make measure RUN={name} "
        "SCHEDULER=tcp://HOST:PORT` goes on"
    )
    # Not `processing`, which is empty before the worker has ended its processes.
    wait_until(lambda: not any(cluster.client.run(lambda dask_worker: len(dask_worker.state.tasks)).values()))
    kept = write.recorded(name, "cases")
    assert len(kept) == 1
    assert {schema.of_shape(key) for key in write.recorded(name, "samples")} == kept
    cluster.measure(study, name)
    left = len(study.shapes) - len(kept)
    assert any(line.endswith(f": replicate 0, {left} shape{'s' * (left != 1)}") for line in lines(capsys))


# Bad input


BAD_INPUT = {
    ("--gpus", "0"): "GPUS=0: give how many of this host's GPUs to measure on, from 1 on, or all",
    ("--gpus", "x"): "GPUS=x: give how many of this host's GPUs to measure on, from 1 on, or all",
    ("--gpus", "-1"): "GPUS=-1: give how many of this host's GPUs to measure on, from 1 on, or all",
    ("--gpus", "9"): "GPUS=9: torch sees 0 NVIDIA GPUs here: leave GPUS out",
    ("--gpus", "all"): "GPUS=all: torch sees 0 NVIDIA GPUs here: leave GPUS out",
    ("--gpus", "2", "--device", "cpu"): "GPUS measures on GPUs, and DEVICE or the study says cpu: leave GPUS out",
    ("--gpus", "2", "--scheduler", "tcp://a:1"): (
        "GPUS starts a cluster here, and SCHEDULER uses one that is there: give one of the two"
    ),
    ("--scheduler", "here"): "SCHEDULER=here: give its address as `dask scheduler` prints it, tcp://HOST:PORT",
}


@pytest.mark.parametrize("words", BAD_INPUT)
def test_bad_input_is_refused_in_a_line(words, data, write_study, capsys):
    options = [word.replace("--gpus", "--gpus=") for word in words]
    joined = " ".join(options).replace("= ", "=").split()
    assert command_line.main(["measure", "--study", str(write_study(device="cuda")), *joined]) == 1
    assert lines(capsys) == [f"attnlab: {BAD_INPUT[words]}"]
    assert not data.exists()


@pytest.fixture
def web():
    """The address of a web server, as of Dask's dashboard."""
    silent = type("Silent", (BaseHTTPRequestHandler,), {"log_message": lambda *_: None})
    with ThreadingHTTPServer(("127.0.0.1", 0), silent) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def test_without_dask_it_says_so_and_all_else_works(data, write_study, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    words = ["measure", "--study", str(write_study()), "--scheduler", "tcp://a:1"]
    assert command_line.main(words) == 1
    (said,) = lines(capsys)
    assert said == (
        "attnlab: measuring on several GPUs needs distributed, which is not installed: `make measure` with GPUS or "
        "SCHEDULER sets it up"
    )
    program = "import sys; sys.modules['distributed'] = sys.modules['dask'] = None; "
    program += "import attnlab.measurement, attnlab.measuring.session.record"
    subprocess.run([sys.executable, "-c", program], check=True)
