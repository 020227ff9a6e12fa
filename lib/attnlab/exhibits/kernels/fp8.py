"""FP8 beside 16 bits: what it gains, and what that costs in accuracy. A run without FP8 shows nothing."""

import math
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from attnlab.base import paths
from attnlab.exhibits import cells, formats
from attnlab.exhibits.catalogue import exhibit, target
from attnlab.exhibits.display import Figure, Table
from attnlab.exhibits.style import look
from attnlab.exhibits.words import say
from attnlab.infer import kinds
from attnlab.infer.cases import CASE
from attnlab.infer.kernels.leads import Lead, Leads
from attnlab.infer.lookup import NotMeasured, known, on_values
from attnlab.infer.results import Results, absence, refused
from attnlab.study.implementations import CUDNN_FP8, FP8_KERNEL, FP8_QUANTIZING, REFERENCES, in_fp8
from attnlab.study.ladder import BEST
from attnlab.study.shapes import Shape
from attnlab.study.values import CAPTURED

KINDS_ABREAST = 6
"""How many kinds of values the figure has side by side."""
ROW_INCHES = 0.14
TINY_PT = 7
PAYING = (FP8_KERNEL, FP8_QUANTIZING[0], CUDNN_FP8)
"""What is shown of whether FP8 pays."""
ABSENT: dict[str, Any] = {"fontsize": TINY_PT, "color": "#444444", "va": "center"}
"""How the figure says that something has no throughput."""


def has_fp8(results: Results) -> bool:
    """Whether the study of a run names what computes in FP8."""
    return any(map(in_fp8, results.study.implementations))


@exhibit("kernels.fp8", of="eight_bits", where=has_fp8)
def gains(results: Results) -> Table:
    """At each shape, the speedup of what computes in FP8 over the fastest in 16 bits."""
    rows = []
    for shape, there in _leads(results).items():
        fastest = next(iter(there.values())).over
        row: dict[str, Any] = {"shape": shape.label, "fastest in 16 bits": fastest}
        row |= {"median_us": results.median(fastest, shape)} | {name: lead.ratio for name, lead in there.items()}
        rows.append(row)
    return Table.of(rows, _gained(results), _note(results), sparse=True)


@exhibit("kernels.fp8.errors", of="eight_bits", where=has_fp8)
def accuracy(results: Results) -> Table:
    """At each shape, the error of what computes in FP8, and of the fastest in 16 bits.

    What quantises while it is timed has the errors of what is given the same in e4m3.
    """
    errors, names, rows = _errors(results), list(filter(in_fp8, results.study.implementations)), []
    for shape, there in _leads(results).items():
        named = {"16 bits": next(iter(there.values())).over} | {n: n for n in names if n not in FP8_QUANTIZING}
        found = {title: errors.get((name, *shape.axes.values())) for title, name in named.items()}
        rows.append({"shape": shape.label} | found)
    return Table.of(rows, _erred(results), _note(results), sparse=True)


@exhibit("kernels.fp8.pays", of="eight_bits", where=has_fp8)
def pays(results: Results) -> Table:
    """At each shape, on the first of its kinds of values, whether FP8 pays: given e4m3, and made while it is timed."""
    found, seen, rows = _leads(results), set[Shape](), []
    for shape, there in found.items():
        if shape.plain not in seen:
            gained = {name: there[name].ratio if name in there else None for name in PAYING}
            rows.append({"shape": shape.label} | gained)
        seen.add(shape.plain)
    caption = say("kernels.fp8_pays", found=found, timing=results.headline.words)
    return Table.of(rows, caption, sparse=True)


def _leads(results: Results) -> dict[Shape, dict[str, Lead]]:
    """At each shape, the leads of what computes in FP8 over the fastest in 16 bits, by name."""
    found = {}
    for shape in results.study.shapes:
        at = results.at(shape).index
        names = [name for name in results.study.implementations if in_fp8(name) and name in at]
        others = [name for name in at if not in_fp8(name) and name not in REFERENCES]
        if names and others:
            over = results.fastest(shape, among=others)
            found[shape] = {name: Lead(name, over, results.speedup(name, shape, baseline=over)) for name in names}
    if not found:
        raise NotMeasured("Nothing that computes in FP8 has a latency beside one in 16 bits")
    return found


@exhibit("kernels.fp8.costs", of="eight_bits", where=has_fp8, shape=target)
def costs(results: Results, shape: Shape) -> Figure:
    """Errors, and throughputs below them: a column of panels for each kind of values, a row for each implementation.

    What was refused has a cross for its error, and its status in place of a throughput.
    """
    errors = _errors(results)
    names = [name for name in results.study.implementations if name not in REFERENCES]
    alike = [kind for kind in kinds.shapes(results, shape) if any((n, *kind.axes.values()) in errors for n in names)]
    if not alike:
        raise NotMeasured(f"Nothing has both a latency and an error at {shape.label}")
    drawing, panels = _pairs(names, alike)
    lacking = []
    for kind, (above, below) in panels.items():
        at = results.at(kind)
        for place, name in enumerate(names):
            error, mark = errors.get((name, *kind.axes.values())), look(name) | {"markersize": 4}
            if name in at.index:
                below.plot([at.loc[name, "throughput_tflops"]], [place], **mark)
            else:
                mark |= {"marker": "x"}
                reason, beside = absence(results, name, kind), errors.get((FP8_KERNEL, *kind.axes.values()))
                facts = {"name": name, "kind": kind.values, "reason": reason, "error": error, "beside": beside}
                lacking.append(facts)
                below.text(0.04, place, reason.split(",")[0], transform=below.get_yaxis_transform(), **ABSENT)
            if error:
                above.plot([error], [place], **mark)
    said = f"RMS errors and throughputs at {shape.plain.label}, {results.headline.words}."
    listed = formats.listing([kind.values for kind in alike])
    return Figure(
        drawing,
        " ".join(filter(None, [said, say("kernels.fp8_lacking", lacking=lacking), _note(results)])),
        f"Points, a row for each implementation and two panels for each kind of values, {listed}: the error on a "
        f"logarithmic axis, and below it the throughput. {said}",
    )


