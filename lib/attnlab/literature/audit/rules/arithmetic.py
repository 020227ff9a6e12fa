"""Sums, ratios and orders of numbers that are printed."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from attnlab.literature.audit.numbers import Number
from attnlab.literature.audit.reference import Row, Term
from attnlab.literature.audit.rules.rule import Outcome, brief, number, place, row_of, rule, shape_of, stated_number


@rule("same")
def _same(stated: Row, other: Term) -> Outcome:
    row = row_of(other)
    how = f"{row.shown} in {place(row)}"
    if other.number is None:
        return Outcome(row.value, how, stated.value.casefold() == row.value.casefold())
    return Outcome(other.number, how)


@rule("at least")
def _at_least(stated: Row, threshold: Term) -> Outcome:
    """What is stated reaches a threshold."""
    agrees = stated_number(stated).value >= number(threshold).value
    return Outcome(number(threshold), f"the threshold is {threshold.shown}", agrees)


@rule("ratio")
def _ratio(stated: Row, above: Term, below: Term) -> Outcome:
    return Outcome(number(above) / number(below), f"{above.shown} over {below.shown}")


@rule("change")
def _change(stated: Row, after: Term, before: Term) -> Outcome:
    found = number(after) / number(before) - Number.exact(1)
    return Outcome(found, f"{after.shown} over {before.shown}, less 1")


@rule("reduction")
def _reduction(stated: Row, after: Term, before: Term) -> Outcome:
    return Outcome(Number.exact(1) - number(after) / number(before), f"1 less {after.shown} over {before.shown}")


@rule("product", least=2)
def _product(stated: Row, *inputs: Term) -> Outcome:
    found = math.prod(map(number, inputs), start=Number.exact(1))
    return Outcome(found, " × ".join(term.shown for term in inputs))


@rule("sum", least=2)
def _sum(stated: Row, *inputs: Term) -> Outcome:
    found = sum(map(number, inputs), Number.exact(0))
    return Outcome(found, " + ".join(term.shown for term in inputs))


@rule("difference")
def _difference(stated: Row, more: Term, less: Term) -> Outcome:
    return Outcome(number(more) - number(less), f"{more.shown} − {less.shown}")


@rule("compound", least=2)
def _compound(stated: Row, *inputs: Term) -> Outcome:
    """Gains on top of one another, each a share."""
    found = math.prod((Number.exact(1) + number(term) for term in inputs), start=Number.exact(1))
    return Outcome(found, " × ".join(f"(1 + {term.shown})" for term in inputs))


@rule("largest", least=2)
def _largest(stated: Row, *inputs: Term) -> Outcome:
    return _extreme(max, "largest", inputs)


@rule("smallest", least=2)
def _smallest(stated: Row, *inputs: Term) -> Outcome:
    return _extreme(min, "smallest", inputs)


@rule("distinct shapes", least=2)
def _distinct_shapes(stated: Row, *inputs: Term) -> Outcome:
    found = {(row_of(term).subject, shape_of(row_of(term))) for term in inputs}
    return Outcome(Number.exact(len(found)), f"{len(inputs)} rows of tables, {len(found)} of them distinct")


@rule("rows", least=2)
def _rows(stated: Row, *inputs: Term) -> Outcome:
    return Outcome(Number.exact(len(inputs)), f"{len(inputs)} rows of tables")


@rule("above")
def _above(stated: Row, *inputs: Term) -> Outcome:
    """Everything is above the stated threshold."""
    agrees = min(number(term).value for term in inputs) > stated_number(stated).value
    return _extreme(min, "least", inputs, agrees)


@rule("below")
def _below(stated: Row, *inputs: Term) -> Outcome:
    """Everything is below the stated threshold."""
    agrees = max(number(term).value for term in inputs) < stated_number(stated).value
    return _extreme(max, "most", inputs, agrees)


@rule("rising", least=2)
def _rising(stated: Row, *inputs: Term) -> Outcome:
    return _ordered("rising", inputs, inputs)


@rule("falling", least=2)
def _falling(stated: Row, *inputs: Term) -> Outcome:
    return _ordered("falling", inputs, inputs[::-1])


def _ordered(word: str, inputs: Sequence[Term], rising: Sequence[Term]) -> Outcome:
    agrees = all(number(one).value < number(other).value for one, other in pairwise(rising))
    return Outcome(word if agrees else f"not {word}", ", ".join(term.shown for term in inputs), agrees)


@rule("small change")
def _small_change(stated: Row, after: Term, before: Term) -> Outcome:
    """A change that is called small is less than a factor of two."""
    factor = number(after) / number(before)
    return Outcome(f"{factor.value:.1f}×", f"{after.shown} over {before.shown}", factor.low < 2)


def _extreme(pick: Callable[..., Term], word: str, inputs: Sequence[Term], agrees: bool | None = None) -> Outcome:
    """The largest or the smallest of some inputs, and where it is."""
    found = pick(inputs, key=lambda term: number(term).value)
    at = f", at {brief(found.row.shape)}" if found.row and found.row.shape else ""
    return Outcome(number(found), f"the {word} of {len(inputs)}{at}", agrees)
