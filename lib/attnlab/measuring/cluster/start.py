"""Getting hold of a cluster: one that starts here with the GPUs of this host, or one that is there."""

import asyncio
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from attnlab.base.errors import UserError

NEEDS = "which is not installed: `make measure` with GPUS or SCHEDULER sets it up"
CONNECT_S = 10


def _require(gpus: str, scheduler: str, wanted: str) -> None:
    """Raise UserError unless GPUS and SCHEDULER, as the command line gives them, say which cluster to use."""
    if gpus and scheduler:
        raise UserError("GPUS starts a cluster here, and SCHEDULER uses one that is there: give one of the two")
    if gpus and gpus != "all" and not (gpus.isdecimal() and int(gpus) > 0):
        raise UserError(f"GPUS={gpus}: give how many of this host's GPUs to measure on, from 1 on, or all")
    if gpus and wanted == "cpu":
        raise UserError("GPUS measures on GPUs, and DEVICE or the study says cpu: leave GPUS out")
    if scheduler and "://" not in scheduler:
        raise UserError(f"SCHEDULER={scheduler}: give its address as `dask scheduler` prints it, tcp://HOST:PORT")


def _count(gpus: str) -> int:
    """How many GPUs of this host are meant; raises UserError if there are fewer."""
    import torch

    there = torch.cuda.device_count()
    asked = there if gpus == "all" else int(gpus)
    if asked > there or not there:
        instead = f"ask for {there}" if there else "leave GPUS out"
        raise UserError(f"GPUS={gpus}: torch sees {there} NVIDIA GPU{'s' * (there != 1)} here: {instead}")
    return asked


@contextmanager
def fleet(gpus: str, scheduler: str, wanted: str) -> Iterator[Any]:
    """The cluster as an executor, a `fleet.Fleet`; it ends with the context.

    Args:
        gpus: how many GPUs of this host, or ``all``; empty where the scheduler is given.
        scheduler: the address of a scheduler.
        wanted: ``auto``, ``cuda`` or ``cpu``.

    Raises:
        UserError: Dask is not installed, GPUs are lacking, no scheduler answers, or no worker can measure.
    """
    _require(gpus, scheduler, wanted)
    number = _count(gpus) if gpus else 0
    try:
        import distributed

        from attnlab.measuring.cluster.fleet import Fleet
    except ImportError as error:
        raise UserError(f"measuring on several GPUs needs {error.name}, {NEEDS}") from None
    # What Dask, and the loop that it runs in, say of lost workers and other versions, the fleet says in a line.
    of_dask = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] == "distributed"]
    for name in (*of_dask, "tornado.application"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", category=distributed.versions.VersionMismatchWarning)
    # A run that goes on is sent to who counts in it; and the address of the dashboard is printed, whichever it is.
    for said in ("Sending large graph", r"\s*Port \d+ is already in use"):
        warnings.filterwarnings("ignore", said, UserWarning)
    cluster = _local(number) if gpus else None
    client = distributed.Client(cluster, timeout=CONNECT_S) if cluster else _client(scheduler)
    print(f"the cluster's dashboard: {client.dashboard_link}", file=sys.stderr, flush=True)
    try:
        with Fleet(client, "cuda" if gpus else wanted) as executor:
            yield executor
    finally:
        client.close()
        if cluster is not None:
            cluster.close()


def _client(scheduler: str) -> Any:
    """A client of the scheduler at an address; raises UserError unless one answers."""
    import distributed

    async def identify() -> None:
        async with distributed.rpc(scheduler) as there:
            if (kind := (await there.identity())["type"]) != "Scheduler":
                raise ValueError(f"what answers is a {kind}")

    try:
        # Dask's client waits for ever where something listens and doesn't answer.
        asyncio.run(asyncio.wait_for(identify(), CONNECT_S))
        return distributed.Client(scheduler, timeout=CONNECT_S)
    except Exception as error:  # whatever the address or another server leads Dask to
        said = " ".join(str(error).split()).partition(" after ")[0] or f"nothing in {CONNECT_S} s"
        raise UserError(f"no scheduler answers at {scheduler} ({said}): start one with `dask scheduler`") from None


def _local(number: int) -> Any:
    try:
        import dask
        from dask_cuda import LocalCUDACluster
    except ImportError as error:
        raise UserError(f"measuring on several GPUs needs {error.name}, {NEEDS}") from None
    # As many threads for torch as without a cluster, so that the environment is the same.
    with dask.config.set({"distributed.nanny.pre-spawn-environ": {}}):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or None
        return LocalCUDACluster(
            CUDA_VISIBLE_DEVICES=visible,
            n_workers=number,
            threads_per_worker=1,
            memory_limit=0,
            silence_logs=logging.CRITICAL,
        )
