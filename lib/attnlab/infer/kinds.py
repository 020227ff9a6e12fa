"""What is said of a candidate at a shape over all kinds of values that the run timed there.

A claim is as good as on the worst kind. Zeros are left out: no program computes attention over them, and they show only
what power does.
"""

from dataclasses import dataclass

from attnlab.infer.results import Results
from attnlab.infer.stats import Verdict
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing
from attnlab.study.values import ZEROS


@dataclass(frozen=True)
class OverKinds:
    """The verdicts on a candidate at one shape under one timing, by the shape with each kind of values.

    Attributes:
        verdicts: in the order of the study; at least one.
        lacking: the shapes with the values on which it has no latency, and the baseline has one.
    """

    candidate: str
    verdicts: dict[Shape, Verdict]
    lacking: list[Shape]

    @property
    def worst(self) -> Shape:
        """The shape with the values on which it gains least."""
        return min(self.verdicts, key=lambda shape: self.verdicts[shape].speedup.estimate)

    @property
    def best(self) -> Shape:
        """The shape with the values on which it gains most."""
        return max(self.verdicts, key=lambda shape: self.verdicts[shape].speedup.estimate)

    @property
    def verdict(self) -> Verdict:
        """The verdict on the worst kind, by which it is judged."""
        return self.verdicts[self.worst]

    def where(self, decision: str) -> list[Shape]:
        """The shapes with the values on which it was decided so."""
        return [shape for shape, verdict in self.verdicts.items() if verdict.decision == decision]

    @property
    def disagree(self) -> bool:
        """Whether it is faster on some values and slower on others."""
        return bool(self.where("faster") and self.where("slower"))


def shapes(results: Results, shape: Shape, timing: Timing | None = None) -> list[Shape]:
    """The study's shapes that differ from one in their values alone, at which the baseline was timed.

    Zeros are left out, unless there is nothing else.
    """
    alike = [other for other in results.study.shapes if other.plain == shape.plain]
    timed = [other for other in alike if results.study.baseline in results.at(other, timing).index]
    return [other for other in timed if other.values != ZEROS] or timed


def over(results: Results, candidate: str, shape: Shape, timing: Timing | None = None) -> OverKinds:
    """What was found of a candidate over all kinds at a shape.

    Raises:
        NotMeasured: it has no latency on any of them.
    """
    alike = shapes(results, shape, timing)
    timed = [other for other in alike if candidate in results.at(other, timing).index]
    if not timed:
        results.row(candidate, shape, timing)
    verdicts = {other: results.compare(candidate, other, timing) for other in timed}
    return OverKinds(candidate, verdicts, [other for other in alike if other not in timed])


def several(results: Results) -> list[Shape]:
    """The shapes that were timed on several kinds of values, each once, with the first of its kinds in the study."""
    first: dict[Shape, Shape] = {}
    for shape in results.study.shapes:
        first.setdefault(shape.plain, shape)
    return [shape for shape in first.values() if len(shapes(results, shape)) > 1]
