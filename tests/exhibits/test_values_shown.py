"""What is shown of kinds of values: whose verdict they turn round, and on which of them a claim is made."""

import pytest
import synthetic
from reading import column, exhibit, plain
from synthetic import VALUED_US, Recipe, inferred, of_kinds, valued

from attnlab import select_run
from attnlab.exhibits.display import Figure, Missing
from attnlab.export.report import SECTIONS
from attnlab.infer import results
from attnlab.infer.results import Results
from attnlab.runs import read
from attnlab.study import values

TURNED = "**Whether `sdpa.flash` is faster than `sdpa.auto` depends on the values**"
ALONE = "At the target, all of this is of normal values alone."


def test_values_come_first():
    assert plain(exhibit(valued, "verdicts.values.said")).startswith(TURNED)
    assert SECTIONS["What may be published"][0] == "verdicts.values.said"
    for run, first in ((valued, TURNED), (inferred, ALONE)):
        assert exhibit(run, "verdicts.findings").text.startswith(f"1. **Values.** {first}")


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
    show = select_run.showing(loaded("mine"))
    for id in ("verdicts.kinds", "verdicts.values", "verdicts.values.said"):
        assert show(id).run == "kinds"
        assert not isinstance(show(id).content, Missing)
    assert column(show("verdicts.kinds").content, "values") == ["normal", "rising 24"]
    assert [other.run.name for other in select_run.companions(show.results)] == ["kinds"]


def test_the_abstract_and_findings_of_a_run_without_kinds_name_the_other(data):
    record("kinds", of_kinds(FEW_US))
    record("mine", Recipe(study=PLAIN, fates={}))
    show = select_run.showing(loaded("mine"))
    assert "values (run `kinds`)" in plain(show("verdicts.abstract").content)
    assert show("verdicts.findings").content.text.startswith(f"1. **Values.** {TURNED}")
    assert show("verdicts.abstract").run == "mine"


def test_a_run_with_kinds_shows_its_own(data):
    record("mine", of_kinds(FEW_US))
    record("newer", of_kinds(FEW_US))
    mine = loaded("mine")
    assert select_run.showing(mine).companions["valued"]() is mine
    assert "(run `" not in plain(select_run.showing(mine)("verdicts.abstract").content)


def test_kinds_of_another_device_are_not_shown(data):
    elsewhere = of_kinds(FEW_US)
    record("elsewhere", Recipe(device="NVIDIA L4", study=elsewhere.study, latencies_us=elsewhere.latencies_us))
    record("mine", Recipe(study=PLAIN, fates={}))
    show = select_run.showing(loaded("mine"))
    assert show.companions["valued"]() is show.results
    assert ALONE in plain(show("verdicts.abstract").content)
    assert isinstance(show("verdicts.values").content, Missing)
