"""Sentences say what the tables hold."""

import pytest
import synthetic
from reading import plain
from synthetic import AT_TARGET, CPU, TARGET, Recipe

from attnlab.exhibits.environment import clocks
from attnlab.exhibits.verdicts import findings


@pytest.mark.parametrize(
    ("stated", "fates", "why"),
    [
        ({"timings": CPU["timings"][:1]}, {}, "it lacks the clocks of the study (device warm)."),
        ({}, {("sdpa.auto", TARGET): ("skipped", "no backend.")}, "`sdpa.auto` skipped, no backend."),
    ],
)
def test_a_run_without_samples_says_why_and_its_links_lead_somewhere(stated, fates, why):
    alone = {"implementations": ["sdpa.auto"], "sweeps": AT_TARGET["sweeps"]}
    run = synthetic.infer(Recipe("Imaginary X1", CPU | alone | stated, fates=fates))
    assert len(run.run.samples) == 0
    assert f"Nothing was timed on the CPU (Imaginary X1, 2 threads): {why}" == plain(findings.abstract(run))
    assert len(clocks.clocks(run).frame) == len(run.study.timings)
