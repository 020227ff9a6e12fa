"""The findings of a run in one paragraph."""

import math

from attnlab.exhibits import cells, decisions, formats
from attnlab.exhibits.baseline.correctness import timed_outputs
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Prose
from attnlab.exhibits.environment.machine import device_words, effort_words
from attnlab.exhibits.kernels import lead
from attnlab.exhibits.kernels.climb import standing_sentence
from attnlab.exhibits.verdicts import values
from attnlab.exhibits.verdicts.findings import counted
from attnlab.exhibits.verdicts.target import interval_us
from attnlab.infer import kinds
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Results, absence


@exhibit("verdicts.abstract")
def abstract(results: Results, valued: Results | None = None) -> Prose:
    """The paper in one paragraph."""
    study = results.study
    if results.table.empty:
        return Prose(f"Nothing was timed on {device_words(results)}: {_why_nothing(results)}.")
    return Prose(
        f"We measure {formats.count(len(study.implementations), 'implementation')} of scaled dot-product attention on "
        f"{device_words(results)} at {formats.count(len(study.shapes), 'shape')}, {effort_words(results)}. "
        f"{values.in_short(results, valued)} {_at_target(results)} "
        f"{_standing(results)}Every timed case was checked against a float64 oracle before and "
        f"after it was timed. {timed_outputs(results)} The samples are in the run's folder; their hashes, and those of "
        "the code that took them, are in [](#environment.hashes)."
    )


def _why_nothing(results: Results) -> str:
    """Why a run holds no latency: its clocks do not exist, or what became of each implementation at the target."""
    study, missing = results.study, results.run.manifest["missing_clocks"]
    if len(missing) == len(study.timings):
        return f"it lacks the clocks of the study ({formats.listing(missing)})"
    reasons = {name: formats.clause(absence(results, name, study.target_shape)) for name in study.implementations}
    return "; ".join(f"`{name}` {reason}" for name, reason in reasons.items())


def _at_target(results: Results) -> str:
    """The sentences about the target shape."""
    shape = results.study.target_shape
    try:
        row = results.row(results.study.baseline, shape)
    except NotMeasured as missing:
        return f"{missing}."
    share = row["speed_of_light_pct"]
    light = (
        ""
        if math.isnan(share)
        else f", {formats.percent(share)} of what the ceilings measured in the same run allow"
        f"{cells.explained(row['bandwidth_mark'])}"
    )
    return (
        f"At the target shape {shape.label}, `{row.name}` takes {interval_us(row)} ({results.headline.words})"
        f": {formats.number(row['throughput_tflops'])} TFLOP/s{cells.explained(row['throughput_mark'])}{light}. "
        f"{_fastest_statement(results)}"
    )


def _standing(results: Results) -> str:
    """The sentence about hand-written kernels; empty for a run without any."""
    sentence = lead.sentence(results) or standing_sentence(results)
    return f"{sentence} " if sentence else ""


def _fastest_statement(results: Results) -> str:
    shape = results.study.target_shape
    fastest = results.fastest(shape)
    if fastest == results.study.baseline:
        return "No implementation has a smaller median there."
    judged = decisions.against(f"`{results.study.baseline}`", cells.under_each(results, fastest, shape))
    over = kinds.over(results, fastest, shape)
    on_values = f" Over the values: {values.worst(over)}." if len(over.verdicts) > 1 else ""
    return f"`{fastest}` has the smallest median there. {judged}{on_values} {counted(results)}"
