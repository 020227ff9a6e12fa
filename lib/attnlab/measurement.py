"""`attnlab.measure`, `attnlab.check` and `make measure`: measure a cell's functions, or a study, and save a run."""

import os
import pickle
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from attnlab.base import paths
from attnlab.base.errors import Outdated, UserError
from attnlab.runs import read, schema, write
from attnlab.study import callables, studies
from attnlab.study.implementations import FALLBACK, control, is_control
from attnlab.study.shapes import Shape
from attnlab.study.studies import Study

Attention = Callable[..., Any]
DEVICES = ("auto", "cuda", "cpu")
MODULE = "cell"
CHECKS = [*("inputs", "route", "max_error", "allowed_max_error", "mean_error", "allowed_mean_error", "passed", "fault")]


def measure(
    implementations: Mapping[str, Attention],
    shapes: Iterable[Shape],
    *,
    baseline: str = FALLBACK,
    timings: Iterable[str] = (),
    samples: int = 100,
    replicates: int = 1,
    run: str | None = None,
    device: str = "auto",
) -> schema.Run:
    """Check functions and time them in turns, with the same rounds, checks and clocks as ``make measure``.

    Each replicate is a separate process, to which cloudpickle sends the functions.

    Args:
        implementations: functions ``(q, k, v, causal, scale=None) -> o`` by their names in the frames: your own, or
            those of `sdpa`, `peer` and `kernel`. The one that `baseline` names must be among them.
        timings: e.g. ``device warm`` or ``eager cold``; by default ``device warm`` on a GPU, ``eager warm`` on a CPU.
        samples: the number for each timing, implementation and shape in a replicate.
        run: a name in ``data/`` under which the run is kept; by default it is not kept.
        device: ``auto``, ``cuda`` or ``cpu``.

    Returns:
        The run as `load` gives it. Cases that failed a check are in `cases`, with the reason.

    Raises:
        UserError: a function can't be pickled; names, shapes or timings can't be measured; or the measurement was cut
            off, as ``make measure`` says.
    """
    from attnlab import frames  # which no other command needs to begin

    names = {label: _name(label, attention) for label, attention in implementations.items()}
    study = _study(names, list(shapes), baseline, list(timings), samples, replicates, device)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="attnlab-", ignore_cleanup_errors=True)))
        own = {label: implementations[label] for label, name in names.items() if name.startswith(callables.PREFIX)}
        (folder / f"{MODULE}.py").write_text(_module(own))
        stack.enter_context(callables.beside(folder))
        if run is None:
            stack.enter_context(_data_in(folder / "data"))
        call = f"attnlab.measure(..., run={run!r})" if run else ""
        found = frames.load(measured(run or "", study, study.device, call=call))
    return _labelled(found, {name: label for label, name in names.items()})


def check(attention: Attention, shapes: Iterable[Shape], device: str = "auto") -> pd.DataFrame:
    """Compare a function with the float64 oracle on inputs that it has not seen, in this process: a row per check.

    Columns: implementation, the axes; inputs, the input distribution; route (a call, or a CUDA graph); max_error
    and mean_error with their limits; passed; and fault, the reason if not. A shape that it does not serve has one row.

    Raises:
        UserError: it isn't a function ``(q, k, v, causal, scale)``, there is no such device, or no shape is given.
    """
    from attnlab.measuring.instruments import devices
    from attnlab.measuring.instruments.telemetry import Telemetry
    from attnlab.measuring.session.subject import Job, Session
    from attnlab.measuring.subjects import registry

    name = str(getattr(attention, "name", "") or getattr(attention, "__name__", type(attention).__name__))
    found = devices.resolve(device)
    study = _study({FALLBACK: FALLBACK}, list(shapes), FALLBACK, [], 2, 1, found.type)
    session = Session(Job("", study, found.type, 0, tuple(study.shapes)), found, Telemetry(found), 0.0)
    implementation = registry.of_function(name, attention, name)
    rows = [row for shape in study.shapes for row in _checks(session, shape, implementation)]
    return pd.DataFrame(rows)[["implementation", *Shape.AXES, *CHECKS]]


