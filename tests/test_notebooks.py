"""The notebooks: short cells that show the method, and pages that read well on a small run of a CPU."""

import ast
import json
import re
import shutil
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jupytext
import jupytext.config
import nbformat
import pytest
from bs4 import BeautifulSoup

from attnlab import report
from attnlab.base import paths

NAMES = sorted(path.stem for path in paths.NOTEBOOKS.glob("*.ipynb"))
QUICKSTART = "00_quickstart"
PUBLISHED, CPU = "h200-2026-11-28-main", "cpu-2026-11-29"
LONGEST_CELL = 15
MODELS = paths.ROOT / "data" / "models"
LARGEST_NOTEBOOK, LARGEST_FIGURE = 400_000, 60_000
OPTIONAL = ["08_audit", "09_model"]
"""Notebooks whose data are of no run of a study."""


def read(name: str) -> Any:
    return nbformat.read(paths.NOTEBOOKS / f"{name}.ipynb", as_version=4)


def code(name: str) -> list[Any]:
    return [cell for cell in read(name).cells if cell.cell_type == "code"]


def outputs(name: str) -> list[Any]:
    return [output for cell in code(name) for output in cell.outputs]


def test_each_notebook_has_its_text():
    assert sorted(path.stem for path in paths.NOTEBOOKS.glob("*.py")) == NAMES
    assert [name[:2] for name in NAMES] == [f"{number:02}" for number in range(10)] + ["re"]


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_and_its_text_are_in_sync(name):
    source = paths.NOTEBOOKS / f"{name}.ipynb"
    config = jupytext.config.load_jupytext_config(str(source))
    notebook = jupytext.read(source, config=config)
    # The header names no version, so that a newer jupytext changes no file.
    assert jupytext.writes(notebook, fmt="py:percent", config=config) == source.with_suffix(".py").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_cells_are_short_and_compute_with_public_functions(name):
    for cell in code(name):
        assert len(cell.source.splitlines()) <= LONGEST_CELL, cell.source
        called = [node.func.id for node in ast.walk(ast.parse(cell.source)) if is_call_by_name(node)]
        assert "show" not in called
    assert any("import attnlab as al" in cell.source for cell in code(name))


def is_call_by_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)


@pytest.mark.parametrize("name", NAMES)
def test_one_cell_holds_the_parameters_and_they_are_literals(name):
    (cell,) = (cell for cell in code(name) if "parameters" in cell.metadata.get("tags", []))
    statements = ast.parse(cell.source).body
    assert all(isinstance(statement, ast.Assign) for statement in statements)
    stated = {statement.targets[0].id: ast.literal_eval(statement.value) for statement in statements}
    assert stated.get("run", PUBLISHED) == PUBLISHED
    assert "run" in stated or name in OPTIONAL


@pytest.mark.parametrize("name", [name for name in NAMES if name != QUICKSTART])
def test_a_notebook_holds_no_outputs(name):
    assert [cell.source for cell in code(name) if cell.outputs or cell.execution_count] == []


@pytest.mark.parametrize("name", NAMES)
def test_the_metadata_hold_tags_alone(name):
    notebook = read(name)
    assert set(notebook.metadata) <= {"jupytext", "kernelspec"}
    assert {key for cell in notebook.cells for key in cell.metadata} <= {"tags", "lines_to_next_cell"}
    assert {tag for cell in notebook.cells for tag in cell.metadata.get("tags", [])} <= {"parameters", "published"}


def test_the_quickstart_holds_outputs_that_github_can_show():
    notebook = read(QUICKSTART)
    assert (paths.NOTEBOOKS / f"{QUICKSTART}.ipynb").stat().st_size <= LARGEST_NOTEBOOK
    assert [cell.execution_count for cell in code(QUICKSTART)] == list(range(1, len(code(QUICKSTART)) + 1))
    said = json.dumps([cell.outputs for cell in code(QUICKSTART)])
    assert not re.search(r"/(home|root|tmp|work|usr)\b|[Ww]arning|Traceback|\bnan\b", said)
    assert not [output for output in outputs(QUICKSTART) if output.get("name") == "stderr"]
    figures = [output.data for output in outputs(QUICKSTART) if "data" in output]
    sizes = [len(data.get("image/svg+xml", "")) + len(b64decode(data.get("image/png", ""))) for data in figures]
    assert sum(size > 0 for size in sizes) >= 2
    assert max(sizes) <= LARGEST_FIGURE
    assert "registers" in said
    assert "There is no GPU" in said
    assert notebook.nbformat == 4


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> Iterator[Path]:
    """The folder of the pages of the CPU's run; a cell that raises fails this, with a line that names it."""
    folder = tmp_path_factory.mktemp("notebooks")
    shutil.copytree(paths.ROOT / "data" / CPU, folder / "data" / CPU, ignore=shutil.ignore_patterns(".cache"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNLAB_DATA", str(folder / "data"))
        patch.setenv("ATTNLAB_REPORTS", str(folder / "reports"))
        patch.setattr(report, "_program", lambda: "")  # no PDF
        report.render(CPU, NAMES)
        report.render(CPU, ["02_baseline"], parameters={"seq_len": [64, 128, 256], "batch": 2})
        yield paths.reports() / CPU


@pytest.mark.parametrize("name", [*NAMES, "02_baseline-*batch=2"])
def test_a_page_of_the_cpus_run_reads_well(name, pages):
    (page,) = pages.glob(f"{name}.html")
    html = BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser")
    for code_of_a_cell in html.select("details"):
        code_of_a_cell.decompose()
    words = html.body.get_text(" ")
    assert html.h1
    assert not re.search(r"\bnan\b|Traceback|Error\b|does not hold", words)


@pytest.fixture
def words(tmp_path, monkeypatch):
    """Renders 09_model for the published run, whose manifest alone it reads, and gives the words of the page."""
    monkeypatch.setenv("ATTNLAB_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("ATTNLAB_REPORTS", str(tmp_path / "reports"))
    for name in (f"{PUBLISHED}/manifest.json", *(f"models/{path.name}" for path in MODELS.glob("*.parquet"))):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(paths.ROOT / "data" / name, tmp_path / "data" / name)

    def render(**parameters: Any) -> str:
        page = report.render(PUBLISHED, ["09_model"], parameters=parameters)
        return BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser").body.get_text(" ", strip=True)

    return render


def test_models_are_shown_from_recorded_frames(words):
    page = words()  # a sentence that isn't true raises
    assert "Records on NVIDIA H200: h200-models-5, h200-small." in page
    assert "With 4,096 tokens in the cache, a step of a Llama is 1.31x to 1.33x faster." in page
    assert "1.326 [1.322, 1.327]" in page
    assert "Nothing is measured: `measure` is False." in page


def test_models_are_measured_where_that_is_asked(words):
    pytest.importorskip("transformers")
    page = words(measure=True, prompt=16, tokens=3, rounds=4)
    assert "Measured here, on cpu." in page
    assert re.search(r"Of 24 tokens, those of SDPA are: .*attnlab.attend.: 24", page)


def test_without_transformers_a_line_says_so_and_nothing_is_measured(capsys):
    (cell,) = (cell for cell in code("09_model") if cell.source.startswith("lacking = "))
    exec(cell.source, names := {"find_spec": lambda name: name != "transformers" or None, "measure": True})
    assert capsys.readouterr().out == "Nothing is measured: transformers is not installed.\n"
    assert names["measures"] is False
