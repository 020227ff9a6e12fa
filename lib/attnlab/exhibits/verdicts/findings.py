"""What a reader should keep: whether a candidate is faster depends on the timing, and the findings in a box."""

from collections.abc import Callable

from attnlab.exhibits import formats
from attnlab.exhibits.audit import in_short
from attnlab.exhibits.baseline.lengths import costliest
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Box, Figure
from attnlab.exhibits.environment.load import slowest
from attnlab.exhibits.environment.panel import agreeing
from attnlab.exhibits.kernels import lead
from attnlab.exhibits.kernels.climb import standing_sentence
from attnlab.exhibits.style import TIMINGS, ratio_rows
from attnlab.exhibits.verdicts import values
from attnlab.exhibits.words import say
from attnlab.infer.families import flipping_axes, tally
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Results


@exhibit("verdicts.signs")
def signs(results: Results) -> Figure:
    """The fastest candidate over the baseline at every shape, a mark for each timing."""
    found = results.leads()
    titles = {shape: formats.shapes([shape], results.study.shapes) for shape in found}
    looks = dict(zip(results.timings, TIMINGS, strict=False))
    series = {
        str(timing): (
            {"color": colour, "marker": marker},
            {titles[shape]: under[timing].speedup for shape, under in found.items() if timing in under},
        )
        for timing, (colour, marker) in looks.items()
    }
    drawn = {name: (look, ratios) for name, (look, ratios) in series.items() if ratios}
    said = counted(results)
    return Figure(
        ratio_rows(drawn, list(titles.values()), f"speedup over {results.study.baseline}"),
        say("verdicts.signs", counted=said),
        f"Dots on a logarithmic axis around 1, a row for each shape and a mark for each timing. {said}",
    )


def counted(results: Results) -> str:
    """At how many shapes the leading candidate is faster and slower, under each timing."""
    found = results.leads()
    judged = {timing: [under[timing] for under in found.values() if timing in under] for timing in results.timings}
    return say(
        "verdicts.counted",
        candidate=results.leader(),
        is_alone=len(results.candidates(results.study.target_shape)) == 1,
        counts={timing: (tally(verdicts), len(verdicts)) for timing, verdicts in judged.items() if verdicts},
        baseline=results.study.baseline,
    )


@exhibit("verdicts.findings")
def findings(results: Results, valued: Results | None = None) -> Box:
    """The findings of the run, a line for each kind that it has; what the values change, first."""
    first = f"**Values.** {values.in_short(results, valued)}"
    lines = [first, *(line for find in FINDINGS if (line := _unless_missing(find, results)))]
    return Box("Findings", "\n".join(f"{number}. {line}" for number, line in enumerate(lines, 1)))


def _sign(results: Results) -> str:
    shape = results.study.target_shape
    return say(
        "verdicts.sign",
        counted=counted(results),
        axes=flipping_axes(results.leads().values()),
        at_target=results.under_each(results.leader(), shape),
        label=shape.label,
    )


def _control(results: Results) -> str:
    return say(
        "verdicts.instrument",
        baseline=results.study.baseline,
        found=results.false_positives,
        agreeing=agreeing(results),
    )


def standing(results: Results) -> str:
    """What hand-written kernels reach; empty for a run without any."""
    return lead.sentence(results) or standing_sentence(results)


def _ladder(results: Results) -> str:
    sentence = standing(results)
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
