"""Every exhibit is registered once, has one home, and says of which run it is."""

import re
from inspect import signature

import matplotlib.pyplot as plt
import pandas as pd
import pytest
import synthetic
from synthetic import LONG, TARGET, changed, climbed, inferred, lonely

from attnlab.base import paths
from attnlab.base.errors import UserError
from attnlab.exhibits import catalogue
from attnlab.exhibits.catalogue import Show, exhibit
from attnlab.exhibits.display import FILES, Box, Figure, Group, Missing, Prose, Table
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Results

EXHIBITS = catalogue.every()
LINK = re.compile(r"\[\]\(#([\w.]+)\)")


# ---------------------------------------------------------------------------------------------------------- the whole


def test_the_parts_of_a_group_have_anchors_of_their_own():
    # An anchor is an id, or that of a group with the name of its part.
    groups = [id for id, one in EXHIBITS.items() if "Group" in str(signature(one.make).return_annotation)]
    assert {"kernels.ablation", "audit.documents"} <= set(groups)
    assert [id for id in EXHIBITS for group in groups if id.startswith(f"{group}.")] == []


def test_texts_refer_to_exhibits_that_there_are():
    folder = paths.ROOT / "lib" / "attnlab" / "exhibits"
    sources = [path.read_text() for kind in ("*.py", "*.md.j2") for path in folder.rglob(kind)]
    linked = {anchor for source in sources for anchor in LINK.findall(source) if "." in anchor}
    assert linked >= {"environment.hashes", "environment.ceilings", "verdicts.calibration"}
    assert linked <= set(EXHIBITS)


# ------------------------------------------------------------------------------------------------------ the decorator


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    """A copy, which is thrown away after a test."""
    monkeypatch.setattr(catalogue, "_EXHIBITS", dict(catalogue._EXHIBITS))


def table(results, shape=TARGET):
    return Table(pd.DataFrame({"run": [results.run.name], "S": [shape.seq_len]}), "One row.")


def stamp(shown) -> dict:
    _, metadata = shown._repr_mimebundle_()
    return metadata[catalogue.STAMP]


def test_an_exhibit_is_called_by_its_id_or_directly():
    made = exhibit("kernels.one")(table)
    show = Show(inferred())
    assert show("kernels.one").content.frame.equals(made(inferred()).frame)
    assert show("kernels.one").markdown == made(inferred()).markdown
    bundle, _ = show("kernels.one")._repr_mimebundle_()
    assert bundle["text/html"].startswith('<figure id="kernels.one" class="table">')


def test_a_figure_comes_as_pdf_where_the_report_shows_it():
    exhibit("kernels.drawn")(lambda results: Figure(plt.figure(), "", ""))
    there = {id: FILES in Show(climbed())(id)._repr_mimebundle_()[0] for id in ("roofline.roofline", "kernels.drawn")}
    assert there == {"roofline.roofline": True, "kernels.drawn": False}


def test_an_output_says_which_exhibit_it_is_of_which_run_and_with_which_arguments():
    exhibit("kernels.one", shape=lambda results: results.study.target_shape)(table)
    show = Show(inferred())
    arguments = {"shape": "(2, 4, 128, 64) float16"}
    assert stamp(show("kernels.one")) == {"exhibit": "kernels.one", "run": "synthetic", "arguments": arguments}
    assert stamp(show("kernels.one", shape=LONG))["arguments"] == {"shape": "(2, 4, 256, 64) float16"}
    assert show("kernels.one", shape=LONG).content.frame["S"].tolist() == [256]
    assert stamp(show) == {"exhibit": catalogue.RUN, "run": "synthetic", "arguments": {}}


def test_ids_may_share_a_function_each_with_its_arguments():
    made = exhibit("kernels.long", shape=LONG)(exhibit("kernels.short", shape=TARGET)(table))
    assert EXHIBITS.keys().isdisjoint({"kernels.long", "kernels.short"})
    show = Show(inferred())
    lengths = [show(id).content.frame["S"].tolist() for id in ("kernels.long", "kernels.short")]
    assert lengths == [[256], [128]]
    assert made(inferred()).frame["S"].tolist() == [128]


