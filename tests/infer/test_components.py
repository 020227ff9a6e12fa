"""Cards, processes and samples: how their variances are told apart, and what intervals over cards cover."""

import math

import numpy as np
import pytest

from attnlab.infer import stats

CARD, PROCESS, WITHIN = 0.01, 0.005, 0.02


def cards(rng, held=(2, 1, 1, 1), samples=40, sides=1):
    """Lognormal latencies around 50: a list of cards for each side; sides share the card and the process by half."""

    def levels(deviation, *sizes):
        shared, own = rng.standard_normal((1, *sizes)), rng.standard_normal((sides, *sizes))
        return deviation * (shared + own) / math.sqrt(2)

    of_cards, of_processes = levels(CARD, len(held)), levels(PROCESS, sum(held))
    within = WITHIN * rng.standard_normal((sides, sum(held), samples))
    effects = np.repeat(of_cards, held, axis=1) + of_processes
    latencies = 50 * np.exp(effects[..., np.newaxis] + within)
    ends = np.cumsum(held)[:-1]
    return [np.split(side, ends) for side in latencies]


@pytest.mark.parametrize("held", [(2, 2, 2, 2), (2, 1, 1, 1), (3, 1)])
def test_the_components_are_the_true_ones_on_average(held):
    rng = np.random.default_rng(1)
    found = [stats.components(cards(rng, held)[0]) for _ in range(1500)]
    for level, truth in (("card", CARD), ("process", PROCESS), ("within", WITHIN)):
        values = np.array([getattr(one, level) for one in found])
        error = values.std(ddof=1) / math.sqrt(values.size)
        assert abs(values.mean() - truth**2) < 4 * error


def test_one_process_a_card_leaves_cards_and_processes_together():
    rng = np.random.default_rng(2)
    found = [stats.components(cards(rng, (1, 1, 1, 1))[0]) for _ in range(1500)]
    assert all(math.isnan(one.process) for one in found)
    assert np.mean([one.card for one in found]) == pytest.approx(CARD**2 + PROCESS**2, rel=0.15)


def test_what_does_not_vary_has_no_variance():
    assert stats.components([np.full((2, 5), 3.0), np.full((1, 5), 3.0)]) == stats.Components(0, 0, 0)


@pytest.mark.parametrize(
    ("samples", "complaint"),
    [
        ([np.ones((2, 3))], "at least two cards"),
        ([np.ones(3), np.ones(3)], "a 2-D array per card"),
        ([np.ones((2, 3)), np.ones((1, 4))], "as many samples"),
        ([np.ones((2, 1)), np.ones((1, 1))], "two of them"),
        ([np.ones((2, 3)), np.zeros((1, 3))], "positive"),
    ],
)
def test_bad_samples_have_no_components(samples, complaint):
    with pytest.raises(ValueError, match=complaint):
        stats.components(samples)


def covered(held, simulations=400):
    """How often intervals hold the truth: of the median and of the ratio over cards, and of both over replicates."""
    rng = np.random.default_rng(3)
    hits = np.zeros(4)
    for seed in range(simulations):
        baseline, candidate = cards(rng, held, sides=2)
        flat = [[row for card in side for row in card] for side in (baseline, candidate)]
        settings = {"resamples": 100, "seed": seed}
        for index, (one, other) in enumerate(((baseline, candidate), flat)):
            median = stats.bootstrap_ci(one, **settings)
            ratio = stats.ratio_ci(one, other, paired=True, **settings)
            hits[index::2] += [median.low <= 50 <= median.high, ratio.low <= 1 <= ratio.high]
    return hits / simulations


def test_intervals_over_cards_cover_cards_like_these_and_those_over_replicates_do_not():
    median, median_flat, ratio, ratio_flat = covered((3, 3, 3, 3))
    # 95 %, less four standard errors of 400 simulations.
    assert min(median, ratio) > 0.906
    assert max(median_flat, ratio_flat) < 0.85
    median, _, ratio, _ = covered((2, 1, 1, 1))
    assert min(median, ratio) > 0.906


def test_equal_cards_of_one_replicate_each_are_as_good_as_replicates():
    rng = np.random.default_rng(4)
    baseline, candidate = cards(rng, (1, 1, 1, 1), sides=2)
    flat = [[card[0] for card in side] for side in (baseline, candidate)]
    by_card, by_replicate = (stats.verdict(*sides, paired=True) for sides in ((baseline, candidate), flat))
    assert by_card.decision == by_replicate.decision
    assert by_card.pvalue == by_replicate.pvalue
    assert by_card.delta == by_replicate.delta
    assert by_card.speedup.low == pytest.approx(by_replicate.speedup.low, rel=1e-3)


def test_cards_are_drawn_before_replicates_and_samples():
    # One card far from the other: a resample holds samples of one of them, or of both.
    near, far = np.full((2, 20), 1.0), np.full((1, 20), 9.0)
    (medians,) = stats.bootstrap.medians([stats.replicates_of([near, far])], 4000, 0)
    shares = {value: float(np.mean(medians == value)) for value in (1.0, 9.0)}
    # Both cards: 40 samples of 1 and 20 of 9, whose median is 1. Only the far card twice has a median of 9.
    assert shares[1.0] == pytest.approx(0.75, abs=0.03)
    assert shares[9.0] == pytest.approx(0.25, abs=0.03)
