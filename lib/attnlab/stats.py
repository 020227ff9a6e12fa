"""Inference on latencies: numbers in, small frozen results out.

Every function takes *samples*: a 1-D array of one replicate, or a sequence of 1-D arrays (or a 2-D array), one row per
replicate. Latencies are in microseconds throughout attnlab, but nothing here depends on the unit. Wherever two sides
are compared the order is (baseline, candidate), and whatever speaks for the candidate is positive, or above one.

Samples that are empty, not finite or not one-dimensional raise ValueError everywhere.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal, TypeAlias

import numpy as np
import scipy.stats
from numpy.typing import ArrayLike
from statsmodels.stats.multitest import multipletests
from statsmodels.tsa.stattools import acf

__all__ = [
    "CLAIM_DELTA",
    "CLAIM_SPEEDUP",
    "EQUIVALENCE_MARGIN",
    "Decision",
    "Interval",
    "RankTest",
    "Samples",
    "Verdict",
    "bootstrap_ci",
    "cliffs_delta",
    "effective_n",
    "equivalence",
    "hedges_g",
    "holm",
    "lag1",
    "magnitude",
    "mann_whitney",
    "quantile_ci",
    "ratio_ci",
    "samples_needed",
    "verdict",
]

Array: TypeAlias = np.ndarray
Samples: TypeAlias = ArrayLike | Sequence[ArrayLike]
Decision = Literal["faster", "slower", "equivalent", "inconclusive"]
Magnitude = Literal["negligible", "small", "medium", "large"]

CONFIDENCE = 0.95
RESAMPLES = 10_000
SEED = 42
ALPHA = 0.05
EQUIVALENCE_MARGIN = 0.02
"""Medians within 2 % of each other are the same for every practical purpose."""
CLAIM_SPEEDUP = 1.10
"""The least speedup that may be claimed."""
CLAIM_DELTA = 0.3
"""The least |Cliff's delta| that may be claimed."""

# Values resampled at once. 2 MB per array stays in a core's cache, which is three times faster than one large batch,
# and bounds the memory whatever the number of resamples.
_BATCH_VALUES = 250_000


@dataclass(frozen=True)
class Interval:
    """An estimate and the confidence interval around it, both ends included."""

    estimate: float
    low: float
    high: float

    def overlaps(self, other: "Interval") -> bool:
        """Whether the two intervals share a point."""
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True)
class RankTest:
    """Mann-Whitney's U of the baseline and its two-sided p-value."""

    statistic: float
    pvalue: float


@dataclass(frozen=True)
class Verdict:
    """What may be said of a candidate against its baseline.

    `speedup` is the ratio of medians with its interval, `delta` Cliff's delta, `g` Hedges' g and `pvalue` the one that
    decided: Mann-Whitney's, or the adjusted one that the caller handed in.
    """

    decision: Decision
    claimable: bool
    speedup: Interval
    delta: float
    g: float
    pvalue: float


# ---------------------------------------------------------------------------------------------------------- samples


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise ValueError(otherwise)


def _replicates(samples: Samples) -> list[Array]:
    """The samples as one float array per replicate; ValueError says in one line what is wrong with them."""
    _require(np.iterable(samples), f"samples must be a sequence of numbers, not {type(samples).__name__}")
    first = next(iter(samples), None)  # type: ignore[arg-type]
    if first is None:
        raise ValueError("samples must hold at least one value")
    parts = [samples] if np.ndim(first) == 0 else samples
    try:
        replicates = [np.asarray(part, dtype=float) for part in parts]  # type: ignore[union-attr]
    except (TypeError, ValueError) as error:
        raise ValueError(f"samples must be numbers, or one 1-D array of numbers per replicate: {error}") from error
    for index, replicate in enumerate(replicates):
        _require(replicate.ndim == 1, f"replicate {index} must be 1-D, not {replicate.ndim}-D")
        _require(replicate.size > 0, f"replicate {index} holds no samples")
        _require(bool(np.isfinite(replicate).all()), f"replicate {index} holds samples that are not finite")
    return replicates


def _positive(replicates: list[Array]) -> list[Array]:
    smallest = min(float(replicate.min()) for replicate in replicates)
    _require(smallest > 0, f"a ratio needs positive samples, not {smallest}")
    return replicates


def _pooled(samples: Samples) -> Array:
    return np.concatenate(_replicates(samples))


def _check_level(name: str, value: float) -> None:
    _require(0 < value < 1, f"{name} must lie between 0 and 1, not {value}")


# -------------------------------------------------------------------------------------------------------- bootstrap


