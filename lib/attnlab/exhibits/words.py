"""Sentences from templates: `templates/<page>.md.j2` has a macro for each, which prints facts as tables do.

A macro's lines are joined within a paragraph and within an item of a list; an empty line separates paragraphs.
"""

from functools import cache
from inspect import getmembers, isfunction
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from attnlab.base import rules
from attnlab.base.texts import escaped
from attnlab.exhibits import cells, decisions, formats
from attnlab.literature import bibliography

FOLDER = Path(__file__).with_name("templates")
# Filters are these and the functions that print numbers, by their own names.
WORDS = (
    escaped,
    cells.explained,
    cells.given,
    decisions.against,
    decisions.claim,
    decisions.relation,
    decisions.under_each,
)


def say(id: str, **facts: Any) -> str:
    """The text of a macro, such as ``baseline.span`` in ``templates/baseline.md.j2``, with these facts.

    Raises:
        jinja2.UndefinedError: the macro names a fact that wasn't given.
    """
    page, name = id.split(".")
    return _joined(getattr(_template(page).module, name)(**facts))


@cache
def _template(page: str) -> Template:
    environment = Environment(
        loader=FileSystemLoader(FOLDER), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= dict(getmembers(formats, isfunction)) | {word.__name__: word for word in WORDS}
    environment.globals |= {"CI": formats.CI, "MARGIN": formats.MARGIN, "cite": bibliography.cite, "rules": rules}
    environment.globals["REGIMES"] = cells.REGIMES
    return environment.get_template(f"{page}.md.j2")


def _joined(text: str) -> str:
    """A text with each paragraph and each item of a list on one line."""
    paragraphs = []
    for paragraph in filter(None, map(str.strip, text.split("\n\n"))):
        items = paragraph.replace("\n- ", "\n\n- ").split("\n\n")
        paragraphs.append("\n".join(" ".join(item.split()) for item in items))
    return "\n\n".join(paragraphs)
