"""What to use and what to avoid: rules that follow from the verdicts, each with the comparison that supports it."""

from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.cells import LETTERS
from attnlab.exhibits.display import Prose, Table
from attnlab.exhibits.words import say
from attnlab.infer.backends import advice
from attnlab.infer.backends.advice import AVOID, Rule
from attnlab.infer.lookup import NotMeasured, axis_of
from attnlab.infer.results import Results


@exhibit("backends.rules", of="choices")
def rules(results: Results) -> Table:
    """The rules that this run's verdicts support, for each clock."""
    found = advice.rules(results)
    if not found:
        raise NotMeasured("No verdict of this run is faster or slower, so no rule follows")
    rows = [
        {
            "rule": "crossover" if rule.sweep else rule.kind,
            "implementation": rule.name,
            "where": "; ".join([_where(results, rule), rule.timing.words, *_but(results, rule)]),
            "speedup": rule.verdict.speedup,
            "of the weakest, at": rule.weakest.label,
        }
        for rule in found
    ]
    note = say("backends.advice", baseline=results.study.baseline)
    return Table.of(rows, "What to use, and what to avoid.", note)


def _where(results: Results, rule: Rule) -> str:
    if rule.sweep:
        axis = axis_of(rule.sweep)
        size = f"{LETTERS[axis]}={getattr(rule.weakest, axis)}"
        return f"{rule.verdict.decision} {rule.kind} {size}, along “{rule.sweep}”"
    if rule.kind == AVOID:
        return f"slower at all {formats.count(len(rule.shapes), 'shape')} compared"
    return formats.named(rule.shapes, results.study.shapes)


def _but(results: Results, rule: Rule) -> list[str]:
    """The other timings under which it is slower, and where."""
    where = {timing: formats.shapes(shapes, results.study.shapes) for timing, shapes in rule.slower.items()}
    return [f"but slower at {shapes}, {timing.words}" for timing, shapes in where.items()]


@exhibit("backends.summary", of="choices")
def summary(results: Results) -> Prose:
    """How often something is faster than leaving the choice to the baseline, claimably so, and by how much at most."""
    found = advice.gains(results)
    if not found:
        raise NotMeasured(f"`{results.study.baseline}` was compared with nothing")
    return Prose(say("backends.summary", baseline=results.study.baseline, gains=found))
