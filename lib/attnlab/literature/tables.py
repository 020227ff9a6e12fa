"""Reads the tables in data/reference/: a model for each line of a CSV file, with the place that a message names."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from attnlab.base import paths
from attnlab.base.documents import validated
from attnlab.base.errors import UserError

M = TypeVar("M", bound=BaseModel)


def read(path: Path, model: type[M]) -> Iterator[tuple[str, M]]:
    """The lines of a CSV file, whose columns are fields of a model; an empty cell leaves its field out.

    Raises UserError where the file or a line of it can't be read, a line is there twice, or there is none below the
    head; the message is one line that names file and line.
    """
    place = shown = paths.shown(path)
    lines: dict[tuple[str, ...], int] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # which spreadsheets begin with a byte order mark
            reader = csv.DictReader(file, strict=True)
            for cells in reader:
                place = f"{shown}, line {reader.line_num}"
                if None in cells or None in cells.values():
                    raise UserError(f"it should have {len(reader.fieldnames or ())} cells: count the commas")
                if first := lines.get(tuple(cells.values())):
                    raise UserError(f"it repeats line {first}: leave one")
                lines[tuple(cells.values())] = reader.line_num
                yield place, validated(model, {column: cell for column, cell in cells.items() if cell})
        if not lines:
            raise UserError("it has no line below its head: restore it")
    except UserError as error:
        raise UserError(f"{place}: {error}") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{shown} can't be read: {error}: restore it") from None
