"""The report: filled from the pages that were executed, without a kernel, and with nothing else on it."""

from pathlib import Path

import nbclient
import nbformat
import papermill
import pytest
from nbformat import v4

from attnlab.base.errors import UserError
from attnlab.exhibits.catalogue import STAMP
from attnlab.paper import assemble

SETUP = "from attnlab import select_run\n\nshow = select_run.exhibits(run, study, device)\nshow"


@pytest.fixture(autouse=True)
def _no_kernel(monkeypatch):
    """Nothing here may start one."""

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("a kernel was started")

    for place, name in ((papermill, "execute_notebook"), (nbclient.NotebookClient, "execute")):
        monkeypatch.setattr(place, name, refused)
    monkeypatch.setattr(nbclient.NotebookClient, "start_new_kernel", refused)


def made(id: str, text: str) -> nbformat.NotebookNode:
    """The output of a cell that showed an exhibit."""
    stamp = {STAMP: {"exhibit": id, "run": "a", "arguments": {}}}
    return v4.new_output("execute_result", {"text/plain": text}, metadata=stamp, execution_count=7)


def shown(id: str, *outputs: nbformat.NotebookNode, tags: tuple[str, ...] = ()) -> nbformat.NotebookNode:
    return v4.new_code_cell(f'show("{id}")', outputs=list(outputs), metadata={"tags": list(tags)})


def notebook(path: Path, *cells: nbformat.NotebookNode) -> Path:
    nbformat.write(v4.new_notebook(cells=list(cells)), path)
    return path


def parameters() -> nbformat.NotebookNode:
    return v4.new_code_cell('run: str = ""', metadata={"tags": ["parameters"]})


@pytest.fixture
def pages(tmp_path) -> list[Path]:
    """Two pages that were executed: which run it is, and three exhibits."""
    setup = v4.new_code_cell(SETUP, outputs=[made("run", "run a")])
    first = notebook(tmp_path / "01.ipynb", parameters(), setup, shown("environment.run", made("environment.run", "H")))
    noise = v4.new_output("stream", name="stdout", text="noise")
    two = [shown("kernels.climb", noise, made("kernels.climb", "C")), shown("kernels.stale", made("kernels.stale", ""))]
    return [first, notebook(tmp_path / "05.ipynb", parameters(), *two)]


def assembled(tmp_path: Path, pages: list[Path], *cells: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    report = notebook(tmp_path / "report.ipynb", *cells)
    assemble.assemble(report, pages, tmp_path / "assembled.ipynb")
    return nbformat.read(tmp_path / "assembled.ipynb", as_version=4).cells


def test_cells_have_the_outputs_of_the_pages(tmp_path, pages):
    cells = [
        v4.new_markdown_cell("# Paper"),
        parameters(),
        v4.new_code_cell(SETUP),
        shown("kernels.climb", tags=("hide",)),
        shown("environment.run"),
        shown("kernels.stale"),
    ]
    found = assembled(tmp_path, pages, *cells)
    assert [cell.source for cell in found] == [cell.source for cell in cells]
    assert [cell.metadata.get("tags") for cell in found] == [cell.metadata.get("tags") for cell in cells]
    first, second = (nbformat.read(path, as_version=4).cells for path in pages)
    assert [cell.get("outputs") for cell in found] == [
        *(None, [], first[1].outputs),
        *(second[1].outputs[1:], first[2].outputs, second[2].outputs),
    ]


def test_the_notebook_of_the_report_stays_as_it_is(tmp_path, pages):
    report = notebook(tmp_path / "report.ipynb", shown("environment.run"))
    before = report.read_bytes()
    assemble.assemble(report, pages, tmp_path / "assembled.ipynb")
    assert report.read_bytes() == before


def test_what_no_page_made_is_named(tmp_path, pages):
    with pytest.raises(UserError) as caught:
        assembled(tmp_path, pages, shown("environment.run"), shown("kernels.ladder"))
    assert str(caught.value) == (
        "report.ipynb shows 'kernels.ladder', which no page made: put it into a cell of its page"
    )
    assert not (tmp_path / "assembled.ipynb").exists()


@pytest.mark.parametrize(
    "source",
    [
        "1 + 1",
        "",
        "show.results",
        'show("kernels.climb").markdown',
        'show("kernels.climb")\nshow("environment.run")',
        'show("backends.cost", price_per_hour=2.0)',
        "show(id)",
    ],
)
def test_a_cell_that_is_no_exhibit_is_refused(tmp_path, pages, source):
    with pytest.raises(UserError) as caught:
        assembled(tmp_path, pages, v4.new_code_cell(source))
    assert str(caught.value) == (f'report.ipynb: {source!r} is no exhibit: a cell of the report is `show("<id>")`')
    assert not (tmp_path / "assembled.ipynb").exists()


@pytest.mark.parametrize(
    ("source", "ids"),
    [('show("kernels.ladder")', ["kernels.ladder"]), (SETUP, ["run"]), ('run: str = ""', []), ("shown", [])],
)
def test_what_a_cell_names(source, ids):
    assert assemble.named(source) == ids


def test_what_a_run_lacks_is_left_out_with_its_paragraphs_and_the_headings_above_nothing(tmp_path, pages):
    lacking = made("kernels.stale", "*Nothing was stale.*")
    lacking.metadata[STAMP]["missing"] = True
    page = notebook(tmp_path / "06.ipynb", shown("kernels.stale", lacking))
    cells = [
        v4.new_markdown_cell("# Paper\n\n## Ladder\n\n[](#kernels.climb) shows it.\n\nSo does [](#kernels.stale)."),
        shown("kernels.climb"),
        v4.new_markdown_cell("### Stale\n\n[](#kernels.stale) has them."),
        shown("kernels.stale"),
        v4.new_markdown_cell("## References\n\n## Appendix: None\n\n### Of it"),
    ]
    found = assembled(tmp_path, [*pages, page], *cells)
    assert [cell.source for cell in found] == [
        "# Paper\n\n## Ladder\n\n[](#kernels.climb) shows it.",
        'show("kernels.climb")',
        "## References",
    ]
