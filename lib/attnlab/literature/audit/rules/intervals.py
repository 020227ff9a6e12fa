"""Intervals and samples: widths, overlaps, and whether a statement has evidence."""

import math
from collections.abc import Sequence
from itertools import combinations

from attnlab.base.errors import UserError
from attnlab.literature.audit.numbers import Number
from attnlab.literature.audit.reference import Row, Term
from attnlab.literature.audit.rules.rule import Outcome, brief, number, place, row_of, rule, shape_of, stated_number
from attnlab.study.shapes import Shape


@rule("half-width")
def _half_width(stated: Row, low: Term, high: Term) -> Outcome:
    """Half an interval's width as a share of its middle."""
    both = number(high) + number(low)
    return Outcome((number(high) - number(low)) / both, f"half of {low.shown} to {high.shown}, over the middle")


@rule("standard error")
def _standard_error(stated: Row, deviation: Term, size: Term) -> Outcome:
    """Half-width of a mean's 95 % interval: 1.96 standard deviations over the root of the sample size."""
    return Outcome(*_half(deviation, size))


def _half(deviation: Term, size: Term) -> tuple[Number, str]:
    found = number(deviation) * Number.exact(1.96 / math.sqrt(number(size).value))
    return found, f"1.96 × {deviation.shown} / √{size.shown}"


@rule("lower bound")
def _lower_bound(stated: Row, mean: Term, deviation: Term, size: Term) -> Outcome:
    half, how = _half(deviation, size)
    return Outcome(number(mean) - half, f"{mean.shown} − {how}")


@rule("upper bound")
def _upper_bound(stated: Row, mean: Term, deviation: Term, size: Term) -> Outcome:
    half, how = _half(deviation, size)
    return Outcome(number(mean) + half, f"{mean.shown} + {how}")


@rule("apart", least=4)
def _apart(stated: Row, *inputs: Term) -> Outcome:
    """No two intervals share a value. The inputs are lower and upper bounds in turn; one shape counts once."""
    intervals = _intervals(inputs)
    pairs = list(combinations(intervals, 2))
    over = [(one, other) for one, other in pairs if _overlap(*one[1:], *other[1:])]
    if not over:
        return Outcome("apart", f"none of {len(pairs)} pairs overlaps", True)
    told = "; ".join(f"{_interval(one)} and {_interval(other)}" for one, other in over)
    return Outcome(f"{len(over)} of {len(pairs)} overlap", told, False)


@rule("overlapping")
def _overlapping(stated: Row, low: Term, high: Term, other_low: Term, other_high: Term) -> Outcome:
    there = _overlap(low, high, other_low, other_high)
    told = f"{_ends(low, high)} and {_ends(other_low, other_high)}"
    return Outcome("overlapping" if there else "apart", told, there)


@rule("measured again")
def _measured_again(stated: Row, low: Term, high: Term) -> Outcome:
    """A latency lies in the interval that another measurement of the same configuration gives."""
    within = Number(number(low).value, number(low).low, number(high).high)
    agrees = within.meets(stated_number(stated))
    where = f"{'within' if agrees else 'outside'} the interval of {place(row_of(low))}"
    return Outcome(_ends(low, high), where, agrees)


@rule("two samples", least=2, otherwise="unsupported")
def _two_samples(stated: Row, *inputs: Term) -> Outcome:
    """Two things were measured: of the pairs given, baseline and candidate in turn, some digit differs."""
    pairs = list(zip(inputs[::2], inputs[1::2], strict=True))
    if any(one.shown != other.shown for one, other in pairs):
        return Outcome("two samples", f"some of {len(pairs)} numbers differ", True)
    return Outcome("one sample", f"all {len(pairs)} numbers of both are the same to the last digit", False)


@rule("evidence", otherwise="unsupported", counts=True)
def _evidence(stated: Row, quantity: Term, needed: Term, *there: Term) -> Outcome:
    """The document gives what a statement rests on as often as it takes: the inputs are both, then the rows."""
    found, least = len(there), int(number(needed).value)
    told = f"{found} of {least} given" if found else "not given"
    return Outcome(told, f"{quantity.shown}: {told}", found >= least)


def _overlap(low: Term, high: Term, other_low: Term, other_high: Term) -> bool:
    share = number(low).value < number(other_high).value and number(other_low).value < number(high).value
    return share or _ends(low, high) == _ends(other_low, other_high)


def _intervals(inputs: Sequence[Term]) -> list[tuple[Shape, Term, Term]]:
    if len(inputs) % 2:
        raise UserError("the inputs should be lower and upper bounds in turn, and one is left over")
    found: dict[Shape, tuple[Shape, Term, Term]] = {}
    for low, high in zip(inputs[::2], inputs[1::2], strict=True):
        shape = shape_of(row_of(low))
        found.setdefault(shape, (shape, low, high))
    return list(found.values())


def _interval(interval: tuple[Shape, Term, Term]) -> str:
    shape, low, high = interval
    return f"{brief(shape)} {_ends(low, high)}"


def _ends(low: Term, high: Term) -> str:
    return f"[{row_of(low).value}, {row_of(high).value}]"
