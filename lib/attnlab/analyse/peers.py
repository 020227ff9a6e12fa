"""Attention of other packages beside SDPA's: what each supports, and how fast it is where it does."""

import pandas as pd

from attnlab.analyse import formats
from attnlab.analyse.display import Table, telling
from attnlab.analyse.results import AXES, NotMeasured, Results, median_of
from attnlab.implementations import PEERS
from attnlab.runs import is_of
from attnlab.shapes import Shape

FATES = {"failed": "failed", "out of memory": "out of memory", "skipped": "no", "measured": "yes"}
"""What is said of a case by its status, the worst first."""


@telling
def support(results: Results) -> Table:
    """What became of each implementation at each kind of shape."""
    _require_peers(results)
    rows = [
        {"implementation": name} | {sweep: _fate(results, name, sweep) for sweep in results.study.sweeps}
        for name in results.study.implementations
    ]
    reasons = dict.fromkeys(_reasons(results))
    note = "Through the same gate as all others. " + " ".join(reasons)
    frame = pd.DataFrame(rows).rename(columns=_plain)
    return Table(frame, "peers-support", "What each implementation supports, by the kind of shape.", note)


@telling
def beside(results: Results) -> Table:
    """Every implementation at every shape of the study, with its speedup over the baseline."""
    _require_peers(results)
    rows = []
    for shape in results.study.shapes:
        for name in results.at(shape).index:
            row = results.row(str(name), shape)
            compared = name != results.study.baseline and results.study.baseline in results.at(shape).index
            verdict = results.compare(str(name), shape) if compared else None
            rows.append(
                {
                    "shape": formats.shape(shape),
                    "implementation": name,
                    "median (µs) [95 %]": formats.stacked(median_of(row)),
                    "TFLOP/s": formats.number(row["throughput_tflops"]),
                    "speedup [95 %]": formats.stacked(verdict.speedup) if verdict else None,
                    "verdict": verdict.decision if verdict else None,
                }
            )
    caption = f"Peers beside SDPA's backends and the ladder's best; {results.headline.words}."
    note = f"Speedup over `{results.study.baseline}`; a dash where that has no latency."
    return Table(pd.DataFrame(rows), "peers", caption, note)


def _require_peers(results: Results) -> None:
    if not set(PEERS) & set(results.study.implementations):
        raise NotMeasured("This run measured no peer: the study `peers` does")


def _plain(title: str) -> str:
    return title.rsplit(" ", 1)[0] if " " in title else "plain" if title == "seq_len" else title


def _fate(results: Results, name: str, sweep: str) -> str:
    fates = [_status(results, name, shape) for shape in results.sweep(sweep)]
    return fates[0] if len(set(fates)) == 1 else ", ".join(dict.fromkeys(fates))


def _status(results: Results, name: str, shape: Shape) -> str:
    """How the case fared, in its worst replicate."""
    cases, checks = (
        rows[is_of(rows, shape) & (rows["implementation"] == name)] for rows in (results.run.cases, results.run.checks)
    )
    status = next((status for status in FATES if status in set(cases["status"])), "")
    if status == "skipped" and len(checks):  # what isn't supported never comes to be checked
        return "too slow to time"
    return FATES.get(status, "not tried")


def _reasons(results: Results) -> list[str]:
    cases = results.run.cases
    lost = cases[cases["implementation"].isin(results.study.implementations) & (cases["status"] != "measured")]
    lost = lost.drop_duplicates(["implementation", "reason"]).drop_duplicates(["implementation", *AXES])
    return [f"`{row.implementation}`: {formats.ended(row.reason, 140)}" for row in lost.itertuples()]
