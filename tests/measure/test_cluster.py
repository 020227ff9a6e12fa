"""Measure on a cluster of CPU workers: the results that reach the client, and failures on the way."""

import logging
import os
import random
import re
import signal
import socket
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import cycle

import pandas as pd
import pytest
from conftest import SAMPLE, TINY, files_of, refused, tiny_study, told, wait_until
from forks import Fork

from attnlab import __main__ as command_line
from attnlab import measuring as measuring_package
from attnlab.base import parent
from attnlab.base.errors import UserError
from attnlab.measuring.session import record
from attnlab.measuring.session import worker as working
from attnlab.measuring.session.subject import Job
from attnlab.runs import read, schema, write
from attnlab.study.shapes import Shape

distributed = pytest.importorskip("distributed")
import hosts  # noqa: E402

from attnlab.measuring import cluster as clusters  # noqa: E402

KEPT = "what was recorded of 'begun' is kept: `make measure RUN=begun SCHEDULER=tcp://HOST:PORT` goes on"
FEW = {"implementations": ["sdpa.math"], "baseline": "sdpa.math", "samples": 2}
KILLS = 100


class Cluster:
    """A scheduler and workers, each a separate process, as on several hosts."""

    def __init__(self, forks, folder):
        self._forks, self.flags, self.workers = forks, folder / "flags", []
        self.flags.mkdir()
        file = folder / "scheduler.json"
        self.scheduler = forks.start(("call", "hosts", "scheduler", str(file)))
        self.scheduler.wait_for(lambda: file.is_file() and file.read_text().endswith("}"))
        self.client = distributed.Client(scheduler_file=str(file), set_as_default=False)
        self.address = self.client.scheduler.address

    def end(self):
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

    def lose(self, worker):
        """Kill a worker, but not its child processes, and wait until the scheduler has noticed."""
        before = len(self.client.nthreads())
        os.kill(worker.pid, signal.SIGKILL)
        self.workers.remove(worker)
        wait_until(lambda: len(self.client.nthreads()) < before)

    @contextmanager
    def fleet(self, wanted="cpu"):
        with distributed.Client(self.address, set_as_default=False) as client:
            yield clusters.Fleet(client, wanted)

    def measure(self, study, name):
        """Measure the rest of a run that was begun, and check that it is complete."""
        with self.fleet() as executor:
            record.record(name, study, "cpu", executor)
        return require_whole(name, study)


@pytest.fixture(autouse=True)
def quiet():
    logging.getLogger("distributed").setLevel(logging.CRITICAL)


@pytest.fixture(scope="module")
def shared(forks, tmp_path_factory):
    cluster = Cluster(forks, tmp_path_factory.mktemp("shared"))
    yield cluster
    cluster.end()


@pytest.fixture
def two(shared):
    """The shared cluster with 2 workers and no flags, as it was before other tests."""
    for flag in shared.flags.iterdir():
        flag.unlink()
    shared.add(2 - len(shared.workers))
    return shared


@pytest.fixture
def instead(monkeypatch):
    """A function that makes the measuring processes call `work` in place of `worker.take`."""
    return lambda work: monkeypatch.setattr(working, "take", work)


def require_whole(name, study):
    """Check that a run is complete and has every sample once, which `load` checks too; returns it."""
    run, cases = read.load(name), len(study.shapes) * len(study.subjects) * study.replicates
    assert run.complete
    assert len(run.samples) == cases * study.samples * len(study.timings)
    assert len(run.cases) == cases
    assert set(run.samples["process"]) <= set(run.processes["process"])
    assert files_of(name) == {"manifest.json", *run.manifest["files"]}
    return run


def lines(capsys) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if line]


# Undisturbed


