"""Reads data/reference/: the documents' numbers as printed, the datasheets, and the claims about both.

A number keeps the digits that it was printed with. A claim is one line of claims.csv: a rule, the number that it is
about, and the numbers that it follows from.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, model_validator

from attnlab.base import paths
from attnlab.base.documents import Size, Words
from attnlab.base.errors import UserError, suggestion
from attnlab.literature import tables
from attnlab.literature.audit.numbers import SCALES, TEXT, Number
from attnlab.literature.datasheets import datasheets
from attnlab.study.shapes import Shape

DOCUMENTS = {
    "000": "baseline characterization",
    "001": "how that baseline was made",
    "002": "custom kernel against SDPA",
    "003": "autotuning SDPA",
    "004": "fixed-shape comparison",
}
"""The documents, by the name of the CSV that holds their numbers."""
SHEET = "datasheet"
"""The place of a number of a datasheet."""
_SHEET_UNITS = {"tflops": "TFLOP/s", "gbs": "GB/s", "multiprocessors": "count", "mib": "MiB", "w": "W", "gb": "GB"}
_SIZES = ("batch", "heads", "seq_len", "head_dim")

Identifier = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.]*$")]


def _known_document(name: str) -> str:
    if name not in DOCUMENTS:
        raise UserError(_unknown("document", name, DOCUMENTS))
    return name


Document = Annotated[Words, AfterValidator(_known_document)]


class Row(BaseModel, extra="forbid", frozen=True):
    """One number, or one word, of a document.

    Attributes:
        place: title of its section.
        subject: the thing that it describes, such as an implementation; `quantity`: the property that it states.
        value: as printed, without thousands separators; a word where `unit` is ``text``.
        plus_minus: what is printed after ±; empty where nothing is.
    """

    id: Identifier
    document: Words
    place: Words
    subject: Words
    quantity: Words
    batch: Size | None = None
    heads: Size | None = None
    seq_len: Size | None = None
    head_dim: Size | None = None
    causal: bool | None = None
    dtype: Literal["float16"] | None = None
    value: Words
    plus_minus: str | None = None
    unit: Words

    @model_validator(mode="after")
    def _numbers_are_numbers(self) -> "Row":
        if self.unit != TEXT and self.unit not in SCALES:
            raise UserError(f"unknown unit {self.unit!r}; known are {', '.join([*SCALES, TEXT])}")
        for text in (self.value, self.plus_minus) if self.unit != TEXT else ():
            if text is not None:
                try:
                    Number.printed(text, self.unit)
                except ValueError as error:
                    raise UserError(f"{error}: write it as printed, without thousands separators") from None
        return self

    @cached_property
    def number(self) -> Number | None:
        """The value in base units; None for a word."""
        return None if self.unit == TEXT else Number.printed(self.value, self.unit)

    @cached_property
    def shape(self) -> Shape | None:
        """Its shape; None where the document doesn't state one."""
        sizes = {axis: getattr(self, axis) for axis in _SIZES}
        if None in sizes.values():
            return None
        return Shape(**sizes, causal=bool(self.causal), dtype=self.dtype or "float16")

    @property
    def shown(self) -> str:
        """The value with its unit."""
        if self.unit in (TEXT, "1", "count"):
            return self.value
        return f"{self.value} {self.unit}"


def _parts(cell: Any) -> Any:
    return [part.strip() for part in cell.split(";") if part.strip()] if isinstance(cell, str) else cell


Parts = Annotated[list[str], BeforeValidator(_parts)]
"""A cell of parts that are separated by semicolons."""


class Claim(BaseModel, extra="forbid", frozen=True):
    """A rule applied to rows.

    Attributes:
        claim: what the document says, in a few words.
        stated: id of the row that says it.
        inputs: the rule's inputs: ids, ``003:id`` of another document, ``L4:column`` of a datasheet, ``±id`` for the
            number printed after ±, ``=2`` for a constant; ``*`` matches any part of an id.
        rests_on: ids of the claims that its inputs state, where it can't stand without them.
        note: why it matters, where the rule's own words don't say so.
        telling: its rank among the most informative claims; empty for the rest.
    """

    id: Identifier
    document: Document
    claim: Words
    rule: Words
    stated: Words
    inputs: Parts = []
    rests_on: Parts = []
    note: str | None = None
    telling: Size | None = None


class Advice(BaseModel, extra="forbid", frozen=True):
    """A document's advice to its readers: the claims that it rests on, and what the recomputed numbers say instead."""

    document: Document
    advice: Words
    claims: Parts
    instead: Words


