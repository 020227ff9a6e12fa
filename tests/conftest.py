"""Fixtures and helpers of all tests: folders for written files, one tiny recorded run, and functions that begin others.

Only functions that need torch import it.
"""

import importlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import starmap
from pathlib import Path
from unittest import mock

import ladders
import pytest
import yaml

from attnlab import __main__
from attnlab.base.errors import UserError
from attnlab.runs import read, schema, write
from attnlab.runs.dispatch import Choice, Dispatch
from attnlab.study import studies
from attnlab.study.shapes import Shape

# For torch, in this process and in those that tests start: several threads wait for each other by spinning.
os.environ.setdefault("OMP_NUM_THREADS", "1")

TINY = {
    "name": "tiny",
    "title": "Tiny",
    "device": "cpu",
    "implementations": ["sdpa.auto", "sdpa.flash", "sdpa.math"],
    "baseline": "sdpa.auto",
    "target": {"batch": 1, "heads": 4, "seq_len": 32, "head_dim": 64, "dtype": "float32"},
    "timings": [{"clock": "eager", "cache": "warm"}],
    "samples": 5,
    "replicates": 2,
    "panel": False,
    "sweeps": {"seq_len": {"batch": 1, "heads": 4, "seq_len": [16, 32, 64], "head_dim": 64, "dtype": "float32"}},
}
SAMPLE = ["implementation", *Shape.AXES, "clock", "cache", "replicate", "round"]
"""The columns that identify a sample."""
_TIMINGS = ("device warm", "cupti warm", "device cold", "eager warm", "eager cold")
EVERY_TIMING = [dict(zip(("clock", "cache"), timing.split(), strict=True)) for timing in _TIMINGS]


def tiny_study(**changes) -> studies.Study:
    """A study of 3 implementations at 3 short shapes on the CPU; `changes` replace its fields."""
    return studies.parse(TINY | changes, "tiny.yaml")


def told(call: Callable[[], object], error: type[Exception] = UserError) -> str:
    """The error message of a call, which has to be one line."""
    with pytest.raises(error) as caught:
        call()
    said = str(caught.value)
    assert "\n" not in said
    return said


def refused(capsys: pytest.CaptureFixture, *words: str) -> str:
    """Run a command that fails; returns its output, which has to be one line on stderr, without the prefix."""
    capsys.readouterr()
    try:
        failed = __main__.main([*words]) == 1
    except SystemExit as ended:  # raised by argparse
        failed = ended.code == 2
    out, error = capsys.readouterr()
    assert (failed, out, error[:9], error.find("\n")) == (True, "", "attnlab: ", len(error) - 1)
    return error[9:-1]


def wait_until(there: Callable[[], object], log: Path | None = None) -> None:
    """Wait until `there` returns something true."""
    deadline = time.monotonic() + 300
    while not there():
        assert time.monotonic() < deadline, log and log.read_text()
        time.sleep(0.005)


def keeping(graphs: list[str]) -> Callable:
    """A backend of torch.compile that adds the code of each graph to a list."""
    return lambda graph, _: graphs.append(graph.code) or graph.forward


def held(data: Path) -> dict[Path, bytes]:
    """The files of a data folder with their content, without locks and cached frames."""
    files = (path for path in data.rglob("*") if path.is_file() and path.name != ".lock")
    return {path: path.read_bytes() for path in files if path.parent.name != ".cache"}


def files_of(name: str) -> set[str]:
    """The names in a run's folder, without its cached frames."""
    return set(os.listdir(schema.folder(name))) - {".cache"}


def gated(call, shape, device="cpu"):
    """Check an implementation, or a function, by the worker's gate, before timing and again after it.

    Returns its status, and the rows of its checks.
    """
    import pandas as pd

    from attnlab.measuring.session.checks import check_all

    session, windows, subject = subjected(call, shape, device)
    rows = [row for moment in ("before", "after") for row in check_all(session, [subject], windows, moment)]
    return subject, pd.DataFrame(rows)


class HonestFor:
    """Right for this many calls; then it does as `otherwise`."""

    def __init__(self, calls: int, otherwise: Callable) -> None:
        self.left, self.otherwise = calls, otherwise

    def __call__(self, q, k, v, causal):
        from attnlab.measuring.subjects import sdpa

        self.left -= 1
        return (sdpa.sdpa if self.left >= 0 else self.otherwise)(q, k, v, causal)


def timed(call, shape, timing, device="cpu", samples=100):
    """Check an implementation, or a function, by the gate, and then time it in the rounds of one timing.

    Returns its status, and its samples.
    """
    import torch

    from attnlab.measuring.clocks import cuda_events
    from attnlab.measuring.gate.reference_check import ReferenceCheck
    from attnlab.measuring.session.checks import check_all
    from attnlab.measuring.session.rounds import Rounds

    session, windows, subject = subjected(call, shape, device, samples=samples)
    operands = subject.implementation.operands
    references = {operands: ReferenceCheck(windows, operands)}
    check_all(session, [subject], windows, "before", references)
    if subject.alive and device == "cuda":
        subject.attempt(lambda: cuda_events.capture(subject.case, torch.cuda.graph_pool_handle()))
    return subject, Rounds(session, timing, windows, references).take([subject])


