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
    said = f"By the run `{table.run}` ({table.timing}), at {len(rows)} of {formats.count(len(table.choices), 'shape')}"
    if not rows:
        return Prose(f"{said} another call is faster than `{FALLBACK}`.")
    note = f"{said}, each with the verdict *faster* over `{FALLBACK}`."
    return Table(pd.DataFrame(rows), "What `attnlab.attend` calls instead of SDPA, by shape.", note)


@exhibit("backends.attend.overhead", of="attended")
def overhead(results: Results) -> Prose:
    """What `attend` adds to a call: of host time where it calls the same as SDPA, and of latency over a stream."""
    return Prose(say("backends.overhead", added=attend.overhead(results), allowed_us=attend.ALLOWED_US))
