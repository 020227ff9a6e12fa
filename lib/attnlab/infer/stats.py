"""Inference on latencies: numbers in, small frozen results out.

Every function takes *samples*: a 1-D array of one replicate, or a sequence of 1-D arrays (or a 2-D array), one row per
replicate; or, of several cards, a sequence of 2-D arrays, one per card, with one row per replicate. Latencies are in
microseconds throughout attnlab, but nothing here depends on the unit. Wherever two sides are compared the order is
(baseline, candidate), and whatever speaks for the candidate is positive, or above one.

How often all this is wrong is simulated in `attnlab.infer.simulation`.

Samples that are empty, not finite or of other dimensions raise ValueError everywhere.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Literal

import numpy as np
import scipy.special
import scipy.stats
from numpy.typing import ArrayLike

from attnlab.base.rules import ALPHA, CLAIM_DELTA, CLAIM_SPEEDUP, CONFIDENCE, EQUIVALENCE_MARGIN, POWER, RESAMPLES, SEED
from attnlab.infer import bootstrap
from attnlab.infer.bootstrap import Array, Samples, blocks, positive, replicates_of, require, require_level, student
from attnlab.infer.bootstrap import Interval as Interval

MOST_EXACT = 8
"""Samples on one side up to which scipy's Mann-Whitney test is exact."""
Decision = Literal["faster", "slower", "equivalent", "inconclusive"]
Magnitude = Literal["negligible", "small", "medium", "large"]


@dataclass(frozen=True)
class RankTest:
    """Mann-Whitney's U of the baseline and its two-sided p-value."""

    statistic: float
    pvalue: float


@dataclass(frozen=True)
class Verdict:
    """What may be said of a candidate against its baseline.

    `speedup` is the ratio of medians with its interval, `delta` Cliff's delta, `g` Hedges' g and `pvalue` the one that
    decided: `difference_pvalue`'s, or the adjusted one that the caller handed in.
    """

    decision: Decision
    claimable: bool
    speedup: Interval
    delta: float
    g: float
    pvalue: float


@dataclass(frozen=True)
class Components:
    """Variances of the logarithm of a latency; in theory none is negative, and an estimate may be.

    `card` is between cards, `process` between processes on one card, and `within` between the samples of a process.
    Where each card has one process, `process` is NaN and `card` holds both.
    """

    card: float
    process: float
    within: float


def components(cards: Sequence[ArrayLike]) -> Components:
    """How much of the variance of log latency lies between cards, between their processes, and within a process.

    Takes a 2-D array per card, with one row per process. Each mean square of the nested analysis of variance is set
    equal to its expectation (Searle, Casella & McCulloch 1992, Variance Components, appendix F).

    Raises ValueError: bad samples; fewer than two cards; processes with different numbers of samples, or a single one.
    """
    require(len(cards) > 1, "components need at least two cards")
    require(all(np.ndim(card) == 2 for card in cards), "components need a 2-D array per card")
    positive(replicates_of(cards))
    logs = [np.log(np.asarray(card, dtype=float)) for card in cards]
    counts = {card.shape[1] for card in logs}
    require(len(counts) == 1 and min(counts) > 1, f"each process needs as many samples, and two of them, not {counts}")
    (samples,), held = counts, np.array([len(card) for card in logs])
    processes, total = [card.mean(axis=1) for card in logs], held.sum()
    grand = float(np.concatenate(processes).mean())
    within = float(np.mean([row.var(ddof=1) for card in logs for row in card]))
    squares = sum(float(np.square(means - means.mean()).sum()) for means in processes)
    freedom = int(total - held.size)
    between = samples * squares / freedom if freedom else within
    spread = samples * sum(len(means) * (means.mean() - grand) ** 2 for means in processes) / (held.size - 1)
    each = (total - np.square(held).sum() / total) / (held.size - 1)
    process = (between - within) / samples if freedom else math.nan
    return Components(float((spread - between) / (samples * each)), process, within)


