"""Lengths that no tile of rows divides, beside the next length that one does: the time for each score."""

from typing import NamedTuple

from attnlab.infer.compare.repeat import in_percent
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Results
from attnlab.infer.stats import Interval, ratio_ci
from attnlab.study.shapes import Shape

TILE = 64
"""Rows that kernels work on at a time, or a divisor of them."""
NO_PAIR = f"This run has no length above {TILE} that is no multiple of it, beside the next that is"


class Pair(NamedTuple):
    """A shape whose length is no multiple of `TILE`, and the next longer one whose length is."""

    odd: Shape
    even: Shape


class Costliest(NamedTuple):
    """The pair at which an odd length costs the baseline the most, and how much longer a score takes, in percent."""

    name: str
    pair: Pair
    more: Interval


def odd_lengths(results: Results) -> dict[Pair, dict[str, Interval]]:
    """How much longer a score takes at each odd length in percent, by implementation.

    Raises NotMeasured where the baseline has no such length.
    """
    names = results.study.implementations
    found = {
        pair: {name: _more(results, name, pair) for name in names if _is_timed(results, name, pair)}
        for pair in _pairs(results)
    }
    if not any(results.study.baseline in more for more in found.values()):
        raise NotMeasured(NO_PAIR)
    return {pair: more for pair, more in found.items() if more}


def costliest(results: Results) -> Costliest:
    """The odd length that costs the baseline the most; NotMeasured where the baseline has no such length."""
    name = results.study.baseline
    found = [
        Costliest(name, pair, _more(results, name, pair)) for pair in _pairs(results) if _is_timed(results, name, pair)
    ]
    if not found:
        raise NotMeasured(NO_PAIR)
    return max(found, key=lambda each: each.more.estimate)


def _pairs(results: Results) -> list[Pair]:
    shapes = results.study.shapes
    return [Pair(odd, even) for odd in shapes if (even := _next_multiple(odd)) and even in shapes]


def _next_multiple(shape: Shape) -> Shape | None:
    """The same shape with the next multiple of a tile as its length; None where that is no fair comparison."""
    if shape.seq_len < TILE or not shape.seq_len % TILE or shape.lengths != "equal" or shape.kv_len != shape.seq_len:
        return None
    return shape.resized(seq_len=-(-shape.seq_len // TILE) * TILE)


def _is_timed(results: Results, name: str, pair: Pair) -> bool:
    return all(name in results.at(shape).index for shape in pair)


def _more(results: Results, name: str, pair: Pair) -> Interval:
    longer, usual = ([us / shape.scores for us in results.samples(name, shape)] for shape in pair)
    tick = max(results.tick_us(results.row(name, shape)) / shape.scores for shape in pair)
    return in_percent(ratio_ci(longer, usual, tick=tick))
