"""The export of a run: the contents of its files, and the files that it overwrites."""

import json
import os
import shutil

import numpy as np
import pytest
from conftest import held, told

from attnlab import export, frames
from attnlab.base import paths

RUN = "cpu-2026-11-29"


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The folder of an export of a small run; read-only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNLAB_DATA", os.fspath(paths.ROOT / "data"))
        patch.setenv("ATTNLAB_EXPORTS", os.fspath(tmp_path_factory.mktemp("exports")))
        yield export.export(RUN)


@pytest.fixture
def copy(exported, tmp_path, monkeypatch):
    """A copy of the export, in the folder to which the next export is written."""
    monkeypatch.setenv("ATTNLAB_DATA", os.fspath(paths.ROOT / "data"))
    monkeypatch.setenv("ATTNLAB_EXPORTS", os.fspath(tmp_path))
    return shutil.copytree(exported, tmp_path / RUN)


def test_numbers_and_samples_are_those_of_the_frames(exported, monkeypatch):
    monkeypatch.setenv("ATTNLAB_DATA", os.fspath(paths.ROOT / "data"))
    run = frames.load(RUN)
    summary = json.loads((exported / "summary.json").read_text(), parse_constant=pytest.fail)
    assert json.loads((exported / "env.json").read_text()) == run.manifest
    assert summary["run"]["seal"] == run.manifest["seal"]
    assert [row["median_us"] for row in summary["cases"]] == frames.summarize(run.samples)["median_us"].to_list()
    assert [row["speedup"] for row in summary["comparisons"]] == frames.compare(run.samples)["speedup"].to_list()
    assert len(summary["control"]) == len(frames.control(run.samples))
    shapes = {row["config"]: row for row in summary["configs"]}
    for row in summary["cases"]:
        assert all(row[axis] == shapes[row["config"]][axis] for axis in frames.AXES)
        assert np.median(np.concatenate([np.load(exported / file) for file in row["files"]])) == row["median_us"]
    assert np.load(exported / "latencies" / "config_01.control.sdpa.auto.eager.warm.r0.npy").dtype == np.float64


def test_again_gives_the_same_bytes(exported, copy):
    (copy / "summary.json").write_text((copy / "summary.json").read_text().replace('"median_us"', '"median"'))
    export.export(RUN)
    assert held(copy) == {copy / path.relative_to(exported): content for path, content in held(exported).items()}
    assert os.listdir(copy.parent) == [RUN]


@pytest.mark.parametrize("foreign", ["notes.txt", "latencies/mine.csv", "summary.json"])
def test_what_is_no_export_stays(copy, foreign):
    (copy / foreign).write_text("{}")
    before = held(copy)
    assert told(lambda: export.export(RUN)).endswith(f"{RUN} holds more than an export of this run: move it away")
    assert held(copy) == before
