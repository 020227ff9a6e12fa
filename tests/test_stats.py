"""attnlab.stats against worked examples, scipy, brute force, properties and simulated coverage."""

import math
from functools import partial
from itertools import permutations

import numpy as np
import pytest
import scipy.signal
import scipy.stats
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from statsmodels.tsa.stattools import acf

from attnlab import stats
from attnlab.base.rules import CLAIM_DELTA, CLAIM_SPEEDUP
from attnlab.stats import Interval

properties = settings(deadline=None, max_examples=60, derandomize=True)
latency = st.floats(0.1, 1e5, allow_nan=False)
latencies = st.lists(latency, min_size=1, max_size=30)
# Coarse values, so that ties between and within the two sides are common.
ticks = st.lists(st.integers(1, 12).map(float), min_size=2, max_size=25)


def noisy(median: float, n: int = 100, seed: int = 0, spread: float = 0.01) -> np.ndarray:
    """Samples with an exact median, scattered by a fraction of it."""
    samples = np.random.default_rng(seed).normal(1, spread, n)
    return median * samples / np.median(samples)


def drifting(replicates: int = 6, rounds: int = 50) -> np.ndarray:
    """A machine on which rounds and replicates drift far more than samples scatter."""
    rng = np.random.default_rng(7)
    drift = np.linspace(80, 120, rounds) + rng.normal(0, 10, (replicates, 1))
    return drift + rng.normal(0, 0.1, (replicates, rounds))


@pytest.mark.parametrize(
    ("samples", "complaint"),
    [
        ([], "must hold at least one value"),
        (np.empty(0), "must hold at least one value"),
        (np.empty((0, 5)), "must hold at least one value"),
        ([[1.0], []], "replicate 1 holds no samples"),
        ([1.0, math.nan], "not finite"),
        ([[1.0, 2.0], [math.inf]], "replicate 1 holds samples that are not finite"),
        (np.ones((2, 2, 2, 2)), "must be 1-D, not 3-D"),
        ([np.ones((2, 2)), [1.0]], "must be 1-D, not 2-D"),
        ([[1.0, 2.0], 3.0], "replicate 1 must be 1-D, not 0-D"),
        ([1.0, [2.0, 3.0]], "must be numbers"),
        (["fast", "slow"], "must be numbers"),
        (3.0, "must be a sequence"),
        (None, "must be a sequence"),
    ],
)
def test_bad_samples_are_refused_in_one_line(samples, complaint):
    for call in (stats.bootstrap_ci, stats.lag1, lambda bad: stats.cliffs_delta([1.0], bad)):
        with pytest.raises(ValueError, match=complaint) as caught:
            call(samples)
        assert "\n" not in str(caught.value)


def scipys(statistic, *samples, **options) -> tuple[float, float]:
    """scipy's percentile bootstrap."""
    found = scipy.stats.bootstrap(samples, statistic, method="percentile", **options).confidence_interval
    return found.low, found.high


@pytest.mark.parametrize("n", [2, 7, 100])
@pytest.mark.parametrize(("level", "seed"), [(0.95, 42), (0.9, 3)])
def test_one_replicate_is_scipys_percentile_bootstrap(n, level, seed):
    samples, rng = noisy(50, n), np.random.default_rng(seed)
    expected = scipys(np.median, samples, n_resamples=10_000, confidence_level=level, random_state=rng)
    ours = stats.bootstrap_ci(samples, level, seed=seed)
    assert (ours.low, ours.high) == pytest.approx(expected, rel=1e-12)
    assert ours.estimate == np.median(samples)


@pytest.mark.parametrize("paired", [False, True])
def test_ratio_of_one_replicate_is_scipys_percentile_bootstrap(paired):
    sides, rng = (noisy(50, seed=1), noisy(40, seed=2)), np.random.default_rng(42)
    # With 2 sides, scipy's stream of random numbers depends on the batch.
    options = {"n_resamples": 2_000, "batch": 5_000, "paired": paired, "random_state": rng}
    expected = scipys(lambda b, c, axis: np.median(b, axis=axis) / np.median(c, axis=axis), *sides, **options)
    ours = stats.ratio_ci(*sides, resamples=2_000, paired=paired)
    assert (ours.low, ours.high) == pytest.approx(expected, rel=1e-12)
    assert ours.estimate == pytest.approx(1.25)


