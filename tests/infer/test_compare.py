"""A run against the one before it: what is called slower, and what the noise between runs hides."""

import os
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import synthetic
from synthetic import Recipe, bare
from test_repeat import record

from attnlab import __main__
from attnlab.base import paths
from attnlab.infer import results
from attnlab.infer.compare import verdicts
from attnlab.study import studies

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
    names = dict.fromkeys(case.implementation for case in found)
    return {name: {case.verdict.decision for case in found if case.implementation == name} for name in names}


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
    here, there = (results.load(f"h200-scaling-again-{number}") for number in (1, 2))
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
    assert "name both" in capsys.readouterr().err
