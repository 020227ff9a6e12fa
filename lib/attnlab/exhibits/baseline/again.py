"""The same cases in another recorded run: which medians were reproduced, which moved, and whether the clock did it.

A case is compared where both runs measured it on a device of the same name, under the same timing and, if it is a
hand-written kernel, from the same source.
"""

from datetime import datetime

import numpy as np
import pandas as pd
from matplotlib.ticker import FuncFormatter

from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Figure, Group, Prose, Table
from attnlab.exhibits.formats import CI
from attnlab.exhibits.style import look, panel_each, plain_logarithm
from attnlab.infer.beside.repeat import LEAST_US, NEAR_PCT, Case, Repetition, find, in_percent
from attnlab.infer.results import Results
from attnlab.runs import read, schema
from attnlab.study import ladder

MOST_ROWS = 12
FIELDS = ("driver", "cuda", "cudnn", "python", "system", "threads", "card", "packages", "settings")
"""The fields of the environment that are compared."""


@exhibit("baseline.again")
def again(results: Results) -> Group:
    """The same cases in another run: in words, as a figure, the cases that moved most, and what else differs."""
    repetition = find(results)
    parts: dict[str, Prose | Figure | Table] = {"words": words(repetition)}
    if repetition.cases:
        parts |= {"drawn": drawn(repetition), "moved": table(repetition)}
    return Group(parts | {"differences": differences(repetition)})


def words(repetition: Repetition) -> Prose:
    """How many medians were reproduced, how many moved, and how far replicates scatter."""
    return Prose("\n\n".join([_which(repetition), _how_many(repetition), _scatter(repetition)]).strip())


def drawn(repetition: Repetition) -> Figure:
    """The change of each median over the latency, and the same in cycles where clocks were recorded."""
    cases = repetition.cases
    there = {case.implementation for case in cases}
    names = [name for name in repetition.here.study.implementations if name in there]
    drawing, panels = panel_each(names, "here over there (%)", "median latency here (µs), logarithmic")
    with_clocks = not any(np.isnan(case.cycles_pct) for case in cases)
    for name, axes in panels.items():
        mine, colour = [case for case in cases if case.implementation == name], look(name)["color"]
        latencies, changes = [case.here.median_us for case in mine], [in_percent(case.ratio) for case in mine]
        axes.axhspan(-NEAR_PCT, NEAR_PCT, color="#dddddd", linewidth=0, zorder=0)
        ends = [change.low for change in changes], [change.high for change in changes]
        axes.vlines(latencies, *ends, color=colour, linewidth=0.8, alpha=0.6)
        axes.plot(latencies, [change.estimate for change in changes], "o", color=colour, markersize=3)
        if with_clocks:
            cycles = [case.cycles_pct for case in mine]
            axes.plot(latencies, cycles, "x", color="#444444", markersize=3, markeredgewidth=0.8, zorder=1)
    first = panels[names[0]]
    first.set_xscale("log")
    plain_logarithm(first.xaxis)
    first.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+g}".replace("-", "−") if value else "0"))
    ratios = [in_percent(case.ratio) for case in cases]
    estimates = [ratio.estimate for ratio in ratios] + ([case.cycles_pct for case in cases] if with_clocks else [])
    low, high = min(-NEAR_PCT, *estimates), max(NEAR_PCT, *estimates)
    low, high = low - (high - low) / 4, high + (high - low) / 4
    first.set_ylim(low, high)  # one long interval would flatten all else
    beyond = any(ratio.low < low or ratio.high > high for ratio in ratios)
    by_clock = " Crosses: the same in cycles, latency times SM clock, which a lower clock doesn't change."
    cut = " Intervals that leave the figure are longer than shown." if beyond else ""
    within = f"{len(cases) - len(repetition.moved)} of {formats.count(len(cases), 'median')}"
    return Figure(
        drawing,
        f"{within} are within ±{NEAR_PCT:g} % of those of `{repetition.there.run.name}`, the band; "
        f"{repetition.timing.words}, with {CI} intervals of the ratio.{by_clock if with_clocks else ''}{cut}",
        "Scatter plots over latency, one for each implementation: by how many percent the median of each case differs "
        f"between two runs. {within} are within ±{NEAR_PCT:g} %.",
    )


