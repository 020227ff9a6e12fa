"""`attnlab.attend` held to `sdpa.auto`: the table that it goes by, each shape of it, and a stream of requests."""

from contextlib import suppress

import numpy as np
import pandas as pd

from attnlab import bootstrap, dispatch, stats
from attnlab.analyse import formats
from attnlab.analyse.display import Prose, Table, telling
from attnlab.analyse.results import AXES, NotMeasured, Results, median_of
from attnlab.dispatch import FALLBACK, IMPLEMENTATION, Dispatch
from attnlab.errors import UserError
from attnlab.runs import is_of
from attnlab.shapes import Shape

ALLOWED_US = 10
"""By which a call of `attend` may be slower than one of SDPA."""
QUANTILES = (0.50, 0.95, 0.99)


def _table(results: Results) -> Dispatch:
    device = results.run.manifest["device"]["name"]
    with suppress(UserError):
        return dispatch.load(dispatch.path(device), device)
    raise NotMeasured(f"There is no dispatch table for {device}: `make dispatch RUN={results.run.name}` writes one")


@telling
def chosen(results: Results) -> Table | Prose:
    """What the table of this device names at which shape."""
    table = _table(results)
    rows = [
        {
            "shape": formats.shape(choice.shape),
            "call": choice.implementation,
            f"speedup over {FALLBACK} [95 %]": formats.stacked(stats.Interval(choice.speedup, choice.low, choice.high)),
        }
        for choice in table.choices
        if choice.implementation != FALLBACK
    ]
    told = f"By the run `{table.run}` ({table.timing}), of {formats.count(len(table.choices), 'shape')}"
    if not rows:
        return Prose(f"{told} none is served faster by another call than `{FALLBACK}`.")
    have = "1 has" if len(rows) == 1 else f"{len(rows)} have"
    note = f"{told} {have} another call than `{FALLBACK}`, each with a verdict that says *faster*."
    return Table(pd.DataFrame(rows), "dispatch", "What `attnlab.attend` calls instead of SDPA, and where.", note)


@telling
def held(results: Results) -> Table:
    """`attend` against `sdpa.auto` at every shape of its table."""
    shapes = [s for s in results.study.shapes if {FALLBACK, IMPLEMENTATION} <= set(results.at(s).index)]
    if not shapes:
        raise NotMeasured(f"`{IMPLEMENTATION}` was not measured against `{FALLBACK}` in this run")
    rows = []
    for shape in shapes:
        verdict, added = results.compare(IMPLEMENTATION, shape), _added_us(results, shape)
        rows.append(
            {
                "shape": formats.shape(shape),
                f"{FALLBACK} (µs) [95 %]": formats.stacked(median_of(results.row(FALLBACK, shape))),
                "attend (µs) [95 %]": formats.stacked(median_of(results.row(IMPLEMENTATION, shape))),
                "adds (µs) [95 %]": formats.stacked(added),
                "verdict": verdict.decision,
                f"within {ALLOWED_US} µs": _within(added),
            }
        )
    kept = sum(row[f"within {ALLOWED_US} µs"] == "yes" for row in rows)
    note = (
        "What a call adds is the difference of the medians of a replicate, with Student's t over replicates; “yes” "
        f"where all of its interval is below {ALLOWED_US} µs, “no” where all of it is above, “can't be told” between: "
        f"{kept} of {len(rows)} are “yes”."
    )
    return Table(pd.DataFrame(rows), "attend", f"`attnlab.attend` and `{FALLBACK}`; {results.headline.words}.", note)


def _within(added: stats.Interval) -> str:
    return "yes" if added.high <= ALLOWED_US else "no" if added.low > ALLOWED_US else "can't be told"


def _added_us(results: Results, shape: Shape) -> stats.Interval:
    sides = [results.samples(name, shape) for name in (IMPLEMENTATION, FALLBACK)]
    return _over_replicates([float(np.median(one) - np.median(other)) for one, other in zip(*sides, strict=True)])


def _over_replicates(differences: list[float]) -> stats.Interval:
    """The mean of what each replicate found, with Student's t; all that can be of one replicate."""
    if len(differences) < 2:
        return stats.Interval(float(np.mean(differences)), -np.inf, np.inf)
    found = bootstrap.scatter(np.asarray(differences))
    reach = found.reach(stats.CONFIDENCE)
    return stats.Interval(found.mean, found.mean - reach, found.mean + reach)


@telling
def stream(results: Results) -> Table:
    """What a program waits for that serves requests of many shapes."""
    calls = _calls(results)
    rows = []
    for name, answered in calls.groupby("implementation", sort=False):
        by_replicate = [group["latency_us"].to_numpy() for _, group in answered.groupby("replicate")]
        quantiles = {f"P{100 * p:.0f} (µs) [95 %]": _quantile(by_replicate, p) for p in QUANTILES}
        host = formats.number(answered["host_us"].median())
        rows.append({"implementation": name, "requests": f"{len(answered):,}"} | quantiles | {"host (µs)": host})
    note = (
        f"Requests of {formats.count(len(calls[AXES].drop_duplicates()), 'shape')}, one after the other in random "
        "order, each waited for by the host's clock; the cache holds what the one before left. Host is the median time "
        "until the call came back. Quantiles have order-statistic intervals."
    )
    return Table(pd.DataFrame(rows), "stream", "A stream of requests of many shapes.", note)


def _quantile(samples: list[np.ndarray], p: float) -> str | None:
    interval = stats.quantile_ci(samples, p)
    return formats.stacked(interval) if interval is not None else None


@telling
def overhead(results: Results) -> Prose:
    """What `attend` itself takes of the host, where it calls the same as SDPA does."""
    calls, table = _calls(results), _table(results)
    same = [choice.shape for choice in table.choices if choice.implementation == FALLBACK]
    calls = calls[np.logical_or.reduce([is_of(calls, shape) for shape in same])] if same else calls.head(0)
    if calls.empty:
        raise NotMeasured(f"No request of the stream was answered by `{FALLBACK}` on both sides")
    medians = calls.groupby(["replicate", "implementation"])["host_us"].median().unstack()
    more = medians[IMPLEMENTATION].mean() >= medians[FALLBACK].mean()
    sign, word = (1, "more") if more else (-1, "less")
    added = _over_replicates(list(sign * (medians[IMPLEMENTATION] - medians[FALLBACK])))
    return Prose(
        f"Where `attend` calls what SDPA calls, it takes {formats.interval(added)} µs {word} of the host than SDPA "
        f"alone (median of {len(calls) // 2:,} requests, Student's t over replicates; {ALLOWED_US} µs is what it may "
        "take)."
    )


def _calls(results: Results) -> pd.DataFrame:
    calls = results.run.stream
    if not {FALLBACK, IMPLEMENTATION} <= set(calls["implementation"]):
        raise NotMeasured(f"No stream of requests to `{IMPLEMENTATION}` and `{FALLBACK}` was recorded in this run")
    return calls
