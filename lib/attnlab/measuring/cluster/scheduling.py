"""Which card measures which shapes in which replicate.

All replicates are cut into the same pieces, which take equally long. A card that is free takes a piece that no other
card has measured less often, so R replicates of a shape go to min(R, W) of W cards, and none measures it more than once
more often than another. It prefers its own: those of a replicate are one card further than those of the one before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from attnlab.measuring.session.subject import Job
from attnlab.study.shapes import Shape

PIECE_S = 120.0
"""About how long a piece takes at most, in seconds: as much may be left for one card where the others are done."""
LEAST_S = 1e-3
"""How long a shape counts for at least: one that no memory holds takes no time."""


def pieces(jobs: Sequence[Job], seconds: Mapping[Shape, float], cards: int) -> list[tuple[int, Job]]:
    """The jobs cut into pieces for so many cards, which hold each shape of each job once, each with its number in it.

    Args:
        jobs: replicates of one study.
        seconds: about how long each shape of the study takes.
    """
    each_s = np.maximum(list(seconds.values()), LEAST_S)
    count = cards * max(1, round(each_s.sum() / (cards * PIECE_S)))
    middles = (np.cumsum(each_s) - each_s / 2) / each_s.sum()
    numbers = dict(zip(seconds, (middles * count).astype(int).tolist(), strict=True))
    return [
        (number, replace(job, shapes=shapes, stream=False))
        for job in jobs
        for number in range(count)
        if (shapes := tuple(shape for shape in job.shapes if numbers[shape] == number))
    ]


def choose(waiting: Sequence[tuple[int, Job]], free: str, taken: Mapping[str, Mapping[int, int]]) -> int | None:
    """The index of the piece that a free card takes; None if others have to come first.

    Args:
        waiting: the pieces, as `pieces` gives them.
        taken: how often each of the cards that are there has taken each piece, by number.
    """
    place = list(taken).index(free)
    least = {number: min(own.get(number, 0) for own in taken.values()) for number, _ in waiting}
    mine = [index for index, (number, _) in enumerate(waiting) if taken[free].get(number, 0) == least[number]]

    def order(index: int) -> tuple[int, bool]:
        number, job = waiting[index]
        return least[number], (number + job.replicate) % len(taken) != place

    return min(mine, key=order, default=None)
