"""What is shown of a run's verdicts, beside counts and errors worked by hand."""

import re
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import synthetic
from matplotlib.colors import to_hex, to_rgb
from reading import column, exhibit, plain
from statsmodels.stats.multitest import multipletests
from synthetic import (
    GONE,
    ONE_BATCH,
    TARGET,
    VALUED_US,
    climbed,
    contradicted,
    controlled,
    few,
    inferred,
    lonely,
    valued,
)

from attnlab.exhibits import drawing
from attnlab.exhibits.catalogue import Show
from attnlab.exhibits.display import Figure
from attnlab.exhibits.environment import clocks
from attnlab.exhibits.verdicts import every, findings, target, values
from attnlab.exhibits.words import say
from attnlab.export.report import SECTIONS
from attnlab.infer import results, stats
from attnlab.infer.kinds import Steadiness, Stretch
from attnlab.infer.results import Results
from attnlab.study import values as kinds_of_values


def compared(of: Results) -> dict[tuple, stats.Verdict]:
    """Every verdict, each asked for alone."""
    there = {}
    for timing in of.timings:
        for shape in of.study.shapes:
            names = [name for name in of.at(shape, timing).index if name != "sdpa.auto"]
            there |= {(shape, timing, name): of.compare(name, shape, timing) for name in names}
    return there


# ------------------------------------------------------------------------------------------------------------- counts


def test_counts_are_of_every_comparison():
    all_of_them = compared(controlled())
    decisions = Counter(verdict.decision for verdict in all_of_them.values())
    total = exhibit(controlled, "verdicts.by_timing").frame.set_index("timing").loc["all"]
    assert total["comparisons"] == len(all_of_them) == len(exhibit(controlled, "verdicts.every").frame)
    for decision in ("faster", "slower", "equivalent", "inconclusive"):
        assert total[decision] == decisions[decision]
    assert total["claimable"] == sum(verdict.claimable for verdict in all_of_them.values())
    by_candidate = exhibit(controlled, "verdicts.by_candidate").frame.set_index("candidate")
    assert by_candidate["comparisons"].sum() == len(all_of_them)
    # 8 shapes under 2 timings; one shape too short for cuDNN
    assert by_candidate["comparisons"].to_dict() == {
        "sdpa.flash": 16, "sdpa.cudnn": 14, "sdpa.efficient": 16, "sdpa.math": 10
    }  # fmt: skip
    assert list(by_candidate.loc["sdpa.math", ["faster", "slower"]]) == [0, 10]
    assert f"{len(all_of_them)} comparisons with `sdpa.auto`" in plain(every.counted(controlled()))


def test_holm_over_all_at_once_is_statsmodels():
    of = controlled()
    alone, differing = [], []
    for (shape, timing, name), verdict in compared(of).items():
        sides = of.samples("sdpa.auto", shape, timing), of.samples(name, shape, timing)
        alone.append(stats.difference_pvalue(*sides, paired=True))
        differing.append(verdict.decision in ("faster", "slower"))
    kept = (multipletests(alone, method="holm")[1] < 0.05) & np.array(differing)
    told = plain(every.counted(of))
    assert f"{kept.sum()} of the {sum(differing)} that are faster or slower keep p < 0.05" in told
    assert "The candidates at one shape under one timing are a family, 16 in all" in told


def test_every_comparison_has_a_row():
    frame = exhibit(controlled, "verdicts.every").frame
    row = frame[(frame["B, H, S, D"] == "2, 4, 128, 64") & (frame["candidate"] == "sdpa.flash")].iloc[0]
    assert list(row[["mask", "timing", "decision", "regime"]]) == ["full", "device\nwarm", "faster, claimable", "burst"]
    assert row["speedup"] == controlled().compare("sdpa.flash", TARGET).speedup
    assert set(frame["mask"]) == {"full", "causal"}


# ---------------------------------------------------------------------------------------------------------- at a shape


