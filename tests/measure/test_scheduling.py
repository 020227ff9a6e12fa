"""How the replicates of a study are shared out among workers."""

from collections import Counter

import pytest
from conftest import TINY, tiny_study

from attnlab.measuring.session.subject import Job

pytest.importorskip("distributed")
from attnlab.measuring import cluster

LENGTHS = [16, 32, 48, 64, 80, 96, 112]
UNEVEN = (1.0, 1.0, 2.0, 3.0, 5.0, 8.0, 13.0)
GRID = [(1, 1), (5, 1), (5, 2), (5, 4), (4, 4), (3, 4), (1, 3), (2, 7), (5, 16)]


def jobs(replicates):
    study = tiny_study(replicates=replicates, sweeps={"seq_len": TINY["target"] | {"seq_len": LENGTHS}})
    return [Job("one", study, "cpu", number, study.shapes, "") for number in range(replicates)]


def seconds(asked):
    return dict(zip(asked[0].study.shapes, UNEVEN, strict=True))


@pytest.mark.parametrize(("replicates", "workers"), GRID)
def test_every_shape_is_taken_once_in_each_replicate_by_different_workers_at_about_the_same_time(replicates, workers):
    asked = jobs(replicates)
    each_s = seconds(asked)
    waiting = cluster.pieces(asked, each_s, workers)
    turns, taken, ends_s, now_s = [], {worker: Counter() for worker in range(workers)}, [0.0] * workers, 0.0
    while waiting:
        for worker in [worker for worker, end_s in enumerate(ends_s) if end_s <= now_s][: len(waiting)]:
            number, piece = waiting.pop(cluster.choose([number for number, _ in waiting], taken[worker]))
            taken[worker][number] += 1
            turns += [(worker, piece.replicate, shape) for shape in piece.shapes]
            ends_s[worker] = now_s + sum(each_s[shape] for shape in piece.shapes)
        now_s = min((end_s for end_s in ends_s if end_s > now_s), default=now_s)
    assert Counter(turn[1:] for turn in turns) == Counter(
        (job.replicate, shape) for job in asked for shape in job.shapes
    )
    for shape in asked[0].shapes:
        assert len({worker for worker, _, taken_shape in turns if taken_shape == shape}) == min(replicates, workers)
    assert max(ends_s) - replicates * sum(UNEVEN) / workers <= 2 * max(UNEVEN)


def test_a_worker_begins_with_what_a_run_needs_once():
    assert cluster.choose([1, None, 0], Counter()) == 1


def test_a_long_study_is_cut_into_pieces_that_a_worker_may_lose(monkeypatch):
    monkeypatch.setattr(cluster, "PIECE_S", 13.0)
    asked = jobs(2)
    each_s = seconds(asked)
    cut = cluster.pieces(asked, each_s, 1)
    assert [sum(each_s[shape] for shape in piece.shapes) for _, piece in cut] == 2 * [12.0, 8.0, 13.0]