def bootstrap_ci(
    samples: Samples,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = SEED,
    tick: float = 0.0,
) -> Interval:
    """Bootstrap interval of the median of all samples, in their unit.

    One replicate whose samples don't resemble their neighbours: the percentile bootstrap (Efron & Tibshirani 1993,
    section 13.3). Several replicates: Student's t over the medians of the replicates, by their logarithms where all
    samples are positive, so that no interval of a duration reaches 0. All samples of one process share what that
    process drew (addresses, clocks, temperature), and the next process draws anew: a replicate counts once however many
    samples it has (Kalibera & Jones 2013, Rigorous benchmarking in reasonable time, ISMM). The interval is at least
    half as long as the percentile interval of the two-level bootstrap, replicates first and then the samples within
    each (Davison & Hinkley 1997, section 3.8), which by itself covers about 86 % of the time where five replicates
    differ, and 98 % where they don't. Several cards: the same over cards, so that the interval covers the median of
    cards like these. One replicate whose samples do resemble their neighbours: the same, over five stretches of it
    (`bootstrap.blocks`).

    The interval holds the estimate and is no narrower than `tick`, the step of the clock that took the samples: medians
    of quantised samples repeat, and the interval would collapse to a certainty that the clock does not have.

    Raises ValueError: bad samples, confidence outside (0, 1), resamples < 1, tick < 0.
    """
    return bootstrap.of_median(samples, resamples, seed, tick).interval(confidence)


def ratio_ci(
    baseline: Samples,
    candidate: Samples,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = SEED,
    tick: float = 0.0,
    paired: bool = False,
) -> Interval:
    """Speedup, median(baseline) / median(candidate), with its bootstrap interval; above 1: candidate faster.

    The two sides are resampled independently, each as in `bootstrap_ci`. `paired` resamples them together: round i of
    replicate r of the baseline goes with round i of replicate r of the candidate, since interleaved rounds share the
    drift of the machine (Efron & Tibshirani 1993, section 9.5, for keeping pairs whole). Over replicates or stretches,
    Student's t is that of the logarithm of the ratio of their medians; unpaired it is Welch's. The interval is no
    narrower than both medians, each a tick wide, allow.

    Raises ValueError: as `bootstrap_ci`; samples that are not positive; paired samples of different lengths.
    """
    return bootstrap.of_ratio(baseline, candidate, resamples, seed, tick, paired).interval(confidence)


def smallest_effect(
    baseline: Samples, control: Samples, resamples: int = RESAMPLES, tick: float = 0.0, paired: bool = False
) -> float:
    """The smallest effect that could have been told from none, from the baseline measured against itself (A/A).

    A fraction: 0.01 is a median 1 % apart. The larger of two: the effect that a test at level ALPHA finds with
    probability POWER, (t(1 - ALPHA/2) + t(POWER)) standard errors of the logarithm of the ratio (Bloom 1995, Minimum
    detectable effects, Evaluation Review 19:547), the standard error being that of the A/A interval; and the end of
    that interval that lies farther from 1, which is more where the two differ though they are the same.

    Raises ValueError: as `ratio_ci`.
    """
    against_itself = bootstrap.of_ratio(baseline, control, resamples, SEED, tick, paired)
    interval = against_itself.interval(1 - ALPHA)
    if interval.low <= 0 or math.isinf(interval.high):
        return math.inf
    found, missed = (student(against_itself.freedom, p) for p in (1 - ALPHA / 2, POWER))
    detectable = math.log(interval.high / interval.low) / 2 * (1 + missed / found)
    return math.expm1(max(detectable, -math.log(interval.low), math.log(interval.high)))


def _pooled(samples: Samples) -> Array:
    return np.concatenate(replicates_of(samples))


def cliffs_delta(baseline: Samples, candidate: Samples) -> float:
    """Cliff's delta in [-1, 1]: P(baseline > candidate) - P(baseline < candidate); positive: the candidate is faster.

    Replicates are pooled (Cliff 1993, Psychological Bulletin 114:494).
    """
    return bootstrap.cliffs_delta(_pooled(baseline), _pooled(candidate))


