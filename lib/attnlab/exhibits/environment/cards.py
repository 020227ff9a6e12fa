"""How cards differ, where a run measured on several: what of the variance is theirs, and what is of processes."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Table
from attnlab.infer import stats
from attnlab.infer.cases import LEAST_CARDS
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Results
from attnlab.infer.stats import Components
from attnlab.study.studies import Timing

LEVELS = {"card": "between cards", "process": "between processes of a card", "within": "within a process"}


@exhibit("environment.cards")
def cards(results: Results) -> Table:
    """The variance of a latency between cards, between processes and within."""
    if not results.cards:
        raise NotMeasured(_why_not(results))
    rows, found = [], {}
    for timing in results.timings:
        cases = _of_cases(results, timing)
        if cases:
            found[timing] = {level: _deviation_pct(cases, level) for level in LEVELS}
            cells = {f"{title} (%)": _cell(found[timing][level]) for level, title in LEVELS.items()}
            rows.append({"timing": str(timing), "cases": len(cases)} | cells)
    if not rows:
        raise NotMeasured("No case was measured on several cards yet")
    caption = f"Standard deviation of a latency by level, over {_count(results)} cards, in percent of the latency."
    note = (
        f"{_sentence(*next(iter(found.items())))} The levels are those of a nested analysis of variance of log "
        "latency, case by case; a row is the root of the mean variance over its cases, 0 where that is negative."
        f"{_few(results)}{_surveyed(results)}"
    )
    return Table(pd.DataFrame(rows).astype(object), caption, note)


def scope(results: Results) -> str:
    """What a verdict of this run holds for: ``on this NVIDIA H200``, ``on these 2 NVIDIA H200s``, ``on NVIDIA H200s``.

    The last takes intervals over cards.
    """
    name, count = results.run.manifest["device"]["name"], _count(results)
    if results.over_cards:
        return f"on {name}s"
    return f"on these {count} {name}s" if count else f"on this {name}"


def held_for(results: Results) -> str:
    """``One NVIDIA H200``, ``2 NVIDIA H200s``, or how many cards stand for all of their kind."""
    name, count = results.run.manifest["device"]["name"], _count(results)
    if results.over_cards:
        return f"{count} cards for all {name}s"
    return f"{count} {name}s" if count else f"One {name}"


def _count(results: Results) -> int:
    return len(set(results.cards.values()))


def _why_not(results: Results) -> str:
    if results.run.cards:
        return "All replicates ran on one card: intervals and verdicts hold for this card, not for others of its kind"
    return "This run doesn't name its cards, so how cards differ is unknown: intervals and verdicts hold for it alone"


def _of_cases(results: Results, timing: Timing) -> list[Components]:
    """The components of every case that several cards measured."""
    found = []
    for shape in results.study.shapes:
        every = [results.on_cards(str(name), shape, timing) for name in results.at(shape, timing).index]
        found += [stats.components(samples) for samples in every if len(samples) > 1]
    return found


def _deviation_pct(cases: Sequence[Components], level: str) -> float:
    """100 times the standard deviation of log latency, NaN where no case tells."""
    known = [value for case in cases if not np.isnan(value := getattr(case, level))]
    return 100 * float(np.sqrt(max(0.0, np.mean(known)))) if known else float("nan")


def _cell(percent: float) -> str | None:
    return None if np.isnan(percent) else formats.number(percent)


def _few(results: Results) -> str:
    few = f"hold for these {_count(results)} cards: fewer than {LEAST_CARDS} can't stand for others of their kind"
    return "" if results.over_cards else f" Intervals and verdicts {few}."


def _surveyed(results: Results) -> str:
    card = results.run.manifest["surveyed"]["card"]
    return f" The ceilings were measured on the card {card}." if card else ""


def _sentence(timing: Timing, found: dict[str, float]) -> str:
    known = [f"{formats.percent(value)} {LEVELS[level]}" for level, value in found.items() if not np.isnan(value)]
    mixed = " Each card ran one process: differences between cards are not separated from those between processes."
    alone = "" if len(known) == len(found) else mixed
    return f"Under {timing.words}, the standard deviation of a latency is {formats.listing(known)}.{alone}"
