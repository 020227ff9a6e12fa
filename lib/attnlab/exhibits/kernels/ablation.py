"""Each rung against the rung that it builds on: what was expected, what came of it, and what holds it back."""

from itertools import pairwise
from typing import Any

from attnlab.exhibits import decisions, formats
from attnlab.exhibits.catalogue import exhibit, target
from attnlab.exhibits.display import Group, Prose, Table
from attnlab.exhibits.words import say
from attnlab.infer import counters
from attnlab.infer.counters import Bottleneck
from attnlab.infer.kernels.rungs import has_kernels
from attnlab.infer.kernels.steps import Step, steps
from attnlab.infer.lookup import NotMeasured, known
from attnlab.infer.results import Results
from attnlab.infer.stats import Verdict
from attnlab.study.shapes import Shape


@exhibit("kernels.ablation", where=has_kernels, shape=target)
def ablation(results: Results, shape: Shape) -> Group:
    """Every rung against the rung that it builds on; losses are stated as plainly as gains."""
    found = steps(results, shape)
    hypotheses = Prose(say("kernels.hypotheses", steps=found))
    judged = [_judged(step, step.verdict) for step in found if step.verdict]
    if not judged:
        return Group({"hypotheses": hypotheses})
    table = Table.of(
        judged,
        f"Each rung against the rung that it builds on, at {shape.label}; {results.headline.words}.",
        say("kernels.ablation", comparisons=len(judged)),
        shows={"expected": formats.times},
    )
    return Group({"verdicts": table, "hypotheses": hypotheses})


def _judged(step: Step, verdict: Verdict) -> dict[str, Any]:
    return {
        "rung": step.rung.implementation,
        "over": step.rung.before,
        "expected": step.rung.expected_speedup,
        "outcome": step.outcome,
        "speedup": verdict.speedup,
        "cliffs_delta": verdict.delta,
        "p_holm": verdict.pvalue,
        "verdict": decisions.kind(verdict),
    }


@exhibit("kernels.summary", where=has_kernels, shape=target)
def summary(results: Results, shape: Shape) -> Table:
    """A row for each rung: change, latency, speedup, what was expected, and the first bottleneck by the counters."""
    found, limits = steps(results, shape), _limits(results)
    if not any(step.verdict for step in found):
        raise NotMeasured(f"No rung and the one before it both have a latency at {shape.label}")
    rows = [
        {
            "rung": step.rung.implementation,
            "what it changes": step.rung.title,
            "median (µs)": results.value(step.rung.implementation, shape, "median_us"),
            "speedup": step.verdict.speedup if step.verdict else None,
            "expected": f"{formats.times(step.rung.expected_speedup)},\n{step.outcome}" if step.verdict else None,
            "largest bottleneck": f"{limit.title}, {formats.percent(limit.share_pct)}" if limit else None,
        }
        for step in found
        for limit in [limits.get(step.rung.implementation)]
    ]
    outcomes = [step.outcome for step in found if step.outcome]
    counts = formats.listing([f"{outcomes.count(kind)} {kind}" for kind in dict.fromkeys(outcomes)])
    others = {
        step.rung.implementation: step.rung.before
        for above, step in pairwise(found)
        if step.verdict and step.rung.before != above.rung.implementation
    }
    return Table.of(
        rows,
        f"Of {formats.count(len(outcomes), 'expectation')} of the ladder, {counts}: each rung against the rung that it "
        f"builds on at {shape.label}, {results.headline.words}.",
        say("kernels.summary", others=others) + (f" {say('profile.by_design')}" if limits else ""),
        sparse=True,
    )


def _limits(results: Results) -> dict[str, Bottleneck]:
    """The first bottleneck of each implementation by its counters; none where they were not read."""
    profiles = known(lambda: counters.of(results)) or []
    return {profile.implementation: profile.bottlenecks[0] for profile in profiles if profile.bottlenecks}