def _checks(session: Any, shape: Shape, implementation: Any) -> list[schema.Row]:
    from attnlab.measuring.session.cases import first_windows
    from attnlab.measuring.session.checks import check_all
    from attnlab.measuring.session.subject import Subject
    from attnlab.measuring.subjects.case import Case

    subject = Subject(implementation, Case(implementation.call, implementation.selected))
    windows = first_windows(session, shape, [subject], 1)
    rows = check_all(session, [subject], windows, "before") if windows is not None else []
    rows = [row | {"fault": "" if row["passed"] else subject.reason.removeprefix("before timing, ")} for row in rows]
    if not subject.alive and all(row["passed"] for row in rows):  # it was never called, or raised
        lacking = {"implementation": implementation.name, **shape.axes, **dict.fromkeys(CHECKS)}
        rows.append(lacking | {"passed": False, "fault": subject.reason})
    return rows


def _study(
    names: Mapping[str, str],
    shapes: list[Shape],
    baseline: str,
    timings: list[str],
    samples: int,
    replicates: int,
    device: str,
) -> Study:
    """The study of these implementations, by label, at these shapes."""
    if not shapes:
        raise UserError(
            "there is no shape: state some, such as sweep(batch=2, heads=8, seq_len=[64, 128], head_dim=64)"
        )
    if baseline not in names:
        raise UserError(f"the baseline {baseline!r} is not among the implementations {', '.join(names)}")
    kind = device if device != "auto" else str(_here(device)["kind"])
    words = [one.split(maxsplit=1) for one in timings or ["device warm" if kind == "cuda" else "eager warm"]]
    stated = {
        "name": MODULE,
        "title": "Measured from a cell",
        "device": kind,
        "implementations": list(names.values()),
        "baseline": names[baseline],
        "target": shapes[-1].axes,
        "timings": [dict(zip(("clock", "cache"), one, strict=False)) for one in words],
        "samples": samples,
        "replicates": replicates,
        "panel": False,
        "sweeps": {f"shape {number}": shape.axes for number, shape in enumerate(shapes, 1)},
    }
    return studies.parse(stated, "measure")


def _name(label: str, attention: Attention) -> str:
    """The name of a function in a study: its own if it has one there, else ``python.cell.<label>``."""
    if is_control(label):
        raise UserError(f"{label!r} is the name of a control: choose another")
    named = getattr(attention, "name", "") if hasattr(attention, "implementation") else ""
    if "." in named and not hasattr(attention, "grid"):  # a kernel from a source may have any name
        return str(named)
    return f"{callables.PREFIX}{MODULE}.{re.sub(r'[^0-9a-zA-Z_]', '_', label)}"


