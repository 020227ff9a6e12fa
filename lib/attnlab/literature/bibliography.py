"""The one list of references, data/reference/references.bib.

A page cites an entry by ``[](#ref-<key>)``. `attnlab.paper.numbering` lists below it what it cites, in the order of
first citation.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from pybtex.database import Entry, parse_file
from pybtex.exceptions import PybtexError

from attnlab.base import paths
from attnlab.base.errors import UserError

PATH = paths.REFERENCE / "references.bib"
SOURCES = ("doi", "eprint", "url")
"""An entry must have one of these fields, so that a reader can look it up."""


@cache
def load(path: Path = PATH) -> Mapping[str, Entry]:
    """The entries by key.

    Raises UserError where the file is not BibTeX, two entries have the same key, or one has none of `SOURCES`.
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
    """A citation in markdown; on a page it becomes the entry's number."""
    return f"[](#ref-{key})"
