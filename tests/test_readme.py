"""The blocks of README.md and kernels/README.md are those that `attnlab readme` writes from the published run."""

import os
import re
import shutil

import pytest
import synthetic
from conftest import told
from published import RUN as PUBLISHED

from attnlab import frames, readme
from attnlab.base import paths

READMES = ("README.md", "kernels/README.md")
SHOWN = [PUBLISHED, *re.findall(r"in run `([^`]+)`", (paths.ROOT / "README.md").read_text())]
"""The runs whose rows README shows."""
VARLEN, ADDED = {"lengths": "uniform 5 1"}, ("my-training", "my-ragged")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Copies of the runs, so that frames can be cached."""
    folder = tmp_path_factory.mktemp("data")
    for run in (*SHOWN, "cpu-2026-11-29"):
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
    readme.update(*SHOWN)
    for name in READMES:
        assert (checkout / name).read_text() == (root / name).read_text(), f"{name}: run `attnlab readme`"
    picture = re.search(r"!\[[^\]]+\]\((figures/[^)]+)\)", (root / "README.md").read_text())[1]
    assert (root / picture).read_text().count("<path") > 0
    assert (checkout / picture).is_file()


def test_runs_of_gradients_and_of_unlike_lengths_add_rows(checkout, monkeypatch):
    monkeypatch.setitem(synthetic.PACE, "kernel.ragged", 0.5)
    at = synthetic.AXES | {"seq_len": 128}
    for name, axes, values in (
        ("training", {"direction": "training"}, ["normal", "sd 24"]),
        ("ragged", VARLEN, ["normal"]),
    ):
        own = ["sdpa.auto", *(["sdpa.cudnn"] if name == "training" else []), readme.OURS[name][1]]
        forward = {"sweeps": {"seq_len": [at, at | axes | {"values": values}]}, "target": at | axes, "name": name}
        recipe = synthetic.Recipe(study=synthetic.AT_TARGET | forward | {"implementations": own})
        synthetic.write(f"my-{name}", recipe)
    before = readme._results(frames.load(PUBLISHED), [])
    run, *others = map(frames.load, (PUBLISHED, *ADDED))
    after = readme._results(run, others).split("\n")
    assert after[-2].startswith("| 2, 4, 128, 64 float16 training | 40.0 | 40.0 sdpa.auto | 30.0 | 1.33 | ")
    assert re.search(r"\| 2: (normal|sd 24) \| 1\.00 \|$", after[-2])
    assert after[-1].startswith("| 2, 4, 5 to 128, 64 float16 | 40.0 | 40.0 sdpa.auto | 20.0 | 2.00 | ")
    assert after[-1].endswith("| 1: normal | — |")
    assert after[4:-2] == before.split("\n")[4:]
    assert (
        "Rows of unlike lengths: the least lead of each head dimension, `kernel.ragged` in run `my-ragged`.*"
        in after[2]
    )
    assert "is no complete run of the study 'training' or 'ragged'" in told(lambda: readme.update(PUBLISHED, PUBLISHED))


def test_what_the_readmes_can_not_be_written_from_is_refused(checkout, monkeypatch):
    for part in ("_results", "_ladder", "_picture"):
        monkeypatch.setattr(readme, part, lambda *_: "made")
    before = {name: (checkout / name).read_text() for name in READMES}
    assert "is no complete run of the study 'gpu' on a GPU" in told(lambda: readme.update("cpu-2026-11-29"))
    (checkout / "kernels" / "README.md").write_text("nothing")
    assert "has no lines <!-- ladder: written by `attnlab readme` -->" in told(lambda: readme.update(PUBLISHED))
    assert (checkout / "README.md").read_text() == before["README.md"]
