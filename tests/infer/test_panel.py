"""The panel of clocks: readings that were chosen, so that every difference is known."""

import pandas as pd
import pytest
import synthetic
from instruments import ADDS, BESIDE_CUPTI, LONG, SHORT, at_target, of, scattered, timed
from synthetic import TARGET

from attnlab.infer.lookup import NotMeasured
from attnlab.infer.machine import panel
from attnlab.infer.machine.clocks import launch_gaps
from attnlab.infer.machine.panel import Panel, Reading
from attnlab.infer.stats import Interval

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
    assert len(out) + len(found["in"]) == 4


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


# ------------------------------------------------------------------------------------ the panel and the samples


@pytest.mark.parametrize(
    ("us", "mhz", "cycles_pct"), [(50.0, 1568, 0.0), (50.0, 1961, 25.0), (50.0, None, float("nan"))]
)
def test_the_panel_is_set_beside_the_samples_with_the_clocks_of_both(us, mhz, cycles_pct):
    rows = at_target({"device": (0.0, 0.0)}, latency_us=us, sm_clock_mhz=mhz)
    found = panel.agreement(of(panel=rows), Panel(rows))
    (one,) = found.differing
    assert (found.cases, one.case) == (1, ("sdpa.auto", TARGET))
    assert (one.samples.estimate, one.panel.estimate) == (pytest.approx(40), pytest.approx(50))
    assert (one.samples_mhz, one.panel_mhz) == (1960.5, pytest.approx(mhz or float("nan"), nan_ok=True))
    assert one.longer_pct == pytest.approx(25)
    assert one.cycles_pct == pytest.approx(cycles_pct, abs=0.1, nan_ok=True)
    assert found.cycles_pct == (None if mhz is None else Interval(*[pytest.approx(cycles_pct, abs=0.1)] * 3))
    assert found.is_mostly_slower == (mhz == 1568)


@pytest.mark.parametrize(("rows", "cases"), [(at_target({"device": (0, 0)}, latency_us=40.0), 1), (timed(), 0)])
def test_what_agrees_does_not_differ_and_what_is_in_one_of_both_is_not_compared(rows, cases):
    found = panel.agreement(of(panel=rows), Panel(rows))
    assert (found.cases, found.differing, found.is_mostly_slower) == (cases, [], False)


def test_the_panels_launch_gap_is_given_where_it_is_another():
    rows = at_target({"device": (0.0, 0.0), "eager": (9.0, 9.0)})
    assert [gap.panel for gap in launch_gaps(of(panel=rows))] == [None, Interval(*[pytest.approx(9)] * 3)]
    same = rows.assign(latency_us=rows["latency_us"] - 4.0 * (rows["method"] == "eager"))
    assert [gap.panel for gap in launch_gaps(of(panel=same))] == [None, None]
