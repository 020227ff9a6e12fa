"""Resampled medians, and the intervals that follow from them.

Samples come as replicates: a list of 1-D arrays, one for each fresh process. What may be resampled one by one are
samples that don't resemble their neighbours. Where they do, and where there are several replicates, the *blocks* are
what is independent: the replicates, or stretches of the only one.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import scipy.special
import scipy.stats
from numpy.typing import ArrayLike

Array: TypeAlias = np.ndarray
Samples: TypeAlias = ArrayLike | Sequence[ArrayLike]
Side: TypeAlias = list[Array]
"""One side of a comparison, an array per replicate or block."""

BATCHES = 5
"""Blocks that a single replicate is cut into where its samples resemble their neighbours."""
SHORTEST_BATCH = 4
LAG1_LEVEL = 0.01
"""How often samples that are independent are taken for dependent."""

# Values resampled at once. 2 MB per array stays in a core's cache, which is three times faster than one large batch,
# and bounds the memory whatever the number of resamples.
BATCH_VALUES = 250_000


@dataclass(frozen=True)
class Interval:
    """An estimate and the confidence interval around it, both ends included."""

    estimate: float
    low: float
    high: float

    def overlaps(self, other: "Interval") -> bool:
        """Whether the two intervals share a point."""
        return self.low <= other.high and other.low <= self.high


# ---------------------------------------------------------------------------------------------------------- samples


def require(condition: bool, otherwise: str) -> None:
    """Raise ValueError, in one line, unless the condition holds."""
    if not condition:
        raise ValueError(otherwise)


def require_level(name: str, value: float) -> None:
    """Raise ValueError unless the value is a probability between 0 and 1."""
    require(0 < value < 1, f"{name} must lie between 0 and 1, not {value}")


def replicates_of(samples: Samples) -> Side:
    """The samples as one float array per replicate; ValueError says in one line what is wrong with them."""
    require(np.iterable(samples), f"samples must be a sequence of numbers, not {type(samples).__name__}")
    first = next(iter(samples), None)  # type: ignore[arg-type]
    if first is None:
        raise ValueError("samples must hold at least one value")
    parts = [samples] if np.ndim(first) == 0 else samples
    try:
        replicates = [np.asarray(part, dtype=float) for part in parts]  # type: ignore[union-attr]
    except (TypeError, ValueError) as error:
        raise ValueError(f"samples must be numbers, or one 1-D array of numbers per replicate: {error}") from error
    for index, replicate in enumerate(replicates):
        require(replicate.ndim == 1, f"replicate {index} must be 1-D, not {replicate.ndim}-D")
        require(replicate.size > 0, f"replicate {index} holds no samples")
        require(bool(np.isfinite(replicate).all()), f"replicate {index} holds samples that are not finite")
    return replicates


def positive(replicates: Side) -> Side:
    """The replicates; ValueError unless all samples can stand in a ratio."""
    smallest = min(float(replicate.min()) for replicate in replicates)
    require(smallest > 0, f"a ratio needs positive samples, not {smallest}")
    return replicates


# ----------------------------------------------------------------------------------------------------------- blocks


@dataclass(frozen=True)
class Scatter:
    """What independent blocks say of an estimate: their mean, its standard error and that one's degrees of freedom."""

    mean: float
    error: float
    freedom: float

    def reach(self, confidence: float) -> float:
        """How far the interval of Student's t reaches to either side of the mean."""
        return student(self.freedom, (1 + confidence) / 2) * self.error

    @property
    def pvalue(self) -> float:
        """Two-sided p-value of Student's t test of mean zero; 1 where nothing scatters around zero, else 0."""
        if self.error == 0:
            return float(self.mean == 0)
        return float(2 * scipy.special.stdtr(self.freedom, -abs(self.mean) / self.error))


def student(freedom: float, p: float) -> float:
    """The p-quantile of Student's t; of the normal law where the degrees of freedom are infinite."""
    return float(scipy.special.ndtri(p) if math.isinf(freedom) else scipy.special.stdtrit(freedom, p))


