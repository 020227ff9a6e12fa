"""Recording a run: its content, how it is interrupted and resumed, and the run that pages show."""

import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import small
from conftest import EVERY_TIMING, TINY, Quickly, tiny_study, told

from attnlab import measurement
from attnlab.base import rules, sources
from attnlab.measuring.session import estimate, record
from attnlab.runs import read, schema, write
from attnlab.runs.tables import TABLES
from attnlab.study import studies

SHORT = tiny_study(sweeps={"target": TINY["target"]}, implementations=["sdpa.auto"], samples=2, replicates=1)


# A complete run


def test_a_run_holds_every_sample_once_and_every_case_was_checked_before_and_after(recorded):
    run = read.load(recorded)  # raises on duplicate rows
    assert run.complete
    assert len(run.samples) == 4 * 3 * 5 * 2
    axes = {"implementation": {*tiny_study().subjects}, "seq_len": {16, 32, 64}, "replicate": {0, 1}}
    axes |= {"round": {0, 1, 2, 3, 4}, "dtype": {"float32"}, "launches": {1}}
    assert {column: set(run.samples[column]) for column in axes} == axes
    assert run.samples["sm_clock_mhz"].isna().all()
    assert run.samples["throttled"].dtype == "boolean"
    # Each replicate is a separate job.
    assert run.processes["replicate"].tolist() == [0, 1]
    by_replicate = run.samples.groupby("replicate")["process"].unique()
    assert [[process] for process in run.processes["process"]] == [*map(list, by_replicate)]
    assert (run.processes["setup_seconds"] > 0).all()
    assert set(run.processes["card"]) == {""}
    assert set(run.processes["cpu"]) == {run.manifest["device"]["name"]}
    assert run.processes[["ecc", "power_limit_w", "persistence", "mig"]].isna().all().all()
    assert run.cases["status"].tolist() == ["measured"] * 24
    assert run.checks["passed"].tolist() == [True] * 96
    assert set(run.checks["route"]) == {"call"}
    moments = run.checks.groupby(["implementation", "seq_len", "replicate"])["moment"]
    assert moments.agg(set).eq({"before", "after"}).all()
    # Unseen inputs: all checks of an implementation at a shape have different errors.
    errors = run.checks.groupby(["implementation", "seq_len"])["framework_mean_error"].nunique()
    assert (errors == 2 * (3 + 1)).all()


def test_the_manifest_tells_how_to_do_it_again(recorded):
    manifest = read.read_manifest(recorded)
    assert studies.recorded(manifest) == tiny_study()
    assert manifest["device"]["kind"] == "cpu"
    assert manifest["missing_clocks"] == []
    assert manifest["command"] == "make measure STUDY=tiny DEVICE=cpu"
    assert manifest["environment"]["settings"]["float32_matmul_precision"] == "highest"
    assert manifest["ceilings"]["matmul.float32"]["unit"] == "TFLOP/s"
    assert manifest["ceilings"]["copy"]["unit"] == "GB/s"
    assert manifest["clocks"]["tick_us"] > 0
    assert set(manifest["files"]) == {f"{table}.parquet" for table in TABLES}
    assert manifest["rules"] == rules.recorded()
    assert manifest["sources"] == sources.digests("attnlab.measuring.session.record")
    hashes = [manifest["environment"]["hash"], *manifest["sources"].values(), *manifest["kernels"].values()]
    assert all(re.fullmatch("[0-9a-f]{64}", value) for value in hashes)


def test_clocks_that_the_device_lacks_are_named_and_without_any_nothing_is_measured(data, one_thread, unlocked):
    timings = [EVERY_TIMING[0], EVERY_TIMING[2]]  # of the device clock
    said = told(lambda: record.record("one", tiny_study(timings=timings), "cpu", Quickly(ThreadPoolExecutor(1))))
    assert "cpu lacks the clocks of the study (device warm, device cold): state one" in said
    assert not schema.folder("one").exists()
    study = studies.parse(SHORT.model_dump() | {"timings": [*timings[1:], EVERY_TIMING[3]]}, "short")
    run = read.load(record.record("one", study, "cpu", Quickly(one_thread)))
    assert run.manifest["missing_clocks"] == ["device cold"]
    assert set(run.samples["clock"]) == {"eager"}


