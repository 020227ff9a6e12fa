"""The rules by which a stated number follows from others, each a few lines of arithmetic on what was printed.

A rule gets the row that states something and the terms that it should follow from, and returns what comes out. It knows
nothing of any document; which rule applies to which rows stands in data/reference/claims.csv.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Literal

from attnlab.audit.numbers import Number
from attnlab.audit.reference import SHEET, Row, Term
from attnlab.errors import UserError
from attnlab.shapes import Shape

Finding = Literal[
    "holds",
    "rounding",
    "contradicts itself",
    "contradicts another",
    "exceeds the hardware",
    "wrong work",
    "unsupported",
]


@dataclass(frozen=True)
class Outcome:
    """What a rule finds.

    Attributes:
        recomputed: the number in base units, or a word.
        how: the calculation with its numbers in it.
        agrees: whether the statement is true; None where the number decides.
    """

    recomputed: Number | str
    how: str
    agrees: bool | None = None


@dataclass(frozen=True)
class Rule:
    """Arithmetic, and what it means when what is stated doesn't come out.

    Attributes:
        least, most: how many inputs it takes.
        otherwise: the finding then; None for a contradiction, with itself or with another document.
        counts: its first input names a quantity, and its inputs are all rows of the document that state one.
    """

    apply: Callable[[Row, list[Term]], Outcome]
    least: int
    most: float
    otherwise: Finding | None
    counts: bool


RULES: dict[str, Rule] = {}


def _rule(
    name: str, least: int = 1, most: float | None = None, otherwise: Finding | None = None, counts: bool = False
) -> Callable[[Callable[[Row, list[Term]], Outcome]], Callable[[Row, list[Term]], Outcome]]:
    def keep(apply: Callable[[Row, list[Term]], Outcome]) -> Callable[[Row, list[Term]], Outcome]:
        RULES[name] = Rule(apply, least, least if most is None else most, otherwise, counts)
        return apply

    return keep


# ------------------------------------------------------------------------------------------------------- arithmetic


@_rule("same")
def _same(stated: Row, inputs: list[Term]) -> Outcome:
    (other,) = inputs
    row = _of(other)
    how = f"{row.shown} in {_place(row)}"
    if other.number is None:
        return Outcome(row.value, how, stated.value.casefold() == row.value.casefold())
    return Outcome(other.number, how)


@_rule("at least")
def _at_least(stated: Row, inputs: list[Term]) -> Outcome:
    """What is stated reaches a threshold."""
    (threshold,) = inputs
    agrees = _own(stated).value >= _number(threshold).value
    return Outcome(_number(threshold), f"the threshold is {threshold.shown}", agrees)


@_rule("ratio", 2)
def _ratio(stated: Row, inputs: list[Term]) -> Outcome:
    above, below = inputs
    return Outcome(_number(above) / _number(below), f"{above.shown} over {below.shown}")


@_rule("change", 2)
def _change(stated: Row, inputs: list[Term]) -> Outcome:
    after, before = inputs
    found = _number(after) / _number(before) - Number.exact(1)
    return Outcome(found, f"{after.shown} over {before.shown}, less 1")


@_rule("reduction", 2)
def _reduction(stated: Row, inputs: list[Term]) -> Outcome:
    after, before = inputs
    return Outcome(Number.exact(1) - _number(after) / _number(before), f"1 less {after.shown} over {before.shown}")


@_rule("product", 2, math.inf)
def _product(stated: Row, inputs: list[Term]) -> Outcome:
    found = Number.exact(1)
    for term in inputs:
        found = found * _number(term)
    return Outcome(found, " × ".join(term.shown for term in inputs))


@_rule("sum", 2, math.inf)
def _sum(stated: Row, inputs: list[Term]) -> Outcome:
    found = Number.exact(0)
    for term in inputs:
        found = found + _number(term)
    return Outcome(found, " + ".join(term.shown for term in inputs))


@_rule("difference", 2)
def _difference(stated: Row, inputs: list[Term]) -> Outcome:
    more, less = inputs
    return Outcome(_number(more) - _number(less), f"{more.shown} − {less.shown}")


@_rule("compound", 2, math.inf)
def _compound(stated: Row, inputs: list[Term]) -> Outcome:
    """Gains on top of one another, each a share."""
    found = Number.exact(1)
    for term in inputs:
        found = found * (Number.exact(1) + _number(term))
    return Outcome(found, " × ".join(f"(1 + {term.shown})" for term in inputs))


@_rule("largest", 2, math.inf)
def _largest(stated: Row, inputs: list[Term]) -> Outcome:
    found = max(inputs, key=lambda term: _number(term).value)
    return Outcome(_number(found), f"the largest of {len(inputs)}{_at(found)}")


@_rule("smallest", 2, math.inf)
def _smallest(stated: Row, inputs: list[Term]) -> Outcome:
    found = min(inputs, key=lambda term: _number(term).value)
    return Outcome(_number(found), f"the smallest of {len(inputs)}{_at(found)}")


@_rule("distinct shapes", 2, math.inf)
def _distinct_shapes(stated: Row, inputs: list[Term]) -> Outcome:
    found = {(_of(term).subject, _shape(_of(term))) for term in inputs}
    return Outcome(Number.exact(len(found)), f"{len(inputs)} rows of tables, {len(found)} of them distinct")


@_rule("rows", 2, math.inf)
def _rows(stated: Row, inputs: list[Term]) -> Outcome:
    return Outcome(Number.exact(len(inputs)), f"{len(inputs)} rows of tables")


# ---------------------------------------------------------------------------------------------- samples and intervals


@_rule("half-width", 2)
def _half_width(stated: Row, inputs: list[Term]) -> Outcome:
    """Half an interval's width as a share of its middle."""
    low, high = inputs
    both = _number(high) + _number(low)
    return Outcome((_number(high) - _number(low)) / both, f"half of {low.shown} to {high.shown}, over the middle")