def resembles_neighbours(samples: Array) -> bool:
    """Whether the samples, in the order taken, are more like their neighbours than chance allows.

    The serial correlation of their ranks at lag 1 against a normal law of variance 1/n, one-sided at LAG1_LEVEL (Wald &
    Wolfowitz 1943, Annals of Mathematical Statistics 14:378; ranks, so that an outlier can't hide what the rest does).
    Fewer samples than BATCHES blocks of SHORTEST_BATCH show nothing.
    """
    if samples.size < BATCHES * SHORTEST_BATCH or np.ptp(samples) == 0:
        return False
    centred = scipy.stats.rankdata(samples) - (samples.size + 1) / 2
    lag1 = float(centred[1:] @ centred[:-1] / (centred @ centred))
    return lag1 > scipy.special.ndtri(1 - LAG1_LEVEL) / math.sqrt(samples.size)


def blocks(sides: Sequence[Side], paired: bool) -> list[Side] | None:
    """Each side in blocks that may be taken for independent; None where its samples may be taken one by one.

    Several replicates are blocks. A single one whose samples resemble their neighbours is cut into BATCHES stretches of
    equal length, each as good as a replicate once it is longer than the dependence (batching: Schmeiser 1982,
    Operations Research 30:556; for quantiles Nakayama 2014, ACM Transactions on Modeling and Computer Simulation
    24(4)). Five, because with a hundred samples more of them cover too rarely: at a lag-1 correlation of 0.7, five
    cover 93 % and ten 90 % of the time, where the bootstrap of single samples covers 65 %. Sides that are paired are
    cut alike.
    """
    single = [side[0] for side in sides if len(side) == 1]
    if len(single) == len(sides):
        series = [*single, np.log(single[0] / single[1])] if paired else single
        if not any(map(resembles_neighbours, series)):
            return None
    if any(samples.size < BATCHES * SHORTEST_BATCH for samples in single):
        return None
    return [side if len(side) > 1 else np.array_split(side[0], BATCHES) for side in sides]


def scatter_of_median(side: Side) -> Scatter:
    """How the medians of blocks scatter."""
    return scatter(np.array([np.median(block) for block in side]))


def scatter_of_log_ratio(sides: Sequence[Side], paired: bool) -> Scatter:
    """How the logarithms of the ratio of the blocks' medians scatter.

    Paired: Student's t on the ratio of each block. Else Welch's, with Satterthwaite's degrees of freedom.
    """
    logs = [np.log([np.median(block) for block in side]) for side in sides]
    return scatter(logs[0] - logs[1]) if paired else _welch(*map(scatter, logs))


def scatter_of_placements(sides: Sequence[Side], paired: bool) -> Scatter:
    """How half of Cliff's delta scatters over blocks, by the placements of their samples.

    That half is the baseline's chance of being the slower one, less one half. A sample's placement is the share of the
    other side's samples that are smaller, ties counted half; a block's is the mean of its samples'. Unpaired, with one
    sample to a block, the t test is Brunner and Munzel's (2000, Biometrical Journal 42:17); with blocks of several it
    is what Obuchowski (1997, Biometrics 53:567) does for clustered data.
    """
    one, other = (np.concatenate(side) for side in sides)
    together = scipy.stats.rankdata(np.concatenate([one, other]))
    placements = [
        (together[: one.size] - scipy.stats.rankdata(one)) / other.size,
        (together[one.size :] - scipy.stats.rankdata(other)) / one.size,
    ]
    means = [
        np.array([block.mean() for block in np.split(placed, np.cumsum([len(block) for block in side])[:-1])])
        for placed, side in zip(placements, sides, strict=True)
    ]
    found = scatter(means[0] - means[1]) if paired else _welch(*map(scatter, means))
    # Both means hold the whole difference, and each only its own side's part of the scatter.
    return replace(found, mean=found.mean / 2)


def _welch(one: Scatter, other: Scatter) -> Scatter:
    """The difference of two sides that were drawn apart (Welch 1947, Biometrika 34:28)."""
    squares = np.square([one.error, other.error])
    freedoms = np.array([one.freedom, other.freedom])
    spread = float((squares**2 / freedoms).sum())
    freedom = float(squares.sum() ** 2 / spread) if spread else float(freedoms.sum())
    return Scatter(one.mean - other.mean, math.sqrt(squares.sum()), freedom)


