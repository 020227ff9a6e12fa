"""Fresh processes that measure: one for each job, ended with the process that started it."""

import multiprocessing
import os
import signal
from collections.abc import Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import suppress

from attnlab.base.parent import end_with_parent


def fresh_processes(environment: Mapping[str, str] | None = None) -> Executor:
    """An executor that runs one process at a time, a new one for each job: one GPU, strictly serial.

    Args:
        environment: variables that its processes have besides those of this process.
    """
    variables = dict(environment or {})
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, context, initializer=set_variables, initargs=(variables,), max_tasks_per_child=1)


def set_variables(variables: Mapping[str, str]) -> None:
    """Set variables of this process's environment."""
    os.environ.update(variables)


def stop(pool: Executor) -> None:
    """End the work of an executor, and the processes that this one started."""
    pool.shutdown(wait=False, cancel_futures=True)
    for child in multiprocessing.active_children():
        child.terminate()


def die_quietly() -> None:
    """Have this process, which a run started, end silently when the run is stopped."""
    # Ctrl-C reaches the whole process group. The parent explains it; a traceback from here would only confuse.
    # The lock on the run ends with it: a process that resumes the run must not find this one measuring.
    end_with_parent()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        return  # nohup, or a shell's background job: the parent goes on after Ctrl-C and needs this process
    with suppress(ValueError):  # not in the main thread, as where a test uses an executor of threads
        signal.signal(signal.SIGINT, signal.SIG_DFL)
