"""By how much `kernel.best` leads over the fastest of SDPA's backends and the peers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from attnlab.base.rules import CLAIM_SPEEDUP
from attnlab.infer.kernels import rungs
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Results
from attnlab.infer.stats import Interval
from attnlab.study.implementations import FALLBACK, PEERS, SDPA, in_fp8
from attnlab.study.ladder import BEST, PREFIX
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing

Ends = tuple[float, float]


@dataclass(frozen=True)
class Lead:
    """A hand-written kernel at a shape, the fastest of the others, and the ratio: above 1 the kernel leads."""

    kernel: str
    over: str
    ratio: Interval

    @property
    def sign(self) -> int:
        """1 if the kernel leads, -1 if it lags, 0 if the interval holds 1."""
        return (self.ratio.low > 1) - (self.ratio.high < 1)


@dataclass(frozen=True)
class Leads:
    """The leads of a kernel under one timing, by shape; at least one."""

    timing: Timing
    by_shape: dict[Shape, Lead]

    @property
    def ends(self) -> Ends:
        """The smallest and the largest ratio."""
        return ends(lead.ratio.estimate for lead in self.by_shape.values())

    @property
    def worst(self) -> Shape:
        """The shape at which the kernel leads least, or lags most."""
        return min(self.by_shape, key=lambda shape: self.by_shape[shape].ratio.estimate)

    def where(self, sign: int) -> list[Shape]:
        """The shapes at which the kernel leads (1) or lags (-1) by the interval of the ratio."""
        return [shape for shape, lead in self.by_shape.items() if lead.sign == sign]

    @property
    def ahead(self) -> int:
        """At how many shapes it leads."""
        return len(self.where(1))

    @property
    def behind(self) -> int:
        """At how many shapes it lags."""
        return len(self.where(-1))

    @property
    def cached(self) -> int:
        """At how many shapes there are more keys than queries."""
        return sum(shape.kv_len > shape.seq_len for shape in self.by_shape)

    @property
    def grouped(self) -> int:
        """At how many shapes query heads share a head of keys and values."""
        return sum(shape.kv_heads < shape.heads for shape in self.by_shape)

    @property
    def large(self) -> int:
        """At how many shapes the ratio is as large as a claim needs."""
        return sum(lead.ratio.estimate >= CLAIM_SPEEDUP for lead in self.by_shape.values())


def ends(numbers: Iterable[float]) -> Ends:
    """The smallest and the largest."""
    found = list(numbers)
    return min(found), max(found)


def of_best(results: Results) -> dict[Timing, Leads]:
    """The leads of `kernel.best` under each timing that has any, at all shapes but those of zeros.

    Raises NotMeasured where it was measured beside no other implementation.
    """
    shapes = [shape for shape in results.study.shapes if shape.is_judged]
    found = {timing: under(results, timing, shapes) for timing in results.timings}
    if not any(found.values()):
        raise NotMeasured(f"`{BEST}` was measured beside no other implementation")
    return {timing: Leads(timing, by_shape) for timing, by_shape in found.items() if by_shape}


def outrun(results: Results, shapes: Iterable[Shape]) -> dict[Shape, Lead]:
    """The shapes at which another kernel of the ladder is faster than `kernel.best`, by the interval of the ratio."""
    found = {}
    for shape in shapes:
        named = [name for name in results.at(shape).index if name.startswith(PREFIX) and not in_fp8(name)]
        name = results.fastest(shape, among=named)
        lead = Lead(name, BEST, results.speedup(name, shape, baseline=BEST))
        if lead.sign > 0 and name != rungs.launched(results, shape):
            found[shape] = lead
    return found


def others(results: Results) -> list[str]:
    """SDPA's backends and the peers; without `sdpa.auto`, which calls one of the backends."""
    return [name for name in results.study.implementations if name in SDPA + PEERS and name != FALLBACK]


def rivals(results: Results, timing: Timing, shapes: Sequence[Shape]) -> dict[Shape, str]:
    """The fastest of the `others` under one timing, at each of some shapes at which any of them has a latency."""
    names = others(results)
    there = [shape for shape in shapes if set(names) & set(results.at(shape, timing).index)]
    return {shape: results.fastest(shape, timing, names) for shape in there}


def under(results: Results, timing: Timing, shapes: Sequence[Shape]) -> dict[Shape, Lead]:
    """The leads of `kernel.best` at those of some shapes where it and any of the `others` have a latency."""
    there = [shape for shape in shapes if BEST in results.at(shape, timing).index]
    return {
        shape: Lead(BEST, rival, results.speedup(BEST, shape, timing, baseline=rival))
        for shape, rival in rivals(results, timing, there).items()
    }
