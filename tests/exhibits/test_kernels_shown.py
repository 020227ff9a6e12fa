"""What is shown of a run with kernels, and of one without."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import synthetic
from reading import plain
from synthetic import LONG, RUNGS, TARGET, changed, climbed, inferred

from attnlab.exhibits import catalogue
from attnlab.exhibits.backends import few
from attnlab.exhibits.catalogue import Show
from attnlab.exhibits.display import Missing, Prose
from attnlab.exhibits.kernels import ablation, climb, compiled, lead
from attnlab.exhibits.verdicts import findings
from attnlab.infer.kernels.cross_device import CrossDevice
from attnlab.infer.kernels.leads import Lead, Leads
from attnlab.infer.kernels.steps import steps
from attnlab.infer.results import Results
from attnlab.infer.stats import Interval

COMPILED = "kernels.compiled"
ELSEWHERE = ("kernels.cross_device", "kernels.fp8", "kernels.fp8.costs")
SHOWN = [id for id in catalogue.every() if id.startswith("kernels.") and id not in ELSEWHERE]
"""Without what is shown beside a run on another device alone, or of a run with FP8."""
BEFORE = {"tiled": "naive", "mma": "tiled", "swizzled": "mma"}
"""The rungs of which the one before has a latency at the target, too."""


def by_rung(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.set_index("rung")


@pytest.mark.parametrize("id", SHOWN)
def test_a_run_without_kernels_says_so_once(id):
    said = Missing("*This run measured no hand-written kernel.*") if id == COMPILED else None
    assert Show(inferred())(id).content == said


def test_kernels_that_changed_are_named(monkeypatch):
    some = frozenset(climbed().study.shapes[:1])
    for found, words in (
        ({"kernel.mma": None}, "`kernel.mma` changed since"),
        ({"kernel.mma": None, "kernel.best": some}, "`kernel.mma` and `kernel.best` (at 1 shape) changed since"),
    ):
        monkeypatch.setattr(climb, "stale_kernels", lambda run, found=found: found)
        assert words in plain(climb.stale(climbed()))
    monkeypatch.setattr(climb, "stale_kernels", lambda run: {})
    assert climb.stale(climbed()) is None


# ---------------------------------------------------------------------------------------------------------- resources


def test_resources_and_geometry_have_their_columns():
    parts = compiled.compiled(climbed(), TARGET).parts
    row = by_rung(parts["resources"].frame).loc["kernel.swizzled"]
    assert (row["registers"], row["shared, static (KiB)"], row["shared, dynamic (KiB)"]) == (168, 1024, 48 * 1024)
    assert (row["CTAs per SM"], row["occupancy"], row["limited by"]) == (3, 18.75, "registers")
    assert "kernel.pipelined" not in by_rung(parts["resources"].frame).index
    assert "work items differ in size" not in parts["grid"].note
    grid = compiled.compiled(climbed(), synthetic.L4_SHAPES[-1]).parts["grid"]
    assert by_rung(grid.frame).loc["kernel.wgmma"].tolist() == [
        *("yes", 1024, 132, 132, pytest.approx(1024 / 132), pytest.approx(100 * 100 / 132), 100)
    ]
    assert "work items differ in size" in grid.note


def with_resources(**columns) -> Results:
    """The run with kernels, with other columns in its resources."""
    return changed(climbed(), resources=climbed().run.resources.assign(**columns))


def test_instances_are_shown_where_there_are_several_for_a_shape():
    used = climbed().run.resources
    by_length = np.where(used["seq_len"] >= 128, "long", "short")
    functions = used["function"].where(used["implementation"] != "kernel.mma", by_length)
    frame = compiled.compiled(with_resources(function=functions), TARGET).parts["instances"].frame
    assert set(frame["implementation"]) == {"kernel.mma"}
    ran = frame.set_index("instance")["ran at"].to_dict()
    assert set(ran) == {"short", "long"}
    assert "B=2 H=4 S=32" in ran["short"]
    assert "B=2 H=4 S=128, " in ran["long"]
    on_kinds = [TARGET.resized(seq_len=length, values=kind) for length in (64, 128) for kind in ("normal", "sink 4")]
    assert compiled._sizes(on_kinds) == "B=2 H=4 S=64, 128, 2 kinds of values"


def test_instances_of_the_best_are_always_shown():
    names = climbed().run.resources["implementation"].replace({"kernel.wgmma": "kernel.best"})
    frame = compiled.compiled(with_resources(implementation=names), TARGET).parts["instances"].frame
    assert set(frame["implementation"]) == {"kernel.best"}
    assert frame["instance"].tolist() == ["kernel.wgmma"]


def test_another_mask_is_no_other_instance():
    used = climbed().run.resources
    functions = used["function"] + used["causal"].astype(str)
    assert functions.nunique() == 2 * used["function"].nunique()
    assert "instances" not in compiled.compiled(with_resources(function=functions), TARGET).parts


# ------------------------------------------------------------------------------------------------------------- ladder


def test_the_best_is_no_step_of_the_climb():
    study = synthetic.LADDER.study | synthetic.AT_TARGET | {"implementations": ["sdpa.auto", "kernel.tiled"]}
    tiled = synthetic.infer(synthetic.Recipe(study=study, fates={}))
    stated = tiled.run.manifest["study"]
    both = changed(tiled, manifest={"study": stated | {"implementations": [*stated["implementations"], "kernel.best"]}})
    assert "kernel.best" in both.study.implementations
    (axes,) = climb.climb(both, TARGET).figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["kernel.tiled", "sdpa.auto"]


def test_the_ladder_is_of_paired_rounds():
    frame = by_rung(climb.ladder(climbed(), TARGET).frame)
    assert list(frame.index) == [*(f"kernel.{n}" for n in RUNGS), "sdpa.auto", "sdpa.flash", "sdpa.cudnn"]
    pace = {name: synthetic.PACE[name] for name in frame.index}
    for name in frame.index.drop("kernel.pipelined"):
        assert frame.loc[name, "median_us"].estimate == pytest.approx(40 * pace[name], rel=5e-3)
        if name != "sdpa.flash":
            flash = pace["sdpa.flash"] / pace[name]
            assert frame.loc[name, "over sdpa.flash"].estimate == pytest.approx(flash, abs=1e-3)
    for name, before in BEFORE.items():
        expected = pace[f"kernel.{before}"] / pace[f"kernel.{name}"]
        assert frame.loc[f"kernel.{name}", "over the rung before"].estimate == pytest.approx(expected, abs=1e-3)
    assert frame.loc[["kernel.naive", "kernel.wgmma", "sdpa.auto"], "over the rung before"].isna().all()
    assert frame.loc["kernel.tiled", "throughput_tflops"] == pytest.approx(0.21, abs=1e-3)  # 33554432 FLOPs in 160 µs
    assert frame.loc["kernel.tiled", "speed_of_light_pct"] == pytest.approx(100 * 16.777 / 160, abs=0.1)


def test_a_rung_without_a_latency_has_its_reason():
    table = climb.ladder(climbed(), TARGET)
    assert by_rung(table.frame).loc["kernel.pipelined", "what it changes":].drop("what it changes").isna().all()
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


def at_target(fates, *names: str) -> Results:
    study = synthetic.LADDER.study | synthetic.AT_TARGET | {"implementations": list(names)}
    return synthetic.infer(synthetic.Recipe(study=study, fates=fates))


def test_where_the_best_rung_stands_is_said():
    gone = {(name, TARGET): ("failed", "before timing") for name in ("kernel.wgmma", "kernel.mma")}
    baseline_gone = {("sdpa.auto", TARGET): ("failed", "before timing")}
    runs = [
        inferred(),
        climbed(),
        at_target({}, "sdpa.auto", "sdpa.cudnn", "kernel.wgmma"),
        at_target(gone, "sdpa.auto", "kernel.wgmma"),
        at_target(gone, "sdpa.auto", "kernel.wgmma", "kernel.mma"),
        at_target(baseline_gone, "sdpa.auto", "kernel.wgmma"),
    ]
    told = [climb.standing_sentence(run) for run in runs]
    assert told[0] == ""
    assert len(set(told)) == len(told)
    assert told[1] in plain(findings.findings(climbed()))


def test_the_lead_of_the_best_is_said(monkeypatch):
    led = synthetic.led()
    told, count = lead.sentence(led), len(led.study.shapes)
    assert f"{count - 1} of {count} shapes" in told
    assert told in plain(findings.findings(led))
    monkeypatch.setattr(few, "ahead_of_it", lambda _: ["peer.flash4"])
    abstract = plain(findings.abstract(led, decoded=led))
    assert "none of them is decoding, where `peer.flash4` leads at some." in abstract
    monkeypatch.setattr(Leads, "cached", 1)
    assert " shapes. In a run of few queries, `peer.flash4` leads at some." in plain(
        findings.abstract(led, decoded=led)
    )
    frame = lead.table(led).frame.set_index("shape")
    assert frame.loc[TARGET.label, "device warm"].name == "over peer.flash4"
    assert lead.sentence(climbed()) == ""
    assert isinstance(lead.table(climbed()), Missing)


# ----------------------------------------------------------------------------------------------------------- ablation


def test_the_ablation_has_what_was_expected_and_what_came_of_it():
    table, _ = ablation.ablation(climbed(), TARGET).parts.values()
    frame = by_rung(table.frame)
    assert list(frame.index) == [f"kernel.{name}" for name in BEFORE]
    assert list(frame["over"]) == [f"kernel.{before}" for before in BEFORE.values()]
    assert list(frame["expected"]) == [2.5, 3.0, 5.0]
    assert list(frame["outcome"]) == ["reached", "missed", "missed"]
    assert list(frame["verdict"]) == ["faster, claimable", "slower", "faster, claimable"]
    assert "over the 3 comparisons of this table" in table.note


def test_lessons_say_losses_as_plainly_as_gains():
    hypotheses = ablation.ablation(climbed(), TARGET).parts["hypotheses"].markdown
    told = dict(zip(RUNGS, hypotheses.split("\n\n"), strict=True))
    assert [name for name, said in told.items() if "A loss" in said] == ["mma"]
    assert [name for name, said in told.items() if "was reached" in said] == ["tiled"]
    assert [name for name, said in told.items() if "has no latency here" in said] == ["pipelined", "wgmma"]


def test_a_gain_within_the_margin_is_none():
    with pytest.MonkeyPatch.context() as patch:
        for name in ("kernel.tiled", "kernel.mma"):
            patch.setitem(synthetic.PACE, name, 9.95)
        recipe = replace(synthetic.LADDER, study=synthetic.LADDER.study | synthetic.AT_TARGET)
        told = ablation.ablation(synthetic.infer(recipe), TARGET).parts["hypotheses"].markdown.split("\n\n")
    assert "No gain: 1.0050 [" in told[1]
    assert "No gain: 1.0000 [" in told[2]


def test_one_rung_alone_has_no_ablation():
    alone = at_target({}, "sdpa.auto", "kernel.tiled")
    shown = ablation.ablation(alone, TARGET)
    assert list(shown.parts) == ["hypotheses"]
    assert "The rung before, `kernel.naive`, has no latency here: not in this study." in shown.markdown
    assert isinstance(ablation.summary(alone, TARGET), Missing)


def test_the_summary_has_a_row_for_each_rung():
    table = ablation.summary(climbed(), TARGET)
    assert table.frame["rung"].tolist() == [f"kernel.{name}" for name in RUNGS]
    assert table.caption.startswith("Of 3 expectations of the ladder, 1 reached and 2 missed: ")
    assert "the one of the row above. Reached: the interval comes within 2 % of what was expected." in table.note


def test_a_rung_that_does_not_build_on_the_row_above_is_named(monkeypatch):
    found = [step for step in steps(climbed(), TARGET) if step.rung.implementation != "kernel.tiled"]
    monkeypatch.setattr(ablation, "steps", lambda *_: found)
    assert (
        "the one of the row above, but `kernel.mma` builds on `kernel.tiled`."
        in ablation.summary(climbed(), TARGET).note
    )


# ------------------------------------------------------------------------------------------------------ other devices


@pytest.mark.parametrize(
    ("times", "said", "short"),
    [
        (0.9, "At all of them the sign", "device clock, warm cache, the fastest hand-written kernel takes less time"),
        (1.25, "**The two runs disagree at ", f"**The sign is another one at {TARGET.label}.** (Run `there`, in "),
    ],
)
def test_whether_another_device_agrees_is_said(times, said, short, monkeypatch):
    other = changed(climbed(), name="there", manifest={"kernels": {"kernel.mma": "8" * 64}})
    mine = Lead("kernel.mma", "sdpa.flash", Interval(1.25, 1.24, 1.26))
    leads = {TARGET: (mine, replace(mine, ratio=Interval(1 / times, 0.99 / times, 1.01 / times)))}
    found = CrossDevice(climbed(), other, leads)
    words, table = lead.beside(found).parts.values()
    assert isinstance(words, Prose)
    assert said in words.markdown
    assert "Between the two, the source of `kernel.mma` changed" in words.markdown
    assert table.frame["sign"].tolist() == [found.sign(TARGET)]
    monkeypatch.setattr(lead.cross_device, "find", lambda results: found)
    assert short in lead.elsewhere_in_short(climbed())
    assert found.theirs.by_shape.keys() > leads.keys()  # what only the other run measured counts too
