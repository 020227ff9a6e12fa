"""Markdown as HTML, the same for cells, outputs and captions."""

import re

from math_core import LatexError, LatexToMathML
from mistune import BlockState
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

from attnlab.base.errors import UserError


class _Renderer(IPythonRenderer):
    def inline_math(self, body: str) -> str:
        return mathml(body)

    def block_math(self, body: str) -> str:
        return mathml(body, display=True)

    def latex_environment(self, name: str, body: str) -> str:
        return mathml(rf"\begin{{{name}}}{body}\end{{{name}}}", display=True)


_RENDERER = _Renderer(escape=False, exclude_anchor_links=True)
_PARSER = MarkdownWithMath(_RENDERER)


def block(source: str) -> str:
    """Paragraphs, headings, lists and tables of markdown, mathematics as MathML."""
    return _PARSER.render(source)


def inline(source: str) -> str:
    """A line of text, as in a caption: emphasis, code, links and mathematics, but no paragraphs or lists."""
    return str(_RENDERER(_PARSER.inline(source, {}), BlockState()))


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
