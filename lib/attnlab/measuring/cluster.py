"""Measure on several GPUs, of one host or of many: an executor over a Dask cluster.

Only this process, the client, writes the run folder. A free worker gets some shapes of a replicate, measures them in a
fresh process, and returns their blocks together. If a worker is lost, another one starts its work again.
"""

import asyncio
import logging
import multiprocessing
import operator
import os
import pickle
import socket
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from pkgutil import resolve_name
from tempfile import TemporaryDirectory
from typing import Any

import dask
import distributed
import torch
from tqdm import tqdm

from attnlab.base import paths, sources
from attnlab.base.errors import Outdated, UserError
from attnlab.base.parent import raise_if_interrupted
from attnlab.measuring import processes
from attnlab.measuring.instruments import devices, environment, telemetry
from attnlab.measuring.session.subject import Job
from attnlab.runs import dispatch, read, schema, write

CONNECT_S, POLL_S = 10, 0.1
PATIENCE_S = 60.0
"""The time that the client waits without any worker: a nanny may be restarting one."""
PIECE_SHAPES = 12
"""The most shapes of a piece. Larger pieces lose more work with a worker, and keep others waiting longer at the end."""
LOSSES, TRIES = 10, 2
"""A run stops after this many lost workers, or this many failures, at the same work."""


class Unfit(UserError):
    """A worker can't measure with the others."""


class NoCluster(UserError, BrokenExecutor):
    """The scheduler or the last worker is lost, or no worker came."""


FAULTS = (torch.AcceleratorError, BrokenProcessPool, MemoryError, OSError)
"""Errors that may be the fault of one worker or its card."""


@contextmanager
def fleet(gpus: str, scheduler: str, wanted: str) -> Iterator["Fleet"]:
    """The workers as an executor: on this number of GPUs of this host, on ``all``, or those of the scheduler.

    Raises UserError: there are too few GPUs, or no scheduler answers at this address.
    """
    if gpus and scheduler:
        raise UserError("GPUS starts a cluster here, and SCHEDULER uses one that is there: give one of the two")
    if scheduler and "://" not in scheduler:
        raise UserError(f"SCHEDULER={scheduler}: give its address as `dask scheduler` prints it, tcp://HOST:PORT")
    cards = _cards(gpus, wanted) if gpus else []
    # The fleet reports a lost worker in one line, in place of the messages of Dask and Tornado.
    for name in [name for name in logging.root.manager.loggerDict if name.startswith(("distributed", "tornado"))]:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", module="distributed")
    with ExitStack() as stack:
        client = stack.enter_context(_client(stack.enter_context(local(cards)) if cards else scheduler))
        print(f"the cluster's dashboard: {client.dashboard_link}", file=sys.stderr, flush=True)
        yield stack.enter_context(Fleet(client, "cuda" if gpus else wanted))


def _cards(gpus: str, wanted: str) -> list[str]:
    if gpus != "all" and not (gpus.isdecimal() and int(gpus) > 0):
        raise UserError(f"GPUS={gpus}: give how many of this host's GPUs to measure on, from 1 on, or all")
    if wanted == "cpu":
        raise UserError("GPUS measures on GPUs, and DEVICE or the study says cpu: leave GPUS out")
    there = torch.cuda.device_count()
    count = there if gpus == "all" else int(gpus)
    if count > there or not there:
        instead = f"ask for {there}" if there else "leave GPUS out"
        raise UserError(f"GPUS={gpus}: torch sees {there} NVIDIA GPU{'s' * (there != 1)} here: {instead}")
    with processes.fresh_processes() as pool:  # so that this process takes no memory of a GPU
        return list(pool.submit(telemetry.uuids, count).result())


def local(cards: Sequence[str]) -> distributed.SpecCluster:
    """A cluster on this host, with a worker for each of these GPUs that sees no other."""
    options = {"host": "127.0.0.1", "nthreads": 1, "memory_limit": 0, "silence_logs": logging.CRITICAL}
    workers = [options | {"env": {"CUDA_VISIBLE_DEVICES": card}} for card in cards]
    # As many threads for torch as without a cluster, so that the environment is the same.
    with dask.config.set({"distributed.nanny.pre-spawn-environ": {}}):
        return distributed.SpecCluster(
            {name: {"cls": distributed.Nanny, "options": worker} for name, worker in enumerate(workers)},
            {"cls": distributed.Scheduler, "options": {"host": "127.0.0.1", "port": 0, "dashboard": True}},
            silence_logs=logging.CRITICAL,
        )


def _client(where: distributed.SpecCluster | str) -> distributed.Client:
    async def identify() -> None:
        async with distributed.rpc(where) as there:
            if (kind := (await there.identity())["type"]) != "Scheduler":
                raise ValueError(f"what answers is a {kind}")

    try:
        if isinstance(where, str):  # Dask's client waits forever if the port is open and nothing answers
            asyncio.run(asyncio.wait_for(identify(), CONNECT_S))
        return distributed.Client(where, timeout=CONNECT_S)
    except Exception as error:  # of many types, by the address and the server there
        why = " ".join(str(error).split()).partition(" after ")[0] or f"nothing in {CONNECT_S} s"
        raise UserError(f"no scheduler answers at {where} ({why}): start one with `dask scheduler`") from None


