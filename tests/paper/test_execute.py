"""Parameters are checked before a notebook is executed; a cell that fails is named, and what was executed is kept."""

import importlib
import signal
from pathlib import Path

import nbformat
import pytest
from nbformat import v4

from attnlab.base import paths
from attnlab.base.errors import Interrupted, UserError
from attnlab.paper import execute, render

PARAMETERS = """\
run: str = ""  # the run's name
samples: int = 100
tolerance: float = 0.02
measure: bool = False
anything = None
"""


def notebook(tmp_path: Path, *sources: str, parameters: str = PARAMETERS) -> Path:
    cells = [v4.new_code_cell(source) for source in sources]
    if parameters:
        cells.insert(0, v4.new_code_cell(parameters, metadata={"tags": ["parameters"]}))
    kernel = {"name": "python3", "language": "python", "display_name": "Python 3"}
    path = tmp_path / "02_baseline.ipynb"
    nbformat.write(v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)
    return path


def test_parameters_have_type_default_and_help(tmp_path):
    known = execute.parameters(notebook(tmp_path))
    assert list(known) == ["run", "samples", "tolerance", "measure", "anything"]
    assert known["run"] == execute.Parameter("run", "str", '""', "the run's name")
    assert known["samples"].type == "int"


def test_a_notebook_without_parameters_is_refused(tmp_path):
    with pytest.raises(UserError, match="02_baseline has no parameters"):
        execute.check(notebook(tmp_path, "1", parameters=""), {})


def test_an_unknown_name_is_refused_with_a_hint(tmp_path):
    with pytest.raises(UserError) as caught:
        execute.check(notebook(tmp_path), {"smaples": 3})
    assert str(caught.value) == (
        "02_baseline has no parameter 'smaples'; it has run, samples, tolerance, measure, anything; "
        "did you mean 'samples'?"
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [("samples", "1e2"), ("samples", True), ("samples", 1.5), ("run", 3), ("measure", 1), ("tolerance", "0.1")],
)
def test_a_value_of_another_type_is_refused(tmp_path, name, value):
    with pytest.raises(UserError, match=f"02_baseline: {name} must be (int|str|bool|float), not {value!r}"):
        execute.check(notebook(tmp_path), {name: value})


def test_what_a_notebook_measures_is_measured_before_it_is_executed(monkeypatch):
    asked: list[dict[str, str]] = []

    def named(**stated: str) -> str:
        asked.append(stated)
        raise Interrupted("interrupted")

    monkeypatch.setattr(render.obtain, "named", named)
    with pytest.raises(Interrupted):
        render.render_notebook("02_baseline", {"study": "cpu"})
    assert asked == [{"run": "", "study": "cpu", "device": "auto"}]
    sources = {part: paths.NOTEBOOKS / f"{part}.ipynb" for part in render.parts()}
    assert [part for part, path in sources.items() if not execute.shown_run(path, {})] == ["08_audit"]


def test_ctrl_c_ends_a_process_of_its_own_without_a_word(tmp_path, monkeypatch, capfd):
    (tmp_path / "interrupted.py").write_text(
        "import multiprocessing, os, signal\n\n"
        "if multiprocessing.parent_process():\n    os.kill(os.getpid(), signal.SIGINT)\n\n"
        "def work(name):\n    return name\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    # Whoever runs the tests in the background hands them SIGINT ignored, and that is inherited.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(UserError, match="mine: a process died"):
        render._apart(importlib.import_module("interrupted").work, "mine")
    signal.signal(signal.SIGINT, before)
    assert capfd.readouterr().err == ""


def test_values_that_fit_are_accepted(tmp_path):
    values = {"run": "h200", "samples": 3, "tolerance": 1, "measure": True, "anything": [1, 2]}
    assert execute.check(notebook(tmp_path), values) is None


def test_a_cell_that_fails_is_named_and_what_was_executed_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notebook(tmp_path, "import os\nprint(samples, os.getcwd())", "raise ValueError('a\\nb')")
    (tmp_path / "work").mkdir()
    output = Path("out/02_baseline.ipynb")
    with pytest.raises(UserError) as caught:
        execute.execute(Path("02_baseline.ipynb"), output, {"samples": 7}, tmp_path / "work")
    assert str(caught.value).startswith("02_baseline.ipynb, cell 3: ValueError: a; what was executed is kept in ")
    kept = nbformat.read(tmp_path / output, as_version=4)
    printed = [part.text for cell in kept.cells for part in cell.get("outputs", []) if part.output_type == "stream"]
    assert printed == [f"7 {tmp_path / 'work'}\n"]
    assert str(tmp_path) not in str(kept.metadata.papermill)


def test_a_kernel_that_dies_is_named(tmp_path):
    path = notebook(tmp_path, "print('before', flush=True)", "import os\nos._exit(9)", "print('never')")
    with pytest.raises(UserError, match=r"02_baseline\.ipynb, cell 3: the kernel died; what was executed is kept in"):
        execute.execute(path, tmp_path / "out.ipynb", {}, tmp_path)
    assert "before" in (tmp_path / "out.ipynb").read_text(encoding="utf-8")