def magnitude(delta: float) -> Magnitude:
    """The word for a Cliff's delta of this size: 0.147, 0.33 and 0.474 are the bounds (Romano et al. 2006).

    They are what Cohen's d of 0.2, 0.5 and 0.8 come to for normal data.

    Raises ValueError: a delta outside [-1, 1].
    """
    require(-1 <= delta <= 1, f"Cliff's delta must lie in [-1, 1], not {delta}")
    bounds: dict[Magnitude, float] = {"negligible": 0.147, "small": 0.33, "medium": 0.474}
    return next((word for word, bound in bounds.items() if abs(delta) < bound), "large")


def hedges_g(baseline: Samples, candidate: Samples) -> float:
    """Hedges' g: the difference of means in pooled standard deviations, corrected for small samples; positive: faster.

    J * (mean(baseline) - mean(candidate)) / s, J = 1 - 3 / (4 df - 1), df = n + m - 2 (Hedges 1981, Journal of
    Educational Statistics 6:107). Where nothing varies: 0 for equal means, else infinite with the difference's sign.
    Replicates are pooled.

    Raises ValueError: bad samples, or a single sample on both sides.
    """
    b, c = _pooled(baseline), _pooled(candidate)
    df = b.size + c.size - 2
    require(df > 0, "Hedges' g needs at least two samples on one side")
    # Counted from one of the samples, so that the mean of constant samples is exact and their deviation exactly zero.
    b, c = b - b[0], c - b[0]
    difference = b.mean() - c.mean()
    pooled = math.sqrt((np.square(b - b.mean()).sum() + np.square(c - c.mean()).sum()) / df)
    if pooled == 0:
        return math.copysign(math.inf, difference) if difference else 0.0
    return float((1 - 3 / (4 * df - 1)) * difference / pooled)


def mann_whitney(baseline: Samples, candidate: Samples) -> RankTest:
    """Mann-Whitney's U of the baseline, ties counted half, and its two-sided p-value (Mann & Whitney 1947).

    scipy's: exact where one side has at most eight samples and there are no ties, else normal, corrected for ties and
    continuity. Replicates are pooled, so the p-value takes samples for independent; `difference_pvalue` does not.
    """
    b, c = _pooled(baseline), _pooled(candidate)
    if np.ptp(np.concatenate([b, c])) == 0:
        # One value everywhere is no evidence of a difference; scipy 1.17 says so too, scipy 1.18 says nan.
        return RankTest(b.size * c.size / 2, 1.0)
    if min(b.size, c.size) <= MOST_EXACT:
        result = scipy.stats.mannwhitneyu(b, c, alternative="two-sided")
        return RankTest(float(result.statistic), float(result.pvalue))
    # As scipy does it, to the last digit; what scipy does around it takes many times as long.
    u, n = bootstrap.twice_u(b, c) / 2, b.size + c.size
    ties = np.unique(np.concatenate([b, c]), return_counts=True)[1].astype(float)
    deviation = np.sqrt(b.size * c.size / 12 * ((n + 1) - (ties**3 - ties).sum() / (n * (n - 1))))
    z = (max(u, b.size * c.size - u) - b.size * c.size / 2 - 0.5) / deviation
    return RankTest(u, min(float(scipy.special.ndtr(-z)) * 2, 1.0))


