"""Measuring on several GPUs, of one host or of many: an executor over a Dask cluster.

This process, the client, alone writes the run folder. A free worker gets a piece of a replicate, which a fresh process
measures, and its blocks come home shape by shape. What a lost worker or a failed process leaves goes to another.
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
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import BrokenExecutor, Executor, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from pkgutil import resolve_name
from tempfile import TemporaryDirectory
from typing import Any

import dask
import distributed
import numpy as np
import torch
from tqdm import tqdm

from attnlab.base import paths, sources
from attnlab.base.errors import Outdated, UserError
from attnlab.measuring import processes
from attnlab.measuring.instruments import devices, environment, telemetry
from attnlab.measuring.session import estimate, record
from attnlab.measuring.session.subject import Job
from attnlab.runs import dispatch, read, schema, write
from attnlab.study.shapes import Shape

CONNECT_S, POLL_S = 10, 0.1
PATIENCE_S = 60.0
"""Without a worker the client waits this long: a nanny may be starting one again."""
PIECE_S = 120.0
"""A piece takes about this long at most: one worker may have as much left when the others are done."""
TRIES, LOSSES = 2, 10
"""A run stops when so many processes have failed at one shape, or so many workers were lost or unfit there."""
Failure = (torch.AcceleratorError, BrokenProcessPool, MemoryError, OSError)
"""Errors that may be the fault of one worker or its card."""
FIRST = "processes"
"""The table that all samples lead to."""


class Unfit(UserError):
    """A worker can't measure with the others."""


class NoCluster(UserError, BrokenExecutor):
    """The scheduler or the last worker is lost, or no worker came."""


@contextmanager
def fleet(gpus: str, scheduler: str, wanted: str) -> Iterator["Fleet"]:
    """The workers as an executor: of so many GPUs of this host or ``all``, or else those of a scheduler's address.

    Raises:
        UserError: GPUs are lacking, or no scheduler answers.
    """
    if gpus and scheduler:
        raise UserError("GPUS starts a cluster here, and SCHEDULER uses one that is there: give one of the two")
    if scheduler and "://" not in scheduler:
        raise UserError(f"SCHEDULER={scheduler}: give its address as `dask scheduler` prints it, tcp://HOST:PORT")
    cards = _cards(gpus, wanted) if gpus else []
    # The fleet says in a line what Dask, and the loop that it runs in, say of lost workers.
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
    seen = [{"CUDA_VISIBLE_DEVICES": card} for card in cards]
    # As many threads for torch as without a cluster, so that the environment is the same.
    with dask.config.set({"distributed.nanny.pre-spawn-environ": {}}):
        return distributed.SpecCluster(
            {name: {"cls": distributed.Nanny, "options": options | {"env": env}} for name, env in enumerate(seen)},
            {"cls": distributed.Scheduler, "options": {"host": "127.0.0.1", "port": 0, "dashboard": True}},
            silence_logs=logging.CRITICAL,
        )


def _client(where: distributed.SpecCluster | str) -> distributed.Client:
    async def identify() -> None:
        async with distributed.rpc(where) as there:
            if (kind := (await there.identity())["type"]) != "Scheduler":
                raise ValueError(f"what answers is a {kind}")

    try:
        if isinstance(where, str):  # Dask's client waits for ever where something listens and doesn't answer
            asyncio.run(asyncio.wait_for(identify(), CONNECT_S))
        return distributed.Client(where, timeout=CONNECT_S)
    except Exception as error:  # whatever the address or another server leads Dask to
        why = " ".join(str(error).split()).partition(" after ")[0] or f"nothing in {CONNECT_S} s"
        raise UserError(f"no scheduler answers at {where} ({why}): start one with `dask scheduler`") from None


