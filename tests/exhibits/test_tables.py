"""What the tables print of the synthetic runs, worked by hand."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import synthetic
from reading import NOT_A_NUMBER, column, first_number, html, plain, values
from synthetic import ONE_BATCH, SHORT, TARGET, inferred, lonely

from attnlab.exhibits import cells
from attnlab.exhibits.baseline import correctness, spread, sweeps
from attnlab.exhibits.baseline.lengths import odd_lengths
from attnlab.exhibits.catalogue import Show
from attnlab.exhibits.display import Missing, Prose, Table
from attnlab.exhibits.environment import clocks, machine, provenance
from attnlab.exhibits.roofline import floor
from attnlab.exhibits.verdicts import abstract, target
from attnlab.infer.cases import passed_samples
from attnlab.infer.results import Results
from attnlab.infer.stats import samples_needed
from attnlab.runs.schema import is_of
from attnlab.study.shapes import Shape

TABLES = [
    "environment.machine",
    "environment.settings",
    "environment.parameters",
    "environment.ceilings",
    "environment.clock",
    "environment.cases",
    "environment.checklist",
    "environment.hashes",
    "baseline.kernels",
    "baseline.sweep.seq_len",
    "baseline.sweep.causal_seq_len",
    "baseline.backends.seq_len",
    "baseline.scaling.seq_len",
    "baseline.variance",
    "baseline.tails",
    "baseline.memory.table",
    "baseline.timings",
    "baseline.checks",
    "baseline.every_case",
    "roofline.floors.seq_len",
    "verdicts.to_beat",
]


@pytest.mark.parametrize("id", TABLES)
def test_no_table_prints_what_is_not_a_number(id):
    for run in (inferred, lonely):
        shown = Show(run())(id).content
        assert run is lonely or isinstance(shown, Table)
        assert not [cell for cell in html(shown).select("td, th") if NOT_A_NUMBER.search(cell.get_text())]


def test_a_sweep():
    table = sweeps.sweep(inferred(), "seq_len", "sdpa.auto")
    assert column(table, "S") == [32, 64, 128, 256]
    assert [first_number(cell) for cell in column(table, "median (µs) [95 %]")] == [2.5, 10, 40, 160]
    assert column(table, "TFLOP/s") == ["0.839"] * 4  # 33554432 FLOPs in 40 µs
    assert column(table, "GB/s") == ["52.4", "26.2", "13.1", "6.55"]
    assert column(table, "memory (MiB)") == ["0.125", "0.250", "0.500", "1.00"]
    assert column(table, "samples") == [80] * 4
    assert table.highlight == 2
    assert "B=2, H=4, D=64, float16; device clock, warm cache" in table.caption


def test_a_sweep_prints_the_intervals_that_were_inferred():
    row = inferred().at(TARGET).loc["sdpa.auto"]
    printed = column(sweeps.sweep(inferred(), "seq_len", "sdpa.auto"), "median (µs) [95 %]")[2]
    assert printed == f"40.000 [{row['low_us']:.3f}, {row['high_us']:.3f}]"


def test_a_bandwidth_above_the_ceiling_is_marked():
    table = sweeps.sweep(inferred(), "seq_len", "sdpa.flash")
    assert column(table, "GB/s") == ["109 †", "32.8", "16.4", "8.19"]
    assert column(table, "TFLOP/s") == ["1.75", "1.05", "1.05", "1.05"]
    assert "† above the copy ceiling" in table.note
    assert "†" not in sweeps.sweep(inferred(), "batch", "sdpa.flash").note
    assert column(floor.floors(inferred(), "seq_len", "sdpa.flash"), "speed of light")[0] == "87 % †"


def test_a_throughput_above_the_ceiling_is_marked_beside_itself():
    slow = synthetic.CEILINGS | {"matmul.float16": (0.5, "TFLOP/s")}
    study = {"implementations": ["sdpa.auto"], "timings": synthetic.STUDY["timings"][:1]}
    of = synthetic.infer(synthetic.Recipe(study=study, ceilings=slow, fates={}))
    table = sweeps.sweep(of, "seq_len", "sdpa.auto")
    assert column(table, "TFLOP/s") == ["0.839 ‡"] * 4
    assert column(table, "GB/s") == ["52.4", "26.2", "13.1", "6.55"]
    assert "‡ above the measured ceiling of matrix product, float16" in table.note
    assert values(target.to_beat(of))["its throughput (TFLOP/s)"] == "0.839 ‡"


def test_a_causal_sweep_names_its_convention():
    table = sweeps.sweep(inferred(), "causal seq_len", "sdpa.auto")
    assert column(table, "TFLOP/s") == ["0.852", "0.845"]  # 2·2·4·64·65·64 in 5 µs, 2·2·4·128·129·64 in 20
    assert cells.CAUSAL_NOTE in table.note
    assert cells.CAUSAL_NOTE not in sweeps.sweep(inferred(), "seq_len", "sdpa.auto").note


def test_every_implementation_along_a_sweep():
    table = sweeps.backends(inferred(), "seq_len")
    assert column(table, "implementation") == inferred().study.implementations
    medians = {
        name: [None if pd.isna(cell) else first_number(cell) for cell in cells]
        for name, *cells in table.frame.itertuples(index=False, name=None)
    }
    assert list(table.frame.columns[1:]) == ["S=32", "S=64", "S=128", "S=256"]
    assert medians == {
        "sdpa.auto": [2.5, 10, 40, 160],
        "sdpa.flash": [1.2, 8, 32, 128],
        "sdpa.cudnn": [None, 10.05, 40.2, 160.8],
        "sdpa.efficient": [3.75, 15, 60, 240],
        "sdpa.math": [10, 40, 160, None],
    }
    cells = html(table).select("tbody tr")[2].select("td")
    assert cells[1].get_text() == "—"


def test_shapes_along_no_axis_are_listed():
    listed = sweeps.listed(inferred(), "heads").frame.set_index("implementation")
    assert list(listed.columns) == ["B=2 H=4 S=128", "B=2 H=8 S=128"]
    assert first_number(listed.loc["sdpa.flash", "B=2 H=8 S=128"]) == 64


@pytest.mark.parametrize(("sweep", "steps"), [("seq_len", 3), ("batch", 1), ("heads", 1)])
def test_scaling(sweep, steps):
    table = sweeps.scaling(inferred(), sweep, "sdpa.auto")
    times = 4 if sweep == "seq_len" else 2
    assert [first_number(cell) for cell in column(table, "latency ×")] == [times] * steps
    assert column(table, "FLOPs ×") == [f"{times}.00"] * steps
    assert column(table, "bytes ×") == ["2.00"] * steps
    assert column(table, "latency over FLOPs") == ["1.00"] * steps


def test_scaling_of_a_causal_sweep_counts_the_scores_under_the_mask():
    table = sweeps.scaling(inferred(), "causal seq_len", "sdpa.auto")
    assert column(table, "S") == ["64 → 128"]
    assert column(table, "FLOPs ×") == ["3.97"]  # 128·129 / (64·65)
    assert column(table, "latency over FLOPs") == ["1.01"]


def test_variance():
    table = spread.variance(inferred(), "seq_len", "sdpa.auto")
    row = table.frame.iloc[2].to_dict()
    assert row.pop("effective N") == "55 of 80"  # 80 (1 - 0.1826) / (1 + 0.1826)
    assert list(spread.variance(inferred(), "batch", "sdpa.auto").frame["B"]) == [1, 2]
    assert row == {"S": 128, "median": "40.00", "mean": "40.00", "std": "0.0465", "CV": "0.1 %", "min": "39.92"} | {
        "max": "40.08", "outliers": "0.0 %", "lag-1": "0.18", "throttled": "2.5 %"
    }  # fmt: skip


def test_tails_are_given_where_there_are_samples_enough():
    table = spread.tails(inferred(), "seq_len", "sdpa.auto")
    assert column(table, "P99") == ["not enough samples"] * 4
    assert [first_number(cell) for cell in column(table, "P95")] == pytest.approx([2.5044, 10.0175, 40.07, 160.281])
    assert [first_number(cell) for cell in column(table, "P50")] == [2.5, 10, 40, 160]
    assert f"which need {samples_needed(0.95)} samples for a P95 and 368 for a P99" in table.note


def test_memory():
    frame = sweeps.memory_table(inferred(), "seq_len").frame.set_index("implementation")
    assert list(frame.loc["Q, K, V, O"]) == ["0.125", "0.250", "0.500", "1.00"]
    assert list(frame.loc["sdpa.math"]) == ["0.250", "0.500", "1.00", None]
    assert list(frame.loc["sdpa.cudnn"]) == [None, "0.250", "0.500", "1.00"]
    assert list(frame.loc["sdpa.auto, sdpa.flash, sdpa.efficient"]) == list(frame.loc["Q, K, V, O"])


def test_every_timing_of_the_target():
    frame = sweeps.timings(inferred(), TARGET).frame.set_index("implementation")
    assert list(frame.columns) == ["device warm", "eager warm"]
    assert frame.map(first_number).loc["sdpa.flash"].tolist() == [32, 37]
    assert list(sweeps.timings(lonely(), TARGET).frame.columns) == ["implementation", "eager warm"]


def test_the_gate_by_implementation():
    frame = correctness.checks(inferred()).frame.set_index("implementation")
    # 8 shapes, 2 replicates, 2 moments; math: one shape too large, one failed before timing, one after, once
    assert frame.loc["sdpa.auto", ["checks", "passed"]].tolist() == [32, 32]
    assert frame.loc["sdpa.math", ["checks", "passed"]].tolist() == [26, 23]
    assert frame.loc["sdpa.math", "largest error"] == "0.00500"
    assert frame["largest share of the allowed"].to_dict() == {
        "sdpa.auto": "50 %", "sdpa.flash": "50 %", "sdpa.efficient": "50 %", "sdpa.math": "250 %", "sdpa.cudnn": "50 %"
    }  # fmt: skip


def test_errors_of_zero_and_errors_without_end():
    checks = pd.DataFrame({"max_error": [0.0, np.inf, 1.0], "framework_max_error": [0.0, 1.0, 0.0]})
    checks = checks.assign(
        mean_error=0.0,
        framework_mean_error=0.0,
        implementation="sdpa.auto",
        passed=True,
        inputs="normal",
        values="normal",
        differing=None,
    )
    for rows, share in (([0], "0.0 %"), ([0, 1], "not finite"), ([2], "not finite")):
        of = synthetic.results.Results(replace(inferred().run, checks=checks.iloc[rows]), inferred().table)
        assert column(correctness.checks(of), "largest share of the allowed") == [share]


def test_a_roofline_against_ceilings_of_a_higher_clock_says_so():
    assert "at the SM clock in [](#environment.ceilings)" in floor.floors(inferred(), "seq_len", "sdpa.auto").note
    held = inferred().table.assign(throttled_pct=np.where(inferred().table["seq_len"] == 256, 51.0, 0.0))
    note = floor.floors(synthetic.results.Results(inferred().run, held), "seq_len", "sdpa.auto").note
    assert "At B=2 H=4 S=256 D=64 float16 the card throttled during more than half of the samples" in note
    assert "clock" not in floor.floors(lonely(), "seq_len", "sdpa.auto").note


def test_the_roofline_along_a_sweep():
    table = floor.floors(inferred(), "seq_len", "sdpa.auto")
    assert column(table, "FLOP/byte") == ["16.0", "32.0", "64.0", "128"]
    assert column(table, "matrix (µs)") == ["1.05", "4.19", "16.8", "67.1"]
    assert column(table, "bytes (µs)") == ["0.328", "0.655", "3.24", "8.49"]
    assert column(table, "exp (µs)") == ["0.0819", "0.328", "1.31", "5.24"]
    assert column(table, "limit") == ["matrix product"] * 4
    assert column(table, "speed of light") == ["42 %"] * 4
    bytes_note = "Bytes: over the warm L2's 400 GB/s, or what it can't hold over memory's, whichever takes longer."
    assert bytes_note in table.note
    without = floor.floors(lonely(), "seq_len", "sdpa.auto")
    assert column(without, "exp (µs)") == ["—"] * 4
    assert column(without, "bytes (µs)") == ["—", "0.621", "3.24", "8.49"]
    none = (
        "Bytes: none at S = 32, which fit the warm cache; its rate was not measured; what it can't hold over memory's."
    )
    assert none in without.note


def test_the_roofline_says_what_limits_which_timing():
    slow = synthetic.CEILINGS | {"l2": (50.0, "GB/s"), "wgmma.float16": (4.0, "TFLOP/s")}
    timings = [{"clock": "device", "cache": cache} for cache in ("warm", "cold")]
    short = synthetic.AXES | {"seq_len": 32}
    at = {"target": short, "sweeps": {"seq_len": [short]}}
    for first, limit, bytes_us in ((0, "L2", "2.62"), (1, "memory", "1.31")):
        study = at | {"timings": [timings[first], timings[1 - first]]}
        of = synthetic.infer(synthetic.Recipe(study=study, ceilings=slow, fates={}))
        table = floor.floors(of, "seq_len", "sdpa.auto")
        assert (column(table, "limit"), column(table, "bytes (µs)")) == ([limit], [bytes_us])
        assert column(table, "matrix (µs)") == ["0.524"]
        assert "over the 4.00 TFLOP/s of wgmma alone; the library's product reached 2.00." in table.note
        assert f"S = 32 by {limit}" in plain(floor.regimes(of))
        light = {cache: row["limit"] for cache, row in of.table.groupby("cache").first().iterrows()}
        assert light == {"warm": "L2", "cold": "memory"}


def test_ceilings_beside_the_datasheet():
    frame = machine.ceilings(inferred()).frame.set_index("ceiling")
    product = frame.loc["matrix product, float16"]
    assert product["measured [95 %]"] == "2.00\n[2.00, 2.00]"
    assert (product["unit"], product["datasheet"], product["of datasheet"]) == ("TFLOP/s", "989", "0.2 %")
    assert frame.loc["memory copy", ["datasheet", "of datasheet"]].tolist() == ["4,800", "2.1 %"]  # 100 of 4800
    assert frame.loc["L2 reads", ["datasheet", "of datasheet"]].tolist() == ["n/a", "n/a"]


def test_an_unknown_device_has_no_datasheet():
    frame = machine.ceilings(lonely()).frame
    assert set(frame["datasheet"]) == set(frame["of datasheet"]) == {"n/a"}
    assert frame["SM clock (MHz)"].isna().all()


def test_what_must_be_beaten():
    told = values(target.to_beat(inferred()))
    assert told["baseline"] == "sdpa.auto"
    assert told["its mean ± standard deviation (µs)"] == "40.00 ± 0.0465"
    assert told["its throughput (TFLOP/s)"] == "0.839"
    assert told["its bandwidth, compulsory bytes (GB/s)"] == "13.1"
    assert told["its peak memory (MiB)"] == "0.500"
    assert told["fastest here"].startswith("sdpa.flash, 32.000 [")
    assert told["floor by the measured ceilings (µs)"] == "16.8"
    assert told["claimable below (1.1×, intervals apart) (µs)"] == "36.36"  # 40 / 1.1


def test_what_must_be_beaten_where_the_interval_is_wider_than_the_margin():
    table = inferred().table.copy()
    table["low_us"] = np.minimum(table["low_us"], 0.8 * table["median_us"])
    wide = target.to_beat(synthetic.results.Results(inferred().run, table))
    assert values(wide)["claimable below (1.1×, intervals apart) (µs)"] == "32.00"


def test_verdicts_at_the_target():
    table = target.verdicts(inferred(), TARGET)
    frame = table.frame.set_index("implementation")
    assert list(frame.index) == ["sdpa.auto", "sdpa.flash", "sdpa.cudnn", "sdpa.efficient", "sdpa.math"]
    assert table.highlight == 0
    assert list(frame["median (µs) [95 %]"].map(first_number)) == [40, 32, 40.2, 60, 160]
    decisions = ["the baseline", "faster,\nclaimable", "equivalent", "slower", "slower"]
    assert list(frame["verdict"]) == decisions
    assert list(frame["regime"]) == ["burst"] * 5
    frame = frame.drop("sdpa.auto")
    assert frame["speedup [95 %]"].map(first_number).tolist() == pytest.approx([1.25, 0.995, 0.6667, 0.25], abs=1e-3)
    assert list(frame["Cliff's delta"]) == ["+1.00", "−1.00", "−1.00", "−1.00"]
    assert list(frame["intervals"]) == ["apart"] * 4
    sides = [np.concatenate(inferred().samples(name, TARGET)) for name in ("sdpa.auto", "sdpa.cudnn")]
    assert scipy.stats.mannwhitneyu(*sides).pvalue < 1e-4
    assert set(frame["p (Holm)"]) == set(frame["p (Mann-Whitney)"]) == {"<0.0001"}
    assert "did not measure its baseline against itself" in table.note


def test_verdicts_where_the_noise_is_too_large():
    row = target.verdicts(inferred(), ONE_BATCH).frame.set_index("implementation").loc["sdpa.efficient"]
    assert (row["verdict"], row["intervals"]) == ("inconclusive", "overlap")
    assert float(row["p (Holm)"]) > 0.05
    sides = [np.concatenate(inferred().samples(name, ONE_BATCH)) for name in ("sdpa.auto", "sdpa.efficient")]
    assert float(row["p (Mann-Whitney)"]) == pytest.approx(scipy.stats.mannwhitneyu(*sides).pvalue, abs=1e-4)


def test_the_baseline_against_itself_comes_last():
    of = synthetic.infer(synthetic.Recipe(study=synthetic.AT_TARGET, control_pace=1.3))
    table = target.verdicts(of, TARGET)
    row = table.frame.iloc[-1]
    assert row["implementation"] == "sdpa.auto again"
    assert first_number(row["median (µs) [95 %]"]) == pytest.approx(52)
    assert first_number(row["speedup [95 %]"]) == pytest.approx(1 / 1.3, abs=1e-3)
    assert row[["verdict", "intervals", "regime"]].tolist() == ["slower", "apart", "burst"]
    assert pd.isna(row["p (Holm)"])
    assert "The minimum detectable effect is 30 %." in table.note
    assert list(table.frame["verdict"][1:5]) == ["inconclusive", "inconclusive", "slower", "slower"]


def test_a_candidate_that_failed_has_its_reason_under_the_verdicts():
    table = target.verdicts(inferred(), synthetic.EIGHT_HEADS)
    assert "sdpa.math" not in list(table.frame["implementation"])
    assert "`sdpa.math` has no latency here: failed, after timing, graph: error against float64" in table.note
    fates = {("sdpa.auto", TARGET): ("failed", "before timing")}
    alone = synthetic.infer(synthetic.Recipe(study=synthetic.AT_TARGET, fates=fates))
    assert "`sdpa.auto` has no latency at" in target.verdicts(alone, TARGET).markdown
    assert "Nothing but `sdpa.auto` has a latency" in target.verdicts(lonely(), TARGET).markdown


def throttled_from(length: int) -> Results:
    """The ordinary run, but that the card held itself back from a length on."""
    run = inferred().run
    held = run.samples["throttled"] | (run.samples["seq_len"] >= length)
    return Results(replace(run, samples=run.samples.assign(throttled=held)), inferred().table)


def test_tables_say_which_regime_they_speak_of():
    absent = (
        " `sdpa.cudnn` has no latency at 1 of 4: skipped, cuDNN takes no sequence this short."
        " `sdpa.math` has no latency at 1 of 4: out of memory, tried to allocate 2.00 GiB."
    )
    assert sweeps.backends(inferred(), "seq_len").note == f"All shapes were timed in bursts.{absent}"
    assert sweeps.backends(lonely(), "seq_len").note == "All shapes were timed in a regime that was not recorded."
    note = sweeps.backends(throttled_from(128), "seq_len").note
    bursts = "Shapes timed in bursts: B=2 H=4 S=32 and 64; under sustained load: B=2 H=4 S=128 and 256."
    assert note == f"{bursts}{absent}"
    assert sweeps.listed(throttled_from(128), "batch").note == "All shapes were timed under sustained load."
    assert set(target.verdicts(throttled_from(128), TARGET).frame["regime"]) == {"sustained"}
    # one side of two was held back
    run = throttled_from(999).run
    flash = run.samples["throttled"] | (run.samples["implementation"] == "sdpa.flash")
    mixed = Results(replace(run, samples=run.samples.assign(throttled=flash)), inferred().table)
    frame = target.verdicts(mixed, TARGET).frame
    assert list(frame["regime"]) == ["burst", "mixed", "burst", "burst", "burst"]


def test_hedges_g_is_the_difference_in_deviations():
    flash = target.verdicts(inferred(), TARGET).frame["Hedges' g"][1]
    step = np.hypot(0.004, 0.0032) / np.sqrt(2)  # pooled over both sides
    g = (1 - 3 / (4 * 158 - 1)) * 8 / (step * np.sqrt(synthetic.UNIFORM * 80 / 79))
    assert first_number(flash) == pytest.approx(g, rel=5e-3)


def test_cases_without_a_latency_have_a_reason():
    frame = machine.cases(inferred()).frame
    assert frame[["implementation", "shape", "status"]].to_numpy().tolist() == [
        ["sdpa.cudnn", "(2, 4, 32, 64) float16", "skipped"],
        ["sdpa.math", "(2, 4, 256, 64) float16", "out of memory"],
        ["sdpa.math", "(2, 8, 128, 64) float16", "failed"],
        ["sdpa.math", "(2, 4, 64, 64) float16, causal", "failed"],
    ]
    assert frame["reason"].iloc[0] == "cuDNN takes no sequence this short"
    assert machine.cases(lonely()) == Prose("No case so far failed, was skipped or ran out of memory.")


def test_kernels_are_named_without_their_arguments():
    frame = sweeps.kernels(inferred()).frame
    assert dict(zip(frame["implementation"], frame["longest kernel"], strict=True))["sdpa.flash"] == "flash_kernel"
    assert set(frame["at"]) == {"all"}


def test_a_kernel_is_placed_by_what_distinguishes_its_shapes():
    run = inferred().run
    long = (run.cases["seq_len"] == 256) & (run.cases["implementation"] == "sdpa.auto")
    odd = (run.cases["implementation"] == "sdpa.flash") & is_of(run.cases, ONE_BATCH)
    masked = (run.cases["implementation"] == "sdpa.efficient") & run.cases["causal"]
    some = (run.cases["implementation"] == "sdpa.math") & run.cases["seq_len"].isin([32, 128])
    named = run.cases["kernels"].mask(long | odd | masked | some, "other(int)")
    frame = sweeps.kernels(Results(replace(run, cases=run.cases.assign(kernels=named)), inferred().table)).frame
    others = frame[frame["longest kernel"] == "other"].set_index("implementation")["at"]
    assert others.to_dict() == {
        "sdpa.auto": "S=256",
        "sdpa.flash": "B=1",
        "sdpa.efficient": "causal",
        "sdpa.math": "B=2 H=4 S=32; B=2 H=4 S=128, with and without the causal mask; B=1 H=4 S=128; B=2 H=8 S=128",
    }


def odd(control_pace=None) -> Results:
    """A run of a length that no tile divides, where a score of the baseline takes a quarter longer."""
    study = {
        "implementations": ["sdpa.auto", "sdpa.flash", "sdpa.math"],
        "timings": synthetic.STUDY["timings"][:1],
        "sweeps": {"seq_len": [synthetic.AXES | {"seq_len": [100, 128, 300]}]},
    }
    short = Shape(2, 4, 100, 64)
    more = {"sdpa.auto": 1.25, "sdpa.math": 1.1}
    longer = {(name, short): factor * synthetic.latency_us(name, short) for name, factor in more.items()}
    return synthetic.infer(synthetic.Recipe(study=study, fates={}, latencies_us=longer, control_pace=control_pace))


def test_a_score_is_compared_between_a_length_and_the_next_multiple_of_a_tile():
    told = plain(odd_lengths(odd()))
    assert "At B=2 H=4 S=100, a length that no tile of 64 rows divides, the time of `sdpa.auto` for each score" in told
    assert "differs from that at S=128 by +25.0 % [" in told
    assert re.search(r"those of the others by [+−]0\.0 % \[.*?\] \(`sdpa.flash`\) to [+]10\.0 % \[", told)
    assert "S=300" not in told  # the run has no S=320
    assert "minimum detectable effect" not in told
    assert re.search(r"\(minimum detectable effect [0-9.]+ %\)", plain(odd_lengths(odd(1.0))))
    assert plain(odd_lengths(inferred())) == (
        "*This run has no length above 64 that is no multiple of it, beside the next that is.*"
    )


# -------------------------------------------------------------------------------------------- timed outputs, and bits


def with_samples(**columns) -> Results:
    return Results(replace(inferred().run, samples=inferred().run.samples.assign(**columns)), inferred().table)


def test_timed_outputs_are_counted_and_the_worst_is_named():
    samples = inferred().run.samples
    counted = len(passed_samples(inferred().run))
    worst = (samples["implementation"] == "sdpa.math") & is_of(samples, SHORT) & (samples["replicate"] == 1)
    told = correctness.timed_outputs(with_samples(strain=np.where(worst, 0.875, 0.5)))
    assert told == (
        f"{counted:,} timed outputs were compared with what one of SDPA's backends computes from the same inputs, "
        "which the implementation had never seen; the largest error among them is 88 % of what is allowed, of "
        "`sdpa.math` at (2, 4, 32, 64) float16."
    )
    alike = is_of(samples, SHORT) & samples["implementation"].isin(["sdpa.flash", "sdpa.math"])
    told = correctness.timed_outputs(with_samples(strain=np.where(alike, 0.875, 0.5)))
    assert told.endswith("88 % of what is allowed, of `sdpa.flash` and `sdpa.math` at (2, 4, 32, 64) float16.")


def test_without_compared_outputs_it_says_so():
    older = with_samples(strain=None)
    for words in (correctness.correctness(older), abstract.abstract(older)):
        assert "Outputs were compared before and after timing; no timed output itself was." in plain(words)


def test_what_differs_between_two_runs_is_marked_and_not_failed():
    run = inferred().run
    flash = (run.checks["implementation"] == "sdpa.flash") & is_of(run.checks, TARGET)
    checks = run.checks.assign(differing=np.where(flash, 3, 0))
    of = Results(replace(run, checks=checks), inferred().table)
    words = "two runs on the same inputs differ in up to 3 of 65,536 elements, at 1 shape"  # 2 * 4 * 128 * 64
    assert f"`sdpa.flash` is not reproducible: {words}." in plain(correctness.correctness(of))
    marks = correctness.checks(of).frame.set_index("implementation")["not reproducible"]
    assert marks.dropna().to_dict() == {"sdpa.flash": words}
    assert "not reproducible" not in correctness.checks(inferred()).frame
    none = Results(replace(run, checks=run.checks.assign(differing=None)), inferred().table)
    assert "not reproducible" not in plain(correctness.correctness(none))
    trained = Shape(2, 4, 128, 64, causal=True, direction="training", kv_heads=2)
    assert correctness._outputs(trained) == 2 * 65536 + 2 * 32768  # O and dQ, dK and dV


def test_every_case_has_a_row():
    frame = sweeps.every_case(inferred()).frame
    assert len(frame) == len(inferred().table) == 72
    assert frame.iloc[0][["implementation", "B, H, S, D", "mask", "timing", "k"]].tolist() == [
        "sdpa.auto", "2, 4, 32, 64", "full", "device warm", "10"
    ]  # fmt: skip
    medians = [first_number(cell) for cell in frame["median (µs) [95 %]"]]
    assert medians == pytest.approx(inferred().table["median_us"], rel=1e-4)


def test_the_checklist_and_the_hashes_come_from_the_run():
    told = values(provenance.checklist(inferred()))
    assert told["correctness gate"] == "147 of 150 checks passed"
    assert told["raw samples"] == "5,920 rows, none dropped, hashed below"  # 72 cases and 2 that failed late, 80 each
    assert told["hardware named"] == "NVIDIA H200, driver 580.65"
    hashes = values(provenance.hashes(inferred()))
    assert hashes["samples.parquet"] == inferred().run.manifest["files"]["samples.parquet"][:32] + "…"
    assert told["samples a case and timing"] == "40 in each of 2 replicates"
    assert hashes["measure/clocks/cuda_events.py"] == "5" * 32 + "…"


def test_machines():
    told = values(machine.machine_table(inferred()))
    assert (told["device"], told["memory"], told["power limit"]) == ("NVIDIA H200", "128 GiB", "700 W")
    assert "threads" not in told
    assert values(machine.machine_table(lonely()))["threads"] == 2
    assert "highest SM clock" not in values(machine.machine_table(lonely()))


PROCESS = {"setup_seconds": 1.0, "ecc": True, "power_limit_w": 700.0} | {
    "persistence": True, "mig": False, "cpu": "Imaginary CPU", "governor": "", "host": "h"
}  # fmt: skip


@pytest.mark.parametrize(
    ("cards", "card", "limit", "note"),
    [
        ("aab", "a ({0}); b ({1})", "700 W ({0}); 600 W ({1})", "The replicates ran on 2 cards, each named by"),
        ("aaa", "a", "700 W", "All replicates ran on one card, which is named by the start of the SHA-256"),
        (["", "", ""], None, "700 W", ""),
        ([None] * 3, None, "700 W", ""),
    ],
)
def test_replicates_on_another_card_are_told_from_those_on_the_same(cards, card, limit, note):
    rows = [PROCESS | {"process": f"p{place}", "replicate": place, "card": name} for place, name in enumerate(cards)]
    processes = pd.DataFrame(rows)
    processes.loc[processes["card"] == "b", "power_limit_w"] = 600.0
    shown = machine.machine_table(Results(replace(inferred().run, processes=processes), inferred().table))
    told, places = values(shown), ("replicates 0 and 1", "replicate 2")
    assert told.get("card") == (card and card.format(*places))
    assert told["power limit"] == limit.format(*places)
    assert (told["ECC"], told["MIG"], told["CPU"]) == ("on", "off", "Imaginary CPU")
    assert "CPU governor" not in told
    assert note in shown.note
    assert bool(shown.note) == bool(note)


def test_a_run_that_is_older_than_what_processes_record_says_nothing_of_it():
    unknown = inferred().run.processes[["process", "replicate"]].assign(**dict.fromkeys(PROCESS | {"card": None}))
    shown = machine.machine_table(Results(replace(inferred().run, processes=unknown), inferred().table))
    assert values(shown)["power limit"] == "700 W"  # of the environment
    assert not {"card", "ECC", "MIG", "CPU"} & set(values(shown))
    assert shown.note == ""


def test_parameters_and_settings_and_clock():
    told = values(machine.parameters(inferred()))
    assert (told["shapes"], told["replicates"], told["target shape"]) == (
        "8",
        "2 replicates, each a fresh process",
        "(2, 4, 128, 64) float16",
    )
    assert values(machine.settings(inferred())) == {"tf32 matmul": "False", "seed": "42"}
    assert values(clocks.clock_quality(inferred())) == {
        "tick of the clock": "0.0320", "two readings with nothing between": "1.50"
    }  # fmt: skip


@pytest.mark.parametrize(
    "show",
    [
        lambda: sweeps.sweep(lonely(), "batch", "sdpa.auto"),
        lambda: sweeps.backends(lonely(), "batch"),
        lambda: sweeps.scaling(lonely(), "batch", "sdpa.auto"),
        lambda: spread.variance(lonely(), "batch", "sdpa.auto"),
        lambda: spread.tails(lonely(), "batch", "sdpa.auto"),
        lambda: sweeps.memory_table(lonely(), "batch"),
        lambda: floor.floors(lonely(), "batch", "sdpa.auto"),
        lambda: sweeps.listed(lonely(), "batch"),
    ],
)
def test_a_sweep_that_the_study_lacks_is_told(show):
    assert show() == Missing("*The study “synthetic” has no sweep “batch”.*")


def lengths() -> Results:
    """The sweeps of lengths of the run that backends are chosen from, under one timing."""
    stated = synthetic.CHOICES.study
    kept = {name: sweep for name, sweep in stated["sweeps"].items() if name.endswith("seq_len")}
    study = stated | {"timings": synthetic.STUDY["timings"][:1], "sweeps": kept}
    return synthetic.infer(replace(synthetic.CHOICES, study=study))


def test_more_shapes_than_implementations_go_down_the_page():
    down = sweeps.listed(lengths(), "grid seq_len").frame
    assert list(down.columns) == ["shape", *synthetic.BACKENDS]
    assert list(down["shape"])[:2] == ["B=2 H=4 S=64", "B=2 H=4 S=128"]
    assert [first_number(cell) for cell in down.iloc[0, 1:]] == [10, 8, 8, 20, 9.5]
    across = sweeps.listed(inferred(), "seq_len").frame
    assert list(across.columns) == ["implementation", *(f"B=2 H=4 S={length}" for length in (32, 64, 128, 256))]


def test_every_sweep_of_lengths_has_a_table():
    others = sweeps.other_lengths(lengths()).parts
    assert list(others) == ["grid_seq_len", "end_to_end_seq_len", "padded_seq_len", "training_seq_len"]
    assert [first_number(cell) for cell in column(others["padded_seq_len"], "S=128")] == [40, 32, 160, 80, 38]
    assert plain(sweeps.other_lengths(inferred())) == (
        "*Nothing has a latency along sweeps of lengths other than seq_len and causal seq_len.*"
    )


def test_the_second_turn_of_the_baseline_is_named_as_such():
    fates = {("control.sdpa.auto", TARGET): ("failed", "after timing, call: differs")}
    recipe = synthetic.Recipe(study=synthetic.AT_TARGET, control_pace=1.0, fates=fates)
    frame = machine.cases(synthetic.infer(recipe)).frame
    assert frame[["implementation", "status"]].to_numpy().tolist() == [["sdpa.auto again", "failed"]]


def test_the_checklist_counts_the_replicates_that_were_taken():
    closed = {"closed_early": {"replicates": 1, "shapes": 9, "planned": 18}}
    cut_off = replace(inferred(), run=replace(inferred().run, manifest=inferred().run.manifest | closed))
    assert values(provenance.checklist(cut_off))["samples a case and timing"] == "40 in each of 1 replicate"
    assert values(provenance.checklist(inferred()))["samples a case and timing"] == "40 in each of 2 replicates"
