"""Speed and accuracy side by side: whether an implementation is fast because it is less accurate."""

import pandas as pd

from attnlab.exhibits import cells, formats
from attnlab.exhibits.catalogue import exhibit, target
from attnlab.exhibits.display import Table
from attnlab.exhibits.words import say
from attnlab.infer.lookup import NotMeasured, on_values
from attnlab.infer.results import Results
from attnlab.runs.rules import GATE_FACTOR
from attnlab.runs.schema import is_of
from attnlab.study.shapes import Shape


@exhibit("verdicts.accuracy", shape=target)
def accuracy(results: Results, shape: Shape) -> Table:
    """Latency beside the mean error at one shape, and the share that this is of the gate's limit."""
    checks = on_values(results.run.checks)
    checks = checks[is_of(checks, shape)] if len(checks) else checks
    there = [name for name in results.at(shape).index if name in set(checks["implementation"])]
    if not there:
        raise NotMeasured(f"Nothing has both a latency and a checked error at {shape.label}")
    allowed = GATE_FACTOR * float(checks["framework_mean_error"].min())
    errors = checks.groupby("implementation")["mean_error"].agg(["mean", "max"])
    rows = [
        {
            "implementation": name,
            "median_us": results.median(name, shape),
            "mean error": errors.at[name, "mean"],
            "its largest": errors.at[name, "max"],
            "of the limit": 100 * errors.at[name, "max"] / allowed,
        }
        for name in there
    ]
    lost = [name for name in results.study.implementations if name not in there]
    note = say("verdicts.accuracy", allowed=allowed, absent=cells.without(results, lost, shape))
    caption = f"Speed and accuracy at {shape.label}; {results.headline.words}."
    return Table(pd.DataFrame(rows), caption, note, shows={"of the limit": formats.percent})
