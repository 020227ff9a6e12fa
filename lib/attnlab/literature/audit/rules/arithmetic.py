"""Sums, ratios and orders of numbers that are printed."""

import math
from itertools import pairwise

from attnlab.literature.audit.numbers import Number
from attnlab.literature.audit.reference import Row, Term
from attnlab.literature.audit.rules.rule import Outcome, rule
from attnlab.literature.audit.rules.terms import brief, number, place, row_of, shape_of, stated_number


@rule("same")
def _same(stated: Row, inputs: list[Term]) -> Outcome:
    (other,) = inputs
    row = row_of(other)
    how = f"{row.shown} in {place(row)}"
    if other.number is None:
        return Outcome(row.value, how, stated.value.casefold() == row.value.casefold())
    return Outcome(other.number, how)


@rule("at least")
def _at_least(stated: Row, inputs: list[Term]) -> Outcome:
    """What is stated reaches a threshold."""
    (threshold,) = inputs
    agrees = stated_number(stated).value >= number(threshold).value
    return Outcome(number(threshold), f"the threshold is {threshold.shown}", agrees)


@rule("ratio", 2)
def _ratio(stated: Row, inputs: list[Term]) -> Outcome:
    above, below = inputs
    return Outcome(number(above) / number(below), f"{above.shown} over {below.shown}")


@rule("change", 2)
def _change(stated: Row, inputs: list[Term]) -> Outcome:
    after, before = inputs
    found = number(after) / number(before) - Number.exact(1)
    return Outcome(found, f"{after.shown} over {before.shown}, less 1")


@rule("reduction", 2)
def _reduction(stated: Row, inputs: list[Term]) -> Outcome:
    after, before = inputs
    return Outcome(Number.exact(1) - number(after) / number(before), f"1 less {after.shown} over {before.shown}")


@rule("product", 2, math.inf)
def _product(stated: Row, inputs: list[Term]) -> Outcome:
    found = Number.exact(1)
    for term in inputs:
        found = found * number(term)
    return Outcome(found, " × ".join(term.shown for term in inputs))


@rule("sum", 2, math.inf)
def _sum(stated: Row, inputs: list[Term]) -> Outcome:
    found = Number.exact(0)
    for term in inputs:
        found = found + number(term)
    return Outcome(found, " + ".join(term.shown for term in inputs))


@rule("difference", 2)
def _difference(stated: Row, inputs: list[Term]) -> Outcome:
    more, less = inputs
    return Outcome(number(more) - number(less), f"{more.shown} − {less.shown}")


@rule("compound", 2, math.inf)
def _compound(stated: Row, inputs: list[Term]) -> Outcome:
    """Gains on top of one another, each a share."""
    found = Number.exact(1)
    for term in inputs:
        found = found * (Number.exact(1) + number(term))
    return Outcome(found, " × ".join(f"(1 + {term.shown})" for term in inputs))


@rule("largest", 2, math.inf)
def _largest(stated: Row, inputs: list[Term]) -> Outcome:
    found = max(inputs, key=lambda term: number(term).value)
    return Outcome(number(found), f"the largest of {len(inputs)}{_at(found)}")


@rule("smallest", 2, math.inf)
def _smallest(stated: Row, inputs: list[Term]) -> Outcome:
    found = min(inputs, key=lambda term: number(term).value)
    return Outcome(number(found), f"the smallest of {len(inputs)}{_at(found)}")


@rule("distinct shapes", 2, math.inf)
def _distinct_shapes(stated: Row, inputs: list[Term]) -> Outcome:
    found = {(row_of(term).subject, shape_of(row_of(term))) for term in inputs}
    return Outcome(Number.exact(len(found)), f"{len(inputs)} rows of tables, {len(found)} of them distinct")


@rule("rows", 2, math.inf)
def _rows(stated: Row, inputs: list[Term]) -> Outcome:
    return Outcome(Number.exact(len(inputs)), f"{len(inputs)} rows of tables")


@rule("above", 1, math.inf)
def _above(stated: Row, inputs: list[Term]) -> Outcome:
    """Everything is above the stated threshold."""
    least = min(inputs, key=lambda term: number(term).value)
    agrees = number(least).value > stated_number(stated).value
    return Outcome(number(least), f"the least of {len(inputs)}{_at(least)}", agrees)


@rule("below", 1, math.inf)
def _below(stated: Row, inputs: list[Term]) -> Outcome:
    """Everything is below the stated threshold."""
    most = max(inputs, key=lambda term: number(term).value)
    agrees = number(most).value < stated_number(stated).value
    return Outcome(number(most), f"the most of {len(inputs)}{_at(most)}", agrees)


@rule("rising", 2, math.inf)
def _rising(stated: Row, inputs: list[Term]) -> Outcome:
    agrees = all(number(one).value < number(other).value for one, other in pairwise(inputs))
    return Outcome("rising" if agrees else "not rising", ", ".join(term.shown for term in inputs), agrees)


@rule("falling", 2, math.inf)
def _falling(stated: Row, inputs: list[Term]) -> Outcome:
    agrees = all(number(one).value > number(other).value for one, other in pairwise(inputs))
    return Outcome("falling" if agrees else "not falling", ", ".join(term.shown for term in inputs), agrees)


@rule("small change", 2)
def _small_change(stated: Row, inputs: list[Term]) -> Outcome:
    """A change that is called small is less than a factor of two."""
    after, before = inputs
    factor = number(after) / number(before)
    return Outcome(f"{factor.value:.1f}×", f"{after.shown} over {before.shown}", factor.low < 2)


def _at(term: Term) -> str:
    return f", at {brief(term.row.shape)}" if term.row and term.row.shape else ""
