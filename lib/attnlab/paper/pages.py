"""Renders an executed notebook as one HTML file that loads nothing else: no script, no font, no image."""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bs4 import BeautifulSoup
from nbconvert import HTMLExporter, TemplateExporter
from nbconvert.filters import Highlight2HTML
from pygments.formatters import HtmlFormatter
from traitlets.config import Config

from attnlab.base.files import write_atomically
from attnlab.base.paths import ROOT
from attnlab.base.version import VERSION
from attnlab.exhibits import catalogue, markdown
from attnlab.paper import numbering

_STYLES = ("default", "github-dark")
_CONFIG = {
    "TemplateExporter": {
        "template_name": "attnlab",
        "extra_template_basedirs": [str(Path(__file__).parent / "template")],
    },
    "TagRemovePreprocessor": {
        "enabled": True,
        "remove_cell_tags": {"parameters", "injected-parameters", "papermill-error-cell-tag"},
        "remove_input_tags": {"hide"},
    },
    "NbConvertBase": {"display_data_priority": ["text/html", "text/markdown", "image/png", "text/plain"]},
}


class _PaperExporter(HTMLExporter):
    def default_filters(self) -> Iterator[tuple[str, Callable[..., str]]]:
        yield from super().default_filters()
        yield "markdown2html", markdown.block

    def from_notebook_node(self, nb: Any, resources: Any = None, **options: Any) -> Any:
        """What HTMLExporter does but for parsing the page once more, for classes that our template doesn't have."""
        self.register_filter("highlight_code", Highlight2HTML(pygments_lexer="ipython3", parent=self))
        return TemplateExporter.from_notebook_node(self, nb, resources, **options)


def render(notebook: Path, page: Path, *, title: str, links: Mapping[str, str] | None = None) -> None:
    """Write an executed notebook as a page, whole or not at all.

    Args:
        notebook: the executed .ipynb.
        page: the HTML file, replaced where there is one.
        title: the title in the browser's tab; the heading is the notebook's own.
        links: addresses of the other pages by label, shown in a line at the top.

    Raises:
        UserError: a formula cannot be read, or a link leads nowhere.
    """
    paper = {"title": title, "links": links or {}, "version": VERSION, "highlighting": _highlighting()}
    html, _ = _PaperExporter(config=Config(_CONFIG)).from_filename(str(notebook), resources={"paper": paper})
    soup = BeautifulSoup(html, "html.parser")
    numbering.number(soup, elsewhere=lambda anchor: _elsewhere(anchor, page.stem))
    _withhold_folders(soup)
    page.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(page, str(soup).encode())
    soup.decompose()  # a page's elements refer to each other, and would wait for the collector


def _elsewhere(anchor: str, here: str) -> str:
    """The other page where an exhibit has its cell; empty for this page's own, and where `anchor` names no exhibit."""
    page = catalogue.pages().get(anchor.split(".")[0], here)
    return "" if page == here or anchor not in catalogue.every() else page


def _highlighting() -> str:
    light, dark = ("\n".join(HtmlFormatter(style=style).get_token_style_defs(".highlight")) for style in _STYLES)
    return f"{light}\n@media screen and (prefers-color-scheme: dark) {{\n{dark}\n}}"


def _withhold_folders(soup: BeautifulSoup) -> None:
    """Write paths relative to the project or the home folder, so that a page names no place on this machine."""
    for folder, short in ((ROOT, "."), (Path.home(), "~")):
        if folder == Path(folder.anchor):
            continue
        path = re.compile(rf"(?<![\w.]){re.escape(str(folder))}(?![\w-])")
        for text in soup.find_all(string=path):
            text.replace_with(path.sub(short, text))
