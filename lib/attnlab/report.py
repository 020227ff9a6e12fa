"""Execute the notebooks for a run and render each as one self-contained HTML file; the report also as PDF.

Nothing is measured here. Pages are written after all notebooks were executed, each atomically.
"""

import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import Iterable, Mapping
from contextlib import suppress
from copy import deepcopy
from html import escape
from itertools import count
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import mistune
import nbformat
import papermill
from bs4 import BeautifulSoup
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from math_core import LatexError, LatexToMathML
from mistune.plugins import import_plugin
from nbclient.exceptions import DeadKernelError
from nbconvert import LatexExporter, TemplateExporter
from nbconvert.filters import Highlight2HTML, convert_pandoc
from papermill.exceptions import PapermillExecutionError
from pygments.formatters import HtmlFormatter
from traitlets.config import Config

from attnlab.base import files, paths
from attnlab.base.errors import UserError, suggestion
from attnlab.base.texts import printable
from attnlab.runs import read

REPORT = "report"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
HOW = "no PDF: install Chromium, or pdflatex with pandoc (the package pypandoc-binary brings it), and render again"
TAGS = "style div span p b strong em i code pre br sub sup ul ol li table caption thead tbody tfoot tr th td"
ATTRIBUTES = "class id style colspan rowspan scope role aria-label tabindex"
LINK_TO_FILE = re.compile(r"""(<a\b[^>]*?)\shref=(["'])(?!#|https?:|mailto:).*?\2""", re.DOTALL)
"""A link to a file, which a browser would print as an address on this machine."""
TEMPLATES = {"extra_template_basedirs": [str(Path(__file__).with_name("template"))]}
Notebook = Any


def names() -> list[str]:
    """The notebooks of a report: the report itself, then 01 to 09."""
    return [REPORT, *sorted(path.stem for path in paths.NOTEBOOKS.glob("0[1-9]_*.ipynb"))]


def render(
    run: str = "", notebooks: Iterable[str] | None = None, jobs: int = 2, parameters: Mapping[str, object] | None = None
) -> Path:
    """Execute notebooks for a recorded run, write their pages to ``reports/<run>/``, and return the first one.

    Cells tagged `published` are about the published run only, and are left out of other pages.

    Args:
        run: a run in ``data/``; the published one, which is the report's default, if empty.
        notebooks: some of those in ``notebooks/``; `names` if None. At most `jobs` are executed at the same time.
        parameters: parameters of each notebook, other than the run. They are part of the pages' names.

    Raises:
        UserError: there is no such run, notebook or parameter, or a cell failed; then nothing is written. Or `holds`
            found a sentence that is not true, or the PDF failed; then the pages are written. Or cells failed of some
            pages of a run that isn't the published one, which may lack their data; then the others are written.
    """
    published, given = _parameters(REPORT)["run"], dict(parameters or {})
    run = str(run or published)
    read.read_manifest(run)
    wanted = {}
    for name in names() if notebooks is None else notebooks:
        known = _parameters(name)
        for wrong in set(given) - set(known):
            raise UserError(f"{name} has no parameter {wrong!r}, but {', '.join(known)}{suggestion(wrong, known)}")
        notebook = nbformat.read(_source(name), as_version=4)
        if given or run != known.get("run"):
            notebook.cells = [cell for cell in notebook.cells if "published" not in cell.metadata.get("tags", [])]
        page = re.sub(r"[^\w.=,-]+", "-", " ".join([name, *(f"{key}={given[key]}" for key in given)]))
        wanted[page[:80].strip("-")] = notebook, given | ({"run": run} if "run" in known else {})
    return _build(run, wanted, jobs, run != published and len(wanted) > 1)


def _parameters(name: str) -> dict[str, str]:
    """The parameters of a notebook by name, with their defaults; quotes are left out."""
    found = papermill.inspect_notebook(str(_source(name)))
    return {parameter: about["default"].strip("\"'") for parameter, about in found.items()}


def _source(name: str) -> Path:
    there = [path.stem for path in sorted(paths.NOTEBOOKS.glob("*.ipynb"))]
    if name not in there:
        raise UserError(f"there is no notebook {name!r}; there are {', '.join(there)}{suggestion(name, there)}")
    return paths.NOTEBOOKS / f"{name}.ipynb"


