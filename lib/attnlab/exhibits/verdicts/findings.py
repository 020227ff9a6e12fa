"""What a reader should keep: the abstract, the findings in a box, and the target."""

from collections.abc import Callable

from attnlab.exhibits.audit import in_short
from attnlab.exhibits.backends import few
from attnlab.exhibits.baseline.figures import costliest
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Box, Prose
from attnlab.exhibits.environment.load import slowed
from attnlab.exhibits.environment.machine import device_words
from attnlab.exhibits.environment.panel import agreeing
from attnlab.exhibits.kernels import fp8
from attnlab.exhibits.kernels import lead as of_kernels
from attnlab.exhibits.kernels.climb import standing_sentence
from attnlab.exhibits.verdicts import values
from attnlab.exhibits.words import say
from attnlab.infer import kinds
from attnlab.infer.facts.lead import Lead, lead
from attnlab.infer.kernels import leads
from attnlab.infer.kernels.leads import Leads
from attnlab.infer.lookup import known, median_of
from attnlab.infer.machine.clocks import outside
from attnlab.infer.results import Results, absence
from attnlab.study.values import CAPTURED


@exhibit("verdicts.findings")
def findings(
    results: Results,
    valued: Results | None = None,
    decoded: Results | None = None,
    eight_bits: Results | None = None,
) -> Box:
    """The findings of the run, a line for each kind that it has; what the values change, first."""
    baseline, label = results.study.baseline, results.study.target_shape.label
    queries, fewer_bits = few.in_short(results, decoded), fp8.in_short(results, eight_bits)
    there = of_kernels.elsewhere_in_short(results)
    finds: list[Callable[[], str]] = [
        lambda: say("verdicts.sign", lead=lead(results), baseline=baseline, label=label),
        lambda: f"**Lengths.** {costliest(results)}",
        lambda: f"**Sustained load.** {slowed(results)}",
        lambda: _ladder(results),
        lambda: f"**Few queries.** {queries}" if queries else "",
        lambda: f"**FP8.** {fewer_bits}" if fewer_bits else "",
        lambda: f"**Another device.** {there}" if there else "",
        lambda: say(
            "verdicts.instrument", baseline=baseline, found=results.false_positives, agreeing=agreeing(results)
        ),
        lambda: f"**Published numbers.** {in_short()}",
    ]
    lines = [f"**Values.** {values.in_short(results, valued)}", *filter(None, map(known, finds))]
    return Box("Findings", "\n".join(f"{number}. {line}" for number, line in enumerate(lines, 1)))


def _ladder(results: Results) -> str:
    sentence = of_kernels.sentence(results) or standing_sentence(results)
    return f"**The ladder.** {sentence}" if sentence else ""


@exhibit("verdicts.abstract")
def abstract(results: Results, decoded: Results | None = None) -> Prose:
    """The paper in one paragraph."""
    study, shape = results.study, results.study.target_shape
    if results.table.empty:
        return Prose(_nothing(results))
    names = [one.values for one in kinds.shapes(results, shape)]
    return Prose(
        say(
            "verdicts.abstract",
            implementations=len(study.implementations),
            shapes=len({shape.plain for shape in study.shapes}),
            device=device_words(results),
            kinds=len(names),
            captured=any(name.startswith(CAPTURED) for name in names),
            plain=shape.values,
            turned_over=kinds.turned(results, shape),
            safest_over=kinds.safest(results, shape),
            baseline=study.baseline,
            best=_best(results),
            leading=few.ahead_of_it(decoded) if decoded else [],
            ahead=_ahead(results),
        )
    )


def _best(results: Results) -> Leads | None:
    """The leads of `kernel.best` under the headline timing, if it has any."""
    found = known(lambda: leads.of_best(results)) or {}
    return found.get(results.headline)


def _ahead(results: Results) -> Lead | None:
    """The lead of the fastest candidate at the target, if it has a smaller median there than the baseline."""
    fastest = known(lambda: results.fastest(results.study.target_shape))
    return known(lambda: lead(results)) if fastest != results.study.baseline else None


@exhibit("verdicts.at_target")
def at_target(results: Results) -> Prose:
    """What the baseline reaches at the target, and how the fastest candidate compares with it there and elsewhere."""
    shape = results.study.target_shape
    row = results.row(results.study.baseline, shape)
    facts = {"row": row, "median": median_of(row), "label": shape.label, "timing": results.headline}
    ahead = _ahead(results)
    beside = outside(results, ahead.candidate, shape) if ahead else None
    return Prose(say("verdicts.at_target", lead=ahead, outside=beside, **facts))


def _nothing(results: Results) -> str:
    study, missing = results.study, results.run.manifest["missing_clocks"]
    return say(
        "verdicts.nothing",
        device=device_words(results),
        missing_clocks=missing if len(missing) == len(study.timings) else [],
        reasons={name: absence(results, name, study.target_shape) for name in study.implementations},
    )