@_rule("standard error", 2)
def _standard_error(stated: Row, inputs: list[Term]) -> Outcome:
    """Half-width of a mean's 95 % interval: 1.96 standard deviations over the root of the sample size."""
    deviation, size = inputs
    found = _number(deviation) * Number.exact(1.96 / math.sqrt(_number(size).value))
    return Outcome(found, f"1.96 × {deviation.shown} / √{size.shown}")


@_rule("lower bound", 3)
def _lower_bound(stated: Row, inputs: list[Term]) -> Outcome:
    mean, *rest = inputs
    half = _standard_error(stated, rest)
    assert isinstance(half.recomputed, Number)
    return Outcome(_number(mean) - half.recomputed, f"{mean.shown} − {half.how}")


@_rule("upper bound", 3)
def _upper_bound(stated: Row, inputs: list[Term]) -> Outcome:
    mean, *rest = inputs
    half = _standard_error(stated, rest)
    assert isinstance(half.recomputed, Number)
    return Outcome(_number(mean) + half.recomputed, f"{mean.shown} + {half.how}")


@_rule("apart", 4, math.inf)
def _apart(stated: Row, inputs: list[Term]) -> Outcome:
    """No two intervals share a value. The inputs are lower and upper bounds in turn; one shape counts once."""
    intervals = _intervals(inputs)
    pairs = list(combinations(intervals, 2))
    over = [(one, other) for one, other in pairs if _overlap(*one[1:], *other[1:])]
    if not over:
        return Outcome("apart", f"none of {len(pairs)} pairs overlaps", True)
    told = "; ".join(f"{_interval(one)} and {_interval(other)}" for one, other in over)
    return Outcome(f"{len(over)} of {len(pairs)} overlap", told, False)


@_rule("overlapping", 4)
def _overlapping(stated: Row, inputs: list[Term]) -> Outcome:
    one, other = ((low, high) for low, high in zip(inputs[::2], inputs[1::2], strict=True))
    there = _overlap(*one, *other)
    return Outcome("overlapping" if there else "apart", f"{_ends(*one)} and {_ends(*other)}", there)


@_rule("measured again", 2)
def _measured_again(stated: Row, inputs: list[Term]) -> Outcome:
    """A latency lies in the interval that another measurement of the same configuration gives."""
    low, high = inputs
    within = Number(_number(low).value, _number(low).low, _number(high).high)
    agrees = within.meets(_own(stated))
    return Outcome(_ends(low, high), f"{'within' if agrees else 'outside'} the interval of {_place(_of(low))}", agrees)


