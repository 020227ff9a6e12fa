"""The correctness gate: errors against the oracle, beside what the gate allows."""

from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Prose, Table
from attnlab.exhibits.words import say
from attnlab.infer.facts import gate
from attnlab.infer.lookup import NotMeasured, on_values
from attnlab.infer.results import Results
from attnlab.study.implementations import in_fp8


@exhibit("baseline.correctness")
def correctness(results: Results) -> Prose:
    """The gate in two sentences."""
    checks = results.run.checks
    if checks.empty:
        raise NotMeasured("The gate has made no checks yet")
    counts = {"checks": len(checks), "failed": int((~checks["passed"].astype(bool)).sum())}
    errors = on_values(checks[~checks["implementation"].map(in_fp8)])[["max_error", "framework_max_error"]].max()
    found = {"outputs": gate.timed_outputs(results), "differing": gate.differing(checks)}
    return Prose(say("baseline.correctness", errors=errors, **counts, **found))


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
    return Table.of(rows, "The correctness gate.", say("baseline.checks"), shows=shows)
