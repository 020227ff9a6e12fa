"""Burst and sustained load: a card starts at its highest clock, and under load its power limit lowers it.

The two give different results. The share of throttled samples shows which regime a comparison belongs to; a load
without pause shows how long a burst lasts.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Figure, Prose, Table
from attnlab.exhibits.style import label_ends, look
from attnlab.infer.regimes import (
    BURST_SLICES,
    SETTLED_S,
    SLOWER_PCT,
    burst_us,
    by_shape,
    loads_of,
    shape_of,
    slower_after_s,
    slower_pct,
    sustained_us,
    throttled_after_s,
)
from attnlab.infer.results import Results


@exhibit("environment.endurance.table")
def endurance_table(results: Results) -> Table:
    """Latency, clock, power and temperature, in the burst and sustained."""
    rows = []
    for name, load in loads_of(results).items():
        burst, sustained = burst_us(load), sustained_us(load)
        rows.append(
            {
                "implementation": name,
                "burst (µs)": formats.number(burst, 4),
                "sustained (µs)": formats.number(sustained, 4),
                "slower by": formats.percent(slower_pct(load)),
                "slower after (s)": formats.number(slower_after_s(load), 2),
                "throttled after (s)": formats.number(throttled_after_s(load), 2),
                "SM clock (MHz)": _span(load["sm_clock_mhz"]),
                "highest power (W)": formats.number(_highest(load["power_w"])),
                "temperature (°C)": _span(load["temperature_c"]),
            }
        )
    note = (
        f"Each implementation alone and without pause, from a card at rest, at {shape_of(results).label}. Burst: the "
        f"median of the first {BURST_SLICES} slices; sustained: the median of the last {SETTLED_S:g} s. Slower after: "
        f"the first of two slices in a row that took {SLOWER_PCT:g} % longer than the burst; throttled after: the "
        "first time that NVML reported it, which it does late; a dash: never. Clock and temperature: first and last."
    )
    return Table(pd.DataFrame(rows), "Burst and sustained.", note)


@exhibit("environment.endurance")
def endurance(results: Results) -> Figure:
    """Latency, clock and power under a load without pause."""
    loads = loads_of(results)
    drawing, grid = plt.subplots(3, 1, sharex=True, figsize=(7.2, 5.2))
    for name, load in loads.items():
        drawn = look(name) | {"marker": None}
        grid[0].plot(load["started_s"], 100 * (load["latency_us"] / burst_us(load) - 1), **drawn)
        for axes, column in ((grid[1], "sm_clock_mhz"), (grid[2], "power_w")):
            axes.plot(load["started_s"], load[column].astype(float), **drawn)
        for axes, after in ((grid[0], slower_after_s(load)), (grid[1], throttled_after_s(load))):
            if not np.isnan(after):
                axes.axvline(after, color=drawn["color"], linewidth=0.8, linestyle=":")
    for axes, title in zip(grid, ("latency over burst (%)", "SM clock (MHz)", "power (W)"), strict=True):
        axes.set_ylabel(title)
    grid[-1].set_xlabel("time since the load began (s)")
    label_ends(grid[0])
    said = slowest(results)
    return Figure(
        drawing,
        f"{said} The dotted lines show when a burst was over, by its latency, and when the card first "
        "reported that it throttled.",
        f"Three stacked line plots over seconds of load: latency relative to the burst, SM clock, power. {said}",
    )


def slowest(results: Results) -> str:
    """The implementation that a load without pause slows the most, in a sentence."""
    loads = loads_of(results)
    costs = {name: slower_pct(load) for name, load in loads.items()}
    most = max(costs, key=lambda name: costs[name])
    return (
        f"Without pause at {shape_of(results).label}, `{most}` takes {formats.percent(costs[most])} longer than in a "
        f"burst, the most of {formats.count(len(loads), 'implementation')}."
    )


@exhibit("environment.load")
def bursts(results: Results) -> Prose:
    """How long a burst lasts, how much slower sustained load is, and the regime of each shape."""
    loads = loads_of(results)
    after = {name: slower_after_s(load) for name, load in loads.items()}
    costs = {name: slower_pct(load) for name, load in loads.items()}
    slower = {name: seconds for name, seconds in after.items() if not np.isnan(seconds)}
    where = f"Without pause at {shape_of(results).label}, from a card at rest,"
    if slower:
        spans = [formats.number(seconds, 2) for seconds in (min(slower.values()), max(slower.values()))]
        most = max(slower, key=lambda name: costs[name])
        words = (
            f"{where} the burst of {_names(list(slower))} was over after {' to '.join(dict.fromkeys(spans))} s. Under "
            f"sustained load, `{most}` takes {formats.percent(costs[most])} longer, the most of all."
        )
    else:
        words = f"{where} nothing became slower by {SLOWER_PCT:g} % for longer than a slice."
    lasting = [name for name in loads if name not in slower]
    words += f" The burst of {_names(lasting)} lasted." if lasting and slower else ""
    return Prose(f"{words} {_by_regime(results)}")


def _by_regime(results: Results) -> str:
    groups: dict[str, list[str]] = {}
    for shape, regime in by_shape(results).items():
        groups.setdefault(regime, []).append(shape.label)
    counted = formats.listing([f"{len(shapes)} are {name}" for name, shapes in groups.items()])
    named = [f"{name}: {'; '.join(groups[name])}" for name in ("mixed", "sustained") if name in groups]
    sentence = f"By their own samples, {results.headline.words}, of {len(results.study.shapes)} shapes {counted}."
    return " ".join([sentence, *(f"{words[0].upper()}{words[1:]}." for words in named)])


def _names(names: list[str]) -> str:
    return formats.listing([f"`{name}`" for name in names])


def _span(column: pd.Series) -> str | None:
    known = column.dropna()
    return f"{known.iloc[0]} → {known.iloc[-1]}" if len(known) else None


def _highest(column: pd.Series) -> float:
    known = column.dropna()
    return float(known.max()) if len(known) else np.nan
