"""Frames of runs against earlier inference in golden/, frames of users, and errors."""

import math
from dataclasses import astuple, replace

import numpy as np
import pandas as pd
import pytest
import synthetic
from conftest import told

from attnlab import cache, frames, roofline, stats
from attnlab.base import paths
from attnlab.frames import AXES, TIMING
from attnlab.study.drawn import draw
from attnlab.study.shapes import Shape

RUNS = {"h200-2026-11-28-main": 0, "h100-2026-11-26": 1, "h200-2026-11-28-decode": 0, "cpu-2026-11-29": 0}
"""The runs of golden/, and how many of the decisions below differ from it.

The inference at 81cd18ee wrote golden/: some places of each run, other ones of the H200 than of the H100. Its intervals
over replicates were at least half as long as a bootstrap's. Without that, intervals are shorter for 2 % of the medians
and 6 % of the speedups, and data/reference/calibration.csv shows that they still cover. Each decision that differs was
`inconclusive` and is `equivalent`.
"""
GOLDEN = paths.ROOT / "tests" / "golden"


@pytest.fixture(scope="module", params=RUNS)
def recorded(request):
    """The name of a run, and its cases and comparisons at the places in golden/, each joined with the golden ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNLAB_DATA", str(paths.ROOT / "data"))
        patch.setattr(cache, "_key", lambda: b"")  # no frame is cached in the project's data folder
        run = frames.load(request.param)
    golden = [pd.read_parquet(GOLDEN / f"{request.param}.{table}.parquet") for table in ("cases", "comparisons")]
    samples = run.samples.merge(golden[0][[*AXES, *TIMING]].drop_duplicates()).assign(run="")  # caches no frame
    cases = roofline.add_floor(roofline.add_work(frames.summarize(samples)), run.ceilings)
    baseline = run.manifest["study"]["baseline"]
    verdicts = pd.concat([frames.compare(samples, baseline), frames.control(samples, baseline)])
    pairs = []
    for ours, theirs, name in zip((cases, verdicts), golden, ("implementation", "candidate"), strict=True):
        pairs.append(ours.merge(theirs, on=[name, *AXES, *TIMING], suffixes=("", "_golden"), validate="1:1"))
        assert len(pairs[-1]) == len(ours) == len(theirs) > 0
    return request.param, *pairs


def test_medians_work_and_floors_are_those_of_before(recorded):
    _, cases, _ = recorded
    for column in ("median_us", "samples", "flops", "bytes", "limit"):
        unknown = cases[column].eq("not known") & cases[f"{column}_golden"].eq("n/a")
        assert (cases[column].eq(cases[f"{column}_golden"]) | unknown).all(), column
    for column in ("p95_us", "lag1", "floor_us"):
        np.testing.assert_allclose(cases[column], cases[f"{column}_golden"], rtol=1e-12, atol=1e-12)


def test_intervals_are_those_of_before_or_shorter(recorded):
    _, *pairs = recorded
    for pair, low, high in zip(pairs, ("low_us", "low"), ("high_us", "high"), strict=True):
        width, before = (np.log(pair[f"{high}{end}"] / pair[f"{low}{end}"]) for end in ("", "_golden"))
        assert (width <= before * (1 + 1e-9)).all()
        assert (width >= before * (1 - 1e-9)).mean() > 0.93


def test_speedups_p_values_and_decisions_are_those_of_before(recorded):
    name, _, verdicts = recorded
    for column in ("speedup", "delta", "claimable"):
        assert verdicts[column].eq(verdicts[f"{column}_golden"]).all(), column
    for column in ("p", "p_holm", "g"):
        np.testing.assert_allclose(verdicts[column], verdicts[f"{column}_golden"], rtol=1e-9)
    assert (verdicts["smallest_effect"] <= verdicts["smallest_effect_golden"] * (1 + 1e-9)).all()
    others = verdicts[verdicts["decision"] != verdicts["decision_golden"]]
    assert len(others) == RUNS[name]
    assert set(others["decision_golden"]) <= {"inconclusive"} >= set(others["decision"]) - {"equivalent"}


# Frames of users


def own(*names: str, seed: int = 0, **columns) -> pd.DataFrame:
    """Samples of implementations with latencies of 10 µs, 11 µs and so on at 2 lengths, without a run's columns."""
    rng, rows = np.random.default_rng(seed), []
    for number, name in enumerate(names):
        for seq_len in (64, 128):
            us = (10 + number) * rng.normal(1, 0.005, 30) * seq_len / 64
            rows.append(pd.DataFrame({"implementation": name, "seq_len": seq_len, "latency_us": us}))
    return pd.concat(rows, ignore_index=True).assign(batch=1, heads=2, head_dim=64, **columns)