def pieces(jobs: Sequence[Job], seconds: Mapping[Shape, float], workers: int) -> list[tuple[int, Job]]:
    """Replicates of a study, all cut into the same pieces of about one length; each piece with its number.

    Args:
        seconds: about how long each shape of the study takes.
    """
    each_s = np.maximum(list(seconds.values()), 1e-3)  # a shape that no memory holds takes no time
    count = workers * max(1, round(each_s.sum() / (workers * PIECE_S)))
    middles = (np.cumsum(each_s) - each_s / 2) / each_s.sum()
    numbers = dict(zip(seconds, (middles * count).astype(int).tolist(), strict=True))
    return [
        (number, replace(job, shapes=shapes, stream=False))
        for job in jobs
        for number in range(count)
        if (shapes := tuple(shape for shape in job.shapes if numbers[shape] == number))
    ]


def choose(numbers: Sequence[int | None], taken: Counter[int]) -> int:
    """The index of what a worker does next: anything that isn't a piece, else the piece that it took least often.

    So the replicates of a shape go to different workers as long as these take about equally long.
    """
    return min(range(len(numbers)), key=lambda index: -1 if (one := numbers[index]) is None else taken[one])


@dataclass
class Work:
    """A call for one worker: on a piece of a replicate, which has a number, or on anything that a run needs once."""

    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    number: int | None = None
    done: Future[Any] = field(default_factory=Future)

    def __str__(self) -> str:
        if self.number is None:
            return self.call.__name__.strip("_")
        job: Job = self.arguments[0]
        count = len(job.shapes)
        return f"replicate {job.replicate}, {count} shape{'s' * (count != 1)} from {job.shapes[0].label}"

    def rest(self) -> "Work | None":
        """The work with what its run still lacks, None if nothing. Only pieces come home in parts."""
        if self.number is None:
            return self
        left = record.lacking(self.arguments[0])
        return replace(self, arguments=(left,)) if left else None


