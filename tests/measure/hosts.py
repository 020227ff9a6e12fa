"""A scheduler and workers of a cluster, as on several hosts: each is a fork of the server of forks.py.

The processes that measure on a worker are forks of multiprocessing's fork server, which is forked before Dask starts
its threads. Functions of a job here make these processes fail in several ways.
"""

import asyncio
import multiprocessing.forkserver
import os
import signal
import sys
import time
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path
from unittest import mock

import distributed
import torch
from conftest import small_copy

from attnlab.measuring import cluster as clusters
from attnlab.measuring import processes
from attnlab.measuring.session import ceilings, estimate
from attnlab.measuring.session import worker as working
from attnlab.measuring.session.subject import Job
from attnlab.runs import write

FLAGS, GO_ON = "ATTNLAB_TEST_FLAGS", "go on"
"""The folder of flags, files that record events of a test; and the flag for which `waits` waits."""
BAD, FAULT = 32, "CUDA error: an illegal memory access was encountered"
"""The sequence length at which the device fails, and the error."""
add = write.add_part


def scheduler(file: str) -> None:
    """Serve a scheduler that writes its address to this file."""
    _serve(distributed.Scheduler, host="127.0.0.1", dashboard_address=":0", scheduler_file=file)


def worker(address: str, flags: str, path: str = "", threads: int = 1) -> None:
    """Serve a worker that shares no run folder with the client and measures its ceilings quickly.

    Args:
        path: the first folder in which Python looks for packages; ``bare`` hides attnlab's worker.
    """
    os.environ |= {"ATTNLAB_DATA": "/nowhere", FLAGS: flags}
    if path == "bare":
        sys.modules["attnlab.measuring.cluster"] = None
    elif path:
        sys.path.insert(0, path)
    ceilings.CPU_MATRIX, ceilings._copy, estimate.LEAST_S = 64, small_copy, 1e-3
    with mock.patch.object(multiprocessing.util, "spawnv_passfds", _fork):
        multiprocessing.forkserver.ensure_running()
    processes.fresh_processes = _forked
    _serve(distributed.Worker, address, nthreads=threads, dashboard=False, host="127.0.0.1")


def waiting() -> None:
    """Make the processes of this client take 1 shape at a time, and wait amid the samples of the second shape."""
    clusters.PIECE_SHAPES, working.take = 1, waits


def _serve(server: type, *arguments: object, **named: object) -> None:
    async def serve() -> None:
        async with server(*arguments, **named) as there:
            await there.finished()

    asyncio.run(serve())


def _fork(path: str, arguments: list[str], descriptors: list[int]) -> int:
    pid = os.fork()
    if pid == 0:
        exec(arguments[-1])
        os._exit(0)
    return pid


def _forked(environment: dict[str, str]) -> Executor:
    context = multiprocessing.get_context("forkserver")
    return ProcessPoolExecutor(1, context, initializer=processes.begin, initargs=(environment,))


# What a measuring process does instead of `worker.take`


def fails_once(job: Job) -> None:
    """The first card that reaches the length `BAD` fails there, as after a candidate's illegal access."""
    (working.measure if _happened("failed") else fails_always)(job)


def fails_always(job: Job) -> None:
    """Every card fails at the length `BAD`."""

    def failing(name, table, key, rows) -> None:
        if table == "samples" and rows["seq_len"].iloc[0] == BAD:
            (_flags() / "failed").touch()
            raise torch.AcceleratorError(f"{FAULT}\nmore")
        add(name, table, key, rows)

    write.add_part = failing
    working.measure(job)


def dies_once(job: Job) -> None:
    """The first process with the length `BAD` in its job is killed."""
    if BAD in [shape.seq_len for shape in job.shapes] and not _happened("died"):
        (_flags() / "died").touch()
        os._exit(9)
    working.measure(job)


def kills_its_worker(job: Job) -> None:
    """Kill the worker that started this process."""
    os.kill(multiprocessing.parent_process().pid, signal.SIGKILL)
    time.sleep(60)


def slowly(job: Job) -> None:
    """Measure, with a pause of 0.2 s at each block of rows."""
    write.add_part = lambda *block: (add(*block), time.sleep(0.2))
    working.measure(job)


def waits(job: Job) -> None:
    """Measure, and wait amid the samples of a second shape for the flag `GO_ON`."""

    def waiting(name: str, table: str, *block: object) -> None:
        add(name, table, *block)
        while table == "samples" and write.recorded(name, "cases") and not _happened(GO_ON):
            time.sleep(0.02)

    write.add_part = waiting
    working.measure(job)


def meets(job: Job, patience_s: float = 60) -> str:
    """Set a flag for this part (a replicate is part b), wait for that of a second part, then measure any shapes."""
    (_flags() / (job.part or "part b")).touch()
    while len(list(_flags().glob("part *"))) < 2 and patience_s > 0:
        time.sleep(0.05)
        patience_s -= 0.05
    if job.shapes:
        working.measure(job)
    return f"{job.part} of {len(list(_flags().glob('part *')))}"


def _flags() -> Path:
    return Path(os.environ[FLAGS])


def _happened(flag: str) -> bool:
    return (_flags() / flag).exists()
