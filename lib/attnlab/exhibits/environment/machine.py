"""The machine, its settings and ceilings, what was measured on it, and what was not."""

import re
from typing import Any

import pandas as pd

from attnlab.exhibits import cells, formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Prose, Table
from attnlab.exhibits.formats import CI
from attnlab.exhibits.words import say
from attnlab.infer.bootstrap import BATCHES
from attnlab.infer.cases import CASE
from attnlab.infer.lookup import NotMeasured, shape_of
from attnlab.infer.machine.effort import effort as of_effort
from attnlab.infer.results import Results
from attnlab.runs.schema import MEASURED
from attnlab.study import implementations
from attnlab.study.shapes import Shape
from attnlab.study.studies import Study

NUMBER = re.compile(r"\d[\d.e+-]*")
SETTINGS = {
    "card": "card",
    "ecc": "ECC",
    "power_limit_w": "power limit",
    "persistence": "persistence mode",
    "mig": "MIG",
    "host": "host",
    "cpu": "CPU",
    "governor": "CPU governor",
}
"""What each process records of the card and the CPU that it ran on, and its title."""


VERSIONED = ("torch", "triton", "flash-attn-4", "nvidia-cudnn-frontend", "flashinfer-python", "xformers")
"""The packages whose kernels are compared."""


@exhibit("environment.run")
def machine(results: Results) -> Prose:
    """The run, its device, its date, and the versions of what was compared, in two sentences."""
    manifest = results.run.manifest
    packages = manifest["environment"]["packages"]
    versions = {name: packages[name] for name in VERSIONED if packages.get(name, "n/a") != "n/a"}
    facts = {"name": results.run.name, "manifest": manifest, "device": device_words(results)}
    return Prose(say("environment.run", versions=versions, **facts))


@exhibit("environment.lacking")
def lacking(results: Results) -> Prose:
    """What the study asks for and this run does not have."""
    cases = results.run.cases
    unsteady = cases[(cases["status"] == MEASURED) & ~cases["steady"].astype(bool)]
    facts = {
        "manifest": results.run.manifest,
        "ceilings": results.ceilings.all,
        "statuses": _without_latency(results).groupby("status").size().to_dict(),
        "unsteady": len(unsteady),
        "asked": results.study.replicates,
    }
    return Prose(say("environment.lacking", **facts))


@exhibit("environment.cases")
def cases(results: Results) -> Table | Prose:
    """The cases that were not measured, and why: a row for each implementation and reason, whatever its numbers."""
    lost: dict[tuple[str, str, str], list[tuple[Shape, str]]] = {}
    for row in _without_latency(results).to_dict("records"):
        why = cells.alike(row["reason"], row["implementation"])
        kind = _turn(row["implementation"]), row["status"], NUMBER.sub("", why)
        lost.setdefault(kind, []).append((shape_of(row), why))
    if not lost:
        return Prose("No case so far failed, was skipped or ran out of memory.")
    rows = [
        {
            "implementation": name,
            "shapes": formats.named([shape for shape, _ in of], results.study.shapes),
            "status": status,
            "reason, at the first": formats.shortened(of[0][1]),
        }
        for (name, status, _), of in lost.items()
    ]
    return Table.of(rows, "Cases that have no latency, and why.")


def _without_latency(results: Results) -> pd.DataFrame:
    """The cases that were not measured, each once for each status."""
    rows = results.run.cases
    return rows[rows["status"] != MEASURED].drop_duplicates([*CASE, "status"])


def _turn(name: str) -> str:
    """An implementation as it is shown; the control is the baseline, again."""
    return f"{implementations.under_control(name)} again" if implementations.is_control(name) else name


@exhibit("environment.effort")
def effort(results: Results) -> Prose:
    """How long measuring took, and in how many processes."""
    if results.run.samples.empty:
        raise NotMeasured("Nothing has been timed yet")
    e = of_effort(results)
    said = say("environment.effort", samples=sample_words(results.study), is_complete=results.run.complete, e=e)
    took = formats.number(e.seconds)
    return Prose(f"Measuring took {took} s in all, of each process from its start to its last sample, {said}.")


def sample_words(study: Study) -> str:
    """``100 samples``; a clock that takes fewer than the study states is named."""
    taken = {f"`{timing.clock}`": study.rounds(timing) for timing in study.timings}
    fewer = [f"{count} by {clock}" for clock, count in taken.items() if count != study.samples]
    return f"{study.samples} samples" + (f" ({formats.listing(fewer)})" if fewer else "")


