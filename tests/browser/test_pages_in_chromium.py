"""The published pages in a real browser: nothing fetched, nothing too wide, readable by all, and printed."""

import re

import pytest

from browser.conftest import REPORTS

PAGES = sorted(REPORTS.glob("*.html"))
SMALLEST_PX = 9
WIDE = """() => document.documentElement.scrollWidth - document.documentElement.clientWidth"""
LETTERS = """() => [...document.querySelectorAll("figure svg text")].map(text => {
  const matrix = text.getScreenCTM();
  return parseFloat(getComputedStyle(text).fontSize) * Math.hypot(matrix.a, matrix.b);
})"""
CUT_OFF = """() => [...document.querySelectorAll("main .table .scroll")]
  .filter(e => e.scrollWidth > e.clientWidth).map(e => e.closest("[id]").id)"""
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
named = pytest.mark.parametrize("file", PAGES, ids=lambda file: file.stem)


@named
@pytest.mark.parametrize("width", [400, 768, 1280])
def test_a_page_fetches_nothing_says_nothing_and_is_no_wider_than_its_window(visit, file, width):
    seen = visit(file, width)
    assert seen.requests == []
    assert seen.errors == []
    assert seen.page.evaluate(WIDE) <= 0


@named
def test_letters_of_figures_can_be_read_on_a_narrow_screen(visit, file):
    letters = visit(file, 400).page.evaluate(LETTERS)
    assert [size for size in letters if size < SMALLEST_PX] == []


@named
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_passes_axe(visit, file, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    options = {"runOnly": {"type": "tag", "values": RULES}, "resultTypes": ["violations"]}
    found = axe.Axe().run(visit(file, color_scheme=scheme).page, options=options).response["violations"]
    assert {one["id"]: [node["html"][:120] for node in one["nodes"][:3]] for one in found} == {}


def test_drawings_have_the_colours_of_the_theme(visit):
    shown = {}
    for scheme in ("light", "dark"):
        page = visit(REPORTS / "report.html", color_scheme=scheme).page
        fill = "selector => getComputedStyle(document.querySelector(selector)).fill"
        body = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        shown[scheme] = [body, *(page.evaluate(fill, f"figure svg {part}") for part in ("path", "text"))]
    assert [lightness(colour) for colour in shown["light"]] == [1, 1, 0]
    page, plate, letters = map(lightness, shown["dark"])
    assert max(page, plate) < 0.15
    assert letters > 0.8


def lightness(colour: str) -> float:
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / (3 * 255)


@named
def test_no_table_is_cut_off_on_a_small_laptop(visit, file):
    assert visit(file, 1280).page.evaluate(CUT_OFF) == []


def test_the_contents_stay_beside_the_text_where_there_is_room(visit):
    page = visit(REPORTS / "report.html").page
    page.evaluate("() => document.getElementById('sec-conclusion').scrollIntoView()")
    box = page.locator("aside.side").bounding_box()
    assert box["y"] >= 0
    assert box["x"] + box["width"] <= page.locator("main").bounding_box()["x"]


def test_the_keyboard_reaches_the_contents_first_and_each_table_that_scrolls(visit):
    page = visit(REPORTS / "report.html", 400).page
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.getAttribute('href')") == "#contents"
    scrolling = "() => [...document.querySelectorAll('.scroll, .drawing')].filter(e => e.scrollWidth > e.clientWidth)"
    assert page.evaluate(f"() => ({scrolling})().every(e => e.tabIndex === 0)")


def test_the_paper_is_printed_on_a_dozen_pages_or_so(visit):
    printed = visit(REPORTS / "report.html").page.pdf(format="A4")
    assert 9 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 16
