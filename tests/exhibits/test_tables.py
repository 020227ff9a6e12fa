"""What the tables print of the synthetic runs, worked by hand."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import synthetic
from reading import NOT_A_NUMBER, first_number, html, values
from synthetic import ONE_BATCH, TARGET, inferred, lonely

from attnlab.exhibits.catalogue import Show
from attnlab.exhibits.display import Table
from attnlab.exhibits.verdicts import target
from attnlab.infer.results import Results

TABLES = [
    "environment.machine",
    "environment.settings",
    "environment.ceilings",
    "environment.clocks",
    "environment.cases",
    "environment.checklist",
    "environment.hashes",
    "verdicts.to_beat",
]


@pytest.mark.parametrize("id", TABLES)
def test_no_table_prints_what_is_not_a_number(id):
    for run in (inferred, lonely):
        shown = Show(run())(id).content
        assert run is lonely or isinstance(shown, Table)
        assert not [cell for cell in html(shown).select("td, th") if NOT_A_NUMBER.search(cell.get_text())]


def test_a_throughput_above_the_ceiling_is_marked_beside_itself():
    slow = synthetic.CEILINGS | {"matmul.float16": (0.5, "TFLOP/s")}
    study = {"implementations": ["sdpa.auto"], "timings": synthetic.STUDY["timings"][:1]}
    of = synthetic.infer(synthetic.Recipe(study=study, ceilings=slow, fates={}))
    assert values(target.to_beat(of))["its throughput (TFLOP/s)"] == "0.839 ‡"


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
