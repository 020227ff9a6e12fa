"""Renders the paper of a run: a page of each notebook, and the report, which is assembled from them."""

import os
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from attnlab import select_run
from attnlab.base import files, paths
from attnlab.base.errors import UserError, suggestion
from attnlab.exhibits.explore import explorer, others
from attnlab.infer import results
from attnlab.paper import assemble, engine, execute, latex, pages, printed
from attnlab.runs import read, schema

PAPER = "report"


def parts() -> list[str]:
    """The names of the notebooks, in the order of the paper, the report last."""
    return [*(path.stem for path in sorted(paths.NOTEBOOKS.glob("[0-9]*.ipynb"))), PAPER]


def render(name: str) -> Path:
    """Render a recorded run, measuring nothing, and return the report's page.

    Raises:
        UserError: the run isn't there or is refused, or a notebook failed; what was executed is kept.
    """
    run = read.load(name)
    files.require_writable(paths.reports() / name, "ATTNLAB_REPORTS")
    print(f"{name}: inferring from {len(run.samples):,} samples", file=sys.stderr, flush=True)
    shown = results.of(run)
    in_use = [shown, *select_run.companions(shown)]  # as long as they are here, every notebook finds them
    values = {"run": name, "device": "none"}
    *several, paper = parts()
    with _alone(name):
        for part in several:
            _page(part, name, values, engine.NAME)
        explorer.write(in_use[0], others.others(run.manifest), paths.reports() / name)
        assembled = _executed(paper, name)
        assemble.assemble(_source(paper), [_executed(part, name) for part in several], assembled)
        return _paper(name, assembled)


def _paper(name: str, assembled: Path) -> Path:
    """The report in all its forms: LaTeX, PDF and a page; without a tool for PDF, a line says how to get one.

    A PDF is made anew only where its source changed: other tools, and other versions of one, make other bytes of it.
    """
    folder, created = paths.reports() / name, read.read_manifest(name)["created"]
    pdf, archive, source = folder / "report.pdf", folder / "report-source.tar.gz", latex.files(assembled)
    packed = latex.packed(source, archive.name, created)
    if not archive.is_file() or archive.read_bytes() != packed:
        pdf.unlink(missing_ok=True)
        files.write_atomically(archive, packed)
    there, tool = pdf.is_file(), printed.tool()
    formats = {"PDF": pdf.name} if there or tool else {}
    address = Path(os.path.relpath(schema.folder(name), folder)).as_posix()
    formats |= {"LaTeX source": archive.name, "explorer": "explore.html", "the run's folder": address}
    page = _rendered(PAPER, name, formats)
    if there:
        return page
    if Path(tool).name == "pdflatex":
        printed.compile(source, pdf, created)
    elif tool:
        printed.print_page(tool, page, pdf)
    else:
        print(printed.HOW, file=sys.stderr, flush=True)
    return page


def render_notebook(part: str, values: Mapping[str, object]) -> Path:
    """Execute one notebook with the parameters given and render its page.

    Raises:
        UserError: there is no such notebook, parameter or run, or a cell failed.
    """
    if part not in parts():
        raise UserError(f"there is no notebook {part!r}; there are {', '.join(parts())}{suggestion(part, parts())}")
    if part == PAPER:
        raise UserError("the report is put together from all notebooks: `make report` renders it")
    execute.check(_source(part), values)
    run = str(values.get("run") or "latest")
    files.require_writable(paths.reports(), "ATTNLAB_REPORTS")
    if stated := execute.shown_run(_source(part), values):
        select_run.named(**stated)  # measured here, where progress is shown and Ctrl-C arrives, and not in a kernel
    with _alone(run):
        return _page(part, run, values, execute.KERNEL)


def _alone(run: str) -> AbstractContextManager[None]:
    """Hold the lock on a run's pages; two processes that render it would write the same files."""
    folder = paths.reports() / run

    def say() -> None:
        print(f"{paths.shown(folder)}/: another process is rendering it; waiting", file=sys.stderr, flush=True)

    return files.held(folder / ".lock", say)


def _page(part: str, run: str, values: Mapping[str, object], by: str) -> Path:
    execute.execute(_source(part), _executed(part, run), values, paths.working(), by)
    return _rendered(part, run)


def _rendered(part: str, run: str, formats: Mapping[str, str] | None = None) -> Path:
    page = paths.reports() / run / f"{part}.html"
    others = {other: f"{other}.html" for other in parts() if other != part}
    pages.render(
        _executed(part, run), page, title=f"{part} · {run}", links=others, formats=formats, has_code=part != PAPER
    )
    print(f"{run}: {part}", file=sys.stderr, flush=True)
    return page


def _executed(part: str, run: str) -> Path:
    return paths.reports() / run / "notebooks" / f"{part}.ipynb"


def _source(part: str) -> Path:
    # Relative where it can be: papermill writes the path into the executed notebook.
    return Path(os.path.relpath(paths.NOTEBOOKS / f"{part}.ipynb"))
