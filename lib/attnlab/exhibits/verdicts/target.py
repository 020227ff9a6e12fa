"""The verdicts at one shape, and the statement that they support."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from attnlab.exhibits import decisions, formats
from attnlab.exhibits.catalogue import exhibit, target
from attnlab.exhibits.cells import REGIMES, explanations, interval_cell, sign, stacked_cell, under_each, without
from attnlab.exhibits.display import Prose, Table
from attnlab.exhibits.environment.cards import held_for, scope
from attnlab.exhibits.environment.machine import replicate_words
from attnlab.exhibits.formats import CI, MARGIN
from attnlab.exhibits.verdicts import values
from attnlab.infer import kinds, regimes
from attnlab.infer.kinds import OverKinds
from attnlab.infer.lookup import median_of
from attnlab.infer.results import NO_CONTROL, Pair, Results
from attnlab.infer.stats import Interval, Verdict, magnitude, mann_whitney
from attnlab.runs.rules import ALPHA, CLAIM_DELTA, CLAIM_SPEEDUP, POWER
from attnlab.study import implementations
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing


@exhibit("verdicts.publishable", shape=target)
def publishable(results: Results, shape: Shape) -> Prose:
    """For each candidate at a shape, the statement that its comparison with the baseline supports."""
    lines = []
    for name in results.candidates(shape):
        pair = results.study.baseline, name
        lines.append(f"- {statement_on(results, pair, shape, results.headline, under_each(results, name, shape))}")
    return Prose("\n".join(lines))


def statement_on(results: Results, pair: Pair, shape: Shape, timing: Timing, verdicts: Mapping[Timing, Verdict]) -> str:
    """What the verdict on (baseline, candidate) supports under one timing; `verdicts` are those under each."""
    baseline, candidate = (results.row(name, shape, timing) for name in pair)
    verdict, regime = verdicts[timing], REGIMES[regimes.compared(results, pair, shape, timing)]
    return (
        f"`{baseline.name}` takes {interval_us(baseline)}, `{candidate.name}` {interval_us(candidate)}: a speedup of "
        f"{formats.interval(verdict.speedup)}, Cliff's delta {formats.signed(verdict.delta)}, p adjusted by Holm "
        f"{_pvalue(verdict)}, {timing.words}, {regime}. "
        f"**{verdict.decision.capitalize()}**{decisions.claim(verdict)}.{_otherwise(verdicts, timing)}"
    )


def _otherwise(verdicts: Mapping[Timing, Verdict], timing: Timing) -> str:
    """What the other timings say of a candidate, in a sentence; empty where there are none."""
    others = {other: found for other, found in verdicts.items() if other != timing}
    return f" Under other timings: {decisions.under_each(others)}." if others else ""


def interval_us(row: object) -> str:
    return f"{formats.interval(median_of(row))} µs"


def _pvalue(verdict: Verdict) -> str:
    return formats.pvalue(verdict.pvalue) if verdict.pvalue < 1e-4 else f"= {formats.pvalue(verdict.pvalue)}"


JUDGED = [f"speedup [{CI}]", "p (Mann-Whitney)", "p (Holm)", "Cliff's delta", "Hedges' g", "intervals", "verdict"]
JUDGED += ["regime"]
REGIME_NOTE = (
    f"Regime: burst if the card throttled during at most {100 - regimes.MOSTLY_PCT} % of both sides' samples, "
    f"sustained from {regimes.MOSTLY_PCT} % on."
)


def pvalue_note(family: str) -> str:
    """What the p-values of a table are, and over which candidates they are adjusted."""
    return (
        f"p-values are Mann-Whitney's, adjusted by Holm over the candidates {family}. Where samples depend on each "
        "other, they are at least those of t tests over replicates, or over stretches of a single replicate."
    )


@exhibit("verdicts.to_beat")
def to_beat(results: Results) -> Table:
    """The latency that a kernel has to beat at the target shape."""
    shape = results.study.target_shape
    baseline, fastest = results.row(results.study.baseline, shape), results.row(results.fastest(shape), shape)
    claimable_us = min(baseline["low_us"], baseline["median_us"] / CLAIM_SPEEDUP)
    rows = [
        ("baseline", baseline.name),
        (f"its median (µs) [{CI}]", interval_cell(baseline)),
        (
            "its mean ± standard deviation (µs)",
            f"{formats.number(baseline['mean_us'], 4)} ± {formats.number(baseline['std_us'])}",
        ),
        (
            "its throughput (TFLOP/s)",
            formats.number(baseline["throughput_tflops"]) + sign(baseline["throughput_mark"]),
        ),
        (
            "its bandwidth, compulsory bytes (GB/s)",
            formats.number(baseline["bandwidth_gbs"]) + sign(baseline["bandwidth_mark"]),
        ),
        ("its peak memory (MiB)", formats.mebibytes(results.peak_bytes(str(baseline.name), shape))),
        ("fastest here", f"{fastest.name}, {interval_cell(fastest)} µs"),
        ("floor by the measured ceilings (µs)", formats.number(baseline["floor_us"])),
        (f"claimable below ({CLAIM_SPEEDUP:g}×, intervals apart) (µs)", formats.number(claimable_us, 4)),
    ]
    claim = f"A claim also needs |Cliff's delta| ≥ {CLAIM_DELTA:g} and a p-value that survives Holm's correction."
    note = " ".join(filter(None, [claim, explanations([baseline])]))
    return Table(
        pd.DataFrame(rows, columns=["", "value"]),
        f"What must be beaten at {shape.label}; {results.headline.words}.",
        note,
    )


@exhibit("verdicts.target", shape=target)
def verdicts(results: Results, shape: Shape) -> Table:
    """Every candidate against the baseline at one shape, and last the baseline against itself."""
    baseline, names = results.study.baseline, results.candidates(shape)
    family, row = results.family(shape), results.row(baseline, shape)
    its_regime = regimes.compared(results, [baseline], shape)
    rows: list[dict[str, Any]] = [
        {"implementation": baseline, f"median (µs) [{CI}]": stacked_cell(row), "verdict": "the baseline"}
        | {"regime": its_regime}
    ]
    for name, verdict in [(name, results.compare(name, shape)) for name in names]:
        rows.append({"implementation": name} | _compared(results, name, shape, verdict))
    note = (
        "Speedup is the ratio of medians, from paired rounds; above 1 the candidate is faster. Equivalent: within "
        f"±{MARGIN}, where an effect of that size could have been detected. Claimable: faster, the intervals of the "
        f"medians apart, a speedup of at least {CLAIM_SPEEDUP:.2f} and a delta of at least {CLAIM_DELTA:g}. "
        f"{pvalue_note('of this table')} The column of Mann-Whitney's own p-value takes all samples as independent. "
        f"Intervals: whether the interval of the median is apart from the baseline's. {REGIME_NOTE}"
    )
    if family.control is not None:
        itself = implementations.control(baseline)
        rows.append({"implementation": f"{baseline} again"} | _compared(results, itself, shape, family.control))
        rows[-1] |= {"p (Holm)": None, "verdict": family.control.decision}
        detectable = formats.percent(100 * family.smallest_effect)
        note += (
            " The last row is the baseline against itself: it took a second turn in each round, so any difference is "
            f"noise. It is not in the family that Holm adjusts for. The minimum detectable effect is {detectable}."
        )
    else:
        note += f" {NO_CONTROL}."
    note = " ".join([note, without(results, [n for n in results.study.implementations if n not in names], shape)])
    columns = ["implementation", f"median (µs) [{CI}]", *JUDGED]
    caption = f"Against `{baseline}` at {shape.label}; {results.headline.words}."
    return Table(pd.DataFrame(rows, columns=columns).astype(object), caption, note.strip(), 0)


def _compared(results: Results, name: str, shape: Shape, verdict: Verdict) -> dict[str, object]:
    """The cells of one comparison at a shape, under the headline's timing."""
    sides = [results.samples(each, shape) for each in (results.study.baseline, name)]
    baseline = median_of(results.row(results.study.baseline, shape))
    median = results.median(name, shape)
    return judged(results, (results.study.baseline, name), shape, results.headline, verdict) | {
        f"median (µs) [{CI}]": formats.stacked(median),
        "p (Mann-Whitney)": formats.pvalue(mann_whitney(*sides).pvalue),
        "intervals": "overlap" if median.overlaps(baseline) else "apart",
    }


