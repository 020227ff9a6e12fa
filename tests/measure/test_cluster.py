"""Measuring on a cluster of CPU workers: what comes home, and whatever may go wrong on the way."""

import logging
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import faulty
import pandas as pd
import pytest
from conftest import TINY, tiny_study

from attnlab import __main__ as command_line
from attnlab.base.errors import Outdated, UserError
from attnlab.measure.session import record
from attnlab.runs import read, schema, write
from attnlab.study.shapes import Shape

distributed = pytest.importorskip("distributed")
from attnlab.measure.cluster import credentials, fleet  # noqa: E402

SAMPLE = ["implementation", *Shape.AXES, "clock", "cache", "replicate", "round"]
HERE = Path(__file__).parent
FEW = {"implementations": ["sdpa.math"], "baseline": "sdpa.math", "samples": 2}


def environment(**more: str) -> dict[str, str]:
    """Of a worker: no run folder that it could share with the client, and this folder's modules."""
    modules = os.pathsep.join([str(HERE), str(HERE.parent), *filter(None, sys.path)])
    return os.environ | {"ATTNLAB_DATA": "/nowhere", "OMP_NUM_THREADS": "1", "PYTHONPATH": modules} | more


class Cluster:
    """A scheduler and workers, each a process of its own, as on several hosts; they end with the context."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.processes = folder, []

    def __enter__(self) -> "Cluster":
        file = self._folder / "scheduler.json"
        file.unlink(missing_ok=True)
        words = ["scheduler", "--port", "0", "--dashboard-address", ":0", "--scheduler-file", str(file)]
        self.scheduler = self._start(*words, "--host", "127.0.0.1")
        wait_until(file.is_file)
        self.address = distributed.Client(scheduler_file=str(file), set_as_default=False)
        self.client, self.address = self.address, self.address.scheduler.address
        return self

    def __exit__(self, *exception: object) -> None:
        with suppress(Exception):
            self.client.close()
        for process in self.processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def add(self, count: int = 1, nanny: bool = True, threads: int = 1, **more: str) -> None:
        """Start workers and wait for them."""
        before = len(self.client.nthreads())
        for _ in range(count):
            words = ["worker", self.address, "--nthreads", str(threads), "--no-dashboard", "--local-directory"]
            self._start(*words, str(self._folder), "--nanny" if nanny else "--no-nanny", **more)
        wait_until(lambda: len(self.client.nthreads()) >= before + count)

    def worker_pids(self) -> list[int]:
        return list(self.client.run(os.getpid).values())

    def _start(self, *words: str, **more: str) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-m", "dask", *words],
            env=environment(**more),
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    @contextmanager
    def fleet(self):
        with distributed.Client(self.address, set_as_default=False) as client, fleet.Fleet(client, "cpu") as executor:
            yield executor


def wait_until(there, patience_s: float = 60) -> None:
    deadline = time.monotonic() + patience_s
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def quiet():
    logging.getLogger("distributed").setLevel(logging.CRITICAL)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A cluster of two workers under nannies, which start a killed one again."""
    folder = tmp_path_factory.mktemp("two")
    (folder / "flags").mkdir()
    with Cluster(folder) as cluster:
        cluster.add(2, **{faulty.FLAGS: str(folder / "flags")})
        cluster.flags = folder / "flags"
        yield cluster


@pytest.fixture
def cluster(tmp_path):
    with Cluster(tmp_path) as cluster:
        yield cluster


@pytest.fixture
def instead(monkeypatch):
    """Have the measuring processes do something else."""
    return lambda work: monkeypatch.setattr(record.worker, "measure", work)


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
    assert set(os.listdir(schema.folder(name))) == {"manifest.json", *run.manifest["files"]}
    return run


def lines(capsys) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if line]


# Undisturbed


def test_a_run_on_two_workers_is_that_of_one(two, begin, capsys):
    study = tiny_study(stream=3)
    with two.fleet() as executor:
        record.record(begin(study), study, "cpu", executor)
    run = require_whole("begun", study)
    # What is compared was measured by one process, and the replicates by different workers.
    by_shape = run.samples.groupby([*Shape.AXES, "replicate"])["process"].nunique()
    assert (by_shape == 1).all()
    assert run.processes.groupby("replicate")["process"].nunique().tolist() == [1, 1]
    assert len(run.stream) == 2 * 3 * 3
    said = lines(capsys)
    begun = [line for line in said if "replicate" in line]
    assert len({line.partition(": replicate")[0] for line in begun}) == 2
    assert all(line.endswith(", 3 shapes") for line in begun)
    assert said[-1] == "begun: 6 of 6 shapes measured"