def test_verdicts_at_the_target():
    table = target.verdicts(inferred(), TARGET)
    frame = table.frame.set_index("implementation")
    assert list(frame.index) == ["sdpa.auto", "sdpa.flash", "sdpa.cudnn", "sdpa.efficient", "sdpa.math"]
    assert table.highlight == 0
    assert [median.estimate for median in frame["median_us"]] == pytest.approx([40, 32, 40.2, 60, 160])
    assert list(frame["decision"]) == ["the baseline", "faster, claimable", "equivalent", "slower", "slower"]
    frame = frame.drop("sdpa.auto")
    assert [one.estimate for one in frame["speedup"]] == pytest.approx([1.25, 0.995, 0.6667, 0.25], abs=1e-3)
    assert list(frame["cliffs_delta"]) == [1, -1, -1, -1]
    step = np.hypot(0.004, 0.0032) / np.sqrt(2)  # pooled over both sides
    g = (1 - 3 / (4 * 158 - 1)) * 8 / (step * np.sqrt(synthetic.UNIFORM * 80 / 79))
    assert frame["hedges_g"]["sdpa.flash"] == pytest.approx(g, rel=5e-3)


def test_verdicts_where_the_noise_is_too_large():
    row = target.verdicts(inferred(), ONE_BATCH).frame.set_index("implementation").loc["sdpa.efficient"]
    assert (row["decision"], row["intervals_of_medians"]) == ("inconclusive", "overlap")
    assert row["p_holm"] > 0.05
    sides = [np.concatenate(inferred().samples(name, ONE_BATCH)) for name in ("sdpa.auto", "sdpa.efficient")]
    assert row["p (Mann-Whitney)"] == pytest.approx(scipy.stats.mannwhitneyu(*sides).pvalue)


def test_the_baseline_against_itself_comes_last():
    of = synthetic.infer(synthetic.Recipe(study=synthetic.AT_TARGET, control_pace=1.3))
    table = target.verdicts(of, TARGET)
    row = table.frame.iloc[-1]
    assert row["implementation"] == "sdpa.auto again"
    assert row["median_us"].estimate == pytest.approx(52)
    assert row["speedup"].estimate == pytest.approx(1 / 1.3, abs=1e-3)
    assert row[["decision", "intervals_of_medians", "regime"]].tolist() == ["slower", "apart", "burst"]
    assert pd.isna(row["p_holm"])
    assert "The minimum detectable effect is 30 %." in table.note
    assert list(table.frame["decision"][1:5]) == ["inconclusive", "inconclusive", "slower", "slower"]


def test_a_candidate_that_failed_has_its_reason_under_the_verdicts():
    table = target.verdicts(inferred(), synthetic.EIGHT_HEADS)
    assert "sdpa.math" not in list(table.frame["implementation"])
    assert "`sdpa.math` has no latency here: failed, after timing, graph: error against float64" in table.note
    fates = {("sdpa.auto", TARGET): ("failed", "before timing")}
    alone = synthetic.infer(synthetic.Recipe(study=synthetic.AT_TARGET, fates=fates))
    assert "`sdpa.auto` has no latency at" in target.verdicts(alone, TARGET).markdown
    assert "Nothing but `sdpa.auto` has a latency" in target.verdicts(lonely(), TARGET).markdown


def test_a_regime_is_of_both_sides():
    run = inferred().run
    flash = run.samples["throttled"] | (run.samples["implementation"] == "sdpa.flash")
    mixed = synthetic.changed(inferred(), samples=run.samples.assign(throttled=flash))
    frame = target.verdicts(mixed, TARGET).frame
    assert list(frame["regime"]) == ["burst", "mixed", "burst", "burst", "burst"]


def test_the_verdict_under_each_timing_is_a_speedup_with_a_sign():
    of = contradicted()
    table = target.timings(of, TARGET)
    (row,) = table.frame.to_dict("records")
    for timing, sign in zip(of.timings, "★▼", strict=True):
        assert row[str(timing)].value == of.compare("sdpa.flash", TARGET, timing).speedup
        assert row[str(timing)].mark[0] == sign
    assert table.caption.startswith("For 1 of 1 candidate, the verdict depends on the timing")
    assert "★ faster, claimable. ▼ slower." in table.legend
    assert (
        "The minimum detectable effect is 3.0 % by `device` warm, 3." in target.timings(synthetic.biased(), TARGET).note
    )