class Fleet(Executor):
    """The workers of a cluster as an executor, for ``auto``, ``cuda`` or ``cpu``."""

    def __init__(self, client: distributed.Client, wanted: str) -> None:
        self._client, self._wanted, self._topic = client, wanted, f"attnlab-{uuid.uuid4().hex}"
        client.subscribe_topic(self._topic, lambda event: take(*event[1]))
        # With results: a future is finished before its result has left a worker, which may be lost in between.
        self._arriving = distributed.as_completed(loop=client.loop, with_results=True, raise_errors=False)
        self._workers: dict[str, Counter[int]] = {}  # by address: how often each has taken which piece
        self._left_out: dict[str, BaseException] = {}
        self._begun: dict[str, tuple[Work, distributed.Future]] = {}
        self._waiting: list[Work] = []
        self._failed: Counter[tuple[str, int]] = Counter()
        self._seen_s = time.monotonic()

    @cached_property
    def device(self) -> dict[str, Any]:
        """The device of the workers, as `devices.describe` describes it."""
        return dict(self.submit(_device, self._wanted).result())

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Do one thing on one worker, and wait for it."""
        one = Work(work, arguments)
        try:
            list(self._do([one]))
        except Exception as error:
            one.done.set_exception(error)
        return one.done

    def map(
        self, work: Callable[..., Any], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[Any]:
        """Measure replicates in pieces on all workers, and before them do anything else, each on one worker.

        It begins when the first result is asked for.

        Raises:
            NoCluster: the scheduler or the last worker is lost.
            Unfit, Outdated: no worker is as the run requires.
            UserError, torch.AcceleratorError, OSError, MemoryError: as measuring raised it.
        """
        every: list[Any] = list(*iterables)
        jobs = [one for one in every if isinstance(one, Job)]
        once = [Work(work, (one,)) for one in every if not isinstance(one, Job)]
        self._look_around()
        cut = pieces(jobs, estimate.recorded(jobs[0]), max(1, len(self._workers))) if jobs else []
        done = self._do([*once, *(Work(work, (piece,), number) for number, piece in cut)])
        yield from islice(done, len(once))
        list(done)
        # A stream of requests builds on all shapes of its replicate.
        list(self._do([Work(work, (replace(job, shapes=()),)) for job in jobs if job.stream]))
        yield from [None] * len(jobs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Give up the work that waits or is on its way."""
        self._waiting = []
        while self._begun:
            _, (_, future) = self._begun.popitem()
            future.cancel()

    def _do(self, works: list[Work]) -> Iterator[Any]:
        """Do these at the same time on the workers that are there; their values in order, each as soon as it comes."""
        self._waiting = list(works)
        try:
            for work in works:
                while not work.done.done():
                    self._look_around()
                    for address in [one for one in self._workers if one not in self._begun][: len(self._waiting)]:
                        self._begin(address)
                    if not self._arriving.has_ready():
                        time.sleep(POLL_S)
                    for future, result in self._arriving.next_batch(block=False):
                        for address in [one for one, (_, begun) in self._begun.items() if begun == future]:
                            self._end(address, result)
                yield work.done.result()
        except BaseException:
            self.shutdown()
            raise

    def _look_around(self) -> None:
        """Notice which workers have joined and which are lost."""
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
        taken = self._workers[address]
        work = self._waiting.pop(choose([work.number for work in self._waiting], taken))
        if work.number is not None:
            taken[work.number] += 1
        files = _files(work.arguments[0])
        task = self._wanted, sources.digests(__name__), work.call, work.arguments, files, self._topic
        # Found by the standard library, and packed: the scheduler, which unpickles what it is sent, may lack attnlab.
        found = self._client.submit(resolve_name, f"{__name__}:{carry_out.__name__}", workers=[address], pure=False)
        future = self._client.submit(operator.call, found, pickle.dumps(task), workers=[address], pure=False)
        self._begun[address] = work, future
        self._arriving.add(future)
        tqdm.write(f"{address}: {work}", file=sys.stderr)

    def _end(self, address: str, result: Any) -> None:
        work, _ = self._begun[address]
        raised = result[1] if isinstance(result, tuple) else result
        outcome = result if isinstance(result, Outcome) else Outcome(error=raised)
        error = outcome.error
        take(getattr(work.arguments[0], "run", ""), outcome.blocks)
        if isinstance(error, (distributed.CancelledError, distributed.KilledWorker)):
            error = NoCluster(f"the worker {address} was lost")
        elif isinstance(error, ImportError):
            error = Unfit(f"{error}; PYTHONPATH has to lead to lib/ there, and its packages to be installed")
        if isinstance(error, (NoCluster, Unfit, Outdated, *Failure)):
            self._drop(address, error)
        elif error:
            raise error
        else:
            del self._begun[address]
            work.done.set_result(outcome.value)

    def _drop(self, address: str, error: BaseException) -> None:
        """Do without a worker: another goes on with what it had begun, unless that has failed too often."""
        del self._workers[address]
        how, rest = " was lost", None
        if not isinstance(error, NoCluster):
            self._left_out[address] = error
            how = f" is left out: {[*str(error).splitlines(), type(error).__name__][0]}"
        if address in self._begun:
            work, future = self._begun.pop(address)
            future.cancel()
            rest = work.rest()
            if not rest:
                work.done.set_result(None)
        tqdm.write(f"{address}{how}{f', at {rest}' if rest else ''}; {len(self._workers)} left", file=sys.stderr)
        if rest:
            self._waiting.insert(0, rest)
            limit = TRIES if isinstance(error, Failure) else LOSSES
            self._failed[str(rest), limit] += 1
            if self._failed[str(rest), limit] >= limit:
                raise error


# On a worker


@dataclass(frozen=True)
class Outcome:
    """The value of a call in a fresh process, or the exception that ended it; and the blocks that it recorded."""

    value: Any = None
    error: BaseException | None = None
    blocks: Mapping[str, bytes] = field(default_factory=dict)


