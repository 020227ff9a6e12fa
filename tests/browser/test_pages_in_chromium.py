"""The published pages in a real browser: nothing fetched, nothing too wide, readable by all, and printed."""

import re

import pytest

from browser.conftest import REPORTS

PAGES = sorted(REPORTS.glob("*.html"))
SMALLEST_PX = 7
WIDE = """() => document.documentElement.scrollWidth - document.documentElement.clientWidth"""
LETTERS = """() => [...document.querySelectorAll("figure svg text")].map(text => {
  const matrix = text.getScreenCTM();
  return parseFloat(getComputedStyle(text).fontSize) * Math.hypot(matrix.a, matrix.b);
})"""
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
named = pytest.mark.parametrize("file", PAGES, ids=lambda file: file.stem)


@named
@pytest.mark.parametrize("width", [390, 1280])
def test_a_page_fetches_nothing_says_nothing_and_is_no_wider_than_its_window(visit, file, width):
    seen = visit(file, width)
    assert seen.requests == []
    assert seen.errors == []
    assert seen.page.evaluate(WIDE) <= 0


@named
def test_letters_of_figures_can_be_read_on_a_narrow_screen(visit, file):
    letters = visit(file, 390).page.evaluate(LETTERS)
    assert [size for size in letters if size < SMALLEST_PX] == []


@named
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_passes_axe(visit, file, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    options = {"runOnly": {"type": "tag", "values": RULES}, "resultTypes": ["violations"]}
    found = axe.Axe().run(visit(file, color_scheme=scheme).page, options=options).response["violations"]
    assert {one["id"]: [node["html"][:120] for node in one["nodes"][:3]] for one in found} == {}


def test_every_figure_says_what_it_shows(visit):
    alone = "() => [...document.querySelectorAll('figure svg')].filter(e => !e.getAttribute('aria-label')).length"
    assert visit(REPORTS / "report.html").page.evaluate(alone) == 0


def test_the_paper_is_printed_on_six_pages_at_most(visit):
    printed = visit(REPORTS / "report.html").page.pdf(format="A4", prefer_css_page_size=True)
    assert 4 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 6
