"""How cards differ, where a run measured on several: what of the variance is theirs, and what is of processes."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from attnlab.infer import stats
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Results
from attnlab.infer.stats import Components
from attnlab.study.studies import Timing


class Deviations(NamedTuple):
    """Standard deviations of a latency in percent, over all cases of a timing that several cards measured.

    Attributes:
        cases: how many.
        card: between cards; `process`: between processes of a card, NaN where each card ran one; `within`: within a
            process.
    """

    timing: Timing
    cases: int
    card: float
    process: float
    within: float


def deviations(results: Results) -> list[Deviations]:
    """The deviations under each timing that has such cases; NotMeasured where none has."""
    found = []
    for timing in results.timings:
        places = [(shape, str(name)) for shape in results.study.shapes for name in results.at(shape, timing).index]
        every = [results.on_cards(name, shape, timing) for shape, name in places]
        if cases := [stats.components(samples) for samples in every if len(samples) > 1]:
            levels = (_pct(cases, level) for level in ("card", "process", "within"))
            found.append(Deviations(timing, len(cases), *levels))
    if not found:
        raise NotMeasured("No case was measured on several cards yet")
    return found


def count(results: Results) -> int:
    """On how many cards the run measured; 0 where it doesn't say, or measured on one."""
    return len(set(results.cards.values()))


def _pct(cases: Sequence[Components], level: str) -> float:
    """100 times the root of the mean variance of log latency, NaN where no case tells."""
    known = [value for case in cases if not np.isnan(value := getattr(case, level))]
    return 100 * float(np.sqrt(max(0.0, np.mean(known)))) if known else np.nan
