"""A card's timings beside busy neighbours, and alone: the study `scaling` on one card and on several."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import ttest_ind

from attnlab.base.errors import UserError
from attnlab.base.rules import CONFIDENCE
from attnlab.infer.cases import CASE, passed_samples
from attnlab.infer.stats import Decision, Interval, is_within
from attnlab.runs import read
from attnlab.runs.schema import Run, is_under
from attnlab.study import studies
from attnlab.study.studies import Timing

STUDY = "scaling"


@dataclass(frozen=True)
class Compared:
    """Two runs of one study under one timing: on a card alone, and on several cards at a time, of which it was one.

    `ratio` is that of the latencies on the card beside its neighbours over those alone: the geometric mean over cases
    of medians, with Student's t of two samples over replicates, with the variance in common, at CONFIDENCE.
    """

    alone: Run
    beside: Run
    timing: Timing
    ratio: Interval

    @property
    def decision(self) -> Decision:
        """``equivalent`` where the interval lies within the margin of equivalence, else as in a verdict."""
        if is_within(self.ratio):
            return "equivalent"
        return "slower" if self.ratio.low > 1 else "faster" if self.ratio.high < 1 else "inconclusive"


def compared(device: str) -> list[Compared]:
    """Every pair of complete runs on devices of a name under each timing, timing by timing."""
    runs = list(_runs(device))
    pairs = [(alone, run) for run in runs for alone in runs if len(alone.cards) == 1 and alone.cards < run.cards]
    found = [
        Compared(alone, beside, timing, _ratio(_log_medians(beside, alone, timing), _log_medians(alone, alone, timing)))
        for alone, beside in pairs
        if alone.manifest["study"] == beside.manifest["study"]
        for timing in studies.recorded(beside.manifest).timings
    ]
    timings = list(dict.fromkeys(one.timing for one in found))
    return sorted(found, key=lambda one: timings.index(one.timing))


def agreed(every: Sequence[Compared]) -> dict[Timing, Decision]:
    """What all pairs agree on under each timing; ``inconclusive`` where they don't."""
    found: dict[Timing, set[Decision]] = {}
    for one in every:
        found.setdefault(one.timing, set()).add(one.decision)
    return {timing: decisions.pop() if len(decisions) == 1 else "inconclusive" for timing, decisions in found.items()}


def _runs(device: str) -> Iterator[Run]:
    """The oldest first; a run that is refused is passed over."""
    stated = [
        name
        for name, manifest in read.manifests()
        if manifest["complete"] and manifest["study"]["name"] == STUDY and manifest["device"]["name"] == device
    ]
    for name in reversed(stated):
        with suppress(UserError):
            yield read.load(name)


def _log_medians(run: Run, alone: Run, timing: Timing) -> pd.DataFrame:
    """The logarithm of the median latency in us on the card of `alone`: a row per case, a column per replicate."""
    passed, processes = passed_samples(run), run.processes
    on_card = passed["process"].isin(processes.loc[processes["card"].isin(alone.cards), "process"])
    samples = passed[on_card & is_under(passed, timing)]
    return np.log(samples.groupby([*CASE, "replicate"])["latency_us"].median().unstack())


def _ratio(beside: pd.DataFrame, alone: pd.DataFrame) -> Interval:
    apart = [side.sub(alone.mean(axis="columns"), axis="index").mean() for side in (beside, alone)]
    ends = ttest_ind(*apart).confidence_interval(CONFIDENCE)
    middle = (ends.low + ends.high) / 2
    return Interval(*(float(np.exp(value)) for value in (middle, ends.low, ends.high)))
