"""What is shown of kinds of values: whose verdict they turn round, and on which of them a claim is made."""

import re

import pytest
import synthetic
from reading import NOT_A_NUMBER, column, exhibit, html, plain
from synthetic import TARGET, VALUED_US, Recipe, inferred, lonely, of_kinds, valued

from attnlab import obtain
from attnlab.exhibits.catalogue import Show
from attnlab.exhibits.display import Figure, Group, Missing, Prose, Table
from attnlab.exhibits.verdicts import abstract, findings, target
from attnlab.exhibits.verdicts import values as shown
from attnlab.infer import results
from attnlab.infer.results import Results
from attnlab.runs import read
from attnlab.study import values

SHOWN = {
    "verdicts.kinds": Table,
    "verdicts.values": Figure,
    "verdicts.values.elsewhere": Group,
    "verdicts.values.said": Prose,
    "verdicts.statement": Prose,
    "verdicts.abstract": Prose,
}
TURNED = (
    r"\*\*Whether `sdpa\.flash` is faster than `sdpa\.auto` depends on the values\*\*: it is faster on 2 kinds and "
    r"slower on rising 24 \(0\.80+ \[[^]]*\] on rising 24 values, 1\.60+ \[[^]]*\] on normal ones"
    r"\)\."
)
ALONE = "At the target, all of this is of normal values alone."


def only(*names: str) -> Results:
    """The latencies of few candidates, at the target alone."""
    return synthetic.infer(of_kinds({name: VALUED_US[name] for name in ("sdpa.auto", *names)}))


def told(of: Results) -> str:
    return plain(target.statement(of, TARGET))


def title(of: Results) -> str:
    (line,) = (part for part in told(of).split("\n\n") if part.startswith("**") and "depends on" not in part)
    return line.strip("*")


def limits(of: Results) -> str:
    return told(of).split("*Limits.* ")[1]


@pytest.mark.parametrize("id", SHOWN)
def test_nothing_shown_is_not_a_number(id):
    content = exhibit(valued, id)
    assert isinstance(content, SHOWN[id])
    assert not NOT_A_NUMBER.search(html(content).get_text())
    assert not re.search(r"\b1 kinds\b", html(content).get_text())


# ------------------------------------------------------------------------------------------------------ in a paragraph


def test_whose_verdict_turns_is_said_first_with_both_ends():
    assert re.match(TURNED, plain(exhibit(valued, "verdicts.values.said")))


def test_who_gains_most_on_its_worst_kind_is_said_next():
    said = plain(exhibit(valued, "verdicts.values.said"))
    after = re.sub(f"^{TURNED} ", "", said)
    assert re.match(
        r"Over all 4 kinds at \(2, 4, 128, 64\) float16, `sdpa\.cudnn` gains most over `sdpa\.auto`: on its worst it "
        r"is faster than it \(1\.2121 \[[^]]*\] on sd 4 values, 1\.2500 \[[^]]*\] on ",
        after,
    )


def test_who_takes_the_same_time_and_who_does_not_is_said_last():
    said = plain(exhibit(valued, "verdicts.values.said"))
    steady = said[: said.index(" take the same time on all kinds within 5 %")].split(" on normal ones). ")[-1]
    assert "`sdpa.cudnn`" in steady
    assert "`sdpa.flash`" not in steady
    assert said.endswith("the time grows by a factor for `sdpa.flash` 2.00× (rising 24).")


def test_where_no_verdict_turns_none_is_said_to():
    said = plain(shown.said(only("sdpa.cudnn"), TARGET))
    assert said.startswith("Over all 4 kinds at ")
    assert "depends on the values" not in said


def test_without_a_candidate_on_all_kinds_none_is_said_to_gain():
    said = plain(shown.said(only("sdpa.efficient"), TARGET))
    assert "gains most" not in said


def test_the_slowest_kinds_are_named_the_worst_first():
    us = {
        "sdpa.auto": {"normal": 40.0, "sd 4": 48.0},
        "sdpa.flash": {"normal": 20.0, "sd 4": 40.0},
        "sdpa.cudnn": {"normal": 45.0, "sd 4": 30.0},
    }
    said = plain(shown.said(synthetic.infer(of_kinds(us)), TARGET))
    named = "`sdpa.flash` 2.00× (sd 4), `sdpa.cudnn` 1.50× (normal) and `sdpa.auto` 1.20× (sd 4)"
    assert said.endswith(f"From the fastest kind to the slowest, the time grows by a factor for {named}.")


@pytest.mark.parametrize("id", ["verdicts.values.said", "verdicts.values"])
def test_a_run_of_one_kind_says_that_it_is(id):
    said = "*(2, 4, 128, 64) float16 was timed on a single kind of values.*"
    assert Show(inferred())(id).content == Missing(said)


