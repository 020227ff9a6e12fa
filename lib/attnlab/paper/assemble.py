"""Fills the report's notebook from the executed pages, without executing it: every exhibit has its cell there."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nbformat

from attnlab.base.errors import UserError
from attnlab.exhibits.catalogue import RUN, STAMP

_SHOWN = re.compile(r'^show\("([\w.]+)"\)$')
_SETUP = re.compile(r"^show$", re.MULTILINE)
Output = dict[str, Any]


def assemble(report: Path, executed: Iterable[Path], assembled: Path) -> None:
    """Write the report's notebook with the outputs that its exhibits have on the executed pages.

    Raises:
        UserError: a cell of the report shows anything but an exhibit, or an exhibit that no page made.
    """
    notebook = nbformat.read(report, as_version=4)
    made = _made(executed)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [made[id] for id in _ids(cell, made, report.name)]
    nbformat.write(notebook, assembled)


def named(source: str) -> list[str]:
    """The ids that a cell shows: its exhibit, or the line that says which run it is; none for other cells."""
    if shown := _SHOWN.match(source.strip()):
        return [shown[1]]
    return [RUN] if _SETUP.search(source) else []


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
    made: dict[str, Output] = {}
    for path in executed:
        for cell in nbformat.read(path, as_version=4).cells:
            for output in cell.get("outputs", []):
                if stamp := output.get("metadata", {}).get(STAMP):
                    made[stamp["exhibit"]] = output
    return made