def _build(run: str, wanted: Mapping[str, tuple[Notebook, dict[str, object]]], jobs: int, may_lack: bool) -> Path:
    folder = paths.reports() / run
    files.require_writable(folder, "ATTNLAB_REPORTS")
    busy = f"{paths.shown(folder)}/: another process is rendering it; waiting"
    cleaned = tempfile.TemporaryDirectory(prefix="attnlab-", ignore_cleanup_errors=True)

    def executed_or_none(page: str) -> tuple[str, Notebook | None]:
        try:
            return _execute(run, Path(scratch, page), *wanted[page])
        except _CellFailed as error:
            if not may_lack:
                raise
            _say(f"{run}: left out {error}")
            return page, None

    with files.held(folder / ".lock", lambda: _say(busy)), cleaned as scratch:
        with ThreadPool(jobs) as pool:  # its threads are daemons, and kernels end with this process
            tried = pool.imap_unordered(executed_or_none, wanted)
            executed = {page: notebook for page, notebook in tried if notebook}
        program, pdf = _program() if REPORT in executed else "", folder / "report.pdf"
        there = [name for name in names() if name in executed or (folder / f"{name}.html").is_file()]
        links = {name: f"{name}.html" for name in there} | ({"PDF": pdf.name} if program or pdf.is_file() else {})
        links |= {"explorer": "explore.html"} if (folder / "explore.html").is_file() else {}
        pages = {page: _html(notebook, run, links | {page: ""}).encode() for page, notebook in executed.items()}
        for page, html in pages.items():
            path = folder / f"{page}.html"
            if page == REPORT and program and not (path.is_file() and path.read_bytes() == html):
                pdf.unlink(missing_ok=True)  # that of an unchanged page is kept, as printing again gives other bytes
            files.write_atomically(path, html)
        if program and not pdf.is_file():
            files.write_atomically(pdf, _pdf(program, executed[REPORT], folder / "report.html", Path(scratch)))
    if REPORT in executed and not program:
        _say(HOW)
    _require_true(executed)
    if lacking := len(wanted) - len(executed):
        raise UserError(f"{lacking} of {len(wanted)} pages are left out, for the reasons above; the others are written")
    return folder / f"{next(iter(wanted))}.html"


def _require_true(executed: Mapping[str, Notebook]) -> None:
    """Print the warnings of notebooks, and raise UserError if a guarded sentence is not true."""
    wrong = 0
    for page, notebook in executed.items():
        for output in _outputs(notebook):
            is_wrong = output.get("metadata", {}).get("attnlab", {}).get("holds") is False
            wrong += is_wrong
            if is_wrong or output.get("name") == "stderr":
                _say(f"{page}: {' '.join((output.get('text') or output.data['text/plain']).split())}")
    if wrong:
        raise UserError(f"{wrong} sentences are not true, and their pages say so: correct them")


def _outputs(notebook: Notebook) -> list[Any]:
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def _say(line: str) -> None:
    print(printable(line), file=sys.stderr, flush=True)


