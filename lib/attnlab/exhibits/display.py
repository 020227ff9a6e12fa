"""What a notebook shows, the same in JupyterLab and on a page: figures, tables, listings and prose.

Captions and notes are one line of markdown: ``**bold**``, ``code``, ``$tex$``, and ``[](#roofline.roofline)``, the id
of an exhibit, for "Figure 3".
"""

import base64
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from numbers import Integral, Real
from textwrap import fill
from types import MappingProxyType
from typing import Any, Self, TypeAlias

import matplotlib.figure
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from attnlab.base.texts import escaped
from attnlab.exhibits import drawing, formats, markdown, tex
from attnlab.exhibits.markdown import Inline
from attnlab.exhibits.quantities import QUANTITIES, Marked, Named
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.stats import Interval

FILES = "application/vnd.attnlab.files+json"
"""The type of the files that an output's LaTeX includes: a PDF in base64 for each name."""
Bundle: TypeAlias = dict[str, Any]
"""An exhibit in every format, by MIME type."""
MISSING = "—"
LONG, TEXT = 16, 60
"""Cells of more letters may be broken, those of a text into wider lines."""
NAME = 22
"""The letters of a line of what a number is of."""
FEW_ROWS = 2
"""In a table of so few rows, a column may have one value by chance."""
NUMBERS = (Real, Interval, Marked, Named)
Forms: TypeAlias = Sequence[tuple[float, Mapping[str, str]]]
WHOLE, BELOW = dict[str, str](), {" [": "\n["}
APART = BELOW | {", ": ",\n"}
"""How an interval is broken into lines: not at all, before its ends, and between them."""
ON_PAGE = ((118, WHOLE), (135, BELOW), (math.inf, APART))
ON_PAPER = ((tex.TEXT_WIDTH, WHOLE), (math.inf, BELOW))
"""How intervals are broken in tables that are at most so many letters wide: on a small laptop, and in the PDF."""
_OPENED = re.compile(r"<\w+")
"""The first tag of an HTML text, as far as its name."""
_WITHIN = re.compile(r"(?<=[a-z0-9])[._](?=[a-z])")
Shows: TypeAlias = Mapping[str, Callable[[Any], str]]
"""How the values of some columns are printed, by the columns' names."""


class _Exhibit(ABC):
    """What every kind of exhibit can do."""

    @abstractmethod
    def bundle(self, anchor: str = "") -> Bundle:
        """The exhibit in every format, with its anchor on the page."""

    @abstractmethod
    def followed(self, sentence: str) -> Self:
        """The same exhibit with a sentence after its caption, its note or its text."""

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Bundle:
        return self.bundle()


@dataclass(frozen=True)
class Figure(_Exhibit):
    """A drawing with its caption, and a description for readers who can't see it."""

    figure: matplotlib.figure.Figure
    caption: str
    alt: str

    def __post_init__(self) -> None:
        # An open figure would be shown a second time, at the end of the cell, by Jupyter's inline backend.
        plt.close(self.figure)

    @cached_property
    def svg(self) -> bytes:
        """The drawing as SVG."""
        return drawing.svg(self.figure)

    @cached_property
    def pdf(self) -> bytes:
        """The drawing as PDF."""
        return drawing.pdf(self.figure)

    def bundle(self, anchor: str = "") -> Bundle:
        name = _name(anchor)
        picture = drawing.inline(self.svg.decode(), name, escape(self.alt))
        html = _float(anchor, "plot", f'<div class="drawing" tabindex="0">{picture}</div>', _caption(self.caption))
        width_in, height_in = map(float, self.figure.get_size_inches())
        latex = tex.figure(f"{name}.pdf", width_in, height_in, tex.inline(self.caption), anchor)
        return _bundle(html, self.alt, latex)

    def followed(self, sentence: str) -> Self:
        return replace(self, caption=f"{self.caption} {sentence}")

    @property
    def markdown(self) -> str:
        """Caption and description, which replace the drawing in a text."""
        return f"**{self.caption}** {self.alt}"


