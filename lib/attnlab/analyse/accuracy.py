"""Speed and accuracy in one plane: who is fast because it errs more, and who is neither fast nor right."""

from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from attnlab.analyse import formats, tables
from attnlab.analyse.display import Figure
from attnlab.analyse.figures import look, styled
from attnlab.analyse.results import NotMeasured, Results, on_normal
from attnlab.runs import is_of
from attnlab.shapes import Shape
from attnlab.stats import Interval

ANGLES = np.deg2rad(np.arange(0, 360, 15))
REACHES = (9, 16, 22, 28, 34, 40, 48, 56, 64, 72, 80, 90, 100)
"""How far from its point a label may stand, in points."""
LED = 9
"""Beyond this distance a line leads from a label to its point."""
MARKER = 5
"""How far a marker reaches, in points."""
CROSSING = 60
"""By how many points nearer is worth a marker of another under a label or its line."""
FONT = 7.5
ORDERS = 30
"""In which names are tried to be placed."""


class Point(NamedTuple):
    """An implementation in the plane: its latency with its interval, and its mean error with the range of it."""

    name: str
    latency_us: Interval
    error: Interval


@styled
def plane(results: Results, shape: Shape) -> Figure:
    """Latency against mean error at one shape, with what the gate allows."""
    checks = on_normal(results.run.checks)
    checks = checks[is_of(checks, shape)] if len(checks) else checks
    points = _points(results, checks, shape)
    if not points:
        raise NotMeasured(f"Nothing has both a latency and an error above zero at {formats.shape(shape)}")
    drawing, axes = plt.subplots(figsize=(7.2, 4.0))
    for point in points:
        marker = look(point.name) | {"linestyle": "none", "label": "_"}
        (latency, *across), (error, *along) = (
            (value.estimate, value.low, value.high) for value in (point.latency_us, point.error)
        )
        axes.plot(across, [error, error], color=marker["color"], linewidth=3, alpha=0.5)
        axes.plot([latency, latency], along, color=marker["color"], linewidth=1)
        axes.plot([latency], [error], **marker)
    allowed = 2 * float(checks["framework_mean_error"].min())
    axes.axhline(allowed, color="#888888", linestyle="--", linewidth=1.2)
    _span(axes, points, allowed)
    told = f"the gate's limit, {formats.number(allowed)}"
    side = axes.get_yaxis_transform()
    limit = axes.annotate(
        told,
        (1, allowed),
        (0, 3),
        xycoords=side,
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=8,
        color="#555555",
    )
    _label(axes, points, limit)
    shown = {point.name for point in points}
    lost = tables.without(results, [name for name in results.study.implementations if name not in shown], shape)
    caption = (
        f"Speed and accuracy at {formats.shape(shape)}, {results.headline.words}: the median latency with its 95 % "
        "interval against the mean absolute error, over all checks on standard normal inputs, with its range. Further "
        "left is faster, further down more accurate. The dashed line is twice the mean error of the framework's own "
        f"composition, the least of any check. {lost}"
    )
    return Figure(
        drawing,
        "plane",
        caption.strip(),
        "Scatter plot of mean error over latency on logarithmic axes, a labelled point for each implementation, and "
        "the limit of the correctness gate.",
    )


def _points(results: Results, checks: pd.DataFrame, shape: Shape) -> list[Point]:
    """Those that a logarithm can show."""
    points = []
    for name in results.at(shape).index:
        errors = checks.loc[checks["implementation"] == name, "mean_error"]
        if len(errors) and errors.min() > 0 and np.isfinite(errors.max()):
            error = Interval(float(errors.mean()), float(errors.min()), float(errors.max()))
            points.append(Point(str(name), results.median(str(name), shape), error))
    return points


def _span(axes: Axes, points: list[Point], allowed: float) -> None:
    latencies = [end for point in points for end in (point.latency_us.low, point.latency_us.high)]
    errors = [allowed, *(end for point in points for end in (point.error.low, point.error.high))]
    axes.set(xscale="log", yscale="log", xlabel="latency (µs)", ylabel="mean absolute error against float64")
    axes.set_xlim(max(min(latencies), 1e-3) / 2.5, max(latencies) * 1.7)
    axes.set_ylim(min(errors) / 1.7, max(errors) * 1.4)


