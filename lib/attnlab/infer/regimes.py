"""Burst or sustained: whether the card throttled its clock while it was measured."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pandas as pd

from attnlab.infer.cases import AXES
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Results
from attnlab.runs.schema import is_under
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing

Regime = Literal["burst", "sustained", "mixed", "not recorded"]
MOSTLY_PCT = 95
"""From this share of its samples on, throttled or not, a comparison has one regime."""
BURST_SLICES = 3
"""The first slices of a load, from a card at rest, which count as the burst."""
SETTLED_S = 1.0
"""Length of the end of a load, which counts as sustained."""
SLOWER_PCT = 2.0
"""The burst is over when two slices in a row are slower than it by this much."""


def by_shape(results: Results, timing: Timing | None = None) -> dict[Shape, Regime]:
    """The regime of all samples at each shape of the study: implementations take turns on one card."""
    samples = results.run.samples
    rows = samples[is_under(samples, timing or results.headline)]
    counts = rows.groupby(AXES, sort=False)["throttled"].agg(["count", "sum"])
    found = {place: _of(int(known), int(held)) for place, known, held in counts.itertuples(name=None)}
    return {shape: found.get(tuple(shape.axes.values()), "not recorded") for shape in results.study.shapes}


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


def loads_of(results: Results) -> dict[str, pd.DataFrame]:
    """The loads without pause, by implementation.

    Raises:
        NotMeasured: the run has none.
    """
    rows = results.run.endurance
    if rows.empty:
        raise NotMeasured(f"No load without pause was recorded: {why_absent(results)}")
    taken = {str(name): load for name, load in rows.groupby("implementation", sort=False)}
    order = [*results.study.implementations, *taken]
    loads = {name: taken[name] for name in order if name in taken and not taken[name]["latency_us"].isna().any()}
    if not loads:
        raise NotMeasured(f"No load without pause was recorded: {rows['why'].iloc[0]}")
    return loads


def why_absent(results: Results) -> str:
    """Why a run lacks what is recorded last, after its samples."""
    manifest = results.run.manifest
    if manifest["device"]["kind"] != "cuda":
        return "it takes an NVIDIA GPU, which this device is not"
    if not results.run.complete or manifest.get("closed_early"):
        ended = "was closed early" if results.run.complete else "is not complete"
        return f"the run {ended}, and it is taken last"
    return "the study asks for none"


def shape_of(results: Results) -> Shape:
    """The shape of the loads."""
    first = results.run.endurance.iloc[0]
    return Shape(**{axis: first[axis].item() if hasattr(first[axis], "item") else first[axis] for axis in AXES})


def burst_us(load: pd.DataFrame) -> float:
    """Median latency of the burst."""
    return float(load["latency_us"].head(BURST_SLICES).median())


def slower_pct(load: pd.DataFrame) -> float:
    """Slowdown of the sustained load over the burst in percent, rounded as a table prints it, without a signed zero."""
    return round(100 * (sustained_us(load) / burst_us(load) - 1), 1) + 0.0


def slower_after_s(load: pd.DataFrame) -> float:
    """When the burst was over, in seconds since the load began; NaN if it never was."""
    slower = load["latency_us"] > (1 + SLOWER_PCT / 100) * burst_us(load)
    lasting = load["started_s"][slower & slower.shift(-1, fill_value=False)]
    return float(lasting.iloc[0]) if len(lasting) else np.nan


def sustained_us(load: pd.DataFrame) -> float:
    """Median latency at the end of a load."""
    settled = load[load["started_s"] >= load["started_s"].max() - SETTLED_S]
    return float(settled["latency_us"].median())


def throttled_after_s(load: pd.DataFrame) -> float:
    """When the card first throttled, in seconds since the load began; NaN if it never did."""
    held = load[load["throttled"].astype("boolean").fillna(False).astype(bool)]
    return float(held["started_s"].min()) if len(held) else np.nan
