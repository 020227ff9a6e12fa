"""Works through jobs in processes beside this one; the results are those of one process."""

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import starmap
from multiprocessing import resource_tracker
from multiprocessing.context import ForkServerContext
from typing import Any, TypeVar

from attnlab.base.errors import UserError
from attnlab.base.parent import ctrl_c_blocked, end_with_parent

T = TypeVar("T")
FEWEST = 64
"""So few jobs take less time than starting processes does."""
MOST_PROCESSES = 8
AT_ONCE = 4
"""Jobs that are handed to a process together. Ctrl-C waits for those that were begun."""


def each(work: Callable[..., T], jobs: Sequence[tuple[Any, ...]]) -> list[T]:
    """What `work` makes of each job, in their order.

    Args:
        work: a function of a module, whose result depends on its arguments alone.
        jobs: the arguments of each call.

    Raises UserError where a process died.
    """
    if len(jobs) < FEWEST:
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
        raise UserError("a process that infers died (killed, or out of memory): start it again") from None


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
