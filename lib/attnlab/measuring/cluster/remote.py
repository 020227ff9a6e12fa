"""The part of a worker: a fresh process does a task in a folder of its own; its blocks come home shape by shape."""

import asyncio
import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Executor, wait
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from distributed import Status, Worker, get_worker

from attnlab.measuring import processes
from attnlab.runs.schema import PARTS, of_shape
from attnlab.runs.write import LAST

POLL_S = 0.1
_ALONE = threading.Lock()
"""Who stops a task ends all processes of this worker: none that answers may be among them."""


@dataclass(frozen=True)
class Task:
    """A call for a fresh process.

    Attributes:
        files: what the process finds in its data folder, by path.
        topic: the events by which the client hears of blocks meanwhile.
    """

    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    files: dict[str, bytes]
    topic: str


@dataclass(frozen=True)
class Outcome:
    """A task's value, or the exception that ended it; and all blocks that it recorded until then, by name."""

    value: Any
    error: BaseException | None
    blocks: dict[str, bytes]


async def answer(call: Callable[..., Any], *arguments: Any) -> Any:
    """The value of a call in a fresh process, while this worker goes on telling the scheduler that it is there."""

    def called() -> Any:
        with _ALONE, _fresh_process({}) as pool:
            return pool.submit(call, *arguments).result()

    return await asyncio.to_thread(called)


def carry_out(packed: bytes) -> Outcome:
    """Do a pickled `Task` in a fresh process, which is ended when nobody waits for it any more."""
    task: Task = pickle.loads(packed)
    worker = get_worker()
    key = worker.get_current_task()
    with TemporaryDirectory(prefix="attnlab-") as folder:
        for name, content in task.files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        with _fresh_process({"ATTNLAB_DATA": folder}) as pool:
            doing = pool.submit(task.call, *task.arguments)
            sent = set(task.files)
            while _is_wanted(worker, key) and not wait([doing], POLL_S).done:
                if whole := _whole(_recorded(folder, sent)):
                    # Pairs: to a dictionary, the scheduler would add the worker's address.
                    worker.log_event(task.topic, (task.arguments[0].run, list(_contents(whole).items())))
                    sent |= whole.keys()
            if not doing.done():
                with _ALONE:
                    processes.stop(pool)
        error = doing.exception()
        blocks = _contents(_recorded(folder, task.files))
        return Outcome(None if error else doing.result(), error, blocks)


def _recorded(folder: str, known: Collection[str]) -> dict[str, Path]:
    """The blocks in a data folder besides those that are known, by path in it."""
    there = {os.fspath(part.relative_to(folder)): part for part in Path(folder).glob(f"*/{PARTS}/[!.]*.parquet")}
    return {name: there[name] for name in there.keys() - set(known)}


def _whole(blocks: dict[str, Path]) -> dict[str, Path]:
    """Those of shapes and the panel's cases of which all is recorded, and of processes: from there others can go on."""
    keys = {name: part.name.split(".")[:2] for name, part in blocks.items()}
    whole = {key for table, key in keys.values() if table in LAST}
    return {name: blocks[name] for name, (table, key) in keys.items() if table == "processes" or of_shape(key) in whole}


def _contents(blocks: dict[str, Path]) -> dict[str, bytes]:
    return {part.name: part.read_bytes() for part in blocks.values()}


def _fresh_process(environment: dict[str, str]) -> Executor:
    """An executor whose process sees the card of this worker alone: dask-cuda lists it first, and then the others."""
    # A worker under Dask's nanny is a daemon, which may have no children. Ours end with it by themselves.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    own = {"CUDA_VISIBLE_DEVICES": visible.split(",")[0]} if visible else {}
    return processes.fresh_processes(environment | own)


def _is_wanted(worker: Worker, key: Any) -> bool:
    """Whether somebody still waits for this task: the client may have given it up, or the scheduler be lost."""
    task = worker.state.tasks.get(key)
    return worker.status == Status.running and task is not None and task.state == "executing"
