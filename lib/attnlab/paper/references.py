"""The list of references, of which a page keeps what it cites."""

from collections.abc import Sequence

from pybtex.backends import BaseBackend, html
from pybtex.backends import latex as pybtex_latex
from pybtex.database import Entry
from pybtex.style.formatting.unsrt import Style

from attnlab.literature.bibliography import load

_STYLE = Style()


def listing() -> str:
    """All entries as items of an ordered list in HTML; `numbering` keeps those that a page cites."""
    items = (f'<li id="ref-{key}">{_line(entry, html.Backend())}</li>' for key, entry in load().items())
    return "\n".join(["<ol>", *items, "</ol>"])


def latex(keys: Sequence[str]) -> str:
    """The entries of these keys as LaTeX's bibliography, in this order.

    Raises:
        KeyError: there is no such entry.
    """
    items = (f"\\bibitem{{{key}}}\n{_line(load()[key], pybtex_latex.Backend())}\n" for key in keys)
    return "\n".join(
        [
            f"\\begin{{thebibliography}}{{{len(keys)}}}",
            "\\footnotesize\\raggedright\\setlength{\\itemsep}{1pt}",
            *items,
            "\\end{thebibliography}",
            "",
        ]
    )


def _line(entry: Entry, backend: BaseBackend) -> str:
    return " ".join(f"{_STYLE.format_entry('', entry).text.render(backend)} {entry.fields.get('annote', '')}".split())
