"""The latencies that the documents print: under the L4's ceilings, and of one configuration in several documents."""

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from attnlab.literature.audit.numbers import Number
from attnlab.literature.audit.reference import Reference, Row
from attnlab.study.shapes import Shape

DEVICE = "L4"
MEASURED = ("000", "002", "003", "004")
"""The documents that measured; 001 repeats what 000 did."""
LATENCIES = ("median latency", "mean latency", "latency")
TARGET = Shape(32, 8, 512, 64)
"""The shape that most of the documents' advice is about."""


@dataclass(frozen=True)
class Roof:
    """Ceilings of a device: its dense float16 rate in TFLOP/s and the bandwidth of its memory in GB/s."""

    tflops: float
    gbs: float

    @property
    def ridge(self) -> float:
        """The intensity in FLOP/byte from which on the rate is the lower ceiling."""
        return 1e3 * self.tflops / self.gbs

    def at(self, intensity: float) -> float:
        """The lower of the two ceilings in TFLOP/s at an intensity in FLOP/byte."""
        return min(self.tflops, intensity * self.gbs / 1e3)


@dataclass(frozen=True)
class Point:
    """A latency of a document, with the FLOPs and bytes of its shape; `subject` is ``sdpa`` or ``kernel``."""

    document: str
    subject: str
    shape: Shape
    printed: str
    latency_s: float

    @property
    def tflops(self) -> float:
        return self.shape.flops / self.latency_s / 1e12

    @property
    def gbs(self) -> float:
        return self.shape.bytes / self.latency_s / 1e9

    @property
    def is_above(self) -> bool:
        """Whether memory or the tensor cores would have to be faster than the datasheet says."""
        return self.gbs > roof().gbs or self.tflops > roof().tflops


@dataclass(frozen=True)
class Repeated:
    """One configuration of which several latencies are printed."""

    points: list[Point]

    @property
    def apart_pct(self) -> float:
        latencies = [point.latency_s for point in self.points]
        return 100 * (max(latencies) / min(latencies) - 1)

    def of(self, document: str) -> list[str]:
        """The latencies of one document in ms, as printed."""
        return list(dict.fromkeys(point.printed for point in self.points if point.document == document))


class Corrected(NamedTuple):
    """What the documents' roofline says with the datasheet's ceilings.

    Attributes:
        theirs: the ceilings that document 000 states, and `intensity` what it states of the target in FLOP/byte.
        best: the shortest latency of the target.
        memory_ms, compute_ms: what the target's bytes and its FLOPs take at the ceilings.
        cached_ms: the floor of the target with an L2 full of its data.
        over: the points above a ceiling.
        fastest: the point of the highest throughput.
    """

    roof: Roof
    theirs: Roof
    intensity: str
    best: Point
    memory_ms: float
    compute_ms: float
    cached_ms: float
    over: list[Point]
    fastest: Point


@cache
def points() -> tuple[Point, ...]:
    """Every latency of SDPA or their kernel that the documents give on an L4, without duplicates."""
    found: dict[tuple[str, str, Shape], list[Row]] = {}
    for row in (row for name in MEASURED for row in _reference().rows[name].values()):
        if row.unit == "ms" and row.quantity in LATENCIES and row.subject.startswith(("sdpa", "kernel")) and row.shape:
            found.setdefault((row.document, row.subject.split(",")[0], row.shape), []).append(row)
    return tuple(Point(*key, row.value, _number(row).value) for key, rows in found.items() for row in _distinct(rows))


@cache
def roof() -> Roof:
    return Roof(_value(DEVICE, "matmul_float16_tflops") / 1e12, _value(DEVICE, "copy_gbs") / 1e9)


@cache
def stated_roof() -> Roof:
    return Roof(_value("000", "peak.throughput") / 1e12, _value("000", "peak.bandwidth") / 1e9)


def repeated() -> list[Repeated]:
    """The configurations of which more than one latency is printed, SDPA's last."""
    groups: dict[tuple[str, Shape], list[Point]] = {}
    for point in points():
        groups.setdefault((point.subject, point.shape), []).append(point)
    several = [Repeated(found) for found in groups.values() if len({point.printed for point in found}) > 1]
    return sorted(several, key=lambda one: one.points[0].subject)


def corrected() -> Corrected:
    """The documents' roofline with the datasheet's ceilings."""
    limits = roof()
    memory_ms, compute_ms = TARGET.bytes / limits.gbs / 1e6, TARGET.flops / limits.tflops / 1e9
    return Corrected(
        roof=limits,
        theirs=stated_roof(),
        intensity=_reference().rows["000"]["roofline.512.intensity"].value,
        best=min((point for point in points() if point.shape == TARGET), key=lambda point: point.latency_s),
        memory_ms=memory_ms,
        compute_ms=compute_ms,
        cached_ms=max(compute_ms, (TARGET.bytes - _value(DEVICE, "l2_mib")) / limits.gbs / 1e6),
        over=[point for point in points() if point.is_above],
        fastest=max(points(), key=lambda point: point.tflops),
    )


def _distinct(rows: list[Row]) -> list[Row]:
    """The rows without means where there are medians, and without numbers that are others with fewer digits."""
    kept = [row for row in rows if row.quantity != "mean latency"] or rows
    kept = list({row.value: row for row in kept}.values())
    return [
        row
        for row in kept
        if not any(len(row.value) < len(other.value) and _number(row).contains(_number(other).value) for other in kept)
    ]


@cache
def _reference() -> Reference:
    return Reference()


def _value(source: str, name: str) -> float:
    return _number(_reference().rows[source][name]).value


def _number(row: Row) -> Number:
    assert row.number is not None
    return row.number