# The duration


def test_what_takes_longer_than_a_day_is_begun_only_on_request(data, one_thread, unlocked, monkeypatch, capsys):
    monkeypatch.setattr(estimate, "planned", lambda study, device: (2.5 * 86_400, []))
    assert told(lambda: record.record("one", tiny_study(), "cpu", Quickly(one_thread))) == (
        "the study 'tiny' would take about 2 days here (3 shapes x 3 implementations x 1 timing x 5 samples x "
        "2 replicates), and what takes longer than a day is not begun by accident: state less, or add LONG=1 (--long)"
    )
    assert not (data / "one").exists()
    record.record("one", SHORT, "cpu", Quickly(ThreadPoolExecutor(1)), long=True)
    assert "1 replicate, about 2 days" in capsys.readouterr().err
    assert read.load("one").complete


# Interrupted runs


@pytest.mark.parametrize(
    ("table", "together", "spoil"),
    [
        ("samples", "r00-s001", lambda part: part.write_bytes(part.read_bytes() + b"1")),
        ("samples", "r00-s001", Path.unlink),
        ("processes", "r00", Path.unlink),
    ],
)
def test_a_block_that_was_changed_or_lost_is_measured_again(begin, unlocked, table, together, spoil):
    study = tiny_study(replicates=1, implementations=["sdpa.math"], baseline="sdpa.math", samples=2)
    name = begin(study)
    parts = schema.folder(name) / schema.PARTS
    for block in small.blocks(study, study.subjects):
        write.add_part(name, *block)
    recorded = set(parts.glob("*.parquet"))
    (part,) = parts.glob(f"{table}.{together}*")
    spoil(part)
    left = set(parts.glob("*.parquet"))

    for going_on in (partial(record.record, name, study, "cpu", ThreadPoolExecutor(1)), partial(write.finish, name)):
        said = told(going_on)
        assert re.match(rf"{parts}/\w+\.{together}", said)
        assert said.endswith(f": delete {parts}/*.{together}*, and `make measure RUN={name}` measures that again")
        assert set(parts.glob("*.parquet")) == left

    for spoiled in parts.glob(f"*.{together}*"):
        spoiled.unlink()
    kept = set(parts.glob("*.parquet"))
    record.record(name, study, "cpu", ThreadPoolExecutor(1))
    run = read.load(name)
    assert run.complete
    assert len(run.samples) == 2 * 3 * 2
    assert len(kept) == (0 if table == "processes" else len(recorded) - 3)


# Choosing a run


def test_what_was_cut_off_is_gone_on_with(begin, threaded, capsys):
    name = begin(SHORT)
    assert measurement.measured("", SHORT, "cpu") == name
    assert f"{name}: going on where it was cut off\n" in capsys.readouterr().err
    assert len(read.load(name).samples) == 2 * 2


@pytest.mark.parametrize("what", ["environment", "dispatch table, or the kernel of gradients,"])
def test_where_a_run_cannot_go_on_a_new_one_begins(begin, machine, threaded, monkeypatch, capsys, what):
    begin(SHORT, environment=machine["environment"] | ({"hash": 64 * "0"} if what == "environment" else {}))
    if what != "environment":
        monkeypatch.setattr(record, "_dispatched", lambda *_: {"run": "another"})
    name = measurement.measured("", SHORT, "cpu", stated="/elsewhere/a study.yaml")
    assert name.startswith("cpu-")
    assert read.load(name).complete
    assert read.read_manifest(name)["command"] == "make measure STUDY='a study.yaml' DEVICE=cpu"
    said = f"the {what} changed since the run 'begun' began"
    assert re.search(rf"^{said}.*: start a new run, which begins now$", capsys.readouterr().err, re.MULTILINE)
