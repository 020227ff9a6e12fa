"""`attnlab.attend` compared with `sdpa.auto`: its dispatch table, each shape in it, and a stream of requests."""

from contextlib import suppress

import numpy as np
import pandas as pd

from attnlab.base.errors import UserError
from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Prose, Table
from attnlab.exhibits.formats import CI
from attnlab.infer import stats
from attnlab.infer.cases import AXES
from attnlab.infer.lookup import NotMeasured, median_of
from attnlab.infer.results import Results
from attnlab.runs import dispatch
from attnlab.runs.dispatch import Dispatch
from attnlab.runs.schema import is_of
from attnlab.study.implementations import DISPATCH, FALLBACK
from attnlab.study.shapes import Shape

ALLOWED_US = 10
"""A call of `attend` may be slower than one of SDPA by this much."""
QUANTILES = (0.50, 0.95, 0.99)


def _table(results: Results) -> Dispatch:
    device = results.run.manifest["device"]["name"]
    with suppress(UserError):
        return dispatch.load(dispatch.path(device), device)
    raise NotMeasured(f"There is no dispatch table for {device}: `make dispatch RUN={results.run.name}` writes one")


@exhibit("backends.attend.chosen", of="attended")
def chosen(results: Results) -> Table | Prose:
    """The calls in the dispatch table of this device that are not SDPA's, by shape."""
    table = _table(results)
    rows = [
        {
            "shape": choice.shape.label,
            "call": choice.implementation,
            f"speedup over {FALLBACK} [{CI}]": formats.stacked(stats.Interval(choice.speedup, choice.low, choice.high)),
        }
        for choice in table.choices
        if choice.implementation != FALLBACK
    ]
    of = f"By the run `{table.run}` ({table.timing}), of {formats.count(len(table.choices), 'shape')}"
    if not rows:
        return Prose(f"{of} none is served faster by another call than `{FALLBACK}`.")
    have = "1 has" if len(rows) == 1 else f"{len(rows)} have"
    note = f"{of} {have} another call than `{FALLBACK}`, each with the verdict *faster*."
    return Table(pd.DataFrame(rows), "What `attnlab.attend` calls instead of SDPA, by shape.", note)


@exhibit("backends.attend.held", of="attended")
def compared(results: Results) -> Table:
    """`attend` against `sdpa.auto` at every shape of its dispatch table."""
    shapes = [s for s in results.study.shapes if {FALLBACK, DISPATCH} <= set(results.at(s).index)]
    if not shapes:
        raise NotMeasured(f"`{DISPATCH}` was not measured against `{FALLBACK}` in this run")
    rows = []
    for shape in shapes:
        verdict, added = results.compare(DISPATCH, shape), _added_us(results, shape)
        rows.append(
            {
                "shape": shape.label,
                f"{FALLBACK} (µs) [{CI}]": formats.stacked(median_of(results.row(FALLBACK, shape))),
                f"attend (µs) [{CI}]": formats.stacked(median_of(results.row(DISPATCH, shape))),
                f"adds (µs) [{CI}]": formats.stacked(added),
                "verdict": verdict.decision,
                f"within {ALLOWED_US} µs": _within(added),
            }
        )
    kept = sum(row[f"within {ALLOWED_US} µs"] == "yes" for row in rows)
    note = (
        "Adds: the difference of the medians within a replicate, with Student's t over replicates. Yes: the whole "
        f"interval is below {ALLOWED_US} µs; no: it is above; undecided: neither. {kept} of {len(rows)} are yes."
    )
    return Table(pd.DataFrame(rows), f"`attnlab.attend` and `{FALLBACK}`; {results.headline.words}.", note)


def _within(added: stats.Interval) -> str:
    return "yes" if added.high <= ALLOWED_US else "no" if added.low > ALLOWED_US else "undecided"


