"""The notebooks: short cells that show the method, and pages that read well on a small run of a CPU."""

import ast
import json
import re
import shutil
import sys
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import jupytext
import jupytext.config
import nbformat
import pytest
from bs4 import BeautifulSoup
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell

from attnlab import report
from attnlab.base import paths

NOTEBOOKS = {path.stem: nbformat.read(path, as_version=4) for path in sorted(paths.NOTEBOOKS.glob("*.ipynb"))}
QUICKSTART = "00_quickstart"
PUBLISHED, CPU = "h200-2026-11-28-main", "cpu-2026-11-29"
LONGEST_CELL = 15
LARGEST_NOTEBOOK, LARGEST_FIGURE = 400_000, 60_000
OPTIONAL = ["08_audit", "09_model"]
"""Notebooks whose data are of no run of a study."""
each = pytest.mark.parametrize("name", NOTEBOOKS)


def code(name: str) -> list[Any]:
    return [cell for cell in NOTEBOOKS[name].cells if cell.cell_type == "code"]


def outputs(name: str) -> list[Any]:
    return [output for cell in code(name) for output in cell.outputs]


def test_each_notebook_has_its_text():
    assert sorted(path.stem for path in paths.NOTEBOOKS.glob("*.py")) == list(NOTEBOOKS)
    assert [name[:2] for name in NOTEBOOKS] == [f"{number:02}" for number in range(10)] + ["re"]


@each
def test_a_notebook_and_its_text_are_in_sync(name):
    source = paths.NOTEBOOKS / f"{name}.ipynb"
    config = jupytext.config.load_jupytext_config(str(source))
    notebook = jupytext.read(source, config=config)
    # The header names no version, so that a newer jupytext changes no file.
    assert jupytext.writes(notebook, fmt="py:percent", config=config) == source.with_suffix(".py").read_text()


@each
def test_cells_are_short_compute_with_public_functions_and_hold_no_outputs(name):
    for cell in code(name):
        assert len(cell.source.splitlines()) <= LONGEST_CELL, cell.source
        calls = [node.func for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Call)]
        assert "show" not in [called.id for called in calls if isinstance(called, ast.Name)]
        assert name == QUICKSTART or not (cell.outputs or cell.execution_count)
    assert any("import attnlab as al" in cell.source for cell in code(name))


@each
def test_one_cell_holds_the_parameters_and_they_are_literals(name):
    (cell,) = (cell for cell in code(name) if "parameters" in cell.metadata.get("tags", []))
    statements = ast.parse(cell.source).body
    assert all(isinstance(statement, ast.Assign) for statement in statements)
    stated = {statement.targets[0].id: ast.literal_eval(statement.value) for statement in statements}
    assert stated.get("run", PUBLISHED) == PUBLISHED
    assert "run" in stated or name in OPTIONAL


@each
def test_the_metadata_hold_tags_alone(name):
    assert set(NOTEBOOKS[name].metadata) <= {"jupytext", "kernelspec"}
    assert {key for cell in NOTEBOOKS[name].cells for key in cell.metadata} <= {"tags"}
    tags = {tag for cell in NOTEBOOKS[name].cells for tag in cell.metadata.get("tags", [])}
    assert tags <= {"parameters", "published"}


def test_the_quickstart_holds_outputs_that_github_can_show():
    assert (paths.NOTEBOOKS / f"{QUICKSTART}.ipynb").stat().st_size <= LARGEST_NOTEBOOK
    assert [cell.execution_count for cell in code(QUICKSTART)] == list(range(1, len(code(QUICKSTART)) + 1))
    said = json.dumps([cell.outputs for cell in code(QUICKSTART)])
    assert not re.search(r"/(home|root|tmp|work|usr)\b|[Ww]arning|Traceback|\bnan\b|\"stderr\"", said)
    figures = [output.data for output in outputs(QUICKSTART) if "data" in output]
    sizes = [len(data.get("image/svg+xml", "")) + len(b64decode(data.get("image/png", ""))) for data in figures]
    assert sum(size > 0 for size in sizes) >= 2
    assert max(sizes) <= LARGEST_FIGURE
    assert "registers" in said
    assert "There is no GPU" in said
    assert NOTEBOOKS[QUICKSTART].nbformat == 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Iterator[Path]:
    """A data folder with the CPU's run and the records of models; the pages go next to it."""
    folder = tmp_path_factory.mktemp("notebooks")
    ignored = shutil.ignore_patterns(".cache")
    for name in (CPU, "models", "dispatch"):
        shutil.copytree(paths.ROOT / "data" / name, folder / "data" / name, ignore=ignored)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNLAB_DATA", str(folder / "data"))
        patch.setenv("ATTNLAB_REPORTS", str(folder / "reports"))
        yield folder