@_rule("two samples", 2, math.inf, otherwise="unsupported")
def _two_samples(stated: Row, inputs: list[Term]) -> Outcome:
    """Two things were measured: of the pairs given, baseline and candidate in turn, some digit differs."""
    pairs = list(zip(inputs[::2], inputs[1::2], strict=True))
    if any(one.shown != other.shown for one, other in pairs):
        return Outcome("two samples", f"some of {len(pairs)} numbers differ", True)
    return Outcome("one sample", f"all {len(pairs)} numbers of both are the same to the last digit", False)


@_rule("evidence", 1, math.inf, otherwise="unsupported", counts=True)
def _evidence(stated: Row, inputs: list[Term]) -> Outcome:
    """The document gives what a statement rests on as often as it takes: the inputs are both, then the rows."""
    quantity, needed, *there = inputs
    found, least = len(there), int(_number(needed).value)
    told = f"{found} of {least} given" if found else "not given"
    return Outcome(told, f"{quantity.shown}: {told}", found >= least)


# -------------------------------------------------------------------------------------------- comparisons and trends


@_rule("above", 1, math.inf)
def _above(stated: Row, inputs: list[Term]) -> Outcome:
    """Everything is above the stated threshold."""
    least = min(inputs, key=lambda term: _number(term).value)
    agrees = _number(least).value > _own(stated).value
    return Outcome(_number(least), f"the least of {len(inputs)}{_at(least)}", agrees)


@_rule("below", 1, math.inf)
def _below(stated: Row, inputs: list[Term]) -> Outcome:
    """Everything is below the stated threshold."""
    most = max(inputs, key=lambda term: _number(term).value)
    agrees = _number(most).value < _own(stated).value
    return Outcome(_number(most), f"the most of {len(inputs)}{_at(most)}", agrees)


@_rule("rising", 2, math.inf)
def _rising(stated: Row, inputs: list[Term]) -> Outcome:
    agrees = all(_number(one).value < _number(other).value for one, other in pairwise(inputs))
    return Outcome("rising" if agrees else "not rising", ", ".join(term.shown for term in inputs), agrees)


@_rule("falling", 2, math.inf)
def _falling(stated: Row, inputs: list[Term]) -> Outcome:
    agrees = all(_number(one).value > _number(other).value for one, other in pairwise(inputs))
    return Outcome("falling" if agrees else "not falling", ", ".join(term.shown for term in inputs), agrees)


@_rule("small change", 2)
def _small_change(stated: Row, inputs: list[Term]) -> Outcome:
    """A change that is called small is less than a factor of two."""
    after, before = inputs
    factor = _number(after) / _number(before)
    return Outcome(f"{factor.value:.1f}×", f"{after.shown} over {before.shown}", factor.low < 2)


@_rule("best throughput", 2, math.inf)
def _best_throughput(stated: Row, inputs: list[Term]) -> Outcome:
    return _best(stated, max(inputs, key=lambda term: _rate(term).value), f"the highest throughput of {len(inputs)}")


@_rule("best samples per second", 2, math.inf)
def _best_samples(stated: Row, inputs: list[Term]) -> Outcome:
    best = max(inputs, key=lambda term: _shape(_of(term)).batch / _number(term).value)
    return _best(stated, best, f"the most samples a second of {len(inputs)}")


@_rule("best latency per head", 2, math.inf)
def _best_per_head(stated: Row, inputs: list[Term]) -> Outcome:
    best = min(inputs, key=lambda term: _number(term).value / _shape(_of(term)).heads)
    return _best(stated, best, f"the lowest latency a head of {len(inputs)}")


@_rule("least latency", 2, math.inf)
def _least_latency(stated: Row, inputs: list[Term]) -> Outcome:
    best = min(inputs, key=lambda term: _number(term).value)
    agrees = _of(best).subject == stated.subject
    return Outcome(_of(best).subject, f"{best.shown} is the least of {len(inputs)}", agrees)


@_rule("throughput drops", 2, math.inf)
def _throughput_drops(stated: Row, inputs: list[Term]) -> Outcome:
    """Throughput after is below throughput before; what each is follows from shape and latency."""
    before, *after = (_rate(term) for term in inputs)
    agrees = all(rate.high < before.low for rate in after)
    rates = ", ".join(f"{rate.value / 1e12:.1f}" for rate in (before, *after))
    return Outcome("drops" if agrees else "does not drop", f"{rates} TFLOP/s at {_sizes(inputs)}", agrees)