# ---------------------------------------------------------------------------------------------------------- statement


def test_a_statement_is_made_on_the_worst_kind():
    where = "at (2, 4, 128, 64) float16, sd 4 values on this NVIDIA H200"
    assert title(valued()).startswith(f"`sdpa.cudnn` is 1.21 times as fast as `sdpa.auto` {where}")
    assert "`sdpa.cudnn` 33.000 [" in told(valued())
    assert "a speedup of 1.2121 [" in told(valued())


def test_a_statement_is_headed_by_those_whose_verdict_turns():
    assert re.match(TURNED, told(valued()))
    assert not re.search("depends on the values", told(only("sdpa.cudnn")))


def test_a_negative_statement_names_the_worst_kind_too():
    found = title(only("sdpa.flash"))
    where = "on every kind of values at (2, 4, 128, 64) float16 on this NVIDIA H200"
    assert found == f"No candidate was found to be faster than `sdpa.auto` {where}: the nearest, `sdpa.flash`, is " + (
        "slower than it on rising 24 values"
    )


def test_limits_name_the_number_of_kinds_with_both_ends():
    assert re.search(
        r", one shape, 4 kinds of values \(1\.2121 \[[^]]*\] on sd 4 values, 1\.2500 "
        r"\[[^]]*\] on normal ones\), device clock",
        limits(valued()),
    )


def test_limits_of_one_kind_say_that_it_stands_alone():
    alone = "normal values alone (others are timed with `values: all` in the study)"
    assert f", one shape, {alone}, device clock" in limits(inferred())


def test_what_is_fast_on_normal_values_only_is_not_the_best():
    of = only("sdpa.flash", "sdpa.cudnn")
    normal = {name: of.compare(name, TARGET).speedup.estimate for name in ("sdpa.flash", "sdpa.cudnn")}
    assert normal["sdpa.flash"] > normal["sdpa.cudnn"]
    assert target._best(of, TARGET) == "sdpa.cudnn"


def test_what_has_no_latency_on_some_kind_is_not_the_best():
    of = only("sdpa.efficient", "sdpa.cudnn")
    assert of.compare("sdpa.efficient", TARGET).claimable
    assert target._best(of, TARGET) == "sdpa.cudnn"


def test_what_has_no_latency_on_some_kind_comes_after_what_is_slower():
    us = {"sdpa.auto": VALUED_US["sdpa.auto"], "sdpa.efficient": VALUED_US["sdpa.efficient"]}
    us["sdpa.flash"] = dict.fromkeys(VALUED_US["sdpa.auto"], 60.0)
    assert target._best(synthetic.infer(of_kinds(us)), TARGET) == "sdpa.flash"


def test_zeros_speak_for_nobody():
    us = {
        "sdpa.auto": {"normal": 40.0, "sd 4": 40.0, "zeros": 40.0},
        "sdpa.flash": {"normal": 30.0, "sd 4": 30.0, "zeros": 80.0},
    }
    of = synthetic.infer(of_kinds(us))
    assert title(of).startswith("`sdpa.flash` is 1.33 times as fast as `sdpa.auto`")
    assert "2 kinds of values" in limits(of)
    assert "depends on the values" not in told(of)


# ------------------------------------------------------------------------------------------------ abstract and findings


def sentences(of: Results, beside: Results | None = None) -> str:
    """The abstract, after what was measured and how."""
    return plain(abstract.abstract(of, beside)).split("each a fresh process. ", 1)[1]


def test_the_abstract_begins_with_the_values():
    assert re.match(TURNED, sentences(valued()))


def test_the_abstract_of_one_kind_says_which_alone():
    assert sentences(inferred()).startswith(f"{ALONE} At the target shape")
    assert f" {ALONE} " in plain(abstract.abstract(lonely()))


def test_the_abstract_says_what_its_fastest_gains_on_the_worst_kind():
    assert re.search(
        r"`sdpa\.flash` has the smallest median there\. .* Over the values: 0\.80+ \[[^]]*\] on rising 24 values, "
        r"1\.60+ \[[^]]*\] on normal ones\.",
        sentences(only("sdpa.flash", "sdpa.cudnn")),
    )
    assert "Over the values" not in sentences(inferred())


def test_the_findings_begin_with_the_values():
    assert re.match(rf"1\. \*\*Values\.\*\* {TURNED}", exhibit(valued, "verdicts.findings").text)
    assert exhibit(inferred, "verdicts.findings").text.startswith(f"1. **Values.** {ALONE}\n2. ")


# --------------------------------------------------------------------------------------------------- figure and table


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


def test_the_medians_are_text_in_the_drawing():
    texts = [text.get_text() for text in html(exhibit(valued, "verdicts.values")).svg("text")]
    every = [us for by_kind in VALUED_US.values() for us in by_kind.values()]
    assert {text: texts.count(text) for text in dict.fromkeys(f"{us:.1f}" for us in every if us)} == {
        f"{us:.1f}": every.count(us) for us in every if us
    }
    assert texts.count("–") == every.count(None)
    assert set(KINDS) | set(VALUED_US) <= set(texts)


