"""The rows of a table of a run together with the files that they lie in, so that a row can be named."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from attnlab.base import paths
from attnlab.base.errors import UserError
from attnlab.runs.schema import PARTS, of_shape
from attnlab.runs.tables import Column, Table
from attnlab.study.shapes import Shape

OF_SHAPE = ("samples", "checks", "cases", "resources")
"""Tables with blocks of a shape, which is measured again as a whole."""
Place = tuple[Path, int]
"""A file, and the number of a row in it, from 0."""


@dataclass(frozen=True)
class Rows:
    """The rows of a table as they were read.

    Attributes:
        folder: the run's, or that of its parts.
        frame: the rows, indexed by their `Place`.
    """

    table: Table
    folder: Path
    frame: pd.DataFrame

    @classmethod
    def joined(cls, table: Table, folder: Path, files: dict[Path, pd.DataFrame]) -> "Rows":
        """The rows of several files of a folder, one after the other."""
        filled = {path: rows.reset_index(drop=True) for path, rows in files.items() if not rows.empty}
        return cls(table, folder, pd.concat(filled) if filled else table.frame([]))

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
            place = wrong.idxmax()
            raise self.refusal(f"{column.name} is {_shown(values[place])} and has to be {column.kind.words}", place)

    def _require_shapes(self) -> None:
        distinct = self.frame[list(Shape.AXES)].drop_duplicates()
        for place, axes in zip(distinct.index, distinct.to_dict("records"), strict=True):
            try:
                Shape(**axes)
            except ValueError as error:
                raise self.refusal(str(error), place) from None

    def _require_one_row_each(self) -> None:
        again = self.frame.duplicated(self.table.key)
        if again.any():
            place, keys = again.idxmax(), self.frame[self.table.key]
            same = (keys == keys.loc[place, :]) | keys.isna()
            axes = Shape.AXES if "seq_len" in self.table.key else ()
            names = [name for name in self.table.key if name not in axes]
            first = _words(same.all(axis="columns").idxmax())
            raise self.refusal(f"this row has the {', '.join(names)} of {first}", place)

    def refusal(self, said: str, place: Place | None = None, key: str = "") -> UserError:
        """The error of a table that is refused: its place, what is wrong there, and what to do.

        Args:
            place: where it is wrong.
            key: of the block that is wrong as a whole, or missing.
        """
        if place is not None:
            return refusal(place[0], said, _words(place))
        named = f"{self.table.name}.{key}*" if self.folder.name == PARTS else f"{self.table.name}.parquet"
        return refusal(min(self.folder.glob(named), default=self.folder / named), said)


def _words(place: Place) -> str:
    path, row = place
    return f"{paths.shown(path)}, row {row}"


def refusal(path: Path, said: str, where: str = "") -> UserError:
    """The error of a file of a run that is refused: what is wrong `where`, and what to do."""
    advice = _measured_again(path) if path.parent.name == PARTS else "restore the run from where it came from"
    return UserError(f"{where or paths.shown(path)}: {said}: {advice}")


def _measured_again(part: Path) -> str:
    """How to have a part measured again: with whatever else is measured with it."""
    table, key = part.name.rstrip("*").split(".")[:2]
    run, together = part.parent.parent.name, f"{key}.*"
    if table in OF_SHAPE:
        together = f"{of_shape(key)}*"
    elif table == "processes":
        together = key.split("-")[0] + "*"
    return f"delete {paths.shown(part.with_name(f'*.{together}'))}, and `make measure RUN={run}` measures that again"


def _shown(value: Any) -> str:
    if not pd.api.types.is_scalar(value):
        return f"a {type(value).__name__}"
    if value is None or value is pd.NA:
        return "missing"
    return "NaN" if pd.isna(value) else repr(value.item() if hasattr(value, "item") else value)
