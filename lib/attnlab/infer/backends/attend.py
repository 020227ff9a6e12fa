"""What `attnlab.attend` adds to a call, by a stream of requests that it and `sdpa.auto` answered."""

from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pandas as pd

from attnlab.base.errors import UserError
from attnlab.infer.bootstrap import over_replicates
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Results
from attnlab.infer.stats import Interval
from attnlab.runs import dispatch
from attnlab.runs.dispatch import Dispatch
from attnlab.runs.schema import is_of
from attnlab.study.implementations import DISPATCH, FALLBACK

ALLOWED_US = 10
"""A call of `attend` may be slower than one of SDPA by this much."""


@dataclass(frozen=True)
class Overhead:
    """What `attend` adds, in us; intervals are Student's t over replicates.

    Attributes:
        requests: how many of each side made the same call, which `host_us` is of: time until the call returned.
        latency_us: added to the median request of the whole stream, over `median_us`, the mean of SDPA's medians.
        later: in how many of `replicates` the median request was answered later through `attend`.
    """

    requests: int
    host_us: Interval
    latency_us: Interval
    median_us: float
    later: int
    replicates: int

    @property
    def is_allowed(self) -> bool | None:
        """Whether the host time added is within `ALLOWED_US`; None where its interval leaves that open."""
        return True if self.host_us.high <= ALLOWED_US else False if self.host_us.low > ALLOWED_US else None


def table(results: Results) -> Dispatch:
    """The dispatch table of the run's device; NotMeasured where there is none."""
    device = results.run.manifest["device"]["name"]
    with suppress(UserError):
        return dispatch.load(dispatch.path(device), device)
    raise NotMeasured(f"There is no dispatch table for {device}: `make dispatch RUN={results.run.name}` writes one")


def overhead(results: Results) -> Overhead:
    """What `attend` adds where it makes the same call as SDPA, and over the whole stream.

    Raises NotMeasured where the dispatch table is not the one that the run went by, there is no stream, or no request
    of it made the same call on both sides.
    """
    calls = results.run.stream
    if not {FALLBACK, DISPATCH} <= set(calls["implementation"]):
        raise NotMeasured(f"No stream of requests to `{DISPATCH}` and `{FALLBACK}` was recorded in this run")
    made, went_by = table(results), results.run.manifest["dispatch"].get("run")
    if made.run != went_by:
        raise NotMeasured(f"`{DISPATCH}` went by the table of `{went_by}` in this run, and the device now has another")
    shapes = [choice.shape for choice in made.choices if choice.implementation == FALLBACK]
    same = calls[np.logical_or.reduce([is_of(calls, shape) for shape in shapes])] if shapes else calls.head(0)
    if same.empty:
        raise NotMeasured(f"No request of the stream was answered by `{FALLBACK}` on both sides")
    host, latency = _medians(same, "host_us"), _medians(calls, "latency_us")
    added = latency[DISPATCH] - latency[FALLBACK]
    return Overhead(
        requests=len(same) // 2,
        host_us=over_replicates(list(host[DISPATCH] - host[FALLBACK])),
        latency_us=over_replicates(list(added)),
        median_us=float(latency[FALLBACK].mean()),
        later=int((added > 0).sum()),
        replicates=len(added),
    )


def _medians(calls: pd.DataFrame, column: str) -> pd.DataFrame:
    return calls.groupby(["replicate", "implementation"])[column].median().unstack()
