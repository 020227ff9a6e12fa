"""Speed and accuracy in one plane: whether an implementation is fast because it is less accurate."""

from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from adjustText import adjust_text
from matplotlib.axes import Axes
from matplotlib.text import Text

from attnlab.exhibits import cells, formats
from attnlab.exhibits.catalogue import exhibit, target
from attnlab.exhibits.display import Figure
from attnlab.exhibits.style import look, plain_logarithm
from attnlab.exhibits.words import say
from attnlab.infer.lookup import NotMeasured, on_values
from attnlab.infer.results import Results
from attnlab.infer.stats import Interval
from attnlab.runs.rules import GATE_FACTOR
from attnlab.runs.schema import is_of
from attnlab.study.shapes import Shape

FONT = 7.5
MARKER = 6
"""Radius around a marker, in points, that names are kept off."""
AROUND = np.arange(8) * np.pi / 4
ITERATIONS = 400
"""A limit in steps, not in time, so that a run is always drawn the same."""


class Point(NamedTuple):
    """An implementation in the plane: its latency with its interval, and its mean error with the range of it."""

    name: str
    latency_us: Interval
    error: Interval


@exhibit("verdicts.accuracy", shape=target)
def plane(results: Results, shape: Shape) -> Figure:
    """Latency against mean error at one shape, with the gate's limit."""
    checks = on_values(results.run.checks)
    checks = checks[is_of(checks, shape)] if len(checks) else checks
    points = _points(results, checks, shape)
    if not points:
        raise NotMeasured(f"Nothing has both a latency and an error above zero at {shape.label}")
    drawing, axes = plt.subplots(figsize=(7.2, 4.0))
    for point in points:
        _mark(axes, point)
    allowed = GATE_FACTOR * float(checks["framework_mean_error"].min())
    limit = _draw_limit(axes, allowed)
    _span(axes, points, allowed)
    _label(axes, points, limit, allowed)
    worst = max(points, key=lambda point: point.error.high)
    lost = [name for name in results.study.implementations if name not in {point.name for point in points}]
    return Figure(
        drawing,
        say(
            "verdicts.plane",
            worst=worst.name,
            share_pct=100 * worst.error.high / allowed,
            label=shape.label,
            timing=results.headline,
            absent=cells.without(results, lost, shape),
        ),
        "Scatter plot of mean error over latency on logarithmic axes, a labelled point for each implementation, and "
        "the limit of the correctness gate.",
    )


def _points(results: Results, checks: pd.DataFrame, shape: Shape) -> list[Point]:
    """The implementations that logarithmic axes can show."""
    points = []
    for name in results.at(shape).index:
        errors = checks.loc[checks["implementation"] == name, "mean_error"]
        if len(errors) and errors.min() > 0 and np.isfinite(errors.max()):
            error = Interval(float(errors.mean()), float(errors.min()), float(errors.max()))
            points.append(Point(str(name), results.median(str(name), shape), error))
    return points


def _mark(axes: Axes, point: Point) -> None:
    marker = look(point.name) | {"linestyle": "none", "label": "_"}
    (latency, *across), (error, *along) = (
        (value.estimate, value.low, value.high) for value in (point.latency_us, point.error)
    )
    axes.plot(across, [error, error], color=marker["color"], linewidth=3, alpha=0.5)
    axes.plot([latency, latency], along, color=marker["color"], linewidth=1)
    axes.plot([latency], [error], **marker)


def _draw_limit(axes: Axes, allowed: float) -> Text:
    """Draw the gate's limit and return its name."""
    axes.axhline(allowed, color="#888888", linestyle="--", linewidth=1.2)
    return axes.annotate(
        f"the gate's limit, {formats.number(allowed)}",
        (1, allowed),
        (0, 3),
        xycoords=axes.get_yaxis_transform(),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=8,
        color="#555555",
    )


def _span(axes: Axes, points: list[Point], allowed: float) -> None:
    latencies = [end for point in points for end in (point.latency_us.low, point.latency_us.high)]
    errors = [allowed, *(end for point in points for end in (point.error.low, point.error.high))]
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="latency (µs), logarithmic",
        ylabel="mean absolute error against float64, logarithmic",
    )
    axes.set_xlim(max(min(latencies), 1e-3) / 2.5, max(latencies) * 2)
    plain_logarithm(axes.xaxis)
    axes.set_ylim(min(errors) / 1.7, max(errors) * 1.4)


def _label(axes: Axes, points: list[Point], limit: Text, allowed: float) -> None:
    """Name each point beside it, off other names, markers and the gate's limit; a line leads from the name to it."""
    drawing = axes.get_figure(root=True)
    assert drawing is not None
    drawing.draw_without_rendering()
    drawing.set_layout_engine("none")  # names are placed in pixels, so nothing may move from here on
    spots = np.array([(point.latency_us.estimate, point.error.estimate) for point in points])
    taken = _around_markers(axes, spots) + _around_limit(axes, limit, allowed)
    adjust_text(
        [
            axes.text(x, y, point.name, fontsize=FONT, color="#222222")
            for (x, y), point in zip(spots, points, strict=True)
        ],
        *axes.transData.inverted().transform(taken).T,
        target_x=spots[:, 0],
        target_y=spots[:, 1],
        ax=axes,
        force_text=(0.3, 0.6),
        expand=(1.1, 1.4),
        iter_lim=ITERATIONS,
        arrowprops={"arrowstyle": "-", "color": "#888888", "linewidth": 0.6},
    )


def _around_markers(axes: Axes, spots: np.ndarray) -> list[tuple[float, float]]:
    """Pixels at each marker and around it."""
    radius = MARKER * axes.figure.dpi / 72
    centres = axes.transData.transform(spots)
    rings = [(x + radius * np.cos(angle), y + radius * np.sin(angle)) for x, y in centres for angle in AROUND]
    return [*map(tuple, centres), *rings]


def _around_limit(axes: Axes, limit: Text, allowed: float) -> list[tuple[float, float]]:
    """Pixels along the gate's limit, and on the name of it."""
    step = MARKER * axes.figure.dpi / 72
    line, name = axes.transData.transform((1, allowed))[1], limit.get_window_extent()
    frame = axes.get_window_extent()
    along = [(x, line) for x in np.arange(frame.x0, frame.x1, step)]
    return along + [(x, y) for x in np.arange(name.x0, name.x1, step) for y in (name.y0, name.y1)]