def test_what_must_be_beaten():
    table = target.to_beat(inferred())
    frame = table.frame.set_index("implementation")
    assert list(frame.index) == ["sdpa.auto", "sdpa.flash"]
    row = inferred().row("sdpa.auto", TARGET)
    for name in ("mean_us", "std_us", "throughput_tflops", "bandwidth_gbs", "floor_us"):
        assert frame[name]["sdpa.auto"] == row[name]
    assert frame["peak_memory_bytes"]["sdpa.auto"] == 2**19
    assert "a median below 36.36 µs" in table.note  # 40 / 1.1
    wide = inferred().table.assign(low_us=np.minimum(inferred().table["low_us"], 0.8 * inferred().table["median_us"]))
    assert "a median below 32.00 µs" in target.to_beat(synthetic.changed(inferred(), wide)).note


def test_a_statement_says_what_was_found_whichever_way_it_came_out():
    found = [(contradicted(), TARGET), (controlled(), TARGET), (synthetic.unclaimable(), TARGET), (valued(), TARGET)]
    found += [(few("sdpa.cudnn"), TARGET), (few("sdpa.efficient"), TARGET), (few("sdpa.efficient"), ONE_BATCH)]
    told = [re.sub(r"[\d.]+", "", plain(target.statement(run, shape))) for run, shape in found]
    assert len(set(told)) == len(told)
    assert ["but not claimable" in text for text in told] == [run is synthetic.unclaimable() for run, _ in found]


def test_a_run_is_summed_up_at_its_target_as_the_table_has_it():
    of = inferred()
    alone = results.at_target(of.run)
    first, *lines = target.in_short(alone).splitlines()
    assert first == f"{TARGET.label}, device clock, warm cache: sdpa.auto 40.000 [39.991, 40.009] µs, and over it"
    assert list(map(str.split, lines)) == [
        ["sdpa.flash", "1.2500", "[1.2499,", "1.2501]", "faster,", "claimable"],
        ["sdpa.cudnn", "0.9950", "[0.9949,", "0.9951]", "equivalent"],
        ["sdpa.efficient", "0.6667", "[0.6666,", "0.6667]", "slower"],
        ["sdpa.math", "0.2500", "[0.2500,", "0.2500]", "slower"],
    ]
    assert alone.compare("sdpa.flash", TARGET) == of.compare("sdpa.flash", TARGET)
    gone = synthetic.infer(synthetic.Recipe(study=synthetic.AT_TARGET, fates={("sdpa.flash", TARGET): GONE}))
    assert "  sdpa.flash      failed, before timing" in target.in_short(gone)


def test_the_abstract_and_the_findings_say_what_the_tables_do():
    assert "the verdict depends on the timing: faster by `device` warm (1.25" in plain(
        findings.abstract(contradicted())
    )
    assert "faster by `device` warm (1.25" in plain(findings.findings(contradicted()))
    assert "faster" not in plain(findings.abstract(lonely()))


def test_what_lies_between_operations_is_a_share_of_the_lead():
    timings = [{"clock": clock, "cache": "warm"} for clock in ("device", "cupti")]
    of = synthetic.infer(synthetic.Recipe(study=synthetic.AT_TARGET | {"timings": timings}))
    between = np.where(of.table["implementation"] == "sdpa.auto", 3.0, 1.0) * (of.table["clock"] == "cupti")
    table, cases = of.table.assign(median_us=of.table["median_us"] - between), of.run.cases
    told = plain(findings.at_target(synthetic.changed(of, table)))
    # 40 us and 32 us by `device`
    assert "A call of `sdpa.auto` runs a kernel and `second`. What `device` reads and `cupti` doesn't" in told
    assert "is 3.00 µs of `sdpa.auto` and 1.00 µs of `sdpa.flash`: 25 % of the lead." in told
    alike = synthetic.changed(of, table, cases=cases.assign(kernels=cases["kernels"].str.replace("math", "auto")))
    assert "`sdpa.auto` runs the kernel of `sdpa.math` and `second`." in plain(findings.at_target(alike))
    assert "of the lead" not in plain(findings.at_target(inferred()))


