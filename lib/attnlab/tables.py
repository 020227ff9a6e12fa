"""Frames as printed tables, and sentences about them: HTML in a notebook and on a page, LaTeX in a paper.

Texts of a frame are data. They are escaped in HTML, Markdown and LaTeX.
"""

import html
import math
import re
import zlib
from collections.abc import Callable, Hashable, Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np
import pandas as pd
from IPython.display import display
from pandas.io.formats.style import Styler

from attnlab.base.errors import UserError
from attnlab.base.texts import escaped, printable
from attnlab.frames import require_column

MISSING = "—"
TITLES = {
    "batch": "batch B",
    "heads": "heads H",
    "seq_len": "sequence length S",
    "head_dim": "head dimension D",
    "values": "input distribution",
    "median_us": "median latency (µs)",
    "intensity": "intensity (FLOP/byte)",
    "p_holm": "p (Holm)",
    "smallest_effect": "smallest effect (%)",
    "speed_of_light": "speed of light (%)",
}
UNITS = {"us": "µs", "ns": "ns", "pct": "%", "gbs": "GB/s", "tflops": "TFLOP/s", "mhz": "MHz", "mb": "MB", "w": "W"}
"""Endings of columns' names, and the units that they stand for."""
FRACTIONS = ("smallest_effect", "speed_of_light")
"""Columns that hold fractions, and are printed in percent."""
RATIOS = ("speedup", "low", "high", "highest")
NUMBER = r"[-+<]?(\d|inf)|—$"
"""How the text of a number begins."""
LONG = 40
"""A table of more rows may break across the pages of a paper."""
SCROLLS = (
    "<style>.attnlab-table{overflow:auto;max-height:32em;max-width:100%}.attnlab-table caption{text-align:left}"
    "@media print{.attnlab-table{overflow:visible;max-height:none}}</style>"
    '<div class="attnlab-table" role="region" tabindex="0" aria-label="'
)
RED = "border:2px solid #b00020;border-radius:4px;padding:.4em .8em;color:#b00020;background:#fff"
LATEX = {mark: rf"\{mark}" for mark in "&%$#_{}"} | {mark: rf"\char{ord(mark)}{{}}" for mark in "\\~^"}
VERBS = {"faster": "is faster than", "slower": "is slower than", "equivalent": "is equivalent to"}
USUAL = {"lengths": "equal", "direction": "forward", "layout": "heads first", "scale": 0.0}
"""Axes that a statement names only where they differ from these."""


def heading(column: Hashable) -> str:
    """A column's name as readers see it, with its unit: ``throughput (TFLOP/s)`` for ``throughput_tflops``."""
    stem, _, unit = str(column).rpartition("_")
    if not str(column).isidentifier():
        return text_of(column)
    words = f"{stem} ({UNITS[unit]})" if unit in UNITS else str(column)
    return TITLES.get(str(column), words.replace("_", " "))


def significant(value: float, digits: int = 3) -> str:
    """A number with 3 significant digits or all digits before the point, with commas: ``1,235``, ``0.0457``."""
    if value == 0 or not math.isfinite(value):
        return MISSING if math.isnan(value) else f"{value:g}"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{value:.{digits - 1}e}" if decimals > digits + 3 else f"{value:,.{max(0, decimals)}f}"


def text_of(value: Any, column: Hashable = "") -> str:
    """A cell of a column as a table prints it, not escaped yet."""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, Integral):
        return f"{int(value):,}"
    if not isinstance(value, Real):
        return MISSING if pd.api.types.is_scalar(value) and pd.isna(value) else printable(str(value))
    number = 100 * float(value) if column in FRACTIONS else float(value)
    if column in ("p", "p_holm") and math.isfinite(number):
        return "<0.0001" if number < 0.0001 else f"{number:.4f}"
    return f"{number:.3f}" if column in RATIOS and abs(number) < 10 else significant(number)


def with_interval(frame: pd.DataFrame, name: str, low: str = "low", high: str = "high") -> pd.DataFrame:
    """A column as text with its interval, ``1.233 [1.227, 1.238]``, without the columns of the ends.

    All 3 numbers have the decimals that tell the ends apart: at least 3 significant digits, and at most 5.
    Raises UserError if a column is missing.
    """
    for column in (name, low, high):
        require_column(column, frame.columns)
    texts = [_interval(*map(float, row)) for row in frame[[name, low, high]].to_numpy(float, na_value=math.nan)]
    return frame.drop(columns=[low, high]).assign(**{name: pd.Series(texts, index=frame.index, dtype=object)})


