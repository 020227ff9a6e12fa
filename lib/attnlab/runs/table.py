"""A table of a run together with the files that its rows lie in, so that a row can be named."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from attnlab.base import paths
from attnlab.base.errors import UserError
from attnlab.runs.schema import PARTS

OF_SHAPE = ("samples", "checks", "cases", "resources")
"""Tables with blocks of a shape, which is measured again as a whole."""


@dataclass(frozen=True)
class Table:
    """A table as it was read.

    Attributes:
        name: one of `schema.TABLES`.
        folder: the run's, or that of its parts.
        frame: its rows, numbered from 0.
        files: the files that the rows come from, in order, each with the number of its rows.
    """

    name: str
    folder: Path
    frame: pd.DataFrame
    files: tuple[tuple[Path, int], ...]

    @classmethod
    def joined(
        cls, name: str, folder: Path, columns: Iterable[str], parts: Iterable[tuple[Path, pd.DataFrame]]
    ) -> "Table":
        """The rows of several files of a folder, one after the other."""
        held = list(parts)
        filled = [rows for _, rows in held if not rows.empty]
        frame = pd.concat(filled, ignore_index=True) if filled else pd.DataFrame(columns=list(columns))
        return cls(name, folder, frame, tuple((path, len(rows)) for path, rows in held))

    def place(self, row: int) -> str:
        """File and row, the latter counted from 0 within the file."""
        path, within = self._found(row)
        return f"{paths.shown(path)}, row {within}"

    def refusal(self, said: str, row: int | None = None, key: str = "") -> UserError:
        """The error of a table that is refused: its place, what is wrong there, and what to do.

        Args:
            row: where it is wrong.
            key: of the block that is wrong as a whole, or missing.
        """
        named = [path for path, _ in self.files if path.name.startswith(f"{self.name}.{key}")]
        lacking = self.folder / (f"{self.name}.{key}*" if self.folder.name == PARTS else f"{self.name}.parquet")
        path = self._found(row)[0] if row is not None else next(iter(named), lacking)
        return refusal(path, said, paths.shown(path) if row is None else self.place(row))

    def _found(self, row: int) -> tuple[Path, int]:
        for path, count in self.files:
            if row < count:
                return path, row
            row -= count
        raise IndexError(row)


def refusal(path: Path, said: str, where: str = "") -> UserError:
    """The error of a file of a run that is refused: what is wrong `where`, and what to do."""
    advice = _measured_again(path) if path.parent.name == PARTS else "restore the run from where it came from"
    return UserError(f"{where or paths.shown(path)}: {said}: {advice}")


def _measured_again(part: Path) -> str:
    """How to have a part measured again: with whatever else is measured with it."""
    table, key = part.name.rstrip("*").split(".")[:2]
    together = f"{key}.*"
    if table in OF_SHAPE:
        together = "-".join(key.split("-")[:2]) + "*"
    elif table == "processes":
        together = key.split("-")[0] + "*"
    shown, run = paths.shown(part.with_name(f"*.{together}")), part.parent.parent.name
    return f"delete {shown}, and `make measure RUN={run}` measures that again"


def shown(value: Any) -> str:
    """A value of a table in a message."""
    if not pd.api.types.is_scalar(value):
        return f"a {type(value).__name__}"
    if value is None or value is pd.NA:
        return "missing"
    return "NaN" if pd.isna(value) else repr(value.item() if hasattr(value, "item") else value)