def carry_out(packed: bytes) -> Outcome:
    """Do pickled work in a fresh process, which has a data folder of its own and ends when nobody waits for it."""
    wanted, code, call, arguments, files, topic = pickle.loads(packed)
    worker = distributed.get_worker()
    key = worker.get_current_task()
    mine, threads = sources.digests(__name__), worker.state.nthreads
    if changed := sorted(name for name in mine | code if mine.get(name) != code.get(name)):
        return Outcome(error=Unfit(f"its code is not the client's ({changed[0]})"))
    if threads != 1:
        why = f"it has {threads} threads, and one measures at a time: start it with --nthreads 1"
        return Outcome(error=Unfit(why))

    def waited_for() -> bool:
        task = worker.state.tasks.get(key)
        return worker.status == distributed.Status.running and task is not None and task.state == "executing"

    # A worker under Dask's nanny is a daemon, which may have no children. Ours end with it by themselves.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    with TemporaryDirectory(prefix="attnlab-") as folder:
        for name, content in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        variables, known = {"ATTNLAB_DATA": folder}, {Path(name).name for name in files}
        if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
            variables["CUDA_VISIBLE_DEVICES"] = visible.split(",")[0]  # its own card alone
        with processes.fresh_processes(variables) as pool:
            doing, sent = pool.submit(_on_own_card, wanted, call, arguments), known
            while waited_for() and not wait([doing], POLL_S).done:
                if blocks := _recorded(folder, sent):
                    worker.log_event(topic, (arguments[0].run, blocks))
                    sent = sent | blocks.keys()
            if not doing.done():
                processes.stop(pool)
        error = doing.exception()
        return Outcome(None if error else doing.result(), error, _recorded(folder, known, parts=True))


def _on_own_card(wanted: str, call: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Make a call in the environment that its run began in, where nothing else of a cluster measures on the card."""
    try:
        here = devices.resolve(wanted)
    except UserError as error:
        raise Unfit(str(error)) from None
    if hasattr(arguments[0], "environment"):
        environment.lock_as_begun(arguments[0].run, arguments[0].environment, here)
    with socket.socket(socket.AF_UNIX) as held:
        try:
            if card := telemetry.card(here):
                held.bind(f"\0attnlab-{card}")  # a name that ends with the process
        except OSError:
            raise Unfit("another worker measures on its card: give each a GPU of its own") from None
        return call(*arguments)


def _device(wanted: str) -> dict[str, Any]:
    return devices.describe(devices.resolve(wanted))


def _recorded(folder: str, known: Set[str], parts: bool = False) -> dict[str, bytes]:
    """New blocks of processes, and of shapes and cases of which all is recorded, in the order to record them in.

    Args:
        parts: whether the others are asked for too.
    """
    found = {path.name: path for path in Path(folder).glob(f"*/{schema.PARTS}/[!.]*.parquet") if path.name not in known}
    keys = {name: name.split(".")[:2] for name in found}
    whole = {key for table, key in keys.values() if table in write.LAST}
    names = [name for name, (table, key) in keys.items() if parts or table == FIRST or schema.of_shape(key) in whole]
    names.sort(key=lambda name: (keys[name][0] in write.LAST, keys[name][0] != FIRST))
    return {name: found[name].read_bytes() for name in names}


def _files(about: Any) -> dict[str, bytes]:
    """The files of a worker's data folder: the manifest, the dispatch table and the blocks to go on from, of a run."""
    if not hasattr(about, "run"):
        return {}
    folder, start = schema.folder(about.run), ""
    table = dispatch.path(read.read_manifest(about.run)["device"]["name"])
    if isinstance(about, Job):
        start = f"{schema.replicate_key(about.replicate)}-"
    blocks = folder.glob(f"{schema.PARTS}/[!.]*.{start}*.parquet")
    found = {str(path.relative_to(paths.data())): path for path in (folder / "manifest.json", *blocks)}
    if table.is_file():
        found[f"{paths.dispatch().name}/{table.name}"] = table
    return {name: path.read_bytes() for name, path in found.items()}


def take(run: str, blocks: Mapping[str, bytes]) -> None:
    """Record blocks of a worker in their order: a client that is killed meanwhile leaves no shape half recorded.

    Raises:
        OSError: the disk is full, or a block has other content than its name says.
    """
    for name, content in blocks.items():
        write.take_part(run, name, content)
