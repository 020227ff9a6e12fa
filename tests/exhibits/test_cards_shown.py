"""What is shown of cards, where a run measured on several, and which cards its words hold for."""

import numpy as np
import pytest
import synthetic
from synthetic import Recipe

from attnlab.exhibits import formats
from attnlab.exhibits.environment import cards
from attnlab.exhibits.verdicts import target

ONE = Recipe(study=synthetic.AT_TARGET | {"replicates": 4}, cards=tuple((card, 1.0) for card in "aaaa"))
TWO = Recipe(
    study=synthetic.AT_TARGET | {"replicates": 4},
    cards=(("a", 1.01), ("b", 0.99), ("a", 1.012), ("b", 0.988)),
)
SEVERAL = Recipe(
    study=synthetic.AT_TARGET | {"replicates": 6},
    cards=(("a", 1.01), ("b", 0.99), ("c", 1.0), ("a", 1.012), ("b", 0.988), ("c", 1.001)),
)
ALONE = Recipe(study=synthetic.AT_TARGET, cards=(("a", 1.01), ("b", 0.99)))


@pytest.fixture(scope="module")
def two():
    return synthetic.infer(TWO)


@pytest.fixture(scope="module")
def several():
    return synthetic.infer(SEVERAL)


def test_cards_processes_and_samples_have_their_parts(two):
    shown = cards.cards(two)
    (row,) = shown.frame.to_dict("records")
    assert row["timing"] == "device warm"
    assert row["cases"] == 5
    # Each card's two processes lie 0.2 % apart, and the cards 2.2 %: these variances are known to their last digit.
    logs = np.log([[1.01, 1.012], [0.99, 0.988]])
    within = np.var(np.log1p(synthetic.STEP * (np.arange(synthetic.ROUNDS) - (synthetic.ROUNDS - 1) / 2)), ddof=1)
    process = logs.var(axis=1, ddof=1).mean() - within / synthetic.ROUNDS
    between = logs.mean(axis=1).var(ddof=1) - logs.var(axis=1, ddof=1).mean() / 2
    expected = 100 * np.sqrt([between, process, within])
    assert [float(row[f"{title} (%)"]) for title in cards.LEVELS.values()] == pytest.approx(expected, rel=0.01)
    assert "over 2 cards" in shown.caption
    between = formats.percent(expected[0])
    assert shown.note.startswith(
        f"Under {two.headline.words}, the standard deviation of a latency is {between} between cards, "
    )
    few = "Intervals and verdicts hold for these 2 cards: fewer than 3 can't stand for others of their kind."
    assert few in shown.note


def test_intervals_are_over_cards_where_there_are_enough(several, two):
    one = synthetic.infer(ONE)
    shape = several.study.target_shape
    samples = several.samples("sdpa.auto", shape)
    assert [block.shape for block in samples] == [(2, synthetic.ROUNDS)] * 3
    for few in (one, two):
        assert [block.ndim for block in few.samples("sdpa.auto", shape)] == [1] * 4
    # Student's t over three cards has two degrees of freedom: 4.3 standard errors.
    median = several.median("sdpa.auto", shape)
    medians = [np.median(block) for block in samples]
    assert (median.high - median.low) / 2 == pytest.approx(4.303 * np.std(medians, ddof=1) / np.sqrt(3), rel=0.01)
    assert "can't stand for others" not in cards.cards(several).note


def test_words_hold_for_as_many_cards_as_the_intervals(several, two):
    one, unknown = synthetic.infer(ONE), synthetic.inferred()
    assert cards.scope(one) == "on this NVIDIA H200"
    assert cards.scope(unknown) == "on this NVIDIA H200"
    assert cards.scope(two) == "on these 2 NVIDIA H200s"
    assert cards.scope(several) == "on NVIDIA H200s"
    shape = several.study.target_shape
    assert "on NVIDIA H200s" in target.statement(several, shape).markdown
    assert "*Limits.* 3 cards for all NVIDIA H200s, one shape," in target.statement(several, shape).markdown
    assert "*Limits.* 2 NVIDIA H200s, one shape," in target.statement(two, shape).markdown
    assert "*Limits.* One NVIDIA H200, one shape," in target.statement(one, shape).markdown


def test_one_card_says_that_others_may_differ():
    said = cards.cards(synthetic.infer(ONE)).markdown
    assert said == (
        "*All replicates ran on one card: intervals and verdicts hold for this card, not for others of its kind.*"
    )


def test_cards_of_one_process_each_are_not_told_from_it():
    shown = cards.cards(synthetic.infer(ALONE))
    (row,) = shown.frame.to_dict("records")
    assert row["between processes of a card (%)"] is None
    assert shown.note.count("Each card ran one process") == 1
