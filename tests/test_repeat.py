"""A run held to another: latencies that were chosen to be the same, to differ, or to differ by the clock alone."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import synthetic
from synthetic import LADDER, ORDINARY, TARGET, Recipe

from attnlab import runs
from attnlab.analyse import repeat, results
from attnlab.analyse.display import Group, Prose

SHARED = 36  # eight shapes, five implementations, four cases without a latency
LONG_ENOUGH = 20  # of these by hand: 5 at the target, 4 at S=256, 4 at H=8, 3 at B=1, 3 causal, 1 at S=64
FASTER = {"sdpa.flash": 0.784, "sdpa.cudnn": 1.0}
"""Paces in another run: 0.8 / 0.784 is 2.04 % more, 1.005 / 1 is 0.5 % more."""


@pytest.fixture
def record(monkeypatch) -> Callable[..., None]:
    """Writes a run, with another pace, SM clock, scatter of replicates or manifest than the ordinary one."""
    with synthetic.folders():
        samples, manifest = synthetic._samples, synthetic.manifest

        def write(name: str, recipe: Recipe = ORDINARY, mhz: int = 2000, apart: float = 0, **changes: Any) -> None:
            pace = changes.pop("pace", {})

            def drawn(*arguments: Any) -> Any:
                frame, where = samples(*arguments), arguments[3]
                scale = 1 + apart * where["replicate"]
                return frame.assign(sm_clock_mhz=mhz, latency_us=frame["latency_us"] * scale).astype(
                    {"sm_clock_mhz": "Int32"}
                )

            with monkeypatch.context() as patch:
                patch.setattr(synthetic, "PACE", synthetic.PACE | pace)
                patch.setattr(synthetic, "_samples", drawn)
                patch.setattr(synthetic, "manifest", lambda *arguments: manifest(*arguments) | changes)
                synthetic.write(name, recipe)

        monkeypatch.setattr(results, "_on_all_cores", lambda work, jobs: [work(*job) for job in jobs])
        yield write


def found(name: str = "here") -> repeat.Repetition:
    return repeat.find(results.of(runs.load(name)))


def text(name: str = "here") -> str:
    return repeat.words(found(name)).markdown


def test_what_was_found_again_and_what_moved(record):
    record("there", pace=FASTER, created="2026-11-20T09:00:00+00:00")
    record("here", created="2026-11-21T10:30:00+00:00")
    repetition = found()
    assert len(repetition.shared) == SHARED
    assert len(repetition.cases) == LONG_ENOUGH
    assert [(case.implementation, case.shape.seq_len, case.shape.heads) for case in repetition.moved] == [
        ("sdpa.flash", *where) for where in ((128, 4), (256, 4), (128, 8))
    ]
    changes = {case.implementation: case.change_pct for case in repetition.cases}
    assert changes["sdpa.flash"] == pytest.approx(100 * (0.8 / 0.784 - 1))
    assert changes["sdpa.cudnn"] == pytest.approx(0.5)
    assert changes["sdpa.auto"] == pytest.approx(0)
    assert all(case.moved_surely for case in repetition.moved)
    told = text()
    assert "`there`, was recorded on 2026-11-20, 09:00 to" in told
    assert " in 2 replicates; this one on 2026-11-21, 10:30 to" in told
    assert "26 hours apart from start to start" in told
    assert "They share 36 cases, device clock, warm cache; 20 of them take longer than 20 µs here." in told
    assert "Of these, 17 have medians within 1 % of each other, and 3 moved, 3 of them with the whole interval" in told
    assert "`sdpa.flash` at (2, 4, 128, 64) float16, by +2.0 % [" in told
    assert "The SM clock explains none of these" in told


def test_what_the_clock_moved_has_not_moved_in_cycles(record):
    record("there", pace=FASTER, mhz=2040)
    record("here")
    flash = found().moved[0]
    assert (flash.here.sm_clock_mhz, flash.there.sm_clock_mhz) == (2000, 2040)
    assert flash.cycles_pct == pytest.approx(100 * (0.8 / 0.784 * 2000 / 2040 - 1))
    assert abs(flash.cycles_pct) < 0.1
    assert text().count("Counted in cycles, 3 of 3 lie within 1 %: there the SM clock moved.") == 1
    row = repeat.table(found()).frame.iloc[0]
    assert row["SM clock\n(MHz)"] == "2000\n2040"
    assert row["held\nback (%)"] == "2\n2"  # one round in forty
    assert row["in\ncycles"] == "+0.04 %"


def test_replicates_scatter_within_each_run_beside_what_lies_between_the_two(record):
    record("there", apart=0.002)
    record("here", apart=0.004)
    repetition = found()
    for case in repetition.cases:
        m = case.here.samples[0]
        pooled = np.median(np.concatenate([m, 1.004 * m]))
        assert case.here.spread_pct == pytest.approx(100 * 0.004 * np.median(m) / pooled)
    assert (
        "the medians of a case's replicates lie at most 0.40 % apart, and in half of the cases less than 0.40 %; "
        "within the other, at most 0.20 % and 0.20 %. Between the two, medians differ by at most 0.10 %"
    ) in text()


def test_a_kernel_whose_source_changed_is_left_out(record):
    kernels = {f"kernel.{name}": "7" * 64 for name in synthetic.RUNGS}
    record("there", LADDER, kernels=kernels | {"kernel.mma": "8" * 64})
    record("here", LADDER)
    repetition = found()
    assert repetition.changed == ["kernel.mma"]
    compared = {key[0] for key in repetition.shared}
    assert "kernel.mma" not in compared
    assert "kernel.swizzled" in compared
    assert ", without `kernel.mma`, whose source changed between them;" in text()


def test_the_run_that_shares_most_is_taken_and_of_two_the_newer(record):
    few = Recipe(study={"sweeps": {"seq_len": synthetic.STUDY["sweeps"]["seq_len"]}}, fates={})
    record("old", created="2026-11-01T09:00:00+00:00")
    record("new", created="2026-11-02T09:00:00+00:00")
    record("few", few, created="2026-11-03T09:00:00+00:00")
    record("here", created="2026-11-04T09:00:00+00:00")
    assert found().there.run.name == "new"
    assert found("few").there.run.name == "here"


def test_what_is_no_other_run_of_the_device_is_not_compared(record, monkeypatch):
    record("here")
    record("other device", Recipe(device="NVIDIA L4"))
    record("cut", Recipe(shapes=3))
    record("eager", Recipe(study={"timings": synthetic.STUDY["timings"][1:]}))
    record("changed")
    manifest = runs.folder("changed") / "manifest.json"
    manifest.write_text(manifest.read_text().replace("H200", "H20O"))
    copy = runs.folder("here").with_name("copied")
    copy.mkdir()
    for path in runs.folder("here").iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    shown = repeat.told(results.of(runs.load("here")))
    assert isinstance(shown, Prose)
    assert shown.markdown == "*No other complete run here, on NVIDIA H200, shares a case with this one.*"


def test_runs_of_one_hour_are_told_in_minutes(record):
    record("there", created="2026-11-21T09:50:00+00:00")
    record("here", created="2026-11-21T10:30:00+00:00")
    assert "40 minutes apart from start to start" in text()
    assert "Of these, 20 have medians within 1 % of each other: none moved." in text()


def test_on_a_cpu_there_are_no_clocks_to_tell(record):
    cpu = Recipe(device="Imaginary X1", study=synthetic.CPU)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(synthetic, "PACE", synthetic.PACE | FASTER)
        synthetic.write("there", cpu)
    synthetic.write("here", cpu)
    shown = repeat.told(results.of(runs.load("here")))
    assert isinstance(shown, Group)
    words, figure, table, _ = shown.parts
    assert "cycles" not in words.markdown
    assert "nan" not in words.markdown
    assert len(figure.figure.axes) == 1
    assert not {"SM clock\n(MHz)", "held\nback (%)", "in\ncycles"} & set(table.frame.columns)


def test_it_is_drawn(record):
    record("there", pace=FASTER, mhz=2040)
    record("here")
    repetition = found()
    figure = repeat.drawn(repetition)
    latency, cycles = figure.figure.axes
    for axes, factor in ((latency, 1), (cycles, 2000 / 2040)):
        lines = {line.get_label(): line.get_data() for line in axes.get_lines()}
        assert list(lines) == repetition.here.study.implementations
        us, changes = lines["sdpa.flash"]
        assert us == pytest.approx([32, 128, 64])
        assert changes == pytest.approx([100 * (0.8 / 0.784 * factor - 1)] * 3)
    assert figure.name == "again"
    assert "the band is ±1 %" in figure.caption


def test_what_else_differs_is_told(record):
    record("there", sources={"clocks.py": "6" * 64}, commit="d" * 40)
    path = runs.folder("there") / "manifest.json"
    stated = json.loads(path.read_text())
    stated["environment"]["packages"]["torch"] = "2.10.0"
    runs._write_manifest(path.parent, stated)
    record("here")
    shown = repeat.differences(found())
    rows = {name: (here, there) for name, here, there in shown.frame.itertuples(index=False, name=None)}
    assert rows["packages torch"] == ("2.11.0", "2.10.0")
    assert rows["measuring code"] == (f"commit {'c' * 7}", f"commit {'d' * 7}")
    assert rows["memory copy (GB/s)"][0] == rows["memory copy (GB/s)"][1]
    assert "The same in both: driver, cuda, cudnn, python, system, card and settings." in shown.note
    assert "Files of the measuring code that differ: 1." in shown.note


def test_the_target_is_among_what_is_compared(record):
    record("there")
    record("here")
    assert sum(case.shape == TARGET for case in found().cases) == 5