def _label(axes: Axes, points: list[Point], limit: Text) -> None:
    """Name each point beside it: near, with a line that leads there, off all other names and off the limit."""
    drawing = axes.get_figure(root=True)
    assert drawing is not None
    drawing.draw_without_rendering()
    drawing.set_layout_engine("none")  # now it is known where things are, and there they stay
    inside, pixels = axes.get_window_extent().padded(-8), drawing.dpi / 72
    centres = axes.transData.transform([(point.latency_us.estimate, point.error.estimate) for point in points])
    sizes = [_size(axes, point.name) for point in points]
    line = axes.transData.transform((1, limit.get_position()[1]))[1]
    fixed = [limit.get_window_extent(), Bbox.from_extents(inside.x0, line - pixels, inside.x1, line + pixels)]
    choices = [_choices(number, centres, sizes[number], inside, pixels) for number in range(len(points))]
    # Who is placed first has the choice; the best of some orders will do.
    orders = np.random.default_rng(0)
    layouts = [_layout(orders.permutation(len(points)), choices, fixed) for _ in range(ORDERS)]
    for number, place in min(layouts, key=lambda layout: sum(place.cost for place in layout.values())).items():
        _write(axes, points[number], place)


def _choices(number: int, centres: np.ndarray, size: Bbox, inside: Bbox, pixels: float) -> list["Place"]:
    """Where the name of a point may stand, the best first."""
    markers = [_around(centre, MARKER * pixels) for centre in centres]
    # A line can't but cross the markers that lie on its own.
    apart = [marker for marker in markers if not marker.overlaps(markers[number])]
    places = [_place(centres[number], reach, angle, size, pixels) for reach in REACHES for angle in ANGLES]
    places = [place for place in places if place.inside(inside)]
    costs = [place.reach + CROSSING * place.crossed(markers, apart) for place in places]
    return sorted((place._replace(cost=cost) for place, cost in zip(places, costs, strict=True)), key=lambda p: p.cost)


def _layout(order: np.ndarray, choices: list[list["Place"]], fixed: list[Bbox]) -> dict[int, "Place"]:
    """The first free place of each, in an order; one that finds none takes its best."""
    taken, layout = list(fixed), {}
    for number in map(int, order):
        free = (place for place in choices[number] if not place.meets(taken))
        found = next(free, None)
        layout[number] = found or choices[number][0]._replace(cost=1e3)
        taken += layout[number].boxes
    return layout


class Place(NamedTuple):
    """Where a label may stand: its distance from the point, its offset in points, and what it covers with its line.

    `cost` is its distance, and more for each marker of another that it covers.
    """

    reach: float
    offset: tuple[float, float]
    boxes: list[Bbox]
    cost: float = 0.0

    @property
    def side(self) -> str:
        """The side of the label that faces the point."""
        return "left" if self.offset[0] > 1 else "right" if self.offset[0] < -1 else "center"

    def inside(self, frame: Bbox) -> bool:
        """Whether the label lies within a frame."""
        box = self.boxes[0]
        return bool(frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1)

    def crossed(self, under_label: list[Bbox], under_line: list[Bbox]) -> int:
        """How many markers the label and its line cover."""
        label, *line = self.boxes
        return label.count_overlaps(under_label) + sum(any(box.overlaps(m) for box in line) for m in under_line)

    def meets(self, others: list[Bbox]) -> bool:
        """Whether it covers a part of what others do."""
        return any(box.count_overlaps(others) for box in self.boxes)


def _place(centre: np.ndarray, reach: float, angle: float, size: Bbox, pixels: float) -> Place:
    offset = (float(reach * np.cos(angle)), float(reach * np.sin(angle)))
    place = Place(reach, offset, [])
    x, y = centre + pixels * np.array(offset)
    left = {"left": x, "right": x - size.width, "center": x - size.width / 2}[place.side]
    label = Bbox.from_bounds(left, y - size.height / 2, size.width, size.height).padded(pixels)
    led = [centre + pixels * part * np.array(offset) for part in np.arange(MARKER, reach, 2) / reach]
    return place._replace(boxes=[label, *(_around(spot, pixels / 2) for spot in led)])


def _around(centre: np.ndarray, radius: float) -> Bbox:
    return Bbox.from_bounds(centre[0] - radius, centre[1] - radius, 2 * radius, 2 * radius)


def _size(axes: Axes, name: str) -> Bbox:
    text = axes.text(0.5, 0.5, name, transform=axes.transAxes, fontsize=FONT)
    size = text.get_window_extent()
    text.remove()
    return size


def _write(axes: Axes, point: Point, place: Place) -> None:
    line = {"arrowstyle": "-", "color": "#888888", "linewidth": 0.6, "shrinkA": 1, "shrinkB": 4}
    label = axes.annotate(
        point.name,
        (point.latency_us.estimate, point.error.estimate),
        place.offset,
        textcoords="offset points",
        fontsize=FONT,
        color="#222222",
        va="center",
        ha=place.side,
        arrowprops=line | {"relpos": ({"left": 0, "right": 1, "center": 0.5}[place.side], 0.5)}
        if place.reach > LED
        else None,
    )
    label.set_in_layout(False)