@dataclass(eq=False)
class Work:
    """A call for one worker: for a piece of a replicate, which has a `number`, or for another job."""

    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    number: int | None = None
    losses: int = 0

    def __str__(self) -> str:
        return str(self.arguments[0]) if isinstance(self.arguments[0], Job) else self.call.__name__.strip("_")


def cut(call: Callable[..., Any], jobs: Iterable[Job], workers: int) -> Iterator[Work]:
    """The work of jobs: each replicate is cut into the same pieces, and each piece has short and long shapes."""
    for job in jobs:
        count = max(workers, -(-len(job.study.shapes) // PIECE_SHAPES)) if job.shapes else 0
        for number in range(count):
            if shapes := tuple(shape for shape in job.study.shapes[number::count] if shape in job.shapes):
                yield Work(call, (replace(job, shapes=shapes),), number)
        if not job.shapes:
            yield Work(call, (job,))


def choose(waiting: Iterable[Work], taken: Counter[int | None]) -> Work:
    """The next work of a worker: any that isn't a piece, else the piece that it took least often.

    So the replicates of a shape go to different workers, if these are about equally fast.
    """
    return min(waiting, key=lambda work: (work.number is not None, taken[work.number]))


class Fleet(Executor):
    """The workers of a cluster as an executor, for ``auto``, ``cuda`` or ``cpu``."""

    def __init__(self, client: distributed.Client, wanted: str) -> None:
        self._client, self._wanted = client, wanted
        # With results: a future is finished before its result has left a worker, which may be lost in between.
        self._arriving = distributed.as_completed(loop=client.loop, with_results=True, raise_errors=False)
        self._workers: dict[str, Counter[int | None]] = {}  # by address: how often each has taken which piece
        self._left_out: dict[str, BaseException] = {}
        self._begun: dict[str, tuple[Work, distributed.Future]] = {}
        self._waiting: list[Work] = []
        self._seen_s = time.monotonic()

    @cached_property
    def device(self) -> dict[str, Any]:
        """The device of the workers, as `devices.describe` describes it."""
        return dict(self.submit(_device, self._wanted).result())

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Make a call on one worker, and wait for it."""
        done: Future[Any] = Future()
        try:
            done.set_result(next(self._do([Work(work, arguments)])))
        except Exception as error:
            done.set_exception(error)
        return done

    def map(
        self, fn: Callable[..., Any], *iterables: Iterable[Job], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[Any]:
        """Do jobs on all workers, replicates in pieces and other jobs first; gives values as they come.

        Raises NoCluster if the scheduler or the last worker is lost, and Unfit or Outdated if no worker is as the run
        requires. Other errors come from the measurement.
        """
        self._look_around()
        (jobs,) = iterables
        return self._do(list(cut(fn, jobs, max(1, len(self._workers)))))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancel all work that waits or runs."""
        self._waiting = []
        while self._begun:
            _, (_, future) = self._begun.popitem()
            future.cancel()

    def _do(self, works: list[Work]) -> Iterator[Any]:
        """Do this work on all present workers at the same time."""
        self._waiting = works
        try:
            while self._waiting or self._begun:
                raise_if_interrupted()  # a finalizer of Dask's futures may have swallowed it
                self._look_around()
                for address in [one for one in self._workers if one not in self._begun][: len(self._waiting)]:
                    self._begin(address)
                if not self._arriving.has_ready():
                    time.sleep(POLL_S)
                for future, result in self._arriving.next_batch(block=False):
                    for address in [one for one, (_, begun) in self._begun.items() if begun == future]:
                        yield from self._end(address, result)
        except BaseException:
            self.shutdown()
            raise

    def _look_around(self) -> None:
        """Update the list of workers: some may have joined, others may be lost."""
        try:
            there = self._client.nthreads() if self._client.status == "running" else {}
        except (OSError, ValueError, RuntimeError):
            there = {}
        if self._client.status != "running":
            raise NoCluster("the scheduler is lost")
        for address in self._workers.keys() - there:
            self._drop(address, NoCluster(f"the worker {address} was lost"))
        for address in there.keys() - self._workers.keys() - self._left_out.keys():
            self._workers[address] = Counter()
            tqdm.write(f"{address}: joined, {len(self._workers)} now", file=sys.stderr)
        if self._workers:
            self._seen_s = time.monotonic()
        elif there:
            raise list(self._left_out.values())[-1]
        elif time.monotonic() - self._seen_s > PATIENCE_S:
            raise NoCluster("no worker is there: `dask worker <scheduler> --nthreads 1` starts one")

    def _begin(self, address: str) -> None:
        work = choose(self._waiting, self._workers[address])
        self._waiting.remove(work)
        self._workers[address][work.number] += 1
        task = self._wanted, sources.digests(__name__), work.call, work.arguments, _files(work.arguments[0])
        # Sent by name and pickled: the scheduler, which unpickles its input, may lack attnlab.
        found = self._client.submit(resolve_name, f"{__name__}:{carry_out.__name__}", workers=[address], pure=False)
        future = self._client.submit(operator.call, found, pickle.dumps(task), workers=[address], pure=False)
        self._begun[address] = work, future
        self._arriving.add(future)
        tqdm.write(f"{address}: {work}", file=sys.stderr)

    def _end(self, address: str, result: Any) -> Iterator[Any]:
        if isinstance(result, dict):
            work, _ = self._begun.pop(address)
            for name, content in result["blocks"].items():
                write.take_part(work.arguments[0].run, name, content)
            yield result["value"]
            return
        error = result[1] if isinstance(result, tuple) else result
        if isinstance(error, (distributed.CancelledError, distributed.KilledWorker)):
            error = NoCluster(f"the worker {address} was lost")
        elif isinstance(error, ImportError):
            error = Unfit(f"{error}; PYTHONPATH has to lead to lib/ there, and its packages to be installed")
        if not isinstance(error, (NoCluster, Unfit, Outdated, *FAULTS)):
            raise error
        self._drop(address, error)

    def _drop(self, address: str, error: BaseException) -> None:
        """Drop a worker. Another one repeats its work, unless that work has failed too often."""
        del self._workers[address]
        how = " was lost"
        if not isinstance(error, NoCluster):
            self._left_out[address] = error
            how = f" is left out: {[*str(error).splitlines(), type(error).__name__][0]}"
        work, future = self._begun.pop(address, (None, None))
        tqdm.write(f"{address}{how}{f', at {work}' if work else ''}; {len(self._workers)} left", file=sys.stderr)
        if work is not None and future is not None:
            future.cancel()
            self._waiting.insert(0, work)
            work.losses += 1 if isinstance(error, NoCluster) else LOSSES // TRIES * isinstance(error, FAULTS)
            if work.losses >= LOSSES:
                raise error


def carry_out(packed: bytes) -> dict[str, Any]:
    """Do pickled work on a worker, in a fresh process with a separate data folder; it ends if the client is gone.

    Returns the value, and the blocks in the order in which to record them. In this order, a killed client leaves no
    shape that counts as recorded and lacks samples, nor samples without their process.
    """
    wanted, code, call, arguments, files = pickle.loads(packed)
    worker = distributed.get_worker()
    key, threads, mine = worker.get_current_task(), worker.state.nthreads, sources.digests(__name__)
    if changed := sorted(name for name in mine | code if mine.get(name) != code.get(name)):
        raise Unfit(f"its code is not the client's ({changed[0]})")
    if threads != 1:
        raise Unfit(f"it has {threads} threads, and one measures at a time: start it with --nthreads 1")
    # A worker under Dask's nanny is a daemon, which may have no child processes. Ours end when the worker ends.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    with TemporaryDirectory(prefix="attnlab-") as folder:
        for name, content in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        card = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]  # the worker's card
        variables = {"ATTNLAB_DATA": folder} | ({"CUDA_VISIBLE_DEVICES": card} if card else {})
        with processes.fresh_processes(variables) as pool:
            doing = pool.submit(_on_own_card, wanted, call, arguments)
            while not wait([doing], POLL_S).done:
                task = worker.state.tasks.get(key)
                if worker.status != distributed.Status.running or task is None or task.state != "executing":
                    processes.stop(pool)
        value, sent = doing.result(), {Path(name).name for name in files}
        parts = [path for path in Path(folder).glob(f"*/{schema.PARTS}/[!.]*.parquet") if path.name not in sent]
        parts.sort(key=lambda path: (path.name.startswith(write.LAST), not path.name.startswith("processes.")))
        return {"value": value, "blocks": {path.name: path.read_bytes() for path in parts}}


def _on_own_card(wanted: str, call: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Make a call in the environment in which its run began, while no other worker measures on the card."""
    try:
        here = devices.resolve(wanted)
    except UserError as error:
        raise Unfit(str(error)) from None
    if isinstance(arguments[0], Job):
        environment.lock_as_begun(arguments[0].run, here)
    with socket.socket(socket.AF_UNIX) as held:
        try:
            if card := telemetry.card(here):
                held.bind(f"\0attnlab-{card}")  # a lock that ends with the process
        except OSError:
            raise Unfit("another worker measures on its card: give each a GPU of its own") from None
        return call(*arguments)


def _device(wanted: str) -> dict[str, Any]:
    return devices.describe(devices.resolve(wanted))


def _files(job: Any) -> dict[str, bytes]:
    """The files of a job for a worker's data folder: the manifest, the dispatch table and the recorded blocks."""
    if not isinstance(job, Job):
        return {}
    own = schema.folder(job.run)
    blocks = own.glob(f"{schema.PARTS}/[!.]*.{schema.replicate_key(job.replicate) if job.shapes else ''}*")
    found = {str(path.relative_to(paths.data())): path for path in (own / "manifest.json", *blocks)}
    table = dispatch.path(read.read_manifest(job.run)["device"]["name"])
    found |= {f"{paths.dispatch().name}/{table.name}": table} if table.is_file() else {}
    return {name: path.read_bytes() for name, path in found.items()}
