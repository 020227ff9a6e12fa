"""The ladder in one table: what each rung changes, what was expected of it, what came of it, and what holds it back."""

from typing import Any

from attnlab.exhibits import cells, formats
from attnlab.exhibits.catalogue import exhibit, target
from attnlab.exhibits.display import Table
from attnlab.exhibits.kernels.ablation import family, outcome
from attnlab.infer.counters import of as profiles_of
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Results
from attnlab.infer.rungs import has_kernels, rungs
from attnlab.study.shapes import Shape


@exhibit("kernels.summary", where=has_kernels, shape=target)
def summary(results: Results, shape: Shape) -> Table:
    """A row for each rung: change, expectation, outcome, and the first bottleneck by the counters."""
    judged, limits = family(results, shape), _limits(results)
    rows, outcomes = [], []
    for rung in rungs(results):
        row: dict[str, Any] = {"rung": rung.name, "what it changes": rung.title}
        if verdict := judged.get(rung.name):
            outcomes.append(outcome(rung.expected, verdict.speedup))
            row |= {
                "expected": f"{formats.times(rung.expected)}\n{outcomes[-1]}",
                "measured": formats.stacked(verdict.speedup),
            }
        rows.append(row | ({"held back most by": limits.get(rung.name)} if limits else {}))
    if not outcomes:
        raise NotMeasured(f"No rung and the one before it both have a latency at {shape.label}")
    counts = formats.listing([f"{outcomes.count(kind)} {kind}" for kind in dict.fromkeys(outcomes)])
    return Table(
        cells.whole(rows),
        f"Of {formats.count(len(outcomes), 'expectation')} of the ladder, {counts}: each rung against the rung that it "
        f"builds on at {shape.label}, {results.headline.words}.",
        "Expected and measured are speedups over that rung, stated before and inferred after.",
    )


def _limits(results: Results) -> dict[str, str]:
    """The first bottleneck of each implementation by its counters; none where they were not read."""
    try:
        profiles = profiles_of(results)
    except NotMeasured:
        return {}
    found = {profile.implementation: profile.bottlenecks for profile in profiles}
    return {name: f"{first[0].title}, {formats.percent(first[0].share_pct)}" for name, first in found.items() if first}
