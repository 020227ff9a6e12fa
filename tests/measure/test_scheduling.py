"""How the replicates of a study are shared out among cards."""

from collections import Counter

import pytest
from conftest import TINY, tiny_study

from attnlab.measuring.cluster import scheduling
from attnlab.measuring.session.subject import Job

LENGTHS = [16, 32, 48, 64, 80, 96, 112]
UNEVEN = (1.0, 1.0, 2.0, 3.0, 5.0, 8.0, 13.0)
GRID = [(1, 1), (5, 1), (5, 2), (5, 4), (4, 4), (3, 4), (1, 3), (2, 7), (5, 16)]


def jobs(replicates):
    study = tiny_study(replicates=replicates, sweeps={"seq_len": TINY["target"] | {"seq_len": LENGTHS}})
    return [Job("one", study, "cpu", number, study.shapes, "") for number in range(replicates)]


def seconds(asked):
    return dict(zip(asked[0].study.shapes, UNEVEN, strict=True))


def measured(asked, cards, slower=1.0):
    """Who measures what, as (card, replicate, shape), and when the last of the cards ends; each takes when it is free.

    Args:
        slower: how many times longer the last card takes than the others.
    """
    each_s, turns = seconds(asked), []
    waiting = scheduling.pieces(asked, each_s, cards)
    taken = {str(card): Counter() for card in range(cards)}
    ends_s, now_s = dict.fromkeys(taken, 0.0), 0.0
    while waiting:
        for card in [card for card, end_s in ends_s.items() if end_s <= now_s]:
            chosen = scheduling.choose(waiting, card, taken)
            if chosen is not None:
                number, piece = waiting.pop(chosen)
                taken[card][number] += 1
                turns += [(card, piece.replicate, shape) for shape in piece.shapes]
                took_s = sum(each_s[shape] for shape in piece.shapes)
                ends_s[card] = now_s + took_s * (slower if card == str(cards - 1) else 1)
        now_s = min((end_s for end_s in ends_s.values() if end_s > now_s), default=now_s)
    return turns, max(ends_s.values())


@pytest.mark.parametrize(("replicates", "cards"), GRID)
def test_every_shape_of_every_replicate_is_taken_once(replicates, cards):
    asked = jobs(replicates)
    turns, _ = measured(asked, cards)
    assert Counter(turn[1:] for turn in turns) == Counter(
        (job.replicate, shape) for job in asked for shape in job.shapes
    )


@pytest.mark.parametrize(("replicates", "cards"), GRID)
@pytest.mark.parametrize("slower", [1.0, 10.0])
def test_the_replicates_of_a_shape_spread_over_the_cards(replicates, cards, slower):
    asked = jobs(replicates)
    turns, _ = measured(asked, cards, slower=slower)
    for shape in asked[0].shapes:
        times = Counter(card for card, _, measured_shape in turns if measured_shape == shape)
        assert len(times) == min(replicates, cards)
        assert max(times.values()) - min(times.get(card, 0) for card in map(str, range(cards))) <= 1


@pytest.mark.parametrize(("replicates", "cards"), GRID)
def test_all_cards_end_within_two_shapes_of_each_other(replicates, cards):
    _, end_s = measured(jobs(replicates), cards)
    assert end_s - replicates * sum(UNEVEN) / cards <= 2 * max(UNEVEN)


def test_a_long_study_is_cut_into_pieces_that_a_worker_may_lose(monkeypatch):
    monkeypatch.setattr(scheduling, "PIECE_S", 13.0)
    asked = jobs(2)
    each_s = seconds(asked)
    cut = scheduling.pieces(asked, each_s, 1)
    assert [sum(each_s[shape] for shape in piece.shapes) for _, piece in cut] == 2 * [12.0, 8.0, 13.0]
