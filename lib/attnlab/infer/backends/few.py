"""Few queries over more keys, as in decoding: the bandwidth that is reached, and where `kernel.best` leads."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from attnlab.infer.kernels import leads
from attnlab.infer.kernels.leads import Ends, Leads, ends
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Results, refused
from attnlab.study import tuning
from attnlab.study.ladder import BEST
from attnlab.study.shapes import LAYOUTS, Shape

AXES = ("seq_len", "kv_len", "batch")
"""The axes that shapes are compared along, the first one that a run varies."""


def shapes(results: Results) -> list[Shape]:
    """The shapes of few queries over more keys that anything has a latency at, under the headline's timing.

    Raises NotMeasured where there is none.
    """
    found = [shape for shape in results.study.shapes if tuning.rows_of(shape) and not results.at(shape).empty]
    if not found:
        raise NotMeasured("This run has no few queries over more keys: the study `decode` does")
    return found


def along(results: Results, most: int) -> tuple[str, list[list[Shape]]]:
    """An axis that few queries vary along, and series of shapes that differ in it alone, the longest ones.

    The series do not differ in the mask and the layout: where both were timed, the mask is the causal one, but for one
    query, from which it hides nothing, and the layout the one of a cache, tokens first.

    Args:
        most: how many series there may be.
    """
    found = sorted(distinct(shapes(results)), key=lambda shape: (shape.causal, LAYOUTS.index(shape.layout)))
    for axis in AXES:
        series: dict[Shape, dict[int, Shape]] = {}
        for shape in found:
            alike: Shape = replace(shape, **{axis: 1}, causal=False, layout=LAYOUTS[0])  # type: ignore[arg-type]
            series.setdefault(alike, {})[getattr(shape, axis)] = shape
        several = sorted((sizes for sizes in series.values() if len(sizes) > 1), key=len, reverse=True)[:most]
        if several:
            listed = [[sizes[size] for size in sorted(sizes)] for sizes in several]
            return axis, sorted(listed, key=lambda each: (-each[0].head_dim, each[0].batch, each[0].kv_len))
    return AXES[0], [[shape] for shape in found[:most]]


def distinct(found: Sequence[Shape]) -> list[Shape]:
    """The shapes without those of one query under a mask that hides nothing of it, where it was timed without too."""
    return [
        shape for shape in found if not (shape.causal and shape.seq_len == 1 and replace(shape, causal=False) in found)
    ]


@dataclass(frozen=True)
class Group(Leads):
    """The leads of `kernel.best` over the fastest of SDPA's backends and the peers with one query, or with several."""

    results: Results

    @property
    def queries(self) -> Ends:
        """The fewest and the most."""
        return ends(shape.seq_len for shape in self.by_shape)

    @property
    def ahead_of_it(self) -> list[str]:
        """What is the fastest at a shape at which `kernel.best` lags, each once."""
        return sorted({self.by_shape[shape].over for shape in self.where(-1)})

    @property
    def most_behind(self) -> Shape:
        """The shape at which `kernel.best` lags most, of those at which it does by the interval: there is one."""
        return min(self.where(-1), key=lambda shape: self.by_shape[shape].ratio.estimate)

    @property
    def ours_gbs(self) -> Ends | None:
        """The least and the largest bandwidth of `kernel.best` where the L2 can't hold the tensors; None if it can."""
        return self._gbs([BEST])

    @property
    def others_gbs(self) -> Ends | None:
        """The same of the fastest of the others at each."""
        return self._gbs(leads.others(self.results))

    def _gbs(self, names: list[str]) -> Ends | None:
        of = self.results
        there = [shape for shape in self.by_shape if not of.ceilings.fits(shape)]
        rates = [of.value(of.fastest(shape, among=names), shape, "bandwidth_gbs") for shape in there]
        return ends(rates) if rates else None


def refusals(results: Results) -> dict[str, list[Shape]]:
    """At which shapes of few queries the gate refused one of SDPA's backends or a peer, by its name."""
    return refused(results, leads.others(results), distinct(shapes(results)))


def groups(results: Results) -> list[Group]:
    """One query, and several; each where it was measured with `kernel.best` beside others.

    There is no lead where the gate refused one of the others, which may be as fast and hardly less exact.

    Raises NotMeasured where the run has no few queries.
    """
    lost = {shape for each in refusals(results).values() for shape in each}
    found = []
    for several in (False, True):
        some = [shape for shape in distinct(shapes(results)) if (shape.seq_len > 1) is several]
        led = leads.under(results, results.headline, [shape for shape in some if shape not in lost])
        found += [Group(results.headline, led, results)] if led else []
    return found
