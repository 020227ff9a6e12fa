"""What is shown of cards, where a run measured on several, and which cards its words hold for."""

import numpy as np
import pytest
import synthetic
from synthetic import Recipe

from attnlab.exhibits import formats
from attnlab.exhibits.environment import cards
from attnlab.exhibits.verdicts import target

ONE = Recipe(study=synthetic.AT_TARGET | {"replicates": 4}, cards=tuple((card, 1.0) for card in "aaaa"))
SEVERAL = Recipe(
    study=synthetic.AT_TARGET | {"replicates": 4},
    cards=(("a", 1.01), ("b", 0.99), ("a", 1.012), ("b", 0.988)),
)
ALONE = Recipe(study=synthetic.AT_TARGET, cards=(("a", 1.01), ("b", 0.99)))


@pytest.fixture(scope="module")
def several():
    return synthetic.infer(SEVERAL)


def test_cards_processes_and_samples_have_their_parts(several):
    shown = cards.cards(several)
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
        f"Under {several.headline.words}, the standard deviation of a latency is {between} between cards, "
    )


def test_intervals_are_over_cards(several):
    one = synthetic.infer(ONE)
    shape = several.study.target_shape
    samples = several.samples("sdpa.auto", shape)
    assert [block.shape for block in samples] == [(2, synthetic.ROUNDS)] * 2
    assert [block.ndim for block in one.samples("sdpa.auto", shape)] == [1] * 4
    # Student's t over two cards has one degree of freedom: 12.7 standard errors.
    median = several.median("sdpa.auto", shape)
    medians = [np.median(block) for block in samples]
    assert (median.high - median.low) / 2 == pytest.approx(12.706 * np.std(medians, ddof=1) / np.sqrt(2), rel=0.01)


def test_words_hold_for_as_many_cards_as_the_intervals(several):
    one, unknown = synthetic.infer(ONE), synthetic.inferred()
    assert cards.scope(one) == "on this NVIDIA H200"
    assert cards.scope(unknown) == "on this NVIDIA H200"
    assert cards.scope(several) == "on NVIDIA H200s"
    shape = several.study.target_shape
    assert "on NVIDIA H200s" in target.statement(several, shape).markdown
    assert "*Limits.* 2 cards for all NVIDIA H200s, one shape," in target.statement(several, shape).markdown
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
