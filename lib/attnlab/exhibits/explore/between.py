"""Verdicts that change sign with values, clock, cache or run, and one run beside another in benchstat's manner."""

from typing import Any

from attnlab.exhibits import decisions, formats
from attnlab.exhibits.explore.recorded import against
from attnlab.infer.compare.repeat import Change, changes, in_percent, inverse, other_sources, ratio_of
from attnlab.infer.families import flipping_axes, opposed
from attnlab.infer.results import Results
from attnlab.infer.stats import Verdict
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing

Kinds = dict[Shape, Verdict]
"""By shapes that differ in values alone."""


def flips(results: Results, baseline: str) -> list[dict[str, Any]]:
    """The candidates that are faster than a baseline on one kind of values or under one timing and slower otherwise.

    By shape; where it is the values, the shape is the one of the kind on which the candidate is the slowest.
    """
    verdicts = against(results, baseline)
    of_kinds: dict[tuple[Shape, str], dict[Timing, Kinds]] = {}
    for (shape, name), under in verdicts.items():
        for timing, verdict in under.items():
            kinds = of_kinds.setdefault((shape.plain, name), {}).setdefault(timing, {})
            kinds |= {shape: verdict} if shape.is_judged else {}
    return [
        *(
            _by_values(name, found)
            for (_, name), under in of_kinds.items()
            if (found := {timing: kinds for timing, kinds in under.items() if opposed(kinds.values())})
        ),
        *(
            {"shape": str(shape), "candidate": name, "by": axes, "words": decisions.under_each(under)}
            for (shape, name), under in verdicts.items()
            if (axes := flipping_axes([under]))
        ),
    ]


def _by_values(name: str, under: dict[Timing, Kinds]) -> dict[str, Any]:
    """What is said of a candidate that turns with the values, under each timing under which it does."""
    speedups = {shape: verdict.speedup.estimate for kinds in under.values() for shape, verdict in kinds.items()}
    words = "; ".join(f"{timing.words}: {_sides(kinds)}" for timing, kinds in under.items())
    return {"shape": str(min(speedups, key=speedups.__getitem__)), "candidate": name, "by": ["values"], "words": words}


def _sides(kinds: Kinds) -> str:
    """On which kinds of values a candidate is faster and on which slower, with the speedup farthest from 1."""
    said = []
    for decision, farthest, end in (("faster", max, " at best"), ("slower", min, " at worst")):
        found = {shape.values: one.speedup for shape, one in kinds.items() if one.decision == decision}
        most = farthest(found.values(), key=lambda speedup: speedup.estimate)
        of_several = end if len(found) > 1 else ""
        said.append(f"{decision} with {formats.listing([*found])} ({formats.interval(most)}{of_several})")
    return ", ".join(said)


def flips_between(here: Results, there: Results) -> list[dict[str, Any]]:
    """The candidates on which two runs of one baseline say the opposite at a shape under a timing."""
    if here.study.baseline != there.study.baseline:
        return []
    theirs = against(there, there.study.baseline)
    return [
        {"shape": str(shape), "candidate": name, "by": ["run"], "words": _both(timing, verdict, other, here, there)}
        for (shape, name), under in against(here, here.study.baseline).items()
        for timing, verdict in under.items()
        if (other := theirs.get((shape, name), {}).get(timing)) and opposed((verdict, other))
    ]


def _both(timing: Timing, mine: Verdict, other: Verdict, here: Results, there: Results) -> str:
    sides = [(mine, here), (other, there)]
    said = [f"{one.decision} in `{of.run.name}` ({formats.interval(one.speedup)})" for one, of in sides]
    return f"{timing.words}: {said[0]}, {said[1]}"


def deltas(here: Results, there: Results) -> list[list[Any]]:
    """A row for each case in both runs.

    Timing, shape, implementation; the change from there to here and from here to there, with ``~`` after it where none
    can be shown; the p-value; and whether the kernel's source is another. The medians are among the cases of each run.
    """
    others = other_sources(here, there)
    return [_delta(here, there, change, change.implementation in others) for change in changes(here, there)]


def _delta(here: Results, there: Results, change: Change, is_other: bool) -> list[Any]:
    ratio = change.ratio or ratio_of(change, here, there)
    said = [formats.change(in_percent(one)) + ("" if change.shown else " ~") for one in (ratio, inverse(ratio))]
    p = formats.pvalue(change.pvalue)
    return [
        *(str(change.timing), str(change.shape), change.implementation),
        *said,
        f"p{p}" if p.startswith("<") else f"p={p}",
        is_other,
    ]
