"""How replicates are shared out among cards."""

from collections import Counter
from dataclasses import replace

import pytest
from conftest import TINY, tiny_study

from attnlab.measure.cluster.deal import deal
from attnlab.measure.session.subject import Job

LENGTHS = [16, 32, 48, 64, 80, 96, 112]
UNEVEN = dict(zip(LENGTHS, (1.0, 1.0, 2.0, 3.0, 5.0, 8.0, 13.0), strict=True))


def jobs(replicates, stream=0):
    axes = TINY["target"] | {"seq_len": LENGTHS}
    study = tiny_study(replicates=replicates, sweeps={"seq_len": axes}, stream=stream)
    return [Job("one", study, "cpu", number, study.shapes, "", bool(stream)) for number in range(replicates)]


def seconds(shape):
    return UNEVEN[shape.seq_len]


def never(card, shape):
    return 0


def idle(cards):
    return {f"card {number}": 0.0 for number in range(cards)}


def turns(dealt):
    return [(card, job.replicate, shape) for card, mine in dealt.items() for job in mine for shape in job.shapes]


GRID = [(1, 1), (5, 1), (5, 2), (5, 4), (4, 4), (3, 4), (1, 3), (2, 7), (5, 16)]


@pytest.mark.parametrize(("replicates", "cards"), GRID)
def test_every_turn_is_dealt_once(replicates, cards):
    asked = jobs(replicates)
    dealt = turns(deal(asked, seconds, idle(cards), never))
    assert Counter(turn[1:] for turn in dealt) == Counter(
        (job.replicate, shape) for job in asked for shape in job.shapes
    )


@pytest.mark.parametrize(("replicates", "cards"), GRID)
def test_the_replicates_of_a_shape_spread_over_the_cards(replicates, cards):
    dealt = turns(deal(jobs(replicates), seconds, idle(cards), never))
    for shape in jobs(1)[0].shapes:
        times = Counter(card for card, _, dealt_shape in dealt if dealt_shape == shape)
        assert len(times) == min(replicates, cards)
        assert max(times.values()) - min(times.get(card, 0) for card in idle(cards)) <= 1


@pytest.mark.parametrize(("replicates", "cards"), GRID)
def test_all_cards_end_within_a_shape_of_each_other(replicates, cards):
    dealt = turns(deal(jobs(replicates), seconds, idle(cards), never))
    took = Counter(dict.fromkeys(idle(cards), 0.0))
    for card, _, shape in dealt:
        took[card] += seconds(shape)
    assert max(took.values()) - replicates * sum(UNEVEN.values()) / cards <= max(UNEVEN.values())


def test_a_card_starts_few_processes():
    dealt = deal(jobs(5), seconds, idle(4), never)
    assert max(len(mine) for mine in dealt.values()) == 2
    assert sum(len(mine) for mine in dealt.values()) <= 5 + 4 - 1


def test_a_card_that_is_busy_gets_less():
    total_s = 2 * sum(UNEVEN.values())
    dealt = deal(jobs(2), lambda shape: 1.0, {"free": 0.0, "busy": 4.0}, never)
    assert [sum(len(job.shapes) for job in dealt[card]) for card in ("free", "busy")] == [9, 5]
    dealt = deal(jobs(2), seconds, {"free": 0.0, "taken": 2 * total_s}, never)
    assert dealt["taken"] == []


def test_a_run_that_goes_on_uses_other_cards_than_before():
    # Replicate 0 was measured by the first card alone; what is left keeps away from it as far as it can.
    left = [replace(job, shapes=job.shapes[:3]) for job in jobs(3)[1:]]

    def before(card, shape):
        return int(card == "card 0")

    dealt = deal(left, lambda shape: 1.0, idle(3), before)
    assert len({card for card, *_ in turns(dealt)}) == 3
    (one,) = turns(deal([replace(left[0], shapes=left[0].shapes[:1])], seconds, idle(2), before))
    assert one[0] == "card 1"


def test_a_stream_follows_the_shapes_of_its_replicate_where_they_stay_together():
    whole = deal(jobs(2, stream=5), seconds, idle(2), never)
    assert [job.stream for mine in whole.values() for job in mine] == [True, True]
    cut = deal(jobs(1, stream=5), seconds, idle(2), never)
    assert [job.stream for mine in cut.values() for job in mine] == [False, False]
