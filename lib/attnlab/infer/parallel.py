"""Works through jobs in processes beside this one; the results are those of one process."""

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from itertools import starmap
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from typing import Any, TypeVar

from attnlab.base.errors import UserError
from attnlab.base.parent import ctrl_c_blocked, end_with_parent

T = TypeVar("T")
FEWEST = 64
"""So few jobs take less time than starting processes does."""
DIED = "a process that infers died (killed, or out of memory): start it again"
MOST_PROCESSES = 8
AT_ONCE = 4
"""Jobs that are handed to a process together. Ctrl-C waits for those that were begun."""


def each(work: Callable[..., T], jobs: Sequence[tuple[Any, ...]]) -> list[T]:
    """What `work` makes of each job, in their order.

    Args:
        work: a function of a module, whose result depends on its arguments alone.
        jobs: the arguments of each call.

    A process that `beside` began has one core, and works through them alone. Raises UserError where a process died.
    """
    if len(jobs) < FEWEST or multiprocessing.current_process().daemon:
        return list(starmap(work, jobs))
    pool = ProcessPoolExecutor(min(os.cpu_count() or 1, MOST_PROCESSES), _context(), initializer=end_with_parent)
    try:
        with pool:
            # Handing out jobs starts the processes, and before them the server that forks them. What is blocked then is
            # blocked in all: Ctrl-C is for this process alone.
            with _without_main(), ctrl_c_blocked():
                results = pool.map(work, *zip(*jobs, strict=True), chunksize=AT_ONCE)
            return list(results)
    except BrokenProcessPool:
        raise UserError(DIED) from None


@contextmanager
def beside(work: Callable[..., T], *arguments: Any) -> Iterator[Callable[[], T]]:
    """Begin work in a process beside this one; what is yielded waits for the result. The process ends with the context.

    Waiting raises what `work` raised, and UserError where the process died.
    """
    context = _context()
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sending, dict(os.environ), work, arguments), daemon=True)
    try:
        with _without_main(), ctrl_c_blocked():
            process.start()
        sending.close()  # the process has its own, and that it ended shows by the end of the pipe
        yield partial(_received, receiving)
    finally:
        if process.pid is not None:
            process.kill()
            process.join()


def _send(sending: Connection, environment: dict[str, str], work: Callable[..., T], arguments: tuple[Any, ...]) -> None:
    end_with_parent()
    os.environ.update(environment)  # the server that forks has that of its start
    try:
        sending.send((work(*arguments), None))
    except Exception as error:
        sending.send((None, error))


def _received(receiving: Connection) -> Any:
    try:
        result, error = receiving.recv()
    except (EOFError, OSError):
        raise UserError(DIED) from None
    if error:
        raise error
    return result


def _context() -> ForkServerContext:
    resource_tracker.ensure_running()  # to start it unblocks Ctrl-C, which is to stay blocked for what follows
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "attnlab.infer.cases", "attnlab.infer.families"])
    return context


@contextmanager
def _without_main() -> Iterator[None]:
    """Inside, processes that start don't import the program that runs here: a script without a guard would run anew."""
    main = sys.modules["__main__"]
    names = vars(main)
    held: dict[str, Any] = {name: names[name] for name in ("__file__", "__spec__") if name in names}
    names.update(dict.fromkeys(held))
    try:
        yield
    finally:
        names.update(held)
