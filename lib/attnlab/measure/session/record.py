"""Recording a run: whatever the study asks for and the run lacks is handed to processes; then the run is closed."""

import errno
import hashlib
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from datetime import UTC, datetime
from itertools import chain, count
from typing import Any

import torch
from tqdm import tqdm

from attnlab.base import paths, sources
from attnlab.base.errors import Interrupted, UserError
from attnlab.base.version import VERSION
from attnlab.measure.clocks import ours
from attnlab.measure.instruments import counters, devices
from attnlab.measure.session import panel, worker
from attnlab.measure.session.subject import Job
from attnlab.runs import dispatch, read, rules, schema, write
from attnlab.study import implementations, ladder
from attnlab.study.studies import Study, recorded

POLL_S = 0.5


def fresh_processes() -> Executor:
    """An executor that runs one process at a time, a new one for each job: one GPU, strictly serial."""
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"), max_tasks_per_child=1)


def record(name: str, study: Study, wanted: str, executor: Executor | None = None) -> str:
    """Measure the study into the run `name`, which is new, or was cut off and is resumed.

    Args:
        wanted: ``auto``, ``cuda`` or ``cpu``.
        executor: runs the jobs, a replicate each; default `fresh_processes`.

    Raises:
        UserError: the device isn't there, or failed; the run is of another study or environment; the disk or the memory
            is full; a process died. What was recorded until then is kept.
    """
    device = devices.resolve(wanted).type
    with write.lock(name), executor or fresh_processes() as pool:
        try:
            environment = _open(pool, name, study, device)
            _work_through(pool, _jobs(name, study, device, environment))
            _take_panel(pool, panel.Job(name, study, device, environment))
            write.finish(name, {"profile": counters.take(name, study, device)})
        except KeyboardInterrupt:
            _stop(pool)
            raise Interrupted(
                f"interrupted; what was recorded of {name!r} is kept: `make measure RUN={name}` goes on"
            ) from None
        except BrokenProcessPool:
            raise UserError(
                f"the measuring process died (killed, or out of host memory); what was recorded of {name!r} is kept: "
                f"`make measure RUN={name}` goes on"
            ) from None
        except torch.AcceleratorError as error:
            raise UserError(
                f"the device failed ({str(error).splitlines()[0]}); what was recorded of {name!r} is kept: "
                f"`make measure RUN={name}` goes on; if it fails again, leave out of the study what it measures then"
            ) from None
        except MemoryError:
            raise UserError(
                f"host memory ran out; what was recorded of {name!r} is kept: `make measure RUN={name}` goes on"
            ) from None
        except OSError as error:
            raise UserError(_disk_problem(name, error)) from None
    return name


def new_name(device: torch.device) -> str:
    """A name for a run that begins now: the device and the time, such as ``h200-20261121-064501``.

    If a run already has that name, because the clock was set back, a number is added.
    """
    described = devices.describe(device)
    words = str(described["name"]).lower().split()
    model = "cpu" if described["kind"] == "cpu" else next((w for w in words if any(c.isdigit() for c in w)), "gpu")
    name = f"{model}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    numbered = (f"{name}-{number}" for number in count(2))
    return next(free for free in chain([name], numbered) if not schema.folder(free).exists())


def _open(pool: Executor, name: str, study: Study, device: str) -> str:
    """Begin the run, or resume one that was cut off; returns the hash of its environment."""
    if not (schema.folder(name) / "manifest.json").is_file():
        print(f"{name}: looking at the machine and its ceilings", file=sys.stderr)
        found = pool.submit(worker.survey, device, study).result()
        write.create(name, _manifest(study, device, found))
    manifest = read.read_manifest(name)
    if recorded(manifest) != study:
        raise UserError(f"the run {name!r} is of another study ({manifest['study']['name']}): choose another name")
    if manifest["complete"]:
        write.finish(name)  # if it was killed after its last block, it may have left parts
        raise UserError(f"the run {name!r} is complete: `make report RUN={name}` renders it")
    changed = [
        kernel
        for kernel, value in ladder.hashes(_rungs(study)).items()
        if manifest.get("kernels", {}).get(kernel) != value
    ]
    if changed:
        raise UserError(f"{', '.join(changed)} changed since the run {name!r} began: start a new run")
    if manifest.get("dispatch", {}) != _dispatched(study, manifest["device"]["name"]):
        raise UserError(f"the dispatch table changed since the run {name!r} began: start a new run")
    return str(manifest["environment"]["hash"])