@dataclass(frozen=True)
class Table(_Exhibit):
    """A frame without its index. Its cells are numbers, intervals, marked numbers and texts.

    A column that is named like one of `QUANTITIES` has that quantity's head, and its values are printed as it says.
    Missing values are dashes, numbers are aligned right, and marks are explained in the note. A column that has one
    value in all rows is not shown; the note names it with its value.

    Args:
        highlight: position of the row that is emphasized.
        shows: how the numbers of columns are printed that are none of the quantities; by default to three digits.

    Raises:
        NotMeasured: the frame has no rows.
    """

    frame: pd.DataFrame
    caption: str
    note: str = ""
    highlight: int | None = None
    shows: Shows = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        rows: Sequence[Mapping[str, Any]],
        caption: str,
        note: str = "",
        highlight: int | None = None,
        shows: Shows = MappingProxyType({}),
        sparse: bool = False,
    ) -> "Table":
        """A table of rows, each its cells by the names of their columns; numbers stay of the kind that they are.

        Args:
            sparse: leave out the columns that have no value in any row.
        """
        frame = pd.DataFrame(rows, dtype=object)
        return cls(frame.dropna(axis="columns", how="all") if sparse else frame, caption, note, highlight, shows)

    def __post_init__(self) -> None:
        if self.frame.empty:
            raise NotMeasured(f"Nothing was measured for “{self.caption.rstrip('.')}”")

    def bundle(self, anchor: str = "") -> Bundle:
        # The table says which columns are aligned right: to say it in each cell takes a sixth of a page.
        numbers = " ".join(f"n{place}" for place, numeric in enumerate(self._numeric, 1) if numeric)
        table = f'<div class="scroll" tabindex="0"><table class="{numbers}">{self._rows()}</table></div>'
        note = f'<p class="note">{markdown.inline(self.legend)}</p>' if self.legend else ""
        html = _float(anchor, "table", _caption(self.caption), table, note)
        return _bundle(html, self._shown.to_string(index=False), self._latex(anchor))

    def followed(self, sentence: str) -> Self:
        return replace(self, note=f"{self.note} {sentence}".lstrip())

    def _latex(self, anchor: str) -> str:
        shown = self._within(ON_PAPER)
        return tex.table(
            list(shown.columns),
            list(shown.itertuples(index=False, name=None)),
            self._numeric,
            caption=tex.inline(self.caption),
            note=tex.inline(self.legend),
            anchor=anchor,
            highlight=self.highlight,
        )

    @cached_property
    def grid(self) -> str:
        """Titles and rows as a table in GitHub's Markdown."""
        rule = ["---:" if numeric else "---" for numeric in self._numeric]
        rows = self._shown.itertuples(index=False, name=None)
        lines = ([_sentence(cell).replace("|", "\\|") for cell in row] for row in [self._shown.columns, *rows])
        head, *body = lines
        return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, rule, *body])

    @property
    def markdown(self) -> str:
        """Caption, titles and rows, and note."""
        return "\n\n".join(filter(None, [f"**{self.caption}**", self.grid, self.legend]))

    @cached_property
    def _printed(self) -> pd.DataFrame:
        """The whole frame in print: heads, and cells as texts or `Inline`."""
        return self._as_text(WHOLE)

    def _as_text(self, breaks: Mapping[str, str]) -> pd.DataFrame:
        columns = {}
        for place, name in enumerate(self.frame.columns):
            show = self.shows.get(name) or (QUANTITIES[name].show if name in QUANTITIES else printed)
            columns[place] = [_text(cell, show, breaks) for cell in self.frame.iloc[:, place]]
        heads = [QUANTITIES[name].head if name in QUANTITIES else str(name) for name in self.frame.columns]
        return pd.DataFrame(columns, dtype=object).set_axis(heads, axis=1)

    @cached_property
    def _constants(self) -> dict[int, str]:
        """The columns that have one value in all rows, by position, each with that value; never the first column."""
        if len(self.frame) <= FEW_ROWS:
            return {}
        texts = {place: set(map(_sentence, self._printed.iloc[:, place])) for place in range(1, self.frame.shape[1])}
        return {place: found.pop() for place, found in texts.items() if len(found) == 1 and found != {MISSING}}

    @cached_property
    def _kept(self) -> list[int]:
        """The positions of the columns that are shown."""
        return [place for place in range(self.frame.shape[1]) if place not in self._constants]

    @cached_property
    def _shown(self) -> pd.DataFrame:
        """What is shown of it on a page."""
        return self._within(ON_PAGE)

    def _within(self, forms: Forms) -> pd.DataFrame:
        """What is shown of it, in the first of the forms that is no wider than that may be."""
        for most, breaks in forms:
            shown = self._as_text(breaks).iloc[:, self._kept]
            widths = map(_letters, shown.columns, shown.to_numpy().T, self._numeric)
            if sum(tex.GAP + width for width in widths) <= most:
                break
        return shown

    @cached_property
    def legend(self) -> str:
        """The note, the marks of numbers, and the columns that are left out with their values."""
        marks = dict.fromkeys(f"{cell.mark}." for cell in self.frame.to_numpy().flat if isinstance(cell, Marked))
        constants = [(self._printed.columns[place], value) for place, value in self._constants.items()]
        left_out = "; ".join(f"{_flat(title)} {value}" for title, value in constants)
        return " ".join(filter(None, [self.note, *marks, f"The same in every row: {left_out}." if left_out else ""]))

    @cached_property
    def _numeric(self) -> list[bool]:
        """Of each column that is shown, whether it holds numbers, which are aligned right."""
        return [_is_numeric(self.frame.iloc[:, place]) for place in self._kept]

    def _rows(self) -> str:
        titles = (f'<th scope="col">{_breakable(title)}</th>' for title in self._shown.columns)
        body = ""
        for position, row in enumerate(self._shown.itertuples(index=False, name=None)):
            emphasis = ' class="target"' if position == self.highlight else ""
            body += f"<tr{emphasis}>{''.join(map(_cell, row, self._numeric))}</tr>"
        return f"<thead><tr>{''.join(titles)}</tr></thead><tbody>{body}</tbody>"


