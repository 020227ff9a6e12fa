"""The machine of a run: cards, clocks and replicates of chosen paces, and a panel and a canary of chosen readings."""

import numpy as np
import pandas as pd
import pytest
import synthetic
from instruments import ADDS, BESIDE_CUPTI, LARGE, LONG, SHORT, of, scattered, seen, timed, with_l2
from synthetic import Recipe, changed, inferred, lonely

from attnlab.infer.lookup import NotMeasured
from attnlab.infer.machine import cards, panel
from attnlab.infer.machine.clocks import farthest, launch_gaps
from attnlab.infer.machine.effort import effort
from attnlab.infer.machine.panel import Panel, Reading
from attnlab.infer.machine.residency import residency
from attnlab.infer.stats import Interval
from attnlab.study.shapes import Shape

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


def test_intervals_hold_for_as_many_cards_as_each_shape_was_timed_on(two):
    several = synthetic.infer(Recipe(study={"replicates": 6}, cards=SEVERAL.cards))
    samples = several.run.samples
    elsewhere = samples["clock"].eq("eager") & samples["replicate"].isin([2, 5])
    assert (several.over_cards, two.over_cards) == ([3], [])
    assert changed(several, samples=samples[~elsewhere]).over_cards == []
    named = several.run.processes.assign(card=list("abcdbc"))
    assert changed(several, samples=samples[~elsewhere], processes=named).over_cards == [3, 4]


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
    (found,) = farthest(changed(inferred(), table), "seq_len")
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
    again = run.samples.assign(process=run.samples["process"].mask(late, "p2"))
    found = effort(changed(inferred(), samples=again))
    assert (found.replicates, found.processes, found.divided) == (2, 3, 1)
    shape = next(shape for shape in inferred().study.shapes if shape.seq_len == 256)
    found = effort(changed(inferred(), samples=again), shape)  # whose samples come from two of the three
    assert (found.replicates, found.processes, found.divided) == (2, 2, 0)
    closed = {"closed_early": {"replicates": 1, "shapes": 9, "planned": 18}}
    found = effort(changed(inferred(), manifest=closed))
    assert (found.replicates, found.asked) == (1, 2)


OF_LENGTH = {"short": SHORT, "long": LONG}


def test_cases_stand_in_the_order_of_our_clock():
    cases = Panel(timed()).cases
    assert cases == [("sdpa.flash", SHORT), ("sdpa.auto", SHORT), ("sdpa.auto", LONG), ("sdpa.flash", LONG)]


def test_what_took_turns_is_compared_round_by_round_so_that_drift_cancels():
    reading = Panel(timed(drift=0.05)).reading(("sdpa.auto", LONG), "cupti.graph")
    assert reading.gap.estimate == pytest.approx(-2.0)
    assert reading.gap.high - reading.gap.low < 1e-9
    assert reading.median.high - reading.median.low > 100
    assert reading.gap_pct == pytest.approx(-0.2)


def test_what_ran_apart_is_compared_with_our_median_and_has_the_interval_that_was_seen():
    reading = Panel(timed()).reading(("sdpa.auto", LONG), "ncu")
    assert reading.gap == Interval(*[pytest.approx(-100.0)] * 3)


def test_cold_methods_are_held_to_the_cold_clock():
    reading = Panel(timed()).reading(("sdpa.auto", SHORT), "triton.do_bench")
    assert reading.ours_us == pytest.approx(14.0)
    assert reading.gap.estimate == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("us", "gap", "near"), [(19, 0.5, True), (19, -0.51, False), (1000, 10, True), (21, 0.3, False)]
)
def test_near_is_half_a_microsecond_below_20_and_a_percent_above(us, gap, near):
    assert Reading(Interval(us, us, us), Interval(gap, gap, gap), us).near is near


@pytest.mark.parametrize(("adds", "outside"), [("", ""), ("near", ""), ("short", "short"), ("long", "long")])
def test_a_clock_outside_of_cuptis_bracket_is_found(adds, outside):
    found = panel.brackets(Panel(timed(ADDS | BESIDE_CUPTI.get(adds, {}))))
    out = found.get("out", [])
    assert {shape for _, shape in out} == ({OF_LENGTH[outside]} if outside else set())
    assert ("near" in found) is (adds == "near")
    assert sum(map(len, found.values())) == 4


def test_where_rounds_scatter_too_much_it_can_not_be_told():
    assert panel.brackets(Panel(scattered()))["unsure"] == [("sdpa.auto", LONG)]


def test_without_cupti_there_is_no_bracket():
    assert panel.brackets(Panel(timed({"device": (0, 0), "cupti.graph": (0, 0)}))) == {}


def test_what_was_not_used_has_its_reason():
    assert Panel(timed()).why("nvbench.batch") == "not installed: it"
    assert Panel(timed()).why("ncu") == ""


def test_a_panel_that_timed_nothing_says_why():
    with pytest.raises(NotMeasured, match=r"^No panel of clocks was recorded: the study asks for none$"):
        panel.of(synthetic.inferred())
    refused = timed().assign(latency_us=pd.array([None] * len(timed()), dtype="Float64"), why="no CUDA here")
    with pytest.raises(NotMeasured, match=r"^The panel of clocks timed nothing: no CUDA here$"):
        panel.of(of(panel=refused))


def test_a_cold_call_reads_everything_and_a_warm_one_nothing():
    found = residency(of(residency=seen()))
    assert found.cold_reads == pytest.approx([100] * 3)
    assert found.warm_reads == pytest.approx([1])  # the shape that takes at most a third of the L2
    assert found.target_reads == pytest.approx(1)
    assert found.is_cold
    assert found.is_warm
    other = residency(of(residency=seen(cold_pct=64, warm_pct=20)))
    assert (other.is_cold, other.is_warm) == (False, False)
    # The smaller two have too few lines for the canary, and the third doesn't stay in the L2.
    assert (set(found.cold_hits), found.clear_cases, found.warm_hits) == ({0.5}, 1, {})


def test_what_the_canary_found_is_given_by_clock():
    rows = seen(warm_hits=99.5)
    rows.loc[(rows["clock"] == "eager") & (rows["cache"] == "warm"), "value"] -= 7
    found = residency(with_l2(of(residency=rows), 4 * LARGE.bytes))
    assert found.warm_hits == pytest.approx({"device": 99.5, "eager": 92.5})


def test_the_canary_is_heard_only_at_full_speed_and_where_no_line_is_read_twice():
    slow = timed().assign(sm_clock_mhz=lambda frame: np.where(frame["seq_len"] == 4096, 1700, 1980))
    big = Shape(8, 8, 512, 64)
    assert residency(of(residency=seen(), panel=slow)).clear_cases == 0
    assert residency(of(residency=seen(shapes=[big]), panel=slow)).clear_cases == 1


def test_another_implementation_counts_only_where_the_cache_is_cold():
    found = residency(of(residency=seen(warm_pct=50).assign(implementation="sdpa.flash")))
    assert (len(found.cold_reads), found.warm_reads, found.target_reads) == (3, [], None)


def test_where_neither_measurement_worked_the_reasons_are_given():
    rows = seen().assign(value=np.nan, why="not installed: CuPy")
    with pytest.raises(NotMeasured, match=r"^What the L2 held is not known: not installed: CuPy$"):
        residency(of(residency=rows))
    with pytest.raises(NotMeasured, match=r"^What the L2 held was not recorded: the study asks for none"):
        residency(synthetic.inferred())
