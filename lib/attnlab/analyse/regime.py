"""Burst and sustained: a card at rest runs at its highest clock, and one under load at what its power limit leaves.

Both are results, and they differ. Which of the two a comparison speaks of is told from the share of its samples that
were taken while the card held itself back; how long a burst lasts, from a load without pause.
"""

from collections.abc import Sequence
from typing import Literal

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from attnlab.analyse import formats
from attnlab.analyse.display import Figure, Prose, Table, telling
from attnlab.analyse.figures import look, styled
from attnlab.analyse.results import AXES, NotMeasured, Results
from attnlab.runs import is_of
from attnlab.shapes import Shape
from attnlab.studies import Timing

Regime = Literal["burst", "sustained", "mixed", "not recorded"]
MOSTLY_PCT = 95
"""From this share of its samples on, free or held back, a comparison speaks of one regime."""
BURST_SLICES = 3
"""Slices of a load, from a card at rest, that are a burst."""
SETTLED_S = 1.0
"""The end of a load over which it is taken as settled."""
SLOWER_PCT = 2.0
"""By so much must two slices in a row be slower than the burst for it to be over."""


IN = {
    "burst": "in bursts",
    "sustained": "under sustained load",
    "mixed": "partly in bursts and partly under sustained load",
    "not recorded": "in a regime that was not recorded",
}
"""What a sentence says of samples of each regime."""


def regime(results: Results, shape: Shape, timing: Timing | None = None) -> Regime:
    """Which regime the samples at a shape speak of: all implementations', since they take turns on one card."""
    samples = results.run.samples
    timing = timing or results.headline
    there = is_of(samples, shape) & (samples["clock"] == timing.clock) & (samples["cache"] == timing.cache)
    return _of(samples.loc[there, "throttled"])


def compared(results: Results, names: Sequence[str], shape: Shape, timing: Timing | None = None) -> Regime:
    """Which regime a comparison at a shape speaks of: by the samples of the implementations compared, all sides'."""
    return _of(results.throttled(names, shape, timing))


def _of(throttled: pd.Series) -> Regime:
    known = throttled.dropna().astype(bool)
    if known.empty:
        return "not recorded"
    held_back_pct = 100 * float(known.mean())
    if held_back_pct >= MOSTLY_PCT:
        return "sustained"
    return "burst" if held_back_pct <= 100 - MOSTLY_PCT else "mixed"


def at_shapes(results: Results, shapes: Sequence[Shape]) -> str:
    """A sentence on which of the shapes speak of which regime, under the headline's timing."""
    groups: dict[Regime, list[Shape]] = {}
    for shape in shapes:
        names = [str(name) for name in results.at(shape).index]
        if names:
            groups.setdefault(compared(results, names, shape), []).append(shape)
    if not groups:
        return ""
    if len(groups) == 1:
        return f"All were timed {IN[next(iter(groups))]}."
    told = "; ".join(f"{formats.shapes(some)} {IN[name]}" for name, some in groups.items())
    return f"Timed were {told}."


@telling
def endurance_table(results: Results) -> Table:
    """Burst and sustained side by side."""
    rows = []
    for name, load in _loads(results).items():
        burst, sustained = _burst_us(load), _sustained_us(load)
        rows.append(
            {
                "implementation": name,
                "burst (µs)": formats.number(burst, 4),
                "sustained (µs)": formats.number(sustained, 4),
                "slower by": formats.percent(_slower_pct(load)),
                "slower after (s)": formats.number(_slower_after_s(load), 2),
                "held back after (s)": formats.number(_throttled_after_s(load), 2),
                "SM clock (MHz)": _span(load["sm_clock_mhz"]),
                "highest power (W)": formats.number(_highest(load["power_w"])),
                "temperature (°C)": _span(load["temperature_c"]),
            }
        )
    note = (
        f"Each alone and without pause, from a card at rest, at {formats.shape(_shape(results))}. Burst: the median of "
        f"the first {BURST_SLICES} slices; sustained: of the last {SETTLED_S:g} s. Slower: from the first of two "
        f"slices in a row that took {SLOWER_PCT:g} % longer than the burst; held back: when the card first said so, "
        "which NVML tells late. A dash: never. Clock and temperature: at first and at last."
    )
    return Table(pd.DataFrame(rows), "endurance", "Burst and sustained.", note)


