"""What is shown of kinds of values: whose verdict they turn round, and on which of them a claim is made."""

from dataclasses import replace

import pytest
from reading import column, exhibit, plain
from synthetic import VALUED_US, inferred, valued

from attnlab.exhibits.catalogue import Show
from attnlab.exhibits.display import Figure
from attnlab.export.report import SECTIONS
from attnlab.infer.results import Results
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


def test_the_abstract_and_findings_of_a_run_without_kinds_name_the_other():
    mine = Results(replace(inferred().run, name="mine"), inferred().table)
    show = Show(mine, {"valued": valued})
    assert f"values (run `{valued().run.name}`)" in plain(show("verdicts.abstract").content)
    assert "(run `" not in plain(exhibit(valued, "verdicts.abstract"))
    first = show("verdicts.findings").content.text.splitlines()[0]
    assert first.startswith(f"1. **Values.** {TURNED}")
    assert first.endswith(f"(Run `{valued().run.name}`.)")
    assert (show("verdicts.abstract").run, show("verdicts.kinds").run) == ("mine", valued().run.name)
