"""Recording a run: whatever the study asks for and the run lacks is handed to processes; then the run is closed."""

import errno
import os
import shlex
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from attnlab.base import paths, rules, sources
from attnlab.base.errors import Interrupted, Outdated, UserError
from attnlab.base.version import VERSION
from attnlab.measuring import processes
from attnlab.measuring.instruments import counters, devices
from attnlab.measuring.session import estimate, once, worker
from attnlab.measuring.session.subject import Job
from attnlab.measuring.values import captured
from attnlab.runs import dispatch, read, schema, write
from attnlab.study import callables, implementations, ladder, tuning
from attnlab.study.shapes import Shape
from attnlab.study.studies import Study, recorded

POLL_S = 0.5
LONGEST_S = 86_400
"""A study that takes longer, a day, is begun only on request."""


def record(
    name: str,
    study: Study,
    wanted: str,
    executor: Executor | None = None,
    long: bool = False,
    command: str = "",
    again: str = "",
) -> str:
    """Measure the study into the run `name`, which is new, or was cut off and is resumed.

    Args:
        wanted: ``auto``, ``cuda`` or ``cpu``; the kind of the executor's devices, where there is one.
        executor: runs the jobs, a replicate each, in fresh processes; default `processes.fresh_processes`.
        long: whether a new run may take longer than a day.
        command: what a user types for such a run; default that on one device of this kind.
        again: what a user types to go on with this run; default that on one device.

    Raises:
        Outdated: the run began in another environment, with other kernels or another dispatch table.
        UserError: the device isn't there, or failed; a new run would take longer than it may; the run is of another
            study, or blocks of it were lost or changed; the disk or the memory is full; a process died, or all were
            lost. What was recorded until then is kept.
    """
    device = wanted if executor else devices.resolve(wanted).type
    command, again = command or command_for(study.name, f"DEVICE={device}"), again or f"make measure RUN={name}"
    held = write.lock(name, {"study": study.model_dump(mode="json")})
    with held, executor or processes.fresh_processes() as pool, explained(schema.folder(name), pool, again):
        environment = _open(pool, name, study, device, long, command)
        jobs = _jobs(name, study, device, environment)
        with _progress(name, jobs):
            _measure(pool, name, [], [job for job in jobs if not job.replicate])
            # Begun before the other replicates, so that a run that is closed early has it.
            once_only = _lacking_once(name, study, device, environment)
            _measure(pool, name, once_only, [job for job in jobs if job.replicate])
        write.finish(name)
    return name


@contextmanager
def explained(target: Path, pool: Executor, again: str) -> Iterator[None]:
    """Inside, whatever cuts recording off ends the pool's work and is said in one line, with how to go on.

    Args:
        target: the folder that is recorded into.
        again: what a user types to go on.

    Raises:
        UserError: in place of what was raised inside.
    """

    def cut_off(why: str, first: str = "", after: str = "") -> str:
        if not (target / "manifest.json").is_file():
            return f"{why}; nothing was recorded yet{first and f': {first}'}"
        then = first and f"{first}, then "
        return f"{why}; what was recorded of {target.name!r} is kept: {then}`{again}` goes on{after}"

    try:
        yield
    except KeyboardInterrupt:
        processes.stop(pool)
        raise Interrupted(cut_off("interrupted")) from None
    except BrokenProcessPool:
        raise UserError(cut_off("the measuring process died (killed, or out of host memory)")) from None
    except BrokenExecutor as error:
        raise UserError(cut_off(str(error))) from None
    except torch.AcceleratorError as error:
        otherwise = "; if it fails again, leave out of the study what it measures then"
        raise UserError(cut_off(f"the device failed ({str(error).splitlines()[0]})", after=otherwise)) from None
    except MemoryError:
        raise UserError(cut_off("host memory ran out")) from None
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        what = "the disk is full" if full else f"writing failed ({error.strerror or error})"
        raise UserError(cut_off(what, first="make room")) from None


def command_for(study: str, where: str) -> str:
    """The command that measures a study, as STUDY names it, on the devices that `where` states."""
    return f"make measure STUDY={shlex.quote(study)} {where}"


