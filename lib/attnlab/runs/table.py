"""A table of a run together with the files that its rows lie in, so that a row can be named."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from attnlab.base import paths
from attnlab.base.errors import UserError


@dataclass(frozen=True)
class Table:
    """A table as it was read.

    Attributes:
        name: one of `schema.TABLES`.
        frame: its rows, numbered from 0.
        files: the files that the rows come from, in order, each with the number of its rows.
    """

    name: str
    frame: pd.DataFrame
    files: tuple[tuple[Path, int], ...]

    @classmethod
    def joined(cls, name: str, columns: Iterable[str], parts: Iterable[tuple[Path, pd.DataFrame]]) -> "Table":
        """The rows of several files, one after the other."""
        held = list(parts)
        filled = [rows for _, rows in held if not rows.empty]
        frame = pd.concat(filled, ignore_index=True) if filled else pd.DataFrame(columns=list(columns))
        return cls(name, frame, tuple((path, len(rows)) for path, rows in held))

    def place(self, row: int) -> str:
        """File and row, the latter counted from 0 within the file."""
        for path, count in self.files:
            if row < count:
                return f"{paths.shown(path)}, row {row}"
            row -= count
        raise IndexError(row)

    def refusal(self, said: str, row: int | None = None) -> UserError:
        """The error of a table that is refused: its place, what is wrong there, and what to do."""
        path = self.files[0][0] if self.files else Path(f"{self.name}.parquet")
        where = paths.shown(path) if row is None else self.place(row)
        if path.parent.name == "parts":
            return UserError(f"{where}: {said}: delete the part and measure it again")
        return UserError(f"{where}: {said}: restore the run from where it came from")


def shown(value: Any) -> str:
    """A value of a table in a message."""
    if not pd.api.types.is_scalar(value):
        return f"a {type(value).__name__}"
    if value is None or value is pd.NA:
        return "missing"
    return "NaN" if pd.isna(value) else repr(value.item() if hasattr(value, "item") else value)
