"""The verdicts at one shape, and the statement that they support."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from attnlab.base.rules import CLAIM_SPEEDUP, GATE_FACTOR
from attnlab.exhibits import decisions, formats, quantities
from attnlab.exhibits.catalogue import exhibit, target
from attnlab.exhibits.cells import without
from attnlab.exhibits.display import Prose, Table
from attnlab.exhibits.environment.cards import held_for, scope
from attnlab.exhibits.environment.machine import replicate_words
from attnlab.exhibits.words import say
from attnlab.infer import kinds, regimes, stats
from attnlab.infer.compare.repeat import in_percent
from attnlab.infer.families import disagree
from attnlab.infer.lookup import NotMeasured, on_values
from attnlab.infer.results import NO_CONTROL, Pair, Results, absence
from attnlab.infer.stats import Verdict
from attnlab.runs.schema import is_of
from attnlab.study import implementations
from attnlab.study.implementations import in_fp8
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing

JUDGED = [
    "speedup",
    "decision",
    "p (Mann-Whitney)",
    "p_holm",
    "cliffs_delta",
    "hedges_g",
    "intervals_of_medians",
    "regime",
]


@exhibit("verdicts.publishable", shape=target)
def publishable(results: Results, shape: Shape) -> Prose:
    """For each candidate at a shape, the statement that its comparison with the baseline supports."""
    under = {(results.study.baseline, name): results.under_each(name, shape) for name in results.candidates(shape)}
    said = (supported(results, pair, shape, results.headline, verdicts) for pair, verdicts in under.items())
    return Prose("\n".join(f"- {line}" for line in said))


def supported(results: Results, pair: Pair, shape: Shape, timing: Timing, verdicts: Mapping[Timing, Verdict]) -> str:
    """What the verdict on (baseline, candidate) supports under one timing; `verdicts` are those under each."""
    return say(
        "verdicts.supported",
        medians={name: results.median(name, shape, timing) for name in pair},
        verdict=verdicts[timing],
        timing=timing,
        regime=regimes.compared(results, pair, shape, timing),
        others={other: found for other, found in verdicts.items() if other != timing},
    )


@exhibit("verdicts.to_beat")
def to_beat(results: Results) -> Table:
    """The latency that a kernel has to beat at the target shape: the baseline's, and the least."""
    shape, baseline = results.study.target_shape, results.study.baseline
    columns = ("median_us", "mean_us", "std_us", "throughput_tflops", "bandwidth_gbs", "floor_us")
    rows = [
        {"implementation": name}
        | quantities.cells(results.row(name, shape), *columns)
        | {"peak_memory_bytes": results.peak_bytes(name, shape)}
        for name in dict.fromkeys((baseline, results.fastest(shape)))
    ]
    row = results.row(baseline, shape)
    return Table.of(
        rows,
        f"What must be beaten at {shape.label}: the baseline, and whatever is the fastest; {results.headline.words}.",
        say("verdicts.claimable_below", median_us=min(row["low_us"], row["median_us"] / CLAIM_SPEEDUP)),
        shows={"mean_us": partial(formats.number, digits=4)},
    )


@exhibit("verdicts.target", shape=target)
def verdicts(results: Results, shape: Shape) -> Table:
    """Every candidate against the baseline at one shape, and last the baseline against itself."""
    baseline, names, family = results.study.baseline, results.candidates(shape), results.family(shape)
    rows: list[dict[str, Any]] = [
        {"implementation": baseline, "median_us": results.median(baseline, shape), "decision": "the baseline"}
        | {"regime": regimes.compared(results, [baseline], shape)}
    ]
    rows += [{"implementation": name} | _compared(results, name, shape, family.verdicts[name]) for name in names]
    if family.control is not None:
        itself = _compared(results, implementations.control(baseline), shape, family.control)
        itself |= {"p_holm": None, "decision": family.control.decision}
        rows.append({"implementation": f"{baseline} again"} | itself)
    return Table(
        pd.DataFrame(rows, columns=["implementation", "median_us", *JUDGED]).astype(object),
        f"Against `{baseline}` at {shape.label}; {results.headline.words}.",
        say(
            "verdicts.target_note",
            family=family,
            mostly=regimes.MOSTLY_PCT,
            no_control=NO_CONTROL,
            turned=kinds.turned(results, shape),
            absent=without(results, [name for name in results.study.implementations if name not in names], shape),
        ),
        0,
        {"p (Mann-Whitney)": formats.pvalue},
    )


def _compared(results: Results, name: str, shape: Shape, verdict: Verdict) -> dict[str, object]:
    """The cells of one comparison at a shape, under the headline's timing."""
    sides = [results.samples(each, shape) for each in (results.study.baseline, name)]
    return judged(results, (results.study.baseline, name), shape, results.headline, verdict) | {
        "median_us": results.median(name, shape),
        "p (Mann-Whitney)": stats.mann_whitney(*sides).pvalue,
        "intervals_of_medians": "apart" if results.are_apart(name, shape) else "overlap",
    }


def judged(results: Results, pair: Pair, shape: Shape, timing: Timing, verdict: Verdict) -> dict[str, object]:
    """The cells of the verdict on a pair of (baseline, candidate), by the names of quantities."""
    return {
        "speedup": verdict.speedup,
        "decision": decisions.kind(verdict),
        "p_holm": verdict.pvalue,
        "cliffs_delta": verdict.delta,
        "hedges_g": verdict.g,
        "regime": regimes.compared(results, pair, shape, timing),
    }


