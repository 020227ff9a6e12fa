"""The list of references, of which a page keeps what it cites."""

from collections.abc import Sequence

from pybtex.backends import BaseBackend, html
from pybtex.backends import latex as pybtex_latex
from pybtex.database import Entry
from pybtex.style.formatting.unsrt import Style

from attnlab.literature.bibliography import load

_STYLE = Style()


def listing(keys: Sequence[str]) -> str:
    """The entries of these keys as an ordered list in HTML, in this order."""
    items = (f'<li id="ref-{key}">{_line(load()[key], html.Backend())}</li>\n' for key in keys)
    return f"<ol>{''.join(items)}</ol>"


def latex(keys: Sequence[str]) -> str:
    """The entries of these keys as LaTeX's bibliography, in this order.

    Raises:
        KeyError: there is no such entry.
    """
    items = (f"\\bibitem{{{key}}}\n{_line(load()[key], pybtex_latex.Backend())}\n" for key in keys)
    begin = f"\\begin{{thebibliography}}{{{len(keys)}}}\n\\footnotesize\\raggedright\\setlength{{\\itemsep}}{{1pt}}"
    return "\n".join([begin, *items, "\\end{thebibliography}", ""])


def _line(entry: Entry, backend: BaseBackend) -> str:
    return " ".join(f"{_STYLE.format_entry('', entry).text.render(backend)} {entry.fields.get('annote', '')}".split())
