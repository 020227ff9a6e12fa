"""Fresh processes that measure: one for each job, ended with the process that started it."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from typing import Any

from attnlab.base.parent import ctrl_c_blocked, end_with_parent

POLL_S = 0.05


class _Processes(ProcessPoolExecutor):
    """Its processes take Ctrl-C from `begin` on: while they import what they need, it would print a traceback."""

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future:
        """Submit a call, which starts a process, or the thread that starts the others."""
        with ctrl_c_blocked():
            return super().submit(call, *arguments, **named)


def fresh_processes(environment: Mapping[str, str] | None = None) -> Executor:
    """An executor that runs one process at a time, a new one for each job: one GPU, strictly serial.

    Args:
        environment: variables that its processes have besides those of this process.
    """
    context = multiprocessing.get_context("spawn")
    return _Processes(1, context, initializer=begin, initargs=(dict(environment or {}),), max_tasks_per_child=1)


def begin(variables: Mapping[str, str]) -> None:
    """Prepare this process for its job: it ends with the one that started it, and on Ctrl-C without a word.

    Args:
        variables: what its environment has besides that of the one that started it.
    """
    # The lock on a run ends with the process that holds it: one that resumes the run must not find this one measuring.
    end_with_parent()
    os.environ.update(variables)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # by which `stop` ends it
    # Ctrl-C reaches the whole process group, and the parent explains it. Under nohup, or as a shell's background job,
    # the parent goes on after it and needs this process.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


def stop(pool: Executor) -> None:
    """End the work of an executor, and the processes that this one started; returns when they have ended."""
    # Without a thread that waits for its end, an executor whose process is just exiting is freed before it has given up
    # the job that comes next, and this process then waits for that job as it exits.
    ending = threading.Thread(target=pool.shutdown, kwargs={"cancel_futures": True})
    with ctrl_c_blocked():
        ending.start()
        while ending.is_alive():
            for child in multiprocessing.active_children():
                child.terminate()
            ending.join(POLL_S)
