"""Whether a card's timings beside busy neighbours are its timings alone."""

import pandas as pd

from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Table
from attnlab.exhibits.formats import CI
from attnlab.infer.beside import neighbours
from attnlab.infer.results import Results
from attnlab.study.studies import Timing

SAID = {
    "equivalent": f"a call takes as long beside busy neighbours as alone, to within ±{formats.MARGIN}",
    "slower": "a call takes longer beside busy neighbours than alone",
    "faster": "a call takes less time beside busy neighbours than alone",
}
UNDECIDED = "it is undecided whether a call takes as long beside busy neighbours as alone"


@exhibit("environment.neighbours")
def beside(results: Results) -> Table | None:
    """The latencies of cards beside busy neighbours over those of the same cards alone; None where none is recorded."""
    pairs = neighbours.pairs(results.run.manifest["device"]["name"])
    if not pairs:
        return None
    rows: list[dict[str, object]] = []
    verdicts: dict[Timing, set[str]] = {}
    for timing in dict.fromkeys(timing for pair in pairs for timing in pair.timings):
        for pair in pairs:
            ratio = pair.ratio(timing)
            verdict = neighbours.decision(ratio)
            verdicts.setdefault(timing, set()).add(verdict)
            row = {"timing": str(timing), "alone": pair.alone.name, "beside neighbours": pair.beside.name}
            cards = len(pair.beside.cards)
            rows.append(row | {"cards": cards, f"ratio [{CI}]": formats.interval(ratio), "verdict": verdict})
    note = (
        f"{_sentence(verdicts)} Ratio: latencies of a card while its neighbours measured too over those of the same "
        "card alone, the geometric mean over cases of the medians, with Student's t over replicates."
    )
    return Table(pd.DataFrame(rows), "The same study on a card alone, and beside busy neighbours.", note)


def _sentence(verdicts: dict[Timing, set[str]]) -> str:
    """What all pairs agree on, by timing."""
    return " ".join(f"By the {timing.words}, {_said(found)}." for timing, found in verdicts.items())


def _said(found: set[str]) -> str:
    return SAID.get(found.pop(), UNDECIDED) if len(found) == 1 else UNDECIDED