def new_name(described: dict[str, Any]) -> str:
    """A name for a run that begins now: the device and the time, such as ``h200-20261121-064501``.

    If a run already has that name, because the clock was set back, a number is added.

    Args:
        described: the device, as `devices.describe` describes it.
    """
    words = str(described["name"]).lower().split()
    model = "cpu" if described["kind"] == "cpu" else next((w for w in words if any(c.isdigit() for c in w)), "gpu")
    name = f"{model}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    numbered = (f"{name}-{number}" for number in count(2))
    return next(free for free in chain([name], numbered) if not schema.folder(free).exists())


def _open(pool: Executor, name: str, study: Study, device: str, long: bool, command: str) -> str:
    """Begin the run, or resume one that was cut off; returns the hash of its environment."""
    if not (schema.folder(name) / "manifest.json").is_file():
        # Both refuse files that are missing, before the machine is looked at.
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
        raise Outdated(f"the dispatch table changed since the run {name!r} began: start a new run")
    if manifest.get("captured", {}) != captured.digests(study):
        raise Outdated(f"what was captured ({study.captured}) changed since the run {name!r} began: start a new run")
    read.load(name)  # which refuses blocks that were lost or changed, before others are measured
    return str(manifest["environment"]["hash"])


def _announce(study: Study, seconds: float, long: bool) -> None:
    """Say how long a study will take; raises UserError if that is longer than it may."""
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
    """A time to two digits in the largest unit of which it has at least two, such as ``about 25 minutes``."""
    sizes = {"days": 86_400, "hours": 3600, "minutes": 60, "seconds": 1}
    unit = next((unit for unit, size in sizes.items() if seconds >= 2 * size), "seconds")
    return f"about {float(f'{seconds / sizes[unit]:.2g}'):,.0f} {unit}"


