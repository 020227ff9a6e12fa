"""The spread of samples: distributions, variance, tails."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter

from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import baseline, exhibit, target
from attnlab.exhibits.cells import LETTERS, interval_cell
from attnlab.exhibits.display import Figure, Table
from attnlab.exhibits.formats import CI
from attnlab.exhibits.style import look, panel_each
from attnlab.infer.lookup import NotMeasured, axis_of
from attnlab.infer.results import Results
from attnlab.infer.stats import Interval, samples_needed
from attnlab.study.shapes import Shape

NEAR_PCT = 5
"""Samples that are all this near to their median are drawn on a linear axis."""
LINEAR_PCT = 2
"""A logarithmic axis is linear up to this distance."""
DEVIATIONS_PCT = (2, 10, 100, 1000)


@exhibit("baseline.distribution", shape=target)
def distribution(results: Results, shape: Shape) -> Figure:
    """The empirical distribution of the samples at one shape, pooled and by replicate, around the median."""
    rows = results.at(shape)
    if rows.empty:
        raise NotMeasured(f"Nothing has a latency at {shape.label}")
    drawing, panels = panel_each(list(rows.index), "share of samples (%)", "distance from the median (%)")
    furthest, quartiles, several = 0.0, {}, False
    for name, axes in panels.items():
        row, colour = rows.loc[name], look(name)["color"]
        replicates = [
            100 * (latencies / row["median_us"] - 1)
            for block in results.samples(name, shape)
            for latencies in np.atleast_2d(block)
        ]
        pooled = np.concatenate(replicates)
        furthest = max(furthest, float(np.abs(pooled).max()))
        quartiles[name] = float(np.subtract(*np.quantile(pooled, [0.75, 0.25])))
        several |= len(replicates) > 1
        for deviations in replicates if len(replicates) > 1 else []:
            _draw_shares(axes, deviations, color=colour, linewidth=0.6, alpha=0.5)
        _draw_shares(axes, pooled, color=colour, linewidth=1.6, label=name)
        ends = [100 * (row[end] / row["median_us"] - 1) for end in ("low_us", "high_us")]
        axes.axvspan(*ends, color=colour, alpha=0.2, linewidth=0)
        axes.plot([0], [50], "o", color=colour, markersize=4)
        axes.set_title(f"{name}\n{formats.number(row['median_us'], 4)} µs")
    first = panels[rows.index[0]]
    first.set(ylim=(0, 100), yticks=[0, 50, 100])
    scale, widest = _deviations(first, furthest), max(quartiles, key=lambda name: quartiles[name])
    said = f"The quartiles of `{widest}` are {formats.percent(quartiles[widest])} of its median apart, the most of all."
    thin = ", each replicate as a thin line" if several else ""
    return Figure(
        drawing,
        f"{said} Empirical distribution of the samples at {shape.label}, {results.headline.words}, around the median "
        f"of each implementation{scale}{thin}. The dot is the median, the band its {CI} interval.",
        f"Cumulative shares of samples over their distance from the median, one panel for each implementation. {said}",
    )


def _draw_shares(axes: Axes, deviations: np.ndarray, **drawn: Any) -> None:
    """Draw the share of samples that are no larger, in percent."""
    shares = np.linspace(0, 100, deviations.size + 1)
    axes.step([deviations.min(), *np.sort(deviations)], shares, where="post", **drawn)


def _deviations(axes: Axes, furthest: float) -> str:
    """Set the scale of deviations in percent and return its description for a caption."""
    signed = FuncFormatter(lambda value, _: f"{value:+g}".replace("-", "−") if value else "0")
    if furthest <= NEAR_PCT:
        reach = max(furthest, LINEAR_PCT) * 1.05
        axes.set_xlim(-reach, reach)
        axes.xaxis.set_major_formatter(signed)
        return ""
    axes.set_xscale("symlog", linthresh=LINEAR_PCT)
    drawn = [value for value in DEVIATIONS_PCT if value <= furthest]
    low, high = axes.get_xlim()
    places = [value for value in (*(-v for v in reversed(drawn)), 0, *drawn) if low <= value <= high]
    axes.xaxis.set_major_locator(FixedLocator(places))
    axes.xaxis.set_major_formatter(signed)
    return f", linear within ±{LINEAR_PCT} % and logarithmic beyond"


@exhibit("baseline.variance", name="seq_len", implementation=baseline)
def variance(results: Results, name: str, implementation: str) -> Table:
    """How much samples vary, and how independent they are."""
    axis, rows = axis_of(name), []
    for shape, row in results.along(name, implementation):
        rows.append(
            {
                LETTERS[axis]: getattr(shape, axis),
                "median": formats.number(row["median_us"], 4),
                "mean": formats.number(row["mean_us"], 4),
                "std": formats.number(row["std_us"]),
                "CV": formats.percent(row["cv_pct"]),
                "min": formats.number(row["min_us"], 4),
                "max": formats.number(row["max_us"], 4),
                "outliers": formats.percent(row["outliers_pct"]),
                "lag-1": formats.signed(row["lag1"]).removeprefix("+"),
                "effective N": f"{row['effective_n']:.0f} of {row['samples']:.0f}",
                "throttled": formats.percent(row["throttled_pct"]),
            }
        )
    note = (
        "Latencies in µs. Outliers are beyond Tukey's fences; they are labelled and kept. Lag-1 is the autocorrelation "
        "of neighbouring samples."
    )
    return Table(pd.DataFrame(rows), f"Variance, `{implementation}`; {results.headline.words}.", note)


@exhibit("baseline.tails", name="seq_len", implementation=baseline)
def tails(results: Results, name: str, implementation: str) -> Table:
    """P50, P95 and P99, where the sample count supports them."""
    axis, rows = axis_of(name), []
    for shape, row in results.along(name, implementation):
        rows.append(
            {
                LETTERS[axis]: getattr(shape, axis),
                "P50": interval_cell(row),
                "P95": _quantile(row, "p95"),
                "P99": _quantile(row, "p99"),
                "samples": int(row["samples"]),
            }
        )
    note = (
        f"In µs, with order-statistic intervals, which need {samples_needed(0.95)} samples for a P95 and "
        f"{samples_needed(0.99)} for a P99."
    )
    return Table(pd.DataFrame(rows), f"Tails of the latency, `{implementation}`; {results.headline.words}.", note)


def _quantile(row: Any, name: str) -> str:
    if np.isnan(row[f"{name}_us"]):
        return "not enough samples"
    return formats.interval(Interval(row[f"{name}_us"], row[f"{name}_low_us"], row[f"{name}_high_us"]))