class _JupyterKernel(AsyncKernelManager):
    """A Jupyter kernel of this interpreter, not an installed one. It finds this package, and no start-up files."""

    @property
    def kernel_spec(self) -> KernelSpec:
        """The command that starts it, and its environment."""
        path = os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH"))))
        folder = str(Path(self.connection_file).parent)
        environment = {"PYTHONPATH": path, "IPYTHONDIR": folder, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
        options = ["-f", "{connection_file}", "--log-level=CRITICAL", "--HistoryManager.enabled=False"]
        argv = [sys.executable, "-m", "ipykernel_launcher", *options]
        return KernelSpec(argv=argv, env=environment, language="python", display_name="Python 3")


class _CellFailed(UserError):
    """A cell of a notebook raised an error."""


def _execute(run: str, scratch: Path, notebook: Notebook, values: dict[str, object]) -> tuple[str, Notebook]:
    """The page's name, and its notebook with outputs. UserError if a cell fails, or its kernel dies."""
    scratch.mkdir()
    logging.getLogger("papermill").setLevel(logging.CRITICAL)
    copy, connection, began = scratch / "copy.ipynb", scratch / "kernel.json", time.perf_counter()
    nbformat.write(notebook, copy)
    # Sockets in a private folder: other users can't connect, and ports don't collide. A path has at most 107 bytes.
    kernel = {"transport": "ipc" if len(str(connection)) < 90 else "tcp", "connection_file": str(connection)}
    options = {"kernel_manager_class": _JupyterKernel, "config": Config({"KernelManager": kernel})}
    options |= {"shutdown_kernel": "immediate", "resources": {"metadata": {"path": str(paths.working())}}}
    options |= {"progress_bar": False, "log_output": False, "request_save_on_cell_execute": False}
    try:
        executed = papermill.execute_notebook(copy, None, values, kernel_name="python3", language="python", **options)
    except PapermillExecutionError as error:
        first, reason = (str(text).strip().partition("\n")[0] for text in (error.source, error.evalue))
        raise _CellFailed(f"{scratch.name}, the cell `{first}`: {error.ename}: {reason}") from None
    except (DeadKernelError, RuntimeError) as error:
        raise UserError(f"{scratch.name}, the kernel died: {' '.join(str(error).split())}") from None
    _say(f"{run}: {scratch.name}, {time.perf_counter() - began:.1f} s")
    return scratch.name, executed


class _Markdown(mistune.HTMLRenderer):
    """Render Markdown: HTML as text, formulas as MathML, no images, and links to pages instead of notebooks."""

    def inline_math(self, body: str, display: bool = False) -> str:
        try:
            return LatexToMathML().convert_with_local_state(body, displaystyle=display)
        except LatexError:
            return f"<code>{escape(body)}</code>"

    def block_math(self, body: str) -> str:
        return f"<p>{self.inline_math(body, display=True)}</p>\n"

    def image(self, text: str, url: str, title: str | None = None) -> str:
        return escape(text)

    def link(self, text: str, url: str, title: str | None = None) -> str:
        return super().link(text, re.sub(r"^(\w+)\.ipynb\b", r"\1.html", url), title)


def _html(notebook: Notebook, run: str, links: Mapping[str, str]) -> str:
    """The HTML of a page; the same notebook gives the same bytes. `links`: addresses by label, empty for this page."""
    shown = ["image/svg+xml", "text/html", "text/markdown", "image/png", "text/plain"]
    config = Config({"TemplateExporter": TEMPLATES, "NbConvertBase": {"display_data_priority": shown}})
    exporter, numbers = TemplateExporter(config=config, template_name="page", file_extension=".html"), count(1)
    plugins = [import_plugin("math"), import_plugin("table")]
    exporter.register_filter("markdown2html", mistune.Markdown(_Markdown(escape=True), plugins=plugins))
    exporter.register_filter("highlight_code", Highlight2HTML(pygments_lexer="ipython3"))
    exporter.register_filter("tables", _tables)
    exporter.register_filter("drawing", lambda svg: _drawing(svg, f"s{next(numbers)}-"))
    styles = ["\n".join(HtmlFormatter(style=s).get_token_style_defs(".highlight")) for s in ("xcode", "github-dark")]
    resources = {"title": _title(notebook), "run": run, "links": links, "styles": styles}
    html, _ = exporter.from_notebook_node(notebook, resources)
    for folder in {paths.ROOT, paths.working(), Path.home()} - {Path("/")}:
        html = re.sub(rf"{re.escape(str(folder))}(?![\w-])", ".", html)  # a page names no place on this machine
    return html


def _title(notebook: Notebook) -> str:
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    heading = re.search(r"^# (.+)$", text, re.M)
    return re.sub(r"[*`$]", "", heading[1]) if heading else "attnlab"


def _tables(html: str) -> str:
    """An output's HTML with only `TAGS` and `ATTRIBUTES`: no scripts, pictures, links or addresses in styles."""
    soup = BeautifulSoup(html, "html.parser")
    for tag in (tag for tag in soup.find_all(True) if not tag.decomposed):
        style = tag.get_text() if tag.name == "style" else str(tag.get("style", ""))
        if tag.name not in TAGS.split() or re.search(r"url|import|\\|<", style):
            tag.decompose()
        else:
            tag.attrs = {name: value for name, value in tag.attrs.items() if name in ATTRIBUTES.split()}
    for table in soup.find_all("table"):  # the box of a wide table scrolls, also by keyboard
        if table.parent and table.parent.name == "div":
            table.parent.attrs = {**{"role": "region", "aria-label": "table", "tabindex": "0"}, **table.parent.attrs}
    return str(soup)


def _drawing(svg: str, prefix: str) -> str:
    """An SVG as a figure that is labelled with its <title>, and whose ids begin with the prefix."""
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.find("<svg") :], flags=re.DOTALL)
    title = re.search(r"<title>(.*?)</title>", svg, re.DOTALL)
    label = " ".join(title[1].replace('"', "&quot;").split()) if title else "figure"
    if re.search(r"""<script|<foreignObject|\son\w+\s*=\s*["']|javascript:""", svg, re.IGNORECASE):
        return f"<p>{label}</p>"
    ids: dict[str, str] = {}
    rename = r'(\bid="|url\(#|href="#)([^")]+)'
    svg = re.sub(rename, lambda found: found[1] + ids.setdefault(found[2], f"{prefix}{len(ids)}"), svg)
    return "<figure>" + svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1) + "</figure>"