@_rule("scaling", 2, math.inf)
def _scaling(stated: Row, inputs: list[Term]) -> Outcome:
    """Latency against work, step by step: ``linear`` where their ratios agree within what was printed."""
    kinds = [_step(one, other) for one, other in pairwise(inputs)]
    told = stated.value.casefold()
    if "non-linear" in told:
        agrees = set(kinds) != {"linear"}
    else:
        agrees = set(kinds) == {next(kind for kind in ("sub-linear", "super-linear", "linear") if kind in told)}
    steps = (
        f"{(_number(other) / _number(one)).value:.2f}× for {_work(one, other):g}× the work"
        for one, other in pairwise(inputs)
    )
    return Outcome(" and ".join(dict.fromkeys(kinds)), ", ".join(steps), agrees)


# ------------------------------------------------------------------------------------------------------ work and rates


@_rule("throughput")
def _throughput(stated: Row, inputs: list[Term]) -> Outcome:
    """4·B·H·S²·D FLOPs over a latency, whatever the mask hides: the documents' own convention."""
    (latency,) = inputs
    work = _square(_shape(_of(latency)))
    return Outcome(Number.exact(work) / _number(latency), f"{_gflop(work)} in {latency.shown}")


@_rule("throughput under the mask", otherwise="wrong work")
def _masked_throughput(stated: Row, inputs: list[Term]) -> Outcome:
    (latency,) = inputs
    shape = _shape(_of(latency))
    how = f"{_gflop(shape.flops)} under the mask in {latency.shown}, not {_gflop(_square(shape))}"
    return Outcome(Number.exact(shape.flops) / _number(latency), how)


@_rule("bandwidth")
def _bandwidth(stated: Row, inputs: list[Term]) -> Outcome:
    (latency,) = inputs
    moved = _shape(_of(latency)).bytes
    return Outcome(Number.exact(moved) / _number(latency), f"Q, K, V and O, {_mb(moved)}, in {latency.shown}")


@_rule("samples per second")
def _samples_per_second(stated: Row, inputs: list[Term]) -> Outcome:
    (latency,) = inputs
    batch = _shape(_of(latency)).batch
    return Outcome(Number.exact(batch) / _number(latency), f"{batch} in {latency.shown}")


@_rule("latency per head and batch element")
def _per_unit(stated: Row, inputs: list[Term]) -> Outcome:
    (latency,) = inputs
    shape = _shape(_of(latency))
    found = _number(latency) / Number.exact(shape.batch * shape.heads)
    return Outcome(found, f"{latency.shown} over {shape.batch} × {shape.heads}")


@_rule("flops", 0)
def _flops(stated: Row, inputs: list[Term]) -> Outcome:
    shape = _shape(stated)
    return Outcome(Number.exact(_square(shape)), f"4·B·H·S²·D at {_brief(shape)}")


@_rule("bytes", 0, otherwise="wrong work")
def _bytes(stated: Row, inputs: list[Term]) -> Outcome:
    shape = _shape(stated)
    return Outcome(Number.exact(shape.bytes), f"Q, K, V and O once each, 8·B·H·S·D, at {_brief(shape)}")


@_rule("intensity", 0, otherwise="wrong work")
def _intensity(stated: Row, inputs: list[Term]) -> Outcome:
    shape = _shape(stated)
    return Outcome(Number.exact(shape.intensity), f"{_gflop(shape.flops)} over {_mb(shape.bytes)} of Q, K, V and O")


@_rule("room for the tensors", 0, otherwise="wrong work")
def _room(stated: Row, inputs: list[Term]) -> Outcome:
    """Memory stated holds at least Q, K, V and O."""
    needed = Number.exact(_shape(stated).bytes)
    return Outcome(needed, f"Q, K, V and O are {_mb(needed.value)}", _own(stated).high >= needed.value)


@_rule("speedup at equal work", 2, otherwise="wrong work")
def _equal_work(stated: Row, inputs: list[Term]) -> Outcome:
    """A ratio of latencies times the ratio of FLOPs that were done in them."""
    before, after = inputs
    work = Number.exact(_work(before, after))
    found = _number(before) / _number(after) * work
    compared = f"{work.value:g} times the work" if work.value > 1 else f"1/{1 / work.value:g} of the work"
    return Outcome(found, f"{before.shown} over {after.shown}, for {compared}")