def test_a_replicate_alone_is_shared_out_and_its_stream_comes_last(two, begin):
    study = tiny_study(replicates=1, stream=2)
    with two.fleet() as executor:
        record.record(begin(study), study, "cpu", executor)
    run = require_whole("begun", study)
    assert run.samples["process"].nunique() == 2
    assert run.processes["process"].nunique() == 3
    assert len(run.stream) == 2 * 3


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


def test_a_block_is_home_as_soon_as_it_is_there(two, begin, instead, monkeypatch):
    instead(faulty.slowly)
    study = tiny_study(replicates=1, **FEW)
    take, running = write.take_part, []

    def taken(*arguments):
        take(*arguments)
        running.append(sum(card.begun is not None for card in executor._cards.values()))

    monkeypatch.setattr(write, "take_part", taken)
    with two.fleet() as executor:
        record.record(begin(study), study, "cpu", executor)
    require_whole("begun", study)
    assert running[:2] == [2, 2]


# Workers


@pytest.mark.parametrize("kills", [2, pytest.param(100, marks=pytest.mark.faults)])
def test_killed_workers_lose_and_double_nothing(two, begin, instead, kills, capsys):
    instead(faulty.slowly)
    study = tiny_study(replicates=2 if kills == 2 else 3, **FEW)
    draw, done, killed, runs = random.Random(kills), threading.Event(), Counter(), 0

    def blocks():
        return len(write.recorded(f"run-{runs}", "samples"))

    def kill():
        while not done.is_set() and killed.total() < kills:
            # Mostly soon after a block came home, and so in the middle of a shape; else while processes start.
            before, deadline = blocks(), time.monotonic() + 10
            while blocks() == before and time.monotonic() < deadline and not done.is_set():
                time.sleep(0.02)
            moment = "in a shape" if blocks() != before else "before one"
            time.sleep(draw.uniform(0, 0.5))
            with suppress(Exception):
                victim = draw.choice(two.worker_pids())
                if not done.is_set():
                    os.kill(victim, signal.SIGKILL)
                    killed[moment] += 1

    while killed.total() < kills:
        thread = threading.Thread(target=kill)
        thread.start()
        with two.fleet() as executor:
            record.record(begin(study, f"run-{runs}"), study, "cpu", executor)
        done.set()
        thread.join()
        done.clear()
        require_whole(f"run-{runs}", study)
        runs += 1
    said = lines(capsys)
    assert all(line.count("\n") == 0 and "Traceback" not in line for line in said)
    if kills > 10:
        with capsys.disabled():
            print(f"\n{killed.total()} workers killed, {dict(killed)}, in {runs} runs: every sample there, once")


def test_a_worker_that_is_killed_in_the_middle_of_a_shape_is_done_without(cluster, begin, instead, capsys):
    cluster.add(2, nanny=False)
    instead(faulty.slowly)
    study = tiny_study(timings=[{"clock": "eager", "cache": "warm"}, {"clock": "eager", "cache": "cold"}])
    name = begin(study)

    def kill():
        wait_until(lambda: write.recorded(name, "samples"))
        os.kill(cluster.worker_pids()[0], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    with cluster.fleet() as executor:
        record.record(name, study, "cpu", executor)
    thread.join()
    require_whole(name, study)
    (lost,) = [line for line in lines(capsys) if "lost" in line]
    assert re.fullmatch(r"\S+, tcp://127.0.0.1:\d+: its worker was lost; 1 left", lost)


def test_the_last_worker_lost_ends_the_run_in_a_line(cluster, begin, instead, monkeypatch):
    monkeypatch.setattr(fleet, "PATIENCE_S", 1.0)
    cluster.add(1, nanny=False)
    instead(faulty.slowly)
    name = begin(tiny_study())

    def kill():
        wait_until(lambda: write.recorded(name, "samples"))
        os.kill(cluster.worker_pids()[0], signal.SIGKILL)

    threading.Thread(target=kill).start()
    with pytest.raises(UserError) as caught, cluster.fleet() as executor:
        record.record(name, tiny_study(), "cpu", executor)
    assert str(caught.value) == (
        "no worker is left; what was recorded of 'begun' is kept: `make measure RUN=begun` goes on"
    )
    assert len(read.load(name).samples) > 0


@pytest.mark.faults
def test_a_worker_that_joins_takes_its_part(cluster, begin, instead, capsys):
    cluster.add(1)
    instead(faulty.slowly)
    study = tiny_study(replicates=4, **FEW)
    name = begin(study)

    def join():
        wait_until(lambda: write.recorded(name, "samples"))
        cluster.add(1)

    thread = threading.Thread(target=join)
    thread.start()
    with cluster.fleet() as executor:
        record.record(name, study, "cpu", executor)
    thread.join()
    require_whole(name, study)
    said = lines(capsys)
    assert any(line.endswith("joined, 2 now") for line in said)
    assert len({line.partition(": replicate")[0] for line in said if ": replicate" in line}) == 2


def test_workers_that_differ_are_refused_and_the_others_measure(cluster, begin, tmp_path, capsys):
    study = tiny_study(replicates=1, **FEW)
    other = tmp_path / "other" / "numpy-1.99.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 1.99\n")
    cluster.add(2)
    cluster.add(1, threads=2)
    path = os.pathsep.join([str(other.parent), environment()["PYTHONPATH"]])
    cluster.add(1, PYTHONPATH=path)
    bare = tmp_path / "bare" / "attnlab.py"
    bare.parent.mkdir()
    bare.write_text("raise ModuleNotFoundError(\"No module named 'attnlab'\")\n")
    cluster.add(1, PYTHONPATH=os.pathsep.join([str(bare.parent), environment()["PYTHONPATH"]]))
    with cluster.fleet() as executor:
        record.record(begin(study), study, "cpu", executor)
    require_whole("begun", study)
    said = sorted(line.partition(" is left out: ")[2] for line in lines(capsys) if "left out" in line)
    assert len(said) == 3
    assert said[0] == (
        "No module named 'attnlab'; PYTHONPATH has to lead to lib/ there, and its packages to be installed"
    )
    assert said[1] == "it has 2 threads, and one measures at a time: start it with --nthreads 1"
    assert re.fullmatch(r"its environment is another \(packages: numpy is 1.99, for the others [\d.]+\)", said[2])


