"""Pages of notebooks: their content, their omissions, and the result when a notebook fails."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from conftest import told, wait_until
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from attnlab import report
from attnlab.base import paths

DEFAULT = "h200-main"
KERNEL = {"kernelspec": {"name": "python3", "language": "python", "display_name": "Python 3"}}
EVIL = "<img src=x onerror=alert(1)>"
SETUP = new_code_cell(f'run = "{DEFAULT}"  # a run', metadata={"tags": ["parameters"]})
GOOD = [
    new_markdown_cell(
        f"# A *title* of {EVIL}\n\n$\\sqrt{{x}}$, [next](02_b.ipynb#there), ![alt](http://evil/a.png)\n\n"
        "| a | b |\n| --- | --- |\n| 1 | 2 |\n\n[bad](javascript:alert(1))"
    ),
    SETUP,
    new_code_cell(
        "import os, sys\nimport pandas as pd\nimport matplotlib.pyplot as plt\n"
        "from IPython.display import HTML, Javascript, Markdown, display\nimport attnlab\n"
        "%config InlineBackend.figure_formats = ['svg']\n"
        f'print(run, "{EVIL}", sys.executable == {sys.executable!r}, attnlab.__file__)'
    ),
    new_code_cell(f'pd.DataFrame({{"{EVIL}": ["{EVIL}"]}})'),
    new_code_cell(
        "display(HTML('''<p onclick='x()' style='background:url(//evil)'>gone</p><b onclick=x>kept</b>"
        "<script>1</script><style>@import '//evil'</style><div><iframe src='//evil'><b>in</b></iframe></div>'''))\n"
        f"display(Javascript('alert(2)'))\ndisplay(Markdown('**words** {EVIL}'))"
    ),
    new_code_cell("figure, axes = plt.subplots()\naxes.set_title('a < b & c')\naxes.plot([1, 2]);"),
    new_code_cell(
        "from IPython.display import SVG\n"
        'SVG(\'<svg xmlns="http://www.w3.org/2000/svg"><title>Say "this" &amp; that</title></svg>\')'
    ),
    new_code_cell("print('only of the published run')", metadata={"tags": ["published"]}),
]


def without_code(page: str) -> str:
    return re.sub("<details>.*?</details>", "", page, flags=re.DOTALL)


@pytest.fixture
def notebooks(tmp_path, monkeypatch):
    """Writes notebooks in place of the project's, each from the cells after the parameters."""
    monkeypatch.setattr(paths, "NOTEBOOKS", tmp_path / "notebooks")
    monkeypatch.setenv("ATTNLAB_REPORTS", os.fspath(tmp_path / "reports"))
    monkeypatch.setattr(report.read, "read_manifest", lambda run: {})
    monkeypatch.setattr(report, "BROWSERS", ())
    monkeypatch.setattr(report.shutil, "which", lambda program: None)
    paths.NOTEBOOKS.mkdir()

    def write(**cells):
        for name, several in cells.items():
            made = [cell if isinstance(cell, dict) else new_code_cell(cell) for cell in several]
            made = made if any("parameters" in cell.metadata.get("tags", []) for cell in made) else [SETUP, *made]
            nbformat.write(new_notebook(cells=made, metadata=KERNEL), paths.NOTEBOOKS / f"{name}.ipynb")

    write(report=["print('paper')"])
    return write


def test_page_shows_all_and_loads_and_runs_nothing(notebooks, capsys):
    notebooks(report=GOOD)
    notebooks(**{"02_b": ["print('b')"]})
    page = report.render().read_text()
    assert page == report.render(jobs=1).read_text()  # the same bytes
    assert report.HOW in capsys.readouterr().err
    for shown in (
        "<title>A title of &lt;img",
        "<math>",
        'href="02_b.html#there"',
        '<a href="02_b.html">02_b</a>',
        '<b aria-current="page">report</b>',
        f"{DEFAULT} &lt;img src=x onerror=alert(1)&gt; True ./lib/attnlab/__init__.py",
        "only of the published run",
        'aria-label="Say &quot;this&quot; &amp; that"',
        "<strong>words</strong>",
        "<b>kept</b>",
        "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\"",
    ):
        assert shown in page, shown
    assert page.count("<details><summary>code</summary>") == 8
    assert len(re.findall(r'<svg role="img"', page)) == 2
    outputs = re.sub(r"xmlns(:xlink)?=\"[^\"]*\"", "", without_code(page))
    assert not re.search(r"<(script|img|iframe|link|object|embed)\b|<[^>]*\son\w+=|url\((?!#)|@import|gone", outputs)
    assert not re.search(r"""(src|href)=["'](?!#|02_b)""", re.sub(r'href="#harmful-link"', "", outputs))
    ids = re.findall(r'\bid="([^"]+)"', outputs)
    assert len(ids) == len(set(ids))


