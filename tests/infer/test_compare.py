"""A run beside another: what was found again, what moved, and what is slower in spite of the noise between runs."""

import json
import os
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import synthetic
from synthetic import ORDINARY, TARGET, Recipe, bare

from attnlab import __main__
from attnlab.base import paths
from attnlab.exhibits.baseline import reproducibility
from attnlab.exhibits.display import Group, Prose
from attnlab.infer import results
from attnlab.infer.compare import repeat, verdicts
from attnlab.infer.compare.repeat import Repetition
from attnlab.runs import read, schema, write
from attnlab.study import studies

SHARED = 36  # eight shapes, five implementations, four cases without a latency
LONG_ENOUGH = 20  # of these by hand: 5 at the target, 4 at S=256, 4 at H=8, 3 at B=1, 3 causal, 1 at S=64
FASTER = {"sdpa.flash": 0.784, "sdpa.cudnn": 1.0}
"""Paces in another run: 0.8 / 0.784 is 2.04 % more, 1.005 / 1 is 0.5 % more."""
TWO = {
    "implementations": ["sdpa.auto", "sdpa.flash"],
    "sweeps": {"seq_len": [synthetic.AXES | {"seq_len": [128, 256]}]},
}
SMALL = Recipe(study=TWO, fates={})
"""Two implementations at the target and one longer shape, for what does not depend on how many cases there are."""


def record(name: str, recipe: Recipe = ORDINARY, mhz: int = 2000, apart: float = 0, **changes: Any) -> None:
    """Write a run with another pace, SM clock, scatter of replicates or manifest than the ordinary one."""
    samples, manifest = synthetic._samples, synthetic.manifest
    pace = changes.pop("pace", {})

    def drawn(*arguments: Any) -> Any:
        frame, where = samples(*arguments), arguments[3]
        scale = 1 + apart * where["replicate"]
        return frame.assign(sm_clock_mhz=mhz, latency_us=frame["latency_us"] * scale).astype({"sm_clock_mhz": "Int32"})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(synthetic, "PACE", synthetic.PACE | pace)
        patch.setattr(synthetic, "_samples", drawn)
        patch.setattr(synthetic, "manifest", lambda *arguments: manifest(*arguments) | changes)
        synthetic.write(name, recipe)


def found(name: str = "here") -> Repetition:
    return repeat.find(bare(name))


def text(repetition: Repetition) -> str:
    return reproducibility.words(repetition).markdown


def beside(there: dict[str, Any], here: dict[str, Any]) -> Repetition:
    """Two runs that are written now, found beside each other."""
    with synthetic.folders():
        record("there", **there)
        record("here", **here)
        return found()


@pytest.fixture(scope="module")
def moved() -> Repetition:
    """The other run had a faster `sdpa.flash`, and was recorded a day before."""
    return beside({"pace": FASTER, "created": "2026-11-20T09:00:00+00:00"}, {"created": "2026-11-21T10:30:00+00:00"})


@pytest.fixture(scope="module")
def by_clock() -> Repetition:
    """The other run had a higher SM clock, and was faster by that much."""
    return beside({"pace": FASTER, "mhz": 2040}, {})


def test_what_was_found_again_and_what_moved(moved):
    repetition = moved
    assert len(repetition.shared) == SHARED
    assert len(repetition.cases) == LONG_ENOUGH
    assert [(case.implementation, case.shape.seq_len, case.shape.heads) for case in repetition.moved] == [
        ("sdpa.flash", *where) for where in ((128, 4), (256, 4), (128, 8))
    ]
    changes = {case.implementation: case.change.estimate for case in repetition.cases}
    assert changes["sdpa.flash"] == pytest.approx(100 * (0.8 / 0.784 - 1))
    assert changes["sdpa.cudnn"] == pytest.approx(0.5)
    assert changes["sdpa.auto"] == pytest.approx(0)
    assert repetition.moved_surely == 3
    assert repetition.moved_in_cycles_pct == pytest.approx([100 * (0.8 / 0.784 - 1)] * 3)
    told = text(repetition)
    assert "`there`, was begun on 2026-11-20, 09:00 UTC in 2 replicates; this one on 2026-11-21, 10:30 UTC" in told
    assert "Of these, 17 have medians within 1 % of each other, and 3 moved, 3 of them with the whole interval" in told


def test_what_the_clock_moved_has_not_moved_in_cycles(by_clock):
    flash = by_clock.moved[0]
    assert (flash.here.sm_clock_mhz, flash.there.sm_clock_mhz, flash.here.throttled_pct) == (2000, 2040, 2.5)
    assert flash.cycles_pct == pytest.approx(100 * (0.8 / 0.784 * 2000 / 2040 - 1))
    assert by_clock.moved_in_cycles_pct == []
    row = reproducibility.moved(by_clock).frame.iloc[0]
    columns = ["SM clock here (MHz)", "SM clock there (MHz)", "throttled here", "throttled there", "in cycles"]
    assert row[columns].tolist() == [2000, 2040, 2.5, 2.5, flash.cycles_pct]


