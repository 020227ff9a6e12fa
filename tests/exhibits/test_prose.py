"""Sentences say what the tables hold."""

import pytest
import synthetic
from reading import plain
from synthetic import AT_TARGET, CPU, TARGET, Recipe, inferred, lonely

from attnlab.exhibits.catalogue import Show
from attnlab.exhibits.environment import clocks
from attnlab.exhibits.verdicts import findings


@pytest.mark.parametrize("run", [inferred, lonely])
def test_a_line_says_which_run_is_shown(run):
    bundle, _ = Show(run())._repr_mimebundle_()
    day = run().run.manifest["created"][:10]
    device = run().run.manifest["device"]["name"]
    assert bundle["text/plain"] == f"run synthetic · {device} · {day} · attnlab 0.1.0"
    assert bundle["text/html"] == f'<p class="meta">{bundle["text/plain"]}</p>'


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