@styled
def endurance(results: Results) -> Figure:
    """Latency, clock and power under a load without pause."""
    loads = _loads(results)
    drawing, grid = plt.subplots(3, 1, sharex=True, figsize=(7.2, 5.2))
    for name, load in loads.items():
        drawn = look(name) | {"marker": None}
        grid[0].plot(load["started_s"], 100 * (load["latency_us"] / _burst_us(load) - 1), **drawn)
        for axes, column in ((grid[1], "sm_clock_mhz"), (grid[2], "power_w")):
            axes.plot(load["started_s"], load[column].astype(float), **drawn)
        for axes, after in ((grid[0], _slower_after_s(load)), (grid[1], _throttled_after_s(load))):
            if not np.isnan(after):
                axes.axvline(after, color=drawn["color"], linewidth=0.8, linestyle=":")
    for axes, title in zip(grid, ("latency over burst (%)", "SM clock (MHz)", "power (W)"), strict=True):
        axes.set_ylabel(title)
    grid[-1].set_xlabel("time since the load began (s)")
    handles, labels = grid[0].get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside upper center", ncols=len(labels))
    return Figure(
        drawing,
        "endurance",
        "From rest to a settled clock: each implementation alone and without pause at "
        f"{formats.shape(_shape(results))}. Dotted: when its burst was over, by its latency, and when the card first "
        "said that it held itself back.",
        "Three stacked line plots over seconds of load: latency relative to the burst, SM clock, power.",
    )


@telling
def told(results: Results) -> Prose:
    """How long a burst lasts, what it is worth, and which shapes speak of which regime."""
    loads = _loads(results)
    after = {name: _slower_after_s(load) for name, load in loads.items()}
    costs = {name: _slower_pct(load) for name, load in loads.items()}
    slower = {name: seconds for name, seconds in after.items() if not np.isnan(seconds)}
    where = f"Without pause at {formats.shape(_shape(results))}, from a card at rest,"
    if slower:
        spans = [formats.number(seconds, 2) for seconds in (min(slower.values()), max(slower.values()))]
        most = max(slower, key=lambda name: costs[name])
        words = (
            f"{where} the burst of {_names(list(slower))} was over after {' to '.join(dict.fromkeys(spans))} s; "
            f"sustained, `{most}` takes {formats.percent(costs[most])} longer, the most of all."
        )
    else:
        words = f"{where} nothing became slower by {SLOWER_PCT:g} % for longer than a slice."
    lasting = [name for name in loads if name not in slower]
    words += f" That of {_names(lasting)} lasted." if lasting and slower else ""
    return Prose(f"{words} {_by_regime(results)}")


def _by_regime(results: Results) -> str:
    groups: dict[str, list[str]] = {}
    for shape in results.study.shapes:
        groups.setdefault(regime(results, shape), []).append(formats.shape(shape))
    counted = formats.listing([f"{len(shapes)} are {name}" for name, shapes in groups.items()])
    named = [f"{name}: {'; '.join(groups[name])}" for name in ("mixed", "sustained") if name in groups]
    told = f"By the samples themselves, {results.headline.words}, of {len(results.study.shapes)} shapes {counted}."
    return " ".join([told, *(f"{words[0].upper()}{words[1:]}." for words in named)])


def _names(names: list[str]) -> str:
    return formats.listing([f"`{name}`" for name in names])


def _loads(results: Results) -> dict[str, pd.DataFrame]:
    """The loads that were taken, by implementation.

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
    """Why a run has nothing of what is taken last, after its samples."""
    manifest = results.run.manifest
    if manifest["device"]["kind"] != "cuda":
        return "it takes an NVIDIA GPU, which this device is not"
    if not results.run.complete:
        return "the run is not complete, and it is taken last"
    return "the run is older than it" if "panel" not in manifest["study"] else "the study asks for none"


def _shape(results: Results) -> Shape:
    first = results.run.endurance.iloc[0]
    return Shape(**{axis: first[axis].item() if hasattr(first[axis], "item") else first[axis] for axis in AXES})


def _burst_us(load: pd.DataFrame) -> float:
    return float(load["latency_us"].head(BURST_SLICES).median())


def _slower_pct(load: pd.DataFrame) -> float:
    """By how much sustained is slower than the burst; as a table prints it, so that no zero has a sign."""
    return round(100 * (_sustained_us(load) / _burst_us(load) - 1), 1) + 0.0


def _slower_after_s(load: pd.DataFrame) -> float:
    slower = load["latency_us"] > (1 + SLOWER_PCT / 100) * _burst_us(load)
    lasting = load["started_s"][slower & slower.shift(-1, fill_value=False)]
    return float(lasting.iloc[0]) if len(lasting) else np.nan


def _sustained_us(load: pd.DataFrame) -> float:
    settled = load[load["started_s"] >= load["started_s"].max() - SETTLED_S]
    return float(settled["latency_us"].median())


def _throttled_after_s(load: pd.DataFrame) -> float:
    held = load[load["throttled"].astype("boolean").fillna(False).astype(bool)]
    return float(held["started_s"].min()) if len(held) else np.nan


def _span(column: pd.Series) -> str | None:
    known = column.dropna()
    return f"{known.iloc[0]} → {known.iloc[-1]}" if len(known) else None


def _highest(column: pd.Series) -> float:
    known = column.dropna()
    return float(known.max()) if len(known) else np.nan
