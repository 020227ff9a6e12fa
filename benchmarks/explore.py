"""Prints how soon the explorer shows a change, in Chromium and for a run of half a million samples.

    python benchmarks/explore.py        # a run that was made up: takes a minute to infer from
    python benchmarks/explore.py <run>  # a recorded run, with the runs beside it

From the event to the frame after the one that shows it, the median and the largest of `TIMES`. Needs Playwright and
Chromium.
"""

import shutil
import sys
import tempfile
from pathlib import Path
from statistics import median

from bench import made_up
from playwright.sync_api import Page, sync_playwright

from attnlab.exhibits.explore import data, explorer
from attnlab.exhibits.explore.others import others
from attnlab.infer import results
from attnlab.runs import read

CASES = 1000  # of 500 samples
TIMES = 7
SELECTS = ("clock", "cache", "mask", "dtype", "dim", "axis", "metric", "by", "baseline", "against", "run")
CHANGE = """async ([name, value]) => {
  const select = document.getElementById(`attnlab-${name}`), started = performance.now();
  select.value = value;
  select.dispatchEvent(new Event("change", { bubbles: true }));
  await new Promise((shown) => requestAnimationFrame(() => setTimeout(shown, 0)));
  return performance.now() - started;
}"""
CLICK = """async (place) => {
  const cells = document.querySelectorAll("td[role=gridcell]"), started = performance.now();
  cells[(place * 37) % cells.length].click();
  await new Promise((shown) => requestAnimationFrame(() => setTimeout(shown, 0)));
  return performance.now() - started;
}"""


def main(name: str = "") -> None:
    """Write the page of a run, and time each of its controls."""
    run = read.load(name) if name else made_up(CASES)
    shown = results.of(run)
    block = data.payload(shown, others(shown.run.manifest))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "explore.html"
        path.write_text(explorer.html(run.name, block), encoding="utf-8")
        print(f"{len(run.samples):,} samples, a page of {path.stat().st_size / 1e6:.2f} MB")
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        opened = browser.new_page(viewport={"width": 1280, "height": 900})
        opened.goto(path.as_uri())
        opened.wait_for_selector("html[data-drawn]")
        print(f"{'opened':<12} {opened.evaluate('performance.now()'):>8.0f} ms")
        for what, took in _timed(opened).items():
            print(f"{what:<12} {median(took):>8.0f} ms, at most {max(took):.0f}")
        browser.close()


def _timed(opened: Page) -> dict[str, list[float]]:
    """Milliseconds of each change, by control; one with a single value is left out."""
    found = {"a cell": [opened.evaluate(CLICK, place) for place in range(1, TIMES + 1)]}
    for name in SELECTS:
        values = opened.locator(f"#attnlab-{name} option").evaluate_all("all => all.map((one) => one.value)")
        first = opened.locator(f"#attnlab-{name}").input_value()
        others = [value for value in values if value != first]
        if others:
            turns = [value for _ in range(TIMES) for value in (others[0], first)]
            found[name] = [opened.evaluate(CHANGE, [name, value]) for value in turns]
    return found


if __name__ == "__main__":
    main(*sys.argv[1:2])
