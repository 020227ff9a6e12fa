"""Fills the report's notebook from the executed pages, without executing it: every exhibit has its cell there.

What a run has nothing for is left out: its exhibits, the paragraphs that refer to them, and the headings above nothing.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nbformat

from attnlab.base.errors import UserError
from attnlab.exhibits.catalogue import RUN, SHOWN, STAMP

_SETUP = re.compile(r"^show$", re.MULTILINE)
_REFERENCE = re.compile(r"\]\(#([\w.]+)\)")
_KEPT = ("## References",)
"""Headings with nothing below them in the notebook."""
Output = dict[str, Any]


def assemble(report: Path, executed: Iterable[Path], assembled: Path) -> None:
    """Write the report's notebook with the outputs that its exhibits have on the executed pages.

    Raises:
        UserError: a cell of the report shows anything but an exhibit, or an exhibit that no page made.
    """
    notebook = nbformat.read(report, as_version=4)
    made = _made(executed)
    missing: set[str] = set()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            ids = _ids(cell, made, report.name)
            there = [id for id in ids if not _stamp(made[id]).get("missing")]
            missing.update(set(ids) - set(there))
            cell.outputs = [made[id] for id in there]
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = _without(cell.source, missing)
    notebook.cells = _without_empty_sections(notebook.cells)
    nbformat.write(notebook, assembled)


def named(source: str) -> list[str]:
    """The ids that a cell shows: its exhibit, or the line that says which run it is; none for other cells."""
    if shown := SHOWN.fullmatch(source.strip()):
        return [shown[1]]
    return [RUN] if _SETUP.search(source) else []


def _without(source: str, missing: set[str]) -> str:
    """Markdown without the paragraphs that refer to exhibits which are missing, or to parts of them."""

    def is_missing(anchor: str) -> bool:
        return any(anchor == id or anchor.startswith(f"{id}.") for id in missing)

    paragraphs = source.split("\n\n")
    return "\n\n".join(each for each in paragraphs if not any(map(is_missing, _REFERENCE.findall(each))))


def _without_empty_sections(cells: list[Any]) -> list[Any]:
    """The cells without exhibits that show nothing, and without headings that have nothing below them."""
    kept = []
    below = 1  # the level of the heading that comes next, the end being one; 0 where something else does
    for cell in reversed(cells):
        if cell.cell_type == "code":
            below = 0 if cell.outputs else below
            kept += [cell] if cell.outputs or not named(cell.source) else []
            continue
        paragraphs: list[str] = []
        for paragraph in reversed(cell.source.strip().split("\n\n")):
            level = len(paragraph) - len(paragraph.lstrip("#"))
            if paragraph in _KEPT or (paragraph and not 0 < below <= level):
                paragraphs.insert(0, paragraph)
                below = level
        cell.source = "\n\n".join(paragraphs)
        kept += [cell] if paragraphs else []
    return kept[::-1]


def _ids(cell: Any, made: dict[str, Output], name: str) -> list[str]:
    ids = named(cell.source)
    if not ids and "parameters" not in cell.metadata.get("tags", []):
        raise UserError(f'{name}: {cell.source.strip()!r} is no exhibit: a cell of the report is `show("<id>")`')
    for id in ids:
        if id not in made:
            raise UserError(f"{name} shows {id!r}, which no page made: put it into a cell of its page")
    return ids


def _made(executed: Iterable[Path]) -> dict[str, Output]:
    """The outputs on all pages that carry an exhibit's stamp, by id."""
    return {
        stamp["exhibit"]: output
        for path in executed
        for cell in nbformat.read(path, as_version=4).cells
        for output in cell.get("outputs", [])
        if (stamp := _stamp(output))
    }


def _stamp(output: Output) -> dict[str, Any]:
    return output.get("metadata", {}).get(STAMP, {})