def judged(results: Results, pair: Pair, shape: Shape, timing: Timing, verdict: Verdict) -> dict[str, object]:
    """The cells of the verdict on a pair of (baseline, candidate)."""
    return {
        f"speedup [{CI}]": formats.stacked(verdict.speedup),
        "p (Holm)": formats.pvalue(verdict.pvalue),
        "Cliff's delta": formats.signed(verdict.delta),
        "Hedges' g": formats.number(verdict.g),
        "verdict": decisions.cell(verdict),
        "regime": regimes.compared(results, pair, shape, timing),
    }


@exhibit("verdicts.timings", shape=target)
def timings(results: Results, shape: Shape) -> Table:
    """The verdict on every candidate at one shape under each timing."""
    rows = []
    for name in results.study.implementations:
        found = under_each(results, name, shape) if name != results.study.baseline else {}
        if found:
            cells = {str(timing): _brief(found[timing]) if timing in found else None for timing in results.timings}
            rows.append({"implementation": name, **cells})
    effects = {
        str(timing): f"{formats.percent(100 * results.smallest_effect(shape, timing))}"
        for timing in results.timings
        if results.is_controlled(shape, timing)
    }
    if rows and effects:
        rows.append({"implementation": "minimum detectable effect", **effects})
    caption = (
        f"{_depending(results, shape)}: against `{results.study.baseline}` at {shape.label}, the speedup with its {CI} "
        "interval, and the verdict."
    )
    note = "The columns are clock and cache. Holm adjusts within a column."
    return Table(pd.DataFrame(rows).astype(object), caption, note)