def test_replicates_scatter_within_each_run_beside_what_lies_between_the_two():
    repetition = beside({"recipe": SMALL, "apart": 0.002}, {"recipe": SMALL, "apart": 0.004})
    assert len(repetition.cases) == 4
    for case in repetition.cases:
        m = case.here.samples[0]
        pooled = np.median(np.concatenate([m, 1.004 * m]))
        assert case.here.spread_pct == pytest.approx(100 * 0.004 * np.median(m) / pooled)
    (here, half), (there, _), (between, _) = repetition.scatter.values()
    assert (here, half, there, between) == pytest.approx((0.4, 0.4, 0.2, 0.1), abs=0.01)


def test_a_kernel_whose_source_changed_is_left_out():
    two = ["kernel.mma", "kernel.swizzled"]
    climb = Recipe(study=TWO | {"implementations": [*TWO["implementations"], *two]}, fates={})
    kernels = dict(zip(two, ("8" * 64, "7" * 64), strict=True))
    repetition = beside({"recipe": climb, "kernels": kernels}, {"recipe": climb})
    assert repetition.changed == ["kernel.mma"]
    compared = {key[0] for key in repetition.shared}
    assert "kernel.mma" not in compared
    assert "kernel.swizzled" in compared


def test_the_run_that_shares_most_is_taken_and_of_two_the_newer(data):
    lengths = {"sweeps": {"seq_len": synthetic.STUDY["sweeps"]["seq_len"]}}
    four = Recipe(study=synthetic.AT_TARGET | TWO | lengths, fates={})
    record("old", four, created="2026-11-01T09:00:00+00:00")
    record("new", four, created="2026-11-02T09:00:00+00:00")
    record("few", SMALL, created="2026-11-03T09:00:00+00:00")
    record("here", four, created="2026-11-04T09:00:00+00:00")
    assert found().there.run.name == "new"
    assert found("few").there.run.name == "here"


def test_what_is_no_other_run_of_the_device_is_not_compared(data):
    record("here", SMALL)
    record("other-device", Recipe(device="NVIDIA L4", study=TWO, fates={}))
    record("cut", Recipe(study=TWO, fates={}, shapes=1))
    record("eager", Recipe(study=TWO | {"timings": synthetic.STUDY["timings"][1:]}, fates={}))
    record("changed", SMALL)
    manifest = schema.folder("changed") / "manifest.json"
    manifest.write_text(manifest.read_text().replace("H200", "H20O"))
    copy = schema.folder("here").with_name("copied")
    copy.mkdir()
    for path in schema.folder("here").iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    shown = reproducibility.reproducibility(bare("here"))
    assert isinstance(shown, Prose)
    assert shown.markdown == "*No other complete run here, on NVIDIA H200, shares a case with this one.*"


def test_on_a_cpu_there_are_no_clocks_to_show(data):
    cpu = Recipe(device="Imaginary X1", study=synthetic.CPU | TWO)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(synthetic, "PACE", synthetic.PACE | FASTER)
        synthetic.write("there", cpu)
    synthetic.write("here", cpu)
    shown = reproducibility.reproducibility(results.of(read.load("here")))
    assert isinstance(shown, Group)
    assert list(shown.parts) == ["words", "moved", "differences"]
    words, table, _ = shown.parts.values()
    assert "cycles" not in words.markdown
    assert "nan" not in words.markdown
    assert not [title for title in table.frame if title.startswith(("SM clock", "throttled", "in cycles"))]


def test_what_else_differs_is_listed(data):
    record("there", SMALL, sources={"measure/clocks/cuda_events.py": "6" * 64}, commit="d" * 40)
    path = schema.folder("there") / "manifest.json"
    stated = json.loads(path.read_text())
    stated["environment"]["packages"]["torch"] = "2.10.0"
    write._write_manifest(path.parent, stated)
    record("here", SMALL)
    repetition = found()
    differences = repeat.differences(repetition.here, repetition.there)
    rows = {name: (here, there) for name, here, there in differences.rows}
    assert rows["packages torch"] == ("2.11.0", "2.10.0")
    assert rows["measuring code"] == (f"commit {'c' * 7}", f"commit {'d' * 7}")
    assert rows["memory copy (GB/s)"][0] == rows["memory copy (GB/s)"][1]
    assert differences.same == ["driver", "cuda", "cudnn", "python", "system", "card", "settings"]
    assert differences.files == 1
    assert len(reproducibility.differences(repetition).frame) == len(rows)


def test_runs_that_agree():
    repetition = beside({"recipe": SMALL}, {"recipe": SMALL})
    assert sum(case.shape == TARGET for case in repetition.cases) == 2
    assert "Of these, 4 have medians within 1 % of each other: none moved." in text(repetition)


STATED: dict[str, Any] = {
    "sweeps": {"seq_len": [synthetic.AXES | {"seq_len": [128, 256]}]},
    "implementations": ["sdpa.auto", "sdpa.flash", "sdpa.cudnn", "sdpa.efficient"],
    "timings": synthetic.STUDY["timings"][:1],
}
SHAPES = studies.parse(synthetic.STUDY | STATED, "stated").shapes


