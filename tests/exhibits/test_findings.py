"""What the paper shows first: which way a candidate differs under each timing, and the findings in a box."""

import numpy as np
import pytest
import synthetic
from reading import exhibit
from synthetic import climbed, inferred, lonely

from attnlab.exhibits.catalogue import Show
from attnlab.exhibits.display import Missing


def test_signs_are_the_speedups_of_the_verdicts_under_every_timing():
    results = inferred()
    assert results.leader() == "sdpa.flash"
    figure = Show(results)("verdicts.signs").content
    (axes,) = figure.figure.axes
    drawn = {line.get_label(): list(line.get_xdata()) for line in axes.get_lines() if line.get_marker() != "None"}
    assert list(drawn) == [str(timing) for timing in results.timings]
    for timing in results.timings:
        verdicts = [family.verdicts["sdpa.flash"] for family in results.families_under(timing).values()]
        np.testing.assert_allclose(drawn[str(timing)], [verdict.speedup.estimate for verdict in verdicts])
        decided = [verdict.decision for verdict in verdicts]
        counts = f"faster at {decided.count('faster')} of {len(decided)} by `{timing.clock}` {timing.cache}"
        assert counts in figure.caption
    assert axes.get_xscale() == "log"


def test_findings_are_those_that_a_run_has():
    box = Show(inferred())("verdicts.findings").content
    assert "**Published numbers.**" in box.text
    assert "**Power.**" not in box.text
    assert "**The ladder.** The fastest of" in Show(climbed())("verdicts.findings").content.text


def test_a_run_without_a_candidate_has_findings_and_no_signs():
    show = Show(lonely())
    assert isinstance(show("verdicts.signs").content, Missing)
    alone = "1. **Values.** At the target, all of this is of normal values alone.\n"
    assert show("verdicts.findings").content.text.startswith(f"{alone}2. **Published numbers.**")


def test_calibration_in_brief_is_that_of_runs_like_this_one():
    one = synthetic.infer(synthetic.Recipe(study=synthetic.AT_TARGET | {"replicates": 1}))
    several, single = (Show(run)("verdicts.calibration.brief").content for run in (inferred(), one))
    assert len(several.frame) == 6
    whole = exhibit(inferred, "verdicts.calibration").frame
    for brief, (replicates, processes) in ((several, (3, "differ")), (single, (1, "alike"))):
        like = whole[(whole["replicates"] == replicates) & (whole["processes"] == processes)]
        assert list(brief.frame["median covered"]) == list(like["median covered"])


@pytest.mark.parametrize("id", ["backends.peers.dots", "baseline.odd_lengths", "verdicts.signs"])
def test_a_run_that_lacks_it_says_so(id):
    assert isinstance(Show(lonely())(id).content, Missing)
