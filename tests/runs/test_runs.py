"""The run folder: whole blocks or none, no change after the end, and the search over runs."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import small
from conftest import told
from pyarrow import parquet

from attnlab import __main__, measurement
from attnlab.base import paths
from attnlab.runs import read, schema, write
from attnlab.runs.tables import TABLES
from attnlab.study import studies, values

TWO = small.study(sweeps={"seq_len": small.AXES | {"seq_len": [16, 32]}})
"""The study of most runs here: 2 shapes, each with a block of 2 samples."""
PARTS = small.blocks(TWO)


def rows(*latencies_us: float) -> pd.DataFrame:
    """A block of samples of the first shape, with these latencies."""
    return PARTS[1][2].assign(latency_us=latencies_us)


def begun(name: str = "one", of: studies.Study = TWO, **changes) -> str:
    write.create(name, small.manifest(of, **changes))
    return name


def filled(name: str = "one") -> str:
    """A run that is not closed, recorded from its last block to its first."""
    begun(name)
    for part in reversed(PARTS):
        write.add_part(name, *part)
    return name


@pytest.fixture(scope="module")
def closed(tmp_path_factory) -> Path:
    """The folder of a complete run, which all tests here share. Read-only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNLAB_DATA", os.fspath(tmp_path_factory.mktemp("closed")))
        write.finish(filled())
        return schema.folder("one")


@pytest.fixture
def finished(data, closed) -> Path:
    """The folder of a complete run `one` in this test's data folder."""
    return shutil.copytree(closed, data / "one")


def refused(name: str = "one") -> str:
    return told(lambda: read.load(name))


def edit(folder: Path, change: Callable[[dict], object]) -> Path:
    """Change only the manifest in a folder."""
    path = folder / "manifest.json"
    stated = json.loads(path.read_text())
    change(stated)
    path.write_text(json.dumps(stated))
    return path


def test_what_was_recorded_is_read_back(finished):
    run = read.load("one")
    assert run.complete
    assert run.name == "one"
    # In the order of the study, independent of the order of recording.
    for table in ("samples", "checks", "cases", "processes"):
        recorded = pd.concat([rows for of, _, rows in PARTS if of == table], ignore_index=True)
        pd.testing.assert_frame_equal(getattr(run, table), recorded)
    assert run.manifest["schema"] == schema.SCHEMA
    assert run.manifest["study"] == TWO.model_dump(mode="json")
    assert sorted(run.manifest["files"]) == [f"{table}.parquet" for table in sorted(TABLES)]
    assert set(os.listdir(finished)) == {"manifest.json", *run.manifest["files"]}
    for name, table in TABLES.items():  # for readers without this package
        assert parquet.read_schema(finished / f"{name}.parquet").names == table.names


def test_a_run_is_printed_in_2_lines(finished):
    assert repr(read.load("one")) == "Run 'one': study 'small' on Imaginary X1\n2 cases, 4 samples, 4 checks"
    begun("two")
    assert repr(read.load("two")) == (
        "Run 'two': study 'small' on Imaginary X1, not complete\n0 cases, 0 samples, 0 checks"
    )


def test_types_survive_what_nothing_was_read_of(data):
    begun()
    for table, key, rows in PARTS:
        read_once = table == "samples" and key.startswith("r00-s001")
        write.add_part("one", table, key, rows.assign(power_w=71.5, throttled=True) if read_once else rows)
    write.finish("one")
    samples = read.load("one").samples
    assert [str(samples[column].dtype) for column in ("power_w", "throttled")] == ["Float64", "boolean"]
    assert samples["power_w"].isna().tolist() == [True, True, False, False]
    assert samples["throttled"].iloc[3]


def test_a_block_that_is_there_stays(data):
    begun()
    write.add_part("one", *PARTS[0])
    write.add_part("one", "samples", "a", rows(1.0, 2.0))
    write.add_part("one", "samples", "a", rows(9.0, 9.0))
    assert read.load("one").samples["latency_us"].tolist() == [1.0, 2.0]
    assert write.recorded("one", "samples") == {"a"}
    assert write.recorded("one", "cases") == set()


