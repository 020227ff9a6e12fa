"""A card's timings beside busy neighbours, and alone: the study `scaling` on one card and on several."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from scipy.stats import ttest_ind

from attnlab.base.errors import UserError
from attnlab.infer.cases import CASE, passed_samples
from attnlab.infer.stats import Decision, Interval, is_within
from attnlab.runs import read
from attnlab.runs.rules import CONFIDENCE
from attnlab.runs.schema import Run, is_under
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
        beside, alone = (_log_medians(samples[is_under(samples, timing)]) for samples in self._on_card)
        apart = [side.sub(alone.mean(axis="columns"), axis="index").mean() for side in (beside, alone)]
        ends = ttest_ind(*apart).confidence_interval(CONFIDENCE)
        middle = (ends.low + ends.high) / 2
        return Interval(*(float(np.exp(value)) for value in (middle, ends.low, ends.high)))

    @cached_property
    def _on_card(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """The samples that passed on the card, beside its neighbours and alone."""
        (card,) = self.alone.cards
        return _passed_on(self.beside, card), _passed_on(self.alone, card)


def pairs(device: str) -> list[Pair]:
    """The complete runs of the study on devices of a name: each on one card, with each on several that include it."""
    runs = list(_runs(device))
    alone = [run for run in runs if len(run.cards) == 1]
    found = [Pair(one, run) for run in runs for one in alone if one.cards < run.cards]
    return [pair for pair in found if pair.alone.manifest["study"] == pair.beside.manifest["study"]]


@dataclass(frozen=True)
class Compared:
    """A pair under one timing: the `Pair.ratio`, and what it decides."""

    pair: Pair
    timing: Timing
    ratio: Interval

    @property
    def decision(self) -> Decision:
        """``equivalent`` where the interval lies within the margin of equivalence, else as in a verdict."""
        if is_within(self.ratio):
            return "equivalent"
        return "slower" if self.ratio.low > 1 else "faster" if self.ratio.high < 1 else "inconclusive"


def compared(device: str) -> list[Compared]:
    """Every pair on devices of a name under each timing, timing by timing."""
    found = pairs(device)
    timings = dict.fromkeys(timing for pair in found for timing in pair.timings)
    return [Compared(pair, timing, pair.ratio(timing)) for timing in timings for pair in found]


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


def _passed_on(run: Run, card: str) -> pd.DataFrame:
    passed, processes = passed_samples(run), run.processes
    return passed[passed["process"].isin(processes.loc[processes["card"] == card, "process"])]


def _log_medians(samples: pd.DataFrame) -> pd.DataFrame:
    """The logarithm of the median latency in us: a row per case, a column per replicate."""
    return np.log(samples.groupby([*CASE, "replicate"])["latency_us"].median().unstack())