def test_a_new_run_on_two_workers_is_that_of_one(two, data, write_study, capsys):
    words = ["measure", "--run", "new", "--study", str(write_study(stream=3)), "--device", "cpu"]
    assert command_line.main([*words, "--scheduler", two.address]) == 0
    run = require_whole("new", tiny_study(stream=3))
    assert len(run.manifest["planned_s"]) == 3
    assert run.manifest["command"].endswith(" SCHEDULER=tcp://HOST:PORT")
    # What is compared was measured by one process, and the replicates by different workers.
    by_shape = run.samples.groupby([*Shape.AXES, "replicate"])["process"].nunique()
    assert (by_shape == 1).all()
    assert run.samples.groupby("replicate")["process"].nunique().tolist() == [2, 2]
    assert len(run.stream) == 2 * 3 * 3
    said = lines(capsys)
    begun = [line.split(": replicate ") for line in said if ": replicate " in line]
    assert len({address for address, _ in begun}) == 2
    for shapes in ("1 shape", "2 shapes"):
        assert sorted(what[0] for _, what in begun if f", {shapes} from " in what) == ["0", "1"]
        assert len({address for address, what in begun if f", {shapes} from " in what}) == 2
    assert "new: 6 of 6 shapes measured" in said
    assert any(re.match(r"the cluster's dashboard: http://127.0.0.1:\d+/status$", line) for line in said)


def test_parts_that_a_run_takes_once_share_the_workers_with_each_other_and_with_replicates(two, begin):
    study = tiny_study(**FEW)
    name = begin(study)
    once = [Job(name, study, "cpu", 0, (), part) for part in ("part a", "part b")]
    jobs = [Job(name, study, "cpu", number, tuple(study.shapes)) for number in range(study.replicates)]
    with two.fleet() as executor:
        assert sorted(executor.map(hosts.meets, once)) == ["part a of 2", "part b of 2"]
        (two.flags / "part b").unlink()
        done = list(executor.map(hosts.meets, [*jobs, once[0]]))
        assert "part a of 2" in done[:2]
    assert len(write.recorded(name, "cases")) == len(study.shapes) * study.replicates


@pytest.mark.parametrize(("replicates", "workers"), [(1, 1), (5, 2), (5, 4), (3, 4), (1, 3), (5, 16)])
def test_every_shape_is_taken_once_in_each_replicate_by_different_workers(replicates, workers):
    lengths = [16, 32, 48, 64, 80, 96, 112]
    study = tiny_study(replicates=replicates, sweeps={"seq_len": TINY["target"] | {"seq_len": lengths}})
    jobs = [Job("one", study, "cpu", number, tuple(study.shapes)) for number in range(replicates)]
    waiting, taken, turns = list(clusters.cut(len, jobs, workers)), [Counter() for _ in range(workers)], Counter()
    once = clusters.Work(len, (replace(jobs[0], shapes=(), part="panel"),))
    assert clusters.choose([*waiting, once], Counter()) is once
    for worker in cycle(range(workers)):
        if not waiting:
            break
        work = clusters.choose(waiting, taken[worker])
        waiting.remove(work)
        taken[worker][work.number] += 1
        turns.update((shape, worker) for shape in work.arguments[0].shapes)
    for shape in study.shapes:
        counts = [count for (one, _), count in turns.items() if one == shape]
        assert (sum(counts), len(counts)) == (replicates, min(replicates, workers))


@pytest.mark.parametrize("measures", [False, pytest.param(True, marks=pytest.mark.faults)])
def test_a_local_cluster_has_a_worker_for_each_gpu_that_sees_it_alone(measures):
    with clusters.local(["GPU-a"]) as here, distributed.Client(here, set_as_default=False) as client:
        seen = client.run(lambda: (os.environ["CUDA_VISIBLE_DEVICES"], os.environ.get("OMP_NUM_THREADS")))
        assert [*seen.values()] == [("GPU-a", os.environ.get("OMP_NUM_THREADS"))]
        if measures:  # in a process of its own, though a worker under a nanny is a daemon
            assert clusters.Fleet(client, "cpu").device["kind"] == "cpu"


# Workers


