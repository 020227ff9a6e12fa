"""Cards, clocks and replicates of runs whose paces were chosen."""

from dataclasses import replace

import numpy as np
import pytest
import synthetic
from synthetic import Recipe, inferred, lonely

from attnlab.infer.lookup import NotMeasured
from attnlab.infer.machine import cards
from attnlab.infer.machine.clocks import farthest, launch_gaps
from attnlab.infer.machine.effort import effort
from attnlab.infer.results import Results

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


def test_cards_processes_and_samples_have_their_parts(two):
    (found,) = cards.deviations(two)
    # Each card's two processes lie 0.2 % apart, and the cards 2.2 %: these variances are known to their last digit.
    logs = np.log([[1.01, 1.012], [0.99, 0.988]])
    within = np.var(np.log1p(synthetic.STEP * (np.arange(synthetic.ROUNDS) - (synthetic.ROUNDS - 1) / 2)), ddof=1)
    process = logs.var(axis=1, ddof=1).mean() - within / synthetic.ROUNDS
    between = logs.mean(axis=1).var(ddof=1) - logs.var(axis=1, ddof=1).mean() / 2
    assert (found.timing, found.cases, cards.count(two)) == (two.headline, 5, 2)
    expected = 100 * np.sqrt([between, process, within])
    assert [found.card, found.process, found.within] == pytest.approx(expected, rel=1e-3)


def test_cards_of_one_process_each_are_not_told_from_it_and_without_cards_there_is_no_deviation():
    (found,) = cards.deviations(synthetic.infer(ALONE))
    assert np.isnan(found.process)
    with pytest.raises(NotMeasured, match=r"^No case was measured on several cards yet$"):
        cards.deviations(inferred())


def test_intervals_are_over_cards_where_there_are_enough(two):
    several = synthetic.infer(SEVERAL)
    shape = several.study.target_shape
    samples = several.samples("sdpa.auto", shape)
    assert [block.shape for block in samples] == [(2, synthetic.ROUNDS)] * 3
    for few in (synthetic.infer(ONE), two):
        assert [block.ndim for block in few.samples("sdpa.auto", shape)] == [1] * 4
    # Student's t over three cards has two degrees of freedom: 4.3 standard errors.
    median = several.median("sdpa.auto", shape)
    medians = [np.median(block) for block in samples]
    assert (median.high - median.low) / 2 == pytest.approx(4.303 * np.std(medians, ddof=1) / np.sqrt(3), rel=0.01)


def test_the_launch_gap_is_the_difference_of_the_clocks():
    found = launch_gaps(inferred())
    assert [(gap.shape, gap.device_us) for gap in found] == [
        (synthetic.SHORT, pytest.approx(2.5)),
        (synthetic.TARGET, pytest.approx(40)),
    ]
    # The replicates of the synthetic run are alike.
    assert all(gap.gap.estimate == pytest.approx(5) and gap.gap.low <= 5 <= gap.gap.high for gap in found)
    assert [gap.pct for gap in found] == pytest.approx([200, 12.5])
    assert [gap.is_mostly_host for gap in found] == [True, False]
    with pytest.raises(NotMeasured, match=r"is not known; the run has eager clock, warm cache$"):
        launch_gaps(lonely())


def test_the_largest_change_by_a_timing_may_be_downwards():
    (found,) = farthest(inferred(), "seq_len")
    assert (str(found.timing), found.implementation, found.size) == ("eager warm", "sdpa.flash", 32)
    table = inferred().table.copy()
    eager = (table["clock"] == "eager") & (table["implementation"] == "sdpa.auto")
    table.loc[eager, "median_us"] /= 1000
    (found,) = farthest(Results(inferred().run, table), "seq_len")
    assert (found.implementation, found.size) == ("sdpa.auto", 256)
    assert found.ratio == pytest.approx(165 / 160 / 1000)
    with pytest.raises(NotMeasured, match=r"^No case was timed in two ways"):
        farthest(lonely(), "seq_len")
    with pytest.raises(NotMeasured, match=r"has no sweep “batch”$"):
        farthest(lonely(), "batch")


def test_replicates_and_processes_are_both_counted():
    run = inferred().run
    whole = effort(inferred())
    assert (whole.replicates, whole.asked, whole.processes, whole.divided) == (2, 2, 2, 0)
    assert whole.seconds == pytest.approx(0.78)
    late = (run.samples["replicate"] == 1) & (run.samples["seq_len"] == 256)
    again = replace(run, samples=run.samples.assign(process=run.samples["process"].mask(late, "p2")))
    found = effort(Results(again, inferred().table))
    assert (found.replicates, found.processes, found.divided) == (2, 3, 1)
    closed = replace(run, manifest=run.manifest | {"closed_early": {"replicates": 1, "shapes": 9, "planned": 18}})
    found = effort(Results(closed, inferred().table))
    assert (found.replicates, found.asked) == (1, 2)
