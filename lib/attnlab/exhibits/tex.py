"""Text, markdown, tables and figures as LaTeX for pdflatex with fonts in T1 encoding."""

import re
import unicodedata
from collections.abc import Sequence
from functools import cache
from typing import Any

from mistune import BaseRenderer, BlockState

from attnlab.exhibits.markdown import Inline, parser, slug

TEXT_WIDTH_IN = 6.5
"""The width of the text on a page."""
TEXT_WIDTH = 104
"""The same in letters of the font of tables."""
TALLEST_IN = 8.0
"""The height of the tallest figure, which leaves room for its caption on a page."""
GAP = 1.8
"""The space between two columns, in letters."""
LONGEST = 24
"""Longer words may be broken anywhere."""
TALLEST = 40
"""The rows of a table that fit a page; one with more runs over several."""

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": r"\textasciigrave{}",
    '"': r"\textquotedbl{}",
    # A bracket at the head of a row would be an argument of the line before.
    "[": "{[}",
    "]": "{]}",
    "\u00a0": "~",
    "\u2009": r"\,",
    "\u202f": r"\,",
    "µ": r"\textmu{}",
    "°": r"\textdegree{}",
    "–": "--",
    "—": "---",
    "…": r"\ldots{}",
    "‘": "`",
    "’": "'",
    "“": "``",
    "”": "''",
    "†": r"\textdagger{}",
    "‡": r"\textdaggerdbl{}",
    "−": "$-$",
    "×": r"$\times$",
    "±": r"$\pm$",
    "·": r"$\cdot$",
    "≤": r"$\le$",
    "≥": r"$\ge$",
    "≈": r"$\approx$",
    "≠": r"$\ne$",
    "∞": r"$\infty$",
    "√": r"$\surd$",
    "→": r"$\to$",
    "★": r"$\star$",
    "▲": r"$\bigtriangleup$",
    "▼": r"$\bigtriangledown$",
} | {character: rf"\{character}" for character in "#$%&_{}"}


def escape(text: str) -> str:
    """Plain text as LaTeX; what its fonts lack is given by its code point, such as ``U+6838``."""
    return "".join(map(_character, _tied(text)))


def _tied(text: str) -> str:
    """A text whose lines don't end between a number and its percent sign."""
    return re.sub(r"(?<=\d) (?=%)", "\u00a0", text)


@cache
def _character(character: str) -> str:
    if found := _SPECIAL.get(character):
        return found
    if character.isascii():
        return character if character.isprintable() or character.isspace() else ""
    if character.isalpha() and ord(character) < 0x180:  # T1 has the letters of Latin 1 and Latin Extended A
        return character
    kind, *_, last = unicodedata.decomposition(character).split() or ["", ""]
    if kind in ("<super>", "<sub>"):
        return f"${'^' if kind == '<super>' else '_'}{{{chr(int(last, 16)).replace('−', '-')}}}$"
    if greek := re.fullmatch(r"GREEK (SMALL|CAPITAL) LETTER (\w+)", unicodedata.name(character, "")):
        # Capitals that look like Latin letters have no command.
        name = greek[2].lower() if greek[1] == "SMALL" else greek[2].capitalize()
        return rf"$\{name}$" if _GREEK.fullmatch(name) else f"U+{ord(character):04X}"
    return f"U+{ord(character):04X}"


_GREEK = re.compile(
    "alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|pi|rho|sigma|tau|upsilon|phi|chi|psi|"
    "omega|Gamma|Delta|Theta|Lambda|Xi|Pi|Sigma|Upsilon|Phi|Psi|Omega"
)


def code(text: str) -> str:
    """A name in a typewriter's letters, which may be broken behind punctuation, and anywhere if it is long."""
    return rf"\texttt{{{breakable(text)}}}"


def breakable(text: str) -> str:
    """Plain text as LaTeX whose words may be broken: behind punctuation, and anywhere if they are long.

    The names of pages, such as ``01_environment``, are set as code and on one line wherever they stand.
    """
    return "".join(
        rf"\mbox{{\texttt{{{escape(word)}}}}}"
        if _PAGE.fullmatch(word)
        else r"\allowbreak{}".join(map(escape, _pieces(word)))
        for word in _WORDS.split(_tied(text))
    )


_PAGE = re.compile(r"\b\d\d_[a-z]+\b")
_WORDS = re.compile(rf"(\s+|{_PAGE.pattern})")


def _pieces(word: str) -> list[str]:
    return re.split(r"(?<=[._/,:=-])(?=[^\W\d])" if len(word) <= LONGEST else r"(?<=\S)(?=\w)", word)


def label(anchor: str) -> str:
    """An anchor as LaTeX and names of files take it."""
    return re.sub(r"[^\w.-]", "-", anchor, flags=re.ASCII)