@dataclass(frozen=True)
class _Resampler:
    """What the bootstrap draws, and the medians that a draw leads to.

    Sides that share a resampler are resampled together: row for row, the same draw.
    """

    units: Array
    """Indices of what is drawn first, (n,): the replicates where there are several, else the samples of the one."""
    values: int
    """Samples in one resample, all sides counted."""
    medians: Callable[[Array], Array]
    """Drawn units (batch, n) to the medians (sides, batch)."""


def _resampler(sides: Sequence[list[Array]], rng: np.random.Generator) -> _Resampler:
    one_replicate = len(sides[0]) == 1
    return _samples_of_one([side[0] for side in sides]) if one_replicate else _replicates_then_samples(sides, rng)


def _samples_of_one(sides: Sequence[Array]) -> _Resampler:
    table = np.stack(sides)
    return _Resampler(_units(table.shape[1]), table.size, lambda drawn: np.median(table[:, drawn], axis=-1))


def _replicates_then_samples(sides: Sequence[list[Array]], rng: np.random.Generator) -> _Resampler:
    """Two levels: scipy draws the replicates, and then each drawn replicate draws as many samples as it has."""
    sizes = np.array([replicate.size for replicate in sides[0]])
    width = int(sizes.max())
    ordered = np.stack([np.sort(np.concatenate(side)) for side in sides])
    ranks = np.stack([_ranks(side, order, width) for side, order in zip(sides, ordered, strict=True)])

    def medians(drawn: Array) -> Array:
        drawn_sizes = sizes[drawn][..., np.newaxis]
        highest = width if sizes.min() == width else drawn_sizes
        position = rng.integers(highest, size=(*drawn.shape, width), dtype=np.uint32)
        drawn_ranks = ranks[:, drawn[..., np.newaxis], position]
        # A shorter replicate has fewer draws; the places left over sort last, where no median looks.
        drawn_ranks[:, np.arange(width) >= drawn_sizes] = np.iinfo(ranks.dtype).max
        return _row_medians(drawn_ranks.reshape(len(sides), len(drawn), -1), drawn_sizes.sum(axis=(1, 2)), ordered)

    return _Resampler(_units(sizes.size), ranks.size, medians)


def _ranks(side: list[Array], ordered: Array, width: int) -> Array:
    """The samples (replicates, width) as their places in `ordered`: small integers sort many times faster."""
    kind = np.uint16 if ordered.size < np.iinfo(np.uint16).max else np.uint32
    table = np.zeros((len(side), width), dtype=kind)
    for row, replicate in zip(table, side, strict=True):
        row[: replicate.size] = np.searchsorted(ordered, replicate)
    return table


def _units(size: int) -> Array:
    # scipy refuses to resample a single unit; that unit twice has the same distribution.
    return np.arange(size) if size > 1 else np.zeros(2, dtype=int)


