"""The device clock of the panel beside that of the samples: what is claimed of the clock, and at which SM clock.

The panel times one implementation on its own; in the rounds of the samples, all take turns. So the card's power limit
may set another SM clock for the same call.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Prose, Table
from attnlab.exhibits.environment.panel import case_words, left_out, shown_cases, signed
from attnlab.exhibits.formats import CI
from attnlab.infer.lookup import NotMeasured, median_of
from attnlab.infer.panel import NEAR_PCT, Panel, of
from attnlab.infer.results import Results
from attnlab.infer.stats import Interval
from attnlab.runs import methods
from attnlab.runs.schema import is_of, is_under
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing


@dataclass(frozen=True)
class Both:
    """A case in the samples and in the panel: medians in us with the SM clocks under which they were taken."""

    case: tuple[str, Shape]
    samples: Interval
    panel: Interval
    samples_mhz: float
    panel_mhz: float
    cycles_pct: float

    @property
    def apart_pct(self) -> float:
        """How much longer the panel's median is, in percent of the samples'."""
        return 100 * (self.panel.estimate / self.samples.estimate - 1)


@exhibit("environment.panel.samples")
def beside_samples(results: Results) -> Table:
    """The device clock of the panel beside that of the samples, for the cases that are in both."""
    panel = of(results)
    rows = [
        {
            "case": case_words(both.case, panel),
            f"samples (µs) [{CI}]": formats.stacked(both.samples),
            "their SM clock (MHz)": formats.number(both.samples_mhz, 4),
            f"panel (µs) [{CI}]": formats.stacked(both.panel),
            "its SM clock (MHz)": formats.number(both.panel_mhz, 4),
            "panel over samples": signed(both.apart_pct, "%"),
            "in cycles": signed(both.cycles_pct, "%"),
        }
        for both in _in_both(results, panel, shown_cases(results, panel))
    ]
    note = (
        "Medians over all replicates, and over the rounds of the panel; the SM clock is NVML's, read once a round and, "
        f"in the panel, after each sample. In cycles: the same ratio of latency times SM clock.{left_out(panel, rows)}"
    )
    return Table(pd.DataFrame(rows), "The device clock with a warm cache, in the samples and in the panel.", note)


@exhibit("environment.claimed")
def claimed(results: Results) -> Prose:
    """How far the panel's device clock and the samples' agree, and what is claimed of the clock."""
    panel = of(results)
    found = _in_both(results, panel, panel.cases)
    if not found:
        raise NotMeasured("No case of the panel is among the samples of the device clock with a warm cache")
    apart = [both for both in found if abs(both.apart_pct) > NEAR_PCT]
    text = (
        f"The panel and the samples have {formats.count(len(found), 'case')} of `device` in common. Of these, "
        f"{len(found) - len(apart)} agree within {NEAR_PCT:g} %."
    )
    if apart:
        text += f" {_apart_words(apart, panel)}"
    return Prose(
        f"{text} What the panel supports is that the clocks agree on the same call at the same SM clock. Latencies and "
        "verdicts hold at the SM clock of their rounds: at another one, another implementation may be the faster."
    )


def _apart_words(apart: list[Both], panel: Panel) -> str:
    most = max(apart, key=lambda both: abs(both.apart_pct))
    text = (
        f"The others are apart by at most {signed(most.apart_pct, '%')}, at {case_words(most.case, panel)}: "
        f"{formats.interval(most.panel)} µs in the panel at {formats.number(most.panel_mhz, 4)} MHz, "
        f"{formats.interval(most.samples)} µs in the samples at {formats.number(most.samples_mhz, 4)} MHz."
    )
    cycles = [abs(both.cycles_pct) for both in apart if not np.isnan(both.cycles_pct)]
    if not cycles:
        return text
    text += (
        f" In cycles, they are apart by at most {formats.percent(max(cycles))}, and in half of the cases by less than "
        f"{formats.percent(float(np.median(cycles)))}."
    )
    if sum(both.panel_mhz < both.samples_mhz for both in apart) > len(apart) / 2:
        text += (
            " The panel times one implementation on its own. In the rounds of the samples, neighbours that take long "
            "and draw less power let the card rest, so that its power limit lowers the clock less."
        )
    return text


def _in_both(results: Results, panel: Panel, cases: list[tuple[str, Shape]]) -> list[Both]:
    timing, timed, taken = Timing(clock="device", cache="warm"), panel.rows, results.passed
    timed = timed[(timed["method"] == methods.DEVICE) & timed["latency_us"].notna()]
    taken = taken[is_under(taken, timing)]
    found = []
    for name, shape in cases:
        if name in results.at(shape, timing).index:
            samples, its = (rows[(rows["implementation"] == name) & is_of(rows, shape)] for rows in (taken, timed))
            medians = median_of(results.row(name, shape, timing)), panel.median((name, shape), methods.DEVICE)
            cycles_pct = 100 * (_cycles(its) / _cycles(samples) - 1)
            found.append(Both((name, shape), *medians, _mhz(samples), _mhz(its), cycles_pct))
    return found


def _mhz(rows: pd.DataFrame) -> float:
    return float(rows["sm_clock_mhz"].astype(float).median())


def _cycles(rows: pd.DataFrame) -> float:
    return float((rows["latency_us"].astype(float) * rows["sm_clock_mhz"].astype(float)).median())
