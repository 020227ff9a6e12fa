"""The candidate that is fastest at the target, compared with the baseline there and at every other shape."""

from collections import Counter
from dataclasses import dataclass

from attnlab.infer.families import flipping_axes, opposed, tally
from attnlab.infer.kernels import rungs
from attnlab.infer.results import Results
from attnlab.infer.stats import Verdict
from attnlab.study.ladder import BEST
from attnlab.study.studies import Timing


@dataclass(frozen=True)
class Lead:
    """The comparisons of one candidate.

    Attributes:
        launches: of `kernel.best`, the rung that it launches at the target, timed by its own name too; else empty.
        is_alone: whether there is no other candidate at the target.
        counts: under each timing, the tally of the verdicts over all shapes, and how many shapes these are.
        axes: the timing axes (clock, cache) that flip the sign, at `flips` of `shapes` shapes.
        at_target: the verdict under each timing.
    """

    candidate: str
    launches: str
    is_alone: bool
    counts: dict[Timing, tuple[Counter[str], int]]
    axes: list[str]
    flips: int
    shapes: int
    at_target: dict[Timing, Verdict]


def lead(results: Results) -> Lead:
    """The comparisons of the candidate with the smallest median at the target, at each shape that has its values.

    Of a kernel that was timed by two names it is `kernel.best`, as which it was chosen before the run.

    Raises:
        NotMeasured: there is no candidate or no baseline there.
    """
    shape = results.study.target_shape
    name = rungs.chosen(results, shape, results.fastest(shape, among=results.candidates(shape)))
    alike = [other for other in results.study.shapes if other.values == shape.values]
    found = {other: under for other in alike if (under := results.under_each(name, other))}
    judged = {timing: [under[timing] for under in found.values() if timing in under] for timing in results.timings}
    return Lead(
        name,
        rungs.launched(results, shape) if name == BEST else "",
        len(results.candidates(shape)) == 1,
        {timing: (tally(verdicts), len(verdicts)) for timing, verdicts in judged.items() if verdicts},
        flipping_axes(found.values()),
        sum(opposed(under.values()) for under in found.values()),
        len(found),
        results.under_each(name, shape),
    )