@dataclass(frozen=True)
class Prose(_Exhibit):
    """Paragraphs in markdown, whose numbers were computed."""

    markdown: str

    def bundle(self, anchor: str = "") -> Bundle:
        # A link leads to the first paragraph: the page has no wrappers around outputs.
        html = _OPENED.sub(rf"\g<0>{_id(anchor)}", markdown.block(self.markdown), count=1)
        return _bundle(html, self.markdown, tex.block(self.markdown))

    def followed(self, sentence: str) -> Self:
        return replace(self, markdown=f"{self.markdown} {sentence}")


class Missing(Prose):
    """A sentence that says what the run lacks, in place of what it would show."""


@dataclass(frozen=True)
class Box(_Exhibit):
    """Paragraphs in markdown that are set apart in a frame, such as the findings.

    Attributes:
        title: the first line in the frame, plain text.
    """

    title: str
    text: str

    def bundle(self, anchor: str = "") -> Bundle:
        title = f"<p><strong>{escape(self.title)}</strong></p>"
        html = f'<aside{_id(anchor)} class="box">{title}{markdown.block(self.text)}</aside>'
        head = rf"\textbf{{{tex.escape(self.title)}}}\par"
        latex = f"\\begin{{findings}}\n{head}\n{tex.block(self.text)}\\end{{findings}}\n\n"
        return _bundle(html, f"{self.title}\n\n{self.text}", latex)

    def followed(self, sentence: str) -> Self:
        return replace(self, text=f"{self.text} {sentence}")

    @property
    def markdown(self) -> str:
        """Title and paragraphs."""
        return f"**{self.title}**\n\n{self.text}"


@dataclass(frozen=True)
class Group(_Exhibit):
    """Several exhibits in one, one below the other; the names of the parts distinguish their anchors."""

    parts: Mapping[str, "Figure | Table | Prose | Box"]

    def bundle(self, anchor: str = "") -> Bundle:
        """All parts in every format; the anchor of each is that of the group and its own name."""
        bundles = [part.bundle(f"{anchor}.{name}") for name, part in self.parts.items()]
        html = "\n".join(bundle["text/html"] for bundle in bundles)
        plain, latex = ("\n\n".join(bundle[kind] for bundle in bundles) for kind in ("text/plain", "text/latex"))
        return _bundle(html, plain, latex)

    def followed(self, sentence: str) -> Self:
        """The sentence is said once, in the first part."""
        first = next(iter(self.parts))
        return replace(self, parts={**self.parts, first: self.parts[first].followed(sentence)})

    @property
    def markdown(self) -> str:
        """All parts, one below the other."""
        return "\n\n".join(part.markdown for part in self.parts.values())


