"""Renders an executed notebook as one HTML file that loads nothing else: no script, no font, no image."""

import re
from collections.abc import Callable, Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

from bs4 import BeautifulSoup
from nbconvert import HTMLExporter, TemplateExporter
from nbconvert.filters import Highlight2HTML
from pygments.formatters import HtmlFormatter
from traitlets.config import Config

from attnlab.base import paths
from attnlab.base.files import write_atomically
from attnlab.base.version import VERSION
from attnlab.exhibits import catalogue, drawing, markdown
from attnlab.paper import numbering

_DRAWING = re.compile(r"<svg\b.*?</svg>", re.DOTALL)
_STYLES = ("xcode", "github-dark")
_CONFIG: dict[str, dict[str, Any]] = {
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


def render(
    notebook: Path,
    page: Path,
    *,
    title: str,
    links: Mapping[str, str] | None = None,
    formats: Mapping[str, str] | None = None,
    has_code: bool = True,
) -> None:
    """Write an executed notebook as a page, whole or not at all.

    Args:
        notebook: the executed .ipynb.
        page: the HTML file, replaced where there is one.
        title: the title in the browser's tab; the heading is the notebook's own.
        links: addresses of the other pages by label.
        formats: addresses of the same in other formats by label.
        has_code: whether each output stands below its code, folded.

    Raises:
        UserError: a formula cannot be read, or a link leads nowhere.
    """
    paper = {"title": title, "version": VERSION, "highlighting": _highlighting() if has_code else ""}
    config = _CONFIG | {"TemplateExporter": _CONFIG["TemplateExporter"] | {"exclude_input": not has_code}}
    html, _ = _PaperExporter(config=Config(config)).from_filename(str(notebook), resources={"paper": paper})
    # Parsing a drawing costs more than the rest of the page, and nothing in it is changed.
    drawings = _DRAWING.findall(html)
    soup = BeautifulSoup(_DRAWING.sub("<svg></svg>", html), "html.parser")
    numbering.number(soup, lambda anchor: catalogue.home(anchor).removesuffix(page.stem))  # but for this page itself
    _insert_links(soup, {"Other formats": formats or {}, "Pages": links or {}})
    _withhold_folders(soup)
    found = iter(drawings)
    text = re.sub("<svg></svg>", lambda _: next(found), str(soup))
    soup.decompose()  # a page's elements refer to each other, and would wait for the collector
    page.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(page, text.replace("/* dark */", drawing.dark(text)).encode())


def _insert_links(soup: BeautifulSoup, groups: Mapping[str, Mapping[str, str]]) -> None:
    """List addresses in the side bar, below the contents, a list for each heading."""
    side = soup.find("aside", class_="side")
    assert side is not None  # the template has it
    for heading, addresses in groups.items():
        if addresses:
            items = "".join(f'<li><a href="{escape(url)}">{escape(label)}</a></li>' for label, url in addresses.items())
            lists = f'<nav class="links" aria-label="{heading}"><p>{heading}</p><ul>{items}</ul></nav>'
            side.append(BeautifulSoup(lists, "html.parser"))


def _highlighting() -> str:
    light, dark = ("\n".join(HtmlFormatter(style=style).get_token_style_defs(".highlight")) for style in _STYLES)
    return f"{light}\n@media screen and (prefers-color-scheme: dark) {{\n{dark}\n}}"


def _withhold_folders(soup: BeautifulSoup) -> None:
    """Write paths relative to the project or the home folder, so that a page names no place on this machine."""
    for folder, short in ((paths.ROOT, "."), (paths.working(), "."), (Path.home(), "~")):
        if folder == Path(folder.anchor):
            continue
        path = re.compile(rf"(?<![\w.]){re.escape(str(folder))}(?![\w-])")
        for text in soup.find_all(string=path):
            text.replace_with(path.sub(short, text))
