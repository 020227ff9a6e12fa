"""What a reader should keep: the abstract, the findings in a box, and the sign of the lead under each timing."""

from collections.abc import Callable

from attnlab.exhibits import formats
from attnlab.exhibits.audit import in_short
from attnlab.exhibits.baseline.correctness import timed_outputs
from attnlab.exhibits.baseline.figures import costliest
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Box, Figure, Prose
from attnlab.exhibits.environment.load import slowed
from attnlab.exhibits.environment.machine import device_words, effort_words
from attnlab.exhibits.environment.panel import agreeing
from attnlab.exhibits.kernels import lead as of_kernels
from attnlab.exhibits.kernels.climb import standing_sentence
from attnlab.exhibits.style import TIMINGS, ratio_rows
from attnlab.exhibits.verdicts import values
from attnlab.exhibits.words import say
from attnlab.infer.facts.lead import lead
from attnlab.infer.lookup import NotMeasured, median_of
from attnlab.infer.results import Results, absence


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
    said = say("verdicts.counted", lead=lead(results), baseline=results.study.baseline)
    return Figure(
        ratio_rows(drawn, list(titles.values()), f"speedup over {results.study.baseline}"),
        say("verdicts.signs", counted=said),
        f"Dots on a logarithmic axis around 1, a row for each shape and a mark for each timing. {said}",
    )


@exhibit("verdicts.findings")
def findings(results: Results, valued: Results | None = None) -> Box:
    """The findings of the run, a line for each kind that it has; what the values change, first."""
    first = f"**Values.** {values.in_short(results, valued)}"
    lines = [first, *(line for find in FINDINGS if (line := _unless_missing(find, results)))]
    return Box("Findings", "\n".join(f"{number}. {line}" for number, line in enumerate(lines, 1)))


def standing(results: Results) -> str:
    """What hand-written kernels reach; empty for a run without any."""
    return of_kernels.sentence(results) or standing_sentence(results)


def _ladder(results: Results) -> str:
    sentence = standing(results)
    return f"**The ladder.** {sentence}" if sentence else ""


@exhibit("verdicts.abstract")
def abstract(results: Results, valued: Results | None = None) -> Prose:
    """The paper in one paragraph."""
    study = results.study
    if results.table.empty:
        return Prose(_nothing(results))
    return Prose(
        say(
            "verdicts.abstract",
            implementations=len(study.implementations),
            shapes=len(study.shapes),
            device=device_words(results),
            effort=effort_words(results),
            values=values.in_short(results, valued),
            at_target=_at_target(results),
            standing=standing(results),
            outputs=timed_outputs(results),
        )
    )


def _nothing(results: Results) -> str:
    study, missing = results.study, results.run.manifest["missing_clocks"]
    return say(
        "verdicts.nothing",
        device=device_words(results),
        missing_clocks=missing if len(missing) == len(study.timings) else [],
        reasons={name: absence(results, name, study.target_shape) for name in study.implementations},
    )


def _at_target(results: Results) -> str:
    shape, baseline = results.study.target_shape, results.study.baseline
    try:
        row = results.row(baseline, shape)
    except NotMeasured as missing:
        return f"{missing}."
    ahead = lead(results) if results.fastest(shape) != baseline else None
    facts = {"row": row, "median": median_of(row), "label": shape.label, "timing": results.headline}
    return say("verdicts.at_target", lead=ahead, **facts)


FINDINGS: tuple[Callable[[Results], str], ...] = (
    lambda results: say(
        "verdicts.sign", lead=lead(results), baseline=results.study.baseline, label=results.study.target_shape.label
    ),
    lambda results: f"**Lengths.** {costliest(results)}",
    lambda results: f"**Power.** {slowed(results)}",
    _ladder,
    lambda results: say(
        "verdicts.instrument",
        baseline=results.study.baseline,
        found=results.false_positives,
        agreeing=agreeing(results),
    ),
    lambda results: f"**Published numbers.** {in_short()}",
)


def _unless_missing(find: Callable[[Results], str], results: Results) -> str:
    try:
        return find(results)
    except NotMeasured:
        return ""