@pytest.mark.faults
def test_killed_workers_lose_and_double_nothing(two, begin, instead, capsys):
    instead(hosts.slowly)
    study, draw, killed = tiny_study(replicates=3, **FEW), random.Random(KILLS), 0
    with ThreadPoolExecutor() as threads:
        while killed < KILLS:
            name = begin(study, f"run-{killed}")
            measured = threads.submit(two.measure, study, name)
            while killed < KILLS and not measured.done():
                # Mostly soon after a piece came home, and so in the middle of a shape; else while processes start.
                before, until = write.recorded(name, "samples"), time.monotonic() + 10
                while write.recorded(name, "samples") == before and time.monotonic() < until and not measured.done():
                    time.sleep(0.02)
                time.sleep(draw.uniform(0, 0.5))
                if not measured.done():
                    two.lose(draw.choice(two.workers))
                    two.add()
                    killed += 1
            measured.result()
    assert all("Traceback" not in line for line in lines(capsys))


def test_workers_and_the_scheduler_are_lost(forks, tmp_path, request, begin, instead, monkeypatch):
    cluster = Cluster(forks, tmp_path)
    request.addfinalizer(cluster.end)
    none = "no worker is there: `dask worker <scheduler> --nthreads 1` starts one"
    monkeypatch.setattr(clusters, "PATIENCE_S", 1.0)
    with cluster.fleet() as executor:
        assert told(lambda: executor.device) == none
    instead(hosts.waits)
    said = []
    monkeypatch.setattr(clusters.tqdm, "write", lambda words, **where: said.append(words))
    monkeypatch.setattr(clusters, "PIECE_SHAPES", 1)
    study, go_on = tiny_study(replicates=3, **FEW), cluster.flags / hosts.GO_ON
    (first,) = cluster.add()
    with ThreadPoolExecutor() as threads:
        measured = threads.submit(cluster.measure, study, begin(study, "one"))
        wait_until(lambda: write.recorded("one", "cases"))
        cluster.add()
        wait_until(lambda: any(line.endswith(": joined, 2 now") for line in said))
        cluster.lose(first)
        go_on.touch()
        measured.result()
    (lost,) = [line for line in said if "lost" in line]
    assert re.fullmatch(r"tcp://127.0.0.1:\d+ was lost, at replicate \d, \d shapes? from .+; 1 left", lost)
    assert len({line.partition(": replicate")[0] for line in said if ": replicate" in line}) == 2
    go_on.unlink()
    with ThreadPoolExecutor() as threads:
        measured = threads.submit(cluster.measure, study, begin(study, "two"))
        wait_until(lambda: write.recorded("two", "cases"))
        cluster.lose(cluster.workers[0])
        assert told(measured.result) == f"{none}; what was recorded of 'two' is kept: `make measure RUN=two` goes on"
    assert len(read.load("two").samples) > 0

    cluster.add(2)
    client = measuring(cluster, forks, begin(study, "begun"))
    client.wait_for(lambda: write.recorded("begun", "samples"))
    cluster.scheduler.kill()
    status, words = client.end()
    assert (status, words[-1]) == (1, f"attnlab: the scheduler is lost; {KEPT}")
    assert len(read.load("begun").samples) > 0


def test_workers_that_differ_are_left_out_and_the_others_measure(two, begin, tmp_path, capsys):
    five = TINY["sweeps"]["seq_len"] | {"seq_len": [16, 32, 48, 64, 80]}  # a piece for each worker
    study = tiny_study(replicates=1, sweeps={"seq_len": five}, **FEW)
    other = tmp_path / "numpy-1.99.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 1.99\n")
    differing = [*two.add(path=str(tmp_path)), *two.add(threads=2), *two.add(path="bare")]
    two.measure(study, begin(study))
    for worker in differing:
        two.lose(worker)
    said = sorted(line.partition(" is left out: ")[2] for line in lines(capsys) if "left out" in line)
    whys = (
        r"import of attnlab.measuring.cluster halted; .*; PYTHONPATH has to lead to lib/ there, and its packages .*",
        r"it has 2 threads, and one measures at a time: start it with --nthreads 1, at replicate .*",
        r"the environment changed since the run 'begun' began \(numpy is 1.99, was [\d.]+\): .*",
    )
    assert len(said) == len(whys)
    for words, why in zip(said, whys, strict=True):
        assert re.fullmatch(why, words)