def table(repetition: Repetition) -> Table:
    """The cases that moved most, with the state of the card in both runs."""
    cases = repetition.by_distance[:MOST_ROWS]
    rows = [
        {
            "implementation": case.implementation,
            "shape": case.shape.label.replace(") ", ")\n"),
            f"here (µs)\n[{CI}]": formats.stacked(case.here.median),
            f"there (µs)\n[{CI}]": formats.stacked(case.there.median),
            f"change\n[{CI}]": formats.change(in_percent(case.ratio)).replace(" [", "\n["),
            "in\ncycles": None if np.isnan(case.cycles_pct) else f"{formats.signed(case.cycles_pct)} %",
            "SM clock\n(MHz)": _pair(case, "sm_clock_mhz", "{:.0f}"),
            "throttled\n(%)": _pair(case, "throttled_pct", "{:.0f}"),
            "replicates\napart (%)": _pair(case, "spread_pct", "{:.2f}"),
        }
        for case in cases
    ]
    note = (
        "Where a cell has two numbers, the upper is of this run. Throttled: the share of samples taken while the card "
        "throttled. Replicates apart: the largest minus the smallest median of a replicate, over the median. In "
        "cycles: the change of the latency times the SM clock."
    )
    frame = pd.DataFrame(rows).dropna(axis="columns", how="all")
    return Table(
        frame, f"The cases that moved most since `{repetition.there.run.name}`, {repetition.timing.words}.", note
    )


def differences(repetition: Repetition) -> Table:
    """Differences in environment and code between the two runs, and the ceilings that each measured."""
    here, there = repetition.here.run.manifest, repetition.there.run.manifest
    stated = _stated(here), _stated(there)
    names = [name for name in {**stated[0], **stated[1]} if stated[0].get(name) != stated[1].get(name)]
    rows = [(name, *(side.get(name, "not recorded") for side in stated)) for name in names]
    apart = read.sources_changed(here, there)
    if apart:
        rows.append(("measuring code", f"commit {here['commit'][:7]}", f"commit {there['commit'][:7]}"))
    rows += _ceilings(repetition.here, repetition.there)
    apart_in = {name.split()[0] for name in names}
    same = [name for name in FIELDS if name in here["environment"] and name not in apart_in]
    note = f"Equal in both: {formats.listing(same)}." if same else ""
    note += f" Files of the measuring code that differ: {len(apart)}." if apart else ""
    frame = pd.DataFrame(rows, columns=["", "here", "there"])
    return Table(frame, f"What differs between this run and `{repetition.there.run.name}`.", note.strip())


def _which(repetition: Repetition) -> str:
    here, there = repetition.here.run.manifest, repetition.there.run.manifest
    apart_s = abs((_began(here) - _began(there)).total_seconds())
    replicates = [_replicates(of) for of in (repetition.there, repetition.here)]
    apart = (
        formats.count(round(apart_s / 60), "minute") if apart_s < 7200 else f"{formats.number(apart_s / 3600, 2)} hours"
    )
    return (
        f"Another run, `{repetition.there.run.name}`, was recorded on {_span(there)} in {replicates[0]}; this one on "
        f"{_span(here)} in {replicates[1]}, "
        f"{apart} apart from start to start. Both ran on the same type of device, {here['device']['name']}"
        f"{_on_which_cards(repetition)}."
    )


def _on_which_cards(repetition: Repetition) -> str:
    here, there = (of.run.cards for of in (repetition.here, repetition.there))
    if not here or not there:
        return ""
    if here == there:
        return f", on the same {'card' if len(here) == 1 else 'cards'}"
    return f", with {len(here & there)} of {len(here)} cards in common" if here & there else ", on different cards"


def _replicates(results: Results) -> str:
    """The number of complete replicates, and whether there is a part of one more."""
    sizes = results.run.cases.groupby("replicate").size()
    whole = int((sizes == sizes.max()).sum())
    return formats.count(whole, "replicate") + (" and a part of one more" if len(sizes) > whole else "")


