"""Each rung against the one before it, the fastest against SDPA, and the lead of the best kernel, by chosen paces."""

import pytest
import synthetic
from synthetic import PACE, RUNGS, SHORT, TARGET, climbed, inferred, latency_us

from attnlab.infer.kernels import leads, steps
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.stats import Interval


def test_each_rung_is_compared_with_the_one_that_it_builds_on():
    found = dict(zip(RUNGS, steps.steps(climbed(), TARGET), strict=True))
    speedups = {name: step.verdict.speedup.estimate for name, step in found.items() if step.verdict}
    assert speedups == pytest.approx({"tiled": 2.5, "mma": 0.8, "swizzled": 4.0}, rel=1e-3)
    assert found["naive"].without is None
    assert found["pipelined"].without[0] == found["wgmma"].without[0] == "kernel.pipelined"
    assert found["wgmma"].outcome is None
    assert found["swizzled"].share_pct == pytest.approx(75, abs=0.1)  # of the 4 that 5.00× would gain


def test_the_ablation_is_a_family_of_its_own():
    pairs = [("kernel.naive", "kernel.tiled"), ("sdpa.auto", "sdpa.cudnn")]
    together = climbed().compare_pairs(pairs, TARGET)
    alone = [climbed().compare_pairs([pair], TARGET)[0] for pair in pairs]
    assert together[0].pvalue == pytest.approx(2 * alone[0].pvalue)
    assert [verdict.speedup for verdict in together] == [verdict.speedup for verdict in alone]
    assert climbed().compare_pairs([], TARGET) == []


@pytest.mark.parametrize(
    ("expected", "measured", "outcome"),
    [
        (1.5, (1.5, 1.49, 1.51), "reached"),
        (1.5, (1.47, 1.46, 1.48), "reached"),  # within 2 %
        (1.5, (1.4, 1.39, 1.41), "missed"),
        (1.5, (1.6, 1.55, 1.65), "exceeded"),
        (1.5, (1.2, 0.9, 1.6), "reached"),  # inconclusive
    ],
)
def test_what_became_of_an_expectation(expected, measured, outcome):
    assert steps.outcome(expected, Interval(*measured)) == outcome


def test_where_the_fastest_rung_stands():
    found = steps.standing(climbed())
    assert (found.rungs, found.timed, found.best, found.rival) == (6, 5, "kernel.wgmma", "sdpa.flash")
    assert found.median_us.estimate == pytest.approx(36, rel=5e-3)
    assert found.verdicts[climbed().headline].speedup.estimate == pytest.approx(0.8 / 0.9, rel=1e-3)
    assert steps.standing(inferred()) is None


def test_the_best_is_set_against_whoever_else_is_the_fastest_at_each_shape():
    (found,) = leads.of_best(synthetic.led())
    assert {shape: lead.over for shape, lead in found.by_shape.items()} == {
        shape: "peer.flash4" if shape == TARGET else "sdpa.flash" for shape in synthetic.led().study.shapes
    }
    slowest = latency_us("sdpa.flash", SHORT) / latency_us("kernel.best", SHORT)
    assert found.ends == pytest.approx((slowest, PACE["peer.flash4"] / PACE["kernel.best"]), rel=0.01)
    assert found.ahead == len(found.by_shape) - 1
    assert 0 < found.large < len(found.by_shape)
    with pytest.raises(NotMeasured, match=r"`kernel\.best` was measured beside no other implementation"):
        leads.of_best(climbed())


@pytest.mark.parametrize(("low", "high", "sign"), [(1.01, 1.1, 1), (0.9, 0.99, -1), (0.9, 1.1, 0)])
def test_a_lead_has_a_sign_where_its_interval_leaves_out_1(low, high, sign):
    assert leads.Lead("kernel.mma", "sdpa.flash", Interval(1.0, low, high)).sign == sign