def test_a_worker_with_other_code_or_without_the_device_is_left_out(two, monkeypatch, capsys):
    with two.fleet("cuda") as there:
        said = told(lambda: there.device, clusters.Unfit)
    assert said.startswith("cuda was asked for, but torch sees no NVIDIA")
    assert sum(" is left out: cuda was asked for" in line for line in lines(capsys)) == 2
    monkeypatch.setattr(clusters.sources, "digests", lambda module: {"measuring/worker.py": "another"})
    with two.fleet() as there:
        assert told(lambda: there.device, clusters.Unfit).startswith("its code is not the client's (")


def test_two_workers_do_not_measure_on_one_card_at_the_same_time(monkeypatch):
    monkeypatch.setattr(clusters.telemetry, "card", lambda device: "one card")
    again = ("cpu", clusters._device, ("cpu",))
    said = told(lambda: clusters._on_own_card("cpu", clusters._on_own_card, again), clusters.Unfit)
    assert said.startswith("another worker measures on its card")
    assert clusters._on_own_card(*again)["kind"] == "cpu"


# Processes that fail


@pytest.mark.parametrize(
    ("fault", "why"),
    [(hosts.fails_once, hosts.FAULT), (hosts.dies_once, "A process in the process pool was terminated abruptly .*")],
)
def test_a_worker_on_which_a_process_fails_is_left_out(two, begin, instead, capsys, fault, why):
    instead(fault)
    study = tiny_study(**FEW)
    two.measure(study, begin(study))
    (left_out,) = [line for line in lines(capsys) if "left out" in line]
    assert re.search(rf"is left out: {why}, at replicate \d, . shapes? from .*32.*; 1 left$", left_out)


def test_a_candidate_that_breaks_every_card_stops_the_run(two, begin, instead):
    instead(hosts.fails_always)
    study = tiny_study(replicates=1, **FEW)
    said = told(lambda: two.measure(study, begin(study)))
    assert said.startswith(f"the device failed ({hosts.FAULT}); what was recorded of 'begun' is kept")
    kept = read.load("begun")
    assert not kept.samples["seq_len"].eq(hosts.BAD).any()
    assert not kept.samples.empty


def test_work_at_which_workers_are_lost_again_and_again_stops_the_run(two, begin, instead, monkeypatch):
    monkeypatch.setattr(clusters, "LOSSES", 1)
    instead(hosts.kills_its_worker)
    study = tiny_study(replicates=1, **FEW)
    with pytest.raises(UserError, match=r"^the worker tcp://\S+ was lost; what was recorded of 'begun' is kept"):
        two.measure(study, begin(study))
    while two.workers:
        two.workers.pop().kill()
    wait_until(lambda: not two.client.nthreads())


def test_a_block_that_arrives_damaged_is_not_taken(begin):
    name = begin(tiny_study())
    with pytest.raises(OSError, match=r"arrived with other content than its name says$"):
        write.take_part(name, f"samples.r00-x.{64 * '0'}.parquet", b"damaged")
    assert write.recorded(name, "samples") == set()


# The scheduler and the client