def test_a_run_that_was_cut_off_is_read_from_its_parts_and_closed_whenever_it_is_killed(data, monkeypatch):
    filled()
    part = next((data / "one" / "parts").glob("samples.*"))
    (part.parent / f".{part.name}.4711.tmp").write_bytes(part.read_bytes()[:40])  # not a block
    assert write.recorded("one", "samples") == {"r00-s000-eager-warm", "r00-s001-eager-warm"}
    before = read.load("one")
    assert not before.complete

    def killed(path, **_):
        sorted(path.iterdir())[-1].unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            write.finish("one")
    write.finish("one")
    after = read.load("one")
    for table in TABLES:
        pd.testing.assert_frame_equal(getattr(before, table), getattr(after, table))
    assert after.samples["latency_us"].tolist() == [1.0, 2.0, 1.0, 2.0]


@pytest.mark.parametrize("change", [lambda raw: raw[:-1], lambda raw: raw[:99] + b"X" + raw[100:], lambda raw: b""])
def test_a_changed_table_is_refused(finished, change):
    path = finished / "samples.parquet"
    path.write_bytes(change(path.read_bytes()))
    assert refused() == f"{path} doesn't match its manifest: it was changed after it was recorded; restore it"
    path.unlink()
    assert refused().startswith(f"{path} is missing, so the run is refused")


def test_a_changed_part_is_refused(data):
    filled()
    part = next((data / "one" / "parts").glob("samples.r00-s000*"))
    rows(0.5, 0.5).to_parquet(part, index=False)
    assert refused().startswith(f"{part}: it was changed after it was recorded: delete ")


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest["study"].update(name="other"),
        lambda manifest: manifest.update(device={"name": "H200"}),
        lambda manifest: manifest.update(complete=False),
        lambda manifest: manifest["files"].update({"samples.parquet": 64 * "0"}),
        lambda manifest: manifest.update(seal=64 * "0"),
        lambda manifest: manifest.pop("seal"),
        lambda manifest: manifest["files"].popitem(),
    ],
)
def test_a_changed_manifest_is_refused(finished, change):
    path = edit(finished, change)
    assert refused() == f"{path} was changed after it was recorded, so the run is refused: restore it"


def test_a_manifest_laid_out_anew_is_the_same(finished):
    before = read.read_manifest("one")
    (finished / "manifest.json").write_text(json.dumps(dict(reversed(before.items()))))
    assert read.load("one").manifest == before


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"schema": schema.SCHEMA - 1}, f"attnlab 0.1.0 of commit {12 * 'c'} reads it"),
        ({"schema": schema.SCHEMA - 1, "commit": "<b>"}, "measure again"),
        *(({"schema": other}, "update attnlab") for other in (schema.SCHEMA + 1, "2", None)),
    ],
)
def test_another_schema_is_refused_with_what_to_do(finished, changes, advice):
    path = edit(finished, lambda manifest: manifest.update(changes))
    stated, read_here = changes["schema"], schema.SCHEMA
    assert refused() == f"{path} has schema {stated}, and this attnlab reads {read_here}: {advice}"


@pytest.mark.parametrize("every", ["all", ["all"]])
def test_a_kind_that_is_added_later_is_in_no_run_that_was_recorded_before(data, monkeypatch, every):
    before, sweeps = values.STANDARD, {"seq_len": [small.AXES], "values": [small.AXES | {"values": every}]}
    begun(of=small.study(sweeps=sweeps))
    monkeypatch.setattr(values, "STANDARD", (*before, "sd 3"))
    assert [shape.values for shape in small.study(sweeps=sweeps).shapes] == [*before, "sd 3"]
    assert [shape.values for shape in studies.recorded(read.read_manifest("one")).shapes] == list(before)


def test_what_is_tracked_can_still_be_read(monkeypatch):
    monkeypatch.setenv("ATTNLAB_DATA", os.fspath(paths.ROOT / "data"))
    assert all(read.read_manifest(name)["complete"] for name in read.names())


NO_MANIFESTS = [b"", b"{", b"[1]", b"7", b"null", b'"schema"', b"{}", b'{"created": [1]}', b"\xff\xfe", 10**5 * b"["]


