"""Limits of the hardware: regimes, ceilings, floors and what fits a cache."""

from attnlab.literature.audit.numbers import Number, gigaflop, megabytes
from attnlab.literature.audit.reference import Row, Term
from attnlab.literature.audit.rules.rule import Outcome, number, row_of, rule, shape_of, stated_number
from attnlab.study.shapes import Shape


@rule("regime")
def _regime(stated: Row, intensity: Term, rate: Term, bandwidth: Term) -> Outcome:
    """Which side of the ridge an intensity is on: inputs are intensity, peak rate, peak bandwidth."""
    return _side(stated, number(intensity), rate, bandwidth)


@rule("regime of the shape")
def _regime_of_shape(stated: Row, rate: Term, bandwidth: Term) -> Outcome:
    return _side(stated, Number.exact(shape_of(stated).intensity), rate, bandwidth)


@rule("ceiling", otherwise="exceeds the hardware")
def _ceiling(stated: Row, ceiling: Term) -> Outcome:
    """A rate is no more than a ceiling, whatever a cache holds."""
    agrees = stated_number(stated).low <= number(ceiling).high
    return Outcome(number(ceiling), f"the ceiling is {ceiling.shown}", agrees)


@rule("ceiling or cache", otherwise="exceeds the hardware")
def _ceiling_or_cache(stated: Row, ceiling: Term, cache: Term) -> Outcome:
    """A rate of memory is no more than its ceiling, unless Q, K, V and O fit the cache."""
    size = shape_of(stated).bytes
    if stated_number(stated).low <= number(ceiling).high:
        return Outcome(number(ceiling), f"no more than {ceiling.shown}", True)
    fits = size <= number(cache).value
    how = f"above {ceiling.shown}; Q, K, V and O are {megabytes(size)}, the L2 holds {cache.shown}"
    return Outcome(number(ceiling), how, fits)


@rule("floor", otherwise="exceeds the hardware")
def _floor(stated: Row, rate: Term, bandwidth: Term) -> Outcome:
    """A latency is no less than its FLOPs and its bytes take at the ceilings given: rate, then bandwidth."""
    least, why = _least(shape_of(stated), rate, bandwidth)
    return Outcome(least, why, stated_number(stated).high >= least.low)


@rule("headroom", otherwise="exceeds the hardware")
def _headroom(stated: Row, latency: Term, rate: Term, bandwidth: Term) -> Outcome:
    """A speedup over a latency is no more than the ceilings leave: inputs are latency, rate, bandwidth."""
    most, why = _most(latency, rate, bandwidth)
    return Outcome(most, f"{latency.shown} over the floor: {why}", stated_number(stated).low <= most.high)


@rule("no headroom", otherwise="unsupported")
def _no_headroom(stated: Row, latency: Term, rate: Term, bandwidth: Term, bar: Term) -> Outcome:
    """The ceilings leave less than a speedup worth claiming: latency, rate, bandwidth, and what is worth it."""
    most, why = _most(latency, rate, bandwidth)
    how = f"{latency.shown} is {most.value:.2f}× the floor: {why}; {bar.shown} would be worth claiming"
    return Outcome(f"up to {most.value:.2f}×", how, most.high < number(bar).value)


@rule("fits")
def _fits(stated: Row, cache: Term) -> Outcome:
    """Q, K and V fit a cache."""
    size = shape_of(stated).bytes * 3 / 4
    agrees = size <= number(cache).value
    how = f"Q, K and V are {megabytes(size)}, the L2 holds {cache.shown}"
    return Outcome("fit" if agrees else "do not fit", how, agrees)


def _side(stated: Row, intensity: Number, rate: Term, bandwidth: Term) -> Outcome:
    ridge = number(rate) / number(bandwidth)
    found = "compute" if intensity.value > ridge.value else "memory"
    told = "compute" if "compute" in stated.value.casefold() else "memory"
    how = f"{intensity.value:.0f} FLOP/byte, the ridge is {rate.shown} over {bandwidth.shown}, {ridge.value:.0f}"
    return Outcome(f"{found}-bound", how, found == told)


def _most(latency: Term, rate: Term, bandwidth: Term) -> tuple[Number, str]:
    least, why = _least(shape_of(row_of(latency)), rate, bandwidth)
    return number(latency) / least, why


def _least(shape: Shape, rate: Term, bandwidth: Term) -> tuple[Number, str]:
    compute = Number.exact(shape.flops) / number(rate)
    memory = Number.exact(shape.bytes) / number(bandwidth)
    if compute.value > memory.value:
        return compute, f"{gigaflop(shape.flops)} at {rate.shown} take {1e3 * compute.value:.4g} ms"
    return memory, f"{megabytes(shape.bytes)} at {bandwidth.shown} take {1e3 * memory.value:.4g} ms"
