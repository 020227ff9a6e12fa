"""The rows of a table of a run together with the files that they lie in, so that a row can be named."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from attnlab.base import paths
from attnlab.base.errors import UserError
from attnlab.runs.schema import MODELS, PARTS
from attnlab.runs.tables import Column, Table
from attnlab.study.shapes import Shape

OF_SHAPE = ("samples", "checks", "cases", "resources")
"""Tables with blocks of a shape, which is measured again as a whole."""


@dataclass(frozen=True)
class Rows:
    """The rows of a table as they were read.

    Attributes:
        folder: the run's, or that of its parts.
        frame: the rows, numbered from 0.
        files: the files that the rows come from, in order, each with the number of its rows.
    """

    table: Table
    folder: Path
    frame: pd.DataFrame
    files: tuple[tuple[Path, int], ...]

    @classmethod
    def joined(cls, table: Table, folder: Path, parts: Iterable[tuple[Path, pd.DataFrame]]) -> "Rows":
        """The rows of several files of a folder, one after the other."""
        held = list(parts)
        filled = [rows for _, rows in held if not rows.empty]
        frame = pd.concat(filled, ignore_index=True) if filled else table.frame([])
        return cls(table, folder, frame, tuple((path, len(rows)) for path, rows in held))

    def typed(self) -> "Rows":
        """The same rows under the types of their columns."""
        return replace(self, frame=self.table.typed(self.frame))

    def require_valid(self) -> None:
        """Raise UserError at the first row with a value that its column can't hold, or that names what an earlier does.

        That the axes of each row are those of a shape is checked as well.
        """
        if missing := [name for name in self.table.names if name not in self.frame]:
            raise self.refusal(f"the column {missing[0]!r} is missing")
        for column in self.table.columns:
            self._require_values(column)
        if set(Shape.AXES) <= set(self.table.names):
            self._require_shapes()
        self._require_one_row_each()

    def _require_values(self, column: Column) -> None:
        values = self.frame[column.name]
        wrong = ~column.kind.holds(values).astype(bool)
        if column.empty:
            wrong &= values.notna()
        if wrong.any():
            row = int(wrong.idxmax())
            raise self.refusal(f"{column.name} is {_shown(values[row])} and has to be {column.kind.words}", row)

    def _require_shapes(self) -> None:
        distinct = self.frame[list(Shape.AXES)].drop_duplicates()
        for row, axes in zip(distinct.index, distinct.to_dict("records"), strict=True):
            try:
                Shape(**axes)
            except ValueError as error:
                raise self.refusal(str(error), int(row)) from None

    def _require_one_row_each(self) -> None:
        again = self.frame.duplicated(self.table.key)
        if again.any():
            row = int(again.idxmax())
            keys = self.frame[self.table.key]
            same = (keys == keys.iloc[row]) | keys.isna()
            axes = Shape.AXES if "seq_len" in self.table.key else ()
            names = [name for name in self.table.key if name not in axes]
            first = self.place(int(same.all(axis="columns").idxmax()))
            raise self.refusal(f"this row has the {', '.join(names)} of {first}", row)

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
        name = self.table.name
        named = [path for path, _ in self.files if path.name.startswith(f"{name}.{key}")]
        lacking = self.folder / (f"{name}.{key}*" if self.folder.name == PARTS else f"{name}.parquet")
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
    run, within = part.parent.parent.name, part.parents[2].name
    together, command = f"{key}.*", "make model" if within == MODELS else "make measure"
    if within != MODELS and table in OF_SHAPE:
        together = "-".join(key.split("-")[:2]) + "*"
    elif table == "processes":
        together = key.split("-")[0] + "*"
    return f"delete {paths.shown(part.with_name(f'*.{together}'))}, and `{command} RUN={run}` measures that again"


def _shown(value: Any) -> str:
    """A value of a table in a message."""
    if not pd.api.types.is_scalar(value):
        return f"a {type(value).__name__}"
    if value is None or value is pd.NA:
        return "missing"
    return "NaN" if pd.isna(value) else repr(value.item() if hasattr(value, "item") else value)
