"""The pages of a run in a real browser: no requests, no overflow, accessible, and printable."""

import re

import pytest

from attnlab import report

SMALLEST_PX = 7
A4_PX = 665
"""The width of the text on A4, at 96 pixels per inch."""
WIDE = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
LETTERS = """() => [...document.querySelectorAll("figure svg text")].map(text => {
  const matrix = text.getScreenCTM();
  return parseFloat(getComputedStyle(text).fontSize) * Math.hypot(matrix.a, matrix.b);
})"""
COLOURS = "() => [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
named = pytest.mark.parametrize("name", report.names())


@named
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_a_page_fetches_nothing_says_nothing_and_is_no_wider_than_its_window(visit, pages, name, width, scheme):
    seen = visit(pages / f"{name}.html", width, color_scheme=scheme)
    assert seen.requests == []
    assert seen.errors == []
    assert seen.page.evaluate(WIDE) <= 0
    paper, ink = (sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in seen.page.evaluate(COLOURS))
    assert (ink < paper) == (scheme == "light")
    if width == 390:
        assert [size for size in seen.page.evaluate(LETTERS) if size < SMALLEST_PX] == []


@named
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_passes_axe(visit, pages, name, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    options = {"runOnly": {"type": "tag", "values": RULES}, "resultTypes": ["violations"]}
    page = visit(pages / f"{name}.html", color_scheme=scheme).page
    found = axe.Axe().run(page, options=options).response["violations"]
    assert {one["id"]: [node["html"][:120] for node in one["nodes"][:3]] for one in found} == {}


@named
def test_a_page_fits_the_width_of_paper(visit, pages, name):
    page = visit(pages / f"{name}.html", A4_PX).page
    page.emulate_media(media="print")
    assert page.evaluate(WIDE) <= 0
    boxes = "[...document.querySelectorAll('.attnlab-table')].map(box => getComputedStyle(box).maxHeight)"
    assert set(page.evaluate(boxes)) <= {"none"}  # a table that its box doesn't hold is printed over the text below


def test_the_paper_is_short(visit, pages):
    printed = visit(pages / "report.html").page.pdf(format="A4")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 6
    assert (pages / "report.pdf").read_bytes().startswith(b"%PDF")
