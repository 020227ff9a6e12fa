"""What is inferred from a run is kept, and taken again only for the same run, code and libraries."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
import synthetic

from attnlab.base import sources
from attnlab.infer import kept, results
from attnlab.runs import read, schema
from attnlab.runs.tables import TABLES

STUDY = {
    "implementations": ["sdpa.auto", "sdpa.flash"],
    "timings": [{"clock": "eager", "cache": "warm"}],
    "sweeps": {"seq_len": [synthetic.AXES | {"seq_len": [64, 128]}]},
}
RECIPE = synthetic.Recipe(study=STUDY, control_pace=1.0)


@pytest.fixture(scope="module")
def written() -> Iterator[Path]:
    """The folder that holds a complete run."""
    with synthetic.folders() as folder:
        synthetic.write("run", RECIPE)
        yield folder


@pytest.fixture
def run(written, tmp_path, monkeypatch) -> schema.Run:
    """The run, with an empty folder of reports."""
    monkeypatch.setenv("ATTNLAB_DATA", str(written / "data"))
    monkeypatch.setenv("ATTNLAB_REPORTS", str(tmp_path / "reports"))
    return read.load("run")


@pytest.fixture
def code(tmp_path, monkeypatch) -> Iterator[Path]:
    """A copy of the package whose sources count as those of this process."""
    copy = tmp_path / "code" / "attnlab"
    shutil.copytree(sources.PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(sources, "PACKAGE", copy)
    sources.digests.cache_clear()
    yield copy
    sources.digests.cache_clear()


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "reports" / "run").glob("*.parquet"))


def forbidden(*_: object) -> None:
    raise AssertionError("it was inferred again")


def changed(run: schema.Run) -> schema.Run:
    """The same samples under another manifest."""
    tables = {table: getattr(run, table) for table in TABLES}
    return schema.Run(run.name, run.manifest | {"seal": "another"}, **tables)


def test_an_inference_is_kept_and_taken_again(run, tmp_path, monkeypatch):
    table = results.of(run).table
    (first,) = files(tmp_path)
    assert first.name == f"cases-{kept.key(run)}.parquet"
    monkeypatch.setattr(results, "infer", forbidden)
    pd.testing.assert_frame_equal(results.of(run).table, table)
    monkeypatch.setattr(results, "infer", lambda run: table.head(1))
    assert len(results.of(changed(run)).table) == 1
    (replaced,) = files(tmp_path)
    assert replaced != first


def test_verdicts_are_kept_and_taken_again(run, tmp_path, monkeypatch):
    families = results.of(run).families
    assert {place.seq_len for place, _ in families} == {64, 128}
    assert all(family.control for family in families.values())
    baseline, *_, other = run.manifest["study"]["implementations"]
    against = results.of(run).families_against(other)
    there = {path.name for path in files(tmp_path)}
    assert {f"verdicts.{name}-{kept.key(run)}.parquet" for name in (baseline, other)} <= there
    monkeypatch.setattr(results, "infer_family", forbidden)
    monkeypatch.setattr(results, "judge", forbidden)
    assert results.of(run).families == families
    assert results.of(run).families_against(other) == against


def test_an_inference_from_a_run_not_complete_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "infer", lambda run: run.samples)
    with synthetic.folders() as folder:
        synthetic.write("cut", synthetic.Recipe(study=STUDY, shapes=1))
        assert not read.load("cut").complete
        assert len(results.of(read.load("cut")).table) == 80
        assert not (folder / "reports").exists()


@pytest.mark.parametrize("spoil", [lambda held: b"", lambda held: held[: len(held) // 2], lambda held: b"[1]" + held])
@pytest.mark.parametrize("what", ["cases", "verdicts"])
def test_what_is_broken_is_inferred_again(run, tmp_path, what, spoil):
    whole = results.of(run)
    table, families = whole.table, whole.families
    (path,) = (path for path in files(tmp_path) if path.name.startswith(what))
    held = path.read_bytes()
    path.write_bytes(spoil(held))
    again = results.of(run)
    pd.testing.assert_frame_equal(again.table, table)
    assert again.families == families
    assert path.read_bytes() == held


@pytest.mark.parametrize("source", ["infer/bootstrap.py", "infer/cases.py", "study/shapes.py", "runs/rules.py"])
def test_the_key_changes_with_every_source_that_infers(run, code, source):
    before = kept.key(run)
    with open(code / source, "a") as file:
        file.write("# changed\n")
    sources.digests.cache_clear()
    assert kept.key(run) != before


@pytest.mark.parametrize("source", ["exhibits/formats.py", "paper/pages.py", "measure/session/record.py"])
def test_the_key_stays_where_other_code_changes(run, code, source):
    before = kept.key(run)
    with open(code / source, "a") as file:
        file.write("# changed\n")
    sources.digests.cache_clear()
    assert kept.key(run) == before


@pytest.mark.parametrize("library", ["numpy", "scipy", "pandas", "statsmodels"])
def test_the_key_changes_with_the_version_of_each_library_that_computes(run, monkeypatch, library):
    before, version = kept.key(run), kept.version
    monkeypatch.setattr(kept, "version", lambda name: "0.0" if name == library else version(name))
    assert kept.key(run) != before


def test_the_key_changes_with_the_manifest(run):
    assert kept.key(changed(run)) != kept.key(run) == kept.key(read.load("run"))