# ------------------------------------------------------------------------------------------------------------ markdown


_FORMS = {
    "emphasis": r"\emph{{{}}}",
    "strong": r"\textbf{{{}}}",
    "strikethrough": "{}",
    "inline_math": "${}$",
    "block_text": "{}",
    "paragraph": "{}\n\n",
    "linebreak": "\\newline\n",
    "softbreak": "\n",
    "blank_line": "",
    "thematic_break": "",
}
"""What is the same for every token of a type, around its text."""


class _Renderer(BaseRenderer):
    """Markdown as LaTeX: ``[](#ref-x)`` cites, and other empty links refer to what they lead to."""

    NAME = "latex"

    def __init__(self) -> None:
        super().__init__()
        for name, form in _FORMS.items():
            self.register(name, lambda _, *text, form=form: form.format(*text))

    def render_token(self, token: dict[str, Any], state: BlockState) -> str:
        attributes = token.get("attrs", {})
        if "raw" in token:
            return self._get_method(token["type"])(token["raw"], **attributes)
        if "children" in token:
            return self._get_method(token["type"])(self.render_tokens(token["children"], state), **attributes)
        return self._get_method(token["type"])(**attributes)

    def text(self, text: str) -> str:
        return breakable(text)

    def codespan(self, text: str) -> str:
        return code(text)

    def link(self, text: str, url: str, title: str | None = None) -> str:
        if not url.startswith("#"):
            return rf"\href{{{_address(url)}}}{{{text}}}" if re.match("https?:", url) else text
        anchor = url[1:]
        if anchor.startswith("ref-"):
            return rf"\cite{{{anchor.removeprefix('ref-')}}}"
        return rf"\hyperref[{label(anchor)}]{{{text}}}" if text else rf"\autoref{{{label(anchor)}}}"

    def image(self, text: str, url: str, title: str | None = None) -> str:
        return text

    def inline_html(self, html: str) -> str:
        return breakable(html)

    def block_html(self, html: str) -> str:
        return f"{breakable(html.strip())}\n\n"

    def block_math(self, body: str) -> str:
        return f"\\[{body.strip()}\\]"

    def latex_environment(self, name: str, body: str) -> str:
        return rf"\begin{{{name}}}{body}\end{{{name}}}"

    def heading(self, text: str, level: int, **_: Any) -> str:
        command = {1: "title", 2: "section", 3: "subsection"}.get(level, "paragraph")
        named = f"\\label{{sec-{slug(text)}}}" if 1 < level < 4 else ""
        return f"\\{command}{{{text}}}{named}\n\n"

    def block_code(self, code: str, info: str | None = None) -> str:
        return verbatim(code)

    def block_quote(self, text: str) -> str:
        return f"\\begin{{quote}}\n{text.strip()}\n\\end{{quote}}\n\n"

    def list(self, text: str, ordered: bool, **_: Any) -> str:
        kind = "enumerate" if ordered else "itemize"
        return f"\\begin{{{kind}}}\n{text}\\end{{{kind}}}\n\n"

    def list_item(self, text: str) -> str:
        return f"\\item {text.strip()}\n"


_RENDERER = _Renderer()
_PARSER = parser(_RENDERER)


def block(source: str) -> str:
    """Paragraphs, headings and lists of markdown."""
    return str(_PARSER(source))


def inline(source: str) -> str:
    """A line of markdown, as in a caption."""
    return str(_RENDERER(_PARSER.inline(source, {}), BlockState()))


def _address(url: str) -> str:
    return re.sub(r"([#%&_\\{}])", r"\\\1", url)


# -------------------------------------------------------------------------------------------------------------- floats


def figure(file: str, width_in: float, height_in: float, caption: str, anchor: str) -> str:
    """A figure from a file in its own size, or as small as the text's width and a page need it."""
    scale = min(1, TEXT_WIDTH_IN / width_in, TALLEST_IN / height_in)
    picture = rf"\includegraphics[width={scale * width_in:.3f}in]{{figures/{file}}}"
    return _float("figure", [r"\centering", picture, _caption(caption, anchor)])


