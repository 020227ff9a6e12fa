"""Burst and sustained load: a card starts at its highest clock, and under load its power limit lowers it.

The two give different results. The share of throttled samples shows which regime a comparison belongs to; a load
without pause shows how long a burst lasts.
"""

import matplotlib.pyplot as plt
import numpy as np

from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Figure, Prose
from attnlab.exhibits.style import label_ends, look
from attnlab.exhibits.words import say
from attnlab.infer import regimes
from attnlab.infer.results import Results
from attnlab.study.shapes import Shape


@exhibit("environment.throttling")
def throttling(results: Results) -> Prose:
    """Whether and at which shapes the card throttled, or why that isn't known."""
    found, telemetry = regimes.throttling(results), results.run.manifest["telemetry"]
    shapes = results.study.shapes
    grouped = regimes.grouped(results, shapes)
    return Prose(say("environment.throttling", t=found, telemetry=telemetry, by_regime=grouped, among=shapes))


@exhibit("environment.endurance")
def endurance(results: Results) -> Figure:
    """Latency, clock and power under a load without pause."""
    loads = regimes.loads(results).all
    drawing, grid = plt.subplots(3, 1, sharex=True, figsize=(6.5, 4.8))
    for load in loads:
        rows, drawn = load.rows, look(load.implementation) | {"marker": None}
        grid[0].plot(rows["started_s"], 100 * (rows["latency_us"] / load.burst_us - 1), **drawn)
        for axes, column in ((grid[1], "sm_clock_mhz"), (grid[2], "power_w")):
            axes.plot(rows["started_s"], rows[column].astype(float), **drawn)
        for axes, after_s in ((grid[0], load.slower_after_s), (grid[1], load.throttled_after_s)):
            if not np.isnan(after_s):
                axes.axvline(after_s, color=drawn["color"], linewidth=0.8, linestyle=":")
    for axes, title in zip(grid, ("latency over burst (%)", "SM clock (MHz)", "power (W)"), strict=True):
        axes.set_ylabel(title)
    grid[-1].set_xlabel("time since the load began (s)")
    label_ends(grid[0])
    said = slowed(results)
    return Figure(
        drawing,
        f"{said} The dotted lines show when a burst was over, by its latency, and when the card first "
        "reported that it throttled.",
        f"Three stacked line plots over seconds of load: latency relative to the burst, SM clock, power. {said}",
    )


def slowed(results: Results) -> str:
    """By how much a load without pause slows the implementations, in a sentence."""
    return say("environment.slowed", loads=regimes.loads(results), settled_s=regimes.SETTLED_S)


@exhibit("environment.load")
def bursts(results: Results) -> Prose:
    """How long a burst lasts, how much slower sustained load is, and the regime of each shape."""
    loads, shapes = regimes.loads(results), regimes.by_shape(results)
    by_regime: dict[str, list[Shape]] = {}
    for shape, regime in shapes.items():
        by_regime.setdefault(regime, []).append(shape)
    facts = {"slower_pct": regimes.SLOWER_PCT, "timing": results.headline, "shapes": len(shapes)}
    said = say("environment.load", loads=loads, by_regime=by_regime, **facts)
    return Prose(f"{said} {say('verdicts.regime_note', mostly=regimes.MOSTLY_PCT)}")
