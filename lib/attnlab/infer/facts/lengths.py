"""Lengths that no tile of rows divides, beside the next length that one does: the time for each score."""

from typing import NamedTuple

from attnlab.infer.compare.repeat import in_percent
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Results
from attnlab.infer.stats import Interval, ratio_ci
from attnlab.study.shapes import Shape

TILE = 64
"""Rows that kernels work on at a time, or a divisor of them."""


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
    shapes, names = results.study.shapes, results.study.implementations
    pairs = [Pair(odd, even) for odd in shapes if (even := _next_multiple(odd)) and even in shapes]
    found = {
        pair: {n: _more(results, n, pair) for n in names if all(n in results.at(shape).index for shape in pair)}
        for pair in pairs
    }
    if not any(results.study.baseline in more for more in found.values()):
        raise NotMeasured(f"This run has no length above {TILE} that is no multiple of it, beside the next that is")
    return {pair: more for pair, more in found.items() if more}


def costliest(results: Results) -> Costliest:
    """The odd length that costs the baseline the most; NotMeasured where the baseline has no such length."""
    name = results.study.baseline
    found = [Costliest(name, pair, more[name]) for pair, more in odd_lengths(results).items() if name in more]
    return max(found, key=lambda each: each.more.estimate)


def _next_multiple(shape: Shape) -> Shape | None:
    """The same shape with the next multiple of a tile as its length; None where that is no fair comparison."""
    if shape.seq_len < TILE or not shape.seq_len % TILE or shape.lengths != "equal" or shape.kv_len != shape.seq_len:
        return None
    return shape.resized(seq_len=-(-shape.seq_len // TILE) * TILE)


def _more(results: Results, name: str, pair: Pair) -> Interval:
    longer, usual = ([us / shape.scores for us in results.samples(name, shape)] for shape in pair)
    tick = max(results.tick_us(name, shape) / shape.scores for shape in pair)
    return in_percent(ratio_ci(longer, usual, tick=tick))