def test_the_mean_error_stands_beside_the_latency():
    table = exhibit(inferred, "verdicts.accuracy")
    assert [median.estimate for median in table.frame["median_us"]] == pytest.approx([40, 32, 40.2, 60, 160])
    assert set(table.frame["mean error"]) == {1e-4}
    assert list(table.frame["of the limit"]) == pytest.approx([50] * 5)
    assert "`kernel.pipelined` has no latency here: failed, before timing" in exhibit(climbed, "verdicts.accuracy").note
    gone = synthetic.changed(inferred(), checks=inferred().run.checks.head(0))
    shown = target.accuracy(gone, TARGET)
    assert "Nothing has both a latency and a checked error" in plain(shown)


# ------------------------------------------------------------------------------------------------- what comes first


def test_findings_are_those_that_a_run_has():
    box = Show(inferred())("verdicts.findings").content
    assert "**Published numbers.**" in box.text
    assert "**Power.**" not in box.text
    assert "**The ladder.** The fastest of" in Show(climbed())("verdicts.findings").content.text


def test_a_run_without_a_candidate_has_findings():
    show = Show(lonely())
    alone = "1. **Values.** At the target, all of this is of normal values alone.\n"
    assert show("verdicts.findings").content.text.startswith(f"{alone}2. **Published numbers.**")


def test_calibration_in_brief_is_that_of_runs_like_this_one():
    one = synthetic.infer(synthetic.Recipe(study=synthetic.AT_TARGET | {"replicates": 1}))
    several, single = (Show(run)("verdicts.calibration.brief").content for run in (inferred(), one))
    assert len(several.frame) == 6
    whole = exhibit(inferred, "verdicts.calibration").frame
    for brief, (replicates, processes) in ((several, (3, "differ")), (single, (1, "alike"))):
        like = whole[(whole["replicates"] == replicates) & (whole["processes"] == processes)]
        assert list(brief.frame["median covered"]) == list(like["median covered"])


def test_on_several_cards_calibration_in_brief_is_that_of_as_many_processes():
    study = synthetic.AT_TARGET | {"replicates": 6}
    run = synthetic.infer(synthetic.Recipe(study=study, cards=tuple((f"{number % 3}", 1.0) for number in range(6))))
    brief = Show(run)("verdicts.calibration.brief").content
    assert (
        f"each run of 3 processes that differ and 24 rounds; this run has 3 cards a shape and {synthetic.ROUNDS}"
        in brief.caption
    )


@pytest.mark.parametrize(
    ("stated", "fates", "why"),
    [
        ({"timings": synthetic.CPU["timings"][:1]}, {}, "it lacks the clocks of the study (device warm)."),
        ({}, {("sdpa.auto", TARGET): ("skipped", "no backend.")}, "`sdpa.auto` skipped, no backend."),
    ],
)
def test_a_run_without_samples_says_why_and_its_links_lead_somewhere(stated, fates, why):
    alone = {"implementations": ["sdpa.auto"], "sweeps": synthetic.AT_TARGET["sweeps"]}
    run = synthetic.infer(synthetic.Recipe("Imaginary X1", synthetic.CPU | alone | stated, fates=fates))
    assert len(run.run.samples) == 0
    assert f"Nothing was timed on the CPU (Imaginary X1, 2 threads): {why}" == plain(findings.abstract(run))
    assert len(clocks.clocks(run).frame) == len(run.study.timings)


# ---------------------------------------------------------------------------------------------------- kinds of values

TURNED = "**Whether `sdpa.flash` is faster than `sdpa.auto` depends on the values**"
ALONE = "At the target, all of this is of normal values alone."


def test_values_come_first():
    assert plain(exhibit(valued, "verdicts.values.said")).startswith(TURNED)
    assert SECTIONS["What may be published"][0] == "verdicts.values.said"
    for run, first in ((valued, TURNED), (inferred, ALONE)):
        assert exhibit(run, "verdicts.findings").text.startswith(f"1. **Values.** {first}")


KINDS = list(VALUED_US["sdpa.auto"])


def cells(figure: Figure) -> list[list[str]]:
    (axes,) = figure.figure.axes
    places = {text.get_position(): text.get_text() for text in axes.texts}
    assert len(places) == len(axes.texts)
    rows, columns = len(axes.get_yticks()), len(axes.get_xticks())
    return [[places[column, row] for column in range(columns)] for row in range(rows)]


