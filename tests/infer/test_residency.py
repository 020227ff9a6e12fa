"""What the L2 held, of what Nsight Compute and the canary were made to see."""

import numpy as np
import pytest
import synthetic
from instruments import LARGE, of, seen, timed, with_l2

from attnlab.infer.lookup import NotMeasured
from attnlab.infer.machine.residency import residency
from attnlab.study.shapes import Shape


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
