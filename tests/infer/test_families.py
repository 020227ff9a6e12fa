"""What flips verdicts, and counts of them."""

import pytest

from attnlab.infer.families import disagree, flipping_axes, opposed, tally
from attnlab.infer.stats import Interval, Verdict
from attnlab.study.studies import Timing

DEVICE, EAGER, COLD, EAGER_COLD = (
    Timing(clock=clock, cache=cache) for cache in ("warm", "cold") for clock in ("device", "eager")
)


def verdict(decision: str, claimable: bool = False) -> Verdict:
    return Verdict(decision, claimable, Interval(1.0, 1.0, 1.0), 0.0, 0.0, 1.0)


FASTER, SLOWER, EQUIVALENT = map(verdict, ("faster", "slower", "equivalent"))


@pytest.mark.parametrize(
    ("judged", "axes"),
    [
        ([{DEVICE: FASTER, EAGER: SLOWER}], ["clock"]),
        ([{DEVICE: SLOWER, COLD: FASTER}], ["cache"]),
        ([{DEVICE: FASTER, EAGER_COLD: SLOWER}], ["clock", "cache"]),
        ([{DEVICE: FASTER, EAGER: SLOWER, EAGER_COLD: SLOWER}], ["clock"]),
        ([{DEVICE: FASTER, EAGER: SLOWER}, {DEVICE: FASTER, COLD: SLOWER}], ["clock", "cache"]),
        ([{DEVICE: FASTER}, {EAGER: SLOWER}], []),  # at another shape
        ([{DEVICE: FASTER, EAGER: EQUIVALENT}], []),
        ([], []),
    ],
)
def test_the_axes_that_flip_a_verdict_are_those_that_do_so_alone(judged, axes):
    assert flipping_axes(judged) == axes


def test_verdicts_are_opposed_or_disagree():
    assert opposed(SLOWER, FASTER)
    assert not opposed(FASTER, FASTER)
    assert not opposed(SLOWER, EQUIVALENT)
    assert disagree({DEVICE: FASTER, EAGER: EQUIVALENT})
    assert not disagree({DEVICE: FASTER, EAGER: FASTER})


def test_claimable_verdicts_are_counted_among_the_faster():
    counts = tally([FASTER, verdict("faster", claimable=True), SLOWER])
    assert (counts["faster"], counts["claimable"], counts["slower"], counts["equivalent"]) == (2, 1, 1, 0)