def test_the_map_has_a_cell_for_each_case():
    figure = exhibit(valued, "verdicts.values")
    (axes,) = figure.figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == list(VALUED_US)
    assert [label.get_text() for label in axes.get_xticklabels()] == KINDS  # zeros too, as the last
    assert cells(figure) == [
        ["–" if us is None else f"{us:.1f}" for us in VALUED_US[name].values()] for name in VALUED_US
    ]


def test_what_takes_more_than_twice_as_long_as_the_baseline_on_every_kind_is_named_and_not_drawn():
    us = {"sdpa.auto": (40.0, 40.0), "sdpa.flash": (70.0, 90.0), "sdpa.math": (81.0, 82.0)}
    by_kind = {name: dict(zip(("normal", "sd 4"), pair, strict=True)) for name, pair in us.items()}
    figure = exhibit(lambda: synthetic.infer(synthetic.of_kinds(by_kind)), "verdicts.values")
    (axes,) = figure.figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["sdpa.auto", "sdpa.flash"]
    assert (
        "Not drawn is `sdpa.math`, which on every kind takes more than twice as long as `sdpa.auto`." in figure.caption
    )


def test_a_cell_is_coloured_by_its_ratio_to_the_first_kind():
    (axes,) = exhibit(valued, "verdicts.values").figure.axes
    assert not axes.images  # an image keeps its colours where the page is dark, and the numbers on it don't
    drawn = axes.collections[0].get_array()
    assert drawn[:, 0].filled(0).tolist() == pytest.approx([0] * 5)  # math has no latency on normal values
    flash = list(VALUED_US).index("sdpa.flash")
    assert float(drawn[flash, KINDS.index("rising 24")]) == pytest.approx(1)  # twice as long
    assert drawn.mask[flash + 3].all()


def luminance(colour: str) -> float:
    """By WCAG 2.2."""
    parts = np.array(to_rgb(colour))
    return float(np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722])


def test_the_numbers_can_be_read_on_every_cell_in_both_themes_and_the_reference_has_no_colour():
    shades = [to_hex(values.COLOURS(place)) for place in range(values.COLOURS.N)]
    assert shades[len(shades) // 2] == "#ffffff"
    for theme in (str, lambda colour: drawing.inverted(colour[1:])):
        ink = luminance(theme("#000000")) + 0.05
        for cell in (luminance(theme(shade)) + 0.05 for shade in shades):
            assert max(ink, cell) / min(ink, cell) >= 4.5


def test_of_which_implementations_the_values_matter_is_said_of_all():
    found = Steadiness([f"kernel.{name}" for name in "abcde"], [Stretch("kernel.f", 1.42, "scales")], ["kernel.g"])
    assert say("verdicts.steadiness", s=found) == (
        "5 of 7 implementations take the same time on all kinds within 5 %, and whether `kernel.g` does can't be told; "
        "`kernel.f` takes 1.42× as long on its slowest kind of values (scales) as on its fastest."
    )


def test_every_other_shape_of_several_kinds_has_a_map():
    group = exhibit(valued, "verdicts.values.elsewhere")
    (figure,) = group.parts.values()
    (axes,) = figure.figure.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["sd 4", "normal"]


def test_each_kind_is_listed_once_with_its_words():
    table = exhibit(valued, "verdicts.kinds")
    assert column(table, "values") == KINDS
    assert column(table, "what they are") == [kinds_of_values.about(kind) for kind in KINDS]
    assert "`zeros` are in no verdict over all kinds" in table.note
    assert "by 8 nats" in table.frame.set_index("values").loc["sink 8", "what they are"]
    assert "section 3" in table.frame.set_index("values").loc["sink 8", "source"]


def test_of_a_run_without_kinds_the_findings_name_the_other_and_the_abstract_claims_nothing_of_it():
    mine = synthetic.changed(inferred(), name="mine")
    show = Show(mine, {"valued": valued})
    abstract = plain(show("verdicts.abstract").content)
    assert "kinds of values" not in abstract
    assert "At the target, all of this is of normal values alone." in abstract
    assert "kinds of values" in plain(exhibit(valued, "verdicts.abstract"))
    first = show("verdicts.findings").content.text.splitlines()[0]
    assert first.startswith(f"1. **Values.** {TURNED}")
    assert first.endswith(f"(Run `{valued().run.name}`.)")
    assert (show("verdicts.abstract").run, show("verdicts.kinds").run) == ("mine", valued().run.name)
