"""Work and speed: FLOPs, bytes, rates, and which configuration is best."""

from collections.abc import Sequence
from itertools import pairwise

from attnlab.literature.audit.numbers import Number, gigaflop, megabytes
from attnlab.literature.audit.reference import Row, Term
from attnlab.literature.audit.rules.rule import Outcome, brief, number, row_of, rule, shape_of, stated_number
from attnlab.study.shapes import Shape


@rule("best throughput", least=2)
def _best_throughput(stated: Row, *inputs: Term) -> Outcome:
    return _best(stated, max(inputs, key=lambda term: _rate(term).value), f"the highest throughput of {len(inputs)}")


@rule("best samples per second", least=2)
def _best_samples(stated: Row, *inputs: Term) -> Outcome:
    best = max(inputs, key=lambda term: shape_of(row_of(term)).batch / number(term).value)
    return _best(stated, best, f"the most samples a second of {len(inputs)}")


@rule("best latency per head", least=2)
def _best_per_head(stated: Row, *inputs: Term) -> Outcome:
    best = min(inputs, key=lambda term: number(term).value / shape_of(row_of(term)).heads)
    return _best(stated, best, f"the lowest latency a head of {len(inputs)}")


@rule("least latency", least=2)
def _least_latency(stated: Row, *inputs: Term) -> Outcome:
    best = min(inputs, key=lambda term: number(term).value)
    agrees = row_of(best).subject == stated.subject
    return Outcome(row_of(best).subject, f"{best.shown} is the least of {len(inputs)}", agrees)


@rule("throughput drops", least=2)
def _throughput_drops(stated: Row, *inputs: Term) -> Outcome:
    """Throughput after is below throughput before; what each is follows from shape and latency."""
    before, *after = (_rate(term) for term in inputs)
    agrees = all(rate.high < before.low for rate in after)
    rates = ", ".join(f"{rate.value / 1e12:.1f}" for rate in (before, *after))
    return Outcome("drops" if agrees else "does not drop", f"{rates} TFLOP/s at {_sizes(inputs)}", agrees)


@rule("scaling", least=2)
def _scaling(stated: Row, *inputs: Term) -> Outcome:
    """Latency against work, step by step: ``linear`` where their ratios agree within what was printed."""
    kinds = [_step(one, other) for one, other in pairwise(inputs)]
    told = stated.value.casefold()
    if "non-linear" in told:
        agrees = set(kinds) != {"linear"}
    else:
        agrees = set(kinds) == {next(kind for kind in ("sub-linear", "super-linear", "linear") if kind in told)}
    ratios = ((number(other) / number(one), _work(one, other)) for one, other in pairwise(inputs))
    steps = (f"{ratio.value:.2f}× for {work:g}× the work" for ratio, work in ratios)
    return Outcome(" and ".join(dict.fromkeys(kinds)), ", ".join(steps), agrees)


@rule("throughput")
def _throughput(stated: Row, latency: Term) -> Outcome:
    """4·B·H·S²·D FLOPs over a latency, whatever the mask hides: the documents' own convention."""
    work = _square(shape_of(row_of(latency)))
    return Outcome(Number.exact(work) / number(latency), f"{gigaflop(work)} in {latency.shown}")


@rule("throughput under the mask", otherwise="wrong work")
def _masked_throughput(stated: Row, latency: Term) -> Outcome:
    shape = shape_of(row_of(latency))
    how = f"{gigaflop(shape.flops)} under the mask in {latency.shown}, not {gigaflop(_square(shape))}"
    return Outcome(Number.exact(shape.flops) / number(latency), how)


@rule("bandwidth")
def _bandwidth(stated: Row, latency: Term) -> Outcome:
    moved = shape_of(row_of(latency)).bytes
    return Outcome(Number.exact(moved) / number(latency), f"Q, K, V and O, {megabytes(moved)}, in {latency.shown}")


