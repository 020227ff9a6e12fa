"""The machine, its settings and ceilings, and the cases that were measured on it."""

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd

from attnlab.exhibits import cells, formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Figure, Prose, Table
from attnlab.exhibits.formats import CI
from attnlab.infer.cases import AXES, CASE
from attnlab.infer.ceilings import Ceiling
from attnlab.infer.lookup import NotMeasured, shape_of
from attnlab.infer.results import Results
from attnlab.runs.rules import STEADY
from attnlab.runs.schema import MEASURED
from attnlab.study import implementations
from attnlab.study.studies import Study


@exhibit("environment.telemetry")
def telemetry(results: Results) -> Figure:
    """Clock, power and temperature over the run."""
    rows = results.run.samples.dropna(subset=["sm_clock_mhz"])
    if rows.empty:
        raise NotMeasured(f"Clock, power and temperature were not recorded: {results.run.manifest['telemetry']}")
    moments = rows.drop_duplicates(["process", "clock", "cache", *AXES, "round"])
    throttled = moments["throttled"].astype("boolean").fillna(False).astype(bool)
    measures = {"sm_clock_mhz": "SM clock (MHz)", "power_w": "power (W)", "temperature_c": "temperature (°C)"}
    drawing, grid = plt.subplots(3, 1, sharex=True, figsize=(7.2, 4.6))
    for axes, (column, title) in zip(grid, measures.items(), strict=True):
        for chosen, colour, label in ((~throttled, "#0072B2", "not throttled"), (throttled, "#D55E00", "throttled")):
            part = moments[chosen]
            style = {"color": colour, "label": label, "markersize": 2, "alpha": 0.4, "rasterized": True}
            axes.plot(part["started_s"], part[column].astype(float), ".", **style)
        axes.set_ylabel(title)
    grid[-1].set_xlabel("time since the process began (s)")
    legend = drawing.legend(*grid[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, markerscale=4)
    for handle in filter(None, legend.legend_handles):
        handle.set_alpha(1)
    return Figure(
        drawing,
        f"The card throttled in {formats.percent(100 * throttled.mean())} of the rounds, in orange: its state, read "
        "through NVML once a round, with all replicates overlaid. NVML averages power over part of the time.",
        "Three stacked scatter plots over time: SM clock, power and temperature of the card.",
    )


@exhibit("environment.throttling")
def throttling(results: Results) -> Prose:
    """Whether and at which shapes the card throttled, or why that isn't known."""
    samples = results.run.samples
    known = samples["throttled"].dropna()
    if known.empty:
        return Prose(f"Clock, power and throttling were not recorded: {results.run.manifest['telemetry']}.")
    clocks = samples["sm_clock_mhz"].dropna()
    share = 100 * float(known.astype(bool).mean())
    return Prose(
        f"The card reported that it throttled at {formats.percent(share)} of {len(known):,} samples; its SM clock was "
        f"between {clocks.min():,.0f} and {clocks.max():,.0f} MHz, with a median of {clocks.median():,.0f} MHz. "
        f"{cells.at_shapes(results, results.study.shapes)} Implementations take turns and the host pauses between "
        "samples, so one kernel without pause may settle at an even lower clock."
    )


@exhibit("environment.lacking")
def lacking(results: Results) -> Prose:
    """What the study asks for and this run does not have."""
    manifest, cases = results.run.manifest, results.run.cases
    notes = [f"the clock “{timing}” does not exist on this device" for timing in manifest["missing_clocks"]]
    notes += [f"{c.title}: {c.how}" for c in results.ceilings.all if c.measured is None]
    notes += [f"no telemetry: {manifest['telemetry']}"] if manifest["telemetry"] != "NVML" else []
    for status, group in cases[cases["status"] != MEASURED].groupby("status"):
        notes.append(f"{formats.count(len(group[CASE].drop_duplicates()), 'case')} {status}")
    unsteady = cases[(cases["status"] == MEASURED) & ~cases["steady"].astype(bool)]
    notes += (
        [f"{formats.count(len(unsteady), 'warm-up')} ended without two windows within {100 * STEADY:g} %"]
        if len(unsteady)
        else []
    )
    if not results.run.complete:
        notes.append(f"the run is not complete: `make measure RUN={results.run.name}` continues it")
    if closed := manifest.get("closed_early"):
        notes.append(
            f"it was closed before it was complete, with {closed['replicates']} of the {results.study.replicates} "
            f"replicates of its study, {closed['shapes']} of {closed['planned']} passes over a shape"
        )
    return Prose(
        "This run lacks nothing that its study asks for."
        if not notes
        else "What this run lacks:\n\n" + "\n".join(f"- {n}" for n in notes)
    )


@exhibit("environment.effort")
def effort(results: Results) -> Prose:
    """How long measuring took, and in how many processes."""
    samples = results.run.samples
    if samples.empty:
        raise NotMeasured("Nothing has been timed yet")
    seconds = samples.groupby("process")["started_s"].max()
    return Prose(
        f"Measuring took {formats.number(float(seconds.sum()))} s from the start of each process to its last sample, "
        f"{effort_words(results)}."
    )


@exhibit("environment.run")
def machine(results: Results) -> Prose:
    """The run, its device and its date in a sentence."""
    day = results.run.manifest["created"][:10]
    return Prose(f"The run `{results.run.name}` was recorded on {device_words(results)} on {day}.")


def effort_words(results: Results) -> str:
    asked = "" if results.run.complete else "not all of them taken, "
    return f"with {sample_words(results.study)} a case, timing and replicate, {asked}in {replicate_words(results)}"


def sample_words(study: Study, unit: str = " samples") -> str:
    """``100 samples``; a clock that takes fewer than the study states is named."""
    fewer = {f"`{timing.clock}`": study.rounds(timing) for timing in study.timings}
    named = [f"{count} by {clock}" for clock, count in fewer.items() if count != study.samples]
    return f"{study.samples}{unit}" + (f" ({formats.listing(named)})" if named else "")


def replicate_words(results: Results) -> str:
    """``4 replicates, each a fresh process``; a replicate that was continued, or shared by two cards, took several."""
    study, closed = results.study, results.run.manifest.get("closed_early")
    taken = closed["replicates"] if closed else study.replicates
    asked = f" of the {study.replicates} asked for" if closed else ""
    processes = results.run.samples.groupby("replicate")["process"].nunique()
    replicates, each = f"{formats.count(taken, 'replicate')}{asked}", "each " if taken > 1 else ""
    if processes.sum() <= len(processes):
        return f"{replicates}, {each}a fresh process"
    divided = int((processes > 1).sum())
    which = "it was" if taken == 1 else "one replicate was" if divided == 1 else f"{divided} of them were"
    return f"{replicates}, in {processes.sum()} fresh processes, since {which} divided"


def device_words(results: Results) -> str:
    device = results.run.manifest["device"]
    cards = len(results.run.cards)
    return (
        (f"{cards} {device['name']}s" if cards > 1 else f"one {device['name']}")
        if device["kind"] == "cuda"
        else f"the CPU ({device['name']}, {device['threads']} threads)"
    )


@exhibit("environment.machine")
def machine_table(results: Results) -> Table:
    """The machine that measured."""
    manifest, environment = results.run.manifest, results.run.manifest["environment"]
    device, card = manifest["device"], environment["card"]
    rows = {
        "device": device["name"],
        "compute capability": device.get("compute_capability"),
        "multiprocessors": device.get("multiprocessors"),
        "threads": device.get("threads"),
        "last level of cache": f"{formats.mebibytes(device['l2_bytes'])} MiB",
        "memory": f"{formats.number(device['memory_bytes'] / 2**30)} GiB",
        "highest SM clock": _with_unit(card.get("sm_clock_max_mhz"), "MHz"),
        "power limit": _with_unit(card.get("power_limit_w"), "W"),
        **_of_processes(results),
        "driver": environment["driver"],
        "CUDA, cuDNN": f"{environment['cuda']}, {environment['cudnn']}",
        "PyTorch": environment["packages"]["torch"],
        "Python, system": f"{environment['python']}, {environment['system']}",
        "telemetry": manifest["telemetry"],
    }
    frame = pd.DataFrame(
        [(key, value) for key, value in rows.items() if value not in (None, "")], columns=["", "value"]
    )
    caption = f"All samples are of {device_words(results)}: the machine, as recorded in the run."
    return Table(frame, caption, _cards(results))


SETTINGS = {"card": "card", "ecc": "ECC", "power_limit_w": "power limit", "persistence": "persistence mode"} | {
    "mig": "MIG",
    "host": "host",
    "cpu": "CPU",
    "governor": "CPU governor",
}
"""What each process records of the card and the CPU that it ran on, and its title."""


def _of_processes(results: Results) -> dict[str, str]:
    """What the processes record of their card and CPU, by title; where they differ, with the replicates of each."""
    found = {}
    for column, title in SETTINGS.items():
        groups = _replicates_by(results, column)
        words = {_setting(column, value): places for value, places in groups.items()}
        if len(words) == 1:
            found[title] = next(iter(words))
        elif words:
            found[title] = "; ".join(f"{value} ({_numbered(places)})" for value, places in words.items())
    return found


def _cards(results: Results) -> str:
    """Whether all replicates ran on one card, in a sentence; empty where that isn't known."""
    cards = _replicates_by(results, "card")
    if not cards:
        return ""
    if len(cards) == 1:
        return "All replicates ran on one card, which is named by the start of the SHA-256 of its UUID."
    return f"The replicates ran on {len(cards)} cards, each named by the start of the SHA-256 of its UUID."


def _replicates_by(results: Results, column: str) -> dict[Any, list[int]]:
    """The replicates by what their processes recorded in a column; without those that recorded nothing."""
    known = results.run.processes.dropna(subset=[column])
    known = known[known[column] != ""]
    return {value: sorted(set(rows["replicate"])) for value, rows in known.groupby(column, sort=False)}


def _setting(column: str, value: Any) -> str:
    if column == "power_limit_w":
        return f"{value:g} W"
    return str(value) if isinstance(value, str) else "on" if value else "off"


def _numbered(replicates: list[int]) -> str:
    return f"replicate{'s' * (len(replicates) > 1)} {formats.listing([str(number) for number in replicates])}"


@exhibit("environment.settings")
def settings(results: Results) -> Table:
    """The settings that were locked."""
    locked = results.run.manifest["environment"]["settings"]
    frame = pd.DataFrame(
        [(key.replace("_", " "), str(value)) for key, value in locked.items()], columns=["setting", "read back"]
    )
    note = "Read back from PyTorch after locking and asserted in each process; a failed assertion stops the run."
    return Table(frame, "The locked environment.", note)


@exhibit("environment.parameters")
def parameters(results: Results) -> Table:
    """The parameters of the study."""
    study = results.study
    rows = {
        "study": f"{study.name}: {study.title}",
        "implementations": ", ".join(study.implementations),
        "baseline": study.baseline,
        "target shape": study.target_shape.label,
        "timings (clock, cache)": ", ".join(str(timing) for timing in study.timings),
        "samples a case, timing and replicate": sample_words(study, "").replace("`", ""),
        "replicates": replicate_words(results),
        "warm-up calls, at least": study.warmup_calls,
        "longest call that is timed (ms)": f"{study.longest_call_ms:g}",
        "shapes": len(study.shapes),
    }
    return Table(pd.DataFrame(rows.items(), columns=["parameter", "value"]).astype(str), "What was measured.")


@exhibit("environment.ceilings")
def ceilings(results: Results) -> Table:
    """The measured ceilings beside the datasheet's."""
    rows = [
        {
            "ceiling": ceiling.title,
            f"measured [{CI}]": formats.stacked(ceiling.measured) if ceiling.measured else None,
            "unit": ceiling.unit,
            "datasheet": formats.number(ceiling.datasheet) if ceiling.datasheet else "n/a",
            "of datasheet": formats.percent(100 * ceiling.measured.estimate / ceiling.datasheet)
            if ceiling.measured and ceiling.datasheet
            else "n/a",
            "SM clock (MHz)": None if ceiling.sm_clock_mhz is None else f"{ceiling.sm_clock_mhz:,.0f}",
            "how": ceiling.how,
        }
        for ceiling in results.ceilings.all
    ]
    return Table(pd.DataFrame(rows), f"{_attained(results.ceilings.all)} Ceilings, measured in this run.")


def _attained(ceilings: Sequence[Ceiling]) -> str:
    """The lowest and the highest share of the datasheet that was measured, in a sentence."""
    shares = {
        ceiling.title: 100 * ceiling.measured.estimate / ceiling.datasheet
        for ceiling in ceilings
        if ceiling.measured and ceiling.datasheet
    }
    if not shares:
        return "Nothing was measured that a datasheet states."
    low, high = min(shares, key=lambda title: shares[title]), max(shares, key=lambda title: shares[title])
    parts = [f"{formats.percent(shares[title])} ({title})" for title in dict.fromkeys((low, high))]
    return f"This machine reaches {' to '.join(parts)} of what the datasheet states."


@exhibit("environment.cases")
def cases(results: Results) -> Table | Prose:
    """The cases that were not measured, and why."""
    rows = results.run.cases
    rows = rows[rows["status"] != MEASURED].drop_duplicates(["implementation", *AXES, "status"])
    if rows.empty:
        return Prose("No case so far failed, was skipped or ran out of memory.")
    frame = pd.DataFrame(
        {
            "implementation": [_turn(name) for name in rows["implementation"]],
            "shape": [shape_of(row).label for row in rows.to_dict("records")],
            "status": rows["status"],
            "reason": [formats.shortened(reason) for reason in rows["reason"]],
        }
    )
    return Table(frame, "Cases that have no latency, and why.")


def _turn(name: str) -> str:
    """An implementation as it is shown; the control is the baseline, again."""
    return f"{implementations.under_control(name)} again" if implementations.is_control(name) else name


def _with_unit(value: Any, unit: str) -> str | None:
    return None if value is None else f"{value:g} {unit}"