def subjected(call, shape, device, **study):
    """A session, the inputs of a shape, and an implementation, or a function, bound to these inputs."""
    import torch

    from attnlab.measuring.clocks import cuda_events
    from attnlab.measuring.instruments.telemetry import Telemetry
    from attnlab.measuring.session.subject import Job, Session, Subject
    from attnlab.measuring.subjects.case import Case
    from attnlab.measuring.subjects.implementation import Implementation
    from attnlab.measuring.subjects.inputs import Windows

    alone = {"target": shape.axes, "sweeps": {"alone": shape.axes}}
    job = Job("none", tiny_study(**alone | study), device, 0, (shape,))
    session = Session(job, torch.device(device), Telemetry(torch.device("cpu")), 0.0)
    windows = Windows(shape, session.device, cuda_events.most_calls(shape) if device == "cuda" else 1)
    made = isinstance(call, Implementation)
    implementation = call if made else Implementation("kernel.saboteur", call, repeats=True)
    return session, windows, Subject(implementation, Case.of(implementation, windows))


def quick_survey(device: str, study: studies.Study) -> dict:
    """`worker.survey`, but without measuring the ceilings."""
    from attnlab.measuring.session import ceilings, estimate, worker

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimate, "LEAST_S", 1e-3)
        patch.setattr(ceilings, "CPU_MATRIX", 64)
        patch.setattr(ceilings, "_copy", small_copy)
        return worker.survey(device, study)


def small_copy(device) -> dict:
    """`ceilings._copy` with 1 MiB."""
    import torch

    from attnlab.measuring.session import ceilings

    source = torch.ones(2**20, dtype=torch.int8)
    target = torch.empty_like(source)
    return ceilings._ceiling(device, lambda: target.copy_(source), 2 * 2**20 / 1e9, "GB/s", "copy of 1 MiB")


@contextmanager
def torch_as_it_was():
    """Restores torch's settings, which locking the environment changes, and the handler of Ctrl-C."""
    import random

    import numpy as np
    import torch

    from attnlab.runs import tuned

    flags = (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled())
    attributes = [(torch.backends.cudnn, name) for name in ("allow_tf32", "benchmark", "deterministic")]
    attributes += [(torch.utils.deterministic, "fill_uninitialized_memory"), (tuned, "counted")]
    with ExitStack() as after:  # which restores the last one first
        after.callback(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT))
        for owner, name in attributes:
            after.callback(setattr, owner, name, getattr(owner, name))
        after.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        after.callback(torch.use_deterministic_algorithms, flags[0], warn_only=flags[1])
        after.callback(torch.set_rng_state, torch.get_rng_state())
        after.callback(np.random.set_state, np.random.get_state())
        after.callback(random.setstate, random.getstate())
        after.enter_context(mock.patch.dict(os.environ))
        yield


class Quickly(Executor):
    """Passes every job to another executor, except the survey: that is a quick one in this process."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def submit(self, work: Callable, /, *arguments, **named) -> Future:
        if work.__name__ != "survey":
            return self._executor.submit(work, *arguments, **named)
        done: Future = Future()
        with torch_as_it_was():
            done.set_result(quick_survey(*arguments))
        return done

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._executor.shutdown(wait, cancel_futures=cancel_futures)


@pytest.fixture(scope="session", autouse=True)
def session_data(tmp_path_factory) -> Path:
    """The data folder of session-wide fixtures and of tests without `data`: never the project's."""
    root = tmp_path_factory.mktemp("session")
    with pytest.MonkeyPatch.context() as patch:
        for folder in ("data", "reports", "exports", "figures", "cache"):
            patch.setenv(f"ATTNLAB_{folder.upper()}", os.fspath(root / folder))
        yield root / "data"


@pytest.fixture
def data(tmp_path, monkeypatch) -> Path:
    """An empty data folder for one test, next to empty folders of reports, exports and the cache."""
    for folder in ("data", "reports", "exports", "cache"):
        monkeypatch.setenv(f"ATTNLAB_{folder.upper()}", os.fspath(tmp_path / folder))
    return tmp_path / "data"


@pytest.fixture(scope="session")
def recorded(session_data) -> str:
    """The name of a run of `tiny_study`, recorded in this process. Read-only: all tests of a session share it."""
    from attnlab.measuring.session import record

    with pytest.MonkeyPatch.context() as patch, torch_as_it_was():
        patch.setenv("ATTNLAB_DATA", os.fspath(session_data))
        return record.record("recorded", tiny_study(), "cpu", Quickly(ThreadPoolExecutor(1)))


