"""A card's timings beside busy neighbours, and alone: the study `scaling` on one card and on several."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import ttest_ind

from attnlab.base.errors import UserError
from attnlab.infer.cases import CASE, passed_samples
from attnlab.infer.results import Results
from attnlab.infer.stats import Interval
from attnlab.runs import read
from attnlab.runs.rules import CONFIDENCE, EQUIVALENCE_MARGIN
from attnlab.runs.schema import Run
from attnlab.study import studies
from attnlab.study.studies import Timing

STUDY = "scaling"


@dataclass(frozen=True)
class Pair:
    """Two runs of one study: on a card alone, and on several cards at a time, of which it was one."""

    alone: Run
    beside: Run

    @property
    def timings(self) -> list[Timing]:
        """Those of the study."""
        return studies.recorded(self.beside.manifest).timings

    def ratio(self, timing: Timing) -> Interval:
        """Latencies on the card beside its neighbours over those alone: the geometric mean over cases of medians.

        The interval is Student's t of two samples over replicates, with the variance in common, at CONFIDENCE.
        """
        beside, alone = (_log_medians(run, timing, *self.alone.cards) for run in (self.beside, self.alone))
        apart = [side.sub(alone.mean(axis="columns"), axis="index").mean() for side in (beside, alone)]
        ends = ttest_ind(*apart).confidence_interval(CONFIDENCE)
        middle = (ends.low + ends.high) / 2
        return Interval(*(float(np.exp(value)) for value in (middle, ends.low, ends.high)))


def pairs(device: str) -> list[Pair]:
    """The complete runs of the study on devices of a name: each on one card, with each on several that include it."""
    runs = list(_runs(device))
    alone = [run for run in runs if len(run.cards) == 1]
    found = [Pair(one, run) for run in runs for one in alone if one.cards < run.cards]
    return [pair for pair in found if pair.alone.manifest["study"] == pair.beside.manifest["study"]]


def are_recorded(results: Results) -> bool:
    """Whether there is a pair on devices of this run's name."""
    return bool(pairs(results.run.manifest["device"]["name"]))


def decision(ratio: Interval) -> str:
    """``equivalent`` where the interval lies within the margin of equivalence, else ``faster``, ``slower`` or
    ``inconclusive``, as in a verdict."""
    if ratio.low > 1 / (1 + EQUIVALENCE_MARGIN) and ratio.high < 1 + EQUIVALENCE_MARGIN:
        return "equivalent"
    return "slower" if ratio.low > 1 else "faster" if ratio.high < 1 else "inconclusive"


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


def _log_medians(run: Run, timing: Timing, card: str) -> pd.DataFrame:
    """The logarithm of the median latency in us on a card: a row per case, a column per replicate."""
    processes = run.processes.loc[run.processes["card"] == card, "process"]
    passed = passed_samples(run)
    of_timing = (passed["clock"] == timing.clock) & (passed["cache"] == timing.cache)
    samples = passed[of_timing & passed["process"].isin(processes)]
    return np.log(samples.groupby([*CASE, "replicate"])["latency_us"].median().unstack())
