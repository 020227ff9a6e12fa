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
add = write.add_part


def fails_once(job: Job) -> None:
    """The first card that reaches a length fails there, as after a candidate's illegal access."""
    (worker.measure if _happened("failed") else fails_always)(job)


def fails_always(job: Job) -> None:
    """Every card fails at a length."""

    def failing(name, table, key, rows) -> None:
        if table == "samples" and rows["seq_len"].iloc[0] == BAD:
            (_flags() / "failed").touch()
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nmore")
        add(name, table, key, rows)

    write.add_part = failing
    worker.measure(job)


def dies_once(job: Job) -> None:
    """The first process that is to measure a length is killed."""
    if BAD in [shape.seq_len for shape in job.shapes] and not _happened("died"):
        (_flags() / "died").touch()
        os._exit(9)
    worker.measure(job)


def kills_its_worker(job: Job) -> None:
    """Kill the worker that started this process."""
    os.kill(multiprocessing.parent_process().pid, signal.SIGKILL)
    time.sleep(60)


def slowly(job: Job) -> None:
    """Measure, and take a while over each block."""
    write.add_part = lambda *block: (add(*block), time.sleep(0.2))
    worker.measure(job)


def waits(job: Job) -> None:
    """Measure, and among the samples of a second shape wait until a flag says to go on."""

    def waiting(name: str, table: str, *block: object) -> None:
        add(name, table, *block)
        while table == "samples" and write.recorded(name, "cases") and not _happened(GO_ON):
            time.sleep(0.02)

    write.add_part = waiting
    worker.measure(job)


def meets(job: Job, patience_s: float = 60) -> str:
    """Say that one is there, a replicate as part b, and wait for a second; a replicate then is measured."""
    (_flags() / (job.part or "part b")).touch()
    while len(list(_flags().glob("part *"))) < 2 and patience_s > 0:
        time.sleep(0.05)
        patience_s -= 0.05
    if job.shapes:
        worker.measure(job)
    return f"{job.part} of {len(list(_flags().glob('part *')))}"


def _flags() -> Path:
    return Path(os.environ[FLAGS])


def _happened(flag: str) -> bool:
    return (_flags() / flag).exists()
