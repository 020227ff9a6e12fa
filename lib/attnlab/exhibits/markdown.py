"""Markdown as HTML, the same for cells, outputs and captions. HTML within Markdown is shown as the text that it is."""

import re
from dataclasses import dataclass

from math_core import LatexError, LatexToMathML
from mistune import BaseRenderer, BlockParser, BlockState, HTMLRenderer, InlineParser, InlineState, Markdown
from mistune.plugins import import_plugin
from mistune.plugins.math import math
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

from attnlab.base.errors import UserError


@dataclass(frozen=True)
class Inline:
    """A cell of a table in markdown, such as a citation; other cells are printed as they are."""

    markdown: str

    def __str__(self) -> str:
        return self.markdown


PLUGINS = ("strikethrough", "table", "url", "task_lists", "def_list")
_FORMULA = r"\$\$[\s\S]*?\$\$"
_ENVIRONMENT = r"\\begin\{(?P<name>[a-z]+\*?)\}(?P<body>[\s\S]*?)\\end\{(?P=name)\}"


def parser(renderer: BaseRenderer) -> Markdown:
    """A parser of markdown with mathematics as notebooks have it: between dollars, or an environment of LaTeX."""
    return Markdown(renderer, plugins=[*map(import_plugin, PLUGINS), math, _environments])


def _environments(md: Markdown) -> None:
    """A plugin: environments of LaTeX; one of these, or a formula between two dollars, may be a paragraph."""
    md.block.register("block_math", rf"^ {{0,3}}(?:{_FORMULA}|{_ENVIRONMENT})", _paragraph)
    md.inline.register("latex_environment", _ENVIRONMENT, _environment, before="inline_math")


def _paragraph(parser: BlockParser, found: re.Match[str], state: BlockState) -> int:
    state.add_paragraph(found[0])
    return found.end()


def _environment(parser: InlineParser, found: re.Match[str], state: InlineState) -> int:
    state.append_token({"type": "latex_environment", "attrs": {"name": found["name"], "body": found["body"]}})
    return found.end()


class _Renderer(HTMLRenderer):
    def block_code(self, code: str, info: str | None = None) -> str:
        try:
            return highlight(code, get_lexer_by_name((info or "").split(" ")[0]), HtmlFormatter())
        except ClassNotFound:
            return super().block_code(code, info)

    def inline_math(self, body: str) -> str:
        return mathml(body)

    def block_math(self, body: str) -> str:
        return mathml(body, display=True)

    def latex_environment(self, name: str, body: str) -> str:
        return mathml(rf"\begin{{{name}}}{body}\end{{{name}}}", display=True)


# What comes from a run, such as a compiler's message, is text even where it looks like a tag.
_RENDERER = _Renderer(escape=True)
_PARSER = parser(_RENDERER)


def block(source: str) -> str:
    """Paragraphs, headings, lists and tables of markdown, mathematics as MathML."""
    return str(_PARSER(source))


def inline(source: str) -> str:
    """A line of text, as in a caption: emphasis, code, links and mathematics, but no paragraphs or lists."""
    return str(_RENDERER(_PARSER.inline(source, {}), BlockState()))


def without_html(source: str) -> str:
    """Markdown in which nothing is a tag, for programs that would let tags through."""
    return re.sub(r"\\?<(?=[A-Za-z/!?])", "&lt;", source)


def slug(title: str) -> str:
    """A heading's title as a part of its anchor."""
    return re.sub(r"\W+", "-", title.lower()).strip("-")


_CONVERTER = LatexToMathML(fancy_error=False)
_NUMBERED = re.compile(r"(\\(?:begin|end)\{(?:align|equation|gather|multline))\}")


def mathml(tex: str, *, display: bool = False) -> str:
    """A formula in TeX as a ``<math>`` element, on its own line if `display`.

    Raises:
        UserError: the TeX cannot be read.
    """
    # Counted formula by formula, every equation of a page would be number 1.
    unnumbered = _NUMBERED.sub(r"\1*}", tex.strip())
    try:
        return _CONVERTER.convert_with_local_state(unnumbered, displaystyle=display)
    except LatexError as error:
        reason = " ".join(str(error).split())
        raise UserError(f"cannot read the formula {' '.join(tex.split())!r}: {reason}") from error