@pytest.mark.usefixtures("unlocked")
def test_in_what_workers_may_differ():
    found = credentials.credentials("cpu")
    assert credentials.other_code(found) == ""
    assert credentials.difference(found, replace(found, card="other", host="another")) == ""
    assert credentials.difference(found, replace(found, device=found.device | {"name": "NVIDIA L4"})) == (
        f"it measures on NVIDIA L4, the others on {found.device['name']}"
    )
    other = replace(found, environment=found.environment | {"python": "3.0.1", "hash": "b"})
    assert credentials.difference(found, other) == (
        f"its environment is another (python is 3.0.1, for the others {found.environment['python']})"
    )
    assert credentials.other_code(replace(found, sources=found.sources | {"measure/clocks/ours.py": "0"})) == (
        "its code is not the client's (measure/clocks/ours.py)"
    )
    assert credentials.alike(found) == credentials.alike(replace(found, card="other")) != credentials.alike(other)


def test_workers_of_another_environment_than_the_runs_are_refused(two, begin, machine):
    name = begin(tiny_study(), environment=machine["environment"] | {"driver": "1.0", "hash": 64 * "0"})
    with pytest.raises(Outdated) as caught, two.fleet() as executor:
        record.record(name, tiny_study(), "cpu", executor)
    assert str(caught.value) == (
        "the environment of the workers is not the one that the run 'begun' began in (driver): start a new run"
    )


def test_workers_without_the_device_are_refused(two, capsys):
    with (
        pytest.raises(UserError, match=r"^none of the cluster's workers can measure: the lines above say why$"),
        distributed.Client(two.address, set_as_default=False) as client,
    ):
        fleet.Fleet(client, "cuda")
    said = lines(capsys)
    assert len(said) == 2
    assert all("UserError: device: cuda was asked for, but torch sees no NVIDIA GPU here" in line for line in said)


# Cards and processes


@pytest.fixture
def clean(two):
    for flag in two.flags.iterdir():
        flag.unlink()


@pytest.mark.usefixtures("clean")
def test_a_card_that_fails_is_done_without(two, begin, instead, capsys):
    instead(faulty.fails_once)
    study = tiny_study(**FEW)
    with two.fleet() as executor:
        record.record(begin(study), study, "cpu", executor)
    require_whole("begun", study)
    (left_out,) = [line for line in lines(capsys) if "left out" in line]
    assert re.search(
        r"is left out: CUDA error: an illegal memory access was encountered, at .*32.*, replicate \d; 1 left$", left_out
    )


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


@pytest.mark.faults
@pytest.mark.usefixtures("clean")
def test_a_process_that_dies_is_done_without(two, begin, instead, capsys):
    instead(faulty.dies_once)
    study = tiny_study(**FEW)
    with two.fleet() as executor:
        record.record(begin(study), study, "cpu", executor)
    require_whole("begun", study)
    assert any("is left out: the measuring process died, at" in line for line in lines(capsys))


# The scheduler and the client