def _how_many(repetition: Repetition) -> str:
    cases, moved = repetition.cases, repetition.moved
    count = f"{formats.count(len(repetition.shared), 'case')}, {repetition.timing.words}{_left_out(repetition)}"
    shared = f"They share {count}; {len(cases)} of them take longer than {LEAST_US} µs here."
    if not cases:
        return shared
    again = f"Of these, {len(cases) - len(moved)} have medians within {NEAR_PCT:g} % of each other"
    if not moved:
        return f"{shared} {again}: none moved."
    surely = sum(case.moved_surely for case in moved)
    most = moved[0]
    return (
        f"{shared} {again}, and {len(moved)} moved, {surely} of them with the whole interval of the ratio beyond. "
        f"`{most.implementation}` at {most.shape.label} moved most, by {formats.change(in_percent(most.ratio))}."
        f"{_by_clock(moved)}"
    )


def _left_out(repetition: Repetition) -> str:
    if repetition.changed:
        names = formats.listing([f"`{name}`" for name in repetition.changed])
        return f", without {names}, whose source changed between them"
    mine = [name for name in repetition.here.study.implementations if name.startswith(ladder.PREFIX)]
    compared = {key[0] for key in repetition.shared}
    return ", no hand-written kernel among them" if mine and not compared & set(mine) else ""


def _by_clock(moved: list[Case]) -> str:
    """How many of the changes the SM clock explains, in a sentence."""
    if any(np.isnan(case.cycles_pct) for case in moved):
        return ""
    other = [abs(case.cycles_pct) for case in moved if abs(case.cycles_pct) > NEAR_PCT]
    if len(other) == len(moved):
        return " The SM clock explains none of these: in cycles, they moved as well."
    rest = f" The others differ in cycles by at most {_percent(max(other))}." if other else ""
    with_clock = len(moved) - len(other)
    which = "is within {} %: it moved" if with_clock == 1 else "are within {} %: they moved"
    return f" In cycles, {with_clock} of {len(moved)} {which.format(f'{NEAR_PCT:g}')} with the SM clock.{rest}"


def _scatter(repetition: Repetition) -> str:
    cases = repetition.cases
    if not cases or any(np.isnan(side.spread_pct) for case in cases for side in (case.here, case.there)):
        return ""
    between = [abs(case.change_pct) for case in cases]
    here, there = ([getattr(case, side).spread_pct for case in cases] for side in ("here", "there"))
    return (
        f"Within this run, the medians of a case's replicates are at most {_percent(max(here))} apart, and in half of "
        f"the cases less than {_percent(float(np.median(here)))}; within the other, at most {_percent(max(there))} and "
        f"{_percent(float(np.median(there)))}. Between the two runs, medians differ by at most "
        f"{_percent(max(between))}, and in half of the cases by less than {_percent(float(np.median(between)))}."
    )


def _percent(value: float) -> str:
    return f"{value:.2f} %"


def _pair(case: Case, field: str, form: str) -> str | None:
    values = getattr(case.here, field), getattr(case.there, field)
    return None if any(np.isnan(values)) else "\n".join(form.format(value) for value in values)


def _began(manifest: schema.Manifest) -> datetime:
    return datetime.fromisoformat(manifest["created"])


def _span(manifest: schema.Manifest) -> str:
    """``2026-11-21, 07:39 to 07:57 UTC``."""
    began = _began(manifest)
    if "finished" not in manifest:
        return f"{began:%Y-%m-%d, from %H:%M %Z}"
    ended = datetime.fromisoformat(manifest["finished"])
    day = "" if ended.date() == began.date() else f"{ended:%Y-%m-%d, }"
    return f"{began:%Y-%m-%d, %H:%M} to {day}{ended:%H:%M %Z}"


def _stated(manifest: schema.Manifest) -> dict[str, str]:
    """The environment in a manifest, a line for each value."""
    lines: dict[str, str] = {}
    for field in FIELDS:
        value = manifest["environment"].get(field)
        parts = value.items() if isinstance(value, dict) else [("", value)]
        lines |= {f"{field} {part}".strip(): str(stated) for part, stated in parts if stated is not None}
    return lines


def _ceilings(here: Results, there: Results) -> list[tuple[str, str, str]]:
    """The ceilings that both runs measured: if these moved too, the machine changed and not the kernels."""
    ours, theirs = (
        {
            f"{ceiling.title} ({ceiling.unit})": formats.interval(ceiling.measured)
            for ceiling in of.ceilings.all
            if ceiling.measured
        }
        for of in (here, there)
    )
    return [(title, ours[title], theirs[title]) for title in ours if title in theirs]
