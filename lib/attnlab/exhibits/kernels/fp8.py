"""FP8 beside 16 bits: what it gains, and what that costs in accuracy. A run without FP8 shows nothing."""

import math
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.ticker import LogLocator, NullFormatter

from attnlab.base import paths
from attnlab.exhibits import cells, formats
from attnlab.exhibits.catalogue import exhibit, target
from attnlab.exhibits.display import Figure, Table
from attnlab.exhibits.style import PANELS, look, panel_each
from attnlab.exhibits.words import say
from attnlab.infer import kinds
from attnlab.infer.cases import CASE
from attnlab.infer.lookup import NotMeasured, on_values, shape_of
from attnlab.infer.results import Results
from attnlab.infer.stats import Interval
from attnlab.runs.schema import FAILED
from attnlab.study.implementations import FP8_KERNEL, FP8_QUANTIZING, REFERENCES, in_fp8
from attnlab.study.shapes import Shape
from attnlab.study.values import CAPTURED

PANEL_INCHES = 1.6
"""How high a panel of the figure is, with its title and labels."""


def has_fp8(results: Results) -> bool:
    """Whether the study of a run names what computes in FP8."""
    return any(map(in_fp8, results.study.implementations))


@exhibit("kernels.fp8", of="eight_bits", where=has_fp8)
def gains(results: Results) -> Table:
    """At each shape, the speedup of what computes in FP8 over the fastest in 16 bits, and errors.

    What quantises while it is timed has the errors of what is given the same in e4m3.
    """
    errors, names, rows = _errors(results), [n for n in results.study.implementations if in_fp8(n)], []
    beside: list[_Error] = []
    for shape in results.study.shapes:
        at = results.at(shape).index
        others = [name for name in at if not in_fp8(name) and name not in REFERENCES]
        if not others or not set(names) & set(at):
            continue
        fastest = results.fastest(shape, among=others)
        there = {name: results.speedup(name, shape, baseline=fastest) for name in names if name in at}
        row: dict[str, Any] = {"shape": shape.label, "fastest in 16 bits": fastest}
        row |= {"median_us": results.median(fastest, shape)} | there
        named = {"16 bits": fastest} | {name: name for name in names if name not in FP8_QUANTIZING}
        rows.append(row | {f"error, {title}": errors.get((n, *shape.axes.values())) for title, n in named.items()})
        own = {name: error for name in names if (error := errors.get((name, *shape.axes.values())))}
        beside += [_Error(own[name] / own[FP8_KERNEL], name, shape.values) for name in own if FP8_KERNEL in own]
    if not rows:
        raise NotMeasured("Nothing that computes in FP8 has a latency beside one in 16 bits")
    ratios = {name: [row[name] for row in rows if name in row] for name in names}
    speedups = {name: _Gain.of(found) for name, found in ratios.items() if found}
    said = say(
        "kernels.fp8",
        gains=speedups,
        most=max(beside, default=None),
        least=min(beside, default=None),
        refused=_refused(results, names),
    )
    frame = pd.DataFrame(rows, dtype=object).dropna(axis="columns", how="all")
    return Table(frame, f"{said} {results.headline.words.capitalize()}.", say("kernels.fp8_note"))


@exhibit("kernels.fp8.costs", of="eight_bits", where=has_fp8, shape=target)
def costs(results: Results, shape: Shape) -> Figure:
    """Throughput over the error, a panel for each kind of values."""
    errors, points = _errors(results), dict[str, list[tuple[str, float, float]]]()
    for kind in kinds.shapes(results, shape):
        for name, row in results.at(kind).iterrows():
            error = errors.get((name, *kind.axes.values()))
            if error and name not in REFERENCES:
                points.setdefault(kind.values, []).append((str(name), error, row["throughput_tflops"]))
    if not points:
        raise NotMeasured(f"Nothing has both a latency and an error at {shape.label}")
    drawing, panels = panel_each(list(points), "throughput (TFLOP/s)", "RMS error, logarithmic")
    for kind_, axes in panels.items():
        for name, error, tflops in points[kind_]:
            axes.plot([error], [tflops], linestyle="none", **look(name) | {"markersize": 4})
    first = next(iter(panels.values()))
    first.set_xscale("log")
    first.margins(0.15)
    first.xaxis.set_major_locator(LogLocator())
    first.xaxis.set_minor_formatter(NullFormatter())
    drawing.set_figheight(PANEL_INCHES * math.ceil(len(panels) / PANELS))
    drawn = [axes.get_legend_handles_labels() for axes in panels.values()]
    marks = {name: line for lines, names in drawn for line, name in zip(lines, names, strict=True)}
    drawing.legend(handles=list(marks.values()), loc="outside upper center", ncols=3)
    said = f"Throughput over the root of the mean square error at {shape.plain.label}, {results.headline.words}."
    return Figure(
        drawing,
        f"{said} {say('kernels.fp8_note')}",
        f"Points of throughput over error, a panel for each kind of values: {formats.listing(list(points))}. {said}",
    )


@exhibit("kernels.fp8.roundings", of="eight_bits", where=has_fp8)
def roundings(results: Results) -> Table:
    """Beside a run with FP8, the error by what Q, K and V are rounded to, a row for each kind of values."""
    found = pd.read_csv(paths.REFERENCE / "fp8_costs.csv")
    rows = found.pivot(index="values", columns="rounded", values="rmse")
    frame = rows.loc[found["values"].unique(), found["rounded"].unique()]  # in the file's order
    of_captured = found.groupby(found["values"].str.startswith(CAPTURED))["shape"].first()
    note = say("kernels.fp8_roundings_note", drawn=of_captured[False], captured=of_captured[True])
    return Table(
        frame.rename_axis(columns=None).reset_index(),
        say("kernels.fp8_roundings", outliers=frame.loc["outliers"]),
        note,
        shows=dict.fromkeys(frame.columns, "{:.2g}".format),
    )


def _refused(results: Results, names: list[str]) -> dict[str, list[Shape]]:
    """The shapes at which the gate refused an implementation, for each of these that it did."""
    cases = results.run.cases
    failed = cases[(cases["status"] == FAILED) & cases["implementation"].isin(names)].drop_duplicates(CASE)
    by_name = failed.groupby("implementation", sort=False)
    return {str(name): [shape_of(row) for _, row in rows.iterrows()] for name, rows in by_name}


class _Gain(NamedTuple):
    """The speedups of an implementation: the least and the most, at how many shapes it is faster, and of how many."""

    ends: tuple[float, float]
    faster: int
    of_shapes: int

    @classmethod
    def of(cls, speedups: list[Interval]) -> "_Gain":
        estimates = [one.estimate for one in speedups]
        return cls((min(estimates), max(estimates)), sum(one.low > 1 for one in speedups), len(speedups))


class _Error(NamedTuple):
    """The error of an implementation over that of `FP8_KERNEL`, on a kind of values."""

    ratio: float
    name: str
    values: str


def in_short(results: Results, eight_bits: Results | None) -> str:
    """What FP8 gains, in a sentence that names the run where it is another one; empty without FP8."""
    found = eight_bits or results
    table = gains(found)
    return f"{table.caption}{cells.of_another(results, found)}" if isinstance(table, Table) else ""


def _errors(results: Results) -> dict[Any, float]:
    """The RMS error of each case against float64 of what was drawn, the mean over its checks."""
    checks = on_values(results.run.checks)
    checks = checks[checks["drawn_rms_error"].notna()]
    return {case: float(error) for case, error in checks.groupby(CASE, sort=False)["drawn_rms_error"].mean().items()}
