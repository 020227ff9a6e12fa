"""What 02_baseline and 03_roofline show of the synthetic runs, worked by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import synthetic
from synthetic import ONE_BATCH, TARGET, Recipe, changed, inferred, lonely

from attnlab.exhibits import cells
from attnlab.exhibits.baseline import correctness, figures, sweeps
from attnlab.exhibits.catalogue import Show
from attnlab.exhibits.display import Missing
from attnlab.exhibits.quantities import Marked
from attnlab.exhibits.roofline import floor
from attnlab.exhibits.words import say
from attnlab.infer.compare.published import Nearest
from attnlab.infer.facts.gate import Differing, Outputs
from attnlab.infer.facts.lengths import Costliest, Pair
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Absence, Results
from attnlab.infer.stats import Interval
from attnlab.literature.throughputs import published
from attnlab.runs.schema import is_of


def shown(id, run=inferred):
    return Show(run())(f"baseline.{id}").content


def estimates(column) -> list[float | None]:
    return [cell.estimate if isinstance(cell, Interval) else cell for cell in column]


# -------------------------------------------------------------------------------------------------------- along sweeps


def test_every_implementation_along_a_sweep():
    frame = sweeps.backends(inferred(), "seq_len").frame
    medians = {name: estimates(cells) for name, *cells in frame.itertuples(index=False, name=None)}
    assert list(frame.columns[1:]) == ["S=32", "S=64", "S=128", "S=256"]
    assert medians == {
        "sdpa.auto": [2.5, 10, 40, 160],
        "sdpa.flash": pytest.approx([1.2, 8, 32, 128]),
        "sdpa.cudnn": [None, *map(pytest.approx, (10.05, 40.2, 160.8))],
        "sdpa.efficient": [3.75, 15, 60, 240],
        "sdpa.math": [10, 40, 160, None],
    }


def with_lengths(**sweeps_of) -> Results:
    study = {"sweeps": sweeps_of, "timings": synthetic.STUDY["timings"][:1], "implementations": ["sdpa.auto"]}
    return synthetic.infer(synthetic.Recipe(study=study, fates={}))


def test_shapes_that_no_single_axis_tells_apart_are_named_whole_and_go_down_the_page_where_they_are_more():
    two = [synthetic.AXES | {"batch": batch, "seq_len": 128} for batch in (1, 2)]
    frame = sweeps.backends(with_lengths(**{"grid seq_len": two}), "grid seq_len").frame
    assert list(frame["shape"]) == ["B=1 H=4 S=128", "B=2 H=4 S=128"]
    assert estimates(frame["sdpa.auto"]) == [20, 40]


def test_there_is_a_table_for_each_sweep_that_has_latencies():
    assert list(shown("implementations", lonely).parts) == ["seq_len"]
    assert list(shown("implementations").parts) == ["seq_len", "batch", "heads", "causal_seq_len"]
    with pytest.raises(NotMeasured, match=r"^Nothing has a latency along a sweep$"):
        sweeps.over(["batch"], lambda name: sweeps.backends(lonely(), name))


def test_kinds_of_values_have_no_table_there():
    kinds = synthetic.AXES | {"batch": 2, "seq_len": 128, "values": ["normal", "sd 6"]}
    run = with_lengths(seq_len=synthetic.AXES | {"batch": 2, "seq_len": [128, 256]}, values=kinds)
    assert list(sweeps.every_sweep(run).parts) == ["seq_len"]


def test_every_case_has_a_row():
    frame = shown("every_case").frame
    assert len(frame) == len(inferred().table) == 72
    assert frame.iloc[0][["implementation", "B, H, S, D", "mask", "timing", "k"]].tolist() == [
        "sdpa.auto", "2, 4, 32, 64", "full", "device warm", "10"
    ]  # fmt: skip
    assert estimates(frame["median_us"]) == list(inferred().table["median_us"])


def test_a_kernel_is_placed_by_what_distinguishes_its_shapes():
    run = inferred().run
    frame = shown("kernels").frame
    assert dict(zip(frame["implementation"], frame["longest kernel"], strict=True))["sdpa.flash"] == "flash_kernel"
    assert set(frame["at"]) == {"all"}
    long = (run.cases["seq_len"] == 256) & (run.cases["implementation"] == "sdpa.auto")
    odd = (run.cases["implementation"] == "sdpa.flash") & is_of(run.cases, ONE_BATCH)
    masked = (run.cases["implementation"] == "sdpa.efficient") & run.cases["causal"]
    some = (run.cases["implementation"] == "sdpa.math") & run.cases["seq_len"].isin([32, 128])
    named = run.cases["kernels"].mask(long | odd | masked | some, "other(int)")
    frame = sweeps.kernels(changed(inferred(), cases=run.cases.assign(kernels=named))).frame
    others = frame[frame["longest kernel"] == "other"].set_index("implementation")["at"]
    assert others.to_dict() == {
        "sdpa.auto": "S=256",
        "sdpa.flash": "B=1",
        "sdpa.efficient": "causal",
        "sdpa.math": "B=2 H=4 S=32; B=2 H=4 S=128, with and without the causal mask; B=1 H=4 S=128; B=2 H=8 S=128",
    }


def throttled_from(length: int) -> Results:
    """The ordinary run, but that the card held itself back from a length on."""
    run = inferred().run
    held = run.samples["throttled"] | (run.samples["seq_len"] >= length)
    return changed(inferred(), samples=run.samples.assign(throttled=held))


def test_each_reason_is_said_once_with_all_that_lack_a_latency_for_it():
    slow = "skipped, one call takes {} ms, longer than the study's longest_call_ms of 12"
    found = [Absence("sdpa.math", 3, 8, slow.format(16)), Absence("kernel.naive", 4, 8, slow.format("1.2e+02"))]
    found += [Absence("kernel.mma", 1, 8, "skipped, mma takes one shape, not (1, 2) and (3, 4)")]
    assert cells.absent([*found, Absence("peer.flex", 8, 8, "failed, peer.flex broke; later in another way")]) == (
        "No latency of `sdpa.math` at 3 and `kernel.naive` at 4 of 8: skipped, one call takes longer than the study's "
        "longest_call_ms of 12. No latency of `kernel.mma` at 1 of 8: skipped, takes one shape. "
        "No latency of `peer.flex` at 8 of 8: failed, broke."
    )


def test_who_has_no_latency_at_all_is_said_once_below_the_tables():
    lost = {("sdpa.math", shape): synthetic.GONE for shape in inferred().study.shapes}
    group = sweeps.every_sweep(synthetic.infer(Recipe(fates=lost)))
    *tables, said = group.parts.values()
    assert said.markdown.startswith(f"No latency of `sdpa.math` at {len(lost)} of {len(lost)}: ")
    assert all("sdpa.math" not in table.markdown for table in tables)


def test_tables_say_in_which_regime_and_who_is_absent():
    note = sweeps.backends(inferred(), "seq_len").note
    assert note.startswith("All shapes were timed in bursts. No latency of `sdpa.cudnn` at 1 of 4: skipped, cuDNN")
    assert sweeps.backends(lonely(), "seq_len").note == "All shapes were timed in a regime that was not recorded."
    bursts = "Shapes timed in bursts: B=2 H=4 S=32 and 64; under sustained load: B=2 H=4 S=128 and 256."
    assert sweeps.backends(throttled_from(128), "seq_len").note.startswith(bursts)


# ------------------------------------------------------------------------------------------------------ spread, errors


def test_tails_are_given_where_there_are_samples_enough():
    frame = shown("tails").frame
    assert estimates(frame["p95_us"]) == pytest.approx([2.5044, 10.0175, 40.07, 160.281], rel=1e-4)
    assert "p99_us" not in frame  # a column without a value isn't shown
    row = frame.iloc[2]
    step = synthetic.STEP * np.sqrt(synthetic.UNIFORM)
    assert row["cv_pct"] == pytest.approx(100 * step, rel=1e-2)
    assert (row["S"], row["outliers_pct"], row["throttled_pct"], row["samples"]) == (128, 0, 2.5, 80)
    assert row["effective_n"] == pytest.approx(80 * (1 - row["lag1"]) / (1 + row["lag1"]))


def test_the_gate_by_implementation():
    frame = shown("checks").frame.set_index("implementation")
    # 8 shapes, 2 replicates, 2 moments; math: one shape too large, one failed before timing, one after, once
    assert frame.loc["sdpa.auto", ["checks", "passed"]].tolist() == [32, 32]
    assert frame.loc["sdpa.math", ["checks", "passed", "largest error"]].tolist() == [26, 23, 0.005]
    shares = frame["largest share of the allowed"].to_dict()
    assert shares.pop("sdpa.math") == pytest.approx(250)
    assert set(shares.values()) == {50}
    assert "elements that differ between runs" not in frame
    none = changed(inferred(), checks=inferred().run.checks.head(0))
    assert correctness.correctness(none) == Missing("*The gate has made no checks yet.*")
    assert "150 checks and 3 failed" in correctness.correctness(inferred()).markdown


def test_what_differs_between_two_runs_is_marked_and_not_failed():
    run = inferred().run
    flash = (run.checks["implementation"] == "sdpa.flash") & is_of(run.checks, TARGET)
    of = changed(inferred(), checks=run.checks.assign(differing=np.where(flash, 3, 0)))
    marks = correctness.checks(of).frame.set_index("implementation")["elements that differ between runs"]
    assert marks.dropna().to_dict() == {"sdpa.flash": 3}


# ------------------------------------------------------------------------------------------------------ the roofline


def test_the_floors_along_a_sweep():
    frame = floor.floors(inferred(), "seq_len", "sdpa.auto").frame
    assert list(frame["intensity"]) == [16, 32, 64, 128]
    assert list(frame["matrix (µs)"]) == pytest.approx([1.048576, 4.194304, 16.777216, 67.108864])
    # 4·2·4·S·64·2 bytes over 400 GB/s, or, of the longer two, what 200 kB can't hold over 100 GB/s
    assert list(frame["bytes (µs)"]) == pytest.approx([0.32768, 0.65536, (262144 * 2 - 2e5) / 1e5, 8.48576])
    assert list(frame["exp (µs)"]) == pytest.approx([0.08192, 0.32768, 1.31072, 5.24288])
    assert list(frame["limit"]) == ["matrix product"] * 4
    assert list(frame["speed_of_light_pct"]) == pytest.approx([41.94304] * 4)
    without = floor.floors(lonely(), "seq_len", "sdpa.auto").frame
    assert without["exp (µs)"].isna().all()
    assert np.isnan(without["bytes (µs)"][0])


def test_a_rate_above_a_ceiling_marks_the_speed_of_light():
    first, *others = floor.floors(inferred(), "seq_len", "sdpa.flash").frame["speed_of_light_pct"]
    assert isinstance(first, Marked)
    assert first.mark.startswith("† above the copy ceiling")
    assert not [cell for cell in others if isinstance(cell, Marked)]


def held_back_at(length: int) -> Results:
    """The ordinary run, but that the card throttled during 51 % of the samples of a length."""
    table = inferred().table
    return changed(inferred(), table.assign(throttled_pct=np.where(table["seq_len"] == length, 51.0, 0.0)))


def test_the_lengths_at_which_the_card_throttled_are_named():
    note = floor.floors(held_back_at(256), "seq_len", "sdpa.auto").note
    assert "At B=2 H=4 S=256 D=64 float16 the card throttled during more than half of the samples" in note
    assert "clock" not in floor.floors(lonely(), "seq_len", "sdpa.auto").note


def test_the_lengths_at_which_the_card_throttled_are_shaded():
    shown, plain = figures.throughput(held_back_at(256)), figures.throughput(inferred())
    [shade] = shown.figure.axes[0].patches
    assert (shade.get_x(), shade.get_width()) == pytest.approx((256 / 2**0.5, 256 / 2**0.5))
    assert "Shaded: the card throttled" in shown.caption
    assert "Shaded" not in plain.caption
    assert not plain.figure.axes[0].patches


def test_the_roofline_says_what_limits_which_timing():
    slow = synthetic.CEILINGS | {"l2": (50.0, "GB/s"), "wgmma.float16": (4.0, "TFLOP/s")}
    timings = [{"clock": "device", "cache": cache} for cache in ("warm", "cold")]
    short = synthetic.AXES | {"seq_len": 32}
    at = {"target": short, "sweeps": {"seq_len": [short]}}
    for first, limit, bytes_us in ((0, "L2", 2.62144), (1, "memory", 1.31072)):
        study = at | {"timings": [timings[first], timings[1 - first]]}
        of = synthetic.infer(synthetic.Recipe(study=study, ceilings=slow, fates={}))
        table = floor.floors(of, "seq_len", "sdpa.auto")
        assert table.frame[["limit", "bytes (µs)", "matrix (µs)"]].iloc[0].tolist() == [
            limit, pytest.approx(bytes_us), pytest.approx(0.524288)
        ]  # fmt: skip
        assert "over the 4.00 TFLOP/s of wgmma alone; the library's product reached 2.00." in table.note
        assert f"S = 32 by {limit}" in floor.regimes(of).markdown


def test_without_ceilings_there_is_neither_ridge_nor_share():
    none = {name: (None, unit) for name, (_, unit) in synthetic.CEILINGS.items()}
    some = none | {"copy": (100.0, "GB/s")}
    runs = [synthetic.infer(synthetic.Recipe(study=synthetic.AT_TARGET, ceilings=rates)) for rates in (none, some)]
    assert "No ceiling was measured" in floor.regimes(runs[0]).markdown
    assert "No ceiling was measured" in floor.speed_of_light(runs[0]).markdown
    assert "ridge" not in floor.regimes(runs[1]).markdown


# ----------------------------------------------------------------------------------------------------------- sentences

OUTPUTS = Outputs(1200, 4800, 67.2, [(["sdpa.math", "kernel.naive"], TARGET), (["sdpa.flash"], ONE_BATCH)])
GATE = {"checks": 150, "failed": 3, "errors": {"max_error": 0.005, "framework_max_error": 0.001}} | {
    "outputs": OUTPUTS, "differing": [Differing("sdpa.flash", 3, 65536, 1)]
}  # fmt: skip


COSTLIEST = Costliest("a", Pair(TARGET, TARGET), Interval(18.6, 18.3, 19.1))
MOVED = {"moved": 3, "near_pct": 1.0}


FOUND = {"numbers": published(), "read": {"table": 1, "text": 2, "label on figure": 3, "plot": 0}} | {
    "best": published()[:2], "above": [], "here": None
}  # fmt: skip
SHARES = ("datasheet_pct", "measured_pct")
HERE = Nearest("sdpa.flash", "here", TARGET, 700.0, 75.0, 98.0)
LIMITS = {"numbers": 258, "whole": 200, "grouped": 9, "untyped": 3, "at_once": 256}


BRANCHES = {
    "baseline.correctness": (GATE, GATE | {"failed": 0, "outputs": None, "differing": []}),
    "baseline.costliest": ({"c": COSTLIEST, "tile": 64},),
    "baseline.by_clock": tuple(MOVED | {"in_cycles_pct": pct} for pct in (None, [2.0, 2.0, 2.0], [], [2.5])),
    "baseline.cards": tuple(
        {"here": {*a}, "there": {*b}} for a, b in ("aa", ("ab", "ab"), ("ab", "b"), "ac", ("", "c"))
    ),
    "roofline.literature": (
        FOUND,
        *(FOUND | {"here": here} for here in (HERE, *(replace(HERE, **{name: math.nan}) for name in SHARES))),
        FOUND | {"above": published()[:1]},
    ),
    "roofline.higher": ({"higher": 1, "of": 2},),
    "roofline.limits": (LIMITS,),
}
"""By sentence: facts of which it says different things."""


@pytest.mark.parametrize("id", BRANCHES)
def test_every_branch_is_said_in_words_of_its_own(id):
    told = [say(id, **facts) for facts in BRANCHES[id]]
    assert len(set(told)) == len(told)
    assert not any("\n\n" in text or "  " in text or "nan" in text for text in told)
