"""What the paper shows first: the findings in a box, and the calibration in brief."""

import pytest
import synthetic
from reading import exhibit
from synthetic import climbed, inferred, lonely

from attnlab.exhibits.catalogue import Show
from attnlab.exhibits.display import Missing


def test_findings_are_those_that_a_run_has():
    box = Show(inferred())("verdicts.findings").content
    assert "**Published numbers.**" in box.text
    assert "**Power.**" not in box.text
    assert "**The ladder.** The fastest of" in Show(climbed())("verdicts.findings").content.text


def test_a_run_without_a_candidate_has_findings():
    show = Show(lonely())
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


@pytest.mark.parametrize("id", ["backends.peers.dots", "baseline.odd_lengths"])
def test_a_run_that_lacks_it_says_so(id):
    assert isinstance(Show(lonely())(id).content, Missing)
