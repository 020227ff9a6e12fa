"""The audit of five reports on an NVIDIA L4: its findings, as figures, tables and text.

Everything here comes from data/reference/ alone and is the same for every run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Figure, Group, Prose, Table
from attnlab.exhibits.style import bar_columns, plain_logarithm
from attnlab.literature import audit
from attnlab.literature.audit.reference import DOCUMENTS, Reference, Row
from attnlab.study.shapes import Shape

LOOKS = {
    "000": ("#000000", "o", 3),
    "002": ("#CC79A7", "v", 5),
    "003": ("#0072B2", "s", 6),
    "004": ("#E69F00", "D", 7),
}
"""Colour, marker and marker size of each document that gives latencies; a marker may be inside another."""
LATENCIES = ("median latency", "mean latency", "latency")
SOLID = 5
"""Larger markers are hollow."""
DEVICE = "L4"
FURTHEST = 12


@dataclass(frozen=True)
class Point:
    """A latency of a document as a point of the roofline, by the FLOPs and bytes of its shape.

    Attributes:
        subject: what was measured, ``sdpa`` or ``kernel``.
        printed: the latency in ms, as printed.
    """

    document: str
    subject: str
    shape: Shape
    printed: str

    @property
    def latency_s(self) -> float:
        return float(self.printed) / 1e3

    @property
    def tflops(self) -> float:
        return self.shape.flops / self.latency_s / 1e12

    @property
    def gbs(self) -> float:
        return self.shape.bytes / self.latency_s / 1e9


@cache
def findings() -> pd.DataFrame:
    """The findings of the audit, made once."""
    return audit.audit()


@cache
def _reference() -> Reference:
    return Reference()


@exhibit("audit.summary")
def summary() -> Prose:
    """The number of claims, and how many of them stand."""
    return Prose(in_short())


def in_short() -> str:
    """The same as sentences."""
    found = findings()
    counts = found["finding"].value_counts()
    fine = int(counts.reindex(audit.FINE).sum())
    parts = [f"*{kind}* {counts[kind]}" for kind in audit.FINDINGS[len(audit.FINE) :] if counts.get(kind)]
    return (
        f"Of {len(found)} claims that the {_count_word(len(DOCUMENTS))} reports make or imply, {fine} stand: "
        f"{counts.get('holds', 0)} hold, {counts.get('rounding', 0)} differ by no more than the printed digits allow. "
        f"The other {len(found) - fine}: {formats.listing(parts)}."
    )


@exhibit("audit.meanings")
def meanings() -> Table:
    """The meaning of each finding."""
    meanings = {
        "holds": "the recomputed number prints as stated, or the statement is true",
        "rounding": "it does not, but the printed digits allow for the difference",
        "contradicts itself": "other numbers in the same document contradict it",
        "contradicts another": "another document, or the datasheet, contradicts it",
        "exceeds the hardware": "it is more than memory or the tensor cores of an L4 deliver, by its datasheet",
        "wrong work": "it counts FLOPs, bytes or tokens that were not processed, or compares different work",
        "unsupported": "the document does not give what it would follow from",
        "refuted premise": "it follows from a claim that does not stand, however right its arithmetic",
    }
    counts = findings()["finding"].value_counts()
    rows = [{"finding": kind, "claims": int(counts.get(kind, 0)), "means": meanings[kind]} for kind in audit.FINDINGS]
    return Table(pd.DataFrame(rows), "The meaning of each finding, and the number of claims.")


@exhibit("audit.counts")
def counts() -> Figure:
    """Findings by document, a column of bars for each."""
    table = pd.crosstab(findings()["source"], findings()["finding"]).reindex(columns=list(audit.FINDINGS), fill_value=0)
    rows = [f"{name}  {DOCUMENTS[name]}" for name in table.index]
    drawing = bar_columns(rows, {kind: table[kind].tolist() for kind in audit.FINDINGS}, "claims")
    said = f"{table['holds'].sum()} of {table.to_numpy().sum()} claims hold as printed."
    return Figure(
        drawing,
        f"{said} The number of claims with each finding, by document.",
        f"Bars with a row for each document and a column for each finding: the number of claims. {said}",
    )


@exhibit("audit.counted")
def counted() -> Table:
    """The numbers of `counts`."""
    table = pd.crosstab(findings()["source"], findings()["finding"]).reindex(columns=list(audit.FINDINGS), fill_value=0)
    table["claims"] = table.sum(axis=1)
    table.loc["all"] = table.sum()
    frame = table.reset_index().rename(columns={"source": "document"})
    return Table(frame, "Findings by document.", _legend())


@exhibit("audit.telling")
def telling() -> Table:
    """The most informative claims, chosen by hand in claims.csv."""
    rows = findings().dropna(subset=["telling"]).sort_values("telling")
    return Table(_claims(rows, source=True), "The most informative claims, as stated and recomputed.", _legend())


@exhibit("audit.furthest")
def furthest() -> Table:
    """The stated numbers that are off by the largest factor."""
    off = findings()[~findings()["finding"].isin(audit.FINE)].dropna(subset=["factor"])
    rows = off.sort_values("factor", ascending=False, kind="stable").drop_duplicates(["source", "place", "stated"])
    rows = rows.head(FURTHEST)
    frame = _claims(rows, source=True)
    frame.insert(3, "off by", [f"{factor:.3g}×" for factor in rows["factor"]])
    return Table(frame, "Numbers that are off by the largest factor.")


@exhibit("audit.documents")
def documents() -> Group:
    """Every claim, a table for each document."""
    return Group({name: _document(name) for name in DOCUMENTS})


def _document(name: str) -> Table:
    rows = findings()[findings()["source"] == name]
    return Table(_claims(rows), f"Every claim of {name}, {DOCUMENTS[name]}.")


def _claims(rows: pd.DataFrame, source: bool = False) -> pd.DataFrame:
    cells = [
        {
            "document": row["source"],
            "claim (where it stands)": f"{row['claim']} ({row['place']})",
            "stated,\nrecomputed": "\n".join(
                _quantity(row[column], row["unit"]) for column in ("stated", "recomputed")
            ),
            "finding": "\n".join(row["finding"].split(" ", 1)),
            "why": row["why"],
        }
        for row in rows.to_dict("records")
    ]
    frame = pd.DataFrame(cells)
    return frame if source else frame.drop(columns="document")


def _quantity(value: str, unit: str) -> str:
    """A number with its unit; a word unchanged."""
    try:
        number = float(value)
    except ValueError:
        return value
    plain = f"{number:,.{len(value.partition('.')[2])}f}" if "e" not in value else value
    return plain if unit in ("1", "count", "text") else f"{plain} {unit}"


def _legend() -> str:
    return f"Documents: {'; '.join(f'{name} {title}' for name, title in DOCUMENTS.items())}."


@exhibit("audit.across")
def across() -> Table:
    """Latencies of the same configuration in several documents."""
    note = (
        "All on an NVIDIA L4 in float16 with D=64, in reports of 13 and 14 October 2025. Where a cell has several "
        "latencies, the document gives all of them. Apart: the largest over the smallest, minus 1."
    )
    return Table(_across(), "The same configuration across documents.", note)


def _across() -> pd.DataFrame:
    rows = []
    for shape, subject in dict.fromkeys((point.shape, point.subject) for point in points()):
        there = [point for point in points() if (point.shape, point.subject) == (shape, subject)]
        if len({point.printed for point in there}) < 2:
            continue
        latencies = [float(point.printed) for point in there]
        mask = ", causal" if shape.causal else ""
        row: dict[str, Any] = {"B": shape.batch, "H": shape.heads, "S": f"{shape.seq_len}{mask}", "what": subject}
        for name in LOOKS:
            row[f"{name} (ms)"] = "\n".join(dict.fromkeys(p.printed for p in there if p.document == name)) or None
        rows.append(row | {"apart": formats.percent(100 * (max(latencies) / min(latencies) - 1))})
    return pd.DataFrame(rows).sort_values("what", kind="stable")


@exhibit("audit.across_told")
def across_summary() -> Prose:
    """How far documents are apart where they measured the same configuration."""
    frame = _across()
    apart = [float(cell.removesuffix(" %")) for cell in frame["apart"]]
    worst = frame.iloc[int(np.argmax(apart))]
    return Prose(
        f"{len(frame)} configurations have more than one latency. They are {min(apart):.1f} to {max(apart):.0f} % "
        f"apart, most at B={worst['B']} H={worst['H']} S={worst['S']}. These reports would call a gain of 10 % "
        f"significant; {sum(value > 10 for value in apart)} of these configurations differ by more without any change."
    )


@cache
def points() -> tuple[Point, ...]:
    """Every latency of SDPA or their kernel that the documents give on an L4, without duplicates."""
    found: dict[tuple[str, str, Shape], list[Row]] = {}
    for name in LOOKS:
        for row in _reference().rows[name].values():
            if (
                row.unit == "ms"
                and row.quantity in LATENCIES
                and row.subject.startswith(("sdpa", "kernel"))
                and row.shape
            ):
                found.setdefault((name, row.subject.split(",")[0], row.shape), []).append(row)
    return tuple(
        Point(name, subject, shape, row.value)
        for (name, subject, shape), rows in found.items()
        for row in _distinct(rows)
    )


def _distinct(rows: list[Row]) -> list[Row]:
    """The rows without means where there are medians, and without numbers that are others with fewer digits."""
    kept = [row for row in rows if row.quantity != "mean latency"] or rows
    kept = list({row.value: row for row in kept}.values())
    return [row for row in kept if not any(_is_rounded(row, other) for other in kept if other is not row)]


def _is_rounded(row: Row, other: Row) -> bool:
    assert row.number is not None
    assert other.number is not None
    return len(row.value) < len(other.value) and row.number.contains(other.number.value)


@exhibit("audit.roofline")
def roofline() -> Figure:
    """The documents' latencies under the L4's ceilings, with the FLOPs and bytes of their shapes."""
    rate, bandwidth = _ceilings()
    drawing, (whole, near) = plt.subplots(1, 2, figsize=(7.2, 4.2), width_ratios=(1, 1.5))
    lines, _ = (_roofs(axes) for axes in (whole, near))
    full = [point for point in points() if not point.shape.causal and point.subject == "sdpa"]
    for axes, shown in ((whole, points()), (near, full)):
        _scatter(axes, shown)
        axes.set(xscale="log", yscale="log", xlabel="intensity (FLOP/byte), logarithmic")
        axes.axvline(1e3 * rate / bandwidth, color="#888888", linewidth=0.8, linestyle=":")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    whole.set(
        ylabel="throughput (TFLOP/s), logarithmic", title="all", ylim=(min(point.tflops for point in points()) / 2, 300)
    )
    whole.xaxis.set_major_locator(FixedLocator([32, 128, 512]))
    near.set(title="SDPA without a mask", xlim=(45, 1600), ylim=(0.8 * min(point.tflops for point in full), 160))
    near.xaxis.set_major_locator(FixedLocator([64, 128, 256, 512, 1024]))
    for axes in (whole, near):
        plain_logarithm(axes.yaxis)
    handles = [handle for handle in whole.get_legend_handles_labels()[0] if handle not in lines]
    drawing.legend(handles=handles, loc="outside upper center", ncols=3)
    drawing.legend(handles=lines, loc="outside lower center", ncols=2)
    return Figure(
        drawing,
        "The L4's roofline with the datasheet's ceilings, and every latency of the documents with the FLOPs and bytes "
        f"of its shape. The dotted line is the ridge, {1e3 * rate / bandwidth:.0f} FLOP/byte. Points with a ring are "
        "above what memory delivers; their tensors fit the L2.",
        "Roofline plots on logarithmic axes: throughput over intensity of each latency in the documents, under the "
        "ceilings of the datasheet and under those that the documents assume.",
    )


def _roofs(axes: Axes) -> list[Any]:
    """Draw the datasheet's roof and the documents', and return the lines for a legend."""
    span, lines = np.geomspace(8, 2048, 300), []
    theirs = _stated("000", "peak.throughput"), _stated("000", "peak.bandwidth")
    for name, dash, (rate, bandwidth) in (("L4", "-", _ceilings()), ("as 000 and 002 state it", "--", theirs)):
        style: dict[str, Any] = {"color": "#444444", "linewidth": 1.4, "linestyle": dash}
        lines += axes.plot(
            span, np.minimum(span * bandwidth / 1e3, rate), label=f"{name}: {_roof(rate, bandwidth)}", **style
        )
    return lines


def _scatter(axes: Axes, shown: Sequence[Point]) -> None:
    for name, (colour, marker, size) in LOOKS.items():
        for kernel in (False, True):
            there = [p for p in shown if p.document == name and (p.subject == "kernel") == kernel]
            if there:
                style: dict[str, Any] = {"color": colour, "marker": marker, "linestyle": "none", "markersize": size}
                style |= {"label": f"{name}, {'its kernel' if kernel else 'SDPA'}", "markeredgewidth": 1.1}
                style |= {"markerfacecolor": "none"} if kernel or size > SOLID else {}
                axes.plot([p.shape.intensity for p in there], [p.tflops for p in there], **style)
    over = [p for p in shown if _is_above(p)]
    ring: dict[str, Any] = {"marker": "o", "markersize": 15, "markerfacecolor": "none", "linestyle": "none"}
    spots = [p.shape.intensity for p in over], [p.tflops for p in over]
    axes.plot(*spots, color="#C00000", label="above memory's line", **ring)


@exhibit("audit.standing")
def standing() -> Table:
    """The points of `roofline` with their shares of the roof."""
    rate, bandwidth = _ceilings()
    rows = []
    for point in sorted(points(), key=lambda point: (point.document, point.subject, point.shape, point.printed)):
        shape = point.shape
        roof = min(rate, shape.intensity * bandwidth / 1e3)
        rows.append(
            {
                "document": point.document,
                "what": point.subject,
                "B, H, S": f"{shape.batch}, {shape.heads}, {shape.seq_len}{', causal' if shape.causal else ''}",
                "latency (ms)": point.printed,
                "TFLOP/s": formats.number(point.tflops),
                "GB/s": formats.number(point.gbs),
                "FLOP/byte": formats.number(shape.intensity),
                "floor": "compute" if shape.intensity > 1e3 * rate / bandwidth else "memory",
                "of the roof": f"{formats.number(100 * point.tflops / roof)} %" + (" †" if _is_above(point) else ""),
            }
        )
    return Table(
        pd.DataFrame(rows),
        "The documents' latencies, with the FLOPs and bytes of their shapes, under the L4's ceilings.",
        f"The roof: {_roof(rate, bandwidth)}. † Above the roof: Q, K, V and O fit the {_l2_mib():g} MiB of the L2.",
    )


@exhibit("audit.roofline_told")
def roofline_summary() -> Prose:
    """The conclusions from the corrected roofline."""
    rate, bandwidth = _ceilings()
    ridge = 1e3 * rate / bandwidth
    (target,) = {point.shape for point in points() if point.shape == Shape(32, 8, 512, 64)}
    best = min((point for point in points() if point.shape == target), key=lambda point: point.latency_s)
    memory_ms, compute_ms = target.bytes / bandwidth / 1e6, target.flops / rate / 1e9
    over = [point for point in points() if _is_above(point)]
    fastest, theirs = max(points(), key=lambda point: point.tflops), _stated("000", "peak.throughput")
    beyond_ms = max(compute_ms, (target.bytes - _l2_mib() * 2**20) / bandwidth / 1e6)
    lines = [
        f"**The ridge moves.** With {_roof(rate, bandwidth)} it is at {ridge:.0f} FLOP/byte, not at "
        f"{1e3 * theirs / _stated('000', 'peak.bandwidth'):.0f}. Self-attention in float16 "
        f"without a mask has S/2 FLOP per byte, so memory sets the floor up to S={2 * int(ridge)}, and compute beyond.",
        f"**The target changes sides.** S={target.seq_len} has {target.intensity:.0f} FLOP/byte, not "
        f"{_reference().rows['000']['roofline.512.intensity'].value}: its bytes take {memory_ms:.3f} ms, its FLOPs "
        f"{compute_ms:.3f} ms. The best latency given for it, {best.printed} ms in {best.document}, is "
        f"{best.latency_s * 1e3 / memory_ms:.2f} times the floor. That is the largest possible gain with a cold cache; "
        f"with an L2 full of its data, the floor is {beyond_ms:.3f} ms.",
        f"**Nothing is above the tensor cores.** The highest throughput, {fastest.tflops:.1f} TFLOP/s, is "
        f"{100 * fastest.tflops / rate:.0f} % of their rate, not {100 * fastest.tflops / theirs:.0f} % of a peak.",
        f"**{_count_word(len(over)).capitalize()} points are above memory's line**, "
        f"{formats.listing([f'{p.document} at S={p.shape.seq_len} ({p.gbs:.0f} GB/s)' for p in over])}. Their tensors "
        f"take {max(p.shape.bytes for p in over) / 1e6:.1f} MB and fit the L2, which may still hold them from the "
        "previous call: at least part of these measurements is of the cache.",
    ]
    return Prose("\n".join(f"- {line}" for line in lines))


@exhibit("audit.survives")
def survives() -> Group:
    """The documents' advice, and which of it stands."""
    frame = audit.advice(findings())
    counts = frame["verdict"].value_counts()
    tally = (
        f"Of {len(frame)} pieces of advice, {counts.get('stands', 0)} stand, {counts.get('falls', 0)} fall and "
        f"{counts.get('unsupported', 0)} are unsupported. Advice that stands needs no peak, no FLOPs and no price: it "
        "compares latencies of one shape in one session, or asks for no more than the floor allows."
    )
    table = pd.DataFrame(
        {
            "document": frame["source"],
            "advice": frame["advice"],
            "verdict": frame["verdict"],
            "because": [_because(against) for against in frame["against"]],
            "the numbers say": frame["instead"],
        }
    )
    order = {"stands": 0, "unsupported": 1, "falls": 2}
    table = table.sort_values("verdict", key=lambda verdicts: verdicts.map(order), kind="stable")
    caption = "The documents' advice, judged with corrected work and peaks."
    return Group({"counted": Prose(tally), "advice": Table(table, caption)})


def _because(against: list[str]) -> str:
    """The findings against a piece of advice, in one line."""
    found = findings().set_index("id").loc[against] if against else findings().head(0)
    return "; ".join(f"{row['claim']}: {row['finding']}" for row in found.to_dict("records")) or "all of it holds"


def _is_above(point: Point) -> bool:
    rate, bandwidth = _ceilings()
    return point.gbs > bandwidth or point.tflops > rate


def _ceilings() -> tuple[float, float]:
    """The L4's dense float16 rate in TFLOP/s and its memory bandwidth in GB/s."""
    return _stated(DEVICE, "matmul_float16_tflops"), _stated(DEVICE, "copy_gbs")


def _l2_mib() -> float:
    return _stated(DEVICE, "l2_mib")


def _stated(source: str, name: str) -> float:
    return float(_reference().rows[source][name].value)


def _roof(rate: float, bandwidth: float) -> str:
    return f"{rate:g} TFLOP/s and {bandwidth:g} GB/s"


def _count_word(amount: int) -> str:
    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    return words[amount] if amount < len(words) else f"{amount}"