@dataclass(frozen=True)
class Term:
    """An input of a rule: a number or a word, and the row that states it, if one does."""

    number: Number | None
    row: Row | None
    shown: str


class Reference:
    """All transcribed rows.

    Raises UserError where a row can't be read; the message names file, line and what is wrong.
    """

    def __init__(self, folder: Path = paths.REFERENCE) -> None:
        self.folder = folder
        self.rows = {name: self._document(name) for name in DOCUMENTS} | self._sheets()

    def claims(self) -> Iterator[tuple[str, Claim]]:
        """The claims, each after the place that an error message names."""
        seen = set()
        for place, claim in tables.read(self.folder / "claims.csv", Claim):
            if claim.id in seen:
                raise UserError(f"{place}: an earlier claim has the id {claim.id!r}: choose another")
            seen.add(claim.id)
            yield place, claim

    def advice(self) -> Iterator[tuple[str, Advice]]:
        """The documents' advice, each after the place that an error message names."""
        return tables.read(self.folder / "advice.csv", Advice)

    def row(self, name: str, document: str) -> Row:
        """The row of an id; for an id after ±, the row whose value is the number printed after ±.

        Raises UserError where there is none.
        """
        if name.startswith("±"):
            row = self.row(name[1:], document)
            if row.plus_minus is None:
                raise UserError(f"the row {row.id!r} has nothing after ±")
            return Row(**row.model_dump() | {"value": row.plus_minus, "plus_minus": None})
        source, _, identifier = name.rpartition(":")
        source = source or document
        if source not in self.rows:
            raise UserError(_unknown("document", source, self.rows))
        if identifier not in self.rows[source]:
            near = suggestion(identifier, self.rows[source])
            raise UserError(f"there is no row {identifier!r} in {source}{near}")
        return self.rows[source][identifier]

    def terms(self, name: str, document: str) -> list[Term]:
        """The terms that one input of a claim names; UserError where it names none."""
        if name.startswith("="):
            try:
                return [Term(Number.exact(float(name[1:])), None, name[1:])]
            except ValueError:
                raise UserError(f"{name[1:]!r} is not a number: write a constant as in '=2'") from None
        if "*" in name:
            source, _, pattern = name.rpartition(":")
            rows = self.rows.get(source or document, {}).items()
            found = [row for identifier, row in rows if fnmatchcase(identifier, pattern)]
            if not found:
                raise UserError(f"no row of {source or document} fits {pattern!r}")
            return [_term(row, document) for row in found]
        return [_term(self.row(name, document), document)]

    def _document(self, name: str) -> dict[str, Row]:
        rows: dict[str, Row] = {}
        for place, row in tables.read(self.folder / f"{name}.csv", Row):
            if row.document not in DOCUMENTS:
                raise UserError(f"{place}: {_unknown('document', row.document, DOCUMENTS)}")
            if row.document != name:
                raise UserError(f"{place}: a row of document {row.document} is in the file of {name}: move it there")
            if row.id in rows:
                raise UserError(f"{place}: an earlier row has the id {row.id!r}: choose another")
            rows[row.id] = row
        return rows

    def _sheets(self) -> dict[str, dict[str, Row]]:
        """The datasheets' numbers, by the device's short name, such as ``L4``, and column.

        A short name that several forms of a card share means the one that stands first.
        """
        sheets: dict[str, dict[str, Row]] = {}
        for sheet in datasheets(self.folder / "datasheets.csv").to_dict("records"):
            device = sheet["device"].split()[1]
            rows = (_of_sheet(device, column, value) for column, value in sheet.items())
            sheets.setdefault(device, {row.id: row for row in rows if row})
        return sheets


def _of_sheet(device: str, column: str, value: Any) -> Row | None:
    unit = TEXT if column == "memory_kind" else _SHEET_UNITS.get(column.rsplit("_", 1)[-1])
    if not unit or pd.isna(value):
        return None
    printed = value if unit == TEXT else f"{value:g}"
    return Row(id=column, document=device, place=SHEET, subject=device, quantity=column, value=printed, unit=unit)


def _term(row: Row, document: str) -> Term:
    if row.place == SHEET:
        return Term(row.number, row, f"{row.shown} ({row.document}'s datasheet)")
    return Term(row.number, row, row.shown if row.document == document else f"{row.shown} ({row.document})")


def _unknown(what: str, name: str, known: Any) -> str:
    return f"unknown {what} {name!r}; known are {', '.join(known)}{suggestion(name, known)}"
