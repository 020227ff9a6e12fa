"""Pages in Debian's Chromium, driven by Playwright. Without either, the tests of this folder are skipped."""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from attnlab import report
from attnlab.base import paths

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
RUN = "cpu-2026-11-29"


@dataclass
class Visit:
    """An opened page, the other addresses that it requested, and its uncaught errors."""

    page: Any
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium."""
    sync_api = pytest.importorskip("playwright.sync_api")
    found = next(filter(None, map(shutil.which, report.BROWSERS)), None)
    if found is None:
        pytest.skip("needs Chromium: `apt-get install chromium`")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def pages(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the rendered pages of a small run."""
    folder = tmp_path_factory.mktemp("pages")
    shutil.copytree(paths.ROOT / "data" / RUN, folder / "data" / RUN, ignore=shutil.ignore_patterns(".cache"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNLAB_DATA", os.fspath(folder / "data"))
        patch.setenv("ATTNLAB_REPORTS", os.fspath(folder / "reports"))
        return report.render(RUN).parent


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Visit]]:
    """A function that opens a file as a page; `options` are those of a browser context, such as color_scheme."""
    contexts = []

    def opened(file: Path, width: int = 1280, **options: Any) -> Visit:
        context = browser.new_context(viewport={"width": width, "height": 900}, bypass_csp=True, **options)
        contexts.append(context)
        page = context.new_page()
        seen = Visit(page)
        page.on("request", lambda request: seen.requests.append(request.url))
        page.on("console", lambda said: seen.errors.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: seen.errors.append(str(error)))
        page.on("dialog", lambda dialog: (seen.errors.append(dialog.message), dialog.dismiss()))
        page.goto(file.as_uri())
        seen.requests.remove(page.url)
        return seen

    yield opened
    for context in contexts:
        context.close()