def _interval(value: float, low: float, high: float) -> str:
    if not (value and math.isfinite(value) and high > low):
        return significant(value)
    least = 2 - math.floor(math.log10(abs(value)))
    decimals = max(0, min(max(least, math.ceil(-math.log10(min(high - low, 1e9) / 2))), least + 2))
    return f"{value:,.{decimals}f} [{low:,.{decimals}f}, {high:,.{decimals}f}]"


def latex_text(text: str) -> str:
    """Plain text as LaTeX for pdflatex; a letter that its fonts lack is given by its code point, ``U+6838``."""
    return "".join(LATEX.get(mark) or (mark if mark < "Ā" or mark in "–—" else f"U+{ord(mark):04X}") for mark in text)


class Table:
    """A frame as notebooks, pages and papers show it. `style` is pandas' Styler for HTML, which a user can modify."""

    def __init__(self, frame: pd.DataFrame, caption: str, bold: np.ndarray) -> None:
        self.frame, self.caption, self._bold = frame, printable(caption), bold
        self.caption += " No rows." if frame.empty else ""
        texts = {name: [text_of(value, name) for value in frame[name]] for name in frame.columns}
        numeric = (all(re.match(NUMBER, text) for text in texts[name]) for name in frame.columns)
        self._sides = ["right" if is_numeric else "left" for is_numeric in numeric]
        wraps = {"right": "text-align:right;white-space:nowrap", "left": "text-align:left"}
        rules = [{"selector": f"td.col{n}", "props": wraps[side]} for n, side in enumerate(self._sides)]
        rules += [{"selector": f"th.col{n}", "props": f"text-align:{side}"} for n, side in enumerate(self._sides)]
        self.style = self._styler(html.escape).set_table_styles(rules)

    def _styler(self, escape: Callable[[str], str]) -> Styler:
        content = f"{self.caption} {self.frame.to_csv()} {self._bold.tolist()}"  # a page may hold several tables
        styler = Styler(self.frame, uuid=f"{zlib.crc32(content.encode()):08x}", cell_ids=False).hide(axis="index")
        shows = {name: lambda value, name=name: escape(text_of(value, name)) for name in self.frame.columns}
        styler.format(shows).format_index(lambda name: escape(heading(name)), axis=1)
        if self.caption:
            styler.set_caption(escape(self.caption))
        return styler.apply(lambda _: np.where(self._bold, "font-weight: bold", ""), axis=None)

    def _repr_html_(self) -> str:
        if self.frame.empty:
            return f"<p>{html.escape(self.caption)}</p>"
        label = html.escape(self.caption or "table")
        return f'{SCROLLS}{label}">{self.style.to_html()}</div>'

    def _repr_latex_(self) -> str:
        if self.frame.empty:
            return latex_text(self.caption)
        styler = self._styler(latex_text)
        styler.use({"apply": self.style.export()["apply"][1:]})  # the first is the bold mask
        is_long = len(self.frame) > LONG
        how = {"environment": "longtable"} if is_long else {"position": "htbp", "position_float": "centering"}
        sides = "".join(side[0] for side in self._sides)
        return styler.to_latex(hrules=True, convert_css=True, column_format=sides, **how)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, str], dict[str, Any]]:
        bundle = {"text/html": self._repr_html_(), "text/latex": self._repr_latex_()}
        return bundle | {"text/plain": self.frame.to_string(index=False)}, {"attnlab": {"table": True}}


def table(frame: pd.DataFrame, caption: str = "", bold: Any = None) -> Table:
    """A frame as a printed table: 3 significant digits, a comma every 3 digits, numbers to the right.

    Columns are headed by `heading`. An index with a name becomes columns; another index is left out.

    Args:
        bold: a mask of rows (a Series), or of cells (a frame with some of the columns).

    Raises:
        UserError: the mask has another length or index.
    """
    mask = bold if bold is not None else np.zeros(len(frame), bool)
    if len(mask) != len(frame) or (isinstance(mask, pd.Series | pd.DataFrame) and not mask.index.equals(frame.index)):
        raise UserError("bold has other rows than the table, or another order: give a mask of the same frame")
    shown = pd.DataFrame(frame).reset_index(drop=not any(name is not None for name in frame.index.names))
    if isinstance(mask, pd.DataFrame):
        cells = mask.reindex(columns=shown.columns, fill_value=False).to_numpy(bool)
    else:
        cells = np.tile(np.asarray(mask, bool)[:, None], shown.shape[1])
    return Table(shown, caption, cells)