def test_what_was_not_measured_is_said_in_a_sentence():
    @exhibit("kernels.missing")
    def missing(results):
        raise NotMeasured("Nothing has a latency")

    assert missing(inferred()) == Missing("*Nothing has a latency.*")
    assert Show(inferred())("kernels.missing").content == Missing("*Nothing has a latency.*")


def test_a_run_that_has_nothing_of_a_kind_shows_nothing():
    made = exhibit("kernels.some", where=lambda results: results is inferred())(table)
    assert isinstance(made(inferred()), Table)
    assert made(lonely()) is None
    shown = Show(lonely())("kernels.some")
    assert shown.markdown == ""
    assert shown._repr_mimebundle_()[0] == {"text/html": "", "text/plain": "", "text/latex": ""}
    assert stamp(shown)["exhibit"] == "kernels.some"


def test_an_exhibit_may_be_of_a_companion_of_the_run():
    exhibit("kernels.of_another", of="choices")(table)
    companions = {"choices": lambda: synthetic.climbed()}
    other = Show(inferred(), companions)("kernels.of_another")
    assert other.content.frame.equals(table(synthetic.climbed()).frame)
    assert Show(inferred())("kernels.of_another").content.frame.equals(table(inferred()).frame)


@pytest.mark.parametrize("kind", ["Table", "Figure", "Prose", "Box", "Group"])
def test_an_exhibit_of_a_companion_says_which_run_that_is(kind):
    made = {
        "Table": table(inferred()),
        "Figure": Figure(plt.figure(), "A caption.", "Described."),
        "Prose": Prose("A text."),
        "Box": Box("Title", "A text."),
        "Group": Group({"one": table(inferred()), "two": Prose("Another.")}),
    }[kind]
    exhibit("kernels.named", of="choices")(lambda results: made)
    said = f"By the run `theirs` of {inferred().run.manifest['created'][:10]}."
    shown = Show(inferred(), {"choices": lambda: changed(inferred(), name="theirs")})("kernels.named")
    assert shown.markdown.count(said) == 1
    assert said not in Show(inferred())("kernels.named").markdown


def test_an_exhibit_may_show_a_companion_beside_the_run():
    @exhibit("kernels.beside_another")
    def beside(results: Results, decoded: Results | None = None) -> Prose:
        return Prose(f"{len(results.study.implementations)} and {len(decoded.study.implementations) if decoded else 0}")

    companions = {"decoded": lambda: synthetic.climbed(), "choices": lambda: synthetic.chosen()}
    shown = Show(inferred(), companions)("kernels.beside_another")
    assert shown.content == Prose("5 and 9")
    assert stamp(shown)["arguments"] == {}
    assert Show(inferred())("kernels.beside_another").content == Prose("5 and 0")


def test_an_exhibit_that_shows_no_run_needs_none():
    exhibit("audit.same")(lambda: Group({"one": Prose("The same.")}))
    assert stamp(Show()("audit.same")) == {"exhibit": "audit.same", "run": "", "arguments": {}}
    assert Show()("audit.same").markdown == "The same."
    exhibit("kernels.one")(table)
    with pytest.raises(UserError, match=r"^the exhibit 'kernels\.one' shows a run: name one$"):
        Show()("kernels.one")


def test_two_exhibits_of_one_id_are_refused():
    exhibit("kernels.one")(table)
    with pytest.raises(ValueError, match=r"^two exhibits are registered as 'kernels\.one'$"):
        exhibit("kernels.one")(table)


@pytest.mark.parametrize(("id", "end"), [("kernels.lader", "; did you mean 'kernels.ladder'?"), ("nowhere.x", "")])
def test_an_id_that_is_not_there_is_one_line(id, end):
    with pytest.raises(UserError, match=f"^{re.escape(f'there is no exhibit {id!r}{end}')}$"):
        Show(inferred())(id)
