"""Inference on latencies: functions take arrays and return small frozen results.

*Samples* are a 1-D array of one replicate, or a sequence of arrays, one for each independent block. A block is a
replicate, or a card with its replicates as rows. Latencies are in microseconds throughout attnlab; nothing here depends
on the unit. Functions take the 2 sides as (baseline, candidate). Positive values, and ratios above 1, favour the
candidate.

Samples that are empty, not finite or of other dimensions raise ValueError everywhere. `attnlab.simulate` shows how
often these functions err.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Literal, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from attnlab.base.rules import ALPHA, CLAIM_DELTA, CLAIM_SPEEDUP, CONFIDENCE, EQUIVALENCE_MARGIN, POWER, RESAMPLES, SEED

Array: TypeAlias = np.ndarray
Samples: TypeAlias = ArrayLike | Sequence[ArrayLike]
Side: TypeAlias = list[Array]
"""One side of a comparison: an array for each block."""
Decision = Literal["faster", "slower", "equivalent", "inconclusive"]
STRETCHES = 5
"""Blocks into which a single replicate is cut if its samples are autocorrelated."""
SHORTEST_STRETCH = 4
LAG1_LIMIT = NormalDist().inv_cdf(0.99)
"""Tests take independent samples for dependent in 1 % of cases."""
MOST_EXACT = 8
"""Samples on one side up to which scipy's Mann-Whitney test is exact."""
VALUES_AT_ONCE = 2**22


@dataclass(frozen=True)
class Interval:
    """An estimate and its confidence interval, both ends included."""

    estimate: float
    low: float
    high: float

    def overlaps(self, other: "Interval") -> bool:
        """Whether the 2 intervals share a point."""
        return self.low <= other.high and other.low <= self.high

    def holds(self, value: float) -> bool:
        """Whether a value is in the interval."""
        return self.low <= value <= self.high


@dataclass(frozen=True)
class RankTest:
    """Mann-Whitney's U of the baseline and its 2-sided p-value."""

    statistic: float
    pvalue: float


@dataclass(frozen=True)
class Verdict:
    """The judgement of a candidate against its baseline.

    `speedup` is the ratio of medians with its interval, `delta` is Cliff's delta, `g` is Hedges' g. `pvalue` is the
    p-value that decided: `difference_pvalue`'s, or the adjusted one that the caller passed.
    """

    decision: Decision
    claimable: bool
    speedup: Interval
    delta: float
    g: float
    pvalue: float


def require(condition: bool, otherwise: str) -> None:
    """Raise ValueError, in one line, unless the condition holds."""
    if not condition:
        raise ValueError(otherwise)


def blocks_of(samples: Samples) -> Side:
    """The samples as one float array for each block; a 2-D array (a card with a row per replicate) is one block."""
    require(np.iterable(samples), f"samples must be a sequence of numbers, not {type(samples).__name__}")
    first = next(iter(samples), None)  # type: ignore[arg-type]
    require(first is not None, "samples must hold at least one value")
    parts = [samples] if np.ndim(first) == 0 else samples  # type: ignore[arg-type]
    try:
        blocks = [np.asarray(part, dtype=float) for part in parts]  # type: ignore[union-attr]
    except (TypeError, ValueError) as error:
        raise ValueError(f"samples must be numbers, or one 1-D array of numbers per replicate: {error}") from error
    are_cards = len(blocks) > 1 and all(block.ndim == 2 for block in blocks)
    for index, block in enumerate(blocks):
        require(block.ndim == 1 or are_cards, f"replicate {index} must be 1-D, not {block.ndim}-D")
        require(block.size > 0, f"replicate {index} holds no samples")
        require(bool(np.isfinite(block).all()), f"replicate {index} holds samples that are not finite")
    return [block.ravel() for block in blocks]


def _positive(blocks: Side) -> Side:
    smallest = min(float(block.min()) for block in blocks)
    require(smallest > 0, f"a ratio needs positive samples, not {smallest}")
    return blocks


def _pooled(samples: Samples) -> Array:
    return np.concatenate(blocks_of(samples))


def _special(name: str, *arguments: float) -> float:
    """A function of scipy.special, imported at its first call: a page with cached frames doesn't need scipy."""
    import scipy.special

    return float(getattr(scipy.special, name)(*arguments))