def _manifest(study: Study, command: str, found: dict[str, Any]) -> dict[str, Any]:
    stated = {
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
    return found | stated


def _dispatched(study: Study, device_name: str) -> dict[str, str]:
    """The dispatch table of `attnlab.attend` in this run, and its hash; empty if the study doesn't measure `attend`."""
    named = implementations.DISPATCH in study.implementations
    return dispatch.identity(device_name, torch.__version__) if named else {}


def _jobs(name: str, study: Study, device: str, environment: str) -> list[Job]:
    shapes, stream = tuple(study.shapes), study.stream > 0
    whole = [Job(name, study, device, number, shapes, environment, stream) for number in range(study.replicates)]
    return [left for job in whole if (left := lacking(job))]


def lacking(job: Job) -> Job | None:
    """The shapes of a job of which not all blocks are recorded, and its stream; None if nothing is lacking."""
    done, streams = write.recorded(job.run, "cases"), write.recorded(job.run, "stream")
    shapes = tuple(s for s in job.shapes if schema.shape_key(job.study, s, job.replicate) not in done)
    stream = job.stream and schema.replicate_key(job.replicate) not in streams
    return replace(job, shapes=shapes, stream=stream) if shapes or stream else None


def _measure(pool: Executor, name: str, parts: list[once.OncePart], jobs: list[Job]) -> None:
    """Take parts that a run takes once, and measure jobs: on several cards at the same time."""
    done = pool.map(_take, [*parts, *jobs])
    if parts:
        tqdm.write(f"{name}: {' and '.join(part.name for part in parts)}", file=sys.stderr)
        *_, profile = islice(done, len(parts))
        write.state(name, {"profile": profile})
    deque(done, maxlen=0)


def _take(one: once.OncePart | Job) -> dict[str, str] | None:
    if isinstance(one, once.OncePart):
        return once.take(one)
    worker.measure(one)
    return None


@contextmanager
def _progress(name: str, jobs: list[Job]) -> Iterator[None]:
    """Inside, show how far the run is with these jobs, if there are any."""
    if not jobs:
        yield
        return
    planned_s = estimate.recorded(jobs[0])
    left = {
        schema.shape_key(job.study, shape, job.replicate): (
            f"{shape.label}, replicate {job.replicate}",
            planned_s[shape],
        )
        for job in jobs
        for shape in job.shapes
    }
    shapes = max(1, len(write.recorded(name, "cases")) + len(left))
    shown = "{l_bar}{bar}| {n_fmt}/{total_fmt} shapes [{elapsed}{postfix}]"
    off = False if "ipykernel" in sys.modules else None  # None: off where no one sees it move
    with (
        tqdm(total=shapes, desc=name, bar_format=shown, disable=off, leave=False) as bar,
        _every(POLL_S, partial(_show, bar, name, left, time.monotonic(), write.recorded(name, "cases"), set())),
    ):
        yield


def _show(
    bar: tqdm, name: str, left: dict[str, tuple[str, float]], began_s: float, seen: set[str], said: set[str]
) -> None:
    """Show how many shapes are measured and how long the others take: in a terminal by the bar, else at every eighth.

    Args:
        left: what was left at `began_s`: a shape's name, and the seconds that were planned for it, by its key.
        seen: the keys that were looked at for failures; `said`, the implementations of which one was said.
    """
    done = write.recorded(name, "cases")
    _say_what_failed(name, done - seen, said)
    seen |= done
    before, bar.n, shapes = bar.n, len(done), bar.total or 1
    rest = [shape for key, shape in left.items() if key not in done]
    rest_s = sum(seconds for _, seconds in rest)
    done_s = sum(seconds for _, seconds in left.values()) - rest_s
    words = [f"{_duration((time.monotonic() - began_s) * rest_s / done_s)} left"] if rest and done_s > 0 else []
    words += [f"the first that is left: {shape}" for shape, _ in rest[:1]]
    bar.set_postfix_str("; ".join(words), refresh=False)
    if sys.stderr.isatty() or bar.n != before:  # a notebook keeps each line that is shown
        bar.refresh()
    if bar.disable and 8 * bar.n // shapes > 8 * before // shapes:
        print("; ".join([f"{name}: {bar.n} of {shapes} shapes measured", *words]), file=sys.stderr, flush=True)


def _say_what_failed(name: str, keys: set[str], said: set[str]) -> None:
    """Say of each implementation that is not among those `said` why its first case of these keys failed."""
    for key in sorted(keys):
        try:
            cases = read.part(name, "cases", key)
        except (OSError, UserError, ValueError):  # whoever reads the run says so
            continue
        for _, case in cases[(cases["status"] == schema.FAILED) & ~cases["implementation"].isin(said)].iterrows():
            said.add(case["implementation"])
            at = Shape(**{axis: case[axis] for axis in Shape.AXES})
            tqdm.write(f"{case['implementation']} failed at {at}: {case['reason']}", file=sys.stderr)


@contextmanager
def _every(seconds: float, act: Callable[[], object]) -> Iterator[None]:
    """Inside, do this every so often in a thread, and once more at the end."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(seconds):
            act()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        act()


def _lacking_once(name: str, study: Study, device: str, environment: str) -> list[once.OncePart]:
    """What a run takes once and lacks: its manifest says how its counters were, on a CPU from here on."""
    if "profile" in read.read_manifest(name):
        return []
    if device != "cuda":  # no process is started to say that there are none
        write.state(name, {"profile": counters.take(name, study, device)})
        return []
    return once.parts(name, study, device, environment)


def _commit() -> str:
    """The commit that measures, with ``+`` if files differ from it; "n/a" outside of a repository.

    For a copy without its repository, ATTNLAB_COMMIT states it.
    """
    if "ATTNLAB_COMMIT" in os.environ:
        return os.environ["ATTNLAB_COMMIT"]
    git = ["git", "-C", os.fspath(paths.ROOT)]
    asked = (["rev-parse", "HEAD"], ["status", "--porcelain", "-uno"])
    within = os.environ | {"GIT_CEILING_DIRECTORIES": os.fspath(paths.ROOT.parent)}  # not one that holds the project
    quiet: dict[str, Any] = {"text": True, "stderr": subprocess.DEVNULL, "env": within}
    try:
        commit, changed = (subprocess.check_output([*git, *one], **quiet) for one in asked)
    except (OSError, subprocess.CalledProcessError):
        return "n/a"
    return commit.strip() + ("+" if changed.strip() else "")
