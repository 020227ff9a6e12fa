"""The one search over runs: the newest first, each with its manifest, and those that can't be read passed over."""

import pytest
import synthetic

from attnlab import select_run
from attnlab.base.errors import UserError
from attnlab.runs import read, schema, write
from attnlab.study import studies


def begun(name: str, created: str) -> None:
    write.create(name, synthetic.manifest() | {"created": created})


@pytest.fixture
def three(data) -> None:
    """Three runs; the third began when the clock had been set back."""
    begun("old", "2026-11-20T09:00:00+00:00")
    begun("new", "2026-11-21T09:00:00+00:00")
    begun("latest", "2026-11-19T09:00:00+00:00")


def test_there_is_none(data):
    assert list(read.manifests()) == []
    assert not data.exists()


def test_the_newest_comes_first_whatever_its_clock_said(three):
    found = dict(read.manifests())
    assert list(found) == ["latest", "new", "old"]
    assert found["latest"]["order"] == found["new"]["created"] + "+"
    assert [manifest["name"] for manifest in found.values()] == list(found)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda held: held.replace('"synthetic"', '"another"', 1), "was changed after it was recorded, so the run is"),
        (lambda held: held[:100], "is not a manifest: restore it from where the run came from"),
        (lambda held: held.replace(f'"schema": {schema.SCHEMA}', '"schema": 99'), "has schema 99, this attnlab reads"),
    ],
)
def test_what_can_not_be_read_is_passed_over_with_its_reason(three, spoil, reason):
    path = schema.folder("new") / "manifest.json"
    path.write_text(spoil(path.read_text()))
    refused: list[UserError] = []
    assert {name for name, _ in read.manifests(refused.append)} == {"latest", "old"}
    (error,) = refused
    assert str(error).startswith(f"{path} {reason}")
    assert {name for name, _ in read.manifests()} == {"latest", "old"}


def test_one_at_a_time(three, monkeypatch):
    asked: list[str] = []
    manifest = read.read_manifest
    monkeypatch.setattr(read, "read_manifest", lambda name: asked.append(name) or manifest(name))
    assert next(read.manifests())[0] == "latest"
    assert asked == ["latest"]


def test_the_run_that_a_notebook_takes_is_the_newest_that_can_be_read(data, capsys):
    study = studies.parse(synthetic.LONELY.stated, "synthetic.yaml")
    for name in ("older", "newer", "spoilt"):
        synthetic.write(name, synthetic.LONELY)
    path = schema.folder("spoilt") / "manifest.json"
    path.write_text(path.read_text().replace("Imaginary", "Another"))
    assert select_run._newest(study, "Imaginary X1", complete=True) == "newer"
    said = f"passed over: {path} was changed after it was recorded, so the run is refused: restore it\n"
    assert capsys.readouterr().err == said
