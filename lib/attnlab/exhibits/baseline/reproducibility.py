"""The same cases in another recorded run: which medians were reproduced, which moved, and whether the clock did it.

A case is compared where both runs measured it on a device of the same name, under the same timing and, if it is a
hand-written kernel, from the same source.
"""

import numpy as np
import pandas as pd

from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Figure, Group, Prose, Table
from attnlab.exhibits.formats import CI
from attnlab.exhibits.style import look, panel_each, plain_logarithm, signed_ticks
from attnlab.exhibits.words import say
from attnlab.infer.compare import repeat
from attnlab.infer.compare.repeat import LEAST_US, NEAR_PCT, Repetition
from attnlab.infer.results import Results

MOST_ROWS = 12


@exhibit("baseline.reproducibility")
def reproducibility(results: Results) -> Group:
    """The same cases in another run: in words, as a figure, the cases that moved most, and what else differs."""
    repetition = repeat.find(results)
    parts: dict[str, Prose | Figure | Table] = {"words": words(repetition)}
    if repetition.cases:
        parts |= {"drawn": drawn(repetition), "moved": moved(repetition)}
    return Group(parts | {"differences": differences(repetition)})


def words(repetition: Repetition) -> Prose:
    """How many medians were reproduced, how many moved, and how far replicates scatter."""
    return Prose(say("baseline.reproducibility", r=repetition, near_pct=NEAR_PCT, least_us=LEAST_US))


def drawn(repetition: Repetition) -> Figure:
    """The change of each median over the latency, and the same in cycles where clocks were recorded."""
    cases = repetition.cases
    there = {case.implementation for case in cases}
    names = [name for name in repetition.here.study.implementations if name in there]
    drawing, panels = panel_each(names, "here over there (%)", "median latency here (µs), logarithmic")
    with_clocks = not any(np.isnan(case.cycles_pct) for case in cases)
    for name, axes in panels.items():
        mine, colour = [case for case in cases if case.implementation == name], look(name)["color"]
        latencies, changes = [case.here.median_us for case in mine], [case.change for case in mine]
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
    signed_ticks(first.yaxis)
    estimates = [case.change.estimate for case in cases] + [case.cycles_pct for case in cases if with_clocks]
    low, high = min(-NEAR_PCT, *estimates), max(NEAR_PCT, *estimates)
    low, high = low - (high - low) / 4, high + (high - low) / 4
    first.set_ylim(low, high)  # one long interval would flatten all else
    cut = any(case.change.low < low or case.change.high > high for case in cases)
    return Figure(
        drawing,
        say("baseline.within", r=repetition, near_pct=NEAR_PCT, with_clocks=with_clocks, cut=cut),
        "Scatter plots over latency, one for each implementation: by how many percent the median of each case differs "
        f"between two runs. {len(repetition.moved)} of {len(cases)} differ by more than {NEAR_PCT:g} %.",
    )


def moved(repetition: Repetition) -> Table:
    """The cases that moved most, with the state of the card in both runs."""
    rows = []
    for case in repetition.by_distance[:MOST_ROWS]:
        sides = {"here": case.here, "there": case.there}
        medians = {f"{side} (µs) [{CI}]": of.median for side, of in sides.items()}
        changes = {f"change [{CI}]": case.change, "in cycles": case.cycles_pct}
        clocks = {f"SM clock {side} (MHz)": of.sm_clock_mhz for side, of in sides.items()}
        throttled = {f"throttled {side}": of.throttled_pct for side, of in sides.items()}
        scatter = {f"scatter {side}": of.spread_pct for side, of in sides.items()}
        names = {"implementation": case.implementation, "shape": case.shape.label}
        rows.append(names | medians | changes | clocks | throttled | scatter)
    frame = pd.DataFrame(rows).dropna(axis="columns", how="all")
    shows = {title: formats.percent for title in frame if title.startswith(("throttled", "scatter", "in cycles"))}
    shows |= {title: formats.whole for title in frame if title.startswith("SM clock")}
    caption = f"The cases that moved most since `{repetition.there.run.name}`, {repetition.timing.words}."
    return Table(frame, caption, say("baseline.moved"), shows=shows | {f"change [{CI}]": formats.change})


def differences(repetition: Repetition) -> Table:
    """Differences in environment and code between the two runs, and the ceilings that each measured."""
    found = repeat.differences(repetition.here, repetition.there)
    frame = pd.DataFrame(found.rows, columns=["", "here", "there"])
    note = say("baseline.differences", same=found.same, files=found.files)
    return Table(frame, f"What differs between this run and `{repetition.there.run.name}`.", note)
