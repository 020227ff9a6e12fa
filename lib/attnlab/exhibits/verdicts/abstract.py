"""The findings of a run in one paragraph."""

from attnlab.exhibits import decisions
from attnlab.exhibits.baseline.correctness import timed_outputs
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Prose
from attnlab.exhibits.environment.machine import device_words, effort_words
from attnlab.exhibits.verdicts import values
from attnlab.exhibits.verdicts.findings import counted, standing
from attnlab.exhibits.words import say
from attnlab.infer import kinds
from attnlab.infer.lookup import NotMeasured, median_of
from attnlab.infer.results import Results, absence


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
    return say(
        "verdicts.at_target",
        row=row,
        median=median_of(row),
        label=shape.label,
        timing=results.headline,
        fastest=_fastest(results) if results.fastest(shape) != baseline else "",
    )


def _fastest(results: Results) -> str:
    name, shape = results.leader(), results.study.target_shape
    return say(
        "verdicts.fastest",
        name=name,
        judged=decisions.against(f"`{results.study.baseline}`", results.under_each(name, shape)),
        over=kinds.over(results, name, shape),
        counted=counted(results),
    )
