"""An executed notebook as one HTML file that needs nothing else: no script, no font, no request."""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from bs4 import BeautifulSoup
from nbconvert import HTMLExporter
from pygments.formatters import HtmlFormatter
from traitlets.config import Config

import attnlab
from attnlab.analyse import markdown
from attnlab.paths import ROOT
from attnlab.report import numbering

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


def render(notebook: Path, page: Path, *, title: str, links: Mapping[str, str] | None = None) -> None:
    """Writes an executed notebook as a page, whole or not at all.

    Args:
        notebook: the executed .ipynb.
        page: the HTML file, replaced where there is one.
        title: what the browser's tab shows; the heading is the notebook's own.
        links: label and address of what else belongs to the page, shown in a line at its top.

    Raises:
        UserError: a formula cannot be read, or a reference leads nowhere.
    """
    paper = {"title": title, "links": links or {}, "version": attnlab.__version__, "highlighting": _highlighting()}
    html, _ = _PaperExporter(config=Config(_CONFIG)).from_filename(str(notebook), resources={"paper": paper})
    soup = BeautifulSoup(html, "html.parser")
    numbering.number(soup)
    _withhold_folders(soup)
    page.parent.mkdir(parents=True, exist_ok=True)
    draft = page.with_name(f".{page.name}.draft")
    draft.write_text(str(soup), encoding="utf-8")
    os.replace(draft, page)


def _highlighting() -> str:
    light, dark = ("\n".join(HtmlFormatter(style=style).get_token_style_defs(".highlight")) for style in _STYLES)
    return f"{light}\n@media screen and (prefers-color-scheme: dark) {{\n{dark}\n}}"


def _withhold_folders(soup: BeautifulSoup) -> None:
    """Writes files relative to the project: what a page says holds on any machine."""
    for folder, short in ((ROOT, "."), (Path.home(), "~")):
        if folder == Path(folder.anchor):
            continue
        path = re.compile(rf"(?<![\w.]){re.escape(str(folder))}(?![\w-])")
        for text in soup.find_all(string=path):
            text.replace_with(path.sub(short, text))
