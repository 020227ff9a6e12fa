"""What is shown of a run with kernels, and of one without."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import synthetic
from reading import NOT_A_NUMBER, first_number, html, plain
from synthetic import LONG, PACE, RUNGS, SHORT, TARGET, climbed, inferred, latency_us

from attnlab.exhibits import catalogue, style
from attnlab.exhibits.catalogue import Show
from attnlab.exhibits.display import Missing, Prose, Table
from attnlab.exhibits.kernels import ablation, climb, lead
from attnlab.exhibits.verdicts import abstract
from attnlab.infer.results import Results
from attnlab.infer.stats import Interval
from attnlab.study import studies

ELSEWHERE = ("kernels.overview", "kernels.carried")
"""What other tests look at: it is shown without kernels too, or only beside a run on another device."""
SHOWN = [id for id in catalogue.every() if id.startswith("kernels.") and id not in ELSEWHERE]
BEFORE = {"tiled": "naive", "mma": "tiled", "swizzled": "mma"}
"""The rungs of which the one before has a latency at the target, too."""


def by_rung(table: Table) -> pd.DataFrame:
    return table.frame.assign(rung=table.frame["rung"].str.split("\n").str[0]).set_index("rung")


@pytest.mark.parametrize("id", SHOWN)
def test_nothing_shown_is_not_a_number(id):
    told = html(Show(climbed())(id).content).get_text()
    assert not NOT_A_NUMBER.search(told)
    assert not re.search(r"\b1 (checks|CTAs|shapes|comparisons)\b", told)


@pytest.mark.parametrize("id", SHOWN)
def test_a_run_without_kernels_shows_nothing(id):
    assert Show(inferred())(id).content is None


def test_a_run_without_kernels_says_so_once():
    assert climb.overview(inferred()) == Missing("*This run measured no hand-written kernel.*")
    assert climb.standing_sentence(inferred()) == ""


def test_the_rungs_are_listed_with_what_the_gate_said():
    lines = plain(climb.overview(climbed())).splitlines()
    assert lines[0] == "1. `kernel.naive`, step 1 (`kernels/1_naive.cu`)"
    assert [line.split("`")[1] for line in lines] == [f"kernel.{name}" for name in RUNGS]
    assert [line for line in lines if "refused by the gate at 1 shape" in line] == [lines[4]]


def test_kernels_that_changed_are_named(monkeypatch):
    monkeypatch.setattr(climb, "stale_kernels", lambda run: ["kernel.mma"])
    assert "`kernel.mma` has changed since this run was recorded, or is gone" in plain(climb.stale(climbed()))
    monkeypatch.setattr(climb, "stale_kernels", lambda run: ["kernel.mma", "kernel.tiled"])
    assert "`kernel.mma` and `kernel.tiled` have changed" in plain(climb.stale(climbed()))
    monkeypatch.setattr(climb, "stale_kernels", lambda run: [])
    assert climb.stale(climbed()) is None


def test_errors_stand_beside_the_frameworks():
    frame = climb.correctness(climbed()).frame.set_index("implementation")
    assert list(frame.index[:6]) == [f"kernel.{name}" for name in RUNGS]
    assert list(frame.index[6:]) == ["sdpa.auto", "sdpa.flash", "sdpa.cudnn"]
    # 11 shapes, 2 replicates, 2 moments; refused before timing at the target; one length skipped
    assert frame["passed"].to_dict()["kernel.pipelined"] == "40 of 42"
    assert frame["passed"].to_dict()["kernel.naive"] == "40 of 40"
    assert frame.loc["kernel.pipelined", "largest error"] == "0.00500"
    assert frame.loc["kernel.pipelined", "framework's"] == "0.00100"


def test_errors_are_told_by_kind_of_input():
    checks = climbed().run.checks
    kinds = np.where(np.arange(len(checks)) % 2, "large logits", "normal")
    of = Results(replace(climbed().run, checks=checks.assign(inputs=kinds)), climbed().table)
    frame = climb.correctness(of).frame
    assert list(frame["inputs"].unique()) == ["normal", "large logits"]
    assert len(frame) == 2 * 9


def test_resources_are_the_drivers():
    frame = by_rung(climb.compiled(climbed(), TARGET))
    row = frame.loc["kernel.swizzled"]
    assert (row["registers"], row["shared, static (KiB)"], row["shared, dynamic (KiB)"]) == ("168", "1", "48")
    assert (row["CTAs per SM"], row["occupancy"], row["limited by"]) == ("3", "19 %", "registers")
    assert pd.isna(frame.loc["kernel.pipelined", "registers"])


def with_resources(**columns) -> Results:
    """The run with kernels, with other columns in its resources."""
    return Results(replace(climbed().run, resources=climbed().run.resources.assign(**columns)), climbed().table)


def test_instances_are_shown_where_there_are_several_for_a_shape():
    used = climbed().run.resources
    by_length = np.where(used["seq_len"] >= 128, "long", "short")
    functions = used["function"].where(used["implementation"] != "kernel.mma", by_length)
    shown = climb.compiled(with_resources(function=functions), TARGET)
    assert shown.parts["resources"].markdown == climb.compiled(climbed(), TARGET).markdown
    frame = shown.parts["instances"].frame
    assert set(frame["implementation"]) == {"kernel.mma"}
    ran = frame.set_index("instance")["ran at"].to_dict()
    assert set(ran) == {"short", "long"}
    assert "B=2 H=4 S=32" in ran["short"]
    assert "B=2 H=4 S=128, " in ran["long"]


def test_instances_of_the_best_are_always_shown():
    names = climbed().run.resources["implementation"].replace({"kernel.wgmma": "kernel.best"})
    frame = climb.compiled(with_resources(implementation=names), TARGET).parts["instances"].frame
    assert set(frame["implementation"]) == {"kernel.best"}
    assert frame["instance"].tolist() == ["kernel.wgmma"]


def test_another_mask_is_no_other_instance():
    used = climbed().run.resources
    functions = used["function"] + used["causal"].astype(str)
    assert functions.nunique() == 2 * used["function"].nunique()
    shown = climb.compiled(with_resources(function=functions), TARGET)
    assert shown.markdown == climb.compiled(climbed(), TARGET).markdown


def test_the_best_is_no_step_of_the_climb():
    study = synthetic.LADDER.study | synthetic.AT_TARGET | {"implementations": ["sdpa.auto", "kernel.tiled"]}
    tiled = synthetic.infer(synthetic.Recipe(study=study, fates={}))
    manifest = tiled.run.manifest
    named = manifest["study"] | {"implementations": [*manifest["study"]["implementations"], "kernel.best"]}
    both = Results(replace(tiled.run, manifest=manifest | {"study": named}), tiled.table)
    assert "kernel.best" in both.study.implementations
    (axes,) = climb.climb(both, TARGET).figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["kernel.tiled", "sdpa.auto"]


# ------------------------------------------------------------------------------------------------------------- ladder


def test_the_ladder_is_of_paired_rounds():
    frame = by_rung(climb.ladder(climbed(), TARGET))
    assert list(frame.index) == [*(f"kernel.{n}" for n in RUNGS), "sdpa.auto", "sdpa.flash", "sdpa.cudnn"]
    pace = {name: synthetic.PACE[name] for name in frame.index}
    for name in frame.index.drop("kernel.pipelined"):
        assert first_number(frame.loc[name, "median (µs) [95 %]"]) == pytest.approx(40 * pace[name])
        if name != "sdpa.flash":
            flash = pace["sdpa.flash"] / pace[name]
            assert first_number(frame.loc[name, "over sdpa.flash"]) == pytest.approx(flash, abs=1e-3)
    for name, before in BEFORE.items():
        expected = pace[f"kernel.{before}"] / pace[f"kernel.{name}"]
        assert first_number(frame.loc[f"kernel.{name}", "over the rung before"]) == pytest.approx(expected, abs=1e-3)
    assert frame.loc[["kernel.naive", "kernel.wgmma", "sdpa.auto"], "over the rung before"].isna().all()
    assert frame.loc["kernel.tiled", "TFLOP/s"] == "0.210"  # 33554432 FLOPs in 160 µs
    assert frame.loc["kernel.tiled", "light"] == "10 %"  # 16.8 of 160


def test_a_rung_without_a_latency_has_its_reason():
    table = climb.ladder(climbed(), TARGET)
    assert by_rung(table).loc["kernel.pipelined", "what it changes":].drop("what it changes").isna().all()
    assert "`kernel.pipelined` has no latency here: failed, before timing" in table.note
    assert "`kernel.naive` has no latency here: skipped, one call takes 31 ms" in climb.ladder(climbed(), LONG).note


def test_the_picture_of_the_ladder():
    drawn = climb.climb(climbed(), TARGET)
    (axes,) = drawn.figure.axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == [*(f"kernel.{n}" for n in RUNGS), "sdpa.auto", "sdpa.flash", "sdpa.cudnn"]
    widths = [bar.get_width() for bar in axes.patches]
    timed = [name for name in names if name != "kernel.pipelined"]
    assert widths == pytest.approx([100 * 16.777216 / (40 * synthetic.PACE[name]) for name in timed])
    labels = [text.get_text() for text in axes.texts]
    assert labels[0] == "400 µs"
    assert labels[4].startswith("failed, before timing")
    (line,) = (line for line in axes.get_lines() if line.get_linestyle() == ":")
    assert line.get_xdata()[0] == pytest.approx(max(widths[-3:]))
    assert drawn.svg == climb.climb(climbed(), TARGET).svg


def test_rungs_look_different():
    looks = [tuple(style.look(f"kernel.{name}")[key] for key in ("color", "marker")) for name in RUNGS]
    assert len(set(looks)) == len(looks)
    assert style.look("kernel.mine") == style.look("kernel.mine")
    assert style.look("kernel.mine")["color"] not in {colour for colour, _ in style.LOOKS.values()}


def test_where_the_best_rung_stands():
    told = climb.standing_sentence(climbed())
    assert told.startswith("The fastest of 5 hand-written kernels, `kernel.wgmma`, takes 36.0")
    assert "Compared with `sdpa.flash`, SDPA's fastest backend, it is slower by `device` warm (0.8889 [" in told
    assert told in plain(abstract.abstract(climbed()))
    fast = synthetic.AT_TARGET | {"implementations": ["sdpa.auto", "sdpa.cudnn", "kernel.wgmma"]}
    one = synthetic.infer(synthetic.Recipe(study=synthetic.LADDER.study | fast, fates={}))
    told = climb.standing_sentence(one)
    assert told.startswith("The hand-written kernel `kernel.wgmma` takes 36.0")
    assert "Compared with `sdpa.cudnn`, SDPA's fastest backend, it is faster by `device` warm (1.1167 [" in told
    gone = {("kernel.wgmma", TARGET): ("failed", "before timing")}
    none = synthetic.infer(synthetic.Recipe(study=synthetic.LADDER.study | fast, fates=gone))
    assert climb.standing_sentence(none) == "The hand-written kernel has no latency at the target."


def test_the_best_is_set_beside_whoever_else_is_the_fastest_at_each_shape():
    named = ["sdpa.auto", "sdpa.flash", "sdpa.cudnn", "peer.flash4", "kernel.wgmma", "kernel.best"]
    sweeps = {"seq_len": synthetic.STUDY["sweeps"]["seq_len"]}
    study = synthetic.LADDER.study | {"implementations": named, "sweeps": sweeps}
    missing = {("sdpa.flash", TARGET): ("failed", "before timing")}
    led = synthetic.infer(synthetic.Recipe(study=study, fates=missing))
    told = lead.sentence(led)
    slowest = latency_us("sdpa.flash", SHORT) / latency_us("kernel.best", SHORT)
    ratios = [slowest, PACE["peer.flash4"] / PACE["kernel.best"]]
    assert [float(one) for one in re.findall(r"([0-9.]+)×", told)] == pytest.approx(ratios, rel=0.01)
    assert told.startswith("At each shape, the fastest of `sdpa.flash`, `sdpa.cudnn` and `peer.flash4` takes ")
    count = len(led.study.shapes)
    assert f" the interval of the ratio is above 1 at {count - 1} of {count} shapes. " in told
    claimable = sum(one.speedup.estimate >= 1.1 for one in lead._leads(led, led.headline).values())
    assert 0 < claimable < count
    assert told.endswith(f" By `device` warm it is 1.10 or more, which a claim needs, at {claimable} of {count}.")
    assert told in plain(abstract.abstract(led))
    cells = lead.table(led).frame.set_index("shape")["device warm"]
    assert {shape: cell.split()[-1] for shape, cell in cells.items()} == {
        shape.label: "peer.flash4" if shape == TARGET else "sdpa.flash" for shape in led.study.shapes
    }


def test_without_the_best_there_is_no_lead():
    assert lead.sentence(climbed()) == ""
    assert lead.table(climbed()).markdown == "*`kernel.best` was measured beside no other implementation.*"


# ----------------------------------------------------------------------------------------------------------- ablation


def test_the_ablation_is_a_family_of_its_own():
    frame = by_rung(ablation.ablation(climbed(), TARGET))
    assert "over the 3 comparisons of this table" in ablation.ablation(climbed(), TARGET).note
    there = frame.loc[[f"kernel.{name}" for name in BEFORE]]
    assert [first_number(cell) for cell in there["speedup [95 %]"]] == pytest.approx([2.5, 0.8, 4.0], rel=1e-3)
    assert [cell.split("\n") for cell in there["expected"]] == [
        ["2.50×", "reached"],
        ["3.00×", "missed"],
        ["5.00×", "missed"],
    ]
    assert [cell.split("\n")[0] for cell in there["latency"]] == ["−60.0 %", "+25.0 %", "−75.0 %"]
    assert list(there["Cliff's delta"]) == ["+1.00\nlarge", "−1.00\nlarge", "+1.00\nlarge"]
    assert list(there["intervals"]) == ["apart"] * 3
    assert list(there["verdict"]) == ["faster,\nclaimable", "slower", "faster,\nclaimable"]
    assert list(there["registers"]) == ["40 →\n96", "96 →\n128", "128 →\n168"]
    assert list(there["shared memory (KiB)"]) == ["1 →\n17", "17 →\n33", "33 →\n49"]
    assert list(there["CTAs per SM"]) == ["16 →\n5", "5 →\n4", "4 →\n3"]
    assert list(there["light"]) == ["4.2 % →\n10 %", "10 % →\n8.4 %", "8.4 % →\n34 %"]
    assert frame.loc[["kernel.naive", "kernel.pipelined", "kernel.wgmma"], "verdict"].isna().all()


def test_holm_is_over_the_pairs_and_no_others():
    pairs = [("kernel.naive", "kernel.tiled"), ("sdpa.auto", "sdpa.cudnn")]
    together = climbed().compare_pairs(pairs, TARGET)
    alone = [climbed().compare_pairs([pair], TARGET)[0] for pair in pairs]
    assert together[0].pvalue == pytest.approx(2 * alone[0].pvalue)
    assert [verdict.speedup for verdict in together] == [verdict.speedup for verdict in alone]
    assert climbed().compare_pairs([], TARGET) == []


def test_a_table_for_each_rung():
    group = ablation.ablations(climbed(), TARGET)
    assert list(group.parts) == list(RUNGS)
    assert [type(part) for part in group.parts.values()] == [Prose, Table, Table, Table, Prose, Prose]
    card = group.parts["mma"]
    assert card.caption == "`kernel.mma`, step 3. *Hypothesis:* Chosen, so that mma takes as long as it does."
    assert card.note.startswith("**Slower.** A loss: a speedup of 0.8000 [")
    assert list(card.frame.columns[1:3]) == ["kernel.tiled", "kernel.mma"]
    rows = card.frame.set_index(card.frame.columns[0])
    assert rows.loc["median (µs)"].tolist()[:2] == ["160.0", "200.0"]
    assert rows.loc["CTAs per SM"].tolist()[:2] == ["5", "4"]
    assert first_number(rows.loc["speedup, 3.00× expected", "change"]) == pytest.approx(0.8)
    html = group._repr_mimebundle_()["text/html"]
    assert html.count("<table>") == 3
    assert "It is the first rung." in html


def test_lessons_say_losses_as_plainly_as_gains():
    told = dict(zip(RUNGS, plain(ablation.lessons(climbed(), TARGET)).splitlines(), strict=True))
    assert told["naive"].endswith("It is the first rung.")
    assert "The expectation was reached: 2.5000 [" in told["tiled"]
    assert "A loss: a speedup of 0.8000 [" in told["mma"]
    assert told["mma"].endswith("over `kernel.tiled`, where 3.00× was expected.")
    assert "The expectation was missed: 4.0" in told["swizzled"]
    assert told["swizzled"].endswith("where 5.00× was expected, 75 % of that gain.")
    assert "It has no latency here: failed, before timing" in told["pipelined"]
    assert "The rung before, `kernel.pipelined`, has no latency here" in told["wgmma"]


@pytest.mark.parametrize(
    ("expected", "measured", "outcome"),
    [
        (1.5, (1.5, 1.49, 1.51), "reached"),
        (1.5, (1.47, 1.46, 1.48), "reached"),  # within 2 %
        (1.5, (1.4, 1.39, 1.41), "missed"),
        (1.5, (1.6, 1.55, 1.65), "exceeded"),
        (1.5, (1.2, 0.9, 1.6), "reached"),  # inconclusive
    ],
)
def test_what_became_of_an_expectation(expected, measured, outcome):
    assert ablation.outcome(expected, Interval(*measured)) == outcome


def test_a_gain_within_the_margin_is_none():
    pace = {"kernel.tiled": 9.95, "kernel.mma": 9.95}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in pace.items():
            patch.setitem(synthetic.PACE, name, value)
        recipe = replace(synthetic.LADDER, study=synthetic.LADDER.study | synthetic.AT_TARGET)
        told = plain(ablation.lessons(synthetic.infer(recipe), TARGET)).splitlines()
    assert "No gain: 1.0050 [" in told[1]
    assert "No gain: 1.0000 [" in told[2]


# ----------------------------------------------------------------------------------------------------------- geometry


def test_geometry():
    frame = climb.geometry(climbed(), synthetic.L4_SHAPES[-1]).frame.set_index("rung")
    row = frame.loc["kernel.wgmma (persistent)"]
    assert row[["work items", "CTAs", "at once"]].tolist() == ["1,024", "132", "132"]
    assert (row["waves"], row["last wave"], row["SMs with work"]) == ("7.76", "76 %", "100 %")
    row = frame.loc["kernel.tiled"]
    assert row[["CTAs", "CTAs per SM", "at once"]].tolist() == ["1,024", 5, "660"]
    assert (row["waves"], row["last wave"]) == ("1.55", "55 %")
    assert "work items differ in size" in climb.geometry(climbed(), synthetic.L4_SHAPES[-1]).note
    assert "work items differ in size" not in climb.geometry(climbed(), TARGET).note


def test_one_rung_alone_has_no_ablation():
    study = synthetic.LADDER.study | synthetic.AT_TARGET | {"implementations": ["sdpa.auto", "kernel.tiled"]}
    alone = synthetic.infer(synthetic.Recipe(study=study, fates={}))
    assert "No rung and the one before it both have a latency" in plain(ablation.ablation(alone, TARGET))
    told = plain(ablation.lessons(alone, TARGET))
    assert "The rung before, `kernel.naive`, has no latency here: not in this study." in told


NOT_REACHED = {
    "kernels.correctness": "*Nothing was measured for “Errors of the kernels and of SDPA's backends”.*",
    "kernels.compiled": "*No kernel was launched at (2, 4, 128, 64) float16.*",
    "kernels.climb": "*Nothing has a speed of light at (2, 4, 128, 64) float16.*",
    "kernels.ladder": "| kernel.wgmma | step 6 | — | — | — | — |",
    "kernels.standing": "Not one of the 6 hand-written kernels has a latency at the target.",
    "kernels.lead": "*`kernel.best` was measured beside no other implementation.*",
    "kernels.geometry": "*Nothing was measured for “Launch geometry at (2, 4, 128, 64) float16”.*",
    "kernels.ablation": "*No rung and the one before it both have a latency at (2, 4, 128, 64) float16.*",
    "kernels.summary": "*No rung and the one before it both have a latency at (2, 4, 128, 64) float16.*",
    "kernels.ablations": "takes as long as it does. It has no latency here: not reached yet.",
    "kernels.lessons": "- `kernel.wgmma`, step 6. It has no latency here: not reached yet.",
    "kernels.l4.errors": "This run made no checks at that shape.",
    "kernels.l4": "*No rung has a latency at the five causal configurations",
    "kernels.l4.geometry": "*No rung was launched at the five causal configurations",
}
OF_THE_REPORT = ("kernels.l4.work", "kernels.l4.finding", "kernels.l4.limits")
"""They recompute what the L4 report states, and nothing of the run's."""


def test_a_run_whose_kernels_were_not_reached():
    cut = synthetic.infer(synthetic.Recipe(study=synthetic.LADDER.study, fates={}, shapes=0))
    shown = {id: Show(cut)(id).markdown for id in SHOWN if id != "kernels.stale"}
    for id, told in NOT_REACHED.items():
        assert told in shown.pop(id)
    for id in OF_THE_REPORT:
        assert shown.pop(id) == Show(climbed())(id).markdown
    parallelism = shown.pop("kernels.l4.parallelism")
    assert Show(climbed())("kernels.l4.parallelism").markdown.startswith(f"{parallelism} In this run, the widest grid")
    assert not shown


def test_the_synthetic_study_is_one():
    assert studies.recorded({"name": "synthetic", "study": synthetic.LADDER.stated}).shapes