@rule("samples per second")
def _samples_per_second(stated: Row, latency: Term) -> Outcome:
    batch = shape_of(row_of(latency)).batch
    return Outcome(Number.exact(batch) / number(latency), f"{batch} in {latency.shown}")


@rule("latency per head and batch element")
def _per_unit(stated: Row, latency: Term) -> Outcome:
    shape = shape_of(row_of(latency))
    found = number(latency) / Number.exact(shape.batch * shape.heads)
    return Outcome(found, f"{latency.shown} over {shape.batch} × {shape.heads}")


@rule("flops")
def _flops(stated: Row) -> Outcome:
    shape = shape_of(stated)
    return Outcome(Number.exact(_square(shape)), f"4·B·H·S²·D at {brief(shape)}")


@rule("bytes", otherwise="wrong work")
def _bytes(stated: Row) -> Outcome:
    shape = shape_of(stated)
    return Outcome(Number.exact(shape.bytes), f"Q, K, V and O once each, 8·B·H·S·D, at {brief(shape)}")


@rule("intensity", otherwise="wrong work")
def _intensity(stated: Row) -> Outcome:
    shape = shape_of(stated)
    how = f"{gigaflop(shape.flops)} over {megabytes(shape.bytes)} of Q, K, V and O"
    return Outcome(Number.exact(shape.intensity), how)


@rule("room for the tensors", otherwise="wrong work")
def _room(stated: Row) -> Outcome:
    """Memory stated holds at least Q, K, V and O."""
    needed = Number.exact(shape_of(stated).bytes)
    return Outcome(needed, f"Q, K, V and O are {megabytes(needed.value)}", stated_number(stated).high >= needed.value)


@rule("speedup at equal work", otherwise="wrong work")
def _equal_work(stated: Row, before: Term, after: Term) -> Outcome:
    """A ratio of latencies times the ratio of FLOPs that were done in them."""
    work = Number.exact(_work(before, after))
    found = number(before) / number(after) * work
    compared = f"{work.value:g} times the work" if work.value > 1 else f"1/{1 / work.value:g} of the work"
    return Outcome(found, f"{before.shown} over {after.shown}, for {compared}")


@rule("speedup at equal tokens", otherwise="wrong work")
def _equal_tokens(stated: Row, before: Term, after: Term) -> Outcome:
    """A ratio of latencies times the ratio of tokens that were attended from: chunks that don't see one another."""
    one, other = shape_of(row_of(before)), shape_of(row_of(after))
    tokens = other.batch * other.seq_len / (one.batch * one.seq_len)
    found = number(before) / number(after) * Number.exact(tokens)
    return Outcome(found, f"{1 / tokens:g} calls of {after.shown} for the tokens of one of {before.shown}")


def _square(shape: Shape) -> int:
    return 4 * shape.batch * shape.heads * shape.seq_len**2 * shape.head_dim


def _rate(latency: Term) -> Number:
    return Number.exact(_square(shape_of(row_of(latency)))) / number(latency)


def _work(before: Term, after: Term) -> float:
    return shape_of(row_of(after)).flops / shape_of(row_of(before)).flops


def _step(before: Term, after: Term) -> str:
    ratio, work = number(after) / number(before), _work(before, after)
    if ratio.contains(work):
        return "linear"
    return "super-linear" if ratio.value > work else "sub-linear"


def _best(stated: Row, best: Term, how: str) -> Outcome:
    shape = shape_of(row_of(best))
    return Outcome(brief(shape), f"{how}: {best.shown} at {brief(shape)}", shape == shape_of(stated))


def _sizes(terms: Sequence[Term]) -> str:
    shapes = [shape_of(row_of(term)) for term in terms]
    axes = {"B": "batch", "H": "heads", "S": "seq_len"}
    differ = {letter: axis for letter, axis in axes.items() if len({getattr(shape, axis) for shape in shapes}) > 1}
    named = ([f"{letter}={getattr(shape, axis)}" for letter, axis in differ.items()] for shape in shapes)
    return ", ".join(map(" ".join, named))
