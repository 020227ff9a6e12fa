"""The explorer in a real browser: a click shows samples and a statement, names stay text, and nothing is requested."""

from test_explore_page import EVIL, a_run

from attnlab import explorer

CELLS, TEXTS = "path[aria-roledescription='rect mark']", "svg.marks text"


def test_a_cell_shows_its_samples_and_statement_with_names_as_text(visit, tmp_path):
    explorer.write(a_run(), tmp_path / "explorer.html")
    seen = visit(tmp_path / "explorer.html")
    page = seen.page
    page.wait_for_selector("svg.marks")
    labels = [cell.get_attribute("aria-label") for cell in page.locator(CELLS).all()]
    assert len(labels) == 4
    (chosen,) = (number for number, label in enumerate(labels) if "onerror" in label and "S256" in label)
    page.locator(CELLS).nth(chosen).click()
    page.wait_for_function("document.body.innerHTML.includes('S=256')")
    page.wait_for_timeout(300)
    shown = page.locator(TEXTS).evaluate_all("all => all.map(one => one.ariaLabel)")
    assert any(label and f"{EVIL} is faster than sdpa.auto at B=2 H=4 S=256" in label for label in shown)
    assert page.locator("path[aria-roledescription='circle']").count() == 2 * explorer.SAMPLES
    page.select_option("[name=choice_clock]", "eager")
    page.select_option("[name=choice_values]", "sd 2")
    page.wait_for_timeout(300)
    assert "Not measured: choose otherwise" in page.locator(TEXTS).all_text_contents()
    assert (seen.requests, seen.errors, page.locator("img").count()) == ([], [], 0)
