"""The one list of references, data/reference/references.bib, as the pages print it.

A page cites an entry by ``[](#ref-<key>)``. Of the list, a page keeps what it cites, in the order of first citation:
`attnlab.report.numbering` sees to that.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from pybtex.backends.html import Backend
from pybtex.database import Entry, parse_file
from pybtex.exceptions import PybtexError
from pybtex.style.formatting.unsrt import Style

from attnlab import paths
from attnlab.analyse.display import Prose
from attnlab.errors import UserError

PATH = paths.REFERENCE / "references.bib"
SOURCES = ("doi", "eprint", "url")
"""Fields of which an entry has to have one: where a reader can look."""


@cache
def load(path: Path = PATH) -> Mapping[str, Entry]:
    """The entries by key.

    Raises:
        UserError: the file is not BibTeX, two entries have the same key, or one says nowhere where to look.
    """
    try:
        entries = parse_file(str(path), bib_format="bibtex").entries
    except PybtexError as error:
        raise UserError(f"{paths.shown(path)}: {' '.join(str(error).split())}") from None
    for key, entry in entries.items():
        if not any(entry.fields.get(field) for field in SOURCES):
            raise UserError(f"{paths.shown(path)}: the entry {key!r} has none of {', '.join(SOURCES)}: give it one")
    return dict(entries)


def cite(key: str) -> str:
    """A citation in markdown, which a page replaces by the entry's number."""
    return f"[](#ref-{key})"


def listing() -> Prose:
    """All entries, a line each."""
    items = (f'<li id="ref-{key}">{_line(entry)}</li>' for key, entry in load().items())
    return Prose("\n".join(["<ol>", *items, "</ol>"]))


def _line(entry: Entry) -> str:
    html = Style().format_entry("", entry).text.render(Backend())
    return " ".join(f"{html} {entry.fields.get('annote', '')}".split())
