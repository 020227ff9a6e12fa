"""JupyterLab itself: the explorer in 10_explore, links between notebooks, and what is saved of them."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
import synthetic
from synthetic import Recipe

from attnlab.base import paths

sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright for Python is not installed")
for needed in ("jupyterlab", "anywidget"):
    pytest.importorskip(needed, reason="the extra `lab` is not installed")
PATIENCE_MS = 120_000
"""For a kernel to start on a busy machine; nothing is asserted about time."""


@pytest.fixture
def notebook(tmp_path, data) -> Path:
    """A copy of the notebook that shows a run whose candidate is 1.25 times as fast by one clock, 1.22 by the other."""
    synthetic.write("flipping", Recipe(study={"implementations": ["sdpa.auto", "sdpa.flash"]}))
    notebook = nbformat.read(paths.NOTEBOOKS / "10_explore.ipynb", as_version=4)
    (parameters,) = (cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", []))
    parameters.source = 'run, study, device = "flipping", "quick", "none"'
    path = tmp_path / "lab" / "10_explore.ipynb"
    path.parent.mkdir()
    nbformat.write(notebook, path)
    return path


@pytest.fixture
def lab(notebook, tmp_path) -> Iterator[str]:
    """The address of JupyterLab's server, with settings of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = {
        name: str(tmp_path / name.lower())
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTERLAB_SETTINGS_DIR")
    }
    library = os.pathsep.join([str(paths.ROOT / "lib"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}"]
    command += ["--IdentityProvider.token=", f"--ServerApp.root_dir={notebook.parent}"]
    with open(tmp_path / "lab.log", "w") as log:
        server = subprocess.Popen(
            command,
            env=os.environ | own | {"PYTHONPATH": library, "JUPYTER_CONFIG_PATH": str(paths.ROOT / "tools" / "lab")},
            stdout=log,
            stderr=log,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_for(f"{address}/api/status", server)
        yield address
    finally:
        server.terminate()
        server.wait()


def _wait_for(address: str, server: subprocess.Popen) -> None:
    while server.poll() is None:
        try:
            urllib.request.urlopen(address)
            return
        except OSError:
            time.sleep(0.2)
    pytest.fail("JupyterLab ended before it answered")


def test_run_all_then_another_clock_another_verdict(browser, lab):
    opened = browser.new_page(viewport={"width": 1400, "height": 1000})
    opened.set_default_timeout(PATIENCE_MS)
    opened.goto(f"{lab}/lab/tree/10_explore.ipynb")
    opened.get_by_text("| Idle").wait_for()  # until then, the menu runs nothing
    opened.get_by_role("menuitem", name="Run", exact=True).click()
    opened.locator("[role=menuitem]", has_text="Run All Cells").first.click()
    cell = opened.locator('td[role="gridcell"][aria-label^="sdpa.flash, (2, 4, 128, 64) float16:"]')
    cell.first.wait_for()
    assert cell.first.inner_text() == "★ 1.250"
    opened.get_by_label("clock", exact=True).select_option("eager")
    sync_api.expect(cell.first).to_have_text("★ 1.216", timeout=PATIENCE_MS)
    assert "eager clock, warm cache" in opened.locator('[data-part="cell"]').inner_text()
    opened.close()


def test_a_link_opens_the_other_notebook_and_saving_changes_nothing(browser, lab, notebook):
    here, there = (notebook.parent / f"{name}.ipynb" for name in ("02_baseline", "06_verdicts"))
    for path in (here, there):
        shutil.copy(paths.NOTEBOOKS / path.name, path)
    opened = browser.new_page(viewport={"width": 1400, "height": 1000})
    opened.set_default_timeout(PATIENCE_MS)
    opened.goto(f"{lab}/lab/tree/{here.name}")
    opened.get_by_text("| Idle").wait_for()  # now the notebook's metadata name a kernel
    with opened.expect_response(lambda sent: sent.request.method == "PUT" and here.name in sent.url):
        opened.keyboard.press("Control+s")
    opened.get_by_role("link", name=there.stem).first.click()
    opened.get_by_role("tab", name=there.name).wait_for()
    opened.close()
    assert here.read_bytes() == (paths.NOTEBOOKS / here.name).read_bytes()
