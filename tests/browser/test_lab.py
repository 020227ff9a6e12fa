"""JupyterLab itself: a notebook runs in a fresh kernel, its links open other notebooks, and saving changes no file."""

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
pytest.importorskip("jupyterlab", reason="the extra `lab` is not installed")
PATIENCE_MS = 120_000
"""The patience for a kernel to start on a busy machine; no test asserts a time."""


@pytest.fixture
def notebook(tmp_path, data) -> Path:
    """A copy of the notebook of verdicts, with a synthetic run."""
    synthetic.write("flipping", Recipe(study={"implementations": ["sdpa.auto", "sdpa.flash"]}))
    notebook = nbformat.read(paths.NOTEBOOKS / "06_verdicts.ipynb", as_version=4)
    (parameters,) = (cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", []))
    parameters.source = parameters.source.replace("h200-2026-11-28-main", "flipping")
    notebook.cells = [cell for cell in notebook.cells if "published" not in cell.metadata.get("tags", [])]
    path = tmp_path / "lab" / "verdicts.ipynb"
    path.parent.mkdir()
    nbformat.write(notebook, path)
    return path


@pytest.fixture
def lab(notebook, tmp_path) -> Iterator[str]:
    """The address of a JupyterLab server with separate settings."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    names = ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTERLAB_SETTINGS_DIR")
    own = {name: str(tmp_path / name.lower()) for name in names}
    library = os.pathsep.join([str(paths.ROOT / "lib"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}"]
    command += ["--IdentityProvider.token=", f"--ServerApp.root_dir={notebook.parent}"]
    own |= {"PYTHONPATH": library, "JUPYTER_CONFIG_PATH": str(paths.ROOT / "tools" / "lab")}
    with open(tmp_path / "lab.log", "w") as log:
        server = subprocess.Popen(command, env=os.environ | own, stdout=log, stderr=log)
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


def open_in(browser, address: str):
    """A notebook in JupyterLab with a running kernel: before, the menu runs nothing."""
    opened = browser.new_page(viewport={"width": 1400, "height": 1000})
    opened.set_default_timeout(PATIENCE_MS)
    opened.goto(address)
    opened.get_by_text("| Idle").wait_for()
    return opened


def test_run_all_shows_figures_and_tables(browser, lab, notebook):
    opened = open_in(browser, f"{lab}/lab/tree/{notebook.name}")
    opened.get_by_role("menuitem", name="Run", exact=True).click()
    opened.locator("[role=menuitem]", has_text="Run All Cells").first.click()
    opened.get_by_text("sdpa.flash is faster than sdpa.auto").first.wait_for()
    assert opened.locator(".jp-OutputArea svg, .jp-OutputArea img").count() > 0
    opened.close()


def test_a_link_opens_the_other_notebook_and_saving_changes_nothing(browser, lab, notebook):
    here, there = (notebook.parent / f"{name}.ipynb" for name in ("02_baseline", "03_roofline"))
    for path in (here, there):
        shutil.copy(paths.NOTEBOOKS / path.name, path)
    opened = open_in(browser, f"{lab}/lab/tree/{here.name}")
    with opened.expect_response(lambda sent: sent.request.method == "PUT" and here.name in sent.url):
        opened.keyboard.press("Control+s")
    opened.get_by_role("link", name=there.stem).first.click()
    opened.get_by_role("tab", name=there.name).wait_for()
    opened.close()
    assert here.read_bytes() == (paths.NOTEBOOKS / here.name).read_bytes()