def test_another_run_and_parameters(notebooks):
    parameters = new_code_cell("run = 'x'\nbatch = 1", metadata={"tags": ["parameters"]})
    notebooks(**{"02_b": [parameters, "print(run, batch)", GOOD[-1]]})
    page = report.render("y", ["02_b"], parameters={"batch": [2, 4]})
    assert page.name == "02_b-batch=-2,-4.html"
    assert "y [2, 4]" in page.read_text()
    assert "only of the published run" not in page.read_text()
    said = told(lambda: report.render("x", ["02_b"], parameters={"bacth": 1}))
    assert said == "02_b has no parameter 'bacth', but run, batch; did you mean 'batch'?"
    assert "did you mean '02_b'" in told(lambda: report.render("x", ["02_c"]))


def test_a_failing_cell_leaves_all_pages_as_they_were(notebooks):
    notebooks(report=["print('good')"], **{"02_b": ["print('good')"]})
    good = report.render()
    kept = {path: path.read_bytes() for path in good.parent.iterdir()}
    notebooks(report=["print('new')"], **{"02_b": ["# why\nraise ValueError('one\\ntwo')"]})
    assert told(report.render) == "02_b, the cell `# why`: ValueError: one"
    assert (
        told(lambda: report.render("y")) == "1 of 2 pages are left out, for the reasons above; the others are written"
    )
    assert [page.name for page in (paths.reports() / "y").glob("*.html")] == ["report.html"]
    notebooks(**{"02_b": ["import os", "os._exit(3)"]})
    assert told(report.render).startswith("02_b, the kernel died")
    assert kept == {path: path.read_bytes() for path in good.parent.iterdir()}


def test_a_sentence_that_is_not_true_is_written_and_fails_and_warnings_are_passed_on(notebooks, capsys):
    shown = "display({'text/plain': 'kernel.best is\\nfaster'}, raw=True, metadata={'attnlab': {'holds': %s}})"
    notebooks(report=["import warnings\nwarnings.warn('slow')", shown % True, shown % False])
    assert "1 sentences are not true" in told(report.render)
    said, page = capsys.readouterr().err, (paths.reports() / DEFAULT / "report.html").read_text()
    assert "report: kernel.best is faster\n" in said
    assert "UserWarning: slow" in said
    assert "kernel.best is" in page
    assert "slow" not in without_code(page)


def test_the_pdf_is_kept_where_the_page_is_unchanged(notebooks, monkeypatch):
    made = []
    monkeypatch.setattr(report, "_program", lambda: "chromium")
    monkeypatch.setattr(report, "_pdf", lambda *given: made.append(given) or b"%PDF")
    for said, count in (("one", 1), ("one", 1), ("two", 2)):
        notebooks(report=[f"print({said!r})"])
        assert '<a href="report.pdf">PDF</a>' in report.render().read_text()
        assert len(made) == count


def test_ctrl_c_ends_everything(notebooks, tmp_path):
    pid = tmp_path / "pid"
    notebooks(report=["import os, time", f"open({os.fspath(pid)!r}, 'w').write(str(os.getpid()))", "time.sleep(60)"])
    code = (
        "import signal, sys; from pathlib import Path; from attnlab.base import paths\n"
        "from attnlab import report, __main__\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # run in the background, it is ignored
        f"paths.NOTEBOOKS = Path({os.fspath(paths.NOTEBOOKS)!r}); report.read.read_manifest = lambda run: {{}}\n"
        "sys.exit(__main__.main(['report']))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    wait_until(lambda: pid.is_file() and pid.read_text())
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=300)[1].endswith("attnlab: interrupted; what was recorded is kept\n")
    assert process.returncode == 130
    kernel = Path("/proc", pid.read_text())
    wait_until(lambda: not kernel.exists())


def test_the_report_reads_on_without_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNLAB_REPORTS", os.fspath(tmp_path))
    monkeypatch.setenv("ATTNLAB_DATA", os.fspath(paths.ROOT / "data"))
    monkeypatch.setattr(report, "_program", lambda: "")
    outputs = without_code(report.render("cpu-2026-11-29", ["report"]).read_text())
    assert len(re.findall('<figure><svg role="img" aria-label="Lines of ', outputs)) == 2
    assert outputs.count("<caption") == 5
    assert "H200" not in outputs
    assert 'role="alert"' not in outputs


def test_latex_takes_no_tex_from_markdown(tmp_path, monkeypatch):
    pypandoc = pytest.importorskip("pypandoc")
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{Path(pypandoc.get_pandoc_path()).parent}")
    told_by_a_run = {"text/markdown": "`a_b` \\input{/etc/passwd} $x^2$"}
    cells = [new_markdown_cell("# Title\n\n[02_b](02_b.ipynb) and 5 %"), new_code_cell("secret", outputs=[])]
    cells[1].outputs = [nbformat.v4.new_output("display_data", data=told_by_a_run)]
    report._write_latex(new_notebook(cells=cells, metadata=KERNEL), tmp_path)
    body = (tmp_path / "report.tex").read_text().partition(r"\begin{document}")[2]
    assert r"\textbackslash input" in body
    assert r"\input" not in body
    assert "x^2" in body
    assert "secret" not in body
    assert r"5 \%" in body
    assert "ipynb" not in body