def test_a_frame_of_ones_own_is_summarized_and_compared():
    samples = own("mine", "theirs")
    cases = frames.summarize(samples)
    assert list(cases["implementation"]) == ["mine", "mine", "theirs", "theirs"]
    assert list(cases["median_us"]) == list(samples.groupby(["implementation", "seq_len"])["latency_us"].median())
    assert (cases["low_us"].le(cases["median_us"]) & cases["median_us"].le(cases["high_us"])).all()
    verdicts = frames.compare(samples, "theirs")
    assert list(verdicts["decision"]) == ["faster", "faster"]
    assert verdicts["speedup"].tolist() == pytest.approx([1.1, 1.1], rel=0.005)
    assert (verdicts["smallest_effect"] == 0).all()
    work = roofline.add_floor(
        roofline.add_work(cases.astype({"implementation": "category"})), {"matmul.float16": 100, "copy": 1000}
    )
    assert list(work["flops"]) == [4 * 2 * s * s * 64 for s in (64, 128, 64, 128)]
    assert set(work["limit"]) == {"memory"}


def test_rounds_that_are_left_out_leave_sides_unpaired():
    samples = own("mine", "theirs")
    fewer = samples.drop(samples[samples["implementation"] == "mine"].index[:3])
    assert list(frames.compare(fewer, "theirs")["decision"]) == ["faster", "faster"]
    rounds = samples.assign(round=[*range(30)] * 4)
    others = rounds[rounds["round"] != 9 * (rounds["implementation"] == "mine")]  # as many, but not the same
    sides = [others.query("implementation == @name and seq_len == 64")["latency_us"] for name in ("theirs", "mine")]
    found = frames.compare(others, "theirs").iloc[0]
    assert (found["low"], found["high"]) == astuple(stats.ratio_ci(*sides))[1:]


def test_samples_may_be_in_any_order_and_axes_unknown_or_categories():
    samples = own("mine", "theirs", kv_heads=2.0, round=[*range(30)] * 4)
    samples["latency_us"] += samples["round"] / 9  # neighbours in time are alike
    mixed = samples.sort_values(["implementation", "seq_len", "latency_us"])
    for infer in (frames.summarize, lambda rows: frames.compare(rows, "theirs")):
        pd.testing.assert_frame_equal(infer(mixed), infer(samples), rtol=1e-12)
        whole = infer(samples.astype({"implementation": "category"}))
        pd.testing.assert_frame_equal(whole.astype({whole.columns[0]: str}), infer(samples), check_dtype=False)
    unknown = frames.summarize(samples.assign(kv_heads=samples["kv_heads"].where(samples["seq_len"] == 64)))
    assert unknown["replicates"].tolist() == [1] * 4
    assert frames.summarize(samples.head(0)).columns.equals(unknown.columns)


def test_the_worst_is_claimed_without_zeros_and_what_was_not_timed_is_counted():
    each = [own("mine", "theirs", values=values) for values in ("normal", "zeros", "rising 24")]
    each[2].loc[each[2]["implementation"] == "mine", "latency_us"] *= 1.05
    each[1].loc[each[1]["implementation"] == "mine", "latency_us"] *= 2
    found = frames.worst(frames.compare(pd.concat([*each, own("theirs", "third", values="sd 2")]), "theirs"))
    mine = found[found["candidate"] == "mine"]
    assert list(mine["values"]) == ["rising 24"] * 2
    assert list(mine["n"]) == [2, 2]
    assert list(mine["lacking"]) == [1, 1]
    assert (mine["highest"] > mine["speedup"]).all()
    twice = [frames.compare(each[0], name) for name in ("theirs", "mine")]
    found = frames.worst(pd.concat(twice), ["seq_len", "kv_len"])
    assert found[["baseline", "n", "over"]].to_numpy().tolist() == [
        ["theirs", 2, "seq_len kv_len"],
        ["mine", 2, "seq_len kv_len"],
    ]


# Shapes drawn at random

BEST_OF = ["sdpa.auto", "sdpa.flash", "peer.flex", "kernel.mma", "kernel.best"]
DRAWN = {"shapes": 12, "seed": 20261201, "law": "log-uniform"}


