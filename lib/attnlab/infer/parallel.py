"""Works through many jobs in processes beside this one, one for each core; the results are those of one process."""

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import starmap
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
    try:
        with _processes() as pool:
            return list(pool.map(work, *zip(*jobs, strict=True), chunksize=AT_ONCE))
    except BrokenProcessPool:
        raise UserError("a process that infers died (killed, or out of memory): start it again") from None


@contextmanager
def _processes() -> Iterator[ProcessPoolExecutor]:
    """Processes that end with the context, and with this process however that ends."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "attnlab.infer.cases", "attnlab.infer.families"])
    pool = ProcessPoolExecutor(min(os.cpu_count() or 1, MOST_PROCESSES), context, initializer=end_with_parent)
    # The first job starts the server that forks them all, and what is blocked there is blocked in all: Ctrl-C is for
    # this process alone.
    with _without_main(), pool:
        with ctrl_c_blocked():
            pool.submit(os.getpid)
        yield pool


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
