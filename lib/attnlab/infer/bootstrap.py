"""Resampled medians, and the intervals that follow from them.

Samples come as replicates: a list of 1-D arrays, one for each fresh process. What may be resampled one by one are
samples that don't resemble their neighbours. Where they do, and where there are several replicates, the *blocks* are
what is independent: the replicates, or stretches of the only one.

Where replicates were measured on several cards, samples come as cards: a list of 2-D arrays, a row for each replicate.
A card is then what is independent, since the replicates of one card share it, and intervals speak of cards like these.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
import scipy.special
import scipy.stats
from numpy.typing import ArrayLike

from attnlab.base.rules import CONFIDENCE

Array: TypeAlias = np.ndarray
Samples: TypeAlias = ArrayLike | Sequence[ArrayLike]
Side: TypeAlias = list[Array]
"""One side of a comparison, an array per replicate or block."""


class Cards(list[Array]):
    """A side of which each block is a card: the samples of its replicates, of which it holds so many."""

    def __init__(self, cards: Sequence[Array]) -> None:
        super().__init__(card.ravel() for card in cards)
        self.replicates = tuple(len(card) for card in cards)


BATCHES = 5
"""Blocks that a single replicate is cut into where its samples resemble their neighbours."""
SHORTEST_BATCH = 4
LAG1_LEVEL = 0.01
"""How often samples that are independent are taken for dependent."""

# Values drawn at once: 2 MB per array stays in a core's cache. With another number the draws would be others.
BATCH_VALUES = 250_000
GROUP = 16
"""Samples that are counted together on the way to a median."""
KEPT_PLANS = 4
"""Plans whose draws are kept, for the next side of the same sizes: drawing takes many times as long as the medians."""
KEPT_VALUES = 2**26
"""The most samples that a plan may draw for that; they take a byte each, or two where one is drawn 256 times."""
KEPT_MEDIANS = 16
"""Sides whose resampled medians are kept: a baseline meets all its candidates under the same draws."""


@dataclass(frozen=True)
class Interval:
    """An estimate and the confidence interval around it, both ends included."""

    estimate: float
    low: float
    high: float

    def overlaps(self, other: "Interval") -> bool:
        """Whether the two intervals share a point."""
        return self.low <= other.high and other.low <= self.high

    def holds(self, value: float) -> bool:
        """Whether a value lies in the interval."""
        return self.low <= value <= self.high

    def scaled(self, factor: float) -> "Interval":
        """The interval of a positive multiple."""
        return Interval(factor * self.estimate, factor * self.low, factor * self.high)

    def no_narrower(self, tick: float) -> "Interval":
        """The interval, reaching half a tick to either side of the estimate at least."""
        return Interval(
            self.estimate, min(self.low, self.estimate - tick / 2), max(self.high, self.estimate + tick / 2)
        )


def require(condition: bool, otherwise: str) -> None:
    """Raise ValueError, in one line, unless the condition holds."""
    if not condition:
        raise ValueError(otherwise)


def require_level(name: str, value: float) -> None:
    """Raise ValueError unless the value is a probability between 0 and 1."""
    require(0 < value < 1, f"{name} must lie between 0 and 1, not {value}")


def replicates_of(samples: Samples) -> Side:
    """The samples as one float array per replicate or card; ValueError says in one line what is wrong with them."""
    require(np.iterable(samples), f"samples must be a sequence of numbers, not {type(samples).__name__}")
    first = next(iter(samples), None)  # type: ignore[arg-type]
    if first is None:
        raise ValueError("samples must hold at least one value")
    parts = [samples] if np.ndim(first) == 0 else samples
    try:
        replicates = [np.asarray(part, dtype=float) for part in parts]  # type: ignore[union-attr]
    except (TypeError, ValueError) as error:
        raise ValueError(f"samples must be numbers, or one 1-D array of numbers per replicate: {error}") from error
    on_cards = len(replicates) > 1 and all(replicate.ndim == 2 for replicate in replicates)
    for index, replicate in enumerate(replicates):
        require(replicate.ndim == 1 or on_cards, f"replicate {index} must be 1-D, not {replicate.ndim}-D")
        require(replicate.size > 0, f"replicate {index} holds no samples")
        require(bool(np.isfinite(replicate).all()), f"replicate {index} holds samples that are not finite")
    return Cards(replicates) if on_cards else replicates


def positive(replicates: Side) -> Side:
    """The replicates; ValueError unless all samples can stand in a ratio."""
    smallest = min(float(replicate.min()) for replicate in replicates)
    require(smallest > 0, f"a ratio needs positive samples, not {smallest}")
    return replicates


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


def _medians_of(side: Side) -> Array:
    return np.array([sample_median(block) for block in side])


def sample_median(samples: Array) -> float:
    """What np.median gives; what that does around it takes many times as long for some hundred samples."""
    ordered = np.sort(samples, axis=None)
    return float((ordered[(ordered.size - 1) // 2] + ordered[ordered.size // 2]) / 2)


def quantiles(samples: Array, *shares: float) -> list[float]:
    """What np.quantile gives for shares between 0 and 1 of samples that are finite, and likewise faster."""
    places = (samples.size - 1) * np.array(shares)
    below = places.astype(int)
    above = np.minimum(below + 1, samples.size - 1)
    ordered = np.partition(samples, np.concatenate([below, above]))
    low, high, part = ordered[below], ordered[above], places - below
    # As numpy interpolates it, from the nearer of the two, to the last digit.
    return np.where(part < 0.5, low + (high - low) * part, high - (high - low) * (1 - part)).tolist()


def scatter_of_log_ratio(sides: Sequence[Side], paired: bool) -> Scatter:
    """How the logarithms of the ratio of the blocks' medians scatter.

    Paired: Student's t on the ratio of each block. Else Welch's, with Satterthwaite's degrees of freedom.
    """
    logs = [np.log(_medians_of(side)) for side in sides]
    return scatter(logs[0] - logs[1]) if paired else _welch(*map(scatter, logs))


def scatter_of_placements(sides: Sequence[Side], paired: bool) -> Scatter:
    """How half of Cliff's delta scatters over blocks, by the placements of their samples.

    That half is the baseline's chance of being the slower one, less one half. A sample's placement is the share of the
    other side's samples that are smaller, ties counted half; a block's is the mean of its samples'.

    Paired: the samples of a block are placed among those of the block that it took turns with, so that a slow block is
    not held against a fast one (van Elteren 1960, Bulletin of the International Statistical Institute 37:351, for
    ranking within blocks). Else they are placed among all: with one sample to a block the t test is Brunner and
    Munzel's (2000, Biometrical Journal 42:17); with blocks of several it is what Obuchowski (1997, Biometrics 53:567)
    does for clustered data.
    """
    if paired:
        return scatter(np.array([cliffs_delta(*pair) / 2 for pair in zip(*sides, strict=True)]))
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
    found = _welch(*map(scatter, means))
    # Both means hold the whole difference, and each only its own side's part of the scatter.
    return replace(found, mean=found.mean / 2)


def cliffs_delta(one: Array, other: Array) -> float:
    """Cliff's delta of two arrays, from Mann-Whitney's U of the first, 2U / (nm) - 1, in O(n log n)."""
    return twice_u(one, other) / (one.size * other.size) - 1


def twice_u(one: Array, other: Array) -> int:
    """Two times Mann-Whitney's U of the first, which counts ties half."""
    ordered = np.sort(other)
    return int(np.searchsorted(ordered, one, "left").sum() + np.searchsorted(ordered, one, "right").sum())


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