Content: TypeAlias = Figure | Table | Prose | Box | Group


def files(content: Content, anchor: str) -> dict[str, str]:
    """What an exhibit's LaTeX includes: a PDF in base64 for each of its figures, by name."""
    if isinstance(content, Group):
        parts = (files(part, f"{anchor}.{name}") for name, part in content.parts.items())
        return {name: file for found in parts for name, file in found.items()}
    return {f"{_name(anchor)}.pdf": base64.b64encode(content.pdf).decode()} if isinstance(content, Figure) else {}


def _bundle(html: str, plain: str, latex: str) -> Bundle:
    return {"text/html": html, "text/plain": plain, "text/latex": latex}


def _name(anchor: str) -> str:
    """A figure's anchor as its file and its ids begin with it."""
    return tex.label(anchor).replace(".", "-")


def _id(anchor: str) -> str:
    """An anchor as an attribute; empty where there is none."""
    return f' id="{escape(anchor)}"' if anchor else ""


def _float(anchor: str, kind: str, *parts: str) -> str:
    return f'<figure{_id(anchor)} class="{kind}">{"".join(parts)}</figure>'


def _caption(text: str) -> str:
    return f"<figcaption>{markdown.inline(text)}</figcaption>"


def _cell(cell: object, is_number: bool) -> str:
    """A cell; numbers and short texts keep their lines as they are."""
    text = str(cell)
    longest = 0 if is_number else _width(text)
    kind = ' class="text"' if longest > TEXT else ' class="long"' if longest > LONG else ""
    html = markdown.inline(text) if isinstance(cell, Inline) else _breakable(text) if kind else escape(text)
    return f"<td{kind}>{html}</td>"


def _breakable(text: str) -> str:
    """A text that may be broken within names, so that a table of many implementations fits, but not before ``%``."""
    return _WITHIN.sub(r"\g<0><wbr>", escape(text)).replace(" %", "\u00a0%")


def _letters(title: str, cells: Sequence[object], is_numeric: bool) -> int:
    """How wide a column is at least: titles are broken as `_breakable` says, and longer texts between words."""
    most = max(map(_width, cells))
    return max([*map(len, _WITHIN.sub(" ", title).split()), most if is_numeric else min(most, LONG)])


def _width(cell: object) -> int:
    return max(map(len, tex.LINK.sub("[00]", str(cell)).split("\n")))


def _flat(text: object) -> str:
    return " ".join(str(text).split("\n"))


def _sentence(cell: object) -> str:
    """A cell in a line of Markdown, where its text is no Markdown unless it was meant as such."""
    return _flat(cell) if isinstance(cell, Inline) else escaped(str(cell))


def _is_numeric(column: pd.Series) -> bool:
    present = column.dropna()
    return not present.empty and all(isinstance(cell, NUMBERS) and not isinstance(cell, bool) for cell in present)


def printed(value: Any) -> str:
    """A value of a column that says nothing else: fractions to three digits, other values as they are."""
    is_fraction = isinstance(value, Real) and not isinstance(value, Integral | np.bool_)
    return formats.number(float(value)) if is_fraction else str(value)


def _text(cell: Any, show: Callable[[Any], str], breaks: Mapping[str, str]) -> "str | Inline":
    """A cell in print; an interval or a marked number stands for itself, whatever its column says."""
    if isinstance(cell, Inline):
        return cell
    if isinstance(cell, Marked):
        return f"{_text(cell.value, show, breaks)} {cell.mark[0]}"
    if isinstance(cell, Named):
        return f"{_text(cell.value, show, breaks)}\n{fill(cell.name, NAME)}"
    if isinstance(cell, Interval):
        shown = (formats.interval if show in (formats.number, printed) else show)(cell)
        for whole, broken in breaks.items():
            shown = shown.replace(whole, broken)
        return shown
    return MISSING if pd.isna(cell) else cell if isinstance(cell, str) else show(cell)
