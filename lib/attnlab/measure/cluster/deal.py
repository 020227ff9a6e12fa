"""Which card measures which shapes in which replicate.

All shapes of all replicates lie in one line, replicate after replicate, and each card takes a stretch of that line.
The stretches take equally long (McNaughton 1959, Scheduling with deadlines and loss functions, Management Science 6:1),
less what a card still has to do. A shape is never cut. Its turns in two replicates lie one replicate apart, so on W
cards with nothing to do, the R replicates of each shape go to min(R, W) different cards, and none measures it more than
once more often than another. A card needs as few processes as that allows: one for each replicate in its stretch.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import linear_sum_assignment

from attnlab.measure.session.subject import Job
from attnlab.study.shapes import Shape

Turn = tuple[Job, Shape]
Repeats = Callable[[str, Shape], int]
"""How often a card has measured a shape already."""


def deal(
    jobs: Sequence[Job], seconds: Callable[[Shape], float], busy_s: Mapping[str, float], repeats: Repeats
) -> dict[str, list[Job]]:
    """The jobs of each card, in the order in which it takes them; together they hold each turn once.

    Args:
        jobs: replicates of some shapes.
        seconds: about how long a shape takes; only their proportions matter, unless cards are busy.
        busy_s: by card, how long it still needs for what it has begun.
    """
    turns = [(job, shape) for job in jobs for shape in job.shapes]
    each_s = np.array([seconds(shape) for _, shape in turns])
    ends = np.cumsum(_room(each_s.sum(), np.array(list(busy_s.values()))))
    middles = np.cumsum(each_s) - each_s / 2
    places = np.minimum(np.searchsorted(ends, middles, side="right"), len(ends) - 1)
    stretches = [[turn for turn, at in zip(turns, places, strict=True) if at == place] for place in range(len(ends))]
    cards = list(busy_s)
    if not any(busy_s.values()):
        cards = _least_repeated(stretches, cards, repeats)
    return {card: _as_jobs(stretch) for card, stretch in zip(cards, stretches, strict=True)}


def _room(total_s: float, busy_s: np.ndarray) -> np.ndarray:
    """How much each card takes of the total, so that all of them end at the same time, or have ended before."""
    waiting = np.ones(busy_s.size, dtype=bool)
    while True:
        end_s = (total_s + busy_s[waiting].sum()) / waiting.sum()
        late = waiting & (busy_s > end_s)
        if not late.any():
            return np.where(waiting, end_s - busy_s, 0.0)
        waiting &= ~late


def _least_repeated(stretches: list[list[Turn]], cards: list[str], repeats: Repeats) -> list[str]:
    """The card of each stretch, such that cards measure as few shapes as possible that they have measured before."""
    costs = np.array([[sum(repeats(card, shape) for _, shape in stretch) for card in cards] for stretch in stretches])
    return [cards[index] for index in linear_sum_assignment(costs)[1]]


def _as_jobs(turns: Iterable[Turn]) -> list[Job]:
    """Turns as jobs. The stream of requests of a replicate stays with a job that keeps all its shapes."""
    shapes: dict[int, list[Shape]] = {}
    wholes: dict[int, Job] = {}
    for job, shape in turns:
        wholes[job.replicate] = job
        shapes.setdefault(job.replicate, []).append(shape)
    return [
        replace(job, shapes=tuple(shapes[number]), stream=job.stream and len(shapes[number]) == len(job.shapes))
        for number, job in wholes.items()
    ]