def test_same_seed_same_interval():
    samples = noisy(100, 40)
    for interval in (stats.bootstrap_ci, lambda x, **seed: stats.ratio_ci(x, x, **seed)):
        assert interval(samples) == interval(samples) == interval(samples, tick=1e-6)
        assert interval(samples, resamples=50) != interval(samples, resamples=50, seed=43)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("samples", [[7.0], [[7.0]], [7.0] * 50, [[7.0], [7.0, 7.0]], [[7.0] * 9] * 4])
def test_one_value_has_a_degenerate_interval_or_one_tick_and_does_not_differ(samples):
    assert stats.bootstrap_ci(samples, resamples=100) == Interval(7, 7, 7)
    assert stats.bootstrap_ci(samples, resamples=100, tick=0.5) == Interval(7, 6.75, 7.25)
    for paired in (False, True):
        assert stats.ratio_ci(samples, samples, resamples=100, paired=paired) == Interval(1, 1, 1)
    n = sum(map(np.size, samples))
    assert stats.mann_whitney(samples, samples) == stats.RankTest(n * n / 2, 1)
    assert stats.cliffs_delta(samples, samples) == 0
    assert stats.smallest_effect(samples, samples, resamples=10) == 0


def test_sides_may_have_different_replicates_unless_they_are_paired():
    baseline, candidate = noisy(100), [noisy(80, 30, 1), noisy(80, 40, 2)]
    assert 1.2 < stats.ratio_ci(baseline, candidate).low < stats.ratio_ci(baseline, candidate).high < 1.3
    for bad in (candidate, baseline[:99], [baseline[:50], baseline[50:]]):
        with pytest.raises(ValueError, match="paired samples need the same rounds"):
            stats.ratio_ci(baseline, bad, paired=True)


PAIR = [1.0, 2.0]
BAD_OPTIONS = {
    partial(stats.bootstrap_ci, PAIR): {"confidence": (0, 1, 95, math.nan), "resamples": (0,), "tick": (-1,)},
    partial(stats.ratio_ci, PAIR, PAIR): {"confidence": (0, 1, 95, math.nan), "resamples": (0,), "tick": (-1,)},
    partial(stats.quantile_ci, PAIR): {"p": (0, 1, -0.5, 95, math.nan)},
    partial(stats.verdict, PAIR, PAIR): {"pvalue": (1.2, math.nan), "smallest_effect": (-0.1,), "margin": (0, -0.1)}
    | {"alpha": (0, 0.5, 0.7)},
}


@pytest.mark.parametrize("call", BAD_OPTIONS)
def test_bad_options_are_refused(call):
    for name, values in BAD_OPTIONS[call].items():
        for bad in values:
            with pytest.raises(ValueError, match=f"{name} must"):
                call(**{name: bad})


@pytest.mark.parametrize(
    ("call", "given", "complaint"),
    [
        *(
            (stats.ratio_ci, sides, "needs positive samples")
            for bad in (0.0, -1.0)
            for sides in permutations([[bad], [1]])
        ),
        *((stats.holm, [bad], "p-values must") for bad in ([-0.1], [1.1], [0.5, math.nan], [[0.1, 0.2]])),
        (stats.hedges_g, ([1.0], [2.0]), "at least two samples"),
    ],
)
def test_what_has_no_answer_is_refused(call, given, complaint):
    with pytest.raises(ValueError, match=complaint):
        call(*given)


@properties
@given(st.lists(latencies, min_size=1, max_size=4), st.floats(0, 10), st.sampled_from([0.1, 0.5, 0.95]))
def test_interval_holds_the_estimate_and_a_tick(samples, tick, confidence):
    ours = stats.bootstrap_ci(samples, confidence, resamples=50, tick=tick)
    assert ours.estimate == np.median(np.concatenate(samples))
    assert ours.low <= ours.estimate - tick / 2 <= ours.estimate + tick / 2 <= ours.high
    if not tick and len(samples) == 1 and len(samples[0]) < 20:
        assert min(samples[0]) <= ours.low <= ours.high <= max(samples[0])


