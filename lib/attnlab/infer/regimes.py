"""Burst or sustained: whether the card throttled its clock while it was measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from attnlab.infer.cases import AXES
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Results
from attnlab.infer.stats import Interval
from attnlab.runs.schema import is_under
from attnlab.study.ladder import BEST
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing

Regime = Literal["burst", "sustained", "mixed", "not recorded"]
MOSTLY_PCT = 95
"""From this share of its samples on, throttled or not, a comparison has one regime."""
BURST_SLICES = 3
"""The first slices of a load, from a card at rest, which count as the burst."""
SETTLED_S = 1.0
"""Length of the end of a load, which counts as sustained."""
SETTLED = 0.5
"""For energy, the card has settled after this share of a load."""
SLOWER_PCT = 2.0
"""The burst is over when two slices in a row are slower than it by this much."""


def by_shape(results: Results) -> dict[Shape, Regime]:
    """The regime of all samples at each shape of the study: implementations take turns on one card."""
    samples = results.run.samples
    rows = samples[is_under(samples, results.headline)]
    counts = rows.groupby(AXES, sort=False)["throttled"].agg(["count", "sum"])
    found = {place: _of(int(known), int(held)) for place, known, held in counts.itertuples(name=None)}
    return {shape: found.get(tuple(shape.axes.values()), "not recorded") for shape in results.study.shapes}


def grouped(results: Results, shapes: Sequence[Shape]) -> dict[Regime, list[Shape]]:
    """The shapes that have latencies under the headline's timing, by the regime of all that was compared there."""
    groups: dict[Regime, list[Shape]] = {}
    for shape in shapes:
        if names := [str(name) for name in results.at(shape).index]:
            groups.setdefault(compared(results, names, shape), []).append(shape)
    return groups


def compared(results: Results, names: Sequence[str], shape: Shape, timing: Timing | None = None) -> Regime:
    """The regime of a comparison at a shape: by the samples of the implementations compared, all sides'."""
    return _of(*results.throttled(names, shape, timing))


def _of(known: int, held_back: int) -> Regime:
    """The regime of samples: how many have a throttle state, and how many of these were throttled."""
    if not known:
        return "not recorded"
    held_back_pct = 100 * held_back / known
    if held_back_pct >= MOSTLY_PCT:
        return "sustained"
    return "burst" if held_back_pct <= 100 - MOSTLY_PCT else "mixed"


@dataclass(frozen=True, eq=False)
class Load:
    """An implementation under a load without pause, from a card at rest: a row for each slice of it, in their order."""

    implementation: str
    rows: pd.DataFrame

    @property
    def burst_us(self) -> float:
        """Median latency of the burst."""
        return float(self.rows["latency_us"].head(BURST_SLICES).median())

    @property
    def slower_pct(self) -> float:
        """How much longer the end of the load takes than the burst, in percent."""
        return round(100 * (self.sustained_us / self.burst_us - 1), 3) + 0.0  # without a signed zero

    @property
    def sustained_us(self) -> float:
        """Median latency of the end of the load."""
        settled = self.rows[self.rows["started_s"] >= self.rows["started_s"].max() - SETTLED_S]
        return float(settled["latency_us"].median())

    @property
    def settled(self) -> pd.DataFrame:
        """The slices in which the card has settled."""
        return self.rows[self.rows["started_s"] >= SETTLED * self.rows["started_s"].max()]

    @property
    def joules(self) -> float:
        """The energy of a call once the card has settled, of the whole board; NaN where its power was not read."""
        return float((self.settled["power_w"].astype(float) * self.settled["latency_us"]).median() / 1e6)

    @property
    def slower_after_s(self) -> float:
        """When the burst was over, in seconds since the load began; NaN if it never was."""
        slower = self.rows["latency_us"] > (1 + SLOWER_PCT / 100) * self.burst_us
        lasting = self.rows["started_s"][slower & slower.shift(-1, fill_value=False)]
        return float(lasting.iloc[0]) if len(lasting) else np.nan

    @property
    def throttled_after_s(self) -> float:
        """When the card first throttled, in seconds since the load began; NaN if it never did."""
        held = self.rows[self.rows["throttled"].astype("boolean").fillna(False)]
        return float(held["started_s"].min()) if len(held) else np.nan


class Loads(NamedTuple):
    """The loads of a run, all at one shape, in the order of the study.

    The burst of those `ended` was over at some time, and that of the `lasting` ones was not.
    """

    shape: Shape
    all: list[Load]
    ended: list[Load]
    lasting: list[Load]

    @property
    def best(self) -> tuple[Load, Load] | None:
        """`kernel.best`, and the fastest of the others under sustained load; None where either is missing."""
        ours = next((load for load in self.all if load.implementation == BEST), None)
        others = [load for load in self.all if load is not ours]
        return (ours, min(others, key=lambda load: load.sustained_us)) if ours and others else None


def loads(results: Results) -> Loads:
    """The loads without pause; NotMeasured where the run has none."""
    rows = results.run.endurance
    if rows.empty:
        raise NotMeasured(f"No load without pause was recorded: {why_absent(results)}")
    taken = {str(name): load for name, load in rows.groupby("implementation", sort=False)}
    order = dict.fromkeys([*results.study.implementations, *taken])
    found = [Load(name, taken[name]) for name in order if name in taken and not taken[name]["latency_us"].isna().any()]
    if not found:
        raise NotMeasured(f"No load without pause was recorded: {rows['why'].iloc[0]}")
    lasting = [load for load in found if np.isnan(load.slower_after_s)]
    return Loads(
        Shape(*next(rows[AXES].itertuples(index=False, name=None))),
        found,
        [load for load in found if load not in lasting],
        lasting,
    )


class Throttling(NamedTuple):
    """How many samples have a throttle state, the share of them that was throttled, and their SM clock in MHz."""

    samples: int
    pct: float
    mhz: Interval


def throttling(results: Results) -> Throttling | None:
    """Whether the card throttled, over all samples; None where it isn't known. The clock is from lowest to highest."""
    known, mhz = (results.run.samples[column].dropna().astype(float) for column in ("throttled", "sm_clock_mhz"))
    if known.empty:
        return None
    clock = Interval(float(mhz.median()), float(mhz.min()), float(mhz.max()))
    return Throttling(len(known), 100 * float(known.mean()), clock)


def why_absent(results: Results) -> str:
    """Why a run lacks what is recorded last, after its samples."""
    manifest = results.run.manifest
    if manifest["device"]["kind"] != "cuda":
        return "it takes an NVIDIA GPU, which this device is not"
    if not results.run.complete or manifest.get("closed_early"):
        ended = "was closed early" if results.run.complete else "is not complete"
        return f"the run {ended}, and it is taken last"
    return "the study asks for none"
