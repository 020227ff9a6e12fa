"""What is inferred from samples that were chosen, and what flips verdicts."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import synthetic
from synthetic import CONSTANT, EIGHT_HEADS, LAUNCHES, LONG, ONE_BATCH, SHORT, TARGET, TICK_US

from attnlab.infer import cases, stats
from attnlab.infer.families import disagree, flipping_axes, opposed, tally
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.stats import Interval, Verdict
from attnlab.study.studies import Timing

CONSTANT_FULL = synthetic.Shape(2, 4, 64, 64)
EAGER = Timing(clock="eager", cache="warm")
DEVICE = Timing(clock="device", cache="warm")


@pytest.fixture(scope="module")
def inferred():
    return synthetic.inferred()


def test_median_spread_and_extremes(inferred):
    row = inferred.at(TARGET).loc["sdpa.auto"]  # 40 µs, samples 0.004 apart from 40 - 0.078 to 40 + 0.078
    assert (row["samples"], row["replicates"], row["outliers_pct"]) == (80, 2, 0)
    deviation = 0.004 * math.sqrt(synthetic.UNIFORM * 80 / 79)  # both replicates hold 0, 1, ... 39
    names = ["median_us", "mean_us", "min_us", "max_us", "std_us", "cv_pct"]
    assert row[names].tolist() == pytest.approx([40, 40, 39.922, 40.078, deviation, 100 * deviation / 40])
    assert row["min_us"] < row["low_us"] < 40 < row["high_us"] < row["max_us"]
    assert inferred.at(TARGET, EAGER).loc["sdpa.auto", "median_us"] == pytest.approx(45)  # the clock adds its gap


@pytest.mark.parametrize(("timing", "launches"), [(DEVICE, LAUNCHES), (EAGER, 1)])
def test_no_interval_is_narrower_than_the_tick_over_the_launches(inferred, timing, launches):
    row = inferred.at(CONSTANT, timing).loc["sdpa.auto"]  # its samples are all the same
    assert (row["launches"], row["launches_most"]) == (launches, launches)
    assert inferred.tick_us("sdpa.auto", CONSTANT, timing) == pytest.approx(TICK_US / launches)
    assert row["high_us"] - row["low_us"] == pytest.approx(TICK_US / launches)
    assert row["std_us"] == 0
    assert row["lag1"] == 0
    assert row["effective_n"] == 80


def test_rates_and_speed_of_light(inferred):
    row = inferred.at(TARGET).loc["sdpa.auto"]
    assert row["throughput_tflops"] == pytest.approx(33_554_432 / 40 / 1e6)
    assert row["bandwidth_gbs"] == pytest.approx(524_288 / 40 / 1e3)
    assert row["intensity"] == pytest.approx(64)
    assert row["floor_us"] == pytest.approx(16.777216)
    assert row["speed_of_light_pct"] == pytest.approx(41.94304)
    assert (row["limit"], row["throughput_mark"], row["bandwidth_mark"]) == ("matrix product", "", "")
    short = inferred.at(SHORT).loc["sdpa.flash"]
    assert (short["limit"], short["throughput_mark"], short["bandwidth_mark"][0]) == ("matrix product", "", "†")
    assert short["speed_of_light_pct"] == pytest.approx(100 * 1.048576 / 1.2)


def test_dependence_agrees_with_its_definition(inferred):
    row = inferred.at(TARGET).loc["sdpa.auto"]
    centred = synthetic.latencies_us("sdpa.auto", TARGET, "device") - 40
    lag1 = (centred[1:] * centred[:-1]).sum() / (centred**2).sum()
    assert row["lag1"] == pytest.approx(lag1)
    assert row["effective_n"] == pytest.approx(80 * (1 - lag1) / (1 + lag1))


def test_quantiles_are_those_of_scipy_where_there_are_enough_samples(inferred):
    row = inferred.at(TARGET).loc["sdpa.auto"]
    pooled = np.tile(synthetic.latencies_us("sdpa.auto", TARGET, "device"), 2)
    low, high = scipy.stats.quantile_test(pooled, p=0.95).confidence_interval()
    assert row[["p95_us", "p95_low_us", "p95_high_us"]].tolist() == pytest.approx(
        [np.quantile(pooled, 0.95), low, high]
    )
    assert inferred.table[["p99_us", "p99_low_us", "p99_high_us"]].isna().all(axis=None)


def test_an_outlier_is_labelled_and_kept():
    samples = [np.array([10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 17.0, 18.0, 27.0])]
    row = cases.infer_case(samples, tick_us=0)  # quartiles 12.25 and 16.75: the fences are 5.5 and 23.5
    assert row["outliers_pct"] == 10
    assert row["samples"] == 10
    assert row["max_us"] == 27


def test_what_the_samples_were_taken_under(inferred):
    row = inferred.at(TARGET).loc["sdpa.auto"]
    assert row["throttled_pct"] == pytest.approx(2.5)  # one round of forty
    assert row["sm_clock_mhz"] == 1960.5  # 1980, 1979, ... 1941


@pytest.mark.parametrize(
    ("name", "shape"),
    [("sdpa.math", CONSTANT), ("sdpa.math", EIGHT_HEADS), ("sdpa.math", LONG), ("sdpa.cudnn", SHORT)],
)
def test_what_did_not_pass_or_was_not_timed_has_no_row(inferred, name, shape):
    assert name not in inferred.at(shape).index
    assert name not in inferred.at(shape, EAGER).index


@pytest.mark.parametrize("status", ["failed after timing", "out of memory after timing", "skipped after timing"])
def test_a_case_that_did_not_last_in_one_replicate_has_samples_and_yet_no_latency(status):
    of = synthetic.infer(synthetic.Recipe(study=RECIPE.study, fates={("sdpa.auto", CONSTANT_FULL): (status, "after")}))
    raw = of.run.samples[of.run.samples["seq_len"] == 64]
    assert len(raw) == 80
    assert of.samples("sdpa.auto", CONSTANT_FULL) == []
    assert of.at(CONSTANT_FULL).empty
    assert [len(replicate) for replicate in of.samples("sdpa.auto", TARGET)] == [40, 40]


def test_samples_of_a_shape_that_was_cut_off_before_its_last_checks_do_not_count():
    ordinary = synthetic.inferred()
    cases = ordinary.run.cases
    cut = cases[~((cases["replicate"] == 1) & (cases["seq_len"] == 256))]
    of = synthetic.changed(ordinary, cases=cut)
    assert [len(replicate) for replicate in of.samples("sdpa.auto", LONG)] == [40]
    assert [len(replicate) for replicate in of.samples("sdpa.auto", TARGET)] == [40, 40]


def test_a_run_of_which_nothing_passed_has_a_table_without_rows():
    ordinary = synthetic.inferred()
    table = cases.infer(replace(ordinary.run, cases=ordinary.run.cases.assign(status="failed")))
    assert table.empty
    assert list(table.columns) == list(ordinary.table.columns) == cases.COLUMNS
    of = synthetic.changed(ordinary, table)
    assert of.headline == DEVICE
    assert of.held_back() == []


def test_a_latency_that_is_not_there_is_named(inferred):
    with pytest.raises(NotMeasured, match=r"^`sdpa.math` has no latency at \(2, 4, 256, 64\) float16, device"):
        inferred.row("sdpa.math", LONG)
    with pytest.raises(NotMeasured, match=r"`sdpa\.cudnn` has no latency"):
        inferred.compare("sdpa.cudnn", SHORT)
    with pytest.raises(NotMeasured, match=r"Nothing but `sdpa\.auto` has a latency"):
        synthetic.lonely().candidates(TARGET)
    assert (inferred.fastest(TARGET), synthetic.lonely().fastest(TARGET)) == ("sdpa.flash", "sdpa.auto")
    with pytest.raises(NotMeasured, match="Nothing has a latency"):
        inferred.fastest(synthetic.Shape(1, 1, 1, 1))
    with pytest.raises(NotMeasured, match="has no sweep “batch”"):
        synthetic.lonely().sweep("batch")


def test_p_values_are_adjusted_over_the_candidates_of_a_shape(inferred):
    names = inferred.candidates(ONE_BATCH)
    baseline = inferred.samples("sdpa.auto", ONE_BATCH)
    alone = [stats.difference_pvalue(baseline, inferred.samples(name, ONE_BATCH), paired=True) for name in names]
    told = [inferred.compare(name, ONE_BATCH).pvalue for name in names]
    assert names == ["sdpa.flash", "sdpa.cudnn", "sdpa.efficient", "sdpa.math"]
    assert told == pytest.approx(list(stats.holm(alone)))
    assert told[0] > alone[0]


def test_shapes_held_back_are_those_with_more_than_half_of_their_samples(inferred):
    table = inferred.table.assign(throttled_pct=np.where(inferred.table["seq_len"] == 256, 51.0, 50.0))
    assert synthetic.changed(inferred, table).held_back() == [LONG]


def test_rows_stand_in_the_order_of_the_study(inferred):
    study, first = inferred.study, inferred.under(inferred.headline)
    there = list(first[["implementation", *cases.AXES]].itertuples(index=False, name=None))
    expected = [(name, *shape.axes.values()) for shape in study.shapes for name in study.implementations]
    assert there == [key for key in expected if key in set(there)]
    assert len(there) == 8 * 5 - 4
    assert (inferred.timings, inferred.headline) == ([DEVICE, EAGER], DEVICE)
    assert (synthetic.lonely().timings, synthetic.lonely().headline) == ([EAGER], EAGER)


def test_samples_come_by_replicate_in_the_order_of_the_rounds(inferred):
    expected = synthetic.latencies_us("sdpa.flash", TARGET, "eager")
    np.testing.assert_array_equal(inferred.samples("sdpa.flash", TARGET, EAGER), [expected, expected])


@pytest.mark.parametrize(
    ("name", "shape", "decision", "claimable", "speedup"),
    [
        ("sdpa.flash", TARGET, "faster", True, 1.25),
        ("sdpa.cudnn", TARGET, "equivalent", False, 1 / 1.005),
        ("sdpa.efficient", TARGET, "slower", False, 1 / 1.5),
        ("sdpa.math", TARGET, "slower", False, 0.25),
        ("sdpa.efficient", ONE_BATCH, "inconclusive", False, 20 / 20.6),
    ],
)
def test_verdicts(inferred, name, shape, decision, claimable, speedup):
    verdict = inferred.compare(name, shape)
    assert (verdict.decision, verdict.claimable) == (decision, claimable)
    assert verdict.speedup.estimate == pytest.approx(speedup)
    assert verdict.speedup.low < verdict.speedup.estimate < verdict.speedup.high


def test_a_verdict_under_another_timing_is_about_its_samples(inferred):
    assert inferred.compare("sdpa.flash", TARGET, EAGER).speedup.estimate == pytest.approx(45 / 37)


@pytest.fixture(scope="module")
def controlled():
    """The baseline takes as long when it is measured again."""
    return synthetic.infer(synthetic.Recipe(control_pace=1.0))


@pytest.fixture(scope="module")
def biased():
    """The baseline takes 1.3 times as long when it is measured again: that much, this machine makes of nothing."""
    return synthetic.infer(synthetic.Recipe(control_pace=1.3))


def test_controls_have_samples_and_no_row(controlled, inferred):
    pd.testing.assert_frame_equal(controlled.table, inferred.table)
    assert [len(replicate) for replicate in controlled.samples("control.sdpa.auto", TARGET)] == [40, 40]
    assert "control.sdpa.auto" not in controlled.candidates(TARGET)
    assert len(controlled.controlled()) == 16  # eight shapes under two timings


def test_a_control_is_judged_like_a_candidate(controlled):
    sides = [controlled.samples(name, TARGET) for name in ("sdpa.auto", "control.sdpa.auto")]
    ours = controlled.control(TARGET)
    assert ours == stats.verdict(*sides, tick=TICK_US / LAUNCHES, paired=True)
    assert (ours.decision, ours.speedup.estimate) == ("equivalent", 1)
    eager = controlled.control(TARGET, EAGER)
    assert eager.speedup.high - eager.speedup.low > 0
    expected = stats.smallest_effect(*sides, tick=TICK_US / LAUNCHES, paired=True)
    assert controlled.smallest_effect(TARGET) == expected


def test_false_positives_are_counted_over_shapes_and_timings(controlled, biased):
    ours = controlled.false_positives
    assert (ours.wrong, ours.apart, ours.comparisons, ours.rate.estimate, ours.rate.low) == ([], 0, 16, 0, 0)
    # None of n: the upper bound is 1 - 0.025^(1/n).
    assert ours.rate.high == pytest.approx(1 - 0.025 ** (1 / 16))
    theirs = biased.false_positives
    assert (len(theirs.wrong), theirs.apart, theirs.rate.high) == (16, 16, 1)
    faster = synthetic.infer(synthetic.Recipe(study=RECIPE.study, fates={}, control_pace=0.8)).false_positives
    assert (len(faster.wrong), faster.apart) == (2, 2)


def test_no_verdict_claims_less_than_a_control_shows(controlled, inferred, biased):
    names = ["sdpa.flash", "sdpa.cudnn", "sdpa.efficient", "sdpa.math"]
    for of in (inferred, controlled):
        decisions = [of.compare(name, TARGET).decision for name in names]
        assert decisions == ["faster", "equivalent", "slower", "slower"]
    assert biased.control(TARGET).decision == "slower"
    assert 0.3 < biased.smallest_effect(TARGET) < 0.31
    # 1.25 times as fast is less than what nothing made, and so is the margin of what is equivalent; 1.5 times is more.
    decisions = [biased.compare(name, TARGET).decision for name in names]
    assert decisions == ["inconclusive", "inconclusive", "slower", "slower"]
    assert biased.compare("sdpa.flash", TARGET).speedup == inferred.compare("sdpa.flash", TARGET).speedup


def test_a_run_without_controls_says_so_and_goes_on(inferred):
    assert not inferred.is_controlled(TARGET)
    assert inferred.controlled() == []
    missing = r"^`sdpa.auto` was not measured against itself at \(2, 4, 128, 64\) float16, device clock, warm cache$"
    for ask in (inferred.control, inferred.smallest_effect):
        with pytest.raises(NotMeasured, match=missing):
            ask(TARGET)
    with pytest.raises(NotMeasured, match="did not measure its baseline against itself"):
        _ = inferred.false_positives


def test_a_control_that_did_not_pass_controls_nothing():
    fates = {("control.sdpa.auto", CONSTANT_FULL): ("failed", "before timing, call: error")}
    of = synthetic.infer(synthetic.Recipe(study=RECIPE.study, fates=fates, control_pace=1.0))
    assert [shape for shape, _ in of.controlled()] == [TARGET]
    assert not of.at(CONSTANT_FULL).empty


RECIPE = synthetic.Recipe(
    study={"implementations": ["sdpa.auto"], "timings": [{"clock": "eager", "cache": "warm"}]}
    | {"sweeps": {"seq_len": [synthetic.AXES | {"seq_len": [64, 128]}]}}
)


COLD, EAGER_COLD = (Timing(clock=clock, cache="cold") for clock in ("device", "eager"))


def verdict(decision: str, claimable: bool = False) -> Verdict:
    return Verdict(decision, claimable, Interval(1.0, 1.0, 1.0), 0.0, 0.0, 1.0)


FASTER, SLOWER, EQUIVALENT = map(verdict, ("faster", "slower", "equivalent"))


@pytest.mark.parametrize(
    ("judged", "axes"),
    [
        ([{DEVICE: FASTER, EAGER: SLOWER}], ["clock"]),
        ([{DEVICE: SLOWER, COLD: FASTER}], ["cache"]),
        ([{DEVICE: FASTER, EAGER_COLD: SLOWER}], ["clock", "cache"]),
        ([{DEVICE: FASTER, EAGER: SLOWER, EAGER_COLD: SLOWER}], ["clock"]),
        ([{DEVICE: FASTER, EAGER: SLOWER}, {DEVICE: FASTER, COLD: SLOWER}], ["clock", "cache"]),
        ([{DEVICE: FASTER}, {EAGER: SLOWER}], []),  # at another shape
        ([{DEVICE: FASTER, EAGER: EQUIVALENT}], []),
        ([], []),
    ],
)
def test_the_axes_that_flip_a_verdict_are_those_that_do_so_alone(judged, axes):
    assert flipping_axes(judged) == axes


def test_verdicts_are_opposed_or_disagree():
    assert opposed([SLOWER, FASTER, EQUIVALENT])
    assert not opposed([FASTER, FASTER])
    assert not opposed([SLOWER, EQUIVALENT])
    assert disagree({DEVICE: FASTER, EAGER: EQUIVALENT})
    assert not disagree({DEVICE: FASTER, EAGER: FASTER})


def test_claimable_verdicts_are_counted_among_the_faster():
    counts = tally([FASTER, verdict("faster", claimable=True), SLOWER])
    assert (counts["faster"], counts["claimable"], counts["slower"], counts["equivalent"]) == (2, 1, 1, 0)