@properties
@given(st.lists(st.tuples(latency, latency), min_size=1, max_size=20))
def test_paired_interval_turns_over_whole(pairs):
    baseline, candidate = np.transpose(pairs)
    # At this confidence and number of resamples, both ends are resamples, not interpolated values.
    ours = stats.ratio_ci(baseline, candidate, 0.9, resamples=41, paired=True)
    turned = stats.ratio_ci(candidate, baseline, 0.9, resamples=41, paired=True)
    assert (ours.low * turned.high, ours.high * turned.low) == pytest.approx((1, 1))


def autoregression(shape: tuple[int, ...], correlation: float, seed: int = 0) -> np.ndarray:
    """First-order autoregressions with mean and median 0 and variance 1."""
    steps = np.random.default_rng(seed).standard_normal((*shape[:-1], shape[-1] + 100))
    return scipy.signal.lfilter([math.sqrt(1 - correlation**2)], [1, -correlation], steps, axis=-1)[..., 100:]


def test_neighbours_are_told_by_the_serial_correlation_of_ranks():
    at_the_edge = np.random.default_rng(0).standard_normal(100)
    for samples in (*autoregression((40, 100), 0.25), at_the_edge):
        lag1 = acf(scipy.stats.rankdata(samples), nlags=1, fft=False)[1]
        assert stats.resembles_neighbours(samples) == (lag1 > scipy.stats.norm.ppf(0.99) / 10)
    assert not stats.resembles_neighbours(np.arange(19.0))
    assert stats.resembles_neighbours(np.arange(20.0))
    assert not stats.resembles_neighbours(np.ones(100))


def test_blocks_are_replicates_or_stretches_or_none():
    dependent, independent = 50 + autoregression((100,), 0.7), noisy(50)
    assert stats.independent_blocks([[independent]], paired=False) is None
    (replicates,) = stats.independent_blocks([[independent, dependent]], paired=False)
    assert [len(block) for block in replicates] == [100, 100]
    (stretches,) = stats.independent_blocks([[dependent]], paired=False)
    assert [len(block) for block in stretches] == [20] * stats.STRETCHES
    np.testing.assert_array_equal(np.concatenate(stretches), dependent)
    # One side with dependent samples is enough.
    for sides in ([[dependent], [independent]], [[independent], [dependent]]):
        cut = stats.independent_blocks(sides, paired=True)
        assert [[len(block) for block in side] for side in cut] == [[20] * 5] * 2
    cut = stats.independent_blocks([[independent], [independent, dependent]], paired=False)
    assert [[len(block) for block in side] for side in cut] == [[20] * 5, [100] * 2]
    assert stats.independent_blocks([[independent[:19]], [independent, dependent]], paired=False) is None


@properties
@given(ticks, ticks)
def test_scatter_of_placements_is_the_test_of_brunner_and_munzel(baseline, candidate):
    sides = [[np.array([value]) for value in side] for side in (baseline, candidate)]
    ours = stats._scatter_of_placements(sides, paired=False)
    assert 2 * ours.mean == pytest.approx(stats.cliffs_delta(baseline, candidate), abs=1e-12)
    assume(ours.error > 1e-9)
    assert ours.pvalue == pytest.approx(scipy.stats.brunnermunzel(baseline, candidate).pvalue, rel=1e-6)


def test_a_slow_replicate_hides_nothing_that_every_replicate_shows():
    """A host that is 2x slower in 1 of 3 processes, and a candidate that is 1.6x faster in each."""
    baseline = [speed * noisy(50, 50, seed, 0.05) for seed, speed in ((1, 1.0), (2, 1.1), (3, 2.0))]
    candidate = [speed * noisy(50 / 1.6, 50, seed, 0.05) for seed, speed in ((4, 1.0), (5, 1.1), (6, 2.0))]
    assert stats._scatter_of_placements([baseline, candidate], paired=False).pvalue > 0.05
    assert stats.verdict(baseline, candidate, paired=True, resamples=200).decision == "faster"
    assert stats.verdict(baseline, candidate, resamples=200).decision == "inconclusive"


