"""Markdown as HTML, the same for cells, outputs and captions."""

from mistune import BlockState
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

from attnlab.analyse.mathml import mathml


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
    """One run of text, as in a caption: emphasis, code, links and mathematics, and never a paragraph or a list."""
    return str(_RENDERER(_PARSER.inline(source, {}), BlockState()))
