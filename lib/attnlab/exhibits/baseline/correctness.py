"""The correctness gate: errors against the oracle, beside what the gate allows."""

from typing import Any

import pandas as pd

from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Figure, Prose, Table
from attnlab.exhibits.style import before_others, few_powers_of_two, look, plain_logarithm
from attnlab.exhibits.words import say
from attnlab.infer.facts import gate
from attnlab.infer.lookup import NotMeasured, on_values
from attnlab.infer.results import Results

SWEEP = "seq_len"


@exhibit("baseline.errors")
def errors(results: Results) -> Figure:
    """The largest error against the float64 oracle, beside what the gate allows."""
    found = gate.errors(results, SWEEP)
    drawn, odd = {}, []
    for name, of in found.of.items():
        usual = {shape.seq_len: error for shape, error in of.items() if 0 < error < float("inf")}
        drawn[name] = list(usual), list(usual.values())
        odd += [(name, shape.seq_len, error) for shape, error in of.items() if shape.seq_len not in usual]
    titles = "largest absolute error, logarithmic", "sequence length S, logarithmic"
    drawing, panels = before_others(list(drawn), [drawn], *titles)
    sizes = [shape.seq_len for shape in found.allowed]
    limit: dict[str, Any] = {"color": "#888888", "linestyle": "--", "linewidth": 1.2, "zorder": 5, "label": "allowed"}
    for axes in panels.values():
        axes.plot(sizes, list(found.allowed.values()), **limit)
    for name, size, error in odd:
        axes = panels[name]
        style = look(name) | {"label": "_", "clip_on": False, "transform": axes.get_xaxis_transform()}
        axes.plot([size], [float(error > 0)], **style)
    first = next(iter(panels.values()))
    first.set_yscale("log")
    few_powers_of_two(first, [shape.seq_len for shape in results.sweep(SWEEP)])
    plain_logarithm(first.yaxis)
    edges = {"infinite": any(error > 0 for *_, error in odd), "zero": any(error == 0 for *_, error in odd)}
    return Figure(
        drawing,
        say("baseline.errors", nearest=found.nearest, sweep=SWEEP, **edges),
        "Line plots of the largest absolute error over sequence length S, one panel for each implementation.",
    )


@exhibit("baseline.correctness")
def correctness(results: Results) -> Prose:
    """The gate in two sentences."""
    checks = results.run.checks
    if checks.empty:
        raise NotMeasured("The gate has made no checks yet")
    counts = {"checks": len(checks), "failed": int((~checks["passed"].astype(bool)).sum())}
    errors = on_values(checks)[["max_error", "framework_max_error"]].max()
    found = {"outputs": gate.timed_outputs(results), "differing": gate.differing(checks)}
    return Prose(say("baseline.correctness", errors=errors, **counts, **found))


def timed_outputs(results: Results) -> str:
    """How many timed outputs were compared, and how near the worst came to what is allowed, in a sentence."""
    return say("baseline.timed_outputs", outputs=gate.timed_outputs(results))


@exhibit("baseline.checks")
def checks(results: Results) -> Table:
    """The results of the gate by implementation, over all shapes."""
    recorded = results.run.checks
    differing = {found.implementation: found.elements for found in gate.differing(recorded)}
    rows = [
        {
            "implementation": name,
            "checks": len(group),
            "passed": int(group["passed"].sum()),
            "largest error": normal["max_error"].max(),
            "mean error": normal["mean_error"].mean(),
            "largest share of the allowed": gate.share_pct(normal),
        }
        | ({"elements that differ between runs": differing.get(name)} if differing else {})
        for name, group in recorded.groupby("implementation", sort=False)
        for normal in [on_values(group)]
    ]
    shows = {"largest share of the allowed": formats.percent, "elements that differ between runs": formats.whole}
    return Table(pd.DataFrame(rows), "The correctness gate.", say("baseline.checks"), shows=shows)
