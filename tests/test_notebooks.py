"""The notebooks: short cells that show the method, and readable pages of a small CPU run."""

import ast
import json
import re
import shutil
import sys
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import nbformat
import pytest
import synthetic
from bs4 import BeautifulSoup
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell

import attnlab as al
from attnlab.base import paths
from attnlab.study.drawn import draw

NOTEBOOKS = {path.stem: nbformat.read(path, as_version=4) for path in sorted(paths.NOTEBOOKS.glob("*.ipynb"))}
QUICKSTART = "00_quickstart"
PUBLISHED, CPU = "h200-2026-11-28-main", "cpu-2026-11-29"
BAD = r"\bnan\b|Traceback|Error\b|does not hold"
LONGEST_CELL = 15
LARGEST_NOTEBOOK, LARGEST_FIGURE = 400_000, 60_000
OPTIONAL = ["08_audit", "09_model"]
"""Notebooks whose data don't come from a study's run."""
each = pytest.mark.parametrize("name", NOTEBOOKS)


def code(name: str) -> list[Any]:
    return [cell for cell in NOTEBOOKS[name].cells if cell.cell_type == "code"]


def tags(cell: Any) -> list[str]:
    return cell.metadata.get("tags", [])


def test_each_notebook_has_its_text():
    assert sorted(path.stem for path in paths.NOTEBOOKS.glob("*.py")) == list(NOTEBOOKS)
    assert [name[:2] for name in NOTEBOOKS] == [f"{number:02}" for number in range(10)] + ["re"]


@each
def test_a_notebook_holds_no_metadata_but_tags(name):
    assert set(NOTEBOOKS[name].metadata) <= {"jupytext", "kernelspec"}
    assert {key for cell in NOTEBOOKS[name].cells for key in cell.metadata} <= {"tags"}
    assert {tag for cell in NOTEBOOKS[name].cells for tag in tags(cell)} <= {"parameters", "published"}


@each
def test_cells_are_short_compute_with_public_functions_and_hold_no_outputs_and_one_holds_literal_parameters(name):
    for cell in code(name):
        assert len(cell.source.splitlines()) <= LONGEST_CELL, cell.source
        calls = [node.func for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Call)]
        assert "show" not in [called.id for called in calls if isinstance(called, ast.Name)]
        assert name == QUICKSTART or not (cell.outputs or cell.execution_count)
    assert any("import attnlab as al" in cell.source for cell in code(name))
    (parameters,) = (cell for cell in code(name) if "parameters" in tags(cell))
    statements = ast.parse(parameters.source).body
    assert all(isinstance(statement, ast.Assign) for statement in statements)
    stated = {statement.targets[0].id: ast.literal_eval(statement.value) for statement in statements}
    assert stated.get("run", PUBLISHED) == PUBLISHED
    assert "run" in stated or name in OPTIONAL


def test_the_quickstart_holds_outputs_that_github_can_show():
    assert (paths.NOTEBOOKS / f"{QUICKSTART}.ipynb").stat().st_size <= LARGEST_NOTEBOOK
    assert [cell.execution_count for cell in code(QUICKSTART)] == list(range(1, len(code(QUICKSTART)) + 1))
    said = json.dumps([cell.outputs for cell in code(QUICKSTART)])
    assert not re.search(r"/(home|root|tmp|work|usr)\b|[Ww]arning|Traceback|\bnan\b|\"stderr\"", said)
    figures = [output.data for cell in code(QUICKSTART) for output in cell.outputs if "data" in output]
    sizes = [len(data.get("image/svg+xml", "")) + len(b64decode(data.get("image/png", ""))) for data in figures]
    assert sum(size > 0 for size in sizes) >= 2
    assert max(sizes) <= LARGEST_FIGURE
    assert "registers" in said
    assert "There is no GPU" in said
    assert NOTEBOOKS[QUICKSTART].nbformat == 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Iterator[Path]:
    """A data folder with the CPU run and the records of models; the pages are written next to it."""
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
    """Executes a notebook's cells in this process, as the report does in a kernel; returns the displayed text."""

    def execute(name: str, **parameters: Any) -> str:
        shell.reset(new_session=False)
        shell.display_pub = CapturingDisplayPublisher(shell=shell)
        shown: list[str] = []
        for cell in code(name):
            stated = "".join(f"\n{key} = {value!r}" for key, value in parameters.items())
            if "published" not in tags(cell) or parameters.get("run") == PUBLISHED:
                with redirect_stdout(StringIO()) as said:
                    ended = shell.run_cell(cell.source + stated * ("parameters" in tags(cell)))
                ended.raise_error()
                formatted = shell.display_formatter.format(ended.result)[0] if ended.result is not None else {}
                shown += [said.getvalue(), formatted.get("text/html", formatted.get("text/plain", ""))]
        for data in (one["data"] for one in shell.display_pub.outputs):
            shown.append(data.get("text/html", data.get("text/markdown", "")))
        return BeautifulSoup(" ".join(shown), "html.parser").get_text(" ")

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # a shell replaces it
        shell = InteractiveShell.instance()
        yield execute
        InteractiveShell.clear_instance()