@pytest.fixture(scope="session")
def machine(recorded, session_data) -> schema.Manifest:
    """The fields of the manifest of `recorded` that describe this machine, for beginning other runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNLAB_DATA", os.fspath(session_data))
        manifest = read.read_manifest(recorded)
    own = {"name", "created", "finished", "order", "complete", "study", "missing_clocks", "profile", "files", "seal"}
    own |= {"planned_s"}  # one number for each shape of the study
    return {key: value for key, value in manifest.items() if key not in own}


@pytest.fixture
def begin(data, machine) -> Callable[..., str]:
    """Begins a run of a study in this test's data folder, as `record` does, without another survey of the machine."""

    def begin(study: studies.Study, name: str = "begun", **changes) -> str:
        missing = [str(timing) for timing in study.timings if timing.clock != "eager"]  # because the device is a CPU
        write.create(name, machine | {"study": study.model_dump(mode="json"), "missing_clocks": missing} | changes)
        return name

    return begin


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder with one kernel that replaces the project's kernels."""
    monkeypatch.setenv("ATTNLAB_KERNELS", os.fspath(tmp_path / "kernels"))
    return ladders.write(tmp_path / "kernels")


@pytest.fixture(scope="module")
def forks(tmp_path_factory):
    """The server process of `forks.py`."""
    from forks import Forks

    with Forks(tmp_path_factory.mktemp("forks")) as forks:
        yield forks


@pytest.fixture
def write_study(tmp_path) -> Callable[..., Path]:
    """A function that writes the tiny study with changes, or a given text, to a YAML file."""

    def write(text: str | None = None, **changes) -> Path:
        path = tmp_path / "written.yaml"
        stated = {key: value for key, value in (TINY | changes).items() if value is not ...}
        path.write_text(yaml.safe_dump(stated) if text is None else text)
        return path

    return write


@pytest.fixture
def one_thread() -> Executor:
    """An executor in this process, so that a test's patches hold in the job too."""
    return ThreadPoolExecutor(1)


@pytest.fixture
def unlocked():
    """For a test that locks the environment: restores all settings afterwards."""
    with torch_as_it_was():
        yield


@pytest.fixture
def threaded(monkeypatch, unlocked):
    """Makes `record` measure in this process with a quick survey."""
    from attnlab.measuring import processes

    monkeypatch.setattr(processes, "fresh_processes", lambda: Quickly(ThreadPoolExecutor(1)))


@pytest.fixture
def locked(unlocked):
    """A locked environment, restored afterwards."""
    from attnlab.measuring.instruments import environment

    environment.lock()


@pytest.fixture(scope="module")
def locked_gpu():
    """A locked environment for all tests of a module on a GPU, restored afterwards."""
    import torch

    from attnlab.measuring.instruments import devices, environment

    with torch_as_it_was():
        environment.lock()
        yield
        devices.release(torch.device("cuda"))


@pytest.fixture
def released():
    """Frees all GPU memory before the next test."""
    import torch

    from attnlab.measuring.instruments import devices

    yield
    devices.release(torch.device("cuda"))


def forget_choices(monkeypatch):
    """Clears `attend`'s table and tuned layouts, as in a new process; restores them afterwards."""
    from attnlab.serving import calls

    for name, value in {"table": None, "layouts": None, "prepared": {}, "last": calls.NOTHING}.items():
        monkeypatch.setattr(calls, name, value)


def choice(shape, implementation="sdpa.flash", **changes) -> Choice:
    """The choice of an implementation at a shape; `changes` replace its fields."""
    axes = {axis: value for axis, value in shape.axes.items() if axis in Choice.AXES}
    return Choice(**axes, implementation=implementation, **{"speedup": 1.2, "low": 1.1, "high": 1.3} | changes)


def table(*made, **fields) -> Dispatch:
    """A dispatch table with these choices, for this version of PyTorch."""
    import torch

    stated = {"run": "r", "seal": "s", "device": "NVIDIA H200", "torch": torch.__version__}
    return Dispatch(**stated | {"timing": "eager clock, warm cache"} | fields, choices=list(made))


@pytest.fixture
def by_table(monkeypatch, data):
    """Makes `attend` use a table of these choices (shape, implementation), as `make dispatch` would write it."""
    import torch

    from attnlab.runs import dispatch
    from attnlab.serving import calls
    from attnlab.study import ladder

    forget_choices(monkeypatch)

    def use(*made):
        sources = {name: ladder.hashes()[name] for _, name in made if name.startswith("kernel.")}
        dispatch.write(table(*starmap(choice, made), device=torch.cuda.get_device_name(), sources=sources))
        calls.use()

    return use


@pytest.fixture
def h200(monkeypatch, data):
    """Makes torch report an H200."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "NVIDIA H200")


@pytest.fixture
def write_module(tmp_path, monkeypatch) -> Iterator[Callable[..., Path]]:
    """A function that writes a user's module `own`, which Python then imports from the folder of `write_study`."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv("BESIDE_STUDY", raising=False)

    def write(text: str, beside: str = ".") -> Path:
        path = tmp_path / beside / "own.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        sys.path.append(os.fspath(tmp_path))
        forget()
        return path

    def forget() -> None:
        importlib.invalidate_caches()
        for name in [name for name in sys.modules if name == "own" or name.startswith(("folder", "beside_"))]:
            del sys.modules[name]

    yield write
    forget()