def _program() -> str:
    """The program that makes the PDF: pdflatex if pandoc is installed too, else a browser; empty without either."""
    with suppress(ImportError):
        import pypandoc  # type: ignore[import-not-found]

        os.environ["PATH"] += os.pathsep + str(Path(pypandoc.get_pandoc_path()).parent)
    latex = shutil.which("pdflatex") if shutil.which("pandoc") else None
    return latex or next(filter(None, map(shutil.which, BROWSERS)), "")


def _pdf(program: str, notebook: Notebook, page: Path, scratch: Path) -> bytes:
    """The report as PDF. UserError if the program fails."""
    latex, made, said = Path(program).name == "pdflatex", scratch / "report.pdf", "it took too long"
    if latex:
        _write_latex(notebook, scratch)
        options = ["-no-shell-escape", "-interaction=nonstopmode", "-halt-on-error", "report.tex"]
    else:
        copy = scratch / page.name
        copy.write_text(LINK_TO_FILE.sub(r"\1", page.read_text()))
        options = ["--headless", "--disable-gpu", "--no-pdf-header-footer"]
        options += ["--no-sandbox"] if os.geteuid() == 0 else []  # root can't use it, and the page runs no script
        options += [f"--user-data-dir={scratch}/profile", f"--print-to-pdf={made}", copy.as_uri()]
    for _ in range(1 + latex):  # LaTeX writes references in a second pass
        with suppress(subprocess.TimeoutExpired):
            ended = subprocess.run([program, *options], cwd=scratch, capture_output=True, timeout=300)
            said = next(iter(re.findall(r"^! (.*)", ended.stdout.decode(errors="replace"), re.M)), "it ended early")
    if not made.is_file():
        raise UserError(f"{Path(program).name} made no PDF, {said}; the pages are there")
    return made.read_bytes()


def _write_latex(notebook: Notebook, folder: Path) -> None:
    """The report as report.tex with its figures, by nbconvert's own exporter. In Markdown, only formulas are TeX."""
    from vl_convert import svg_to_pdf  # pages need no PDF of a figure

    paper, plain = deepcopy(notebook), "markdown-raw_tex-raw_html-raw_attribute"
    paper.metadata |= {"title": _title(notebook), "authors": [{"name": "attnlab"}]}
    paper.cells[0].source = re.sub(r"^# .+$", "", paper.cells[0].source, count=1, flags=re.M)
    for cell in paper.cells:
        cell.source = re.sub(r"\[([^]]+)\]\([^)]+\.ipynb\)", r"\1", cell.source)
    for data in (output.data for output in _outputs(paper) if "image/svg+xml" in output.get("data", {})):
        data["application/pdf"] = b64encode(svg_to_pdf(data["image/svg+xml"])).decode()
    exporter = LatexExporter(config=Config({"TemplateExporter": TEMPLATES}), template_name="paper")
    exporter.register_filter(
        "convert_pandoc", lambda text, of, to, **more: convert_pandoc(text, of.replace("markdown", plain), to, **more)
    )
    text, resources = exporter.from_notebook_node(paper, {"unique_key": REPORT})
    for name, content in {"report.tex": text.encode(), **resources["outputs"]}.items():
        (folder / name).write_bytes(content)
