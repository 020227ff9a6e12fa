"""What a measuring process of a cluster may do wrong. A flag is a file: it says what has happened once already."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

import torch

from attnlab.measuring.session import worker
from attnlab.measuring.session.subject import Job
from attnlab.runs import write

FLAGS, GO_ON = "ATTNLAB_TEST_FLAGS", "go on"
BAD = 32
"""The length at which the device fails."""


def fails_once(job: Job) -> None:
    """The first card that reaches a length fails there, as after a candidate's illegal access."""
    _watch_shapes(job, lambda: _first("failed"))


def fails_always(job: Job) -> None:
    """Every card fails at a length."""
    _watch_shapes(job, lambda: True)


def dies_once(job: Job) -> None:
    """The first process that reaches a length is killed there."""
    if BAD in [shape.seq_len for shape in job.shapes] and _first("died"):
        os._exit(9)
    worker.measure(job)


def kills_its_worker(job: Job) -> None:
    """Kill the worker that started this process."""
    os.kill(multiprocessing.parent_process().pid, signal.SIGKILL)
    time.sleep(60)


def slowly(job: Job) -> None:
    """Measure, and take a while over each block."""
    add = write.add_part

    def patiently(*arguments: object) -> None:
        add(*arguments)
        time.sleep(0.2)

    write.add_part = patiently
    worker.measure(job)


def waits(job: Job) -> None:
    """Measure, and among the samples of a second shape wait until a flag says to go on."""
    add = write.add_part

    def waiting(name: str, table: str, *block: object) -> None:
        add(name, table, *block)
        while table == "samples" and write.recorded(name, "cases") and not go_on.exists():
            time.sleep(0.02)

    go_on = Path(os.environ[FLAGS]) / GO_ON
    write.add_part = waiting
    worker.measure(job)


def _watch_shapes(job: Job, fails) -> None:
    add = write.add_part

    def failing(name, table, key, rows) -> None:
        if table == "samples" and rows["seq_len"].iloc[0] == BAD and fails():
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nmore")
        add(name, table, key, rows)

    write.add_part = failing
    worker.measure(job)


def _first(flag: str) -> bool:
    try:
        (Path(os.environ[FLAGS]) / flag).open("x").close()
    except FileExistsError:
        return False
    return True


def meets(own: str | Job, patience_s: float = 60) -> str | None:
    """Say that one is there, a job as part b, and wait for a second; a job then is measured."""
    if isinstance(own, Job):
        meets("part b")
        return worker.measure(own)
    folder = Path(os.environ[FLAGS])
    (folder / own).touch()
    while len(list(folder.glob("part *"))) < 2 and patience_s > 0:
        time.sleep(0.05)
        patience_s -= 0.05
    return f"{own} of {len(list(folder.glob('part *')))}"
