"""The blocks of README.md and kernels/README.md are those that `attnlab readme` writes from the published run."""

import os
import re
import shutil

import pytest
from conftest import told
from published import RUN as PUBLISHED

from attnlab import readme
from attnlab.base import paths

READMES = ("README.md", "kernels/README.md")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Copies of two runs, next to which frames are kept."""
    folder = tmp_path_factory.mktemp("data")
    for run in (PUBLISHED, "cpu-2026-11-29"):
        shutil.copytree(paths.ROOT / "data" / run, folder / run, ignore=shutil.ignore_patterns(".cache"))
    return folder


@pytest.fixture
def checkout(data, tmp_path, monkeypatch):
    """Copies of the READMEs in place of the project's."""
    for name in READMES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(paths.ROOT / name, tmp_path / name)
    (tmp_path / "figures").mkdir()
    monkeypatch.setenv("ATTNLAB_DATA", os.fspath(data))
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    return tmp_path


def test_readmes_hold_what_the_published_run_says(checkout):
    root = paths.NOTEBOOKS.parent
    readme.update(PUBLISHED)
    for name in READMES:
        assert (checkout / name).read_text() == (root / name).read_text(), f"{name}: run `attnlab readme`"
    picture = re.search(r"!\[[^\]]+\]\((figures/[^)]+)\)", (root / "README.md").read_text())[1]
    assert (root / picture).read_text().count("<path") > 0
    assert (checkout / picture).is_file()


def test_what_the_readmes_can_not_be_written_from_is_refused(checkout, monkeypatch):
    for part in ("_results", "_ladder", "_picture"):
        monkeypatch.setattr(readme, part, lambda run: "made")
    before = {name: (checkout / name).read_text() for name in READMES}
    assert "is no complete run of the study 'gpu' on a GPU" in told(lambda: readme.update("cpu-2026-11-29"))
    (checkout / "kernels" / "README.md").write_text("nothing")
    assert "has no lines <!-- ladder: written by `attnlab readme` -->" in told(lambda: readme.update(PUBLISHED))
    assert (checkout / "README.md").read_text() == before["README.md"]