def test_the_interval_over_replicates_is_students():
    replicates = [noisy(median, seed=index) for index, median in enumerate((94, 97, 100, 103, 109))]
    ours = stats.bootstrap_ci(replicates, 0.9)
    logs = np.log([94, 97, 100, 103, 109])
    expected = np.exp(scipy.stats.t.interval(0.9, 4, logs.mean(), scipy.stats.sem(logs)))
    assert (ours.low, ours.high) == pytest.approx(tuple(expected))
    around_0 = stats.bootstrap_ci(np.array(replicates) - 100, 0.9)
    expected = scipy.stats.t.interval(0.9, 4, 0.6, scipy.stats.sem([94, 97, 100, 103, 109]))
    assert (around_0.low, around_0.high) == pytest.approx(expected)
    ratio = stats.ratio_ci(replicates, np.array(replicates) * 0.5, 0.9, resamples=500)
    expected = scipy.stats.ttest_ind(logs, logs - math.log(2), equal_var=False).confidence_interval(0.9)
    assert (ratio.low, ratio.high) == pytest.approx(tuple(np.exp(expected)))


@properties
@given(ticks, ticks)
def test_cliffs_delta_is_the_count_of_pairs(baseline, candidate):
    above = sum(b > c for b in baseline for c in candidate)
    below = sum(b < c for b in baseline for c in candidate)
    expected = (above - below) / (len(baseline) * len(candidate))
    assert stats.cliffs_delta(baseline, candidate) == pytest.approx(expected, abs=1e-12)
    # Replicates are pooled.
    assert stats.cliffs_delta([baseline[:1], baseline[1:]], candidate) == stats.cliffs_delta(baseline, candidate)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("baseline", "candidate", "g"),
    [
        ([2, 3, 4], [1, 2, 3], 0.8),  # means 3 and 2, variances 1 and 1, df = 4: J = 1 - 3/15
        ([[2.0, 3.0], [4.0]], [1, 2, 3], 0.8),
        # Means 4 and 1, sums of squares 8 and 0, df = 3: s = sqrt(8/3), J = 1 - 3/11.
        ([2, 4, 6], [1, 1], 8 / 11 * 3 / math.sqrt(8 / 3)),
        # 0.1 is no binary fraction: means of constant samples have different rounding errors.
        ([0.1] * 3, [0.1] * 7, 0),
        ([0.3] * 3, [0.1] * 7, math.inf),
        ([0.1] * 3, [0.3] * 7, -math.inf),
        ([0.3], [0.1] * 7, math.inf),
    ],
)
def test_hedges_g_by_hand(baseline, candidate, g):
    assert stats.hedges_g(baseline, candidate) == pytest.approx(g)


@properties
@given(ticks, ticks)
def test_mann_whitney_is_scipys(baseline, candidate):
    assume(len({*baseline, *candidate}) > 1)
    ours, theirs = stats.mann_whitney(baseline, candidate), scipy.stats.mannwhitneyu(baseline, candidate)
    assert (ours.statistic, ours.pvalue) == (theirs.statistic, theirs.pvalue)
    assert stats.mann_whitney(candidate, baseline).pvalue == pytest.approx(ours.pvalue)


@pytest.mark.parametrize("paired", [False, True])
def test_the_p_value_that_decides_counts_a_replicate_once(paired):
    """The medians of replicates differ by more than their samples scatter: 500 samples are 5 observations."""
    medians = [100, 103, 98, 101, 99], [97, 101, 98, 97, 99]
    sides = [[noisy(median, seed=median) for median in side] for side in medians]
    logs = np.log(medians)
    test = scipy.stats.ttest_rel(*logs) if paired else scipy.stats.ttest_ind(*logs, equal_var=False)
    assert stats.mann_whitney(*sides).pvalue < 1e-10
    placed = stats._scatter_of_placements(sides, paired).pvalue
    assert stats.difference_pvalue(*sides, paired=paired) == pytest.approx(max(test.pvalue, placed))
    assert max(test.pvalue, placed) > 0.05


@pytest.mark.parametrize(
    ("alone", "adjusted"),
    [
        # Sorted .01 .02 .03 .04 times 4 3 2 1 are .04 .06 .06 .04, and the running maximum ends at .06.
        ([0.03, 0.01, 0.04, 0.02], [0.06, 0.04, 0.06, 0.06]),
        ([0.9, 0.8], [1, 1]),
        ([0.2], [0.2]),
        ([], []),
    ],
)
def test_holm_by_hand(alone, adjusted):
    np.testing.assert_allclose(stats.holm(alone), adjusted)


def are_equivalent(baseline, candidate, **options) -> bool:
    return stats.verdict(baseline, candidate, **{"resamples": 2000} | options).decision == "equivalent"