def scatter(values: Array) -> Scatter:
    """How independent values scatter, two of them at least."""
    # Counted from one of them, so that values that are all the same scatter by exactly nothing.
    offsets = values - values[0]
    error = float(offsets.std(ddof=1)) / math.sqrt(values.size)
    return Scatter(float(values[0] + offsets.mean()), error, values.size - 1)


# ------------------------------------------------------------------------------------------------------- resampling


@dataclass(frozen=True)
class Resampler:
    """What the bootstrap draws, and the medians that a draw leads to.

    Sides that share a resampler are resampled together: row for row, the same draw.
    """

    units: Array
    """Indices of what is drawn first, (n,): the replicates where there are several, else the samples of the one."""
    values: int
    """Samples in one resample, all sides counted."""
    medians: Callable[[Array], Array]
    """Drawn units (batch, n) to the medians (sides, batch)."""


def resampler(sides: Sequence[Side], rng: np.random.Generator) -> Resampler:
    one_replicate = len(sides[0]) == 1
    return _samples_of_one([side[0] for side in sides]) if one_replicate else _replicates_then_samples(sides, rng)


def _samples_of_one(sides: Sequence[Array]) -> Resampler:
    ordered, ranks = _ordered([[side] for side in sides], sides[0].size)
    ranks = ranks[:, 0]

    def medians(drawn: Array) -> Array:
        return _row_medians(ranks[:, drawn], np.full(len(drawn), drawn.shape[1]), ordered)

    return Resampler(_units(ranks.shape[1]), ranks.size, medians)


def _replicates_then_samples(sides: Sequence[Side], rng: np.random.Generator) -> Resampler:
    """Two levels: scipy draws the replicates, and then each drawn replicate draws as many samples as it has."""
    sizes = np.array([replicate.size for replicate in sides[0]])
    width = int(sizes.max())
    ordered, ranks = _ordered(sides, width)
    flat = ranks.reshape(len(sides), -1)

    def medians(drawn: Array) -> Array:
        drawn_sizes = sizes[drawn][..., np.newaxis]
        highest = width if sizes.min() == width else drawn_sizes
        position = rng.integers(highest, size=(*drawn.shape, width), dtype=np.uint32)
        # `take` from a flat row is many times faster than an index for each axis.
        drawn_ranks = flat.take(drawn[..., np.newaxis] * width + position, axis=1)
        if sizes.min() < width:
            # A shorter replicate has fewer draws; the places left over sort last, where no median looks.
            drawn_ranks[:, np.arange(width) >= drawn_sizes] = np.iinfo(ranks.dtype).max
        return _row_medians(drawn_ranks.reshape(len(sides), len(drawn), -1), drawn_sizes.sum(axis=(1, 2)), ordered)

    return Resampler(_units(sizes.size), ranks.size, medians)


def _ordered(sides: Sequence[Side], width: int) -> tuple[Array, Array]:
    """The samples of each side in order (sides, samples), and their places in it (sides, replicates, width)."""
    ordered = np.stack([np.sort(np.concatenate(side)) for side in sides])
    return ordered, np.stack([_ranks(side, order, width) for side, order in zip(sides, ordered, strict=True)])


def _ranks(side: Side, ordered: Array, width: int) -> Array:
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