def over_replicates(differences: Sequence[float]) -> Interval:
    """The mean of the replicates' differences with Student's t; for one replicate, without a finite interval."""
    if len(differences) < 2:
        return Interval(float(np.mean(differences)), -math.inf, math.inf)
    found = scatter(np.asarray(differences))
    reach = found.reach(CONFIDENCE)
    return Interval(found.mean, found.mean - reach, found.mean + reach)


class Plan(NamedTuple):
    """All that the bootstrap's draws depend on. The samples are no part of it: sides of the same sizes share draws.

    Attributes:
        sizes: those of the replicates, for each side that is drawn on its own; paired sides are drawn as one.
        on_cards: how many replicates each card of such a side holds; empty for a side that doesn't come by cards.
        batch: resamples drawn at once.
    """

    sizes: tuple[tuple[int, ...], ...]
    on_cards: tuple[tuple[int, ...], ...]
    resamples: int
    batch: int
    seed: int


class Draw(NamedTuple):
    """What resamples of one side hold.

    Attributes:
        times: how often each sample is drawn, (samples, resamples); rows of zeros make the samples a multiple of GROUP.
        middle: the two places, from 0, of a sorted resample that its median lies between, (2, resamples).
    """

    times: Array
    middle: Array

    def medians(self, samples: Array) -> Array:
        """The medians of the resamples, (resamples,).

        They are counted, since to sort each resample takes many times as long: among the samples in order, the one at a
        place is the first at which more have been drawn. Where a byte can't count them, it is sought group by group,
        and then within its group.
        """
        order, count = np.argsort(samples), self.middle.shape[1]
        if self.middle.dtype == np.uint8:
            return _mean_of_two(samples[order], _passed(self.times.take(order, axis=0), self.middle))
        ordered = self.times.take(np.append(order, np.arange(order.size, len(self.times))), axis=0)
        groups = ordered.reshape(-1, GROUP, count)
        drawn = np.zeros((len(groups) + 1, count), self.middle.dtype)
        groups.sum(axis=1, dtype=drawn.dtype, out=drawn[1:])
        group = _passed(drawn[1:], self.middle).astype(np.intp)
        # Places in the arrays laid out flat, since take is much faster than indices for two axes are.
        columns = np.arange(count)
        so_far = drawn.ravel().take(count * group + columns)
        place, rank = count * GROUP * group + columns, GROUP * group
        for _ in range(GROUP):
            so_far += ordered.ravel().take(place, mode="clip")
            rank += so_far <= self.middle
            place += count
        return _mean_of_two(samples[order], rank)


