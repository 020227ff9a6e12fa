"""The audit of five reports on an NVIDIA L4: its findings, as figures, tables and text.

Everything here comes from data/reference/ alone and is the same for every run.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import pandas as pd

from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Group, Prose, Table
from attnlab.exhibits.quantities import Marked
from attnlab.exhibits.words import say
from attnlab.literature import audit
from attnlab.literature.audit import latencies
from attnlab.literature.audit.latencies import Point
from attnlab.literature.audit.reference import DOCUMENTS
from attnlab.study.ladder import MASKS

MEANINGS = {
    "holds": "the recomputed number prints as stated, or the statement is true",
    "rounding": "it does not, but the printed digits allow for the difference",
    "contradicts itself": "other numbers in the same document contradict it",
    "contradicts another": "another document, or the datasheet, contradicts it",
    "exceeds the hardware": "it is more than memory or the tensor cores of an L4 deliver, by its datasheet",
    "wrong work": "it counts FLOPs, bytes or tokens that were not processed, or compares different work",
    "unsupported": "the document does not give what it would follow from",
    "refuted premise": "it follows from a claim that does not stand, however right its arithmetic",
}
"""Of each finding."""
WITHOUT_UNIT = ("1", "count", "text")


@cache
def findings() -> pd.DataFrame:
    """The findings of the audit, made once."""
    return audit.audit()


@exhibit("audit.summary")
def summary() -> Prose:
    """The number of claims, and how many of them stand."""
    return Prose(in_short())


def in_short() -> str:
    """The number of claims and how many stand, in two sentences."""
    counts = _counts(findings()["finding"], audit.FINDINGS)
    stand = sum(counts[kind] for kind in audit.FINE)
    return say("audit.summary", claims=len(findings()), stand=stand, counts=counts)


def _counts(found: pd.Series, kinds: Sequence[str]) -> dict[str, int]:
    counts = found.value_counts()
    return {kind: int(counts.get(kind, 0)) for kind in kinds}


@exhibit("audit.documents")
def documents() -> Group:
    """The findings by document, the most informative claims, and every claim, a table for each document."""
    found = findings()
    telling = found.dropna(subset=["telling"]).sort_values("telling")
    titles = {name: f"Every claim of {name}, {title}." for name, title in DOCUMENTS.items()}
    tables = {name: _claims(found[found["source"] == name], title) for name, title in titles.items()}
    return Group({"counts": _by_document(found), "telling": _claims(telling, "The most informative claims.")} | tables)


def _by_document(found: pd.DataFrame) -> Table:
    counts = {name: _counts(found.loc[found["source"] == name, "finding"], audit.FINDINGS) for name in DOCUMENTS}
    rows = [
        {"finding": kind, "means": MEANINGS[kind]}
        | {name: counts[name][kind] for name in DOCUMENTS}
        | {"all": sum(counts[name][kind] for name in DOCUMENTS)}
        for kind in audit.FINDINGS
    ]
    note = f"Documents: {'; '.join(f'{name} {title}' for name, title in DOCUMENTS.items())}."
    return Table.of(rows, "The meaning of each finding, and the number of claims by document.", note)


def _claims(claims: pd.DataFrame, caption: str) -> Table:
    rows = [
        {
            "claim (where it stands)": f"{row['claim']} ({row['place']})",
            "document": row["source"],
            "stated": row["stated"] if row["unit"] in WITHOUT_UNIT else f"{row['stated']} {row['unit']}",
            "recomputed": row["recomputed"],
            "finding": row["finding"],
            "why": row["why"],
        }
        for row in claims.to_dict("records")
    ]
    return Table.of(rows, caption)


@exhibit("audit.across")
def across() -> Table:
    """Latencies of the same configuration in several documents."""
    repeated = latencies.repeated()
    rows = [
        _sizes(one.points[0])
        | {f"{name} (ms)": "\n".join(one.of(name)) or None for name in latencies.MEASURED}
        | {"apart": one.apart_pct}
        for one in repeated
    ]
    most, over = max(repeated, key=lambda one: one.apart_pct), sum(one.apart_pct > 10 for one in repeated)
    note = (
        "All on an NVIDIA L4 in float16 with D=64, in reports of 13 and 14 October 2025. Where a cell has several "
        "latencies, the document gives all of them. Apart: the largest over the smallest, minus 1."
    )
    caption = say("audit.across", repeated=repeated, most=most, over=over)
    return Table.of(rows, caption, note, shows={"apart": formats.percent})


def _sizes(point: Point) -> dict[str, Any]:
    shape = point.shape
    return {"what": point.subject, "B": shape.batch, "H": shape.heads, "S": shape.seq_len, "mask": MASKS[shape.causal]}


@exhibit("audit.roofline")
def roofline() -> Group:
    """The documents' latencies under the L4's ceilings, with the FLOPs and bytes of their shapes."""
    return Group({"told": Prose(say("audit.corrected", c=latencies.corrected())), "points": _points()})


def _points() -> Table:
    roof, points = latencies.roof(), latencies.points()
    rows = [
        {"document": point.document}
        | _sizes(point)
        | {
            "latency (ms)": point.printed,
            "throughput_tflops": point.tflops,
            "bandwidth_gbs": point.gbs,
            "intensity": point.shape.intensity,
            "floor": "compute" if point.shape.intensity > roof.ridge else "memory",
            "of the roof (%)": _of_the_roof(point),
        }
        for point in sorted(points, key=lambda point: (point.document, point.subject, point.shape, point.printed))
    ]
    limits = f"{roof.tflops:g} TFLOP/s and {roof.gbs:g} GB/s"
    caption = f"The documents' latencies, with the work of their shapes, under the L4's {limits}."
    return Table.of(rows, caption)


def _of_the_roof(point: Point) -> float | Marked:
    share = 100 * point.tflops / latencies.roof().at(point.shape.intensity)
    return Marked(share, "† Above the roof: Q, K, V and O fit the L2") if point.is_above else share


@exhibit("audit.survives")
def survives() -> Group:
    """The documents' advice, and which of it stands."""
    frame = audit.advice(findings())
    counts = _counts(frame["verdict"], ("stands", "unsupported", "falls"))
    order = {verdict: place for place, verdict in enumerate(counts)}
    frame = frame.sort_values("verdict", key=lambda verdicts: verdicts.map(order), kind="stable")
    frame = frame.assign(against=frame["against"].map(_because))
    table = frame.rename(columns={"source": "document", "against": "because", "instead": "the numbers say"})
    caption = "The documents' advice, judged with corrected work and peaks."
    return Group({"counted": Prose(say("audit.advice", counts=counts)), "advice": Table(table, caption)})


def _because(against: list[str]) -> str:
    """The findings against a piece of advice, in one line."""
    found = findings().set_index("id").loc[against] if against else findings().head(0)
    return "; ".join(f"{row['claim']}: {row['finding']}" for row in found.to_dict("records")) or "all of it holds"
