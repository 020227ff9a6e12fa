"""The notebooks: claims and exhibits, nothing else; and what they show of a run that was really recorded on the CPU."""

import ast
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import jupytext
import jupytext.config
import nbformat
import pytest
import synthetic
import yaml
from bs4 import BeautifulSoup
from conftest import Quickly, torch_as_it_was
from traitlets.config.loader import PyFileConfigLoader

from attnlab import select_run
from attnlab.base import paths
from attnlab.exhibits import catalogue
from attnlab.measure.session import record
from attnlab.paper import assemble, execute, render
from attnlab.study import models as stated_models
from attnlab.study import studies

PARTS = render.parts()
PRICED = ["04_backends"]
EXPLORER = "explore.html"
CPU = {"head_dim": 16, "dtype": "float32"}
TINY = {
    "title": "Tiny, on the CPU",
    "device": "cpu",
    "implementations": ["sdpa.auto", "sdpa.flash", "sdpa.math"],
    "baseline": "sdpa.auto",
    "target": CPU | {"batch": 1, "heads": 2, "seq_len": 32},
    "timings": [{"clock": "eager", "cache": "warm"}],
    "samples": 8,
    "sweeps": {
        "seq_len": CPU | {"batch": 1, "heads": 2, "seq_len": [16, 32, 64]},
        "batch": CPU | {"batch": [1, 2], "heads": 2, "seq_len": 32},
        "heads": CPU | {"batch": 1, "heads": [1, 2], "seq_len": 32},
        "causal seq_len": CPU | {"batch": 1, "heads": 2, "seq_len": [16, 32], "causal": True},
    },
}


# ------------------------------------------------------------------------------------------------------- as they are


def source(part: str) -> Path:
    return paths.NOTEBOOKS / f"{part}.ipynb"


def cells(part: str, kind: str = "code") -> list[Any]:
    return [cell for cell in nbformat.read(source(part), as_version=4).cells if cell.cell_type == kind]


def parameters_of(part: str) -> Any:
    (cell,) = (cell for cell in cells(part) if "parameters" in cell.metadata.get("tags", []))
    return cell


@pytest.mark.parametrize("part", PARTS)
def test_one_cell_holds_the_parameters_and_they_are_literals(part):
    statements = ast.parse(parameters_of(part).source).body
    assert all(isinstance(statement, ast.AnnAssign) for statement in statements)
    stated = {statement.target.id: ast.literal_eval(statement.value) for statement in statements}
    price = {"price_per_hour": 3.0} if part in PRICED else {}
    assert stated == {"run": "", "study": "quick", "device": "auto"} | price
    assert {name: known["inferred_type_name"] for name, known in execute.parameters(source(part)).items()} == {
        name: type(value).__name__ for name, value in stated.items()
    }


@pytest.mark.parametrize("part", PARTS)
def test_a_notebook_defines_and_computes_nothing(part):
    for cell in cells(part):
        for node in ast.walk(ast.parse(cell.source)):
            assert not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.For | ast.While | ast.Lambda | ast.BinOp)
            assert not isinstance(node, ast.Import)
            if isinstance(node, ast.ImportFrom):
                assert node.module.split(".")[0] == "attnlab"


@pytest.mark.parametrize("part", PARTS)
def test_a_notebook_holds_no_results(part):
    assert [cell for cell in cells(part) if cell.outputs or cell.execution_count is not None] == []


@pytest.mark.parametrize("part", PARTS)
def test_a_notebook_and_its_text_say_the_same(part):
    config = jupytext.config.load_jupytext_config(str(source(part)))
    notebook = jupytext.read(source(part), config=config)
    # The header names no version, so that a newer jupytext changes no file.
    assert jupytext.writes(notebook, fmt="py:percent", config=config) == source(part).with_suffix(".py").read_text()


def exhibits_of(part: str) -> list[str]:
    """The ids that a notebook's cells show, in their order."""
    return [ast.parse(cell).body[0].value.args[0].value for cell in calls_of(part)]


def calls_of(part: str) -> list[str]:
    return [cell.source for cell in cells(part) if cell.source.startswith("show(")]


@pytest.mark.parametrize("part", PARTS)
def test_each_other_cell_shows_one_exhibit(part):
    first, setup, *shown = [cell.source for cell in cells(part)]
    assert first == parameters_of(part).source
    assert assemble.named(setup) == ([] if part == "08_audit" else [catalogue.RUN])  # the same for every run
    assert shown == calls_of(part)
    for source in shown:
        (call,) = ast.parse(source).body
        assert isinstance(call.value, ast.Call)
        assert all(isinstance(keyword.value, ast.Name) for keyword in call.value.keywords)


def test_an_exhibit_has_its_cell_on_its_page_and_nowhere_else():
    homes = [(id, part) for part in PARTS[:-1] for id in exhibits_of(part)]
    assert sorted(homes) == [(id, catalogue.pages()[id.split(".")[0]]) for id in catalogue.every()]


def test_the_report_shows_exhibits_of_the_pages_each_once():
    shown = exhibits_of("report")
    assert catalogue.printed() == set(shown)
    assert set(shown) <= set(catalogue.every())
    assert len(set(shown)) == len(shown)
    assert [id for cell in cells("report") for id in assemble.named(cell.source)] == [catalogue.RUN, *shown]


