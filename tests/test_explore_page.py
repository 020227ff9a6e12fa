"""The explorer: one page that loads nothing, on which texts of a run stay text, and whose numbers are the frames'."""

import csv
import io
import json
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import attnlab as al
from attnlab import explorer
from attnlab.base.errors import UserError

EVIL = "kernel.<img src=x onerror=alert(1)></script>,\"'&"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), "")
VISIT = """
import json, sys
from playwright.sync_api import sync_playwright
seen = {"asked": [], "errors": []}
with sync_playwright() as playwright:
    opened = playwright.chromium.launch(executable_path=sys.argv[1], args=["--no-sandbox", "--disable-gpu"])
    page = opened.new_page()
    page.on("request", lambda request: seen["asked"].append(request.url))
    page.on("pageerror", lambda error: seen["errors"].append(str(error)))
    page.on("dialog", lambda dialog: seen["errors"].append("a dialog"))
    page.goto("file://" + sys.argv[2])
    page.wait_for_selector("svg.marks")
    cells = page.locator("path[aria-roledescription='rect mark']")
    seen["cells"] = [cells.nth(n).get_attribute("aria-label") for n in range(cells.count())]
    chosen = next(n for n, label in enumerate(seen["cells"]) if "onerror" in label and "S256" in label)
    cells.nth(chosen).click()
    page.wait_for_function("document.body.innerHTML.includes('S=256')")
    page.wait_for_timeout(300)
    seen["labels"] = page.locator("svg.marks text").evaluate_all("all => all.map(one => one.ariaLabel)")
    seen["dots"] = page.locator("path[aria-roledescription='circle']").count()
    seen["images"] = page.locator("img").count()
    page.select_option("[name=choice_clock]", "eager")
    page.select_option("[name=choice_values]", "sd 2")
    page.wait_for_timeout(300)
    seen["after"] = page.locator("svg.marks text").all_text_contents()
print(json.dumps(seen))
"""


PLACES = ((128, "device", "normal"), (256, "device", "sd 2"), (256, "device", "normal"), (128, "eager", "normal"))


def a_run() -> SimpleNamespace:
    """3 implementations at 2 shapes under 2 clocks, of which the eager one has one shape and normal values alone."""
    rng, parts = np.random.default_rng(0), []
    for name, base in (("sdpa.auto", 100.0), ("sdpa.flash", 125.0), (EVIL, 50.0)):
        for seq_len, clock, values in PLACES:
            part = pd.DataFrame({"replicate": np.repeat(range(3), 20), "latency_us": base * rng.normal(1, 0.01, 60)})
            parts.append(part.assign(implementation=name, seq_len=seq_len, clock=clock, values=values))
    axes = {"batch": 2, "heads": 4, "head_dim": 64, "causal": False, "dtype": "float16", "kv_heads": 4, "cache": "warm"}
    axes |= {"lengths": "equal", "direction": "forward", "layout": "heads first", "scale": 0.0}
    samples = pd.concat(parts, ignore_index=True).assign(**axes)
    return SimpleNamespace(name="<b>run</b>", samples=samples.assign(kv_len=samples["seq_len"]))


def test_each_comparison_has_its_numbers_and_its_statement():
    run = a_run()
    chart = al.explore(run).to_dict()
    tables = [list(csv.DictReader(io.StringIO(text))) for text in chart["datasets"].values() if isinstance(text, str)]
    (rows,), (patterns,), (cases,) = (
        [table for table in tables if column in table[0]] for column in ("speedup", "text", "implementation")
    )
    patterns = {row["pattern"]: row["text"] for row in patterns}
    names = {row["case"]: row["implementation"] for row in cases}
    shown = {}
    for row in rows:
        numbers = iter(row["numbers"].split(" "))
        text = re.sub(explorer.HERE, lambda _, numbers=numbers: next(numbers), patterns[row["pattern"]])
        text = text.replace(explorer.CANDIDATE, names[row["case"]]).replace(explorer.BASELINE, row["baseline"])
        shown[text] = float(row["speedup"])
    verdicts = pd.concat([al.compare(run.samples, name) for name in ("sdpa.auto", "sdpa.flash")])
    assert len(rows) == len(verdicts) == 16
    for row in verdicts.to_dict("records"):
        assert shown[str(al.statement(row))] == pytest.approx(row["speedup"], abs=6e-4)


def test_a_case_shows_some_of_its_samples_from_the_least_to_the_largest():
    samples = pd.Series(np.random.default_rng(0).permutation(np.arange(1.0, 1001.0)))
    shown = [float(value) for value in explorer._thinned(samples).split()]
    assert (len(shown), shown[0], shown[-1]) == (explorer.SAMPLES, 1, 1000)
    assert shown == sorted(shown)
    assert explorer._thinned(samples[:3]).count(" ") == 2


def test_a_run_without_a_comparison_is_refused_in_one_line():
    run = a_run()
    run.samples = run.samples[run.samples["implementation"] == EVIL]
    with pytest.raises(UserError, match="holds no comparison"):
        al.explore(run)


def test_the_page_shows_names_as_text_and_loads_nothing(tmp_path):
    pytest.importorskip("playwright", reason="Playwright for Python is not installed")
    page = tmp_path / "page" / "explorer.html"
    explorer.write(a_run(), page)
    written = page.read_text()
    assert written.count("</script>") == 1
    assert "<title>&lt;b&gt;run" in written
    assert written.rpartition("const theme")[2].count("<") == 1  # which ends the script
    if not CHROMIUM:
        pytest.skip("needs Chromium: `apt-get install chromium`")
    # A process of its own: Playwright leaves an event loop running, in which Dask's client can't start.
    visit = [sys.executable, "-c", VISIT, CHROMIUM, str(page)]
    seen = json.loads(subprocess.run(visit, capture_output=True, text=True, check=True, timeout=120).stdout)
    assert (seen["asked"], seen["errors"], seen["images"]) == ([f"file://{page}"], [], 0)
    assert len(seen["cells"]) == 4
    assert any(label and f"{EVIL} is faster than sdpa.auto at B=2 H=4 S=256" in label for label in seen["labels"])
    assert seen["dots"] == 2 * explorer.SAMPLES
    assert "Not measured: choose otherwise" in seen["after"]
