"""Getting hold of a run: one that was recorded, or one measured now."""

import sys
from typing import Any

from attnlab import runs, studies
from attnlab.analyse.results import Results, of
from attnlab.errors import EnvironmentChanged, UserError
from attnlab.studies import Study

DEVICES = ("auto", "cuda", "cpu", "none")


def results(run: str = "", study: str = "quick", device: str = "auto") -> Results:
    """What a notebook shows: the named run, or the newest of this study on this device.

    A run that lacks something is measured on, where the device can; where it can't, the notebook goes on with the rest.

    Args:
        run: a folder in data/; empty for the newest of the study, which is measured now if there is none.
        study: a name in notebooks/params/ or a path to a YAML file.
        device: ``auto``, ``cuda``, ``cpu``, or ``none`` to measure nothing.

    Raises:
        UserError: the run isn't there, or nothing is and nothing may be measured.
    """
    require_device(device)
    if run:
        recorded = runs.load(run)
        if recorded.complete or device == "none" or not _same_device(recorded, device):
            return of(recorded)
        return of(runs.load(measured(run, studies.parse(recorded.manifest["study"], run), device)))
    wanted = studies.load(study)
    if found := _newest(wanted, device, complete=True):
        return of(runs.load(found))
    if device == "none":
        raise UserError(f"no run of the study {wanted.name!r} is there and device=none measures nothing: name a run")
    return of(runs.load(measured("", wanted, device)))


def measured(name: str, study: Study, device: str) -> str:
    """Measure a study and return the name of its run.

    Args:
        name: the run to begin or go on with; empty to go on with one of this study that was cut off, or begin one.
    """
    devices, record = _measuring_half()
    wanted = device if device != "auto" else study.device
    found = devices.resolve(wanted)
    unfinished = "" if name else _newest(study, found.type, complete=False)
    if unfinished:
        print(f"{unfinished}: going on where it was cut off", file=sys.stderr)
        try:
            return record.record(unfinished, study, wanted)
        except EnvironmentChanged:
            print(f"{unfinished}: the environment changed since; beginning a new run", file=sys.stderr)
    return record.record(name or record.new_name(found), study, wanted)


def require_device(device: str) -> None:
    """Raise UserError for a device that there is no word for."""
    if device not in DEVICES:
        raise UserError(f"unknown device {device!r}; choose one of {', '.join(DEVICES)}")


def _newest(study: Study, device: str, complete: bool) -> str:
    """The newest run of exactly this study on this kind of device, or ""."""
    for name in reversed(runs.names()):
        try:
            manifest = runs.read_manifest(name)
        except UserError as error:
            print(f"passed over: {error}", file=sys.stderr)
            continue
        same = manifest["study"] == study.model_dump(mode="json") and manifest["complete"] == complete
        if same and device in ("auto", "none", manifest["device"]["kind"]):
            return name
    return ""


def _same_device(recorded: runs.Run, device: str) -> bool:
    try:
        from attnlab.measure import devices
    except ImportError:
        return False
    wanted = recorded.manifest["device"]
    if device not in ("auto", wanted["kind"]):
        return False
    try:
        return bool(devices.describe(devices.resolve(wanted["kind"]))["name"] == wanted["name"])
    except UserError:
        return False


def kind(device: str) -> str:
    """``cuda`` or ``cpu``: the kind of the device that ``auto``, ``cuda`` or ``cpu`` is here."""
    devices, _ = _measuring_half()
    return str(devices.resolve(device).type)


def _measuring_half() -> tuple[Any, Any]:
    # It needs torch, which rendering a recorded run doesn't.
    try:
        from attnlab.measure import devices, record
    except ImportError as error:
        raise UserError(f"measuring needs {error.name}, which is not installed: `make measure` sets it up") from None
    return devices, record


def default_study(device: str) -> str:
    """The study that `make report` measures on a kind of device."""
    return "gpu" if device == "cuda" else "cpu"