def difference_pvalue(baseline: Samples, candidate: Samples, paired: bool = False) -> float:
    """The p-value of no difference that a verdict rests on.

    Mann-Whitney's, where samples may be taken for independent. Where only replicates or stretches of samples may
    (`bootstrap.blocks`), a difference has to show in three tests, and the largest of their p-values errs no more often
    than the one that is right (Berger 1982, Technometrics 24:295): Mann-Whitney's; the t test of Cliff's delta over
    blocks, which is its equal for samples that aren't independent, and where they are paired is that of each pair of
    blocks (`bootstrap.scatter_of_placements`); and the t test that belongs to the interval of `ratio_ci`, on the
    logarithm of the ratio of the blocks' medians.

    Raises ValueError: bad samples, samples that are not positive.
    """
    sides = positive(replicates_of(baseline)), positive(replicates_of(candidate))
    ranks, cut = mann_whitney(baseline, candidate).pvalue, blocks(sides, paired)
    if cut is None:
        return ranks
    scatters = bootstrap.scatter_of_placements(cut, paired), bootstrap.scatter_of_log_ratio(cut, paired)
    return max(ranks, *(scatter.pvalue for scatter in scatters))


def holm(pvalues: ArrayLike) -> Array:
    """Adjusted p-values of one family (n,), in the order given (Holm 1979, Scandinavian Journal of Statistics 6:65).

    Raises ValueError: p-values that are not 1-D, or outside [0, 1] (NaN too).
    """
    p = np.asarray(pvalues, dtype=float)
    require(p.ndim == 1, f"p-values must be 1-D, not {p.ndim}-D")
    require(bool(((p >= 0) & (p <= 1)).all()), "p-values must lie in [0, 1]")
    # Not statsmodels' multipletests, which collects garbage at each call: that takes longer than all the rest.
    order = np.argsort(p)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1)), 1.0)
    return adjusted


def is_within(ratio: Interval, margin: float = EQUIVALENCE_MARGIN) -> bool:
    """Whether the interval of a ratio is nowhere farther from 1 than a margin, a fraction, up or down."""
    return 1 / (1 + margin) < ratio.low and ratio.high < 1 + margin


def quantile_ci(samples: Samples, p: float) -> Interval | None:
    """The p-quantile with its distribution-free interval between two order statistics; None: not enough samples for it.

    scipy's inversion of the quantile test at CONFIDENCE (Conover 1999, section 3.2). Replicates are pooled.

    Raises ValueError: bad samples, p outside (0, 1).
    """
    require_level("p", p)
    pooled = np.sort(_pooled(samples))
    places = _order_statistics(pooled.size, p)
    return None if places is None else Interval(float(np.quantile(pooled, p)), *map(float, pooled[list(places)]))


@lru_cache
def _order_statistics(n: int, p: float) -> tuple[int, int] | None:
    """The places, from 0, of the two ends among n samples in order; kept, since scipy makes a binomial law each time.

    They don't depend on the samples, so scipy is given samples that are their own places.
    """
    low, high = scipy.stats.quantile_test(np.arange(n), p=p).confidence_interval(CONFIDENCE)
    return None if math.isnan(low) or math.isnan(high) else (int(low), int(high))


def samples_needed(p: float) -> int:
    """The fewest samples that give `quantile_ci` an interval for the p-quantile.

    All n samples lie on one side of the quantile with probability q^n, q = max(p, 1 - p); that must not exceed the tail
    on that side, (1 - CONFIDENCE) / 2 (Conover 1999, section 3.2).

    Raises ValueError: p outside (0, 1).
    """
    require_level("p", p)
    fewest = math.floor(math.log((1 - CONFIDENCE) / 2) / math.log(max(p, 1 - p)))
    # At the very edge rounding decides, and scipy's rounding is the one that counts.
    return next(n for n in count(max(fewest, 1)) if _order_statistics(n, p))


def lag1(samples: Samples) -> float:
    """Lag-1 autocorrelation of the samples in the order taken, the mean over replicates (Box & Jenkins, section 2.1).

    A replicate that is constant, or has fewer than three samples, shows none: it counts as 0.
    """
    # As statsmodels' acf does it, to the last digit, without its import, which takes longer than a run's statistics.
    found = []
    for replicate in replicates_of(samples):
        found.append(0.0)
        if replicate.size > 2 and np.ptp(replicate) > 0:
            centred = replicate - replicate.mean()
            products = np.correlate(centred, centred, "full")[replicate.size - 1 :] / replicate.size
            found[-1] = float(products[1] / products[0])
    return float(np.mean(found))


