"""The spread of samples: distributions and tails."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator

from attnlab.exhibits import formats, quantities
from attnlab.exhibits.catalogue import exhibit, target
from attnlab.exhibits.display import Figure, Table
from attnlab.exhibits.environment.machine import interval_words
from attnlab.exhibits.style import look, panel_each, signed_ticks
from attnlab.exhibits.words import say
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Results
from attnlab.infer.stats import samples_needed
from attnlab.study.shapes import Shape

LINEAR_PCT = 2
"""A logarithmic axis is linear up to this distance."""
DEVIATIONS_PCT = (-1000, -100, -10, -2, 0, 2, 10, 100, 1000)
TAILS = ("median_us", "p95_us", "p99_us", "cv_pct", "outliers_pct", "lag1", "effective_n", "samples", "throttled_pct")


@exhibit("baseline.distribution", shape=target)
def distribution(results: Results, shape: Shape) -> Figure:
    """The empirical distribution of the samples at one shape, pooled and by replicate, around the median."""
    rows = results.at(shape)
    if rows.empty:
        raise NotMeasured(f"Nothing has a latency at {shape.label}")
    drawing, panels = panel_each(list(rows.index), "share of samples (%)", "distance from the median (%)")
    pooled, several = {}, False
    for name, axes in panels.items():
        row, colour = rows.loc[name], look(name)["color"]
        blocks = [block for blocks in results.samples(name, shape) for block in np.atleast_2d(blocks)]
        replicates = [100 * (latencies / row["median_us"] - 1) for latencies in blocks]
        pooled[name] = np.concatenate(replicates)
        several |= len(replicates) > 1
        for deviations in replicates if len(replicates) > 1 else []:
            _draw_shares(axes, deviations, color=colour, linewidth=0.6, alpha=0.5)
        _draw_shares(axes, pooled[name], color=colour, linewidth=1.6, label=name)
        ends = [100 * (row[end] / row["median_us"] - 1) for end in ("low_us", "high_us")]
        axes.axvspan(*ends, color=colour, alpha=0.2, linewidth=0)
        axes.plot([0], [50], "o", color=colour, markersize=4)
        axes.set_title(f"{name}\n{formats.number(row['median_us'], 4)} µs")
    first = panels[rows.index[0]]
    first.set(ylim=(0, 100), yticks=[0, 50, 100])
    first.set_xscale("symlog", linthresh=LINEAR_PCT)
    low, high = first.get_xlim()
    first.xaxis.set_major_locator(FixedLocator([value for value in DEVIATIONS_PCT if low <= value <= high]))
    signed_ticks(first.xaxis)
    quartiles = {name: float(np.subtract(*np.quantile(found, [0.75, 0.25]))) for name, found in pooled.items()}
    widest = max(quartiles, key=lambda name: quartiles[name])
    caption = say(
        "baseline.distribution",
        name=widest,
        quartiles_pct=quartiles[widest],
        shape=shape,
        timing=results.headline.words,
        linear_pct=LINEAR_PCT,
        several=several,
    )
    alt = "Cumulative shares of samples over their distance from the median, one panel for each implementation."
    return Figure(drawing, caption, alt)


def _draw_shares(axes: Axes, deviations: np.ndarray, **drawn: Any) -> None:
    """Draw the share of samples that are no larger, in percent."""
    shares = np.linspace(0, 100, deviations.size + 1)
    axes.step([deviations.min(), *np.sort(deviations)], shares, where="post", **drawn)


@exhibit("baseline.tails")
def tails(results: Results) -> Table:
    """Quantiles of the baseline's latency, and how much its samples vary, against sequence length."""
    name = results.study.baseline
    along = results.along("seq_len", name)
    rows = [{"S": shape.seq_len} | quantities.cells(row, *TAILS) for shape, row in along]
    note = say("baseline.tails", p95=samples_needed(0.95), p99=samples_needed(0.99), intervals=interval_words(results))
    return Table(pd.DataFrame(rows), f"Spread and tails of the latency, `{name}`; {results.headline.words}.", note)
