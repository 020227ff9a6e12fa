"""What more GPUs gain, computed from the published run, and what a cluster costs.

    python benchmarks/cluster.py        # 2, 4, 8 and 16 workers of this host, a minute or two
    python benchmarks/cluster.py 2 4    # these numbers of workers

Workers are Dask's own, one process each, behind a scheduler over TCP. Each task's result holds blocks, as that of a
piece of a replicate does (`attnlab.measure.cluster.remote`), of the size that they have in the published run, and the
client writes them as it does in a run. Nothing is timed on a device.
"""

import logging
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import distributed
import pandas as pd
from published import RUN

from attnlab.base import files
from attnlab.measure.cluster import scheduling
from attnlab.measure.session.estimate import PROCESS_S
from attnlab.measure.session.subject import Job
from attnlab.runs import read, schema
from attnlab.study import studies
from attnlab.study.shapes import Shape

GPUS = (1, 2, 4, 8, 32, 256)
WORKERS = (2, 4, 8, 16)
EMPTY_TASKS = 500
TASKS, BLOCKS = 4, 10
"""Tasks of each worker, without a pause, and the blocks of each: the most that a client can take."""


class Measured(NamedTuple):
    """What so many workers took.

    Attributes:
        task_ms: from handing a task out to having its result, for tasks that do nothing, over all workers.
        home_ms: a block, from a worker's disk to the client's, over all workers.
        mb_s: blocks that came home in a second.
    """

    workers: int
    task_ms: float
    home_ms: float
    mb_s: float


def main(counts: list[int]) -> None:
    """Print what the published run would take on more GPUs, what its blocks hold, and a row per number of workers."""
    _plan()
    block, total, blocks = _published()
    print(f"\na block of {RUN}: {len(block) / 1e3:.0f} kB in the mean; {blocks} blocks, {total / 1e6:.0f} MB in all")
    print(f"{'workers':>8} {'ms a task':>10} {'ms a block':>11} {'MB/s home':>10}")
    for count in counts:
        found = _measured(count, block)
        print(f"{found.workers:>8} {found.task_ms:>10.2f} {found.home_ms:>11.2f} {found.mb_s:>10.1f}", flush=True)


def _plan() -> None:
    """Deal the replicates of the published run's study, by how long its shapes took, and print how long cards need."""
    study = studies.recorded(read.read_manifest(RUN))
    took_s = _shape_seconds()
    jobs = [Job(RUN, study, "cuda", number, tuple(study.shapes), "") for number in range(study.replicates)]
    longest = f"the longest shape {max(took_s.values()):.0f} s"
    print(f"the {study.replicates} replicates of {RUN}, {longest}; not measured, computed:")
    print(f"{'GPUs':>8} {'s':>10} {'times as fast':>14} {'processes a GPU':>16}")
    alone_s = 0.0
    for gpus in GPUS:
        ends_s, processes = _dealt(jobs, took_s, gpus)
        alone_s = alone_s or max(ends_s)
        print(f"{gpus:>8} {max(ends_s):>10.0f} {alone_s / max(ends_s):>14.2f} {max(processes):>16}")


def _dealt(jobs: list[Job], took_s: dict[Shape, float], gpus: int) -> tuple[list[float], list[int]]:
    """When each GPU ends, in seconds, and how many processes it starts, if each takes a piece whenever it is free."""
    waiting = scheduling.pieces(jobs, took_s, gpus)
    taken: dict[str, Counter[int]] = {str(gpu): Counter() for gpu in range(gpus)}
    ends_s, now_s = dict.fromkeys(taken, 0.0), 0.0
    while waiting:
        for gpu in [gpu for gpu, end_s in ends_s.items() if end_s <= now_s]:
            if (chosen := scheduling.choose(waiting, gpu, taken)) is not None:
                number, piece = waiting.pop(chosen)
                taken[gpu][number] += 1
                ends_s[gpu] = now_s + PROCESS_S + sum(took_s[shape] for shape in piece.shapes)
        now_s = min((end_s for end_s in ends_s.values() if end_s > now_s), default=now_s)
    return list(ends_s.values()), [pieces.total() for pieces in taken.values()]


def _shape_seconds() -> dict[Shape, float]:
    """How long each shape took, in the mean over replicates: from the last sample before it to its own last one."""
    samples = read.load(RUN).samples
    ends = samples.groupby(["process", *Shape.AXES], sort=False)["started_s"].max().sort_values()
    took = ends.groupby("process").diff().fillna(ends).groupby(list(Shape.AXES)).mean()
    return {Shape(**dict(zip(Shape.AXES, axes, strict=True))): float(seconds) for axes, seconds in took.items()}


def _published() -> tuple[bytes, int, int]:
    """A block of samples of the published run, of about the mean size, and how much all of its blocks are."""
    samples = read.load(RUN).samples
    groups = samples.groupby([*schema.CASE[1:], "replicate", "clock", "cache"], sort=False)
    sizes = [(len(_parquet(rows)), rows) for _, rows in groups]
    mean = sum(size for size, _ in sizes) / len(sizes)
    typical = min(sizes, key=lambda each: abs(each[0] - mean))[1]
    return _parquet(typical), sum(size for size, _ in sizes), len(sizes)


def _parquet(rows: pd.DataFrame) -> bytes:
    return bytes(rows.to_parquet(None, index=False))


def _measured(count: int, block: bytes) -> Measured:
    cluster = distributed.LocalCluster(
        n_workers=count, threads_per_worker=1, dashboard_address=None, memory_limit=0, silence_logs=logging.CRITICAL
    )
    try:
        with distributed.Client(cluster) as client, tempfile.TemporaryDirectory() as folder:
            client.wait_for_workers(count)
            client.gather(client.map(_nothing, range(count), pure=False))
            began = time.perf_counter()
            client.gather(client.map(_nothing, range(EMPTY_TASKS), pure=False))
            task_s = (time.perf_counter() - began) / EMPTY_TASKS
            home_s = _home_s(client, count, block, Path(folder))
    finally:
        with suppress(TimeoutError):  # a worker that is slow to end ends with this process
            cluster.close()
    return Measured(count, 1e3 * task_s, 1e3 * home_s, len(block) / home_s / 1e6)


def _nothing(number: int) -> int:
    return number


def _home_s(client: distributed.Client, count: int, block: bytes, folder: Path) -> float:
    """Seconds of a block, from a worker that sends to the client's disk."""
    began = time.perf_counter()
    tasks = client.map(_recorded, [block] * count * TASKS, pure=False)
    for number, (_, blocks) in enumerate(distributed.as_completed(tasks, with_results=True)):
        for index, content in enumerate(blocks):
            files.write_atomically(folder / f"{number}-{index}.parquet", content)
    return (time.perf_counter() - began) / (count * TASKS * BLOCKS)


def _recorded(block: bytes) -> list[bytes]:
    return [bytes(bytearray(block)) for _ in range(BLOCKS)]  # each its own, as those of a run are


if __name__ == "__main__":
    try:
        asked = [int(word) for word in sys.argv[1:]]
    except ValueError:
        sys.exit("cluster.py takes numbers of workers, such as 2 4 8")
    main(asked or list(WORKERS))