def effective_n(samples: Samples) -> float:
    """How many independent samples tell as much: n (1 - r) / (1 + r), r = max(lag1, 0); never more than n.

    For a first-order autoregression (Bayley & Hammersley 1946, Supplement to the Journal of the Royal Statistical
    Society 8:184). A negative r is taken for noise, since it would promise more samples than there are.
    """
    r = max(lag1(samples), 0.0)
    return _pooled(samples).size * (1 - r) / (1 + r)


def verdict(
    baseline: Samples,
    candidate: Samples,
    alpha: float = ALPHA,
    margin: float = EQUIVALENCE_MARGIN,
    resamples: int = RESAMPLES,
    seed: int = SEED,
    tick: float = 0.0,
    paired: bool = False,
    pvalue: float | None = None,
    smallest_effect: float = 0.0,
    medians: tuple[Interval, Interval] | None = None,
) -> Verdict:
    """Whether the candidate is faster than the baseline, and whether that may be claimed.

    In this order: *equivalent* where the medians are the same to within `margin`, a fraction, be the difference
    detectable or not, and a difference of `margin` could have been seen: two one-sided tests at level alpha, by whether
    the 1 - 2 alpha interval of the speedup lies inside (1 / (1 + margin), 1 + margin) (Schuirmann 1987, Journal of
    Pharmacokinetics and Biopharmaceutics 15:657); *faster* or *slower* where the whole 1 - alpha interval of the
    speedup lies above or below 1, p < alpha, and the medians lie at least `smallest_effect` apart, a fraction; else
    *inconclusive*. `pvalue` stands in for `difference_pvalue`: the comparison's adjusted p-value, where it is one of a
    family (`holm`). `smallest_effect` is what the baseline measured against itself leaves to be seen (see the function
    of that name). `medians` are the `bootstrap_ci` of both sides, where they are known, for a tick no longer than this.

    Claimable is a faster candidate that also has a speedup of at least CLAIM_SPEEDUP, |delta| of at least CLAIM_DELTA,
    and a `bootstrap_ci` of its median apart from the baseline's.

    Raises ValueError: as `ratio_ci` and `hedges_g`; alpha outside (0, 0.5); margin <= 0; pvalue outside [0, 1];
    smallest_effect < 0.
    """
    require(margin > 0, f"margin must be positive, not {margin}")
    require(0 < alpha < 0.5, f"alpha must lie between 0 and 0.5, not {alpha}")
    ratio = bootstrap.of_ratio(baseline, candidate, resamples, seed, tick, paired)
    speedup = ratio.interval(1 - alpha)
    p = difference_pvalue(baseline, candidate, paired) if pvalue is None else pvalue
    require(0 <= p <= 1, f"pvalue must lie in [0, 1], not {p}")
    require(smallest_effect >= 0, f"smallest_effect must not be negative, not {smallest_effect}")
    delta = cliffs_delta(baseline, candidate)
    seen = abs(math.log(speedup.estimate)) >= math.log1p(smallest_effect)
    decision: Decision = "inconclusive"
    # Every interval holds the floor, and that takes no time.
    is_near = smallest_effect <= margin and is_within(ratio.floor, margin)
    if is_near and is_within(ratio.interval(1 - 2 * alpha), margin):
        decision = "equivalent"
    elif p < alpha and seen and not speedup.holds(1):
        decision = "faster" if speedup.low > 1 else "slower"

    def apart() -> bool:
        sides = medians or [bootstrap_ci(side, 1 - alpha, resamples, seed, tick) for side in (baseline, candidate)]
        one, other = (median.no_narrower(tick) for median in sides)
        return not one.overlaps(other)

    claimable = decision == "faster" and speedup.estimate >= CLAIM_SPEEDUP and abs(delta) >= CLAIM_DELTA and apart()
    return Verdict(decision, claimable, speedup, delta, hedges_g(baseline, candidate), p)
