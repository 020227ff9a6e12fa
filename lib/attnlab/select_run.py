"""Measures a study or a plan of models into a run: a new one, or one that was cut off."""

import shlex
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnlab.base.errors import Outdated, UserError
from attnlab.runs import dispatch, models, read, schema, write
from attnlab.runs.manifest import ModelFields
from attnlab.study import callables, studies
from attnlab.study import models as stated_models
from attnlab.study.studies import Study

if TYPE_CHECKING:
    from attnlab.measure.pretrained import Own

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
            executor = stack.enter_context(_cluster().fleet(gpus, scheduler, wanted))
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


def modelled(name: str, device: str, stated: dict[str, Any], weights: str = "", text: str = "") -> str:
    """Measure how models generate, and return the name of the record.

    On a GPU `attend` goes by the dispatch table of the device, and is SDPA where there is none, as on a CPU.

    Args:
        name: the record to begin or to continue; empty to begin one.
        stated: fields of the plan, as `models.plan` takes them.
        weights: the folder of a model that is measured in place of those that are configured.
        text: the file that its prompts are cut from; empty for the standard library.

    Raises:
        UserError: transformers is not installed, the plan can't be measured, or measuring was cut off.
    """
    devices, record = _measuring_half()
    try:
        from attnlab.measure.session.models import record_models
    except ImportError as error:
        why = "it is not installed" if error.name == "transformers" else str(error).splitlines()[0]
        raise UserError(f"models need transformers: {why}; `make model` sets it up") from None
    found = devices.resolve(device)
    name = name or record.new_name(devices.describe(found))
    stated = {field: value for field, value in stated.items() if value is not None}
    own = _own(weights, text, stated.get("models"), found.type)
    begun = (schema.folder(models.run_of(name)) / "manifest.json").is_file()
    if begun and not stated:
        plan = ModelFields.model_validate(read.read_manifest(models.run_of(name))).plan
        plan = plan.model_copy(update={"models": [own.model], "text": own.text}) if own else plan
    elif own:
        known = {own.model.name: own.model}
        plan = stated_models.plan(found.type, list(known), known, **{"dtype": own.dtype, "text": own.text} | stated)
    else:
        plan = stated_models.plan(found.type, **stated)
    if own:
        own.require_passages(plan)
    table = _table_of(devices.describe(found)["name"]) if found.type == "cuda" else {}
    record_models(name, plan, found, table, own=own)
    return name


def _own(weights: str, text: str, models: list[str] | None, kind: str) -> "Own | None":
    """The model of one's own that is measured, if one is."""
    from attnlab.measure import pretrained

    if weights and models:
        raise UserError("make model: weights are of a model of one's own, and models are configured: state one of them")
    if text and not weights:
        raise UserError("make model: a text is for a model of one's own: state its folder as weights")
    return pretrained.read(weights, text, kind) if weights else None


def _table_of(device_name: str) -> dict[str, str]:
    """The dispatch table that `attend` goes by on this device; empty, with a line that says so, where there is none."""
    found = dispatch.identity(device_name)
    if not found:
        print(f"no dispatch table of {device_name}: `attend` calls SDPA; `make dispatch` makes one", file=sys.stderr)
    return found


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


def _cluster() -> Any:
    try:
        from attnlab.measure import cluster
    except ImportError as error:
        needs = f"measuring on several GPUs needs {error.name}, which is not installed"
        raise UserError(f"{needs}: `make measure` with GPUS or SCHEDULER sets it up") from None
    return cluster


def default_study(device: str, cluster: bool = False) -> str:
    """The study that `make measure` measures where ``auto``, ``cuda`` or ``cpu`` is stated, here or on a cluster."""
    if cluster:
        return "cpu" if device == "cpu" else "gpu"
    return "gpu" if _here(device)["kind"] == "cuda" else "cpu"
