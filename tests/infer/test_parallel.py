"""Many jobs are worked through by several processes, and nothing but the time that takes depends on them."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import synthetic
from forks import members

from attnlab.base.errors import UserError
from attnlab.infer import parallel, results
from attnlab.infer.families import Sides, judge_family
from attnlab.runs import read

STUDY = {
    "implementations": ["sdpa.auto", "sdpa.flash"],
    "timings": [{"clock": "eager", "cache": "warm"}],
    "sweeps": {"seq_len": [synthetic.AXES | {"seq_len": [64, 128]}]},
}


def family(seed: int) -> tuple[dict[str, Sides], float]:
    draw = np.random.default_rng(seed).normal(20, 1, (3, 4, 12))
    baseline, *candidates = ([*samples] for samples in draw)
    return {str(place): Sides(baseline, each, 0.01) for place, each in enumerate(candidates)}, 0.0


@pytest.mark.parametrize("processes", [1, 3])
def test_what_is_inferred_does_not_depend_on_the_processes(monkeypatch, processes):
    jobs = [family(seed) for seed in range(parallel.FEWEST)]
    monkeypatch.setattr(parallel.os, "cpu_count", lambda: processes)
    assert parallel.each(judge_family, jobs) == [judge_family(*job) for job in jobs]


def test_a_process_that_dies_is_told():
    with pytest.raises(UserError, match=r"a process that infers died \(killed, or out of memory\): start it again"):
        parallel.each(os._exit, [(9,)] * parallel.FEWEST)


BUSY = f"""
import signal, sys
from attnlab.infer import parallel
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs tests in the background ignores it
BEGUN = "import sys, time; sys.stderr.write('begun' + chr(10)); "
try:
    parallel.each(exec, [(f"{{BEGUN}}open({{sys.argv[1]!r}})",)] * {parallel.FEWEST})
except KeyboardInterrupt:
    sys.exit(130)
"""


KILLED, INTERRUPTED = (signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)


@pytest.mark.parametrize(("how", "status"), [KILLED, INTERRUPTED])
def test_no_process_is_left_behind(how, status, tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)  # a job opens it, and waits until it is open for writing
    busy = subprocess.Popen(
        [sys.executable, "-c", BUSY, gate], start_new_session=True, stderr=subprocess.PIPE, text=True
    )
    # Each process begins a job; one that is killed with its parent before that says which of its reads ended.
    forked = min(os.cpu_count(), parallel.MOST_PROCESSES)
    assert [busy.stderr.readline() for _ in range(forked)] == ["begun\n"] * forked
    assert len(members(busy.pid)) >= 2 + forked  # itself and the server that forks
    (busy.send_signal if how == signal.SIGKILL else lambda sent: os.killpg(busy.pid, sent))(how)
    # Ctrl-C waits for the jobs that were begun.
    with open(gate if how == signal.SIGINT else os.devnull, "r+b", buffering=0):
        said = busy.stderr.read()
        assert busy.wait() == status
    assert "Traceback" not in said
    deadline = time.monotonic() + 60
    while members(busy.pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert members(busy.pid) == []


def test_a_complete_run_in_use_is_inferred_from_once(monkeypatch):
    with synthetic.folders():
        synthetic.write("whole", synthetic.Recipe(study=STUDY))
        synthetic.write("cut", synthetic.Recipe(study=STUDY, shapes=1))
        whole, cut = results.load("whole"), results.load("cut")
        monkeypatch.setattr(results, "infer", lambda run, taken: run.samples)
        assert results.load("whole") is whole
        assert len(results.load("cut").table) > len(cut.table)
        seal = read.read_manifest("whole")["seal"]
        assert seal in results._IN_USE
        del whole
        assert seal not in results._IN_USE


def test_a_script_without_a_guard_infers_once(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "print('begun', flush=True)\n"
        "from attnlab.infer.parallel import FEWEST, each\n"
        "print(sum(each(pow, [(2, 3)] * FEWEST)))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["begun", str(8 * parallel.FEWEST)], done.stderr