@dataclass(frozen=True)
class Scatter:
    """The mean of independent blocks, its standard error and the error's degrees of freedom."""

    mean: float
    error: float
    freedom: float

    @classmethod
    def of(cls, values: Array) -> "Scatter":
        """The scatter of independent values, at least 2."""
        # Offsets from one of them: values that are all the same scatter by exactly nothing.
        offsets = values - values[0]
        error = float(offsets.std(ddof=1)) / math.sqrt(values.size)
        return cls(float(values[0] + offsets.mean()), error, values.size - 1)

    def less(self, other: "Scatter") -> "Scatter":
        """The difference of 2 independent means (Welch 1947, Biometrika 34:28)."""
        squares, freedoms = np.square([self.error, other.error]), np.array([self.freedom, other.freedom])
        spread = float((squares**2 / freedoms).sum())
        freedom = float(squares.sum() ** 2 / spread) if spread else float(freedoms.sum())
        return Scatter(self.mean - other.mean, math.sqrt(squares.sum()), freedom)

    @property
    def pvalue(self) -> float:
        """2-sided p-value of Student's t test of mean zero; without scatter 1 at zero and 0 elsewhere."""
        if self.error == 0:
            return float(self.mean == 0)
        return 2 * _special("stdtr", self.freedom, -abs(self.mean) / self.error)


def student(freedom: float, p: float) -> float:
    """The p-quantile of Student's t; of the normal law for infinite degrees of freedom."""
    return NormalDist().inv_cdf(p) if math.isinf(freedom) else _special("stdtrit", freedom, p)


def _ranks(values: Array) -> Array:
    """Ranks from 1, ties by their mean: scipy.stats.rankdata without the import, which takes 2 s of CPU."""
    return pd.Series(values).rank().to_numpy()


def resembles_neighbours(samples: Array) -> bool:
    """Whether samples, in the order taken, are autocorrelated.

    The test compares the lag-1 correlation of their ranks (outliers hide nothing) with a normal law of variance 1/n. It
    is one-sided at 1 % (Wald & Wolfowitz 1943, Annals of Mathematical Statistics 14:378). The answer is no for fewer
    samples than STRETCHES blocks of SHORTEST_STRETCH.
    """
    if samples.size < STRETCHES * SHORTEST_STRETCH or np.ptp(samples) == 0:
        return False
    return _lag1(_ranks(samples)) > LAG1_LIMIT / math.sqrt(samples.size)


def _lag1(samples: Array) -> float:
    centred = samples - samples.mean()
    return float(centred[1:] @ centred[:-1] / (centred @ centred))


def independent_blocks(sides: Sequence[Side], paired: bool) -> list[Side] | None:
    """Each side in blocks that may be taken for independent; None if its samples may be taken one by one.

    Several replicates are blocks. A single replicate whose samples are autocorrelated is cut into STRETCHES
    stretches of equal length (batching: Schmeiser 1982, Operations Research 30:556; for quantiles Nakayama 2014, ACM
    TOMACS 24(4)). For 100 samples with a lag-1 correlation of 0.7, intervals from 5 stretches cover the true median in
    93 % of cases, those from single samples in 65 %. Paired sides are cut alike.
    """
    single = [side[0] for side in sides if len(side) == 1]
    if len(single) == len(sides):
        series = [*single, np.log(single[0] / single[1])] if paired else single
        if not any(map(resembles_neighbours, series)):
            return None
    if any(samples.size < STRETCHES * SHORTEST_STRETCH for samples in single):
        return None
    return [side if len(side) > 1 else np.array_split(side[0], STRETCHES) for side in sides]


def _medians_of(side: Side) -> Array:
    return np.array([_median(block) for block in side])