def measuring(cluster, forks, name):
    """Start the user's command in its own process group; it waits amid the second shape, so that it can't finish."""
    command = ("command", "measure", "--run", name, "--scheduler", cluster.address)
    return forks.start(("call", "hosts", "waiting"), command)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_client_that_is_killed_or_interrupted_keeps_whole_shapes_and_is_resumed(two, forks, begin, capsys, how):
    study = tiny_study(replicates=1, **FEW)
    name = begin(study)
    client = measuring(two, forks, name)
    client.wait_for(lambda: len(write.recorded(name, "cases")) == 2)
    client.kill(how)
    status, said = client.end()  # and so gave up the lock on the run
    kept, cases = read.load(name).samples, write.recorded(name, "cases")
    assert {schema.of_shape(key) for key in write.recorded(name, "samples")} == cases
    assert len(cases) == 2
    if how == signal.SIGKILL:
        assert status == -signal.SIGKILL
    else:
        assert (status, said[-1]) == (130, f"attnlab: interrupted; {KEPT}")
        # Not `processing`, which is empty before the worker has ended its processes.
        wait_until(lambda: not any(two.client.run(lambda dask_worker: len(dask_worker.state.tasks)).values()))
    # What still measured for the client that is gone stops, and nothing of it arrives any more.
    run = two.measure(study, name)
    again = run.samples.merge(kept[SAMPLE], on=SAMPLE, how="inner")
    pd.testing.assert_frame_equal(
        again.sort_values(SAMPLE, ignore_index=True), kept.sort_values(SAMPLE, ignore_index=True), check_dtype=False
    )
    assert any(": replicate 0, 1 shape from " in line for line in lines(capsys))


def test_ctrl_c_that_a_finalizer_swallowed_still_ends_the_wait(two, monkeypatch):
    monkeypatch.setattr(parent, "_INTERRUPTED", [signal.SIGINT])
    with pytest.raises(KeyboardInterrupt):
        clusters.Fleet(two.client, "cpu").submit(os.getpid)


# Bad input


HOW_MANY = "give how many of this host's GPUs to measure on, from 1 on, or all"
BAD_INPUT = {
    "--gpus=0": f"GPUS=0: {HOW_MANY}",
    "--gpus=x": f"GPUS=x: {HOW_MANY}",
    "--gpus=-1": f"GPUS=-1: {HOW_MANY}",
    "--gpus=9": "GPUS=9: torch sees 0 NVIDIA GPUs here: leave GPUS out",
    "--gpus=all": "GPUS=all: torch sees 0 NVIDIA GPUs here: leave GPUS out",
    "--gpus=2 --device=cpu": "GPUS measures on GPUs, and DEVICE or the study says cpu: leave GPUS out",
    "--gpus=2 --scheduler=tcp://a:1": (
        "GPUS starts a cluster here, and SCHEDULER uses one that is there: give one of the two"
    ),
    "--scheduler=here": "SCHEDULER=here: give its address as `dask scheduler` prints it, tcp://HOST:PORT",
}


@pytest.mark.parametrize("words", BAD_INPUT)
def test_bad_input_is_refused_in_a_line(words, data, write_study, capsys):
    assert refused(capsys, "measure", "--study", str(write_study(device="cuda")), *words.split()) == BAD_INPUT[words]
    assert not data.exists()


def test_an_address_at_which_no_scheduler_answers_is_refused_in_a_line(two, data, write_study, capsys, monkeypatch):
    monkeypatch.setattr(clusters, "CONNECT_S", 1)
    worker = next(iter(two.client.nthreads()))
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        whys = {
            f"tcp://127.0.0.1:{silent.getsockname()[1]}": "nothing in 1 s",
            f"tcp://127.0.0.1:{closed.getsockname()[1]}": ".*",
            worker: "what answers is a Worker",
            "nonsense://a": ".*",
        }
        for address, why in whys.items():
            said = refused(capsys, "measure", "--study", str(write_study()), "--scheduler", address)
            stated = rf"no scheduler answers at {address} \({why}\): start one with `dask scheduler`"
            assert re.fullmatch(stated, said)
    assert not data.exists()


def test_without_dask_it_says_so(data, write_study, capsys, monkeypatch):
    for name in ("dask", "distributed"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, clusters.__name__)
    monkeypatch.delattr(measuring_package, "cluster")
    needs = (
        "measuring on several GPUs needs dask, which is not installed: `make measure` with GPUS or SCHEDULER sets it up"
    )
    assert refused(capsys, "measure", "--study", str(write_study()), "--scheduler", "tcp://a:1") == needs