def test_saving_in_jupyterlab_writes_the_py_too(tmp_path):
    contents = pytest.importorskip(
        "jupyter_server.services.contents.filemanager", reason="the extra `lab` is not installed"
    )
    config = PyFileConfigLoader("jupyter_server_config.py", path=str(paths.ROOT / "tools" / "lab")).load_config()
    manager = contents.FileContentsManager(root_dir=str(tmp_path), config=config)
    for part in ("02_baseline", "copy"):
        shutil.copy(source("02_baseline"), tmp_path / f"{part}.ipynb")
        opened = manager.get(f"{part}.ipynb")
        opened["content"]["cells"].append(
            nbformat.v4.new_code_cell("1 + 1", outputs=[nbformat.v4.new_output("stream")])
        )
        manager.save(opened, f"{part}.ipynb")
    assert not nbformat.read(tmp_path / "02_baseline.ipynb", as_version=4).cells[-1].outputs
    as_it_was = source("02_baseline").with_suffix(".py").read_text()
    assert (tmp_path / "02_baseline.py").read_text() == f"{as_it_was}\n# %%\n1 + 1\n"
    assert not (tmp_path / "copy.py").exists()  # git does not track it


# ------------------------------------------------------------------------------------------------- as they are run


@pytest.fixture(scope="module")
def tiny():
    """The folder of a run that is recorded and rendered now."""
    import torch

    from attnlab.measure.session import models as session_models

    with synthetic.folders() as folder:
        (folder / "tiny.yaml").write_text(yaml.safe_dump(TINY))
        with torch_as_it_was():
            record.record("tiny", studies.load(folder / "tiny.yaml"), "cpu", Quickly(ThreadPoolExecutor(1)))
            plan = stated_models.plan("cpu", ["tiny-llama"], batch=[1], prompt=[8], tokens=3, rounds=2, replicates=2)
            session_models.record_models("generated", plan, torch.device("cpu"), {}, ThreadPoolExecutor(1))
        synthetic.write("cut", synthetic.Recipe(study=synthetic.AT_TARGET, shapes=1))
        render.render("tiny")
        yield folder


@pytest.fixture(params=PARTS)
def page(request, tiny) -> BeautifulSoup:
    return read(tiny, request.param)


@cache
def read(folder: Path, part: str) -> BeautifulSoup:
    return BeautifulSoup((folder / "reports" / "tiny" / f"{part}.html").read_text(encoding="utf-8"), "html.parser")


def outputs(folder: Path, part: str) -> dict[str, Any]:
    """What the code cells of an executed notebook show, by their sources."""
    return {cell.source: cell.outputs for cell in notebook_of(folder, part).cells if cell.cell_type == "code"}


@cache
def notebook_of(folder: Path, part: str) -> Any:
    return nbformat.read(folder / "reports" / "tiny" / "notebooks" / f"{part}.ipynb", as_version=4)


def body(page: BeautifulSoup, id: str) -> list[list[str]]:
    rows = page.find(id=id).select("tbody tr")
    return [[cell.get_text() for cell in row.select("td")] for row in rows]


@pytest.mark.parametrize("part", PARTS)
def test_each_cell_shows_its_exhibit_of_the_run_and_none_failed(part, tiny):
    made = outputs(tiny, part)
    for id, call in zip(exhibits_of(part), calls_of(part), strict=True):
        if part == "report" and call not in made:
            continue  # the run lacks it; see test_the_report_was_assembled_from_the_pages_and_no_kernel_ran_it
        (output,) = made[call]
        assert output.output_type == "execute_result"
        stamp = output.metadata[catalogue.STAMP]
        assert (stamp.exhibit, stamp.run) == (id, "tiny" if catalogue.find(id).shows_a_run else "")
    assert not [output for shown in made.values() for output in shown if output.output_type in ("error", "stream")]


def test_the_report_was_assembled_from_the_pages_and_no_kernel_ran_it(tiny):
    executed = {part for part in PARTS if "papermill" in notebook_of(tiny, part).metadata}
    assert executed == set(PARTS[:-1])
    pages = [made for part in PARTS[:-1] for made in outputs(tiny, part).items()]
    report = outputs(tiny, "report")
    for call in calls_of("report"):
        (made,) = (shown for source, shown in pages if source == call)
        missing = made[0].metadata[catalogue.STAMP].get("missing")
        assert report.get(call) == (None if missing else made)
    assert len(report) > 10


def test_nothing_on_a_page_is_not_a_number(page):
    assert not re.search(r"\bnan\b|\bNone\b|<NA>|Traceback", page.body.get_text())


def test_links_lead_somewhere(page, tiny):
    anchors = {element["id"] for element in page.select("[id]")}
    inside = [link["href"][1:] for link in page.select('a[href^="#"]')]
    assert set(inside) <= anchors
    others = [link["href"] for link in page.select("a[href$='.html']")]
    explorer = [other for other in others if other == EXPLORER]
    assert len(set(others)) - len(set(explorer)) == len(render.parts()) - 1
    assert all((tiny / "reports" / "tiny" / other).is_file() for other in others)


@pytest.mark.parametrize("part", PARTS)
def test_links_to_other_pages_lead_to_their_exhibits(part, tiny):
    for link in read(tiny, part).select("a[href*='.html#']"):
        other, id = link["href"].split(".html#")
        assert id in exhibits_of(other)
        assert read(tiny, other).find(id=id) is not None


def test_the_page_of_models_shows_the_record_that_was_made_on_the_device(tiny):
    page = read(tiny, "09_model")
    assert "The record generated is of" in page.get_text()
    for id in ("model.compared.first", "model.compared.rest", "model.outputs"):
        ((name, *_),) = body(page, id)
        assert name == "tiny-llama"
    assert page.find(id="model.share")
    assert "generated, of tiny-llama: random weights" in read(tiny, "report").get_text()


def test_a_notebook_takes_the_newest_run_of_its_study(tiny):
    assert select_run.results("", str(tiny / "tiny.yaml"), "none").run.name == "tiny"


def test_a_run_cut_off_is_not_gone_on_with_where_nothing_may_be_measured(tiny):
    assert not select_run.results("cut", "quick", "none").run.complete
