"""The one list of references, data/reference/references.bib.

A page cites an entry by ``[](#ref-<key>)``. `attnlab.paper.numbering` lists below it what it cites, in the order of
first citation.
"""

import re
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

WEB = r"^https?://[^\s<>\"]+$"
"""What an address on the web looks like."""


@cache
def load(path: Path = PATH) -> Mapping[str, Entry]:
    """The entries by key.

    Raises UserError where the file can't be read, is not BibTeX or has no entry, two entries have the same key, or one
    has none of `SOURCES`, an empty one, or an address that is not on the web.
    """
    where = paths.shown(path)
    try:
        entries = parse_file(str(path), bib_format="bibtex", encoding="utf-8-sig").entries
    except (PybtexError, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{where}: {' '.join(str(error).split())}") from None
    if not entries:
        raise UserError(f"{where}: it has no entry: restore it")
    for key, entry in entries.items():
        given = {field: entry.fields[field] for field in SOURCES if field in entry.fields}
        if not any(given.values()):
            raise UserError(f"{where}: the entry {key!r} has none of {', '.join(SOURCES)}: give it one")
        if empty := [field for field, source in given.items() if not source.strip()]:
            raise UserError(f"{where}: the entry {key!r}: {empty[0]} is empty: leave it out")
        if "url" in given and not re.search(WEB, given["url"]):
            raise UserError(f"{where}: the entry {key!r}: url is {given['url']!r}: begin it with https://")
    return dict(entries)


def cite(key: str) -> str:
    """A citation in markdown; on a page it becomes the entry's number."""
    return f"[](#ref-{key})"
