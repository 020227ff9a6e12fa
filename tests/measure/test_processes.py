"""Measuring processes, mostly real ones: one for each job, their ends, and the events that end them."""

import ctypes
import faulthandler
import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing.util import Finalize
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from attnlab.measuring import processes, watch


@pytest.fixture
def pool(monkeypatch):
    monkeypatch.setattr(processes, "CONTEXT", multiprocessing.get_context("fork"))
    with processes.fresh_processes() as pool:
        yield pool


WAYS = {
    "exits": (lambda: os._exit(3), "ended its process (exit status 3)"),
    "aborts": (os.abort, "ended its process (SIGABRT)"),
    "reads what isn't there": (lambda: ctypes.string_at(0), "ended its process (SIGSEGV)"),
    "kills itself": (lambda: os.kill(os.getpid(), signal.SIGKILL), "ended its process (SIGKILL)"),
    "never returns": (threading.Event().wait, "did not return within 1 s"),
    "spoils": (Mock(side_effect=watch.Spoiled("changed what can't be put back")), "changed what can't be put back"),
    "breaks the device": (Mock(side_effect=torch.AcceleratorError("no\nmore")), "made the device fail: no"),
}


def call_three(way: str) -> list[str]:
    """Call 3 implementations, of which the second misbehaves; returns the outcome."""
    faulthandler.disable()  # pytest's handler, which a fork inherits
    went = []
    for name in ("first", "second", "third"):
        if why := watch.failure(name, "here"):
            went.append(f"{name} {why}")
            continue
        with watch.step(name, "here", 1.0 if way == "never returns" and name == "second" else 600.0):
            if name == "second":
                WAYS[way][0]()
            went.append(name)
    return went


@pytest.mark.parametrize("way", WAYS)
def test_an_implementation_that_ends_its_process_is_named_and_the_others_go_on(pool, way, capsys):
    assert pool.submit(call_three, way).result() == ["first", f"second {WAYS[way][1]}", "third"]
    assert capsys.readouterr().err == f"second {WAYS[way][1]}; the other implementations go on\n"


def killed_once(marker: Path) -> str:
    """Be killed within a step, but only the first time."""
    with watch.step("victim", "here"), suppress(FileExistsError):
        marker.touch(exist_ok=False)
        os.kill(os.getpid(), signal.SIGKILL)
    return watch.failure("victim", "here")


def test_an_implementation_is_not_blamed_for_one_kill_from_outside(pool, tmp_path):
    assert pool.submit(killed_once, tmp_path / "killed").result() == ""


def test_a_process_that_ends_between_steps_is_nobodys_fault_and_an_error_reaches_the_one_who_waits(pool):
    for work, error in (((os._exit, 1), BrokenProcessPool), ((divmod, 1, 0), ZeroDivisionError)):
        with pytest.raises(error):
            pool.submit(*work).result()


def test_each_job_gets_a_fresh_process_of_its_own():
    """A start takes seconds, so that the second job returns both its process ID and the variable."""
    both = "__import__('os').getpid(), __import__('os').environ['OMP_NUM_THREADS']"
    with processes.fresh_processes({"OMP_NUM_THREADS": "3"}) as pool:
        first, (second, threads) = pool.submit(os.getpid).result(), pool.submit(eval, both).result()
    assert (len({os.getpid(), first, second}), threads) == (3, "3")


def start_another(sending) -> None:
    """Start a measuring process, and be killed."""
    processes.CONTEXT = multiprocessing.get_context("fork")
    with processes.fresh_processes() as pool:
        pool.submit(time.sleep, 3600)
        while not multiprocessing.active_children():
            pass
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_ends_with_the_one_that_started_it():
    receiving, sending = multiprocessing.Pipe(duplex=False)
    parent = multiprocessing.get_context("fork").Process(target=start_another, args=(sending,))
    parent.start()
    sending.close()
    parent.join()
    assert parent.exitcode == -signal.SIGKILL
    with pytest.raises(EOFError):  # both hold the pipe, which closes when the last of them ends
        receiving.recv()


def test_a_process_that_does_not_exit_is_ended(pool, monkeypatch):
    monkeypatch.setattr(processes, "EXIT_S", 0.1)
    # The job adds a very long step to the end of its process.
    pool.submit(Finalize, None, time.sleep, (3600,), exitpriority=0).exception()
    assert not multiprocessing.active_children()


def test_what_is_stopped_leaves_no_job_to_wait_for(pool):
    before = set(threading.enumerate())
    jobs = [pool.submit(time.sleep, 3600) for _ in range(3)]
    processes.stop(pool)
    assert set(threading.enumerate()) <= before
    assert not multiprocessing.active_children()
    assert all(job.cancelled() or job.exception() for job in jobs)