def test_every_drawn_shape_is_shown_with_its_losses_and_without_a_latency():
    shapes = draw(12, 20261201, "log-uniform")
    lost, gone, third = shapes[:3]
    slow = {("kernel.best", lost): 1.25 * synthetic.latency_us("sdpa.auto", lost)}
    slow |= {("peer.flex", third): 0.5 * synthetic.latency_us("sdpa.auto", third)}
    stated = {"implementations": BEST_OF, "drawn": DRAWN} | synthetic.AT_TARGET
    recipe = synthetic.Recipe(study=stated, latencies_us=slow, fates={("kernel.best", gone): synthetic.GONE})
    run = synthetic.infer(recipe)
    clears = frames.is_equal(run.cases, third.axes) & (run.cases["implementation"] == "sdpa.auto")
    run = replace(run, cases=run.cases.assign(kernels=run.cases["kernels"].mask(clears, "cudnn_sdpa\nMemset (Device)")))
    rows = frames.drawn(run, "kernel.best")
    assert list(rows["label"]) == [shape.label for shape in shapes]
    assert rows["speedup"].round(2).fillna(0).tolist() == [0.8, 0, *[1.32] * 10]
    assert rows["over_fastest"].round(2).fillna(0).tolist() == [0.64, 0, 0.66, *[1.05] * 9]
    assert rows["fastest"].tolist() == ["sdpa.flash"] * 2 + ["peer.flex"] + ["sdpa.flash"] * 9
    assert rows["clears"].tolist() == [False, False, True] + [False] * 9
    found = frames.summarize_drawn(rows)
    shares = found[found["over"] == "baseline"].set_index("part")
    assert shares["shapes"].tolist() == [12, *(rows["keys"].value_counts()[keys] for keys in frames.KEYS), 1, 11]
    every, kept = shares.loc["all"], rows.dropna(subset="us")
    assert (every["unmeasured"], every["losses"], round(every["least"], 2)) == (1, 1, 0.8)
    assert every["speedup"] == pytest.approx(np.exp(np.log(kept["speedup"]).mean()))
    assert every["total"] == pytest.approx(kept["baseline_us"].sum() / kept["us"].sum())
    assert shares.loc["memset in the baseline", "speedup"] == pytest.approx(rows["speedup"][2])
    said = told(lambda: frames.drawn(synthetic.infer(synthetic.Recipe())))
    assert said == "the study of 'synthetic' drew no shapes: name a run of the study 'drawn'"
    assert "did you mean 'kernel.best'?" in told(lambda: frames.drawn(run, "kernel.bets"))


def test_errors_are_over_the_baselines_at_the_same_shape_without_zeros_and_failed_cases():
    rows = [
        ("theirs", "normal", 3e-4, 1e-3, True),  # two checks of a case
        ("theirs", "normal", 4e-4, 2e-3, True),
        ("mine", "normal", 6e-4, 5e-3, True),
        ("mine", "normal", 8e-4, 1e-3, True),
        ("mine", "normal", None, 1.0, True),  # an extreme
        ("theirs", "sd 6", 1e-4, 1e-3, True),
        ("mine", "sd 6", 8e-4, 1e-3, True),
        ("third", "sd 6", 2e-4, 2e-3, True),
        ("third", "normal", 1e-4, 1e-3, True),
        ("third", "normal", math.inf, math.inf, False),
        ("control.theirs", "sd 6", 9e-4, 1e-3, True),
        ("theirs", "zeros", 0.0, 0.0, True),
        ("mine", "zeros", 0.0, 0.0, True),
        ("mine", "sd 2", 1e-4, 1e-3, True),  # theirs was not checked on these values
    ]
    checks = pd.DataFrame(rows, columns=["implementation", "values", "drawn_rms_error", "drawn_max_error", "passed"])
    checks["drawn_rms_error"] = checks["drawn_rms_error"].astype("Float64")
    found = frames.compare_errors(
        checks.assign(**{axis: value for axis, value in Shape(1, 2, 64, 64).axes.items() if axis != "values"}), "theirs"
    )
    by_values = found.set_index(["candidate", "values"])
    assert by_values["rms_ratio"].to_dict() == pytest.approx(
        {("mine", "normal"): 2, ("mine", "sd 6"): 8, ("third", "sd 6"): 2}
    )
    assert by_values["max_ratio"].to_list() == pytest.approx([2.5, 1, 2])
    assert by_values["rms_error"]["mine", "normal"] == pytest.approx(math.sqrt(50) * 1e-4)
    worst = frames.worst(found, AXES, "rms_ratio").set_index("candidate")
    assert worst["values"].to_dict() == {"mine": "sd 6", "third": "sd 6"}
    assert worst["mean"].to_dict() == pytest.approx({"mine": 4, "third": 2})
    assert worst["lacking"].to_list() == [0, 1]


