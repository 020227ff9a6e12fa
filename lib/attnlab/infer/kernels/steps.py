"""Each rung of the ladder against the rung that it builds on, and the fastest rung against SDPA."""

from dataclasses import dataclass
from math import nan
from typing import Literal

from attnlab.base.rules import EQUIVALENCE_MARGIN
from attnlab.infer.kernels.rungs import has_kernels, rungs
from attnlab.infer.lookup import median_of
from attnlab.infer.results import Results, absence
from attnlab.infer.stats import Interval, Verdict
from attnlab.study.implementations import FALLBACK, SDPA
from attnlab.study.ladder import Recorded
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing

Outcome = Literal["exceeded", "reached", "missed"]


@dataclass(frozen=True)
class Step:
    """A rung against the rung that it builds on, at one shape.

    Attributes:
        verdict: None for the first rung, and where one of the two has no latency.
        without: the rung of the two that has no latency, and why as a clause; None where both have one.
    """

    rung: Recorded
    verdict: Verdict | None
    without: tuple[str, str] | None

    @property
    def outcome(self) -> Outcome | None:
        """Whether the speedup exceeded, reached or missed what was expected; None without a verdict."""
        return outcome(self.rung.expected_speedup, self.verdict.speedup) if self.verdict else None

    @property
    def share_pct(self) -> float:
        """The share of the expected gain that was measured; NaN where none was expected."""
        expected = self.rung.expected_speedup - 1
        return 100 * (self.verdict.speedup.estimate - 1) / expected if self.verdict and expected > 0 else nan


@dataclass(frozen=True)
class Standing:
    """The fastest rung against SDPA's fastest backend at the target.

    Attributes:
        rungs: how many the study has, and `timed` how many of them have a latency there.
        best: the fastest of these; `rival` SDPA's fastest backend. Both may be empty.
        verdicts: on `best` against `rival`, under each timing; the rungs timed there are one family of tests.
    """

    rungs: int
    timed: int
    best: str
    median_us: Interval | None
    rival: str
    verdicts: dict[Timing, Verdict]


def steps(results: Results, shape: Shape) -> list[Step]:
    """Every rung against the rung that it builds on; the verdicts are one family of tests."""
    there = results.at(shape).index
    ladder = rungs(results)
    judged = [rung for rung in ladder if rung.before in there and rung.implementation in there]
    verdicts = results.compare_pairs([(rung.before, rung.implementation) for rung in judged], shape)
    by_name = {rung.implementation: verdict for rung, verdict in zip(judged, verdicts, strict=True)}
    return [Step(rung, by_name.get(rung.implementation), _without(results, rung, shape)) for rung in ladder]


def outcome(expected: float, speedup: Interval) -> Outcome:
    """Whether a speedup exceeded, reached or missed what was expected, with the margin of equivalence."""
    if speedup.low > expected * (1 + EQUIVALENCE_MARGIN):
        return "exceeded"
    return "missed" if speedup.high < expected / (1 + EQUIVALENCE_MARGIN) else "reached"


def standing(results: Results) -> Standing | None:
    """The fastest rung against SDPA's fastest backend at the target; None for a run without kernels."""
    if not has_kernels(results):
        return None
    shape, names = results.study.target_shape, [rung.implementation for rung in rungs(results)]
    medians = results.at(shape)["median_us"]
    timed, rivals = ([name for name in found if name in medians.index] for found in (names, _backends(results)))
    best, rival = (min(found, key=lambda name: medians[name], default="") for found in (timed, rivals))
    median_us = median_of(results.row(best, shape)) if best else None
    verdicts = {}
    for timing in results.timings:
        there = results.at(shape, timing).index
        if rival in there and best in there:
            family = [name for name in names if name in there]
            judged = results.compare_pairs([(rival, name) for name in family], shape, timing)
            verdicts[timing] = judged[family.index(best)]
    return Standing(len(names), len(timed), best, median_us, rival, verdicts)


def _backends(results: Results) -> list[str]:
    """SDPA's backends without `sdpa.auto`, which calls one of the others, unless there is no other."""
    names = [name for name in results.study.implementations if name in SDPA]
    return [name for name in names if name != FALLBACK] or names


def _without(results: Results, rung: Recorded, shape: Shape) -> tuple[str, str] | None:
    there = results.at(shape).index
    lacking = [name for name in (rung.implementation, rung.before) if name and name not in there]
    return (lacking[0], absence(results, lacking[0], shape)) if lacking else None
