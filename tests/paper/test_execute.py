"""Parameters are checked before a notebook is executed; a cell that fails is named, and what was executed is kept."""

import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import nbformat
import pytest
from nbformat import v4

from attnlab.base import parent, paths
from attnlab.base.errors import Interrupted, UserError
from attnlab.paper import engine, execute, render

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


def test_a_notebook_without_parameters_is_refused(tmp_path):
    with pytest.raises(UserError, match="02_baseline has no parameters"):
        execute.check(notebook(tmp_path, "1", parameters=""), {})


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

    monkeypatch.setattr(render.select_run, "named", named)
    with pytest.raises(Interrupted):
        render.render_notebook("02_baseline", {"study": "cpu"})
    assert asked == [{"run": "", "study": "cpu", "device": "auto"}]
    sources = {part: paths.NOTEBOOKS / f"{part}.ipynb" for part in render.parts()}
    assert [part for part, path in sources.items() if not execute.shown_run(path, {})] == ["08_audit"]


def test_values_that_fit_are_accepted(tmp_path):
    values = {"run": "h200", "samples": 3, "tolerance": 1, "measure": True, "anything": [1, 2]}
    assert execute.check(notebook(tmp_path), values) is None


def in_process(path: Path, output: Path, values: Mapping[str, object] | None = None) -> None:
    execute.execute(path, output, values or {}, path.parent, engine.NAME)


def outputs(path: Path) -> list[list[Any]]:
    return [cell.outputs for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def test_a_cell_that_fails_is_named_and_what_was_executed_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notebook(tmp_path, "import os\nprint(samples, os.getcwd())", "raise ValueError('a\\nb')", "print('never')")
    (tmp_path / "work").mkdir()
    output = Path("out/02_baseline.ipynb")
    with pytest.raises(UserError) as caught:
        execute.execute(Path("02_baseline.ipynb"), output, {"samples": 7}, tmp_path / "work", engine.NAME)
    assert str(caught.value).startswith("02_baseline.ipynb, cell 3: ValueError: a; what was executed is kept in ")
    kept = nbformat.read(tmp_path / output, as_version=4)
    printed = [part.text for cell in kept.cells for part in cell.get("outputs", []) if part.output_type == "stream"]
    assert printed == [f"7 {tmp_path / 'work'}\n"]
    assert str(tmp_path) not in str(kept.metadata.papermill)
    assert Path.cwd() == tmp_path


def test_a_kernel_that_dies_is_named(tmp_path):
    path = notebook(tmp_path, "print('before', flush=True)", "import os\nos._exit(9)", "print('never')")
    with pytest.raises(UserError, match=r"02_baseline\.ipynb, cell 3: the kernel died; what was executed is kept in"):
        execute.execute(path, tmp_path / "out.ipynb", {}, tmp_path, execute.KERNEL)
    assert "before" in (tmp_path / "out.ipynb").read_text(encoding="utf-8")


MANY = [
    "print('one')\nprint('two')\nprint()",
    "import sys\nprint('three', file=sys.stderr)",
    "from IPython.display import HTML, display\ndisplay(HTML('<b>5</b>'))\nHTML('<i>6</i>')",
    "None",
    "7;",
    "samples",
    "_",
    "import matplotlib\nmatplotlib.rcParams['lines.linewidth'] = 8\nmatplotlib.get_backend()",
    "def function():\n    return __name__\nfunction()",
    "1 / 0",
]


def test_a_notebook_shows_the_same_without_a_kernel(tmp_path):
    path = notebook(tmp_path, *MANY)
    made = []
    for name in (execute.KERNEL, engine.NAME):
        with pytest.raises(UserError, match="cell 11: ZeroDivisionError: division by zero"):
            execute.execute(path, tmp_path / f"{name}.ipynb", {"samples": 3}, tmp_path, name)
        made.append(outputs(tmp_path / f"{name}.ipynb"))
    kernel, here = made
    for shown in made:
        del shown[9:10]  # the name of the backend
        assert shown[-1][0].pop("traceback")
    assert here == kernel


def test_a_notebook_leaves_this_process_as_it_was(tmp_path, capsys):
    main, folder, width = sys.modules["__main__"], Path.cwd(), matplotlib.rcParams["lines.linewidth"]
    path = notebook(tmp_path, "import matplotlib.pyplot as plt\nplt.plot([1])\nmine = 1", *MANY[:-1])
    in_process(path, tmp_path / "out.ipynb")
    assert (sys.modules["__main__"], Path.cwd()) == (main, folder)
    assert matplotlib.rcParams["lines.linewidth"] == width
    assert plt.get_fignums() == []
    assert capsys.readouterr() == ("", "")
    with pytest.raises(UserError, match="cell 2: NameError: name 'mine' is not defined"):
        in_process(notebook(tmp_path, "mine"), tmp_path / "out.ipynb")


def test_ctrl_c_in_a_cell_interrupts_what_executes_it(tmp_path):
    path = notebook(tmp_path, "import signal\nsignal.raise_signal(signal.SIGINT)\nprint('never')")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        in_process(path, tmp_path / "out.ipynb")
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    "swallows",
    [
        "get_ipython().events.register('post_run_cell', lambda _: signal.raise_signal(signal.SIGINT))",
        "try:\n    signal.raise_signal(signal.SIGINT)\nexcept BaseException:\n    pass",
        "signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))\n"
        "try:\n    signal.raise_signal(signal.SIGTERM)\nexcept BaseException:\n    raise ValueError from None",
    ],
    ids=["by a callback of IPython", "by a handler", "as another error"],
)
def test_ctrl_c_that_a_cell_swallows_interrupts_before_the_next_one(tmp_path, swallows):
    path = notebook(tmp_path, f"import signal\n{swallows}", "open('never', 'w')")
    with parent.interruptible(), pytest.raises(KeyboardInterrupt):
        in_process(path, tmp_path / "out.ipynb")
    assert not (tmp_path / "never").exists()