def test_the_map_says_what_it_shows():
    figure = exhibit(valued, "verdicts.values")
    assert "2.00× (rising 24)." in figure.caption
    assert "Median latency in µs at (2, 4, 128, 64) float16, device clock, warm cache" in figure.caption
    assert "on normal values, blue is faster" in figure.caption
    assert "2.00× (rising 24)." in figure.alt


def test_a_cell_is_coloured_by_its_ratio_to_the_first_kind():
    (axes,) = exhibit(valued, "verdicts.values").figure.axes
    drawn = axes.images[0].get_array()
    assert drawn[:, 0].filled(0).tolist() == pytest.approx([0] * 5)  # math has no latency on normal values
    flash = list(VALUED_US).index("sdpa.flash")
    assert float(drawn[flash, KINDS.index("rising 24")]) == pytest.approx(1)  # twice as long
    assert drawn.mask[flash + 3].all()


def test_every_other_shape_of_several_kinds_has_a_map():
    group = exhibit(valued, "verdicts.values.elsewhere")
    (figure,) = group.parts.values()
    (axes,) = figure.figure.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["sd 4", "normal"]


def test_without_another_shape_of_several_kinds_there_is_no_further_map():
    missing = Missing("*No other shape was timed on several kinds of values.*")
    assert Show(only("sdpa.cudnn"))("verdicts.values.elsewhere").content == missing


def test_each_kind_is_listed_once_with_its_words():
    table = exhibit(valued, "verdicts.kinds")
    assert column(table, "values") == KINDS
    assert column(table, "what they are") == [values.about(kind) for kind in KINDS]
    assert "`zeros` are in no verdict over all kinds" in table.note
    assert "by 8 nats" in table.frame.set_index("values").loc["sink 8", "what they are"]
    assert "section 3" in table.frame.set_index("values").loc["sink 8", "source"]


# ---------------------------------------------------------------------------------------------------------- companion


FEW_US = {
    name: {kind: VALUED_US[name][kind] for kind in ("normal", "rising 24")} for name in ("sdpa.auto", "sdpa.flash")
}
PLAIN = {"implementations": ["sdpa.auto"]} | synthetic.AT_TARGET


def record(name: str, recipe: Recipe) -> None:
    synthetic.write(name, recipe)


def loaded(name: str) -> Results:
    return results.of(read.load(name))


def test_a_run_without_kinds_shows_those_of_another_on_its_device(data):
    record("kinds", of_kinds(FEW_US))
    record("mine", Recipe(study=PLAIN, fates={}))
    show = obtain.showing(loaded("mine"))
    for id in ("verdicts.kinds", "verdicts.values", "verdicts.values.said"):
        assert show(id).run == "kinds"
        assert not isinstance(show(id).content, Missing)
    assert column(show("verdicts.kinds").content, "values") == ["normal", "rising 24"]
    assert [other.run.name for other in obtain.companions(show.results)] == ["kinds"]


def test_the_abstract_and_findings_of_a_run_without_kinds_name_the_other(data):
    record("kinds", of_kinds(FEW_US))
    record("mine", Recipe(study=PLAIN, fates={}))
    show = obtain.showing(loaded("mine"))
    turned = "**Whether `sdpa.flash` is faster than `sdpa.auto` depends on the values**"
    said = plain(show("verdicts.abstract").content)
    assert said.index(turned) < said.index(" (Run `kinds`.) At the target shape")
    assert show("verdicts.findings").content.text.startswith(f"1. **Values.** {turned}")
    assert show("verdicts.abstract").run == "mine"


def test_a_run_with_kinds_shows_its_own(data):
    record("mine", of_kinds(FEW_US))
    record("newer", of_kinds(FEW_US))
    mine = loaded("mine")
    assert obtain.showing(mine).companions["valued"]() is mine
    assert "(Run `" not in plain(obtain.showing(mine)("verdicts.abstract").content)


def test_kinds_of_another_device_are_not_shown(data):
    elsewhere = of_kinds(FEW_US)
    record("elsewhere", Recipe(device="NVIDIA L4", study=elsewhere.study, latencies_us=elsewhere.latencies_us))
    record("mine", Recipe(study=PLAIN, fates={}))
    show = obtain.showing(loaded("mine"))
    assert show.companions["valued"]() is show.results
    assert ALONE in plain(show("verdicts.abstract").content)
    assert isinstance(show("verdicts.values").content, Missing)


def test_findings_without_a_companion_are_of_the_run_alone():
    assert findings.findings(inferred(), None).text == findings.findings(inferred()).text
