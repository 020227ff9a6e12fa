"""Record a run: submit the study's work that the run still lacks to processes, then close the run."""

import errno
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Executor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from attnlab.base import documents, paths, rules, sources
from attnlab.base.errors import Interrupted, Outdated, UserError
from attnlab.base.version import VERSION
from attnlab.measuring import processes
from attnlab.measuring.instruments import counters
from attnlab.measuring.kernels import backward
from attnlab.measuring.session import worker
from attnlab.measuring.session.subject import STREAM_PART, Job
from attnlab.measuring.values import captured
from attnlab.runs import dispatch, read, schema, write
from attnlab.study import callables, implementations, ladder, tuning
from attnlab.study.shapes import shape_of
from attnlab.study.studies import Study, recorded

POLL_S = 0.5
LONGEST_S = 86_400
"""1 day in seconds. A longer study is begun only on request."""


def record(
    name: str,
    study: Study,
    device: str,
    executor: Executor | None = None,
    long: bool = False,
    command: str = "",
    again: str | None = None,
) -> str:
    """Measure the study into the run `name`, which is new, or was cut off and is resumed.

    Args:
        device: ``cuda`` or ``cpu``; with an executor, the kind of its devices.
        executor: runs the jobs, a replicate each, in fresh processes; default `processes.fresh_processes`.
        long: whether a new run may take longer than a day.
        command: the user's command that measures such a run; by default that for one device of this kind.
        again: the user's command that resumes this run, empty if it isn't kept; by default that for one device.

    Raises:
        Outdated: the run began in another environment, with other kernels or another dispatch table.
        UserError: the device is missing or failed; a new run would take too long; or the run is of another study.
            Also: blocks of the run were lost or changed; the disk or memory is full; or a process, or all workers,
            died. Blocks that were recorded until then are kept.
    """
    command = command or command_for(study.name, f"DEVICE={device}")
    again = f"make measure RUN={name}" if again is None else again
    held = write.lock(name, {"study": study.model_dump(mode="json")})
    with held, executor or processes.fresh_processes() as pool, explained(schema.folder(name), pool, again):
        _open(pool, name, study, device, long, command)
        shapes = _jobs(name, study, device)
        with _progress(name, study):
            _take(pool, name, [job for job in shapes if not job.replicate])
            # Taken before the other replicates, so that a run that is closed early has these parts.
            once = _once(name, study, device)
            if once:
                tqdm.write(f"{name}: {' and '.join(map(str, once))}", file=sys.stderr)
            _take(pool, name, [*once, *(job for job in shapes if job.replicate)])
            _take(pool, name, _jobs(name, study, device, STREAM_PART))
        write.finish(name)
    return name


@contextmanager
def explained(target: Path, pool: Executor, again: str) -> Iterator[None]:
    """A context in which an interruption stops the pool, and raises an error that says how to go on in one line.

    The user's command `again` resumes the recording in the folder `target`; it is empty if that isn't kept.

    Raises UserError: in place of the error raised inside.
    """
    first, after = "", ""
    try:
        yield
        return
    except KeyboardInterrupt:
        processes.stop(pool)
        why = "interrupted"
    except BrokenProcessPool:
        why = "the measuring process died (killed, or out of host memory)"
    except BrokenExecutor as error:
        why = str(error)
    except torch.AcceleratorError as error:
        why = f"the device failed ({str(error).splitlines()[0]})"
        after = "; if it fails again, leave out of the study what it measures then"
    except MemoryError:
        why = "host memory ran out"
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        why, first = "the disk is full" if full else f"writing failed ({error.strerror or error})", "make room"
    if again and (target / "manifest.json").is_file():
        kept = f"what was recorded of {target.name!r} is kept: {first and f'{first}, then '}`{again}` goes on{after}"
    else:
        kept = f"nothing was {'recorded yet' if again else 'kept'}{first and f': {first}'}"
    raise (Interrupted if why == "interrupted" else UserError)(f"{why}; {kept}")


def command_for(study: str, where: str) -> str:
    """The command that measures a study, as STUDY names it, on the devices that `where` states."""
    return f"make measure STUDY={shlex.quote(study)} {where}"