def _passed(drawn: Array, places: Array) -> Array:
    """Add up the rows of `drawn`, (rows, resamples), in place; returns at how many rows each place is not yet reached.

    Row by row: numpy's cumsum goes down one column after another, and out of the cache.
    """
    for before, row in pairwise(drawn):
        row += before
    kind = np.min_scalar_type(len(drawn))
    return np.stack([(drawn <= place).view(np.uint8).sum(axis=0, dtype=kind) for place in places])


def _mean_of_two(ordered: Array, ranks: Array) -> Array:
    found: Array = ordered.take(ranks).mean(axis=0)
    return found


def medians(sides: Sequence[Side], resamples: int, seed: int, paired: bool = False) -> list[Array]:
    """The median of each side in each resample, (resamples,); paired sides share every draw."""
    require(resamples >= 1, f"resamples must be at least 1, not {resamples}")
    sizes, on_cards = [_sizes(side) for side in sides], [_on_cards(side) for side in sides]
    batch = max(1, BATCH_VALUES // sum(len(each) * max(each) for each in sizes))
    drawn = 1 if paired else len(sides)
    plan = Plan(tuple(sizes[:drawn]), tuple(on_cards[:drawn]), resamples, batch, seed)
    return [_medians(np.concatenate(side).tobytes(), plan, 0 if paired else index) for index, side in enumerate(sides)]


def _sizes(side: Side) -> tuple[int, ...]:
    held = _on_cards(side) or (1,) * len(side)
    return tuple(len(block) // count for block, count in zip(side, held, strict=True) for _ in range(count))


def _on_cards(side: Side) -> tuple[int, ...]:
    return side.replicates if isinstance(side, Cards) else ()


@lru_cache(maxsize=KEPT_MEDIANS)
def _medians(samples: bytes, plan: Plan, index: int) -> Array:
    values = plan.resamples * sum(map(sum, plan.sizes))
    batches = _kept_draws(plan) if values <= KEPT_VALUES else _draws(plan)
    found = np.concatenate([draws[index].medians(np.frombuffer(samples)) for draws in batches])
    found.setflags(write=False)
    return found


@lru_cache(maxsize=KEPT_PLANS)
def _kept_draws(plan: Plan) -> list[list[Draw]]:
    sides = zip(*_draws(plan), strict=True)
    return [[Draw(*(np.concatenate(part, axis=1) for part in zip(*draws, strict=True))) for draws in sides]]


def _draws(plan: Plan) -> Iterator[list[Draw]]:
    """The draws of all sides, batch by batch.

    Units are drawn first, the same as scipy.stats.bootstrap draws: the replicates, or the samples of the only one. Each
    drawn replicate then draws as many samples as it has. Of cards, the cards are drawn before their replicates.
    """
    rng = np.random.default_rng(plan.seed)
    for done in range(0, plan.resamples, plan.batch):
        rows = min(plan.batch, plan.resamples - done)
        units = [
            _units_of_cards(cards, rows, rng) if cards else _units(len(sizes) if sizes[1:] else sizes[0], rows, rng)
            for sizes, cards in zip(plan.sizes, plan.on_cards, strict=True)
        ]
        yield [_draw(drawn, np.array(sizes), rng) for drawn, sizes in zip(units, plan.sizes, strict=True)]


def _units(size: int, rows: int, rng: np.random.Generator) -> Array:
    # scipy refuses to resample a single unit; that unit twice has the same distribution.
    drawn = max(size, 2)
    return np.minimum(rng.integers(drawn, size=(rows, drawn)), size - 1)


def _units_of_cards(replicates: tuple[int, ...], rows: int, rng: np.random.Generator) -> Array:
    """Cards, and as many replicates of each as it has; -1 where a card has fewer than another."""
    held = np.array(replicates)
    cards = _units(held.size, rows, rng)[..., np.newaxis]
    places = np.arange(held.max())
    drawn = (np.cumsum(held) - held)[cards] + rng.integers(held[cards], size=(*cards.shape[:2], places.size))
    return np.where(places < held[cards], drawn, -1).reshape(rows, -1)


def _draw(units: Array, sizes: Array, rng: np.random.Generator) -> Draw:
    """From the units drawn, (resamples, drawn), and the sizes of the replicates."""
    if sizes.size == 1:
        return _counted(units, sizes[0])
    width, drawn_sizes = sizes.max(), sizes[units][..., np.newaxis]
    alike = sizes.min() == width
    position = rng.integers(width if alike else drawn_sizes, size=(*units.shape, width), dtype=np.uint32)
    first = np.cumsum(sizes) - sizes
    samples = first[units][..., np.newaxis] + position
    if not alike:
        # A shorter replicate has fewer draws; the places left over draw one beyond the last, which is not counted.
        samples[np.arange(width) >= drawn_sizes] = sizes.sum()
    samples[units < 0] = sizes.sum()
    return _counted(samples.reshape(len(samples), -1), sizes.sum())


def _counted(samples: Array, total: int) -> Draw:
    """From the samples drawn, (resamples, drawn), and how many there are to draw from."""
    rows, bins = len(samples), total + 1
    counts = np.bincount((samples + bins * np.arange(rows)[:, np.newaxis]).ravel(), minlength=bins * rows)
    counts = counts.reshape(rows, bins)[:, :total]
    times = np.zeros((total + -total % GROUP, rows), dtype=np.min_scalar_type(counts.max()))
    times[:total] = counts.T
    sizes = counts.sum(axis=1)
    return Draw(times, np.stack([(sizes - 1) // 2, sizes // 2]).astype(np.min_scalar_type(sizes.max())))


@dataclass(frozen=True)
class Bootstrap:
    """A bootstrap distribution, and the intervals that may be read from it.

    Where the samples were independent, that is the percentile interval (Efron & Tibshirani 1993, section 13.3). Where
    only blocks are, it is Student's t over the blocks' own medians, since the percentile interval of a few blocks is
    too short where they differ and too long where they don't (Davison & Hinkley 1997, section 3.8); but at least half
    as long as the percentile interval, so that a few blocks which agree by chance promise no certainty. What is
    positive is taken by its logarithm: no interval of a duration reaches 0, however few its blocks.
    """

    floor: Interval
    """The estimate, with the narrowest interval around it that the clock's tick allows."""
    distribution: Array
    scatter: Scatter | None = None
    """Of the logarithms of the blocks, over `unit`. None where samples were resampled one by one."""
    unit: float | None = 1.0
    """None where blocks scatter by themselves, since not all samples are positive."""

    def interval(self, confidence: float) -> Interval:
        """The interval; it holds the estimate and the floor."""
        require_level("confidence", confidence)
        tail, estimate = (1 - confidence) / 2, self.floor.estimate
        low, high = quantiles(self.distribution, tail, 1 - tail)
        if self.scatter is not None:
            length = math.log(high / low) if self.unit else high - low
            reach = max(self.scatter.reach(confidence), length / 4)
            low, high = self.scatter.mean - reach, self.scatter.mean + reach
            if self.unit:
                low, high = self.unit * math.exp(low), self.unit * math.exp(high)
        return Interval(estimate, min(low, estimate, self.floor.low), max(high, estimate, self.floor.high))

    @property
    def freedom(self) -> float:
        """Degrees of freedom behind the length of the intervals."""
        return math.inf if self.scatter is None else self.scatter.freedom


def of_median(samples: Samples, resamples: int, seed: int, tick: float) -> Bootstrap:
    """Resample the median of one side."""
    side = replicates_of(samples)
    floor, cut = _median(side, tick), blocks([side], paired=False)
    (distribution,) = medians(cut or [side], resamples, seed)
    if cut is None:
        return Bootstrap(floor, distribution)
    centres, positive_only = _medians_of(cut[0]), min(block.min() for block in side) > 0
    # Over the estimate, so that blocks that are all the same have exactly their own value as their interval.
    unit = floor.estimate if positive_only else None
    return Bootstrap(floor, distribution, scatter(np.log(centres / unit) if unit else centres), unit)


def of_ratio(baseline: Samples, candidate: Samples, resamples: int, seed: int, tick: float, paired: bool) -> Bootstrap:
    """Resample the ratio of the medians of two sides, round by round where they are paired."""
    sides = positive(replicates_of(baseline)), positive(replicates_of(candidate))
    if paired:
        sizes = [[replicate.size for replicate in side] for side in sides]
        same = sizes[0] == sizes[1]
        require(same, f"paired samples need the same rounds on both sides, not {sizes[0]} and {sizes[1]}")
    cut = blocks(sides, paired)
    distribution = np.divide(*medians(cut or sides, resamples, seed, paired))
    above, below = (_median(side, tick) for side in sides)
    floor = Interval(
        above.estimate / below.estimate,
        max(above.low, 0.0) / below.high,
        above.high / below.low if below.low > 0 else math.inf,
    )
    return Bootstrap(floor, distribution, scatter_of_log_ratio(cut, paired) if cut else None)


def _median(side: Side, tick: float) -> Interval:
    """The median of all samples, as sharp as a clock of this tick can tell it."""
    require(tick >= 0, f"tick must not be negative, not {tick}")
    estimate = sample_median(np.concatenate(side))
    return Interval(estimate, estimate, estimate).no_narrower(tick)