def _row_medians(ranks: Array, sizes: Array, ordered: Array) -> Array:
    """Medians (sides, rows) of the `sizes[row]` smallest of each row of (sides, rows, width); reorders `ranks`.

    np.median wants rows of one length, and np.nanmedian takes many times as long.
    """
    middle = np.stack([(sizes - 1) // 2, sizes // 2], axis=-1)
    ranks.sort(axis=-1)
    central = np.take_along_axis(ranks, middle[np.newaxis], axis=-1)
    medians: Array = np.stack([order[side] for order, side in zip(ordered, central, strict=True)]).mean(axis=-1)
    return medians


@dataclass(frozen=True)
class _Bootstrap:
    """A bootstrap distribution; `floor` is the narrowest interval that the clock's tick allows."""

    floor: Interval
    distribution: Array

    def interval(self, confidence: float) -> Interval:
        """The percentile interval (Efron & Tibshirani 1993, section 13.3), no narrower than the floor."""
        _check_level("confidence", confidence)
        tail = (1 - confidence) / 2
        low, high = np.quantile(self.distribution, [tail, 1 - tail])
        return Interval(self.floor.estimate, min(float(low), self.floor.low), max(float(high), self.floor.high))


def _resample(
    resamplers: Sequence[_Resampler], statistic: Callable[..., Array], resamples: int, rng: np.random.Generator
) -> Array:
    """The statistic of the medians of all sides, for each of the resamples."""
    _require(resamples >= 1, f"resamples must be at least 1, not {resamples}")

    def of_drawn(*drawn: Array, axis: int) -> Array:
        return statistic(*(side for r, units in zip(resamplers, drawn, strict=True) for side in r.medians(units)))

    result = scipy.stats.bootstrap(
        [resampler.units for resampler in resamplers],
        of_drawn,
        n_resamples=resamples,
        batch=max(1, _BATCH_VALUES // sum(resampler.values for resampler in resamplers)),
        vectorized=True,
        method="percentile",
        random_state=rng,  # scipy 1.14 does not know its newer name, rng
    )
    distribution: Array = result.bootstrap_distribution
    return distribution


def _median(replicates: list[Array], tick: float) -> Interval:
    """The median of all samples, as sharp as a clock of this tick can tell it."""
    _require(tick >= 0, f"tick must not be negative, not {tick}")
    estimate = float(np.median(np.concatenate(replicates)))
    return Interval(estimate, estimate - tick / 2, estimate + tick / 2)


def _ratio(numerator: Interval, denominator: Interval) -> Interval:
    """Quotient of two positive intervals, by interval arithmetic."""
    return Interval(
        numerator.estimate / denominator.estimate,
        max(numerator.low, 0.0) / denominator.high,
        numerator.high / denominator.low if denominator.low > 0 else math.inf,
    )


def _separately(baseline: list[Array], candidate: list[Array], rng: np.random.Generator) -> list[_Resampler]:
    return [_resampler([baseline], rng), _resampler([candidate], rng)]


def _together(baseline: list[Array], candidate: list[Array], rng: np.random.Generator) -> list[_Resampler]:
    sizes = [[replicate.size for replicate in side] for side in (baseline, candidate)]
    _require(sizes[0] == sizes[1], f"paired samples need the same rounds on both sides, not {sizes[0]} and {sizes[1]}")
    return [_resampler([baseline, candidate], rng)]


def _ratio_bootstrap(
    baseline: Samples, candidate: Samples, resamples: int, seed: int, tick: float, paired: bool
) -> _Bootstrap:
    sides = _positive(_replicates(baseline)), _positive(_replicates(candidate))
    floor = _ratio(*(_median(side, tick) for side in sides))
    rng = np.random.default_rng(seed)
    resamplers = (_together if paired else _separately)(*sides, rng)
    return _Bootstrap(floor, _resample(resamplers, np.divide, resamples, rng))


def bootstrap_ci(
    samples: Samples,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = SEED,
    tick: float = 0.0,
) -> Interval:
    """Percentile-bootstrap interval of the median of all samples, in their unit.

    One replicate: its samples are resampled (Efron & Tibshirani 1993, section 13.3). Several: the replicates first,
    then the samples within each, both with replacement (Davison & Hinkley 1997, section 3.8), because samples of one
    process share what that process drew: addresses, clocks, temperature. A drawn replicate brings as many samples as
    it has. Few replicates say little about how replicates differ: where that is most of the scatter, five of them give
    a 95 % interval that covers about 85 % of the time, ten about 94 % (simulated).

    The interval holds the estimate and is no narrower than `tick`, the step of the clock that took the samples: medians
    of quantised samples repeat, and the interval would collapse to a certainty that the clock does not have.

    Raises ValueError: bad samples, confidence outside (0, 1), resamples < 1, tick < 0.
    """
    replicates = _replicates(samples)
    rng = np.random.default_rng(seed)
    floor = _median(replicates, tick)
    distribution = _resample([_resampler([replicates], rng)], np.asarray, resamples, rng)
    return _Bootstrap(floor, distribution).interval(confidence)


def ratio_ci(
    baseline: Samples,
    candidate: Samples,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    seed: int = SEED,
    tick: float = 0.0,
    paired: bool = False,
) -> Interval:
    """Speedup, median(baseline) / median(candidate), with its percentile-bootstrap interval; above 1: candidate faster.

    The two sides are resampled independently, each as in `bootstrap_ci`. `paired` resamples them together: round i of
    replicate r of the baseline goes with round i of replicate r of the candidate, since interleaved rounds share the
    drift of the machine (Davison & Hinkley 1997, section 3.8, for the two levels; Efron & Tibshirani 1993, section 9.5,
    for keeping pairs whole). The interval is no narrower than both medians, each a tick wide, allow.

    Raises ValueError: as `bootstrap_ci`; samples that are not positive; paired samples of different lengths.
    """
    return _ratio_bootstrap(baseline, candidate, resamples, seed, tick, paired).interval(confidence)


# ------------------------------------------------------------------------------------------------------ effect size


def cliffs_delta(baseline: Samples, candidate: Samples) -> float:
    """Cliff's delta in [-1, 1]: P(baseline > candidate) - P(baseline < candidate); positive: the candidate is faster.

    From Mann-Whitney's U of the baseline, 2U / (nm) - 1, in O(n log n) (Cliff 1993, Psychological Bulletin 114:494).
    Replicates are pooled.
    """
    b, c = _pooled(baseline), _pooled(candidate)
    # The p-value is not used, and the asymptotic one costs nothing.
    u = scipy.stats.mannwhitneyu(b, c, method="asymptotic").statistic
    return float(2 * u / (b.size * c.size) - 1)


def magnitude(delta: float) -> Magnitude:
    """The word for a Cliff's delta of this size: 0.147, 0.33 and 0.474 are the bounds (Romano et al. 2006).

    They are what Cohen's d of 0.2, 0.5 and 0.8 come to for normal data.

    Raises ValueError: a delta outside [-1, 1].
    """
    _require(-1 <= delta <= 1, f"Cliff's delta must lie in [-1, 1], not {delta}")
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
    _require(df > 0, "Hedges' g needs at least two samples on one side")
    # Counted from one of the samples, so that the mean of constant samples is exact and their deviation exactly zero.
    b, c = b - b[0], c - b[0]
    difference = b.mean() - c.mean()
    pooled = math.sqrt((np.square(b - b.mean()).sum() + np.square(c - c.mean()).sum()) / df)
    if pooled == 0:
        return math.copysign(math.inf, difference) if difference else 0.0
    return float((1 - 3 / (4 * df - 1)) * difference / pooled)


# ------------------------------------------------------------------------------------------------------------ tests


def mann_whitney(baseline: Samples, candidate: Samples) -> RankTest:
    """Mann-Whitney's U of the baseline, ties counted half, and its two-sided p-value (Mann & Whitney 1947).

    scipy's: exact where one side has at most eight samples and there are no ties, else normal, corrected for ties and
    continuity. Replicates are pooled, so the p-value takes samples for independent: read it beside `effective_n` and
    the run's A/A rate.
    """
    b, c = _pooled(baseline), _pooled(candidate)
    if np.ptp(np.concatenate([b, c])) == 0:
        # One value everywhere is no evidence of a difference; scipy 1.17 says so too, scipy 1.18 says nan.
        return RankTest(b.size * c.size / 2, 1.0)
    result = scipy.stats.mannwhitneyu(b, c, alternative="two-sided")
    return RankTest(float(result.statistic), float(result.pvalue))


def holm(pvalues: ArrayLike) -> Array:
    """Adjusted p-values of one family (n,), in the order given (Holm 1979, Scandinavian Journal of Statistics 6:65).

    Raises ValueError: p-values that are not 1-D, or outside [0, 1] (NaN too).
    """
    p = np.asarray(pvalues, dtype=float)
    _require(p.ndim == 1, f"p-values must be 1-D, not {p.ndim}-D")
    _require(bool(((p >= 0) & (p <= 1)).all()), "p-values must lie in [0, 1]")
    if p.size == 0:  # statsmodels 0.14 divides by the number of p-values
        return p
    adjusted: Array = multipletests(p, method="holm")[1]
    return adjusted


def _is_equivalent(bootstrap: _Bootstrap, margin: float, alpha: float) -> bool:
    """Two one-sided tests at level alpha, by inclusion of the 1 - 2 alpha interval (Schuirmann 1987)."""
    _require(margin > 0, f"margin must be positive, not {margin}")
    _require(0 < alpha < 0.5, f"alpha must lie between 0 and 0.5, not {alpha}")
    interval = bootstrap.interval(1 - 2 * alpha)
    return 1 / (1 + margin) < interval.low and interval.high < 1 + margin


def equivalence(
    baseline: Samples,
    candidate: Samples,
    margin: float = EQUIVALENCE_MARGIN,
    alpha: float = ALPHA,
    resamples: int = RESAMPLES,
    seed: int = SEED,
    tick: float = 0.0,
    paired: bool = False,
) -> bool:
    """Whether the medians are the same to within `margin`, a fraction: two one-sided tests, each at level `alpha`.

    True where the 1 - 2 alpha interval of the speedup lies inside (1 / (1 + margin), 1 + margin) (Schuirmann 1987,
    Journal of Pharmacokinetics and Biopharmaceutics 15:657; the bounds are those of a ratio, so that it does not matter
    which side is called the baseline).

    Raises ValueError: as `ratio_ci`; margin <= 0; alpha outside (0, 0.5).
    """
    return _is_equivalent(_ratio_bootstrap(baseline, candidate, resamples, seed, tick, paired), margin, alpha)


# -------------------------------------------------------------------------------------------------------- quantiles


def quantile_ci(samples: Samples, p: float, confidence: float = CONFIDENCE) -> Interval | None:
    """The p-quantile with its distribution-free interval between two order statistics; None: not enough samples for it.

    scipy's inversion of the quantile test (Conover 1999, section 3.2). Replicates are pooled. `samples_needed` says how
    many are enough.

    Raises ValueError: bad samples, p or confidence outside (0, 1).
    """
    _check_level("p", p)
    _check_level("confidence", confidence)
    pooled = _pooled(samples)
    low, high = scipy.stats.quantile_test(pooled, p=p).confidence_interval(confidence)
    if math.isnan(low) or math.isnan(high):
        return None
    return Interval(float(np.quantile(pooled, p)), float(low), float(high))


def samples_needed(p: float, confidence: float = CONFIDENCE) -> int:
    """The fewest samples that give `quantile_ci` an interval for the p-quantile.

    All n samples lie on one side of the quantile with probability q^n, q = max(p, 1 - p); that must not exceed the tail
    on that side, (1 - confidence) / 2 (Conover 1999, section 3.2).

    Raises ValueError: p or confidence outside (0, 1).
    """
    _check_level("p", p)
    _check_level("confidence", confidence)
    fewest = math.floor(math.log((1 - confidence) / 2) / math.log(max(p, 1 - p)))
    # At the very edge rounding decides, and scipy's rounding is the one that counts.
    return next(n for n in count(max(fewest, 1)) if quantile_ci(np.arange(n), p, confidence))


# ------------------------------------------------------------------------------------------------------- dependence


def lag1(samples: Samples) -> float:
    """Lag-1 autocorrelation of the samples in the order taken, the mean over replicates (Box & Jenkins, section 2.1).

    A replicate that is constant, or has fewer than three samples, shows none: it counts as 0.
    """
    return float(np.mean([_lag1(replicate) for replicate in _replicates(samples)]))


def _lag1(replicate: Array) -> float:
    if replicate.size < 3 or np.ptp(replicate) == 0:
        return 0.0
    return float(acf(replicate, nlags=1, fft=False)[1])


def effective_n(samples: Samples) -> float:
    """How many independent samples tell as much: n (1 - r) / (1 + r), r = max(lag1, 0); never more than n.

    For a first-order autoregression (Bayley & Hammersley 1946, Supplement to the Journal of the Royal Statistical
    Society 8:184). A negative r is taken for noise, since it would promise more samples than there are.
    """
    r = max(lag1(samples), 0.0)
    return _pooled(samples).size * (1 - r) / (1 + r)


# ---------------------------------------------------------------------------------------------------------- verdict


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
) -> Verdict:
    """Whether the candidate is faster than the baseline, and whether that may be claimed.

    In this order: *equivalent* where `equivalence` holds, be the difference detectable or not; *faster* or *slower*
    where the whole 1 - alpha interval of the speedup lies above or below 1 and p < alpha; else *inconclusive*. `pvalue`
    stands in for Mann-Whitney's own: the comparison's adjusted p-value, where it is one of a family (`holm`).

    Claimable is a faster candidate that also has a speedup of at least CLAIM_SPEEDUP, |delta| of at least CLAIM_DELTA,
    and a `bootstrap_ci` of its median apart from the baseline's.

    Raises ValueError: as `equivalence` and `hedges_g`; pvalue outside [0, 1].
    """
    bootstrap = _ratio_bootstrap(baseline, candidate, resamples, seed, tick, paired)
    speedup = bootstrap.interval(1 - alpha)
    p = mann_whitney(baseline, candidate).pvalue if pvalue is None else pvalue
    _require(0 <= p <= 1, f"pvalue must lie in [0, 1], not {p}")
    delta = cliffs_delta(baseline, candidate)
    decision = _decide(_is_equivalent(bootstrap, margin, alpha), speedup, p < alpha)

    def median(samples: Samples) -> Interval:
        return bootstrap_ci(samples, 1 - alpha, resamples, seed, tick)

    claimable = (
        decision == "faster"
        and speedup.estimate >= CLAIM_SPEEDUP
        and abs(delta) >= CLAIM_DELTA
        and not median(baseline).overlaps(median(candidate))
    )
    return Verdict(decision, claimable, speedup, delta, hedges_g(baseline, candidate), p)


def _decide(equivalent: bool, speedup: Interval, significant: bool) -> Decision:
    if equivalent:
        return "equivalent"
    if significant and speedup.low > 1:
        return "faster"
    if significant and speedup.high < 1:
        return "slower"
    return "inconclusive"