def new_name(described: dict[str, Any]) -> str:
    """A name for a run that begins now: the described device and the time, such as ``h200-20261121-064501``.

    If a run already has that name, because the clock was set back, a number is added.
    """
    words = str(described["name"]).lower().split()
    model = "cpu" if described["kind"] == "cpu" else next((w for w in words if any(c.isdigit() for c in w)), "gpu")
    name = f"{model}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    numbered = (f"{name}-{number}" if number > 1 else name for number in count(1))
    return next(free for free in numbered if not schema.folder(free).exists())


def _open(pool: Executor, name: str, study: Study, device: str, long: bool, command: str) -> None:
    """Begin the run, or resume one that was cut off."""
    if not (schema.folder(name) / "manifest.json").is_file():
        # Both raise UserError for missing files, before the survey of the machine.
        callables.hashes(study.implementations)
        captured.digests(study)
        print(f"{name}: looking at the machine and its ceilings", file=sys.stderr)
        found, seconds = pool.submit(worker.survey, device, study).result()
        _announce(study, seconds, long)
        write.create(name, _manifest(study, command, found))
    manifest = read.read_manifest(name)
    if recorded(manifest) != study:
        raise UserError(f"the run {name!r} is of another study ({manifest['study']['name']}): choose another name")
    write.require_incomplete(name, manifest)
    worker.require_unchanged(study, manifest)
    if manifest["dispatch"] != _dispatched(study, manifest["device"]["name"]):
        changed = "the dispatch table, or the kernel of gradients, changed"
        raise Outdated(f"{changed} since the run {name!r} began: start a new run")
    if manifest.get("captured", {}) != captured.digests(study):
        raise Outdated(f"what was captured ({study.captured}) changed since the run {name!r} began: start a new run")
    read.load(name)  # raises if blocks were lost or changed, before others are measured


def _announce(study: Study, seconds: float, long: bool) -> None:
    """Print how long a study will take; raises UserError above `LONGEST_S`, unless `long`."""
    amounts = {"shape": len(study.shapes), "implementation": len(study.implementations), "timing": len(study.timings)}
    amounts |= {"sample": study.samples, "replicate": study.replicates}
    stated = " x ".join(f"{amount} {one}{'s' * (amount != 1)}" for one, amount in amounts.items())
    if seconds > LONGEST_S and not long:
        raise UserError(
            f"the study {study.name!r} would take {_duration(seconds)} here ({stated}), and what takes longer than a "
            "day is not begun by accident: state less, or add LONG=1 (--long)"
        )
    print(f"{study.name}: {stated}, {_duration(seconds)}", file=sys.stderr, flush=True)


def _duration(seconds: float) -> str:
    """A duration to 2 digits, in the largest unit in which it is at least 2, such as ``about 25 minutes``."""
    sizes = {"days": 86_400, "hours": 3600, "minutes": 60, "seconds": 1}
    unit = next((unit for unit, size in sizes.items() if seconds >= 2 * size), "seconds")
    return f"about {float(f'{seconds / sizes[unit]:.2g}'):,.0f} {unit}"


def _manifest(study: Study, command: str, found: dict[str, Any]) -> dict[str, Any]:
    return found | {
        "attnlab": VERSION,
        "commit": _commit(),
        "command": command,
        "sources": sources.digests(__name__),
        "rules": rules.recorded(),
        "study": study.model_dump(mode="json"),
        "ladder": [rung.model_dump(mode="json") for rung in ladder.among(study.implementations)],
        "kernels": tuning.hashes(study.implementations, found["device"]["name"]),
        "dispatch": _dispatched(study, found["device"]["name"]),
    }


def _dispatched(study: Study, device_name: str) -> dict[str, str]:
    """The dispatch table of `attnlab.attend` in this run, and its hash; empty if the study doesn't measure `attend`.

    For gradients it adds the hash of the backward kernel, which no tuning names.
    """
    if implementations.DISPATCH not in study.implementations:
        return {}
    trains = any(shape.trains for shape in study.shapes)
    gradients = {backward.SOURCE: documents.digest(ladder.files(backward.SOURCE))} if trains else {}
    return dispatch.identity(device_name) | gradients


def _jobs(name: str, study: Study, device: str, part: str = "") -> list[Job]:
    """A job for each replicate, with the shapes that the run lacks; or, if `part` is the stream, its missing stream."""
    done = write.recorded(name, "stream" if part else "cases")
    jobs = []
    for number in range(study.replicates):
        shapes = tuple(s for s in study.shapes if not part and schema.shape_key(study, s, number) not in done)
        if shapes or (part and study.stream and schema.replicate_key(number) not in done):
            jobs.append(Job(name, study, device, number, shapes, part))
    return jobs


