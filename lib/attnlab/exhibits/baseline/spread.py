"""The spread of samples: quantiles, and how samples vary."""

import pandas as pd

from attnlab.exhibits import quantities
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Table
from attnlab.exhibits.environment.machine import interval_words
from attnlab.exhibits.words import say
from attnlab.infer.results import Results
from attnlab.infer.stats import samples_needed

TAILS = ("median_us", "p95_us", "p99_us", "cv_pct", "outliers_pct", "lag1", "effective_n", "samples", "throttled_pct")


@exhibit("baseline.tails")
def tails(results: Results) -> Table:
    """Quantiles of the baseline's latency, and how much its samples vary, against sequence length."""
    name = results.study.baseline
    along = results.along("seq_len", name)
    rows = [{"S": shape.seq_len} | quantities.cells(row, *TAILS) for shape, row in along]
    note = say("baseline.tails", p95=samples_needed(0.95), p99=samples_needed(0.99), intervals=interval_words(results))
    return Table(pd.DataFrame(rows), f"Spread and tails of the latency, `{name}`; {results.headline.words}.", note)