@pytest.mark.parametrize(("speedup", "same"), [(1, True), (1.01, True), (1 / 1.01, True), (1.03, False), (0.97, False)])
def test_equivalence_within_the_margin_even_where_a_difference_shows(speedup, same):
    baseline, candidate = noisy(100, spread=0.002), noisy(100 / speedup, spread=0.002, seed=1)
    assert are_equivalent(baseline, candidate) is are_equivalent(candidate, baseline) is same
    assert are_equivalent(baseline, candidate, margin=0.05)
    assert speedup == 1 or stats.mann_whitney(baseline, candidate).pvalue < 1e-10
    assert not stats.verdict(baseline, candidate, margin=0.05).claimable


def test_equivalence_looks_at_the_interval_of_1_minus_2_alpha():
    sides = noisy(100, spread=0.04), noisy(100, spread=0.04, seed=3)
    interval = stats.ratio_ci(*sides, confidence=0.9)
    margin = max(interval.high, 1 / interval.low) - 1
    assert are_equivalent(*sides, resamples=10_000, margin=margin * 1.001)
    assert not are_equivalent(*sides, resamples=10_000, margin=margin * 0.999)
    assert not are_equivalent(*sides, resamples=10_000, margin=margin * 1.001, alpha=0.025)


@pytest.mark.parametrize(
    ("smallest", "margin", "same"), [(0.0, 0.02, True), (0.02, 0.02, True), (0.021, 0.02, False), (0.021, 0.03, True)]
)
def test_nothing_is_equivalent_where_the_margin_could_not_have_been_seen(smallest, margin, same):
    sides = noisy(100, spread=0.002), noisy(99, spread=0.002, seed=1)
    assert are_equivalent(*sides, margin=margin, smallest_effect=smallest) is same


@pytest.mark.parametrize(("p", "n"), [(0.5, 6), (0.95, 72), (0.05, 72), (0.99, 368), (0.999, 3688)])
def test_intervals_of_quantiles_begin_where_scipys_do_and_are_the_same(p, n):
    assert stats.quantile_ci(np.arange(n - 1), p) is None
    for size in (n, n + 1, 3 * n):
        samples = noisy(100, size)
        theirs = scipy.stats.quantile_test(samples, p=p).confidence_interval(0.95)
        for pooled in (samples, [samples[:2], samples[2:]]):
            assert stats.quantile_ci(pooled, p) == Interval(np.quantile(samples, p), *theirs)
    assert np.isnan(scipy.stats.quantile_test(np.arange(n - 1), p=p).confidence_interval(0.95)).any()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("samples", "lag1"),
    [
        ([1, 2, 3, 4], 0.25),  # deviations -1.5 -0.5 0.5 1.5: products 0.75 - 0.25 + 0.75 over squares 5
        ([1, -1, 1, -1], -0.75),
        ([1, 1, 4], -1 / 6),
        ([[1, 2, 3, 4], [1, -1, 1, -1]], -0.25),
        *(([1.0], 0), ([1.0, 2.0], 0), ([0.1] * 30, 0), ([[0.1] * 3, [5.0] * 3], 0)),  # too few samples
    ],
)
def test_lag1_by_hand_and_what_it_leaves_of_n(samples, lag1):
    assert stats.lag1(samples) == pytest.approx(lag1)
    expected = {0.25: 60, 0: 100}.get(max(lag1, 0))
    assert stats.effective_n(100, stats.lag1(samples)) == pytest.approx(expected)


def test_the_smallest_effect_of_replicates_by_hand():
    """Ratios of 1.01, 1 / 1.01, 1, 1.02 and 1 / 1.02: the mean of their logarithms is 0."""
    baseline = [noisy(100, seed=seed, spread=1e-4) for seed in range(5)]
    control = [r * scale for r, scale in zip(baseline, (1.01, 1 / 1.01, 1, 1.02, 1 / 1.02), strict=True)]
    error = math.sqrt((2 * math.log(1.01) ** 2 + 2 * math.log(1.02) ** 2) / 4 / 5)
    found, missed = scipy.stats.t.ppf([0.975, 0.8], 4)
    ours = stats.smallest_effect(baseline, control, paired=True)
    assert ours == pytest.approx(math.expm1((found + missed) * error), rel=1e-6)


