"""Burst or sustained: loads and throttle states that were chosen."""

import numpy as np
import pandas as pd
import pytest
import synthetic
from instruments import LONG, loads, of
from synthetic import TARGET, inferred, lonely

from attnlab.infer import regimes
from attnlab.infer.lookup import NotMeasured
from attnlab.runs.schema import is_of
from attnlab.runs.tables import TABLES


def test_a_burst_is_over_when_two_slices_are_slower_and_the_card_says_so_later():
    found = regimes.loads(of(endurance=loads(sdpa_flash=100.5, sdpa_auto=112.0)))
    auto, flash = found.all
    assert (found.shape, auto.implementation, flash.implementation) == (LONG, "sdpa.auto", "sdpa.flash")
    assert auto.burst_us == 100
    assert [load.slower_pct for load in found.all] == [12, 0.5]
    assert (auto.slower_after_s, auto.throttled_after_s) == (pytest.approx(0.51), pytest.approx(0.71))
    assert np.isnan(flash.slower_after_s)
    assert (found.ended, found.lasting) == ([auto], [flash])


def test_one_slow_slice_ends_no_burst():
    rows = loads(sdpa_auto=100.0)
    rows.loc[40, "latency_us"] = 200.0
    (load,) = regimes.loads(of(endurance=rows)).lasting
    assert np.isnan(load.throttled_after_s)
    assert load.slower_pct == 0


def test_a_load_that_failed_leaves_the_others_and_alone_says_why():
    failed = pd.DataFrame([{"implementation": "sdpa.math", **LONG.axes, "why": "too long"}])
    rows = pd.concat([loads(sdpa_auto=100.0), failed], ignore_index=True)
    assert [load.implementation for load in regimes.loads(of(endurance=rows)).all] == ["sdpa.auto"]
    with pytest.raises(NotMeasured, match=r"^No load without pause was recorded: too long$"):
        regimes.loads(of(endurance=failed.reindex(columns=TABLES["endurance"].names)))
    with pytest.raises(NotMeasured, match=r"^No load without pause was recorded: the study asks for none$"):
        regimes.loads(inferred())


@pytest.mark.parametrize(
    ("throttled", "expected"),
    [(0.0, "burst"), (0.04, "burst"), (0.5, "mixed"), (0.96, "sustained"), (None, "not recorded")],
)
def test_the_regime_is_told_by_the_share_of_samples_that_were_held_back(throttled, expected):
    samples = synthetic.inferred().run.samples.copy()
    here = is_of(samples, TARGET) & (samples["clock"] == "device")
    count = int(here.sum())
    held = pd.array([None] * count if throttled is None else np.arange(count) < throttled * count, dtype="boolean")
    samples.loc[here, "throttled"] = held
    assert regimes.by_shape(of(samples=samples))[TARGET] == expected


def test_throttling_counts_all_samples():
    found = regimes.throttling(inferred())
    assert (found.samples, found.pct) == (5920, pytest.approx(2.5))  # a round of 40
    assert (found.mhz.low, found.mhz.high) == (1941, 1980)
    assert regimes.throttling(lonely()) is None