def table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str | Inline]],
    numeric: Sequence[bool],
    *,
    caption: str,
    note: str,
    anchor: str,
    highlight: int | None,
) -> str:
    """A table in the manner of booktabs.

    Args:
        titles: of the columns; lines are separated by newlines here and in `rows`.
        rows: the cells as they are printed.
        numeric: for each column, whether it is set right.
        highlight: position of the row that is emphasized.
    """
    widths = _widths([list(map(str, row)) for row in (titles, *rows)])

    def row(cells: Sequence[str | Inline], bold: bool) -> str:
        return " & ".join(_cell(*cell, bold) for cell in zip(cells, widths, numeric, strict=True)) + r" \\"

    columns = f"@{{}}{''.join(map(_kind, widths, numeric))}@{{}}"
    head = row(titles, bold=True)
    body = [row(cells, bold=place == highlight) for place, cells in enumerate(rows)]
    if highlight is not None:
        body[highlight] = rf"\rowcolor{{target}}{body[highlight]}"
    below = [rf"\par\smallskip\parbox{{\linewidth}}{{\footnotesize {note}}}"] if note else []
    if len(rows) > TALLEST:
        lines = [rf"\begin{{longtable}}{{{columns}}}", rf"{_caption(caption, anchor)}\\", r"\toprule", head]
        lines += [r"\midrule", r"\endhead", r"\bottomrule", r"\endfoot", *body, r"\end{longtable}"]
        return "\n".join([r"{\tablesize", *lines, r"}", *below, "", ""])
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule"]
    lines += [*body, r"\bottomrule", r"\end{tabular}"]
    return _float("table", [r"\centering", _caption(caption, anchor), r"{\tablesize", *lines, r"}", *below])


def verbatim(text: str) -> str:
    """A text as it stands; its lines are broken where the page ends."""
    lines = [re.sub("^ +", lambda found: "~" * len(found[0]), line) for line in text.rstrip("\n").split("\n")]
    set_lines = [
        rf"\mbox{{}}{'~' * (len(line) - len(line.lstrip('~')))}{breakable(line.lstrip('~'))}" for line in lines
    ]
    return "{\\footnotesize\\ttfamily\\raggedright\\noindent\n" + "\\\\\n".join(set_lines) + "\\par}\n\n"


def _float(kind: str, lines: Sequence[str]) -> str:
    return "\n".join([rf"\begin{{{kind}}}[htbp]", *lines, rf"\end{{{kind}}}", "", ""])


def _caption(caption: str, anchor: str) -> str:
    return rf"\caption{{{caption}}}" + (rf"\label{{{label(anchor)}}}" if anchor else "")


def _widths(rows: Sequence[Sequence[str]]) -> list[float | None]:
    """The width of each column in parts of the text's; None where it is as wide as its cells.

    Where the cells don't fit side by side, columns of text are broken, the longest most.
    """
    columns = [[LINK.sub("[00]", cell) for cell in column] for column in zip(*rows, strict=True)]
    natural = [GAP + max(len(line) for cell in column for line in cell.split("\n")) for column in columns]
    if sum(natural) <= TEXT_WIDTH:
        return [None] * len(natural)
    words = ([word for cell in column for word in cell.split()] for column in columns)
    least = [GAP + max((len(piece) for word in each for piece in _pieces(word)), default=0) for each in words]
    shares = _shared(natural, least, TEXT_WIDTH)
    return [None if share >= full else (share - GAP) / TEXT_WIDTH for share, full in zip(shares, natural, strict=True)]


def _shared(natural: Sequence[float], least: Sequence[float], total: float) -> list[float]:
    """Widths between the least and the natural ones that take `total`; all shrink where even the least take more."""
    if sum(least) >= total:
        return [total * width / sum(least) for width in least]
    spare, wanted = total - sum(least), [full - low for full, low in zip(natural, least, strict=True)]
    given = [0.0] * len(natural)
    # Columns that want little get it; those that want much share the rest.
    for left, place in zip(range(len(wanted), 0, -1), sorted(range(len(wanted)), key=wanted.__getitem__), strict=True):
        given[place] = min(wanted[place], spare / left)
        spare -= given[place]
    return [low + more for low, more in zip(least, given, strict=True)]


def _kind(width: float | None, right: bool) -> str:
    if width is None:
        return "r" if right else "l"
    side = r"\raggedleft" if right else r"\raggedright"
    return rf">{{{side}\arraybackslash}}p{{{width:.4f}\linewidth}}"


def _cell(cell: str | Inline, width: float | None, right: bool, bold: bool) -> str:
    set_line = inline if isinstance(cell, Inline) else breakable
    if right and width is not None:  # an interval is broken before its ends rather than between them
        cell = str(cell).replace(" [", "\n[")
    lines = [rf"\textbf{{{line}}}" if bold and line else line for line in map(set_line, str(cell).split("\n"))]
    if len(lines) == 1:
        return lines[0]
    if width is not None:
        return r"\linebreak ".join(lines)  # \newline would centre what is set right
    side, text = "r" if right else "l", r" \\ ".join(lines)
    return rf"\begin{{tabular}}[t]{{@{{}}{side}@{{}}}}{text}\end{{tabular}}"


LINK = re.compile(r"\[\]\([^)]*\)")
"""A link whose text is a number, in Markdown."""
