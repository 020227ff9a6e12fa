"""What a reader should keep: whether a candidate is faster depends on the timing, and the findings in a box."""

from collections.abc import Callable, Mapping
from itertools import combinations

from attnlab.exhibits import decisions, formats
from attnlab.exhibits.audit import in_short
from attnlab.exhibits.baseline.lengths import costliest
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.cells import under_each
from attnlab.exhibits.decisions import FASTER, SLOWER
from attnlab.exhibits.display import Box, Figure
from attnlab.exhibits.environment.load import slowest
from attnlab.exhibits.environment.panel import agreeing
from attnlab.exhibits.formats import CI
from attnlab.exhibits.kernels import lead
from attnlab.exhibits.kernels.climb import standing_sentence
from attnlab.exhibits.style import TIMINGS, ratio_rows
from attnlab.exhibits.verdicts import values
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Results
from attnlab.infer.stats import Verdict
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing

Found = Mapping[Timing, Mapping[Shape, Verdict]]


@exhibit("verdicts.signs")
def signs(results: Results) -> Figure:
    """The fastest candidate over the baseline at every shape, a mark for each timing."""
    name = leader(results)
    found = _verdicts(results, name)
    shapes = [shape for shape in results.study.shapes if any(shape in under for under in found.values())]
    titles = {shape: formats.shapes([shape], results.study.shapes) for shape in shapes}
    series = {
        str(timing): (
            {"color": colour, "marker": marker},
            {titles[shape]: verdict.speedup for shape, verdict in under.items()},
        )
        for (timing, under), (colour, marker) in zip(found.items(), TIMINGS, strict=False)
    }
    drawing = ratio_rows(series, list(titles.values()), f"speedup over {results.study.baseline}")
    return Figure(
        drawing,
        f"{counted(results)} Ratios of medians with {CI} intervals; at a shape, the marks differ by the timing alone.",
        f"Dots on a logarithmic axis around 1, a row for each shape and a mark for each timing. {counted(results)}",
    )


def leader(results: Results) -> str:
    """The candidate with the smallest median at the target.

    Raises:
        NotMeasured: there is no candidate or no baseline there.
    """
    shape = results.study.target_shape
    at = results.at(shape)
    return min(results.candidates(shape), key=lambda name: float(at.loc[name, "median_us"]))


def counted(results: Results) -> str:
    """At how many shapes the leading candidate is faster and slower, under each timing, in a sentence."""
    name = leader(results)
    parts = []
    for timing, under in _verdicts(results, name).items():
        decided = [verdict.decision for verdict in under.values()]
        counts = [f"{kind} at {decided.count(kind)}" for kind in (FASTER, SLOWER) if kind in decided]
        parts.append(f"{' and '.join(counts) or 'neither'} of {len(decided)} by `{timing.clock}` {timing.cache}")
    which = (
        "the candidate that is fastest at the target, is"
        if len(results.candidates(results.study.target_shape)) > 1
        else "the only candidate, is"
    )
    return f"`{name}`, {which} compared with `{results.study.baseline}` shape by shape: {'; '.join(parts)}."


def _verdicts(results: Results, name: str) -> Found:
    """The verdicts on a candidate at the shapes that have the target's values."""
    found = {
        timing: {
            shape: family.verdicts[name]
            for shape, family in results.families_under(timing).items()
            if name in family.verdicts and shape.values == results.study.target_shape.values
        }
        for timing in results.timings
    }
    return {timing: under for timing, under in found.items() if under}


@exhibit("verdicts.findings")
def findings(results: Results, valued: Results | None = None) -> Box:
    """The findings of the run, a line for each kind that it has; what the values change, first."""
    first = f"**Values.** {values.in_short(results, valued)}"
    lines = [first, *(line for find in FINDINGS if (line := _unless_missing(find, results)))]
    return Box("Findings", "\n".join(f"{number}. {line}" for number, line in enumerate(lines, 1)))


def _sign(results: Results) -> str:
    name, shape = leader(results), results.study.target_shape
    at_target = decisions.under_each(under_each(results, name, shape))
    parts = _depends_on(results, name)
    title = f"**The sign depends on {formats.listing(parts)}.** " if parts else "**Speed.** "
    return f"{title}{counted(results)} At the target {shape.label} it is {at_target}."


def _depends_on(results: Results, name: str) -> list[str]:
    """What turns a verdict on a candidate round at a shape: the clock, the cache, or both, where neither does alone."""
    turned = [
        [axis for axis in ("clock", "cache") if getattr(one, axis) != getattr(other, axis)]
        for (one, here), (other, there) in combinations(_verdicts(results, name).items(), 2)
        if any({here[shape].decision, there[shape].decision} == {FASTER, SLOWER} for shape in here.keys() & there)
    ]
    fewest = min(map(len, turned), default=0)
    found = {axis for axes in turned if len(axes) == fewest for axis in axes}
    return [f"the {axis}" for axis in ("clock", "cache") if axis in found]


def _control(results: Results) -> str:
    found = results.false_positives
    return (
        f"**The instrument.** Against itself, `{results.study.baseline}` was called faster or slower at {found.wrong} "
        f"of {formats.count(found.comparisons, 'place')}. {agreeing(results)}".strip()
    )


def _ladder(results: Results) -> str:
    sentence = lead.sentence(results) or standing_sentence(results)
    return f"**The ladder.** {sentence}" if sentence else ""


FINDINGS: tuple[Callable[[Results], str], ...] = (
    _sign,
    lambda results: f"**Lengths.** {costliest(results)}",
    lambda results: f"**Power.** {slowest(results)}",
    _ladder,
    _control,
    lambda results: f"**Published numbers.** {in_short()}",
)


def _unless_missing(find: Callable[[Results], str], results: Results) -> str:
    try:
        return find(results)
    except NotMeasured:
        return ""
