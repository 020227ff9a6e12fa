"""Start, watch and stop the processes that measure. Each ends with its parent process."""

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

import torch
from tqdm import tqdm

from attnlab.base.parent import ctrl_c_blocked, end_with_parent
from attnlab.measuring import watch

POLL_S = 0.05
EXIT_S = 10.0
"""Seconds that a process may take to exit after its job: threads of an implementation may never end."""
FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT)
"""Exit codes of processes that a person, a scheduler or the out-of-memory killer may have ended."""
CONTEXT: multiprocessing.context.BaseContext = multiprocessing.get_context("spawn")
"""Processes are spawned, since a fork of a process that has used CUDA can't use CUDA."""


class _Processes(ThreadPoolExecutor):
    """An executor that starts a new process for each job, and another if an implementation ended that process."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        super().__init__(1)
        self._environment = dict(environment)
        self.stopped = False

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future:
        """Submit a call. Its process blocks Ctrl-C until `begin`: during imports it would print a traceback."""
        with ctrl_c_blocked():
            return super().submit(self._result, pickle.dumps((call, arguments, named)))

    def _result(self, packed: bytes) -> Any:
        failures: watch.Failures = {}
        victim = None
        while not self.stopped:
            (value, error), step, code = _process(packed, self._environment, failures)
            if error is None:
                return value
            why = _blame(error, step, code)
            if not why or step.key in failures:
                raise error
            if code in FROM_OUTSIDE and victim != step.key:
                victim = step.key  # blamed only if it happens again
                continue
            failures[step.key] = why
            tqdm.write(f"{step.key[0]} {why}; the other implementations go on", file=sys.stderr)
        raise BrokenProcessPool("the measuring process was stopped")


def fresh_processes(environment: Mapping[str, str] | None = None) -> Executor:
    """An executor that runs one process at a time, a new one for each job: one GPU, strictly serial.

    A job may run more than once: if an implementation ends its process, the job begins again without it. The processes
    have the variables of `environment` in addition to those of this process.
    """
    return _Processes(environment or {})


def begin(variables: Mapping[str, str]) -> None:
    """Prepare this process for its job, with these variables. It ends with its parent, and silently on Ctrl-C."""
    # The parent's lock on the run ends with it. A process that resumes the run must not find this one measuring.
    end_with_parent()
    os.environ.update(variables)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # `stop` sends it
    # Ctrl-C reaches the whole process group, and the parent explains it. Under nohup, or as a shell's background job,
    # the parent ignores it and needs this process.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


def stop(pool: Executor) -> None:
    """Stop an executor and all child processes of this process; returns when they have ended."""
    if isinstance(pool, _Processes):
        pool.stopped = True  # it doesn't replace the processes that end now
    # In a separate thread, since `shutdown` returns only when they have ended.
    ending = threading.Thread(target=pool.shutdown, kwargs={"cancel_futures": True})
    with ctrl_c_blocked():
        ending.start()
        while ending.is_alive():
            for child in multiprocessing.active_children():
                child.terminate()
            ending.join(POLL_S)


def _process(
    packed: bytes, environment: Mapping[str, str], failures: watch.Failures
) -> tuple[tuple[Any, BaseException | None], watch.WatchedStep, int]:
    """Run a pickled call in a fresh process.

    Returns its value or error, its last step, and its exit code: 0 if it was killed since a step exceeded its limit.
    """
    board = CONTEXT.RawValue(watch.WatchedStep)
    receiving, sending = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_answer, args=(sending, packed, environment, board, failures))  # type: ignore[attr-defined]
    main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        process.start()  # without the user's script, which would measure again
    finally:
        sys.modules["__main__"] = main
    sending.close()
    died = None, BrokenProcessPool("the measuring process died")
    answer, ends = None, False
    while answer is None and not ends:
        ends = not process.is_alive()  # asked first, so that an answer sent before its end is read
        with suppress(EOFError):
            if receiving.poll(0 if ends else POLL_S):
                answer = pickle.loads(receiving.recv_bytes())
        step = watch.WatchedStep.from_buffer_copy(board)
        if step.overdue:
            process.kill()
            process.join()
            return died, step, 0
    process.join(EXIT_S)
    process.kill()
    while process.exitcode is None:  # `stop` may be polling it at this moment
        process.join(POLL_S)
    return answer or died, step, process.exitcode


def _answer(
    sending: Connection, packed: bytes, environment: Mapping[str, str], board: Any, failures: watch.Failures
) -> None:
    begin(environment)
    watch.begin(board, failures)
    try:
        call, arguments, named = pickle.loads(packed)
        answer = pickle.dumps((call(*arguments, **named), None))
    except Exception as error:
        error.add_note(traceback.format_exc())  # pickling drops the traceback
        answer = pickle.dumps((None, error))
    sending.send_bytes(answer)


def _blame(error: BaseException, step: watch.WatchedStep, code: int) -> str:
    """Describe the fault of the last step's implementation; "" if it wasn't at fault."""
    if not step.words:
        return ""
    if isinstance(error, watch.Spoiled):
        return str(error)
    if isinstance(error, torch.AcceleratorError):  # it may surface only in the next step
        return f"made the device fail: {str(error).splitlines()[0]}"
    if not isinstance(error, BrokenProcessPool) or not step.within:
        return ""
    if step.overdue:
        return f"did not return within {step.limit_s:.0f} s"
    how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
    return f"ended its process ({how})"
