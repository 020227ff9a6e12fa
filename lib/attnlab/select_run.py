"""Measures a study into a run: a new one, or one that was cut off."""

import shlex
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from attnlab.base.errors import Outdated, UserError
from attnlab.runs import read, write
from attnlab.study import callables, studies
from attnlab.study.studies import Study

DEVICES = ("auto", "cuda", "cpu")


def measured(
    name: str,
    study: Study,
    device: str,
    long: bool = False,
    gpus: str = "",
    scheduler: str = "",
    stated: str = "",
) -> str:
    """Measure a study and return the name of its run.

    Args:
        name: the run to begin or to continue; empty to continue one of this study that was cut off, or else begin one.
        long: whether a new run may take longer than a day.
        gpus: on how many GPUs of this host, or ``all``; empty for one device, without Dask.
        scheduler: the address of the Dask scheduler of a cluster to measure on.
        stated: what a user states as STUDY, the name of a study or a path; default the study's name.
    """
    _, record = _measuring_half()
    if name and (gpus or scheduler):
        with write.lock(name, {"study": study.model_dump(mode="json")}):  # before a cluster is started in vain
            pass
    wanted = device if device != "auto" else study.device
    with ExitStack() as stack:
        if stated and callables.among(study.implementations):
            stack.enter_context(studies.modules_beside(stated))
        if gpus or scheduler:
            from attnlab.measure.cluster import start

            executor = stack.enter_context(start.fleet(gpus, scheduler, wanted))
            described = executor.device
        else:
            executor, described = None, _here(wanted)
        kind = described["kind"]
        where = f"GPUS={gpus}" if gpus else "SCHEDULER=tcp://HOST:PORT" if scheduler else ""
        begun = record.command_for(studies.shown(stated) or study.name, where or f"DEVICE={kind}")
        # A function of one's own lies beside the file of its study, which a run alone doesn't lead to.
        own = f"STUDY={shlex.quote(stated)}" if stated and callables.among(study.implementations) else ""

        def recorded(run: str) -> str:
            again = " ".join(filter(None, (f"make measure RUN={run}", own, where)))
            return str(record.record(run, study, kind, executor, long, begun, again))

        unfinished = "" if name else _unfinished(study, described["name"])
        if unfinished:
            print(f"{unfinished}: going on where it was cut off", file=sys.stderr)
            try:
                return recorded(unfinished)
            except Outdated as error:
                print(f"{error}, which begins now", file=sys.stderr)
        return recorded(name or record.new_name(described))


def tuned() -> Path:
    """Tune `kernel.best` for the GPU that is here; returns the file of the choices."""
    _measuring_half()
    from attnlab.measure.session import tune

    return tune.tune()


def _unfinished(study: Study, device: str) -> str:
    """The newest run of exactly this study on the device of this name that was cut off, or ""."""
    stated = study.model_dump(mode="json")

    def say(error: UserError) -> None:
        print(f"passed over: {error}", file=sys.stderr)

    for name, manifest in read.manifests(say):
        if (manifest["study"], manifest["device"]["name"], manifest["complete"]) == (stated, device, False):
            return name
    return ""


def _here(kind: str) -> dict[str, Any]:
    """The device of this machine that ``auto``, ``cuda`` or ``cpu`` means; raises UserError if there is none."""
    devices, _ = _measuring_half()
    return dict(devices.describe(devices.resolve(kind)))


def _measuring_half() -> tuple[Any, Any]:
    # Measuring needs torch, rendering a recorded run doesn't.
    try:
        from attnlab.measure.instruments import devices
        from attnlab.measure.session import record
    except ImportError as error:
        raise UserError(f"measuring needs {error.name}, which is not installed: `make measure` sets it up") from None
    return devices, record


def default_study(device: str, cluster: bool = False) -> str:
    """The study that `make measure` measures where ``auto``, ``cuda`` or ``cpu`` is stated, here or on a cluster."""
    if cluster:
        return "cpu" if device == "cpu" else "gpu"
    return "gpu" if _here(device)["kind"] == "cuda" else "cpu"
