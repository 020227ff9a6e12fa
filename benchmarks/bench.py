"""Prints the costs of attnlab itself on this machine: wall time, CPU time and peak memory of each benchmark.

    PYTHONPATH=lib python benchmarks/bench.py    # everything but the tests: some minutes
    python benchmarks/bench.py tests     # the test suite, as `make test` runs it
    python benchmarks/bench.py render    # any other benchmark alone

CPU time is the user and system time of all processes that a benchmark starts; on Linux, orphans count too. Peak memory
is the largest sum over these processes, with shared pages counted once. No result is kept.
"""

import ctypes
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from published import RUN

from attnlab import frames, measurement, report
from attnlab.base import paths
from attnlab.base.errors import UserError
from attnlab.study import implementations, studies

TEN = Path(__file__).with_name("ten.yaml")
EVERY_S = 0.05
CASES, REPLICATES, ROUNDS = (100, 1000), 5, 100
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


class Cost(NamedTuple):
    """The cost of one benchmark; memory is 0 KiB if the system doesn't report it."""

    wall_s: float
    cpu_s: float
    peak_kib: int


def main(asked: str = "") -> None:
    """Run each benchmark, or the named one, in a separate process. Print a table, a row as each ends."""
    _adopt_orphans()
    print(f"{'':<48} {'seconds':>8} {'CPU s':>8} {'peak MiB':>9}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        kept = {"ATTNLAB_REPORTS": f"{folder}/reports"}
        for title, more, *words in _benchmarks(folder):
            if words[0] == asked or (not asked and words[0] != "tests"):
                found = cost(title, kept | more, *words)
                peak = f"{found.peak_kib / 1024:,.0f}" if found.peak_kib else "n/a"
                print(f"{title:<48} {found.wall_s:>8.1f} {found.cpu_s:>8.1f} {peak:>9}", flush=True)


def _benchmarks(folder: str) -> list[tuple]:
    """The title of each benchmark, its additional environment variables, and its command."""
    device, study = _study()
    return [
        (f"read {RUN}", {}, "read"),
        (f"infer from {RUN}", {}, "infer"),
        (f"render {RUN}", {}, "render"),
        *((f"infer from {cases} cases, {REPLICATES} x {ROUNDS} samples", {}, "cases", str(cases)) for cases in CASES),
        (f"measure {study} on {device}", {"ATTNLAB_DATA": f"{folder}/data"}, "measure", device, study),
        ("the tests", {}, "tests"),
    ]


def cost(title: str, environment: dict[str, str], *words: str) -> Cost:
    """Run one benchmark in a fresh interpreter; exit if it fails."""
    print(f"{title} ...", file=sys.stderr, flush=True)
    started, before_s = time.monotonic(), _children_s()
    command = [sys.executable, __file__, "--here", *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=os.environ | environment)
    peak = _Peak(process)
    peak.start()
    failed = process.wait()
    wall_s = time.monotonic() - started
    peak.join()
    _wait_for_orphans()
    if failed:
        sys.exit(failed)
    return Cost(wall_s, _children_s() - before_s, peak.kibibytes)


def _adopt_orphans() -> None:
    """Become the parent of orphaned descendants, so that their CPU time counts."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _wait_for_orphans() -> None:
    try:
        while True:
            os.wait()
    except ChildProcessError:
        return


def _children_s() -> float:
    """CPU time in s of all ended children and their descendants."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class _Peak(threading.Thread):
    """Samples the memory of all descendants of this process, shared pages once, and keeps the peak."""

    def __init__(self, process: subprocess.Popen) -> None:
        super().__init__(daemon=True)
        self.process, self.kibibytes = process, 0

    def run(self) -> None:
        while self.process.returncode is None:
            self.kibibytes = max(self.kibibytes, sum(map(_held, _below(os.getpid()))))
            time.sleep(EVERY_S)


def _below(pid: int) -> list[int]:
    """The children of a process; none if it ended or the system doesn't report them."""
    try:
        return [
            int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()
        ]
    except OSError:
        return []


def _held(pid: int) -> int:
    """Memory of a process and its descendants, in KiB."""
    try:
        pages = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        pages = ""
    own = sum(int(line.split()[1]) for line in pages.splitlines() if line.startswith("Pss:"))
    return own + sum(map(_held, _below(pid)))


def _study() -> tuple[str, str]:
    """The device and the study that `measure` uses on this machine."""
    from attnlab.measuring.instruments import devices  # here, so that only this benchmark imports torch

    try:
        devices.resolve("cuda")
    except UserError:
        return "cpu", "quick"
    return "cuda", str(TEN)


def read() -> None:
    """Read the recorded run and check it against its manifest."""
    frames.load(RUN)


def infer() -> None:
    """Summarize and compare the recorded run, without cached frames."""
    run = frames.load(RUN)
    baseline = run.manifest["study"]["baseline"]
    samples = run.samples.assign(run="")  # not a run in data/, so that no frame is cached
    frames.summarize(samples)
    frames.compare(samples, baseline)


def cases(count: str) -> None:
    """Summarize and compare `count` synthetic cases."""
    samples = made_up(int(count))
    assert len(frames.summarize(samples)) == int(count)
    frames.compare(samples, implementations.SDPA[0])


def made_up(count: int) -> pd.DataFrame:
    """Synthetic samples of `count` cases, in µs, with noise per process and autocorrelated noise per sample."""
    names = list(implementations.SDPA)
    batches = list(range(1, count // len(names) + 1))
    keys = ["implementation", "batch", "replicate", "round"]
    rows = pd.MultiIndex.from_product([names, batches, range(REPLICATES), range(ROUNDS)], names=keys)
    noise = np.random.default_rng(0).standard_normal((len(rows) // ROUNDS, ROUNDS))
    noise += noise[:, :1] + np.roll(noise, 1, axis=1)
    axes = {"heads": 8, "seq_len": 512, "head_dim": 64}
    return rows.to_frame(index=False).assign(**axes, launches=8, latency_us=50 * np.exp(0.01 * noise.ravel()))


def render() -> None:
    """Render the recorded run."""
    report.render(RUN)


def tests() -> None:
    """Run the test suite in place of this process."""
    words = [sys.executable, "-m", "pytest", "--ignore=tests/browser", "--numprocesses", "2", "--dist", "loadfile"]
    os.chdir(paths.ROOT)
    os.environ.pop("ATTNLAB_REPORTS", None)
    os.execv(sys.executable, words)


def measure(device: str, study: str) -> None:
    """Measure a study into a temporary run."""
    measurement.measured("", studies.load(study), device)


COMMANDS: dict[str, Callable[..., None]] = {
    "read": read,
    "infer": infer,
    "cases": cases,
    "render": render,
    "measure": measure,
    "tests": tests,
}

if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--here", name, *arguments]:
            COMMANDS[name](*arguments)
        case [] | [("read" | "infer" | "cases" | "render" | "measure" | "tests")]:
            main(*sys.argv[1:])
        case _:
            sys.exit(f"bench.py takes nothing, or one of {', '.join(COMMANDS)}")
