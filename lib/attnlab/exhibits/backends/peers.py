"""Attention of other packages beside SDPA's: what each supports, and how fast it is."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pandas as pd

from attnlab.exhibits import cells, formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.decisions import FASTER
from attnlab.exhibits.display import Figure, Table
from attnlab.exhibits.style import look, ratio_rows
from attnlab.exhibits.words import say
from attnlab.infer.cases import AXES, CASE
from attnlab.infer.kernels.rungs import Changes, stale
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Results
from attnlab.runs.schema import FAILED, MEASURED, OUT_OF_MEMORY, SKIPPED, TOO_LONG
from attnlab.study import tuning
from attnlab.study.implementations import PEERS
from attnlab.study.shapes import Shape
from attnlab.study.values import NORMAL

FATES = {FAILED: FAILED, OUT_OF_MEMORY: OUT_OF_MEMORY, SKIPPED: "no", MEASURED: "yes"}
"""What is shown for each status of a case, the worst first."""
FAR = 2.5
"""What takes so many times as long as the baseline isn't drawn beside it."""
TOO_SLOW = "too slow to time"
RUNS = (FATES[MEASURED], TOO_SLOW)
"""What is shown for what is supported."""


@exhibit("backends.peers.support", of="choices")
def support(results: Results, decoded: Results | None = None) -> Table:
    """Whether each implementation supports each kind of shape; few queries by the run `decoded`, if that has them."""
    _require_peers(results)
    fates = _fates(results)
    named = results.run.cases.loc[results.run.cases["status"] != SKIPPED, "implementation"].unique()
    rows = {
        name: {_plain(sweep): _over(results.sweep(sweep), name, fates) for sweep in results.study.sweeps}
        for name in results.study.implementations
        if name in named  # of the others `environment.cases` says why they are nowhere
    }
    run, asked = "", [shape for shape in decoded.study.shapes if tuning.rows_of(shape)] if decoded else []
    if decoded and asked and decoded.run.name != results.run.name:
        run, others = decoded.run.name, _fates(decoded)
        for name in decoded.study.implementations:
            rows.setdefault(name, {})["few queries"] = _over(asked, name, others)
    alone = {name: _alone(results, name) for name in rows}
    frame = pd.DataFrame([{"implementation": name} | row for name, row in rows.items()])
    every = [title for title in frame.columns[1:] if set(frame[title].dropna()) == {FATES[MEASURED]}]
    frame = frame.drop(columns=every)
    frame["same bits alone"] = [_of_shapes(same) if len(same) else None for same in alone.values()]
    return Table(
        frame, "What each implementation supports, by kind of shape.", say("backends.support", run=run, every=every)
    )


@exhibit("backends.peers.beside", of="choices")
def beside(results: Results) -> Table:
    """The median latency of every implementation at every shape."""
    _require_peers(results)
    names, among = results.study.implementations, results.study.shapes
    rows = [
        {"shape": formats.shapes([shape], among)} | {name: results.value(name, shape, "median_us") for name in names}
        for shape in among
        if not results.at(shape).empty
    ]
    caption = f"Median latency in µs of every implementation; {results.headline.words}."
    return Table.of(rows, caption, "The explorer has their intervals.", sparse=True)


@exhibit("backends.peers.dots", of="choices")
def dots(results: Results) -> Figure:
    """The speedup of every implementation over the baseline, a row for each kind of call."""
    _require_peers(results)
    name = results.study.baseline
    families = results.families_under(results.headline)
    # Other packages are as they were; of a kernel of ours that has changed since, a number is evidence for nothing.
    found = stale(results.run)
    verdicts = {
        shape: {other: one for other, one in of.verdicts.items() if not _changed(found, other, shape)}
        for shape, of in families.items()
    }
    names = list(results.study.implementations)
    counts = {other: Counter(of[other].decision for of in verdicts.values() if other in of) for other in names}
    said = say("backends.faster", counts={other: (one[FASTER], one.total()) for other, one in counts.items() if one})
    if not said:
        raise NotMeasured(f"Nothing was compared with `{name}` in the run that has peers")
    titles = {shape: formats.shapes([shape], results.study.shapes) for shape in of_each_kind(families)}
    near = {
        other: {
            title: verdicts[shape][other].speedup
            for shape, title in titles.items()
            if other in verdicts[shape] and verdicts[shape][other].speedup.estimate > 1 / FAR
        }
        for other in names
    }
    series = {other: (look(other), rows) for other, rows in near.items() if rows}
    drawing = ratio_rows(series, list(titles.values()), f"speedup over {name}")
    changed = {other: at for other, at in found.items() if any(other in of.verdicts for of in families.values())}
    left_out = f" {say('backends.left_out', changes=cells.changes(changed))}" if changed else ""
    return Figure(
        drawing,
        f"Compared with `{name}`, {said}: speedups on the same card, {results.headline.words}. Drawn is the last shape "
        f"of each kind of call, without what takes over {FAR:g} times as long.{left_out}",
        f"Dots on a logarithmic axis around 1, a row for each kind of call and a mark for each implementation: {said}.",
    )


def _changed(found: Changes, name: str, shape: Shape) -> bool:
    at = found.get(name, frozenset())
    return at is None or shape in at


def of_each_kind(shapes: Iterable[Shape]) -> list[Shape]:
    """The last shape of each kind of call, on normal values: of those that differ in batch, heads and lengths alone."""
    last = {}
    for shape in shapes:
        least = shape.resized(batch=1, heads=1, seq_len=1, kv_heads=1, kv_len=1)
        kind = least, shape.kv_heads < shape.heads, shape.kv_len > shape.seq_len, shape.seq_len == 1
        if shape.values == NORMAL:
            last[kind] = shape
    return list(last.values())


def _require_peers(results: Results) -> None:
    if not set(PEERS) & set(results.study.implementations):
        raise NotMeasured("This run measured no peer: the study `backends` does")


def _plain(title: str) -> str:
    return title.rsplit(" ", 1)[0] if " " in title else "plain" if title == "seq_len" else title


def _alone(results: Results, name: str) -> pd.Series:
    """At each shape at which that was asked, whether a sequence alone has the bits that it has in a batch."""
    cases = results.run.cases
    asked = cases[(cases["implementation"] == name) & cases["alone_differing"].notna()]
    return asked.groupby(AXES, sort=False)["alone_differing"].max() == 0


def _of_shapes(same: pd.Series) -> str:
    return "yes" if same.all() else f"{same.sum()} of {len(same)}"


def _over(shapes: list[Shape], name: str, fates: dict[Any, str]) -> str:
    """What is shown for an implementation at all shapes of a sweep."""
    found = [fates.get((name, *shape.axes.values()), "not tried") for shape in shapes]
    runs = sum(fate in RUNS for fate in found)
    if runs == len(found) and FATES[MEASURED] in found:
        return FATES[MEASURED]
    return f"{runs} of {len(found)}" if 0 < runs < len(found) else ", ".join(dict.fromkeys(found))


def _fates(results: Results) -> dict[Any, str]:
    """What is shown for each case, by its worst replicate."""
    cases = results.run.cases
    statuses = cases.groupby(CASE, sort=False)["status"].agg(set)
    worst = {case: next(status for status in FATES if status in found) for case, found in statuses.items()}
    too_long = set(cases[cases["reason"].str.startswith(TOO_LONG)][CASE].itertuples(index=False, name=None))
    slow = {case for case, status in worst.items() if status == SKIPPED and case in too_long}
    return {case: TOO_SLOW if case in slow else FATES[status] for case, status in worst.items()}