def _depending(results: Results, shape: Shape) -> str:
    """On how many candidates the verdict depends on the timing; of one timing, how many are faster."""
    judged = [under_each(results, name, shape) for name in results.candidates(shape)]
    if len(results.timings) > 1:
        differing = sum(len({verdict.decision for verdict in found.values()}) > 1 for found in judged)
        return f"For {differing} of {formats.count(len(judged), 'candidate')}, the verdict depends on the timing"
    faster = sum(verdict.decision == decisions.FASTER for found in judged for verdict in found.values())
    return f"{faster} of {formats.count(len(judged), 'candidate')} {'is' if faster == 1 else 'are'} faster"


def _brief(verdict: Verdict) -> str:
    return f"{formats.stacked(verdict.speedup)}\n{decisions.kind(verdict)}"


@exhibit("verdicts.statement", shape=target)
def statement(results: Results, shape: Shape) -> Prose:
    """A statement on a shape's best candidate, positive or negative: title, abstract, results, power and limits.

    Where several kinds of values were timed, it is made on the one on which that candidate gains least.
    """
    best = _best(results, shape)
    over = kinds.over(results, best, shape)
    shape = over.worst
    verdict, family = over.verdict, results.family(shape)
    parts = [
        *values.turned(results, shape),
        f"**{_title(results, best, shape, verdict)}**",
        f"> {_abstract(results, best, shape, verdict)}",
        "\n".join(f"- {line}" for line in _findings(results, best, shape, verdict)),
        power_sentence(results, shape, results.headline, verdict),
        f"*Limits.* {held_for(results)}, one shape, {_kinds(over)}, {results.headline.words}, "
        f"{formats.count(len(family.verdicts), 'candidate')}: other devices, shapes and implementations may "
        "differ.",
    ]
    return Prose("\n\n".join(parts))


def _best(results: Results, shape: Shape) -> str:
    """The best candidate, each on its worst kind of values: a claimable one before a faster one before the one with the
    highest speedup. What has no latency on some kind comes last."""

    def rank(name: str) -> tuple[bool, bool, bool, float]:
        over = kinds.over(results, name, shape)
        verdict = over.verdict
        return not over.lacking, verdict.claimable, verdict.decision == decisions.FASTER, verdict.speedup.estimate

    return max(results.candidates(shape), key=rank)


def _kinds(over: OverKinds) -> str:
    """On which values a statement was made, and on which its candidate has no latency."""
    lacks = formats.listing([shape.values for shape in over.lacking])
    without = f", without a latency on {lacks}" if over.lacking else ""
    if len(over.verdicts) == 1:
        others = "" if over.lacking else " (others are timed with `values: all` in the study)"
        return f"{over.worst.values} values alone{others}{without}"
    return f"{len(over.verdicts)} kinds of values ({values.worst(over)}){without}"


def _title(results: Results, best: str, shape: Shape, verdict: Verdict) -> str:
    baseline = results.study.baseline
    where = f"at {shape.label} {scope(results)}"
    if verdict.decision == decisions.FASTER:
        gain = f"`{best}` is {formats.number(verdict.speedup.estimate)} times as fast as `{baseline}` {where}"
        claim = "" if verdict.claimable else decisions.claim(verdict)
        return f"{gain}{claim}, {results.headline.words}{_contradicted(results, best, shape)}"
    several = len(kinds.shapes(results, shape)) > 1
    everywhere = f"on every kind of values at {shape.plain.label} {scope(results)}" if several else where
    ending = (
        f"the nearest, `{best}`, is {decisions.relation(verdict)} it{f' on {shape.values} values' if several else ''}"
    )
    return f"No candidate was found to be faster than `{baseline}` {everywhere}: {ending}"


def _contradicted(results: Results, best: str, shape: Shape) -> str:
    """The timings under which a candidate that is faster by the headline's is slower."""
    judged = under_each(results, best, shape)
    slower = {timing: found for timing, found in judged.items() if found.decision == decisions.SLOWER}
    return f"; {decisions.under_each(slower)}" if slower else ""