IN_PROCESS = [(name, {}) for name in NOTEBOOKS if name != "report"]


@pytest.mark.parametrize(("name", "stated"), [*IN_PROCESS, ("02_baseline", {"seq_len": [64, 128, 256], "batch": 2})])
def test_a_notebook_reads_well_on_the_cpus_run(name, stated, executed, monkeypatch):
    """Fails if a cell raises. test_report.py renders the report on this run."""
    monkeypatch.setattr(al, "measure", measured)
    more = {"compiles": True} if name == "05_kernels" and find_spec("cuda.bindings.nvrtc") else {}
    words = executed(name, **({} if name in OPTIONAL[:1] else {"run": CPU}), **more, **stated)
    assert len(words) > 50
    assert not re.search(BAD, words)


def test_a_drawn_sample_is_shown_whole(executed):
    slow = {("dispatch.attend", shape): 2 * synthetic.latency_us("sdpa.auto", shape) for shape in draw(5, 7)[:1]}
    stated = {"implementations": ["sdpa.auto", "peer.flex", "dispatch.attend"], "drawn": {"shapes": 5, "seed": 7}}
    synthetic.write("sampled", synthetic.Recipe(study=stated | synthetic.AT_TARGET, latencies_us=slow))
    words = " ".join(executed("04_backends", run=CPU, sample="sampled").split())
    assert not re.search(BAD, words)
    assert all(shape.label in words for shape in draw(5, 7))
    assert "all baseline 5 0 1.096 0.500 1" in words


def test_gradients_and_unlike_lengths_are_shown_where_runs_of_them_are_named(executed, monkeypatch):
    monkeypatch.setitem(synthetic.PACE, "kernel.ragged", 0.5)
    for name, ours, axes in (
        ("trained", "dispatch.attend", {"direction": ["backward", "training"], "values": ["normal", "sd 24"]}),
        ("packed", "kernel.ragged", {"lengths": "uniform 5 1"}),
    ):
        stated = {"sweeps": {"seq_len": [synthetic.AXES | {"seq_len": 128}, synthetic.AXES | {"seq_len": 128} | axes]}}
        stated |= {"implementations": ["sdpa.auto", "peer.flex", ours]}
        synthetic.write(name, synthetic.Recipe(study=synthetic.AT_TARGET | stated))
    words = " ".join(executed("04_backends", run=CPU, training="trained", ragged="packed").split())
    assert not re.search(BAD, words)
    assert re.search(r"float16, backward (normal|sd 24) 2 sdpa\.auto 40\.0 30\.0 1\.33", words)
    assert "(2, 4, 128, 64) float16, uniform 5 1 lengths normal 1 sdpa.auto 40.0 20.0 2.0000" in words


def measured(implementations: dict[str, Any], shapes: list[al.Shape], samples: int) -> Any:
    """The CPU run, in place of a measurement: test_measurement.py measures functions of a cell."""
    assert list(implementations) == ["mine", "sdpa.auto"]
    run = al.load(CPU)
    at = {axis: value for axis, value in al.target(run).items() if axis not in ("seq_len", "kv_len")}
    return replace(run, samples=al.where(run.samples, **at))


def test_models_are_shown_from_recorded_frames(folder, executed):
    target = folder / "data" / PUBLISHED / "manifest.json"
    target.parent.mkdir()
    shutil.copy(paths.ROOT / "data" / PUBLISHED / "manifest.json", target)
    words = " ".join(executed("09_model", run=PUBLISHED).split())
    assert not re.search(BAD, words)
    assert "Records on NVIDIA H200: h200-models-5, h200-small." in words
    assert "With 4,096 tokens in the cache, a step of a Llama is 1.31x to 1.33x faster." in words
    assert "1.326 [1.322, 1.327]" in words
    assert "Nothing is measured: `measure` is False." in words


def test_models_are_measured_where_that_is_asked(executed):
    pytest.importorskip("transformers")
    words = executed("09_model", run=CPU, measure=True, prompt=16, tokens=3, rounds=4)
    assert "Measured here, on cpu." in words
    assert "Prompts of unlike lengths are not measured: that needs an NVIDIA GPU." in words
    assert re.search(r"Of 24 tokens, those of SDPA are: .*attnlab.attend.: 24", words)


def test_without_transformers_a_line_says_so_and_nothing_is_measured(capsys):
    (cell,) = (cell for cell in code("09_model") if cell.source.startswith("lacking = "))
    exec(cell.source, names := {"find_spec": lambda name: name != "transformers" or None, "measure": True})
    assert capsys.readouterr().out == "Nothing is measured: transformers is not installed.\n"
    assert names["measures"] is False