def in_short(results: Results) -> str:
    """What the baseline takes at the target, and a line for each candidate: the verdict, or why it has no latency."""
    study, shape = results.study, results.study.target_shape
    there = results.at(shape).index
    if study.baseline not in there:
        return f"{study.baseline} has no latency at {shape.label}: {absence(results, study.baseline, shape)}"
    others = [name for name in study.implementations if name != study.baseline]
    width = max(map(len, study.implementations))
    verdicts = {name: results.compare(name, shape) for name in others if name in there}
    words = {name: f"{formats.interval(found.speedup)}  {decisions.kind(found)}" for name, found in verdicts.items()}
    lines = [f"  {name:{width}}  {words.get(name) or absence(results, name, shape)}" for name in others]
    median = formats.interval(results.median(study.baseline, shape))
    return "\n".join([f"{shape.label}, {results.headline.words}: {study.baseline} {median} µs, and over it", *lines])


@exhibit("verdicts.timings", shape=target)
def timings(results: Results, shape: Shape) -> Table:
    """The verdict on every candidate at one shape under each timing."""
    found = {name: results.under_each(name, shape) for name in results.candidates(shape)}
    rows = [
        {"implementation": name} | {str(timing): decisions.marked(verdict) for timing, verdict in under.items()}
        for name, under in found.items()
    ]
    baseline = results.study.baseline
    timed = {timing: results.at(shape, timing) for timing in results.timings}
    medians = {timing: at.loc[baseline, "median_us"] for timing, at in timed.items() if baseline in at.index}
    controlled = [timing for timing in results.timings if results.is_controlled(shape, timing)]
    effects = {timing: results.smallest_effect(shape, timing) for timing in controlled}
    return Table(
        pd.DataFrame(rows, columns=["implementation", *map(str, results.timings)]).astype(object),
        say(
            "verdicts.timings",
            depending=sum(map(disagree, found.values())) if len(results.timings) > 1 else None,
            faster=sum(verdict.decision == decisions.FASTER for under in found.values() for verdict in under.values()),
            candidates=len(found),
            baseline=baseline,
            label=shape.label,
        ),
        say("verdicts.timings_note", effects=effects, baseline=baseline, medians=medians),
    )


@exhibit("verdicts.statement", of="valued", shape=target)
def statement(results: Results, shape: Shape) -> Prose:
    """A statement on a shape's best candidate, positive or negative: title, abstract, results, power and limits.

    Where several kinds of values were timed, it is made on the one on which that candidate gains least.
    """
    baseline, found = results.study.baseline, kinds.statement(results, shape)
    name, shape = found.over.candidate, found.shape
    regime = regimes.compared(results, [baseline, name], shape)
    return Prose(
        say(
            "verdicts.statement",
            s=found,
            baseline=baseline,
            several=len(kinds.shapes(results, shape)) > 1,
            medians={each: results.median(each, shape) for each in (baseline, name)},
            gain=in_percent(found.verdict.speedup),
            magnitude=stats.magnitude(found.verdict.delta),
            samples=results.row(name, shape)["samples"],
            effort=replicate_words(results, shape),
            timing=results.headline,
            others={timing: other for timing, other in found.under.items() if timing != results.headline},
            regime=regime,
            candidates=len(results.candidates(shape)),
            power=power(results, shape, results.headline, found.verdict),
            scope=scope(results),
            held_for=held_for(results),
        )
    )


def power(results: Results, shape: Shape, timing: Timing, verdict: Verdict) -> str:
    """How large an effect could have been detected at a shape under a timing."""
    is_controlled = results.is_controlled(shape, timing)
    return say(
        "verdicts.power",
        no_control=NO_CONTROL,
        baseline=results.study.baseline,
        control=results.control(shape, timing) if is_controlled else None,
        smallest_pct=100 * results.smallest_effect(shape, timing) if is_controlled else None,
        verdict=verdict,
        effect_pct=100 * np.expm1(abs(np.log(verdict.speedup.estimate))),
    )


@exhibit("verdicts.accuracy", shape=target)
def accuracy(results: Results, shape: Shape) -> Table:
    """Latency beside the mean error at one shape, and the share that this is of the gate's limit."""
    checks = on_values(results.run.checks)
    checks = checks[is_of(checks, shape) & ~checks["implementation"].map(in_fp8)] if len(checks) else checks
    there = [name for name in results.at(shape).index if name in set(checks["implementation"])]
    if not there:
        raise NotMeasured(f"Nothing has both a latency and a checked error at {shape.label}")
    allowed = GATE_FACTOR * float(checks["framework_mean_error"].min())
    errors = checks.groupby("implementation")["mean_error"].agg(["mean", "max"])
    rows = [
        {
            "implementation": name,
            "median_us": results.median(name, shape),
            "mean error": errors.at[name, "mean"],
            "of the limit": 100 * errors.at[name, "max"] / allowed,
        }
        for name in there
    ]
    lost = [name for name in results.study.implementations if name not in there and not in_fp8(name)]
    note = say("verdicts.accuracy", allowed=allowed, absent=without(results, lost, shape))
    caption = f"Speed and accuracy at {shape.label}; {results.headline.words}."
    return Table.of(rows, caption, note, shows={"of the limit": formats.percent})
