"""The paper of a run: its notebooks executed and rendered, the report and a page for each of the others."""

import os
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

from attnlab import locks, paths, runs
from attnlab.analyse import companions, results
from attnlab.errors import UserError
from attnlab.report import notebooks, pages

PAPER = "report"


def parts() -> list[str]:
    """The notebooks that a report consists of, in the order of the paper, the report last."""
    return [*(path.stem for path in sorted(paths.NOTEBOOKS.glob("[0-9]*.ipynb"))), PAPER]


def render(name: str) -> Path:
    """Render a recorded run, measuring nothing, and return the report's page.

    Raises:
        UserError: the run isn't there or is refused, or a notebook failed; what was executed is kept.
    """
    run = runs.load(name)
    print(f"{name}: inferring from {len(run.samples):,} samples", file=sys.stderr, flush=True)
    _infer(run)
    values = {"run": name, "device": "none"}
    # A notebook waits for its kernel most of the time; two at once is what two cores and 1.5 GB bear. The report takes
    # as long as all others together, so it goes first.
    with _alone(name), ThreadPoolExecutor(2) as pool:
        rendered = list(pool.map(lambda part: _page(part, name, values), reversed(parts())))
    return rendered[0]


def _infer(run: runs.Run) -> None:
    """Infer from a run and those that its pages show beside it: what is kept, no notebook infers again."""
    shown = results.of(run)
    for each in [shown, *companions.beside(shown)]:
        _ = each.families


def render_notebook(part: str, values: Mapping[str, object]) -> Path:
    """Execute one notebook with the parameters given and render its page.

    Raises:
        UserError: there is no such notebook, it doesn't know a parameter, the run isn't there, or a cell failed.
    """
    if part not in parts():
        raise UserError(f"there is no notebook {part!r}; there are {', '.join(parts())}")
    notebooks.check(_source(part), values)
    run = str(values.get("run") or "latest")
    if values.get("run"):
        runs.read_manifest(run)
    with _alone(run):
        return _page(part, run, values)


def _alone(run: str) -> AbstractContextManager[None]:
    """Wait until no other process renders this run: two would write the same files."""
    folder = paths.reports() / run

    def say() -> None:
        print(f"{paths.shown(folder)}/: another process is rendering it; waiting", file=sys.stderr, flush=True)

    return locks.held(folder / ".lock", say)


def _page(part: str, run: str, values: Mapping[str, object]) -> Path:
    folder = paths.reports() / run
    executed = folder / "notebooks" / f"{part}.ipynb"
    notebooks.execute(_source(part), executed, values, cwd=paths.NOTEBOOKS)
    page = folder / f"{part}.html"
    others = {other: f"{other}.html" for other in parts() if other != part}
    pages.render(executed, page, title=f"{part} · {run}", links=others)
    print(f"{run}: {part}", file=sys.stderr, flush=True)
    return page


def _source(part: str) -> Path:
    # Relative where it can be: papermill writes the path into the executed notebook.
    return Path(os.path.relpath(paths.NOTEBOOKS / f"{part}.ipynb"))
