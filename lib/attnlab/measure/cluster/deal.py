"""Which card measures which shapes in which replicate.

All shapes of all replicates lie in one line, replicate after replicate, and each card takes a stretch of that line.
The stretches take equally long (McNaughton 1959, Scheduling with deadlines and loss functions, Management Science 6:1),
less what a card still has to do. A shape is never cut; of many orders of the shapes, the one is taken by which that
costs least. A shape's turns in two replicates lie one replicate apart, so on W cards with nothing to do, the R
replicates of each shape go to min(R, W) different cards, and none measures it more than once more often than another. A
card needs few processes: one for each replicate in its stretch.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import linear_sum_assignment

from attnlab.measure.session.subject import Job
from attnlab.study.shapes import Shape

Turn = tuple[Job, Shape]
Repeats = Callable[[str, Shape], int]
"""How often a card has measured a shape already."""
ORDERS = 300
"""Orders of the shapes that are tried."""


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
    room_s = _room(each_s.sum(), np.array(list(busy_s.values())))
    places = min((_places(order, each_s, room_s) for order in _orders(turns)), key=lambda at: _over(at, each_s, room_s))
    stretches = [[turn for turn, at in zip(turns, places, strict=True) if at == place] for place in range(room_s.size)]
    cards = list(busy_s)
    if not any(busy_s.values()):
        cards = _least_repeated(stretches, cards, repeats)
    return {card: _as_jobs(stretch) for card, stretch in zip(cards, stretches, strict=True)}


def _orders(turns: Sequence[Turn]) -> Iterator[np.ndarray]:
    """Orders of the line, as positions of turns: that of the study, and others; in each, replicates are alike."""
    shapes = list(dict.fromkeys(shape for _, shape in turns))
    jobs = list(dict.fromkeys(job.replicate for job, _ in turns))
    of_job = np.array([jobs.index(job.replicate) for job, _ in turns])
    of_shape = np.array([shapes.index(shape) for _, shape in turns])
    rng = np.random.default_rng(0)
    for number in range(ORDERS):
        ranks = rng.permutation(len(shapes)) if number else np.arange(len(shapes))
        yield np.lexsort((ranks[of_shape], of_job))


def _places(order: np.ndarray, each_s: np.ndarray, room_s: np.ndarray) -> np.ndarray:
    """The stretch of each turn: the one that its middle lies in."""
    along_s, places = each_s[order], np.empty(order.size, dtype=int)
    middles_s = np.cumsum(along_s) - along_s / 2
    places[order] = np.minimum(np.searchsorted(np.cumsum(room_s), middles_s, side="right"), room_s.size - 1)
    return places


def _over(places: np.ndarray, each_s: np.ndarray, room_s: np.ndarray) -> float:
    """By how much the fullest stretch is longer than it should be."""
    return float((np.bincount(places, each_s, room_s.size) - room_s).max())


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