def markdown(frame: pd.DataFrame) -> str:
    """A frame as a table in Markdown, its cells as `text_of` prints them."""
    rows = frame.to_numpy(object)
    cells = [[text_of(value, name) for name, value in zip(frame, row, strict=True)] for row in rows]
    lines = [list(map(heading, frame)), ["---"] * frame.shape[1], *cells]
    return "\n".join(f"| {' | '.join(escaped(text).replace('|', chr(92) + '|') for text in line)} |" for line in lines)


class Statement(str):
    """Sentences that a notebook shows as Markdown, with text from a run escaped."""

    def _repr_markdown_(self) -> str:
        return f"> {escaped(self)}"


def statement(row: Any) -> Statement:
    """The 2 sentences about one comparison that may be published.

    Args:
        row: of `compare`, `control` or `worst`; also a frame of one row.

    Raises:
        UserError: it isn't such a row.
    """
    if isinstance(row, pd.DataFrame):
        if len(row) != 1:
            raise UserError(f"statement takes one row, not {len(row)}: choose one, such as verdicts.iloc[0]")
        row = row.iloc[0]
    try:
        interval = _interval(*(float(row[name]) for name in ("speedup", "low", "high")))
        p, count, effect = text_of(row["p_holm"], "p_holm"), row.get("n", math.nan), row["smallest_effect"]
        axes = "input distributions" if (over := row.get("over", "values")) == "values" else f"over {over}"
        worst = f", the worst of {count:g} {axes} (highest {row['highest']:.3f})" if count > 1 else ""
        percent = f"{100 * effect:.2g}" if effect < 0.99 else significant(100 * effect, 2)  # not as 1.3e+03
        smallest = f"The smallest effect that the run can detect here is {percent} % (A/A control)."
        if not effect > 0:
            smallest = "The run has no A/A control, so the smallest effect that it can detect is not known."
        return Statement(
            f"{row['candidate']} {VERBS.get(row['decision'], 'cannot be told from')} {row['baseline']} at "
            f"{_shape(row)}, {row['values']} values{worst}: speedup {interval}, p {p if p[0] == '<' else f'= {p}'} "
            f"(Holm), {row['clock']} clock, {row['cache']} cache. {smallest}"
        )
    except KeyError as error:
        raise UserError(f"statement takes a row of compare or worst; this one lacks {error}") from None
    except (AttributeError, TypeError, ValueError):
        raise UserError("statement takes a row of compare or worst, such as verdicts.iloc[0]") from None


def _shape(row: Mapping) -> str:
    sizes = {"B": "batch", "H": "heads", "S": "seq_len", "D": "head_dim"}
    words = [f"{letter}={row[axis]}" for letter, axis in sizes.items()]
    usual = USUAL | {"kv_heads": row["heads"], "kv_len": row["seq_len"]}
    words += [f"{heading(axis)} {row[axis]}" for axis, value in usual.items() if row.get(axis, value) != value]
    return " ".join([*words, str(row["dtype"]), "causal" if row["causal"] else "without a mask"])


def holds(words: str, condition: Any) -> None:
    """Display a sentence, in Markdown, if its condition holds; else a red box that quotes it.

    The output's metadata say which: ``{"attnlab": {"holds": true}}``. The build of the published report fails on false.

    Args:
        condition: a truth value, a column of them, or a function without arguments that returns either. A column holds
            if it has rows and all are true. A function does not hold if the run lacks the data that it reads.

    Raises:
        UserError: the condition is a frame.
    """
    try:
        condition = condition() if callable(condition) else condition
    except (LookupError, ValueError, AttributeError, UserError):
        condition = False
    if isinstance(condition, pd.DataFrame):
        raise UserError("the condition is a frame: name one of its columns, or end it with .all(axis=None)")
    each = list(condition) if pd.api.types.is_list_like(condition) else [condition]
    is_true = len(each) > 0 and all(value is not pd.NA and value == value and bool(value) for value in each)
    box = f'<div role="alert" style="{RED}">This does not hold in this run: “{html.escape(words)}”</div>'
    bundle = {"text/markdown": words} if is_true else {"text/html": box, "text/plain": f"does not hold: {words}"}
    display(bundle, raw=True, metadata={"attnlab": {"holds": is_true}})
