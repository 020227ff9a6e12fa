"""Verdicts on the candidates at one shape under one timing: one family of tests."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

import numpy as np

from attnlab.infer import stats
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing

Place = tuple[Shape, Timing]


class FalsePositives(NamedTuple):
    """How often a run told its baseline from itself.

    Attributes:
        wrong: where it was found faster or slower, of as many `comparisons`, one per shape and timing.
        apart: in how many the interval of the ratio excludes 1.
        rate: the share of the wrong ones with its exact 95 % interval (Clopper & Pearson 1934, Biometrika 26:404). It
            takes the comparisons for independent.
    """

    wrong: list[Place]
    apart: int
    comparisons: int
    rate: stats.Interval


class Sides(NamedTuple):
    """Two implementations' samples in us, an array per replicate, and how finely they can be told.

    Attributes:
        medians: of both, with their intervals, where they are known; as sharp as `tick_us` or sharper.
    """

    baseline: list[np.ndarray]
    candidate: list[np.ndarray]
    tick_us: float
    medians: tuple[stats.Interval, stats.Interval] | None = None


@dataclass(frozen=True)
class Family:
    """What is said of the candidates at one shape under one timing, against the baseline: one family of tests.

    Attributes:
        verdicts: by candidate, in the order of the study, with Holm's p-values.
        unadjusted: the p-values before Holm's adjustment.
        control: the verdict on the baseline against itself, from its samples alone; None where there is no control.
        smallest_effect: what that leaves to be seen, a fraction; 0 where there is no control.
    """

    verdicts: dict[str, stats.Verdict]
    unadjusted: dict[str, float]
    control: stats.Verdict | None
    smallest_effect: float


def infer_family(pairs: dict[str, Sides], control: Sides | None) -> Family:
    """The verdicts on candidates at one shape, each from its and the baseline's samples, and on the baseline itself."""
    if control is None:
        return judge_family(pairs, 0.0)
    itself = stats.verdict(control.baseline, control.candidate, tick=control.tick_us, paired=True)
    return replace(judge_family(pairs, smallest_effect(control)), control=itself)


def smallest_effect(control: Sides) -> float:
    """The smallest effect that could be seen beside a control, a fraction: `stats.smallest_effect` of its rounds."""
    return stats.smallest_effect(control.baseline, control.candidate, tick=control.tick_us, paired=True)


def judge_family(pairs: dict[str, Sides], smallest: float) -> Family:
    """The verdicts on candidates at one shape, with the smallest effect that could be seen there; without a control."""
    verdicts, pvalues = judge(list(pairs.values()), [smallest] * len(pairs))
    named = dict(zip(pairs, verdicts, strict=True)), dict(zip(pairs, pvalues, strict=True))
    return Family(*named, None, smallest)


def judge(family: Sequence[Sides], smallest_effects: Sequence[float]) -> tuple[list[stats.Verdict], list[float]]:
    """The verdicts on one family of tests, with Holm's p-values, and the p-values that Holm adjusted."""
    alone = [stats.difference_pvalue(sides.baseline, sides.candidate, paired=True) for sides in family]
    verdicts = [
        stats.verdict(
            sides.baseline,
            sides.candidate,
            tick=sides.tick_us,
            paired=True,
            pvalue=float(pvalue),
            smallest_effect=smallest,
            medians=sides.medians,
        )
        for sides, pvalue, smallest in zip(family, stats.holm(alone), smallest_effects, strict=True)
    ]
    return verdicts, alone


def tally(verdicts: Iterable[stats.Verdict]) -> Counter[str]:
    """How many verdicts there are of each decision, and how many are ``claimable``."""
    counts: Counter[str] = Counter()
    for verdict in verdicts:
        counts.update([verdict.decision, *(["claimable"] if verdict.claimable else [])])
    return counts


def opposed(verdicts: Iterable[stats.Verdict]) -> bool:
    """Whether some of the verdicts are faster and others slower."""
    return {"faster", "slower"} <= {verdict.decision for verdict in verdicts}


def disagree(under: Mapping[Timing, stats.Verdict]) -> bool:
    """Whether the decision depends on the timing."""
    return len({verdict.decision for verdict in under.values()}) > 1


def flipping_axes(judged: Iterable[Mapping[Timing, stats.Verdict]]) -> list[str]:
    """The timing axes (clock, cache) that flip a verdict; both where neither does so alone.

    Args:
        judged: the verdicts on one candidate at one shape by timing, for each of several shapes.
    """
    flips = [
        {axis for axis in Timing.model_fields if getattr(one, axis) != getattr(other, axis)}
        for under in judged
        for (one, first), (other, second) in combinations(under.items(), 2)
        if opposed((first, second))
    ]
    fewest = min(map(len, flips), default=0)
    return [axis for axis in Timing.model_fields if any(axis in axes for axes in flips if len(axes) == fewest)]