def measure(cluster: Cluster, name: str) -> subprocess.Popen:
    """The command as a user gives it, in a process group of its own."""
    program = "import sys, faulty; from attnlab import __main__; from attnlab.measure.session import record; "
    program += "record.worker.measure = faulty.slowly; sys.exit(__main__.main(sys.argv[1:]))"
    return subprocess.Popen(
        [sys.executable, "-c", program, "measure", "--run", name, "--scheduler", cluster.address],
        env=environment(ATTNLAB_DATA=os.environ["ATTNLAB_DATA"]),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def ended(process: subprocess.Popen) -> tuple[int, list[str]]:
    said = process.communicate(timeout=120)[1]
    assert "Traceback" not in said, said
    return process.returncode, said.splitlines()


def test_a_lost_scheduler_ends_the_run_in_a_line(cluster, begin):
    cluster.add(2)
    study = tiny_study(replicates=3)
    name = begin(study)
    process = measure(cluster, name)
    wait_until(lambda: write.recorded(name, "samples"))
    cluster.scheduler.kill()
    status, said = ended(process)
    assert status == 1
    assert said[-1] == (
        f"attnlab: the scheduler is lost; what was recorded of '{name}' is kept: `make measure RUN={name} "
        "SCHEDULER=tcp://HOST:PORT` goes on"
    )
    assert len(read.load(name).samples) > 0


def test_a_client_that_is_killed_is_resumed(two, begin):
    study = tiny_study(replicates=2)
    name = begin(study)
    process = measure(two, name)
    wait_until(lambda: len(write.recorded(name, "samples")) >= 2)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    kept = read.load(name).samples
    # What still measured for the client that is gone stops, and nothing of it arrives any more.
    with two.fleet() as executor:
        record.record(name, study, "cpu", executor)
    run = require_whole(name, study)
    again = run.samples.merge(kept[SAMPLE], on=SAMPLE, how="inner")
    pd.testing.assert_frame_equal(
        again.sort_values(SAMPLE, ignore_index=True), kept.sort_values(SAMPLE, ignore_index=True), check_dtype=False
    )


def test_an_interrupted_client_says_so_and_its_workers_go_idle(two, begin):
    name = begin(tiny_study())
    process = measure(two, name)
    wait_until(lambda: write.recorded(name, "samples"))
    os.killpg(process.pid, signal.SIGINT)
    status, said = ended(process)
    assert status == 130
    assert said[-1] == (
        f"attnlab: interrupted; what was recorded of '{name}' is kept: `make measure RUN={name} "
        "SCHEDULER=tcp://HOST:PORT` goes on"
    )
    wait_until(lambda: not any(two.client.processing().values()))


def test_of_two_clients_on_one_run_one_is_refused(two, begin):
    name = begin(tiny_study(replicates=1))
    with write.lock(name):
        status, said = ended(measure(two, name))
    assert (status, said) == (
        1,
        [f"attnlab: another process is measuring into the run '{name}': wait for it, or name another"],
    )
    with two.fleet() as executor, write.lock(name), pytest.raises(UserError, match=r"^another process is measuring"):
        record.record(name, tiny_study(replicates=1), "cpu", executor)
    assert write.recorded(name, "processes") == set()


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


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("tcp://127.0.0.1:9", "nothing in 1 s"),
        ("tls://127.0.0.1:9", "TLS"),
        ("tcp://{web}", "nothing in 1 s"),
        ("http://{web}", "unknown address scheme"),
        ("tcp://{worker}", "what answers is a Worker"),
    ],
)
def test_a_scheduler_that_does_not_answer_is_named(two, web, data, write_study, capsys, monkeypatch, address, why):
    from attnlab.measure.cluster import start

    monkeypatch.setattr(start, "CONNECT_S", 1)
    worker = next(iter(two.client.nthreads())).removeprefix("tcp://")
    address = address.format(web=web, worker=worker)
    assert command_line.main(["measure", "--study", str(write_study()), "--scheduler", address]) == 1
    (said,) = lines(capsys)
    assert said.startswith(f"attnlab: no scheduler answers at {address} (")
    assert why in said
    assert said.endswith("): start one with `dask scheduler`")


def test_a_scheduler_without_workers_is_waited_for_and_named(cluster, monkeypatch):
    monkeypatch.setattr(fleet, "PATIENCE_S", 1.0)
    with pytest.raises(UserError, match=r"^the scheduler has no workers after 1 s: start them with"), cluster.fleet():
        pass


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
    program += "import attnlab.obtain, attnlab.measure.session.record"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_tiny_study_measures_where_the_device_fails():
    assert faulty.BAD in TINY["sweeps"]["seq_len"]["seq_len"]
