"""`attnlab.attend` compared with `sdpa.auto`: its dispatch table, and what it adds to a call."""

import pandas as pd

from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Prose, Table
from attnlab.exhibits.words import say
from attnlab.infer.backends import attend
from attnlab.infer.results import Results
from attnlab.infer.stats import Interval
from attnlab.study.implementations import FALLBACK


@exhibit("backends.attend.chosen", of="attended")
def chosen(results: Results) -> Table | Prose:
    """The calls in the dispatch table of this device that are not SDPA's, by shape."""
    table = attend.table(results)
    rows = [
        {
            "shape": choice.shape.label,
            "call": choice.implementation,
            "speedup": Interval(choice.speedup, choice.low, choice.high),
        }
        for choice in table.choices
        if choice.implementation != FALLBACK
    ]
    shapes = f"{len(rows)} of {formats.count(len(table.choices), 'shape')}"
    said = f"By the run `{table.run}` ({table.timing}; the lower speedup counts), at {shapes}"
    if not rows:
        return Prose(f"{said} another call is faster than `{FALLBACK}`.")
    note = f"{said}, each with the verdict *faster* over `{FALLBACK}`."
    return Table(pd.DataFrame(rows), "What `attnlab.attend` calls instead of SDPA, by shape.", note)


@exhibit("backends.attend.regret", of="attended")
def regret(results: Results) -> Table | Prose:
    """What the choices cost at shapes drawn at random that the table doesn't hold, a row for each clock."""
    table = attend.table(results)
    if not table.regret:
        return Prose(say("backends.unjudged", run=table.run))
    rows = [
        {
            "clock": one.clock,
            "shapes": one.shapes,
            "best (%)": one.best_pct,
            "longer, mean (%)": one.mean_pct,
            "longer, worst (%)": one.worst_pct,
            "worst at": one.worst,
            f"lead over {FALLBACK}": one.lead,
            "least lead": one.least_lead,
        }
        for one in table.regret
    ]
    caption = "What the choices of `attnlab.attend` cost at shapes drawn at random, which its table does not hold."
    return Table(pd.DataFrame(rows), caption, say("backends.regret"))


@exhibit("backends.attend.overhead", of="attended")
def overhead(results: Results) -> Prose:
    """What `attend` adds to a call: of host time where it calls the same as SDPA, and of latency over a stream."""
    return Prose(say("backends.overhead", added=attend.overhead(results), allowed_us=attend.ALLOWED_US))