def _median(samples: Array) -> float:
    """np.median without its checks, which take longer than the median of 100 samples."""
    ordered = np.sort(samples)
    return float((ordered[(ordered.size - 1) // 2] + ordered[ordered.size // 2]) / 2)


def _scatter_of_log_ratio(sides: Sequence[Side], paired: bool) -> Scatter:
    logs = [np.log(_medians_of(side)) for side in sides]
    return Scatter.of(logs[0] - logs[1]) if paired else Scatter.of(logs[0]).less(Scatter.of(logs[1]))


def _resampled_medians(sides: Sequence[Array], resamples: int, seed: int, paired: bool) -> list[Array]:
    """Medians of resamples of each side, (resamples,); paired sides share every draw."""
    require(resamples >= 1, f"resamples must be at least 1, not {resamples}")
    rng, found = np.random.default_rng(seed), []
    draws: list[Array] = []
    for side in sides:
        if not (paired and draws):
            rows = max(1, VALUES_AT_ONCE // side.size)
            sizes = [min(rows, resamples - done) for done in range(0, resamples, rows)]
            draws = [rng.integers(side.size, size=(size, side.size)) for size in sizes]
        found.append(np.concatenate([np.median(side[draw], axis=1) for draw in draws]))
    return found


@dataclass(frozen=True)
class Estimate:
    """A median or a ratio of medians, from which intervals can be read, see `bootstrap_ci`."""

    floor: Interval
    """The estimate with the narrowest interval that the clock's tick allows."""
    bounds: Callable[[float], tuple[float, float]]
    """The ends of the interval of a confidence."""
    freedom: float = math.inf

    def interval(self, confidence: float) -> Interval:
        """The interval; it includes the estimate and the floor."""
        require(0 < confidence < 1, f"confidence must lie between 0 and 1, not {confidence}")
        (low, high), estimate = self.bounds(confidence), self.floor.estimate
        low, high = min(low, estimate, self.floor.low), max(high, estimate, self.floor.high)
        return Interval(estimate, float(low), float(high))

    @classmethod
    def of_resampled(cls, floor: Interval, resampled: Array) -> "Estimate":
        """The percentile bootstrap."""
        return cls(
            floor, lambda confidence: tuple(np.quantile(resampled, [(1 - confidence) / 2, (1 + confidence) / 2]))
        )

    @classmethod
    def of_scatter(cls, floor: Interval, scatter: Scatter, unit: float | None = 1.0) -> "Estimate":
        """Student's t of logarithms over the unit, so that no interval of a duration reaches 0.

        Without a unit, for samples that are not positive, the values scatter as they are.
        """

        def bounds(confidence: float) -> tuple[float, float]:
            reach = student(scatter.freedom, (1 + confidence) / 2) * scatter.error
            low, high = scatter.mean - reach, scatter.mean + reach
            return (unit * math.exp(low), unit * math.exp(high)) if unit else (low, high)

        return cls(floor, bounds, scatter.freedom)


def _estimate_ratio(
    baseline: Samples, candidate: Samples, resamples: int, seed: int, tick: float, paired: bool
) -> Estimate:
    sides = _positive(blocks_of(baseline)), _positive(blocks_of(candidate))
    if paired:
        sizes = [[block.size for block in side] for side in sides]
        same = sizes[0] == sizes[1]
        require(same, f"paired samples need the same rounds on both sides, not {sizes[0]} and {sizes[1]}")
    above, below = (_floor(side, tick) for side in sides)
    low, high = max(above.low, 0.0) / below.high, above.high / below.low if below.low > 0 else math.inf
    floor, cut = Interval(above.estimate / below.estimate, low, high), independent_blocks(sides, paired)
    if cut is None:
        pooled = [np.concatenate(side) for side in sides]
        return Estimate.of_resampled(floor, np.divide(*_resampled_medians(pooled, resamples, seed, paired)))
    return Estimate.of_scatter(floor, _scatter_of_log_ratio(cut, paired))


def _floor(side: Side, tick: float) -> Interval:
    require(tick >= 0, f"tick must not be negative, not {tick}")
    estimate = _median(np.concatenate(side))
    return Interval(estimate, estimate - tick / 2, estimate + tick / 2)


def bootstrap_ci(
    samples: Samples, confidence: float = CONFIDENCE, resamples: int = RESAMPLES, seed: int = SEED, tick: float = 0.0
) -> Interval:
    """The median of all samples with its interval, in their unit.

    One replicate of independent samples: the percentile bootstrap (Efron & Tibshirani 1993, section 13.3). One
    replicate of autocorrelated samples: Student's t over 5 stretches of it. Several replicates or cards: Student's t
    over the logarithms of their medians. All samples of a process share its state (addresses, clocks, temperature). So
    a replicate counts once, with any number of samples (Kalibera & Jones 2013, Rigorous benchmarking in reasonable
    time, ISMM).

    The interval includes the estimate and is no narrower than `tick`, the step of the clock. Medians of quantised
    samples repeat, so that a bootstrap of them would be narrower than the clock's precision.

    Raises ValueError: bad samples, confidence outside (0, 1), resamples < 1, tick < 0.
    """
    side = blocks_of(samples)
    floor, cut = _floor(side, tick), independent_blocks([side], paired=False)
    if cut is None:
        (medians,) = _resampled_medians([np.concatenate(side)], resamples, seed, paired=False)
        return Estimate.of_resampled(floor, medians).interval(confidence)
    centres = _medians_of(cut[0])
    # Over the estimate: blocks that are all the same then have exactly their own value as their interval.
    unit = floor.estimate if min(block.min() for block in side) > 0 else None
    return Estimate.of_scatter(floor, Scatter.of(np.log(centres / unit) if unit else centres), unit).interval(
        confidence
    )


def ratio_ci(
    baseline: Samples,
    candidate: Samples,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = SEED,
    tick: float = 0.0,
    paired: bool = False,
) -> Interval:
    """Speedup, median(baseline) / median(candidate), with its interval; above 1: the candidate is faster.

    `paired`: sample i of block b of the baseline belongs to sample i of block b of the candidate. Rounds that
    interleave share the machine's drift (Efron & Tibshirani 1993, section 9.5). Blocks give Student's t of the
    logarithm of the ratio of their medians; unpaired blocks give Welch's t. Independent samples give the percentile
    bootstrap. The interval is no narrower than the one that medians known to within a tick give.

    Raises ValueError: as `bootstrap_ci`; samples that are not positive; paired samples of different lengths.
    """
    return _estimate_ratio(baseline, candidate, resamples, seed, tick, paired).interval(confidence)


def smallest_effect(
    baseline: Samples, control: Samples, resamples: int = RESAMPLES, tick: float = 0.0, paired: bool = False
) -> float:
    """The smallest effect that the comparison of the baseline with itself (A/A) lets a run detect.

    The effect is a fraction: 0.01 is medians 1 % apart. It is the larger of 2 numbers. One is the effect that a test at
    level ALPHA finds with probability POWER: (t(1 - ALPHA/2) + t(POWER)) standard errors of the log ratio (Bloom 1995,
    Minimum detectable effects, Evaluation Review 19:547). The other is the end of the A/A interval farther from 1.

    Raises ValueError: as `ratio_ci`.
    """
    against_itself = _estimate_ratio(baseline, control, resamples, SEED, tick, paired)
    interval = against_itself.interval(1 - ALPHA)
    if interval.low <= 0 or math.isinf(interval.high):
        return math.inf
    found, missed = (student(against_itself.freedom, p) for p in (1 - ALPHA / 2, POWER))
    detectable = math.log(interval.high / interval.low) / 2 * (1 + missed / found)
    return math.expm1(max(detectable, -math.log(interval.low), math.log(interval.high)))


def cliffs_delta(baseline: Samples, candidate: Samples) -> float:
    """Cliff's delta in [-1, 1]: P(baseline > candidate) - P(baseline < candidate); positive: the candidate is faster.

    Replicates are pooled (Cliff 1993, Psychological Bulletin 114:494).
    """
    return _delta(_pooled(baseline), _pooled(candidate))


def _delta(one: Array, other: Array) -> float:
    return _twice_u(one, other) / (one.size * other.size) - 1


def _twice_u(one: Array, other: Array) -> int:
    """2 times Mann-Whitney's U of the first side; ties count half. O(n log n)."""
    ordered = np.sort(other)
    return int(np.searchsorted(ordered, one, "left").sum() + np.searchsorted(ordered, one, "right").sum())


def hedges_g(baseline: Samples, candidate: Samples) -> float:
    """Hedges' g: the difference of means in pooled standard deviations, corrected for small samples; positive: faster.

    ``J * (mean(baseline) - mean(candidate)) / s``, J = 1 - 3 / (4 df - 1), df = n + m - 2 (Hedges 1981, Journal of
    Educational Statistics 6:107). Without scatter: 0 for equal means, else infinite. Replicates are pooled.

    Raises ValueError: bad samples, or a single sample on both sides.
    """
    b, c = _pooled(baseline), _pooled(candidate)
    df = b.size + c.size - 2
    require(df > 0, "Hedges' g needs at least two samples on one side")
    # Offsets from one of the samples: constant samples then have an exact mean and no deviation.
    b, c = b - b[0], c - b[0]
    difference = b.mean() - c.mean()
    pooled = math.sqrt((np.square(b - b.mean()).sum() + np.square(c - c.mean()).sum()) / df)
    if pooled == 0:
        return math.copysign(math.inf, difference) if difference else 0.0
    return float((1 - 3 / (4 * df - 1)) * difference / pooled)


def mann_whitney(baseline: Samples, candidate: Samples) -> RankTest:
    """Mann-Whitney's U of the baseline, ties counted half, and its 2-sided p-value (Mann & Whitney 1947).

    As scipy's: exact up to 8 samples on one side without ties, else normal, corrected for ties and continuity.
    Replicates are pooled: the p-value assumes independent samples, unlike `difference_pvalue`.
    """
    b, c = _pooled(baseline), _pooled(candidate)
    if np.ptp(np.concatenate([b, c])) == 0:
        # One value everywhere is no evidence of a difference; scipy 1.17 says so too, scipy 1.18 says nan.
        return RankTest(b.size * c.size / 2, 1.0)
    if min(b.size, c.size) <= MOST_EXACT:
        from scipy.stats import mannwhitneyu

        result = mannwhitneyu(b, c, alternative="two-sided")
        return RankTest(float(result.statistic), float(result.pvalue))
    # The formula of scipy, whose checks take many times as long.
    u, n = _twice_u(b, c) / 2, b.size + c.size
    ties = np.unique(np.concatenate([b, c]), return_counts=True)[1].astype(float)
    deviation = np.sqrt(b.size * c.size / 12 * ((n + 1) - (ties**3 - ties).sum() / (n * (n - 1))))
    z = (max(u, b.size * c.size - u) - b.size * c.size / 2 - 0.5) / deviation
    return RankTest(u, min(_special("ndtr", -z) * 2, 1.0))


def difference_pvalue(baseline: Samples, candidate: Samples, paired: bool = False) -> float:
    """The p-value of no difference, which decides a verdict.

    Independent samples have Mann-Whitney's. Blocks have the largest of 3 p-values, which errs no more often than the
    right one (Berger 1982, Technometrics 24:295): Mann-Whitney's; that of the t test of Cliff's delta over blocks; and
    that of the t test of the log ratio of the blocks' medians, whose interval `ratio_ci` gives.

    Raises ValueError: bad samples, samples that are not positive.
    """
    sides = _positive(blocks_of(baseline)), _positive(blocks_of(candidate))
    ranks, cut = mann_whitney(baseline, candidate).pvalue, independent_blocks(sides, paired)
    if cut is None:
        return ranks
    return max(ranks, _scatter_of_placements(cut, paired).pvalue, _scatter_of_log_ratio(cut, paired).pvalue)


def _scatter_of_placements(sides: Sequence[Side], paired: bool) -> Scatter:
    """The scatter of half of Cliff's delta over blocks.

    A sample's placement is the share of the other side's samples that are smaller, ties counted half. Paired blocks are
    ranked within each pair (van Elteren 1960, Bulletin of the International Statistical Institute 37:351). Others are
    ranked among all samples, and a block counts by its mean (Obuchowski 1997, Biometrics 53:567).
    """
    if paired:
        return Scatter.of(np.array([_delta(*pair) / 2 for pair in zip(*sides, strict=True)]))
    one, other = (np.concatenate(side) for side in sides)
    together = np.split(_ranks(np.concatenate([one, other])), [one.size])
    scatters = []
    for side, pooled, ranks, size in zip(sides, (one, other), together, (other.size, one.size), strict=True):
        parts = np.split((ranks - _ranks(pooled)) / size, np.cumsum([block.size for block in side])[:-1])
        scatters.append(Scatter.of(np.array([part.mean() for part in parts])))
    difference = scatters[0].less(scatters[1])
    # Both means hold the whole difference; each scatters with its own side alone.
    return Scatter(difference.mean / 2, difference.error, difference.freedom)


def holm(pvalues: ArrayLike) -> Array:
    """Adjusted p-values of one family (n,), in the order given (Holm 1979, Scandinavian Journal of Statistics 6:65).

    Raises ValueError: p-values that are not 1-D, or outside [0, 1] (NaN too).
    """
    p = np.asarray(pvalues, dtype=float)
    require(p.ndim == 1, f"p-values must be 1-D, not {p.ndim}-D")
    require(bool(((p >= 0) & (p <= 1)).all()), "p-values must lie in [0, 1]")
    order = np.argsort(p)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1)), 1.0)
    return adjusted


def quantile_ci(samples: Samples, p: float) -> Interval | None:
    """The p-quantile with its distribution-free interval between 2 order statistics; None: too few samples.

    The inversion of the quantile test at CONFIDENCE (Conover 1999, section 3.2). Replicates are pooled.

    Raises ValueError: bad samples, p outside (0, 1).
    """
    require(0 < p < 1, f"p must lie between 0 and 1, not {p}")
    pooled = np.sort(_pooled(samples))
    low, high = _order_statistics(pooled.size, p)
    ends = (float(pooled[low]), float(pooled[high])) if low >= 0 and high < pooled.size else None
    return ends and Interval(float(np.quantile(pooled, p)), *ends)


@lru_cache
def _order_statistics(n: int, p: float) -> tuple[int, int]:
    """The places, from 0, of the 2 ends among n ordered samples; outside of them if there are too few.

    They equal those of scipy.stats.quantile_test, whose import takes 2 s of CPU.
    """
    import scipy.special

    k, tail = np.arange(n + 1), (1 - CONFIDENCE) / 2
    below, above = scipy.special.bdtr(k, n, p), scipy.special.bdtrc(k, n, p)
    return int(np.argmax(below >= tail)) - 1, int(np.argmax(above <= tail))


def lag1(samples: Samples) -> float:
    """Lag-1 autocorrelation of the samples in the order taken, the mean over blocks (Box & Jenkins, section 2.1).

    A block that is constant, or has fewer than 3 samples, counts as 0.
    """
    return float(np.mean([_lag1(b) if b.size > 2 and np.ptp(b) > 0 else 0.0 for b in blocks_of(samples)]))


def effective_n(n: int, lag1: float) -> float:
    """The effective sample size n (1 - r) / (1 + r), r = max(lag1, 0); never more than n.

    For a first-order autoregression (Bayley & Hammersley 1946, Supplement to the Journal of the Royal Statistical
    Society 8:184). A negative r counts as noise: it would give more samples than there are.
    """
    r = max(lag1, 0.0)
    return n * (1 - r) / (1 + r)


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
) -> Verdict:
    """The verdict: whether the candidate is faster than the baseline, and whether that may be claimed.

    The order of the tests:

    - *equivalent*: the 1 - 2 alpha interval of the speedup is inside (1 / (1 + margin), 1 + margin), and a difference
      of `margin` could have been seen. These are 2 one-sided tests at level alpha (Schuirmann 1987, Journal of
      Pharmacokinetics and Biopharmaceutics 15:657).
    - *faster* or *slower*: the 1 - alpha interval of the speedup excludes 1, p < alpha, and the medians are at least
      `smallest_effect` apart, a fraction.
    - *inconclusive*: everything else.

    `pvalue` replaces `difference_pvalue`: pass the adjusted p-value of a comparison in a family (`holm`).
    `smallest_effect` comes from the baseline against itself (the function of that name).

    *Claimable* is a faster candidate with a speedup of at least CLAIM_SPEEDUP, |delta| of at least CLAIM_DELTA, and a
    `bootstrap_ci` of its median apart from the baseline's.

    Raises ValueError: as `ratio_ci` and `hedges_g`; alpha outside (0, 0.5); margin <= 0; pvalue outside [0, 1];
    smallest_effect < 0.
    """
    require(margin > 0, f"margin must be positive, not {margin}")
    require(0 < alpha < 0.5, f"alpha must lie between 0 and 0.5, not {alpha}")
    require(smallest_effect >= 0, f"smallest_effect must not be negative, not {smallest_effect}")
    p = difference_pvalue(baseline, candidate, paired) if pvalue is None else pvalue
    require(0 <= p <= 1, f"pvalue must lie in [0, 1], not {p}")
    ratio = _estimate_ratio(baseline, candidate, resamples, seed, tick, paired)
    speedup, narrower = ratio.interval(1 - alpha), ratio.interval(1 - 2 * alpha)
    delta = cliffs_delta(baseline, candidate)
    is_near = 1 / (1 + margin) < narrower.low and narrower.high < 1 + margin
    is_seen = abs(math.log(speedup.estimate)) >= math.log1p(smallest_effect)
    decision: Decision = "inconclusive"
    if is_near and smallest_effect <= margin:
        decision = "equivalent"
    elif p < alpha and is_seen and not speedup.holds(1):
        decision = "faster" if speedup.low > 1 else "slower"
    claimable = decision == "faster" and speedup.estimate >= CLAIM_SPEEDUP and abs(delta) >= CLAIM_DELTA
    if claimable:
        one, other = (bootstrap_ci(side, 1 - alpha, resamples, seed, tick) for side in (baseline, candidate))
        claimable = not one.overlaps(other)
    return Verdict(decision, claimable, speedup, delta, hedges_g(baseline, candidate), p)