@_rule("speedup at equal tokens", 2, otherwise="wrong work")
def _equal_tokens(stated: Row, inputs: list[Term]) -> Outcome:
    """A ratio of latencies times the ratio of tokens that were attended from: chunks that don't see one another."""
    before, after = inputs
    one, other = _shape(_of(before)), _shape(_of(after))
    tokens = other.batch * other.seq_len / (one.batch * one.seq_len)
    found = _number(before) / _number(after) * Number.exact(tokens)
    return Outcome(found, f"{1 / tokens:g} calls of {after.shown} for the tokens of one of {before.shown}")


# ---------------------------------------------------------------------------------------------------------- hardware


@_rule("regime", 3)
def _regime(stated: Row, inputs: list[Term]) -> Outcome:
    """Which side of the ridge an intensity is on: inputs are intensity, peak rate, peak bandwidth."""
    intensity, rate, bandwidth = inputs
    return _side(stated, _number(intensity), rate, bandwidth)


@_rule("regime of the shape", 2)
def _regime_of_shape(stated: Row, inputs: list[Term]) -> Outcome:
    rate, bandwidth = inputs
    return _side(stated, Number.exact(_shape(stated).intensity), rate, bandwidth)


@_rule("ceiling", otherwise="exceeds the hardware")
def _ceiling(stated: Row, inputs: list[Term]) -> Outcome:
    """A rate is no more than a ceiling, whatever a cache holds."""
    (ceiling,) = inputs
    return Outcome(_number(ceiling), f"the ceiling is {ceiling.shown}", _own(stated).low <= _number(ceiling).high)


@_rule("ceiling or cache", 2, otherwise="exceeds the hardware")
def _ceiling_or_cache(stated: Row, inputs: list[Term]) -> Outcome:
    """A rate of memory is no more than its ceiling, unless Q, K, V and O fit the cache."""
    ceiling, cache = inputs
    size = _shape(stated).bytes
    if _own(stated).low <= _number(ceiling).high:
        return Outcome(_number(ceiling), f"no more than {ceiling.shown}", True)
    fits = size <= _number(cache).value
    how = f"above {ceiling.shown}; Q, K, V and O are {_mb(size)}, the L2 holds {cache.shown}"
    return Outcome(_number(ceiling), how, fits)


@_rule("floor", 2, otherwise="exceeds the hardware")
def _floor(stated: Row, inputs: list[Term]) -> Outcome:
    """A latency is no less than its FLOPs and its bytes take at the ceilings given: rate, then bandwidth."""
    least, why = _least(_shape(stated), *inputs)
    return Outcome(least, why, _own(stated).high >= least.low)


@_rule("headroom", 3, otherwise="exceeds the hardware")
def _headroom(stated: Row, inputs: list[Term]) -> Outcome:
    """A speedup over a latency is no more than the ceilings leave: inputs are latency, rate, bandwidth."""
    latency, rate, bandwidth = inputs
    least, why = _least(_shape(_of(latency)), rate, bandwidth)
    most = _number(latency) / least
    return Outcome(most, f"{latency.shown} over the floor: {why}", _own(stated).low <= most.high)


@_rule("no headroom", 4, otherwise="unsupported")
def _no_headroom(stated: Row, inputs: list[Term]) -> Outcome:
    """The ceilings leave less than a speedup worth claiming: latency, rate, bandwidth, and what is worth it."""
    latency, rate, bandwidth, bar = inputs
    least, why = _least(_shape(_of(latency)), rate, bandwidth)
    most = _number(latency) / least
    how = f"{latency.shown} is {most.value:.2f}× the floor: {why}; {bar.shown} would be worth claiming"
    return Outcome(f"up to {most.value:.2f}×", how, most.high < _number(bar).value)


@_rule("fits", 1)
def _fits(stated: Row, inputs: list[Term]) -> Outcome:
    """Q, K and V fit a cache."""
    (cache,) = inputs
    size = _shape(stated).bytes * 3 / 4
    agrees = size <= _number(cache).value
    return Outcome("fit" if agrees else "do not fit", f"Q, K and V are {_mb(size)}, the L2 holds {cache.shown}", agrees)


# ------------------------------------------------------------------------------------------------------------- shared


def _number(term: Term) -> Number:
    if term.number is None:
        raise UserError(f"{term.shown!r} is a word, where the rule needs a number")
    return term.number


def _own(row: Row) -> Number:
    if row.number is None:
        raise UserError(f"the stated {row.value!r} is a word, where the rule needs a number")
    return row.number


