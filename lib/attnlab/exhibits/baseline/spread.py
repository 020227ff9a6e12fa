"""The spread of samples: distributions, variance, tails."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter

from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import baseline, exhibit, target
from attnlab.exhibits.cells import LETTERS, interval_cell
from attnlab.exhibits.display import Figure, Table
from attnlab.exhibits.formats import CI
from attnlab.exhibits.style import look
from attnlab.infer.lookup import NotMeasured, axis_of
from attnlab.infer.results import Results
from attnlab.infer.stats import Interval, samples_needed
from attnlab.study.shapes import Shape

NEAR_PCT = 5
"""Samples that are all this near to their median are drawn on a linear axis."""
LINEAR_PCT = 2
"""A logarithmic axis is linear up to this distance."""
DEVIATIONS_PCT = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


@exhibit("baseline.distribution", shape=target)
def distribution(results: Results, shape: Shape) -> Figure:
    """Every sample at one shape, as its distance from the median, a lane for each replicate."""
    rows = results.at(shape)
    if rows.empty:
        raise NotMeasured(f"Nothing has a latency at {shape.label}")
    drawing, axes = plt.subplots(figsize=(7.2, 0.9 + 0.55 * len(rows)))
    rng = np.random.default_rng(0)
    furthest = 0.0
    for position, (name, row) in enumerate(rows.iterrows()):
        colour = look(str(name))["color"]
        replicates = [row for block in results.samples(str(name), shape) for row in np.atleast_2d(block)]
        lane = 0.7 / len(replicates)
        for number, latencies in enumerate(replicates):
            height = position + lane * (number + 0.5) - 0.35 + rng.uniform(-0.35, 0.35, latencies.size) * lane
            deviation = 100 * (latencies / row["median_us"] - 1)
            furthest = max(furthest, float(np.abs(deviation).max()))
            axes.plot(deviation, height, ".", color=colour, alpha=0.35, markersize=3, rasterized=True)
        ends = [100 * (row[end] / row["median_us"] - 1) for end in ("low_us", "high_us")]
        axes.fill_betweenx([position - 0.4, position + 0.4], *ends, color=colour, alpha=0.25, linewidth=0)
    axes.set_yticks(
        range(len(rows)), [f"{name}\n{formats.number(row['median_us'], 4)} µs" for name, row in rows.iterrows()]
    )
    axes.invert_yaxis()
    axes.set(xlabel="distance from the median (%)")
    scale = _deviations(axes, furthest)
    return Figure(
        drawing,
        f"Every sample at {shape.label}, {results.headline.words}: its distance from the median of its "
        f"implementation{scale}, a lane for each replicate. Bands are the medians' {CI} intervals.",
        "Strips of dots, one for each implementation, around its median: the spread of latencies in percent.",
    )


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