# Errors


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda s: frames.where(s, seq_ln=64), "there is no column 'seq_ln'; did you mean 'seq_len'?"),
        (lambda s: frames.where(s, seq_len=100), "no row has seq_len=100; there are 64, 128; did you mean 128?"),
        (lambda s: frames.where(s, implementation=pd.Index(["mien"])), "did you mean 'mine'?"),
        (lambda s: frames.where(s, seq_len="64"), "no row has seq_len='64'; there are 64, 128; did you mean 64?"),
        (lambda s: frames.where(s.assign(heads=["a", 2] * 60), heads=3), "there are 2, a"),
        (
            lambda s: frames.where(s[30:], seq_len=64, implementation="mine"),
            "seq_len=64 and implementation='mine': look",
        ),
        (lambda s: frames.where(s, implementation=[]), "no row has implementation=[]: look"),
        (lambda s: frames.compare(s, "their"), "no sample is of 'their'; did you mean 'theirs'?"),
        (lambda s: frames.compare_errors(s, "their"), "no sample is of 'their'; did you mean 'theirs'?"),
        (lambda s: frames.control(s, "theirs"), "theirs was not measured against itself"),
        (lambda s: frames.summarize(s.drop(columns="seq_len")), "there is no column 'seq_len'"),
        (lambda s: frames.summarize(s.assign(latency_us=0.0)), "not positive numbers"),
        (lambda s: frames.compare(pd.concat([s.assign(run="a"), s.assign(run="b")]), "mine"), "of 2 runs (a, b)"),
        (lambda s: frames.compare(pd.concat([s.assign(round=s.index)] * 2), "mine"), "same replicate and round: leave"),
        (lambda s: frames.worst(frames.compare(s, "mine"), over="value"), "did you mean 'values'?"),
        (lambda s: frames.worst(pd.concat([frames.compare(s, "mine")] * 2)), "leave out all but those of one run"),
        (lambda s: roofline.add_floor(s, {}), "call add_work(cases) first"),
        (lambda s: roofline.add_floor(roofline.add_work(s), {"matmul_float16": 1}), "did you mean 'matmul.float16'?"),
        (lambda s: roofline.add_work(s.assign(heads=-1)), "a row is no shape"),
        (lambda s: roofline.add_work(s.assign(dtype=[None, "float16"] * 60)), "a row is no shape: unknown dtype"),
    ],
)
def test_what_can_not_be_asked_is_a_line_that_says_what_to_do(call, complaint):
    assert complaint in told(lambda: call(own("mine", "theirs")))


def test_the_target_is_that_of_the_study_and_unlike_shapes_keep_their_keys():
    run = synthetic.infer(synthetic.Recipe(study=synthetic.AT_TARGET))
    at = frames.target(run, seq_len=64, batch=None)
    assert (at["seq_len"], at["kv_len"], at["batch"]) == (64, 64, run.manifest["study"]["target"]["batch"])
    assert "did you mean 'seq_len'?" in told(lambda: frames.target(run, seqlen=64))


# Two runs


def test_a_run_against_itself_has_moved_nowhere_and_a_faster_kernel_is_found():
    run = synthetic.infer(synthetic.Recipe(study=synthetic.AT_TARGET, control_pace=1.0))
    same = frames.compare_runs(run, run)
    assert set(same["decision"]) <= {"equivalent", "inconclusive"}
    assert len(same) == len(frames.summarize(run.samples))
    sped = run.samples.copy()
    sped.loc[sped["implementation"] == "sdpa.flash", "latency_us"] /= 1.5
    found = frames.compare_runs(run, replace(run, samples=sped))
    decisions = found.groupby(found["implementation"] == "sdpa.flash")["decision"].agg(set)
    assert decisions[True] == {"faster"}
    assert decisions[False] <= {"equivalent", "inconclusive"}


# The cache


def test_a_frame_is_kept_once_and_a_file_that_a_stranger_sends_is_not_found(data, tmp_path, monkeypatch):
    (data / "mine").mkdir(parents=True)
    frame, content = pd.DataFrame({"median_us": [1.0]}), pd.DataFrame({"latency_us": [1.0, 2.0]})
    made = []

    def kept(content: pd.DataFrame, run: str = "mine") -> int:
        """The number of cached frames once this one is cached."""
        found = cache.kept(run, "what", content, make=lambda: made.append(run) or frame)
        pd.testing.assert_frame_equal(found, frame)
        return len(list((data / "mine" / ".cache").iterdir()))

    assert [kept(content), kept(content), len(made)] == [1, 1, 1]
    assert kept(content + 1) == 2
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "another user"))
    assert kept(content) == 3  # another key gives another name
    assert [kept(content, ""), kept(content, "absent")] == [3, 3]
    assert not (data / "absent").exists()
