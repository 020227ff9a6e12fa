"""The same cases in another recorded run: which medians were reproduced, which moved, and whether the clock did it.

A case is compared where both runs measured it on a device of the same name, under the same timing and, if it is a
hand-written kernel, from the same source.
"""

import pandas as pd

from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Group, Prose, Table
from attnlab.exhibits.formats import CI
from attnlab.exhibits.words import say
from attnlab.infer.compare import repeat
from attnlab.infer.compare.repeat import LEAST_US, NEAR_PCT, Repetition
from attnlab.infer.results import Results

MOST_ROWS = 12


@exhibit("baseline.reproducibility")
def reproducibility(results: Results) -> Group:
    """The same cases in another run: in words, the cases that moved most, and what else differs."""
    repetition = repeat.find(results)
    parts: dict[str, Prose | Table] = {"words": words(repetition)}
    if repetition.cases:
        parts["moved"] = moved(repetition)
    return Group(parts | {"differences": differences(repetition)})


def words(repetition: Repetition) -> Prose:
    """How many medians were reproduced, how many moved, and how far replicates scatter."""
    return Prose(say("baseline.reproducibility", r=repetition, near_pct=NEAR_PCT, least_us=LEAST_US))


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