def _added_us(results: Results, shape: Shape) -> stats.Interval:
    return stats.added_us(*(results.samples(name, shape) for name in (DISPATCH, FALLBACK)))


@exhibit("backends.attend.stream", of="attended")
def stream(results: Results) -> Table:
    """Latencies of a stream of requests of many shapes."""
    calls = _calls(results)
    rows = []
    for name, answered in calls.groupby("implementation", sort=False):
        by_replicate = [group["latency_us"].to_numpy() for _, group in answered.groupby("replicate")]
        quantiles = {f"P{100 * p:.0f} (µs) [{CI}]": _quantile(by_replicate, p) for p in QUANTILES}
        host = formats.number(answered["host_us"].median())
        rows.append({"implementation": name, "requests": f"{len(answered):,}"} | quantiles | {"host (µs)": host})
    note = (
        f"Requests of {formats.count(len(calls[AXES].drop_duplicates()), 'shape')}, one after the other in random "
        "order, timed by the host's clock until the output is complete; the cache holds what the request before left. "
        "Host is the median time until the call returned. Quantiles have order-statistic intervals."
    )
    return Table(pd.DataFrame(rows), "A stream of requests of many shapes.", note)


def _quantile(samples: list[np.ndarray], p: float) -> str | None:
    interval = stats.quantile_ci(samples, p)
    return formats.stacked(interval) if interval is not None else None


@exhibit("backends.attend.overhead", of="attended")
def overhead(results: Results) -> Prose:
    """The host time of `attend` itself, where it makes the same call as SDPA."""
    calls, table = _calls(results), _table(results)
    same = [choice.shape for choice in table.choices if choice.implementation == FALLBACK]
    calls = calls[np.logical_or.reduce([is_of(calls, shape) for shape in same])] if same else calls.head(0)
    if calls.empty:
        raise NotMeasured(f"No request of the stream was answered by `{FALLBACK}` on both sides")
    medians = calls.groupby(["replicate", "implementation"])["host_us"].median().unstack()
    more = medians[DISPATCH].mean() >= medians[FALLBACK].mean()
    sign, word = (1, "more") if more else (-1, "less")
    added = stats.over_replicates(list(sign * (medians[DISPATCH] - medians[FALLBACK])))
    return Prose(
        f"Where `attend` makes the same call as SDPA, it takes {formats.interval(added)} µs {word} of host time than "
        f"SDPA alone (median of {len(calls) // 2:,} requests, Student's t over replicates). Within the "
        f"{ALLOWED_US} µs allowed: {_within(added) if more else 'yes'}. {_served(_calls(results))}"
    )


def _served(calls: pd.DataFrame) -> str:
    """Whether the median request of the whole stream is answered later through `attend`, in a sentence."""
    medians = calls.groupby(["replicate", "implementation"])["latency_us"].median().unstack()
    added = medians[DISPATCH] - medians[FALLBACK]
    later, count = int((added > 0).sum()), len(added)
    gap = formats.interval(stats.over_replicates(list(added)))
    if later == count:
        verdict = f"is answered later through `attend` than by SDPA in {'the only' if count == 1 else f'all {count}'}"
    elif later == 0:
        verdict = f"is answered earlier through `attend` than by SDPA in {'the only' if count == 1 else f'all {count}'}"
    else:
        verdict = f"is answered later through `attend` than by SDPA in {later} of {count}"
    return (
        f"Over the whole stream, the median request {verdict} {'replicate' if count == 1 else 'replicates'}: `attend` "
        f"adds {gap} µs to {formats.number(float(medians[FALLBACK].mean()), 4)} µs, the mean of the replicates' "
        "medians."
    )


def _calls(results: Results) -> pd.DataFrame:
    calls = results.run.stream
    if not {FALLBACK, DISPATCH} <= set(calls["implementation"]):
        raise NotMeasured(f"No stream of requests to `{DISPATCH}` and `{FALLBACK}` was recorded in this run")
    return calls