def _note(results: Results) -> str:
    return say("kernels.fp8_note", names=results.study.implementations)


def _pairs(names: list[str], alike: list[Shape]) -> tuple[Drawing, dict[Shape, tuple[Axes, Axes]]]:
    """Two panels for each shape, one below the other, of errors and of throughputs, with a row for each name."""
    columns = min(len(alike), KINDS_ABREAST)
    rows = 2 * math.ceil(len(alike) / columns)
    drawing, grid = plt.subplots(
        rows, columns, sharey=True, squeeze=False, figsize=(6.5, rows * (0.5 + ROW_INCHES * len(names)))
    )
    # The last number of a panel stands apart from the first of the next.
    drawing.set_layout_engine("constrained", w_pad=0.08)
    pairs = grid.reshape(-1, 2, columns).swapaxes(1, 2).reshape(-1, 2)
    for axes in pairs[len(alike) :].flat:
        axes.set_visible(False)
    panels = {kind: (above, below) for kind, (above, below) in zip(alike, pairs, strict=False)}
    for kind, pair in panels.items():
        for axes, first, title in zip(pair, panels[alike[0]], ("RMS error", "TFLOP/s"), strict=True):
            axes.set_xlabel(title, fontsize=TINY_PT)
            axes.tick_params(labelsize=TINY_PT)
            if axes is not first:
                axes.sharex(first)
        pair[0].set_title(kind.values, fontsize=8)
    errors, throughputs = panels[alike[0]]
    errors.set_yticks(range(len(names)), names)
    errors.set_ylim(len(names) - 0.5, -0.5)
    errors.set_xscale("log")
    errors.margins(x=0.2)
    errors.xaxis.set_major_locator(LogLocator(numticks=3))
    errors.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))  # an exponent would be too small
    errors.xaxis.set_minor_locator(LogLocator(numticks=20))
    errors.xaxis.set_minor_formatter(NullFormatter())
    throughputs.margins(x=0.2)
    throughputs.xaxis.set_major_locator(MaxNLocator(2))
    return drawing, panels


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


class _Error(NamedTuple):
    """A ratio of an implementation's error and that of `FP8_KERNEL`, on a kind of values."""

    ratio: float
    name: str
    values: str


def in_short(results: Results, eight_bits: Results | None) -> str:
    """What FP8 gains and costs, in a few words that name the run where it is another one; empty without FP8."""
    found = eight_bits or results
    said = known(lambda: f"{_gained(found)} {_erred(found)}")
    given = cells.given(name for name in PAYING if name in found.study.implementations)
    return f"{said}{given}{cells.of_another(results, found, FP8_KERNEL)}" if said else ""


def _gained(results: Results) -> str:
    """The speedups of what computes in FP8 over the fastest in 16 bits, and under which timing."""
    leads = _leads(results)
    by_name = {name: {shape: there[name] for shape, there in leads.items() if name in there} for name in PAYING}
    gained = {name: Leads(results.headline, found) for name, found in by_name.items() if found}
    return f"{say('kernels.fp8', gains=gained)} {results.headline.words.capitalize()}."


def _erred(results: Results) -> str:
    """The largest and the least error beside that of `FP8_KERNEL`, and what the gate refused."""
    errors, names = _errors(results), list(filter(in_fp8, results.study.implementations))
    beside, over = list[_Error](), list[_Error]()
    for shape in _leads(results):
        best, fp8 = (errors.get((name, *shape.axes.values())) for name in (BEST, FP8_KERNEL))
        over += [_Error(fp8 / best, BEST, shape.values)] if best and fp8 else []
        own = {name: error for name in names if (error := errors.get((name, *shape.axes.values())))}
        beside += [_Error(own[name] / own[FP8_KERNEL], name, shape.values) for name in own if FP8_KERNEL in own]
    return say(
        "kernels.fp8_errors",
        most=max(beside, default=None),
        least=min(beside, default=None),
        sixteen=(min(over), max(over)) if over else (),
        refused=refused(results, names, results.study.shapes),
    )


def _errors(results: Results) -> dict[Any, float]:
    """The RMS error of each case against float64 of what was drawn, the mean over its checks."""
    checks = on_values(results.run.checks)
    checks = checks[checks["drawn_rms_error"].notna()]
    return {case: float(error) for case, error in checks.groupby(CASE, sort=False)["drawn_rms_error"].mean().items()}