def recipe(by: float = 1.0, *names: str, **changes: Any) -> Recipe:
    """A run in which these implementations take so many times as long at these shapes."""
    slowed = {(name, shape): by * synthetic.latency_us(name, shape) for name in names for shape in SHAPES}
    return Recipe(study=STATED | changes, fates={}, latencies_us=slowed)


def judged(before: Recipe, after: Recipe) -> dict[str, set[str]]:
    """The decisions on each implementation."""
    found = verdicts.compare(synthetic.infer(after), synthetic.infer(before))
    decisions: dict[str, set[str]] = {}
    for case in found:
        decisions.setdefault(case.change.implementation, set()).add(case.verdict.decision)
    return decisions


def test_what_is_slower_by_more_than_noise_and_margin_is_called_so_and_nothing_else():
    equivalent = {name: {"equivalent"} for name in STATED["implementations"]}
    assert judged(recipe(), recipe()) == equivalent
    assert judged(recipe(), recipe(1.03, "sdpa.flash")) == equivalent | {"sdpa.flash": {"slower"}}
    assert judged(recipe(1.03, "sdpa.flash"), recipe()) == equivalent | {"sdpa.flash": {"faster"}}
    # Ten times as far as its interval reaches, and within the margin.
    assert judged(recipe(), recipe(1.015, "sdpa.flash")) == equivalent


def test_what_moves_with_those_that_did_not_change_is_noise():
    every = STATED["implementations"]
    assert judged(recipe(), recipe(1.03, *every)) == {name: {"inconclusive"} for name in every}
    # Where they move at two of five shapes, it is noise at these.
    five = {"sweeps": {"seq_len": [synthetic.AXES | {"seq_len": [32, 64, 128, 256, 512]}]}}
    some = judged(recipe(**five), recipe(1.03, *every, **five))
    assert some == {name: {"inconclusive", "equivalent"} for name in every}
    # On another device, or under other packages, the difference is what is asked for.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verdicts, "unchanged", lambda here, there: set())
        assert judged(recipe(), recipe(1.03, *every)) == {name: {"slower"} for name in every}


def test_what_did_not_change():
    with synthetic.folders():
        record("before", synthetic.LADDER)
        kernels = {f"kernel.{name}": "7" * 64 for name in synthetic.RUNGS}
        record("edited", synthetic.LADDER, kernels=kernels | {"kernel.mma": "8" * 64})
        record("other", Recipe(device="NVIDIA L4"))
        before, edited, other = (bare(name) for name in ("before", "edited", "other"))
        assert verdicts.unchanged(edited, before) == set(before.study.implementations) - {"kernel.mma"}
        assert verdicts.unchanged(other, before) == set()
        before.run.manifest["environment"]["packages"]["torch"] = "2.10.0"
        assert verdicts.unchanged(edited, before) == set()


def test_within_what_the_controls_show_nothing_is_slower():
    slowed = recipe(1.03, "sdpa.flash")
    assert judged(recipe(), replace(slowed, control_pace=1.0))["sdpa.flash"] == {"slower"}
    assert judged(recipe(), replace(slowed, control_pace=1.05))["sdpa.flash"] == {"inconclusive"}


def test_two_recorded_runs_of_one_commit_show_nothing(monkeypatch):
    monkeypatch.setenv("ATTNLAB_DATA", os.fspath(paths.ROOT / "data"))
    here, there = (results.load(f"h200-scaling-{number}") for number in (1, 2))
    counts = Counter(case.verdict.decision for case in verdicts.compare(here, there))
    assert counts.keys() == {"equivalent", "inconclusive"}


def test_the_command_fails_with_a_status_of_its_own_where_it_is_asked_to(data, capsys):
    record("before", recipe())
    record("after", recipe(1.03, "sdpa.flash"))
    assert __main__.main(["compare", "before", "after"]) == 0
    out, error = capsys.readouterr()
    assert out.splitlines()[1].split()[:3] == ["▼", "slower", "sdpa.flash"]
    assert (
        "`after` against `before`: 2 slower, 0 faster, 0 inconclusive and 6 equivalent (within ±2 %), of 8 cases."
        in out
    )
    assert error == ""
    assert __main__.main(["compare", "before", "after", "--fail-if", "slower", "--markdown"]) == 3
    out, error = capsys.readouterr()
    assert error == "attnlab: 2 of 8 cases are slower in 'after'\n"
    slower, others = out.split("<details>")
    assert slower.count("| ▼ slower | sdpa.flash |") == 2
    assert others.count("| = equivalent |") + others.count("verdict = equivalent") >= 1
    assert __main__.main(["compare", "after", "before", "--fail-if", "slower"]) == 0


def test_runs_that_share_nothing_are_one_line(data, capsys):
    record("before", recipe())
    record("after", recipe(timings=synthetic.STUDY["timings"][1:]))
    assert __main__.main(["compare", "before", "after"]) == 1
    said = "attnlab: `before` and `after` share no case under the same timing: name runs that do\n"
    assert capsys.readouterr() == ("", said)
    assert __main__.main(["compare", "before", ""]) == 1
    assert "two runs are compared: name" in capsys.readouterr().err
