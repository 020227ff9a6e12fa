"""A card beside busy neighbours and alone: runs whose replicates take chosen times as long."""

import numpy as np
import pytest
import synthetic
from scipy.stats import t
from synthetic import Recipe

from attnlab.exhibits.environment import cards
from attnlab.infer.machine import neighbours

pytestmark = pytest.mark.usefixtures("data")

PACES = (1.0, 1.002, 1.0, 1.002)
ALONE = tuple(("a", pace) for pace in PACES)


def record(
    name: str, cards: tuple[tuple[str, float], ...], study: str = "scaling", device: str = "NVIDIA H200"
) -> None:
    stated = synthetic.AT_TARGET | {"name": study, "replicates": len(cards), "implementations": ["sdpa.auto"]}
    synthetic.write(name, Recipe(device, stated, fates={}, cards=cards))


def test_the_card_is_compared_with_itself_and_not_with_its_neighbour():
    record("alone", ALONE)
    record("beside", (("a", 1.01), ("b", 1.5), ("a", 1.012), ("b", 1.5)))
    (found,) = neighbours.compared("NVIDIA H200")
    assert (found.alone.name, found.beside.name) == ("alone", "beside")
    ratio = found.ratio
    two, four = np.log([1.01, 1.012]), np.log(PACES)
    middle = two.mean() - four.mean()
    # Two and four replicates, whose variances are pooled with four degrees of freedom.
    error = np.sqrt((two.var() * 2 + four.var() * 4) / 4 * (1 / 2 + 1 / 4))
    either = t.ppf(0.975, 4) * error
    expected = np.exp([middle, middle - either, middle + either])
    assert [ratio.estimate, ratio.low, ratio.high] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("paces", "decision"),
    [
        ((1.0, 1.002), "equivalent"),
        ((1.1, 1.102), "slower"),
        ((0.9, 0.902), "faster"),
        ((0.9, 1.1), "inconclusive"),
    ],
)
def test_what_is_decided_follows_from_the_interval(paces, decision):
    record("alone", ALONE)
    record("beside", (("a", paces[0]), ("b", 1.0), ("a", paces[1]), ("b", 1.0)))
    timing = synthetic.inferred().headline
    assert neighbours.agreed(neighbours.compared("NVIDIA H200")) == {timing: decision}
    frame = cards.beside(synthetic.inferred()).frame
    assert frame[["verdict", "cards"]].to_numpy().tolist() == [[decision, 2]]


def test_pairs_that_disagree_decide_nothing():
    for card, pace in (("a", 1.0), ("c", 1.1)):
        record(f"{card}-alone", tuple((card, each) for each in PACES))
        record(f"{card}-beside", ((card, pace), ("x", 1.0), (card, pace * 1.002), ("x", 1.0)))
    found = neighbours.compared("NVIDIA H200")
    assert {one.decision for one in found} == {"equivalent", "slower"}
    assert set(neighbours.agreed(found).values()) == {"inconclusive"}


@pytest.mark.parametrize(
    ("card", "stated"), [("a", {"study": "backends"}), ("a", {"device": "NVIDIA H100 80GB HBM3"}), ("c", {})]
)
def test_a_run_of_another_study_device_or_card_is_no_pair(card, stated):
    record("alone", ALONE)
    record("beside", ((card, 1.0), ("b", 1.0), (card, 1.0), ("b", 1.0)), **stated)
    assert not neighbours.compared("NVIDIA H200")
    assert cards.beside(synthetic.inferred()) is None