def resample(
    resamplers: Sequence[Resampler], statistic: Callable[..., Array], resamples: int, rng: np.random.Generator
) -> Array:
    """The statistic of the medians of all sides, for each of the resamples."""
    require(resamples >= 1, f"resamples must be at least 1, not {resamples}")

    def of_drawn(*drawn: Array, axis: int) -> Array:
        return statistic(*(side for r, units in zip(resamplers, drawn, strict=True) for side in r.medians(units)))

    result = scipy.stats.bootstrap(
        [resampler.units for resampler in resamplers],
        of_drawn,
        n_resamples=resamples,
        batch=max(1, BATCH_VALUES // sum(resampler.values for resampler in resamplers)),
        vectorized=True,
        method="percentile",
        random_state=rng,  # scipy 1.14 does not know its newer name, rng
    )
    distribution: Array = result.bootstrap_distribution
    return distribution


# -------------------------------------------------------------------------------------------------------- intervals


@dataclass(frozen=True)
class Bootstrap:
    """A bootstrap distribution, and the intervals that may be read from it.

    Where the samples were independent, that is the percentile interval (Efron & Tibshirani 1993, section 13.3). Where
    only blocks are, it is Student's t over the blocks' own medians, since the percentile interval of a few blocks is
    too short where they differ and too long where they don't (Davison & Hinkley 1997, section 3.8); but at least half
    as long as the percentile interval, so that a few blocks which agree by chance promise no certainty.
    """

    floor: Interval
    """The estimate, with the narrowest interval around it that the clock's tick allows."""
    distribution: Array
    scatter: Scatter | None = None
    """Of the blocks; of the logarithms of a ratio. None where samples were resampled one by one."""
    ratio: bool = False

    def interval(self, confidence: float) -> Interval:
        """The interval; it holds the estimate and the floor."""
        require_level("confidence", confidence)
        tail = (1 - confidence) / 2
        low, high = map(float, np.quantile(self.distribution, [tail, 1 - tail]))
        if self.scatter is not None:
            low, high = self._over_blocks(low, high, confidence)
        return Interval(self.floor.estimate, min(low, self.floor.low), max(high, self.floor.high))

    @property
    def freedom(self) -> float:
        """Degrees of freedom behind the length of the intervals."""
        return math.inf if self.scatter is None else self.scatter.freedom

    def _over_blocks(self, low: float, high: float, confidence: float) -> tuple[float, float]:
        assert self.scatter is not None
        length = math.log(high / low) if self.ratio else high - low
        reach, estimate = max(self.scatter.reach(confidence), length / 4), self.floor.estimate
        ends = self.scatter.mean - reach, self.scatter.mean + reach
        low, high = (math.exp(ends[0]), math.exp(ends[1])) if self.ratio else ends
        return min(low, estimate), max(high, estimate)


def median(side: Side, tick: float) -> Interval:
    """The median of all samples, as sharp as a clock of this tick can tell it."""
    require(tick >= 0, f"tick must not be negative, not {tick}")
    estimate = float(np.median(np.concatenate(side)))
    return Interval(estimate, estimate - tick / 2, estimate + tick / 2)


def of_median(side: Side, resamples: int, seed: int, tick: float) -> Bootstrap:
    """Resample the median of one side."""
    rng, floor, cut = np.random.default_rng(seed), median(side, tick), blocks([side], paired=False)
    distribution = resample([resampler(cut or [side], rng)], np.asarray, resamples, rng)
    return Bootstrap(floor, distribution, scatter_of_median(cut[0]) if cut else None)


def of_ratio(sides: tuple[Side, Side], resamples: int, seed: int, tick: float, paired: bool) -> Bootstrap:
    """Resample the ratio of the medians of two sides, round by round where they are paired."""
    if paired:
        sizes = [[replicate.size for replicate in side] for side in sides]
        same = sizes[0] == sizes[1]
        require(same, f"paired samples need the same rounds on both sides, not {sizes[0]} and {sizes[1]}")
    rng, cut = np.random.default_rng(seed), blocks(sides, paired)
    drawn = cut or list(sides)
    resamplers = [resampler(drawn, rng)] if paired else [resampler([side], rng) for side in drawn]
    distribution = resample(resamplers, np.divide, resamples, rng)
    scatter = scatter_of_log_ratio(cut, paired) if cut else None
    return Bootstrap(_quotient(*(median(side, tick) for side in sides)), distribution, scatter, ratio=True)


def _quotient(numerator: Interval, denominator: Interval) -> Interval:
    """Quotient of two positive intervals, by interval arithmetic."""
    return Interval(
        numerator.estimate / denominator.estimate,
        max(numerator.low, 0.0) / denominator.high,
        numerator.high / denominator.low if denominator.low > 0 else math.inf,
    )
