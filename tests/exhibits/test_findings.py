"""What the paper shows first: which way a candidate differs under each timing, and the findings in a box."""

from types import SimpleNamespace

import numpy as np
import pytest
from reading import exhibit
from synthetic import climbed, inferred, lonely

from attnlab.exhibits.catalogue import Show
from attnlab.exhibits.display import Box, Figure, Missing
from attnlab.exhibits.verdicts import findings
from attnlab.study.studies import Timing


def test_the_leader_is_the_fastest_candidate_at_the_target():
    assert findings.leader(inferred()) == "sdpa.flash"


def test_signs_are_the_speedups_of_the_verdicts_under_every_timing():
    results = inferred()
    figure = Show(results)("verdicts.signs").content
    assert isinstance(figure, Figure)
    (axes,) = figure.figure.axes
    drawn = {line.get_label(): list(line.get_xdata()) for line in axes.get_lines() if line.get_marker() != "None"}
    assert list(drawn) == [str(timing) for timing in results.timings]
    for timing in results.timings:
        verdicts = [family.verdicts["sdpa.flash"] for family in results.families_under(timing).values()]
        np.testing.assert_allclose(drawn[str(timing)], [verdict.speedup.estimate for verdict in verdicts])
    assert axes.get_xscale() == "log"
    assert findings.counted(results) in figure.caption


def test_counts_add_up_to_the_shapes():
    results = inferred()
    said = findings.counted(results)
    for timing in results.timings:
        decided = [family.verdicts["sdpa.flash"].decision for family in results.families_under(timing).values()]
        assert f"of {len(decided)} by `{timing.clock}` {timing.cache}" in said
        if "faster" in decided:
            assert f"faster at {decided.count('faster')}" in said


HERE, THERE = (inferred().study.shapes[place] for place in (0, 1))


@pytest.mark.parametrize(
    ("other", "at", "title"),
    [
        (Timing(clock="eager", cache="warm"), HERE, "**The sign depends on the clock.** "),
        (Timing(clock="device", cache="cold"), HERE, "**The sign depends on the cache.** "),
        (Timing(clock="eager", cache="cold"), HERE, "**The sign depends on the clock and the cache.** "),
        (Timing(clock="eager", cache="warm"), THERE, "**Speed.** "),  # at another shape, where the first says nothing
    ],
)
def test_what_turns_a_sign_round_is_named(monkeypatch, other, at, title):
    faster, slower = (SimpleNamespace(decision=decision) for decision in ("faster", "slower"))
    found = {Timing(clock="device", cache="warm"): {HERE: faster}, other: {at: slower}}
    monkeypatch.setattr(findings, "_verdicts", lambda *_: found)
    assert findings._sign(inferred()).startswith(title)


def test_findings_are_those_that_a_run_has():
    box = Show(inferred())("verdicts.findings").content
    assert isinstance(box, Box)
    assert "**Published numbers.**" in box.text
    assert "**Power.**" not in box.text
    assert "**The ladder.** The fastest of" in Show(climbed())("verdicts.findings").content.text


def test_a_run_without_a_candidate_has_findings_and_no_signs():
    show = Show(lonely())
    assert isinstance(show("verdicts.signs").content, Missing)
    alone = "1. **Values.** At the target, all of this is of normal values alone.\n"
    assert show("verdicts.findings").content.text.startswith(f"{alone}2. **Published numbers.**")


def test_calibration_in_brief_is_that_of_runs_like_this_one():
    several, single = (Show(run())("verdicts.calibration.brief").content for run in (inferred, lonely))
    assert "five processes" in several.caption
    assert list(several.frame["samples"]) == list(single.frame["samples"])
    assert len(several.frame) == 6
    whole = exhibit(inferred, "verdicts.calibration.table").frame
    like = whole[(whole["replicates"] == 5) & (whole["processes"] == "differ")]
    assert list(several.frame["median covered"]) == list(like["median covered"])


@pytest.mark.parametrize("id", ["backends.peers.dots", "baseline.odd_lengths", "verdicts.signs"])
def test_a_run_that_lacks_it_says_so(id):
    assert isinstance(Show(lonely())(id).content, Missing)