def test_the_smallest_effect_of_one_replicate_and_of_a_control_that_differs():
    baseline, control = noisy(100, seed=1), noisy(100, seed=2)
    interval = stats.ratio_ci(baseline, control, paired=True)
    half = math.log(interval.high / interval.low) / 2
    # 1.96 and 0.84 standard errors of the normal distribution.
    expected = math.expm1(half * (1 + 0.8416 / 1.9600))
    assert stats.smallest_effect(baseline, control, paired=True) == pytest.approx(expected, rel=1e-3)
    baseline, control = noisy(100, spread=1e-3), noisy(97, seed=2, spread=1e-3)
    assert stats.smallest_effect(baseline, control) == pytest.approx(stats.ratio_ci(baseline, control).high - 1)
    assert stats.smallest_effect(control, baseline) == pytest.approx(1 / stats.ratio_ci(control, baseline).low - 1)


SLOW, FAST = noisy(100), noisy(80, seed=1)


@pytest.mark.parametrize(
    ("baseline", "candidate", "options", "decision", "claimable"),
    [
        (SLOW, FAST, {}, "faster", True),
        (FAST, SLOW, {}, "slower", False),
        (SLOW, FAST, {"pvalue": 0.049}, "faster", True),
        (SLOW, FAST, {"pvalue": 0.05}, "inconclusive", False),
        # No claim is smaller than the smallest detectable effect.
        (SLOW, FAST, {"smallest_effect": 0.24}, "faster", True),
        (FAST, SLOW, {"smallest_effect": 0.24}, "slower", False),
        (SLOW, FAST, {"smallest_effect": 0.26}, "inconclusive", False),
        (FAST, SLOW, {"smallest_effect": 0.26}, "inconclusive", False),
        # A p-value alone decides nothing: the medians are equal, though the samples differ.
        (noisy(100, 40, spread=0.2), noisy(100, 40, 1, 0.2), {"pvalue": 0.0}, "inconclusive", False),
        (SLOW, noisy(100 / 1.09, seed=1), {}, "faster", False),
        (SLOW, noisy(100 / 1.12, seed=1), {}, "faster", True),
        ([10.0] * 50, [9.0] * 50, {}, "faster", True),
        ([10.0] * 50, [9.0] * 50, {"tick": 1.5}, "inconclusive", False),
        # The candidate's median is at most 9.9; the baseline's is 10, or as low as 9.8 with a clock of this tick.
        ([10.0] * 50, [9.0] * 28 + [9.9] * 22, {}, "faster", True),
        ([10.0] * 50, [9.0] * 28 + [9.9] * 22, {"tick": 0.4}, "faster", False),
        (drifting(), drifting() / 1.05, {}, "inconclusive", False),
        (drifting(), drifting() / 1.05, {"paired": True, "pvalue": 0.001}, "faster", False),
    ],
)
def test_a_verdict_follows_from_interval_p_value_and_tick(baseline, candidate, options, decision, claimable):
    ours = stats.verdict(baseline, candidate, resamples=1000, **options)
    assert (ours.decision, ours.claimable) == (decision, claimable)


def test_claim_needs_a_large_delta_and_intervals_apart():
    """Half of a candidate's samples are very slow: its median is 15 % lower, but delta is small."""
    modes = np.random.default_rng(0).permutation(np.concatenate([noisy(84, 230, 1), noisy(300, 170, 2)]))
    cases = (noisy(100, 400), modes), (noisy(100, 40, spread=0.2), noisy(87, 40, spread=0.2, seed=3))
    for (baseline, candidate), is_apart in zip(cases, (True, False), strict=True):
        ours = stats.verdict(baseline, candidate)
        assert stats.bootstrap_ci(baseline).overlaps(stats.bootstrap_ci(candidate)) is not is_apart
        assert (0 < ours.delta < CLAIM_DELTA) is is_apart
        assert ours.speedup.estimate > CLAIM_SPEEDUP
        assert (ours.decision, ours.claimable) == ("faster", False)


@properties
@given(ticks, ticks)
def test_verdicts_of_both_orders_agree(baseline, candidate):
    assume(len(baseline) == len(candidate))
    turned = {"faster": "slower", "slower": "faster"}
    ours = stats.verdict(baseline, candidate, 0.05, resamples=41, paired=True)
    other = stats.verdict(candidate, baseline, 0.05, resamples=41, paired=True)
    assert other.decision == turned.get(ours.decision, ours.decision)
    assert not (ours.claimable and other.claimable)