def _of(term: Term) -> Row:
    if term.row is None:
        raise UserError(f"{term.shown!r} is a constant, where the rule needs a row")
    return term.row


def _shape(row: Row) -> Shape:
    if row.shape is None:
        raise UserError(f"the row {row.id!r} has no shape, which the rule needs")
    return row.shape


def _square(shape: Shape) -> int:
    """FLOPs if nothing were masked."""
    return 4 * shape.batch * shape.heads * shape.seq_len**2 * shape.head_dim


def _rate(latency: Term) -> Number:
    return Number.exact(_square(_shape(_of(latency)))) / _number(latency)


def _work(before: Term, after: Term) -> float:
    return _shape(_of(after)).flops / _shape(_of(before)).flops


def _step(before: Term, after: Term) -> str:
    ratio, work = _number(after) / _number(before), _work(before, after)
    if ratio.contains(work):
        return "linear"
    return "super-linear" if ratio.value > work else "sub-linear"


def _best(stated: Row, best: Term, how: str) -> Outcome:
    shape = _shape(_of(best))
    return Outcome(_brief(shape), f"{how}: {best.shown} at {_brief(shape)}", shape == _shape(stated))


def _side(stated: Row, intensity: Number, rate: Term, bandwidth: Term) -> Outcome:
    ridge = _number(rate) / _number(bandwidth)
    found = "compute" if intensity.value > ridge.value else "memory"
    told = "compute" if "compute" in stated.value.casefold() else "memory"
    how = f"{intensity.value:.0f} FLOP/byte, the ridge is {rate.shown} over {bandwidth.shown}, {ridge.value:.0f}"
    return Outcome(f"{found}-bound", how, found == told)


def _least(shape: Shape, rate: Term, bandwidth: Term) -> tuple[Number, str]:
    """The floor of a shape, and what it is made of."""
    compute = Number.exact(shape.flops) / _number(rate)
    memory = Number.exact(shape.bytes) / _number(bandwidth)
    if compute.value > memory.value:
        return compute, f"{_gflop(shape.flops)} at {rate.shown} take {1e3 * compute.value:.4g} ms"
    return memory, f"{_mb(shape.bytes)} at {bandwidth.shown} take {1e3 * memory.value:.4g} ms"


def _overlap(low: Term, high: Term, other_low: Term, other_high: Term) -> bool:
    """Whether two intervals share more than an edge, as printed."""
    return (_number(low).value < _number(other_high).value and _number(other_low).value < _number(high).value) or _ends(
        low, high
    ) == _ends(other_low, other_high)


def _intervals(inputs: list[Term]) -> list[tuple[Shape, Term, Term]]:
    if len(inputs) % 2:
        raise UserError("the inputs should be lower and upper bounds in turn, and one is left over")
    found: dict[Shape, tuple[Shape, Term, Term]] = {}
    for low, high in zip(inputs[::2], inputs[1::2], strict=True):
        shape = _shape(_of(low))
        found.setdefault(shape, (shape, low, high))
    return list(found.values())


def _interval(interval: tuple[Shape, Term, Term]) -> str:
    shape, low, high = interval
    return f"{_brief(shape)} {_ends(low, high)}"


def _ends(low: Term, high: Term) -> str:
    return f"[{_of(low).value}, {_of(high).value}]"


def _place(row: Row) -> str:
    return f"{row.document}, “{row.place}”" if row.place != SHEET else f"the datasheet of the {row.document}"


def _at(term: Term) -> str:
    return f", at {_brief(term.row.shape)}" if term.row and term.row.shape else ""


def _sizes(terms: Sequence[Term]) -> str:
    """The shapes of terms, by the axes in which they differ."""
    shapes = [_shape(_of(term)) for term in terms]
    axes = {"B": "batch", "H": "heads", "S": "seq_len"}
    differ = {letter: axis for letter, axis in axes.items() if len({getattr(shape, axis) for shape in shapes}) > 1}
    return ", ".join(
        " ".join(f"{letter}={getattr(shape, axis)}" for letter, axis in differ.items()) for shape in shapes
    )


def _brief(shape: Shape) -> str:
    return f"B={shape.batch} H={shape.heads} S={shape.seq_len}"


def _mb(amount: float) -> str:
    return f"{amount / 1e6:.1f} MB"


def _gflop(amount: float) -> str:
    return f"{amount / 1e9:.4g} GFLOP"
