"""What a notebook shows, alike in JupyterLab and on the page: figures, tables, listings and prose.

Captions and notes are one run of markdown: ``**bold**``, ``code``, ``$tex$``, and ``[](#fig-roofline)`` for "Figure 3".
"""

import base64
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, wraps
from html import escape
from io import BytesIO
from numbers import Real
from typing import Any, ParamSpec, TypeVar

import matplotlib
import matplotlib.figure
import matplotlib.pyplot as plt
import pandas as pd
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name

from attnlab.analyse import markdown
from attnlab.analyse.results import NotMeasured

MISSING = "—"
LONG = 36
P = ParamSpec("P")
T = TypeVar("T")

_NUMBER = r"[<>≤≥≈~]?\s?[+\-−±]?\d[\d,\u2009\u202f]*(?:\.\d+)?(?:[eE][+\-−]?\d+)?\s?[%×]?"
_NUMERIC = re.compile(rf"{_NUMBER}(?:\s?[†‡]+)?(?:\s*[±–]\s*{_NUMBER})?(?:\s*[\[(]{_NUMBER}\s*[,–]\s*{_NUMBER}[\])])?")


@dataclass(frozen=True)
class Inline:
    """A cell of a table in markdown, such as a citation; other cells are printed as they are."""

    markdown: str

    def __str__(self) -> str:
        return self.markdown


@dataclass(frozen=True)
class Figure:
    """A drawing with its number, caption and a description for who cannot see it."""

    figure: matplotlib.figure.Figure
    name: str
    caption: str
    alt: str

    def __post_init__(self) -> None:
        # An open figure would be shown a second time, at the end of the cell, by Jupyter's inline backend.
        plt.close(self.figure)

    @cached_property
    def svg(self) -> bytes:
        """The drawing as SVG, the same bytes whenever it is drawn the same."""
        drawing = BytesIO()
        with matplotlib.rc_context({"svg.hashsalt": "attnlab"}):
            self.figure.savefig(drawing, format="svg", metadata={"Date": None})
        return drawing.getvalue()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        source = f"data:image/svg+xml;base64,{base64.b64encode(self.svg).decode()}"
        image = f'<img alt="{escape(self.alt)}" src="{source}">'
        return _bundle(_float(f"fig-{self.name}", "plot", image, _caption(self.caption)), self.alt)


@dataclass(frozen=True)
class Table:
    """A frame as its caller formatted it, without its index; nothing is a dash, columns of numbers are set right.

    Args:
        highlight: position of the row that the text is about.

    Raises:
        NotMeasured: the frame has no rows.
    """

    frame: pd.DataFrame
    name: str
    caption: str
    note: str = ""
    highlight: int | None = None

    def __post_init__(self) -> None:
        if self.frame.empty:
            raise NotMeasured(f"Nothing was measured for “{self.caption.rstrip('.')}”")

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        table = f'<div class="scroll"><table><thead>{self._head()}</thead><tbody>{self._body()}</tbody></table></div>'
        note = f'<p class="note">{markdown.inline(self.note)}</p>' if self.note else ""
        html = _float(f"tab-{self.name}", "table", _caption(self.caption), table, note)
        return _bundle(html, self.frame.map(_text).to_string(index=False))

    @cached_property
    def grid(self) -> str:
        """Titles and rows as GitHub sets a table."""
        columns = [self.frame.columns, ["---:" if align else "---" for align in self._alignments]]
        rows = [[_text(cell) for cell in row] for row in self.frame.itertuples(index=False, name=None)]
        return "\n".join(f"| {' | '.join(map(_in_line, row))} |" for row in [*columns, *rows])

    @property
    def markdown(self) -> str:
        """Caption, titles and rows, and note."""
        return "\n\n".join(filter(None, [f"**{self.caption}**", self.grid, self.note]))

    @cached_property
    def _alignments(self) -> list[str]:
        columns = (self.frame.iloc[:, position] for position in range(self.frame.shape[1]))
        return [' class="num"' if _is_numeric(column) else "" for column in columns]

    def _head(self) -> str:
        columns = zip(self.frame.columns, self._alignments, strict=True)
        titles = (f'<th scope="col"{align}>{escape(str(title))}</th>' for title, align in columns)
        return f"<tr>{''.join(titles)}</tr>"

    def _body(self) -> str:
        return "".join(self._row(*row) for row in enumerate(self.frame.itertuples(index=False, name=None)))

    def _row(self, position: int, cells: Iterable[object]) -> str:
        emphasis = ' class="target"' if position == self.highlight else ""
        texts = (_cell(cell, align) for cell, align in zip(cells, self._alignments, strict=True))
        return f"<tr{emphasis}>{''.join(texts)}</tr>"


@dataclass(frozen=True)
class Listing:
    """A text to be read as it is, such as a kernel's source; ``language`` is a name that Pygments knows."""

    text: str
    name: str
    caption: str
    language: str = ""

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        code = highlight(self.text, get_lexer_by_name(self.language or "text"), HtmlFormatter(nowrap=True))
        body = f'<pre class="highlight"><code>{code}</code></pre>'
        return _bundle(_float(f"lst-{self.name}", "listing", _caption(self.caption), body), self.text)


@dataclass(frozen=True)
class Prose:
    """Paragraphs in markdown, whose numbers were computed."""

    markdown: str

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/markdown": self.markdown, "text/plain": self.markdown}


@dataclass(frozen=True)
class Group:
    """Several things that one cell shows, one below the other."""

    parts: tuple["Figure | Table | Listing | Prose", ...]

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        bundles = [part._repr_mimebundle_() for part in self.parts]
        html = [bundle.get("text/html") or markdown.block(bundle["text/markdown"]) for bundle in bundles]
        return _bundle("\n".join(html), "\n\n".join(bundle["text/plain"] for bundle in bundles))


def telling(show: Callable[P, T]) -> Callable[P, T | Prose]:
    """Let `show` say what is missing where the run does not hold what it shows."""

    @wraps(show)
    def shown(*arguments: P.args, **named: P.kwargs) -> T | Prose:
        try:
            return show(*arguments, **named)
        except NotMeasured as missing:
            return Prose(f"*{missing}.*")

    return shown


def _bundle(html: str, plain: str) -> dict[str, str]:
    return {"text/html": html, "text/plain": plain}


def _float(anchor: str, kind: str, *parts: str) -> str:
    return f'<figure id="{escape(anchor)}" class="{kind}">{"".join(parts)}</figure>'


def _caption(text: str) -> str:
    return f"<figcaption>{markdown.inline(text)}</figcaption>"


def _cell(cell: object, align: str) -> str:
    text = _text(cell)
    # Short cells keep their lines as they are; only those that read like text may be broken.
    kind = align or (' class="long"' if max(map(len, text.split("\n"))) > LONG else "")
    return f"<td{kind}>{markdown.inline(text) if isinstance(cell, Inline) else escape(text)}</td>"


def _in_line(text: object) -> str:
    """A cell of a table in Markdown, whose rows are lines."""
    return str(text).replace("\n", " ").replace("|", "\\|")


def _is_numeric(column: pd.Series) -> bool:
    present = column.dropna()
    return not present.empty and all(map(_looks_numeric, present))


def _looks_numeric(cell: object) -> bool:
    if isinstance(cell, Real):
        return not isinstance(cell, bool)
    return _NUMERIC.fullmatch(str(cell).strip()) is not None


def _text(cell: Any) -> str:
    return MISSING if pd.isna(cell) else str(cell)
