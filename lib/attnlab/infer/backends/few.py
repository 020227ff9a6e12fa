"""Few queries over more keys, as in decoding: the bandwidth that is reached, and where `kernel.best` leads."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from attnlab.infer.kernels import leads
from attnlab.infer.kernels.leads import Lead
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Results
from attnlab.study import tuning
from attnlab.study.shapes import Shape

AXES = ("seq_len", "kv_len", "batch")
"""The axes that shapes are compared along, the first one that a run varies."""
Ends = tuple[float, float]


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

    The series do not differ in the mask: where both were timed, it is the causal one, but for one query, from
    which the mask hides nothing.

    Args:
        most: how many series there may be.
    """
    found = sorted(distinct(shapes(results)), key=lambda shape: shape.causal)
    for axis in AXES:
        series: dict[Shape, dict[int, Shape]] = {}
        for shape in found:
            series.setdefault(replace(shape, **{axis: 1}, causal=False), {})[getattr(shape, axis)] = shape  # type: ignore[arg-type]
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
class Group:
    """The shapes of one number of queries, or of several.

    Attributes:
        queries: the fewest and the most.
        leads: of `kernel.best` over the fastest of SDPA's backends and the peers, by shape; empty without it.
        large: the shapes whose tensors are larger than the L2.
    """

    results: Results
    queries: tuple[int, int]
    leads: dict[Shape, Lead]
    large: list[Shape]

    @property
    def ends(self) -> Ends:
        """The smallest and the largest ratio."""
        return _ends([lead.ratio.estimate for lead in self.leads.values()])

    def where(self, sign: int) -> list[Shape]:
        """The shapes at which `kernel.best` leads (1) or lags (-1) by the interval of the ratio."""
        return [shape for shape, lead in self.leads.items() if lead.sign == sign]

    @property
    def ahead_of_it(self) -> list[str]:
        """What is the fastest at a shape at which `kernel.best` lags, each once."""
        return sorted({self.leads[shape].over for shape in self.where(-1)})

    @cached_property
    def ours_gbs(self) -> Ends:
        """The least and the largest bandwidth of `kernel.best` at the large shapes."""
        return self._gbs([lead.kernel for lead in self._large])

    @cached_property
    def others_gbs(self) -> Ends:
        """The same of the fastest of the others at each."""
        return self._gbs([lead.over for lead in self._large])

    @property
    def _large(self) -> list[Lead]:
        return [self.leads[shape] for shape in self.large]

    def _gbs(self, names: Sequence[str]) -> Ends:
        places = zip(names, self.large, strict=True)
        return _ends([float(self.results.row(name, shape)["bandwidth_gbs"]) for name, shape in places])


def _ends(numbers: Sequence[float]) -> Ends:
    return min(numbers), max(numbers)


def groups(results: Results) -> list[Group]:
    """One query, and several; each where it was measured with `kernel.best` beside others.

    Raises NotMeasured where the run has no few queries.
    """
    found = distinct(shapes(results))
    leading = leads.under(results, results.headline, found)
    made = []
    for some in ([s for s in found if s.seq_len == 1], [s for s in found if s.seq_len > 1]):
        if mine := {shape: leading[shape] for shape in some if shape in leading}:
            queries = [shape.seq_len for shape in mine]
            large = [shape for shape in mine if not results.ceilings.fits(shape)]
            made.append(Group(results, (min(queries), max(queries)), mine, large))
    return made