def _once(name: str, study: Study, device: str) -> list[Job]:
    """Jobs for the parts that a run takes once and lacks. On a CPU there are none, and the manifest says why."""
    if "profile" in read.read_manifest(name):
        return []
    if device != "cuda":  # no process is started to say that there are none
        write.state(name, {"profile": counters.take(name, study, device)})
        return []
    parts = worker.ONCE if study.panel else worker.ONCE[-1:]
    return [Job(name, study, device, 0, (), part) for part in parts]


def _take(pool: Executor, name: str, jobs: list[Job]) -> None:
    """Run jobs in the pool, and add the profile's entry to the manifest."""
    for profile in filter(None, pool.map(worker.take, jobs)):
        write.state(name, {"profile": profile})


@contextmanager
def _progress(name: str, study: Study) -> Iterator[None]:
    """A context that shows the measured shapes and the time left: by a bar, or by a line per 1/8 of the shapes."""
    planned_s = read.read_manifest(name).get("planned_s") or [1.0] * len(study.shapes)
    keys = [schema.shape_key(study, shape, number) for number in range(study.replicates) for shape in study.shapes]
    seconds = dict(zip(keys, planned_s * study.replicates, strict=True))
    seen, failed, over, began_s = write.recorded(name, "cases"), set[str](), threading.Event(), time.monotonic()
    left_s = start_s = sum(seconds[key] for key in keys if key not in seen)
    bar = tqdm(
        total=len(keys),
        initial=len(seen),
        desc=name,
        bar_format="{l_bar}{bar}| {n_fmt}/{total_fmt} shapes [{elapsed}{postfix}]",
        disable=False if "ipykernel" in sys.modules else None,  # None: hidden without a terminal
        leave=False,
    )

    def show() -> None:
        nonlocal left_s
        new = write.recorded(name, "cases") - seen
        eighths = 8 * len(seen) // len(keys)
        seen.update(new)
        left_s -= sum(seconds[key] for key in new)
        still_s = (time.monotonic() - began_s) * left_s / max(start_s - left_s, 1e-9)
        words = f"{_duration(still_s)} left" if len(seen) < len(keys) and left_s < start_s else ""
        bar.set_postfix_str(words, refresh=False)
        bar.update(len(new))
        if sys.stderr.isatty() or new:  # a notebook keeps each line that is shown
            bar.refresh()
        if bar.disable and 8 * len(seen) // len(keys) > eighths:
            said = f"{name}: {len(seen)} of {len(keys)} shapes measured{words and f'; {words}'}"
            print(said, file=sys.stderr, flush=True)
        _say_what_failed(name, new, failed)

    def repeat() -> None:
        while not over.wait(POLL_S):
            show()

    thread = threading.Thread(target=repeat, daemon=True)
    with bar:
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            show()


def _say_what_failed(name: str, keys: set[str], said: set[str]) -> None:
    """Print for each implementation that is not in `said` why its first case in these blocks failed."""
    for key in sorted(keys):
        try:
            cases = read.part(name, "cases", key)
        except (OSError, UserError, ValueError):  # reading the run reports it
            continue
        for _, case in cases[(cases["status"] == schema.FAILED) & ~cases["implementation"].isin(said)].iterrows():
            said.add(case["implementation"])
            tqdm.write(f"{case['implementation']} failed at {shape_of(case)}: {case['reason']}", file=sys.stderr)


def _commit() -> str:
    """The commit of this code, with ``+`` if files differ from it; "n/a" outside of a repository.

    For a copy without its repository, ATTNLAB_COMMIT states it.
    """
    if "ATTNLAB_COMMIT" in os.environ:
        return os.environ["ATTNLAB_COMMIT"]
    asked = ["git", "-C", os.fspath(paths.ROOT), "describe", "--always", "--exclude=*", "--abbrev=40", "--dirty=+"]
    within = os.environ | {"GIT_CEILING_DIRECTORIES": os.fspath(paths.ROOT.parent)}  # no repository around the project
    try:
        return subprocess.check_output(asked, text=True, stderr=subprocess.DEVNULL, env=within).strip()
    except (OSError, subprocess.CalledProcessError):
        return "n/a"