@pytest.mark.parametrize("content", NO_MANIFESTS)
def test_what_is_no_manifest_is_refused(finished, content):
    path = finished / "manifest.json"
    path.write_bytes(content)
    assert refused() == f"{path} is not a manifest: restore it from where the run came from"
    assert "one" in read.names()


def test_a_run_that_is_not_there_tells_which_are(data):
    assert refused("nope") == "there is no run 'nope'; those that are: none yet; `make measure` records one"
    begun("b")
    begun("a")
    message = refused("nope")
    assert message.startswith("there is no run 'nope'; those that are: ")
    assert sorted(message.rpartition(": ")[2].split(", ")) == ["a", "b"]


@pytest.mark.parametrize("name", [".", "..", "../one", "a/b", "/etc", "one/", ".hidden"])
def test_a_name_that_is_a_path_is_refused(data, name):
    assert refused(name) == f"{name!r} can't be the name of a run: name a folder in {data}/, without the path to it"


NO_COUNTERS = {"tool": "", "why": "the run was closed before its counters were taken", "command": ""}


def cut_off(also: str = "") -> str:
    """A run with 1 of 2 replicates, in the state in which the measuring half leaves it before it counts.

    Args:
        also: prefix of the keys of further blocks to record.
    """
    of = TWO.model_copy(update={"replicates": 2})
    stated = {key: value for key, value in small.manifest(of).items() if key != "profile"}
    write.create("cut", stated)
    for part in small.blocks(of):
        if part[1].startswith(schema.replicate_key(0)) or (also and part[1].startswith((also, "r01-p"))):
            write.add_part("cut", *part)
    return "cut"


def test_a_run_that_was_cut_off_is_closed_with_the_replicates_that_are_whole(data, capsys):
    before, held = read.read_manifest(cut_off()), read.load("cut").samples
    assert __main__.main(["close", "--run", "cut"]) == 0
    assert "cut" in capsys.readouterr().out
    closed = read.load("cut")
    pd.testing.assert_frame_equal(closed.samples, held)
    assert closed.complete
    assert closed.profile.empty
    assert closed.manifest["profile"] == NO_COUNTERS
    assert closed.manifest["closed_early"] == {"replicates": 1, "shapes": 2, "planned": 4}
    kept = before.keys() - {"complete", "seal"}
    assert {key: closed.manifest[key] for key in kept} == {key: before[key] for key in kept}
    assert closed.manifest.keys() - before.keys() == {"profile", "closed_early", "finished", "files"}
    assert "is complete: there is nothing to close" in told(lambda: write.close_early("cut"))


def test_a_run_is_closed_with_what_it_holds_of_a_second_replicate(data):
    write.close_early(cut_off(also="r01-s000"))
    closed = read.load("cut")
    assert closed.manifest["closed_early"] == {"replicates": 1, "shapes": 3, "planned": 4}
    assert closed.cases["replicate"].tolist() == [0, 0, 1]


def test_a_run_without_a_whole_replicate_is_not_closed(data):
    begun()
    for part in PARTS[:4]:
        write.add_part("one", *part)
    assert "no replicate of 'one' is whole: " in told(lambda: write.close_early("one"))
    assert not read.read_manifest("one")["complete"]


@pytest.fixture
def three(data) -> None:
    """3 runs; the clock was set back before the latest began."""
    for name, day in (("old", 20), ("new", 21), ("latest", 19)):
        begun(name, created=f"2026-11-{day}T09:00:00+00:00")


def test_the_newest_comes_last_whatever_its_clock_said(three):
    assert read.names() == ["old", "new", "latest"]
    assert read.read_manifest("latest")["order"] == read.read_manifest("new")["created"] + "+"


def test_what_can_not_be_read_is_passed_over_with_its_reason(three, capsys):
    path = schema.folder("latest") / "manifest.json"
    path.write_text(path.read_text()[:100])
    assert measurement._unfinished(TWO, "Imaginary X1") == "new"  # what has no time counts as the oldest
    assert measurement._unfinished(TWO, "Imaginary X2") == ""
    assert capsys.readouterr().err.startswith(f"passed over: {path} is not a manifest: ")