def _abstract(results: Results, best: str, shape: Shape, verdict: Verdict) -> str:
    baseline, count = results.study.baseline, len(results.candidates(shape))
    its, ours = (formats.interval(results.median(name, shape)) for name in (baseline, best))
    timed = f"{results.headline.words}, {REGIMES[regimes.compared(results, [baseline, best], shape)]}"
    return (
        f"`{baseline}` achieved {its} µs and `{best}` {ours} µs (medians with {CI} intervals, "
        f"{_effort(results, best, shape)}; {timed}), a speedup of "
        f"{formats.interval(verdict.speedup)}. The effect is {magnitude(verdict.delta)} (Cliff's delta "
        f"{formats.signed(verdict.delta)}, Hedges' g {formats.number(verdict.g)}), {_significance(verdict)} after "
        f"Holm's adjustment over {formats.count(count, 'comparison')}. **{_conclusion(results, best, shape, verdict)}"
        f"{_otherwise(under_each(results, best, shape), results.headline)}**"
    )


def _effort(results: Results, best: str, shape: Shape) -> str:
    row = results.row(best, shape)
    return f"{row['samples']:.0f} samples each in {replicate_words(results)}, in interleaved rounds"


def _significance(verdict: Verdict) -> str:
    p = formats.pvalue(verdict.pvalue)
    stated = f"p {p}" if p.startswith("<") else f"p = {p}"
    return f"and the difference is {'' if verdict.pvalue < ALPHA else 'not '}significant ({stated})"


def _conclusion(results: Results, best: str, shape: Shape, verdict: Verdict) -> str:
    if verdict.decision == decisions.INCONCLUSIVE:
        return "Neither a difference nor equivalence was shown."
    compared = f"`{best}` is {decisions.relation(verdict)} `{results.study.baseline}`{decisions.claim(verdict)}"
    if verdict.decision == decisions.FASTER and not verdict.claimable:
        return f"{compared}: {_missing(results, best, shape, verdict)}."
    return f"{compared}."


def _missing(results: Results, best: str, shape: Shape, verdict: Verdict) -> str:
    """The conditions of a claim that a faster candidate doesn't meet."""
    lacks = {
        f"the speedup is below {CLAIM_SPEEDUP:.2f}": verdict.speedup.estimate < CLAIM_SPEEDUP,
        f"|delta| is below {CLAIM_DELTA:g}": abs(verdict.delta) < CLAIM_DELTA,
        "the intervals of the medians overlap": _overlap(results, best, shape),
    }
    return formats.listing([words for words, lacking in lacks.items() if lacking])


def _overlap(results: Results, best: str, shape: Shape) -> bool:
    return results.median(results.study.baseline, shape).overlaps(results.median(best, shape))


def _findings(results: Results, best: str, shape: Shape, verdict: Verdict) -> list[str]:
    baseline = results.study.baseline
    medians = {name: results.median(name, shape) for name in (baseline, best)}
    ratio = verdict.speedup
    gain = Interval(*(100 * (value - 1) for value in (ratio.estimate, ratio.low, ratio.high)))
    apart = "overlap" if _overlap(results, best, shape) else "are apart"
    return [
        *(f"`{name}`: {formats.interval(median)} µs" for name, median in medians.items()),
        f"speedup: {formats.interval(verdict.speedup)} ({formats.change(gain)}); the intervals of the medians {apart}",
        f"effect size: Cliff's delta {formats.signed(verdict.delta)} ({magnitude(verdict.delta)}), Hedges' g "
        f"{formats.number(verdict.g)}",
        f"p, adjusted by Holm: {formats.pvalue(verdict.pvalue)}",
        f"regime: {regimes.compared(results, [baseline, best], shape)}",
        f"verdict: {verdict.decision}, {'claimable' if verdict.claimable else 'not claimable'}",
    ]


def power_sentence(results: Results, shape: Shape, timing: Timing, verdict: Verdict) -> str:
    """How large an effect could have been detected at a shape under a timing."""
    if not results.is_controlled(shape, timing):
        return f"*Power.* {NO_CONTROL}. Its minimum detectable effect is unknown."
    control = results.control(shape, timing)
    smallest = formats.percent(100 * results.smallest_effect(shape, timing))
    power = (
        f"*Power.* Against itself, `{results.study.baseline}` has a ratio of {formats.interval(control.speedup)}. From "
        f"that, an effect of {smallest} or more would have been detected with a power of {100 * POWER:g} %"
    )
    if verdict.decision in (decisions.FASTER, decisions.SLOWER):
        return f"{power}; this one is {formats.percent(100 * abs(np.expm1(abs(np.log(verdict.speedup.estimate)))))}."
    return f"{power}; a smaller one can't be excluded. That nothing was faster does not show that nothing can be."
