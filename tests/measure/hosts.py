"""A scheduler and workers of a cluster, as on several hosts: each is a fork of the server of forks.py.

The processes that measure on a worker are forks too, of multiprocessing's fork server, which is forked before Dask
starts its threads.
"""

import asyncio
import multiprocessing.forkserver
import os
import sys
from concurrent.futures import Executor, ProcessPoolExecutor
from unittest import mock

import distributed
import faulty
from conftest import small_copy

from attnlab.measuring import cluster as clusters
from attnlab.measuring import processes
from attnlab.measuring.session import ceilings, estimate
from attnlab.measuring.session import worker as working


def scheduler(file: str) -> None:
    """A scheduler, whose address the file says."""

    async def serve() -> None:
        async with distributed.Scheduler(host="127.0.0.1", dashboard_address=":0", scheduler_file=file) as there:
            await there.finished()

    asyncio.run(serve())


def worker(address: str, flags: str, path: str = "", threads: int = 1) -> None:
    """A worker, without a run folder that it could share with the client, whose surveys are quick.

    Args:
        flags: the folder of `faulty`'s flags.
        path: where Python looks for packages first; ``bare`` if it finds no attnlab.
    """
    os.environ |= {"ATTNLAB_DATA": "/nowhere", faulty.FLAGS: flags}
    if path == "bare":
        sys.modules["attnlab.measuring.cluster"] = None
    elif path:
        sys.path.insert(0, path)
    ceilings.CPU_MATRIX, ceilings._copy, estimate.LEAST_S = 64, small_copy, 1e-3
    with mock.patch.object(multiprocessing.util, "spawnv_passfds", _fork):
        multiprocessing.forkserver.ensure_running()
    processes.fresh_processes = _forked

    async def serve() -> None:
        async with distributed.Worker(address, nthreads=threads, dashboard=False, host="127.0.0.1") as there:
            await there.finished()

    asyncio.run(serve())


def waiting() -> None:
    """Have the processes of this client take a shape at a time, and wait among the samples of a second one."""
    clusters.PIECE_SHAPES, working.take = 1, faulty.waits


def _fork(path: str, arguments: list[str], descriptors: list[int]) -> int:
    pid = os.fork()
    if pid == 0:
        exec(arguments[-1])
        os._exit(0)
    return pid


def _forked(environment: dict[str, str]) -> Executor:
    context = multiprocessing.get_context("forkserver")
    return ProcessPoolExecutor(1, context, initializer=processes.begin, initargs=(environment,))
