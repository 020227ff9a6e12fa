"""What is inferred from samples that were chosen."""

import math

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import synthetic
from synthetic import CONSTANT, EIGHT_HEADS, LAUNCHES, LONG, ONE_BATCH, SHORT, TARGET, TICK_US

from attnlab import runs
from attnlab.analyse import results
from attnlab.studies import Timing

EAGER = Timing(clock="eager", cache="warm")
DEVICE = Timing(clock="device", cache="warm")


@pytest.fixture(scope="module")
def inferred():
    return synthetic.inferred()


def test_median_mean_and_extremes(inferred):
    row = inferred.at(TARGET).loc["sdpa.auto"]  # 40 µs, samples 0.004 apart from 40 - 0.078 to 40 + 0.078
    assert row["samples"] == 80
    assert row["replicates"] == 2
    assert row["median_us"] == pytest.approx(40)
    assert row["mean_us"] == pytest.approx(40)
    assert row["min_us"] == pytest.approx(39.922)
    assert row["max_us"] == pytest.approx(40.078)
    assert row["outliers_pct"] == 0


def test_deviation_and_variation(inferred):
    row = inferred.at(TARGET).loc["sdpa.auto"]
    deviation = 0.004 * math.sqrt(synthetic.UNIFORM * 80 / 79)  # both replicates hold 0, 1, ... 39
    assert row["std_us"] == pytest.approx(deviation)
    assert row["cv_pct"] == pytest.approx(100 * deviation / 40)


def test_the_eager_clock_adds_its_gap(inferred):
    assert inferred.at(TARGET, EAGER).loc["sdpa.auto", "median_us"] == pytest.approx(45)


def test_an_interval_holds_its_estimate_and_is_narrower_than_the_samples(inferred):
    row = inferred.at(TARGET).loc["sdpa.auto"]
    assert row["min_us"] < row["low_us"] < 40 < row["high_us"] < row["max_us"]


@pytest.mark.parametrize(("timing", "launches"), [(DEVICE, LAUNCHES), (EAGER, 1)])
def test_no_interval_is_narrower_than_the_tick_over_the_launches(inferred, timing, launches):
    row = inferred.at(CONSTANT, timing).loc["sdpa.auto"]  # its samples are all the same
    assert row["launches"] == launches
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
    assert (row["limit"], row["mark"]) == ("matrix product", "")
    short = inferred.at(SHORT).loc["sdpa.flash"]
    assert (short["limit"], short["mark"]) == ("memory", "L2")
    assert short["speed_of_light_pct"] == pytest.approx(100 * 1.31072 / 1.2)


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
    assert row["p95_us"] == pytest.approx(np.quantile(pooled, 0.95))
    assert (row["p95_low_us"], row["p95_high_us"]) == pytest.approx((low, high))


def test_a_quantile_without_enough_samples_is_missing(inferred):
    assert inferred.table[["p99_us", "p99_low_us", "p99_high_us"]].isna().all(axis=None)


def test_an_outlier_is_labelled_and_kept():
    samples = [np.array([10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 17.0, 18.0, 27.0])]
    row = results.infer_case(samples, tick_us=0)  # quartiles 12.25 and 16.75: the fences are 5.5 and 23.5
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


def test_a_case_that_failed_in_one_replicate_has_samples_and_yet_no_row(inferred):
    assert [len(replicate) for replicate in inferred.samples("sdpa.math", EIGHT_HEADS)] == [40, 40]


def test_rows_stand_in_the_order_of_the_study(inferred):
    study, first = inferred.study, inferred.under(inferred.headline)
    case = ["implementation", *results.AXES]
    expected = [(name, *shape.axes.values()) for shape in study.shapes for name in study.implementations]
    there = list(first[case].itertuples(index=False, name=None))
    assert there == [key for key in expected if key in set(there)]
    assert len(there) == 8 * 5 - 4


def test_timings_are_those_of_the_study(inferred):
    assert inferred.timings == [DEVICE, EAGER]
    assert inferred.headline == DEVICE
    assert synthetic.lonely().timings == [EAGER]
    assert synthetic.lonely().headline == EAGER


def test_samples_come_by_replicate_in_the_order_of_the_rounds(inferred):
    expected = synthetic.latencies_us("sdpa.flash", TARGET, "eager")
    replicates = inferred.samples("sdpa.flash", TARGET, EAGER)
    assert len(replicates) == 2
    for replicate in replicates:
        np.testing.assert_array_equal(replicate, expected)


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


def test_the_fastest_has_the_smallest_median(inferred):
    assert inferred.fastest(TARGET) == "sdpa.flash"
    assert synthetic.lonely().fastest(TARGET) == "sdpa.auto"


def test_an_inference_is_kept_and_taken_again(monkeypatch):
    with synthetic.folders() as folder:
        synthetic.write("kept", RECIPE)
        run = runs.load("kept")
        table = results.of(run).table
        (kept,) = (folder / "reports" / "kept").glob("inference-*.parquet")
        monkeypatch.setattr(results, "infer", None)
        pd.testing.assert_frame_equal(results.of(run).table, table)
        changed = runs.Run("kept", run.manifest | {"seal": "another"}, run.samples, *[run.checks] * 3)
        monkeypatch.setattr(results, "infer", lambda run: table.head(1))
        assert len(results.of(changed).table) == 1
        (replaced,) = (folder / "reports" / "kept").glob("inference-*.parquet")
        assert replaced != kept


def test_an_inference_from_a_run_not_complete_is_not_kept(monkeypatch):
    monkeypatch.setattr(results, "infer", lambda run: run.samples)
    with synthetic.folders() as folder:
        synthetic.write("cut", synthetic.Recipe(study=RECIPE.study, shapes=1))
        assert not runs.load("cut").complete
        assert len(results.of(runs.load("cut")).table) == 40
        assert not (folder / "reports").exists()


RECIPE = synthetic.Recipe(
    study={"implementations": ["sdpa.auto"], "timings": [{"clock": "eager", "cache": "warm"}]}
    | {"sweeps": {"seq_len": [synthetic.AXES | {"seq_len": [64, 128]}]}}
)
