"""What a worker of a cluster does: a fresh process measures into a folder of its own, whose blocks go home at once."""

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from distributed import Status, Worker, get_worker

from attnlab.measure.cluster import child
from attnlab.runs import schema, write

POLL_S = 0.1


@dataclass(frozen=True)
class Order:
    """What a worker is asked to do.

    Attributes:
        number: by which the client knows whose block comes home.
        topic: the topic of Dask's events under which blocks go home.
        files: what the process finds in its data folder, by path.
    """

    number: int
    topic: str
    work: Callable[..., Any]
    arguments: tuple[Any, ...]
    files: dict[str, bytes]


def carry_out(order: Order) -> Any:
    """Do what an order asks for in a fresh process, and send home every block as soon as it is written.

    Raises:
        BrokenProcessPool: the process died.
        Exception: whatever the process raised.
    """
    worker = get_worker()
    key = worker.get_current_task()
    with TemporaryDirectory(prefix="attnlab-") as folder:
        data, outcome = Path(folder) / "data", Path(folder) / "outcome"
        for name, content in order.files.items():
            (data / name).parent.mkdir(parents=True, exist_ok=True)
            (data / name).write_bytes(content)
        sent = set(order.files)
        process = _start(order, data, outcome)
        try:
            while process.poll() is None and _is_wanted(worker, key):
                _send(worker, order, data, sent)
                time.sleep(POLL_S)
        finally:
            process.kill()
            process.wait()
        _send(worker, order, data, sent)
        return _outcome(outcome)


def _start(order: Order, data: Path, outcome: Path) -> "subprocess.Popen[bytes]":
    # Not by multiprocessing: a worker under Dask's nanny is a daemon, which may have no children there.
    process = subprocess.Popen(
        [sys.executable, "-m", child.__name__, os.fspath(outcome)],
        stdin=subprocess.PIPE,
        env=os.environ | {"ATTNLAB_DATA": os.fspath(data)} | _own_card(),
        start_new_session=True,  # Ctrl-C reaches the client alone
    )
    assert process.stdin is not None
    process.stdin.write(pickle.dumps((order.work, order.arguments)))
    process.stdin.flush()  # and left open: when it closes, the process ends
    return process


def _own_card() -> dict[str, str]:
    """CUDA_VISIBLE_DEVICES of this worker alone: dask-cuda lists its card first, and then the others."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return {"CUDA_VISIBLE_DEVICES": visible.split(",")[0]} if visible else {}


def _is_wanted(worker: Worker, key: Any) -> bool:
    """Whether somebody still waits for this task: the client may have given it up, or the scheduler be lost."""
    task = worker.state.tasks.get(key)
    return worker.status == Status.running and task is not None and task.state == "executing"


def _send(worker: Worker, order: Order, data: Path, sent: set[str]) -> None:
    """Send home the blocks that are new in the folder, in the order in which they were written.

    They are renamed into place, so each is whole. Those by which a shape or a case counts as recorded come last.
    """
    there = {os.fspath(path.relative_to(data)): path for path in data.glob(f"*/{schema.PARTS}/[!.]*.parquet")}
    for name in sorted(there.keys() - sent, key=lambda name: _written(there[name])):
        content = there[name].read_bytes()
        worker.log_event(order.topic, {"order": order.number, "name": there[name].name, "content": content})
        sent.add(name)


def _written(part: Path) -> tuple[int, bool, str]:
    # Two blocks may have the same time: file systems count it in steps of milliseconds.
    return part.stat().st_mtime_ns, part.name.split(".")[0] in write.LAST, part.name


def _outcome(path: Path) -> Any:
    if not path.is_file():
        raise BrokenProcessPool("the measuring process died")
    value, error = pickle.loads(path.read_bytes())
    if error is not None:
        raise error
    return value