def _rungs(study: Study) -> list[ladder.Rung]:
    """The rungs of the ladder that a study measures."""
    return [rung for rung in ladder.load() if rung.implementation in study.implementations]


def _manifest(study: Study, device: str, found: dict[str, Any]) -> dict[str, Any]:
    rungs = _rungs(study)
    missing = [str(timing) for timing in study.timings if not ours.available(devices.resolve(device), timing)]
    return {
        "attnlab": VERSION,
        "commit": _commit(),
        "command": f"make measure STUDY={study.name} DEVICE={device}",
        **found,
        "study": study.model_dump(mode="json"),
        "missing_clocks": missing,
        "rules": rules.recorded(),
        "sources": sources.digests(__name__),
        "ladder": [rung.model_dump(mode="json") for rung in rungs],
        "kernels": ladder.hashes(rungs),
        "dispatch": _dispatched(study, found["device"]["name"]),
    }


def _dispatched(study: Study, device_name: str) -> dict[str, str]:
    """The dispatch table of `attnlab.attend` in this run, and its hash; empty if the study doesn't measure `attend`."""
    table = dispatch.path(device_name)
    if implementations.DISPATCH not in study.implementations or not table.is_file():
        return {}
    digest = hashlib.sha256(table.read_bytes()).hexdigest()
    return {"run": dispatch.load(table, device_name).run, table.name: digest}


def _jobs(name: str, study: Study, device: str, environment: str) -> list[Job]:
    """A job for each replicate that still lacks shapes or its stream."""
    done, streams = write.recorded(name, "cases"), write.recorded(name, "stream")
    jobs = []
    for replicate in range(study.replicates):
        shapes = tuple(s for s in study.shapes if schema.shape_key(study, s, replicate) not in done)
        if shapes or (study.stream and schema.replicate_key(replicate) not in streams):
            jobs.append(Job(name, study, device, replicate, shapes, environment))
    return jobs


def _work_through(pool: Executor, jobs: list[Job]) -> None:
    """Hand out the jobs, and show the progress until all are done."""
    if not jobs:
        return
    name, before = jobs[0].run, len(write.recorded(jobs[0].run, "cases"))
    waiting: set[Future[None]] = {pool.submit(worker.measure, job) for job in jobs}
    with _Progress(name, max(1, before + sum(len(job.shapes) for job in jobs))) as show:
        while waiting:
            done, waiting = wait(waiting, timeout=POLL_S, return_when="FIRST_COMPLETED")
            show(len(write.recorded(name, "cases")))
            for future in done:
                future.result()


def _take_panel(pool: Executor, job: panel.Job) -> None:
    """On a GPU, take the panel of clocks if the study asks for it."""
    if job.device == "cuda" and job.study.panel:
        print(f"{job.run}: the panel of clocks", file=sys.stderr, flush=True)
        pool.submit(panel.take, job).result()


class _Progress:
    """A progress bar in a terminal; elsewhere a line at every eighth."""

    def __init__(self, name: str, total: int) -> None:
        self._bar = tqdm(total=total, desc=name, unit="shape", disable=None, leave=False)
        self._name, self._total, self._said = name, total, 0

    def __enter__(self) -> Callable[[int], None]:
        return self._show

    def __exit__(self, *exception: object) -> None:
        self._bar.close()

    def _show(self, done: int) -> None:
        self._bar.update(done - self._bar.n)
        if self._bar.disable and 8 * done // self._total > self._said:
            self._said = 8 * done // self._total
            print(f"{self._name}: {done} of {self._total} shapes measured", file=sys.stderr, flush=True)


def _stop(pool: Executor) -> None:
    pool.shutdown(wait=False, cancel_futures=True)
    for child in multiprocessing.active_children():
        child.terminate()


def _disk_problem(name: str, error: OSError) -> str:
    what = (
        "the disk is full"
        if error.errno in (errno.ENOSPC, errno.EDQUOT)
        else f"writing failed ({error.strerror or error})"
    )
    return f"{what}; what was recorded of {name!r} is kept: make room, then `make measure RUN={name}` goes on"


def _commit() -> str:
    """The commit that measures, with ``+`` if files differ from it; "n/a" outside of a repository.

    For a copy without its repository, ATTNLAB_COMMIT states it.
    """
    if "ATTNLAB_COMMIT" in os.environ:
        return os.environ["ATTNLAB_COMMIT"]
    git = ["git", "-C", os.fspath(paths.ROOT)]
    try:
        commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run(
            [*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return "n/a"
    return commit + ("+" if changed.strip() else "")
