"""The panel of clocks: readings that were chosen, so that every difference is known."""

import pandas as pd
import pytest
import synthetic
from instruments import ADDS, BESIDE_CUPTI, LONG, SHORT, of, scattered, timed

from attnlab.infer.lookup import NotMeasured
from attnlab.infer.machine import panel
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