def replicate_words(results: Results, shape: Shape | None = None) -> str:
    """``4 replicates, each a fresh process``; or in how many, where one was continued or shared by two cards."""
    return say("environment.replicates", e=of_effort(results, shape))


def interval_words(results: Results) -> str:
    """What intervals of medians rest on: ``Student's t over the logarithms of the medians of 2 replicates``."""
    replicates = of_effort(results).replicates
    return say("environment.intervals", cards=results.over_cards, replicates=replicates, stretches=BATCHES)


def device_words(results: Results) -> str:
    """``one NVIDIA H200``, ``2 NVIDIA H200s``, or which CPU."""
    return say("environment.device", device=results.run.manifest["device"], cards=len(results.run.cards))


@exhibit("environment.machine")
def machine_table(results: Results) -> Table:
    """The machine that measured."""
    manifest, environment = results.run.manifest, results.run.manifest["environment"]
    device, card = manifest["device"], environment["card"]
    processes = results.run.sampling
    rows = {
        "device": device["name"],
        "compute capability": device.get("compute_capability"),
        "multiprocessors": device.get("multiprocessors"),
        "threads": device.get("threads"),
        "last level of cache": f"{formats.mebibytes(device['l2_bytes'])} MiB",
        "memory": f"{formats.number(device['memory_bytes'] / 2**30)} GiB",
        "highest SM clock": _with_unit(card.get("sm_clock_max_mhz"), "MHz"),
        "power limit": _with_unit(card.get("power_limit_w"), "W"),
        **{title: words for column, title in SETTINGS.items() if (words := _of_processes(processes, column))},
        "driver": environment["driver"],
        "CUDA, cuDNN": f"{environment['cuda']}, {formats.cudnn(environment['cudnn'])}",
        "PyTorch": environment["packages"]["torch"],
        "Python, system": f"{environment['python']}, {environment['system']}",
        "telemetry": manifest["telemetry"],
    }
    known = [(key, value) for key, value in rows.items() if value not in (None, "")]
    frame = pd.DataFrame(known, columns=["", "value"])
    caption = f"All samples are of {device_words(results)}: the machine, as recorded in the run."
    return Table(frame, caption, say("environment.same_card", cards=len(_replicates_by(processes, "card"))))


def _of_processes(processes: pd.DataFrame, column: str) -> str:
    """What the processes recorded in a column; where they differ, with the replicates of each."""
    groups = {_setting(column, value): numbers for value, numbers in _replicates_by(processes, column).items()}
    if len(groups) < 2:
        return "".join(groups)
    return "; ".join(f"{value} ({_numbered(numbers)})" for value, numbers in groups.items())


def _replicates_by(processes: pd.DataFrame, column: str) -> dict[Any, list[int]]:
    """The replicates by what their processes recorded in a column; without those that recorded nothing."""
    known = processes.dropna(subset=[column])
    known = known[known[column] != ""]
    return {value: sorted(set(rows["replicate"])) for value, rows in known.groupby(column, sort=False)}


def _setting(column: str, value: Any) -> str:
    if column == "power_limit_w":
        return f"{value:g} W"
    return str(value) if isinstance(value, str) else "on" if value else "off"


def _numbered(replicates: list[int]) -> str:
    return f"replicate{'s' * (len(replicates) > 1)} {formats.listing([str(number) for number in replicates])}"


def _with_unit(value: Any, unit: str) -> str | None:
    return None if value is None else f"{value:g} {unit}"


@exhibit("environment.settings")
def settings(results: Results) -> Table:
    """The settings that were locked."""
    locked = results.run.manifest["environment"]["settings"].items()
    rows = [(key.replace("_", " "), str(value)) for key, value in locked]
    frame = pd.DataFrame(rows, columns=["setting", "read back"])
    note = "Read back from PyTorch after locking and asserted in each process; a failed assertion stops the run."
    return Table(frame, "The locked environment.", note)


@exhibit("environment.ceilings")
def ceilings(results: Results) -> Table:
    """The measured ceilings beside the datasheet's."""
    of_datasheet = "of datasheet"
    rows = [
        {
            "ceiling": ceiling.title,
            f"measured [{CI}]": ceiling.measured,
            "unit": ceiling.unit,
            "datasheet": ceiling.datasheet,
            of_datasheet: ceiling.datasheet_pct,
            "sm_clock_mhz": ceiling.sm_clock_mhz,
            "how": ceiling.how,
        }
        for ceiling in results.ceilings.all
    ]
    caption = say("environment.attained", ceilings=results.ceilings.stated)
    return Table.of(rows, caption, shows={of_datasheet: formats.percent})
