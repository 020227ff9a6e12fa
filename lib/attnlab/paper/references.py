"""The list of references, of which a page keeps what it cites."""

from pybtex.backends.html import Backend
from pybtex.database import Entry
from pybtex.style.formatting.unsrt import Style

from attnlab.literature.bibliography import load


def listing() -> str:
    """All entries as items of an ordered list in HTML; `numbering` keeps those that a page cites."""
    items = (f'<li id="ref-{key}">{_line(entry)}</li>' for key, entry in load().items())
    return "\n".join(["<ol>", *items, "</ol>"])


def _line(entry: Entry) -> str:
    html = Style().format_entry("", entry).text.render(Backend())
    return " ".join(f"{html} {entry.fields.get('annote', '')}".split())