@pytest.fixture(scope="module")
def executed(folder) -> Iterator[Callable[..., str]]:
    """Executes the cells of a notebook in this process, as the report does in a kernel; returns the words shown."""

    def execute(name: str, **parameters: Any) -> str:
        shell.reset(new_session=False)
        shell.display_pub = CapturingDisplayPublisher(shell=shell)
        shown: list[str] = []
        for cell in code(name):
            tags = cell.metadata.get("tags", [])
            stated = "".join(f"\n{key} = {value!r}" for key, value in parameters.items())
            if "published" not in tags:
                with redirect_stdout(StringIO()) as said:
                    ended = shell.run_cell(cell.source + stated * ("parameters" in tags))
                ended.raise_error()
                formatted = shell.display_formatter.format(ended.result)[0] if ended.result is not None else {}
                shown += [said.getvalue(), formatted.get("text/html", formatted.get("text/plain", ""))]
        shown += [one["data"].get("text/html", "") for one in shell.display_pub.outputs]
        return BeautifulSoup(" ".join(shown), "html.parser").get_text(" ")

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # which a shell replaces
        shell = InteractiveShell.instance()
        yield execute
        InteractiveShell.clear_instance()


@pytest.mark.parametrize("name", [name for name in NOTEBOOKS if name not in (QUICKSTART, "report")])
def test_a_notebook_reads_well_on_the_cpus_run(name, executed):
    """A cell that raises fails this. The report is rendered on this run in test_report.py."""
    more = {"compiles": True} if name == "05_kernels" and find_spec("cuda.bindings.nvrtc") else {}
    words = executed(name, **({} if name in OPTIONAL[:1] else {"run": CPU}), **more)
    assert len(words) > 50
    assert not re.search(r"\bnan\b|Traceback|Error\b|does not hold", words)


def test_pages_of_a_measuring_notebook_and_of_parameters_read_well(folder, monkeypatch):
    for name, parameters in ((QUICKSTART, {}), ("02_baseline", {"seq_len": [64, 128, 256], "batch": 2})):
        html = BeautifulSoup(report.render(CPU, [name], parameters=parameters).read_text(), "html.parser")
        for code_of_a_cell in html.select("details"):
            code_of_a_cell.decompose()
        assert html.h1
        assert not re.search(r"\bnan\b|Traceback|Error\b|does not hold", html.body.get_text(" "))


def test_models_are_shown_from_recorded_frames(folder):
    target = folder / "data" / PUBLISHED / "manifest.json"
    target.parent.mkdir()
    shutil.copy(paths.ROOT / "data" / PUBLISHED / "manifest.json", target)
    page = report.render(PUBLISHED, ["09_model"])  # a sentence that isn't true raises
    words = BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser").body.get_text(" ", strip=True)
    assert "Records on NVIDIA H200: h200-models-5, h200-small." in words
    assert "With 4,096 tokens in the cache, a step of a Llama is 1.31x to 1.33x faster." in words
    assert "1.326 [1.322, 1.327]" in words
    assert "Nothing is measured: `measure` is False." in words


def test_models_are_measured_where_that_is_asked(executed):
    pytest.importorskip("transformers")
    words = executed("09_model", run=CPU, measure=True, prompt=16, tokens=3, rounds=4)
    assert "Measured here, on cpu." in words
    assert re.search(r"Of 24 tokens, those of SDPA are: .*attnlab.attend.: 24", words)


def test_without_transformers_a_line_says_so_and_nothing_is_measured(capsys):
    (cell,) = (cell for cell in code("09_model") if cell.source.startswith("lacking = "))
    exec(cell.source, names := {"find_spec": lambda name: name != "transformers" or None, "measure": True})
    assert capsys.readouterr().out == "Nothing is measured: transformers is not installed.\n"
    assert names["measures"] is False
