"""FP8 beside 16 bits: what it gains over the fastest of these, and what it costs in accuracy."""

from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from attnlab.infer.cases import AXES
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Results
from attnlab.infer.stats import Interval
from attnlab.study.implementations import FP8
from attnlab.study.shapes import Shape


@dataclass(frozen=True)
class Point:
    """An implementation at a shape: its throughput, and the root of its mean square error against float64 of what was
    drawn, the largest of all checks."""

    name: str
    shape: Shape
    throughput_tflops: float
    rms_error: float


@dataclass(frozen=True)
class Gain:
    """An implementation in FP8 against the fastest in 16 bits at each shape: ratios above 1 where FP8 is faster.

    Attributes:
        errors: its error over that of the fastest, by shape.
    """

    name: str
    speedups: dict[Shape, Interval]
    errors: dict[Shape, float]

    @property
    def ends(self) -> tuple[float, float]:
        """The smallest and the largest speedup."""
        ratios = [speedup.estimate for speedup in self.speedups.values()]
        return min(ratios), max(ratios)

    @property
    def error_ends(self) -> tuple[float, float]:
        """The smallest and the largest ratio of the errors."""
        return min(self.errors.values()), max(self.errors.values())

    @property
    def ahead(self) -> int:
        """At how many shapes the interval is above 1."""
        return sum(speedup.low > 1 for speedup in self.speedups.values())


@dataclass(frozen=True)
class Eight:
    """What a run holds of FP8, under the headline's timing."""

    results: Results

    @cached_property
    def shapes(self) -> list[Shape]:
        """The shapes at which something in FP8 has a latency, and something in 16 bits.

        Raises NotMeasured where there is none.
        """
        sides = [set(self.of_16_bits), set(FP8)]
        shapes = self.results.study.shapes
        found = [shape for shape in shapes if all(side & set(self.results.at(shape).index) for side in sides)]
        if not found:
            raise NotMeasured("This run has nothing in FP8: the study `fp8` does")
        return found

    @cached_property
    def of_16_bits(self) -> list[str]:
        """The implementations of the study that are not in FP8."""
        return [name for name in self.results.study.implementations if name not in FP8]

    @cached_property
    def points(self) -> list[Point]:
        """Every case at these shapes whose error is known."""
        found = []
        for shape in self.shapes:
            for name, row in self.results.at(shape).iterrows():
                error = self._errors.get((name, *shape.axes.values()))
                if error is not None:
                    found.append(Point(str(name), shape, float(row["throughput_tflops"]), float(error)))
        return found

    @cached_property
    def gains(self) -> list[Gain]:
        """What each implementation in FP8 gains, in the order of the study."""
        errors = {(point.name, point.shape): point.rms_error for point in self.points}
        found = []
        for name in filter(FP8.__contains__, self.results.study.implementations):
            fastest = {
                shape: self.results.fastest(shape, among=self.of_16_bits)
                for shape in self.shapes
                if name in self.results.at(shape).index
            }
            speedups = {shape: self.results.speedup(name, shape, baseline=best) for shape, best in fastest.items()}
            pairs = {shape: (errors.get((name, shape)), errors.get((best, shape))) for shape, best in fastest.items()}
            ratios = {shape: mine / its for shape, (mine, its) in pairs.items() if mine and its}
            found += [Gain(name, speedups, ratios)] if speedups else []
        return found

    @cached_property
    def _errors(self) -> dict[tuple[object, ...], float]:
        """The largest error on the shape's own values, by case; none where a run did not record it."""
        checks = self.results.run.checks
        if "drawn_rms_error" not in checks:
            return {}
        known = checks[checks["drawn_rms_error"].notna() & (checks["inputs"] == checks["values"])]
        return dict(known.groupby(["implementation", *AXES])["drawn_rms_error"].max().astype(float))


def of(results: Results) -> Eight:
    """What a run holds of FP8."""
    return Eight(results)


def series(points: list[Point]) -> dict[tuple[int, bool], pd.DataFrame]:
    """Points by head_dim and mask, a row each, in the order of their lengths."""
    rows = pd.DataFrame([vars(point) | {"seq_len": point.shape.seq_len} for point in points])
    kinds = [(point.shape.head_dim, point.shape.causal) for point in points]
    return {
        kind: rows[[one == kind for one in kinds]].sort_values("seq_len", kind="stable")
        for kind in sorted(set(kinds), key=lambda kind: (-kind[0], kind[1]))
    }