def _module(own: Mapping[str, Attention]) -> str:
    """A module that holds functions of cells under their names in the study."""
    import cloudpickle  # which comes with what measures

    packed = {}
    for label, attention in own.items():
        try:
            packed[_name(label, attention).rpartition(".")[2]] = cloudpickle.dumps(attention)
        except (pickle.PicklingError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            why = " ".join(str(error).split())
            advice = "make within the function what it uses, or hand a source to attnlab.kernel"
            raise UserError(f"{label!r} can't travel to the process that measures ({why}): {advice}") from None
    lines = (f"    {name!r}: loads({content!r}),\n" for name, content in packed.items())  # any name, such as "class"
    return "".join(["from pickle import loads\n\nglobals().update({\n", *lines, "})\n"])


@contextmanager
def _data_in(folder: Path) -> Iterator[None]:
    """A context in which runs are kept in this folder; dispatch tables and captured values stay in theirs."""
    before, own = os.environ.get("ATTNLAB_DATA"), {"dispatch": paths.dispatch(), "captured": paths.data() / "captured"}
    folder.mkdir()
    for part, there in own.items():
        (folder / part).symlink_to(there.resolve())
    os.environ["ATTNLAB_DATA"] = str(folder)
    try:
        yield
    finally:
        del os.environ["ATTNLAB_DATA"]
        os.environ |= {} if before is None else {"ATTNLAB_DATA": before}


def _labelled(run: schema.Run, labels: Mapping[str, str]) -> schema.Run:
    """A copy of a run in which these labels replace the implementations' names."""
    names = {**labels, **{control(name): control(label) for name, label in labels.items()}}
    study = run.manifest["study"]
    renamed = {"implementations": [*map(labels.get, study["implementations"])], "baseline": labels[study["baseline"]]}
    changed: dict[str, Any] = {"manifest": run.manifest | {"study": study | renamed}}
    for field in fields(run):
        frame = getattr(run, field.name)
        if isinstance(frame, pd.DataFrame) and "implementation" in frame:
            changed[field.name] = frame.assign(implementation=frame["implementation"].replace(names))
    return replace(run, **changed)


def measured(
    name: str,
    study: Study,
    device: str,
    long: bool = False,
    gpus: str = "",
    scheduler: str = "",
    stated: str = "",
    call: str | None = None,
) -> str:
    """Measure a study and return the name of its run.

    Args:
        name: the run to begin or to continue; empty to continue one of this study that was cut off, or else begin one.
        long: an option of ``attnlab measure``, like `device`, `gpus` and `scheduler`.
        stated: the user's STUDY, the name of a study or a path; default the study's name.
        call: the call of `measure` that begins and resumes this run; empty if the run isn't kept.
    """
    with _installed():
        from attnlab.measuring.session import record
    if name and (gpus or scheduler):
        with write.lock(name, {"study": study.model_dump(mode="json")}):  # before a cluster is started in vain
            pass
    wanted = device if device != "auto" else study.device
    own = bool(stated) and bool(callables.among(study.implementations))
    with ExitStack() as stack:
        if own:
            stack.enter_context(studies.modules_beside(stated))
        executor = None
        if gpus or scheduler:
            with _installed(" on several GPUs", " with GPUS or SCHEDULER"):
                from attnlab.measuring import cluster
            executor = stack.enter_context(cluster.fleet(gpus, scheduler, wanted))
        described = executor.device if executor else _here(wanted)
        kind = described["kind"]
        where = f"GPUS={gpus}" if gpus else "SCHEDULER=tcp://HOST:PORT" if scheduler else ""
        begun = call or record.command_for(studies.shown(stated) or study.name, where or f"DEVICE={kind}")
        # A user's function is next to the file of its study, and a run alone doesn't name that file.
        beside = f"STUDY={shlex.quote(stated)}" if own else ""

        def recorded(run: str) -> str:
            again = " ".join(filter(None, (f"make measure RUN={run}", beside, where))) if call is None else call
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
    """Tune `kernel.best` for this machine's GPU; returns the file of the choices."""
    with _installed():
        from attnlab.measuring.session import tune
    return tune.tune()


def default_study(device: str, cluster: bool = False) -> str:
    """The study that `make measure` measures by default on ``auto``, ``cuda`` or ``cpu``, here or on a cluster."""
    if cluster:
        return "cpu" if device == "cpu" else "gpu"
    return "gpu" if _here(device)["kind"] == "cuda" else "cpu"


def _unfinished(study: Study, device: str) -> str:
    """The newest run of exactly this study on the device of this name that was cut off, or ""."""
    own = study.model_dump(mode="json"), device, False
    for name in reversed(read.names()):
        try:
            one = read.read_manifest(name)
        except UserError as error:
            print(f"passed over: {error}", file=sys.stderr)
            continue
        if (one["study"], one["device"]["name"], one["complete"]) == own:
            return name
    return ""


def _here(kind: str) -> dict[str, Any]:
    """The device of this machine that ``auto``, ``cuda`` or ``cpu`` means; raises UserError if there is none."""
    with _installed():
        from attnlab.measuring.instruments import devices
    return devices.describe(devices.resolve(kind))


@contextmanager
def _installed(what: str = "", how: str = "") -> Iterator[None]:
    """A context that raises UserError if a package that measuring needs, such as torch, is not installed."""
    try:
        yield
    except ImportError as error:
        needs = f"measuring{what} needs {error.name}, which is not installed"
        raise UserError(f"{needs}: `make measure`{how} sets it up") from None
