"""Along the sweeps of a study: latency, throughput, bandwidth, memory, scaling."""

from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pandas as pd

from attnlab.exhibits import cells, formats, quantities
from attnlab.exhibits.catalogue import baseline, exhibit, target
from attnlab.exhibits.cells import CAUSAL_NOTE, LETTERS, interval_cell, stacked_cell
from attnlab.exhibits.display import Figure, Group, Prose, Table
from attnlab.exhibits.environment.clocks import cold_note
from attnlab.exhibits.formats import CI
from attnlab.exhibits.style import (
    AXIS_TITLES,
    axes_of,
    before_others,
    draw_lines,
    few_powers_of_two,
    is_causal,
    label_ends,
    multiples,
    panels_of,
    plain_logarithm,
    sweep_title,
)
from attnlab.exhibits.words import say
from attnlab.infer.lookup import NotMeasured, axis_of
from attnlab.infer.results import Results, absence
from attnlab.infer.stats import ratio_ci
from attnlab.runs.schema import MEASURED
from attnlab.study import implementations
from attnlab.study.ladder import BEST, PREFIX
from attnlab.study.shapes import Shape

OF_LENGTHS = ("seq_len", "causal seq_len")
"""The sweeps of lengths that have their own figures and tables."""
SWEEP_TITLES = {"seq_len": "Sequence length", "batch": "Batch", "heads": "Heads"}


@exhibit("baseline.latency")
def latency(results: Results, sweeps: Sequence[str] = OF_LENGTHS) -> Figure:
    """Latency against sequence length, a panel for each implementation."""
    drawing, panels = multiples(results, sweeps, "median_us", "latency (µs), logarithmic")
    panels[0].set_yscale("log")
    plain_logarithm(panels[0].yaxis)
    return Figure(
        drawing,
        f"{_most_often_fastest(results, sweeps)} Median latency, {results.headline.words}: each implementation before "
        f"all others in grey{dashed(results, sweeps)}.",
        "Line plots of latency over sequence length on logarithmic axes, one panel for each implementation. "
        f"{_most_often_fastest(results, sweeps)}",
    )


def _most_often_fastest(results: Results, sweeps: Sequence[str]) -> str:
    """The implementation that has the smallest median at the most shapes of these sweeps, in a sentence."""
    shapes = [shape for sweep in sweeps if sweep in results.study.sweeps for shape in results.sweep(sweep)]
    fastest = [results.fastest(shape) for shape in shapes if len(results.at(shape))]
    name = max(dict.fromkeys(fastest), key=fastest.count)
    return f"`{name}` has the smallest median at {fastest.count(name)} of {formats.count(len(fastest), 'shape')}."


def dashed(results: Results, sweeps: Sequence[str]) -> str:
    """What dashed lines are, for a caption; empty where there are none."""
    causal = [sweep for sweep in sweeps if is_causal(sweep) and sweep in results.study.sweeps]
    return ", dashed under the causal mask" if causal and len(sweeps) > 1 else ""


@exhibit("baseline.throughput.lengths", sweeps=OF_LENGTHS)
@exhibit("baseline.throughput.sizes", sweeps=("batch", "heads"))
def throughput(results: Results, sweeps: Sequence[str]) -> Figure:
    """Throughput along sweeps, a panel for each. Of a ladder with `kernel.best`, only that is drawn."""
    drawing, panels = panels_of(results, sweeps)
    named = results.study.implementations
    drawn = [name for name in named if name == BEST or BEST not in named or not name.startswith(PREFIX)]
    for axes, sweep in panels:
        draw_lines(axes, results, sweep, "throughput_tflops", drawn)
        axes.set(title=sweep_title(sweep), ylabel="throughput (TFLOP/s)" if axes is panels[0][0] else "")
        axes.set_ylim(bottom=0)
    label_ends(panels[-1][0])
    causal = " Causal FLOPs count the scores under the mask." if any(is_causal(sweep) for _, sweep in panels) else ""
    return Figure(
        drawing,
        f"{_highest(results, drawn, [sweep for _, sweep in panels])} Throughput, FLOPs over the median latency; "
        f"{results.headline.words}.{causal}",
        f"Line plots of throughput in TFLOP/s over {axes_of([sweep for _, sweep in panels])}, a line for each "
        "implementation.",
    )


def _highest(results: Results, names: Sequence[str], sweeps: Sequence[str]) -> str:
    """The highest throughput of these along sweeps, in a sentence."""
    rows = pd.concat([results.at(shape) for sweep in sweeps for shape in results.sweep(sweep)])
    rows = rows[rows["implementation"].isin(names)]
    row = rows.iloc[int(rows["throughput_tflops"].argmax())]
    where = formats.shapes([cells.shape_of(row)], results.study.shapes)
    reached = f"{formats.number(row['throughput_tflops'])} TFLOP/s{cells.explained(row['throughput_mark'])}"
    return f"The highest throughput shown is {reached}, of `{row['implementation']}` at {where}."


@exhibit("baseline.memory")
def memory_figure(results: Results, sweep: str = "seq_len") -> Figure:
    """Peak memory along a sweep."""
    axis, shapes = axis_of(sweep), results.sweep(sweep)
    lines = {name: _peaks(results, name, shapes, axis) for name in results.study.implementations}
    lines = {name: points for name, points in lines.items() if points}
    if not lines:
        raise NotMeasured(f"No case of the sweep “{sweep}” was measured, so its memory is not known")
    drawn = {name: ([size for size, _ in points], [mib for _, mib in points]) for name, points in lines.items()}
    title = f"{AXIS_TITLES[axis]}, logarithmic"
    drawing, panels = before_others(list(lines), [drawn], "peak memory (MiB), logarithmic", title)
    sizes, needed = [getattr(shape, axis) for shape in shapes], [shape.bytes / 2**20 for shape in shapes]
    for axes in panels.values():
        # On top, or an implementation that needs only the tensors would hide it.
        axes.plot(sizes, needed, ":", color="#222222", linewidth=1.6, zorder=5, label="Q, K, V and O")
    first = next(iter(panels.values()))
    first.set_yscale("log")
    few_powers_of_two(first, sizes)
    plain_logarithm(first.yaxis)
    return Figure(
        drawing,
        f"{_neediest(lines, dict(zip(sizes, needed, strict=True)), LETTERS[axis])} Peak memory allocated during a "
        "call, including inputs and output, each implementation before all others in grey; the dotted line is the size "
        "of Q, K, V and O alone.",
        f"Line plots of peak memory over {AXIS_TITLES[axis]} on logarithmic axes, one panel for each implementation.",
    )


def _neediest(lines: dict[str, list[tuple[int, float]]], needed: dict[int, float], letter: str) -> str:
    """The implementation that allocates the most beside its tensors, in a sentence."""
    ratio, name, size = max((mib / needed[size], name, size) for name, points in lines.items() for size, mib in points)
    return f"`{name}` allocates {formats.times(ratio)} the size of its tensors at {letter}={size}, the most of all."


def _peaks(results: Results, name: str, shapes: list[Shape], axis: str) -> list[tuple[int, float]]:
    points = [(getattr(shape, axis), results.peak_bytes(name, shape) / 2**20) for shape in shapes]
    return [point for point in points if point[1] > 0]


@exhibit("baseline.span")
def span(results: Results) -> Prose:
    """The extremes of the baseline's latency and rates over all shapes."""
    name = results.study.baseline

    def at(row: pd.Series) -> str:
        return formats.shapes([cells.shape_of(row)], results.study.shapes)

    return Prose(say("baseline.span", name=name, e=results.extremes(name), at=at))


@exhibit("baseline.kernels")
def kernels(results: Results) -> Table:
    """The kernel that each implementation ran, and at which shapes."""
    cases = results.run.cases
    cases = cases[(cases["status"] == MEASURED) & ~cases["implementation"].map(implementations.is_control).astype(bool)]
    cases = cases.assign(kernel=cases["kernels"].str.split("\n").str[0].map(formats.kernel))
    rows = []
    for name in results.study.implementations:
        its = cases[cases["implementation"] == name]
        everywhere = _shapes_of(its)
        for kernel, group in its.groupby("kernel", sort=False):
            rows.append({"implementation": name, "longest kernel": kernel, "at": _where(_shapes_of(group), everywhere)})
    note = "At: of the shapes at which the implementation was measured. A shape that is in two rows ran both, in turn."
    return Table(pd.DataFrame(rows), "The longest kernel of each call, by torch.profiler, and where it ran.", note)


def _shapes_of(cases: pd.DataFrame) -> list[Shape]:
    return [cells.shape_of(row) for row in cases[list(Shape.AXES)].drop_duplicates().to_dict("records")]


def _where(some: list[Shape], everywhere: list[Shape]) -> str:
    """The values of one or two axes that distinguish some shapes from all others, or else the shapes."""
    if set(some) == set(everywhere):
        return "all"
    shared = [axis for axis in Shape.AXES if len({getattr(shape, axis) for shape in some}) == 1]
    for axes in [*combinations(shared, 1), *combinations(shared, 2)]:
        alike = [shape for shape in everywhere if all(getattr(shape, a) == getattr(some[0], a) for a in axes)]
        if set(alike) == set(some):
            return " ".join(_named(axis, getattr(some[0], axis)) for axis in axes)
    return formats.shapes(some, everywhere)


def _named(axis: str, value: Any) -> str:
    if isinstance(value, bool):
        return "causal" if value else "not causal"
    return f"{'D' if axis == 'head_dim' else LETTERS[axis]}={value}" if isinstance(value, int) else str(value)


@exhibit("baseline.sweep.seq_len", name="seq_len", implementation=baseline)
@exhibit("baseline.sweep.causal_seq_len", name="causal seq_len", implementation=baseline)
@exhibit("baseline.sweep.batch", name="batch", implementation=baseline)
@exhibit("baseline.sweep.heads", name="heads", implementation=baseline)
def sweep(results: Results, name: str, implementation: str) -> Table:
    """One implementation along one sweep: latency, throughput, bandwidth, memory."""
    axis, shapes, along = axis_of(name), results.sweep(name), results.along(name, implementation)
    rows = [
        {LETTERS[axis]: getattr(shape, axis)}
        | quantities.cells(row, "median_us", "throughput_tflops", "bandwidth_gbs")
        | {"peak_memory_bytes": results.peak_bytes(implementation, shape), "samples": row["samples"]}
        for shape, row in along
    ]
    caption = f"{SWEEP_TITLES[axis]} sweep, `{implementation}`, {_fixed(shapes, axis)}; {results.headline.words}."
    note = CAUSAL_NOTE if shapes[0].causal else ""
    return Table(pd.DataFrame(rows), caption, note, place(results, [shape for shape, _ in along]))


@exhibit("baseline.backends.seq_len", name="seq_len")
@exhibit("baseline.backends.causal_seq_len", name="causal seq_len")
@exhibit("baseline.backends.batch", name="batch")
@exhibit("baseline.backends.heads", name="heads")
def backends(results: Results, name: str) -> Table:
    """Every implementation along one sweep, a column for each shape."""
    axis, shapes = axis_of(name), results.sweep(name)
    titles = [f"{LETTERS[axis]}={getattr(shape, axis)}" for shape in shapes]
    caption = (
        f"Median latency in µs with {CI} interval, every implementation, {_fixed(shapes, axis)}; "
        f"{results.headline.words}."
    )
    note = f"{cells.at_shapes(results, shapes)} {_absent(results, shapes)}".strip()
    return Table(_medians(results, shapes, titles), caption, note)


@exhibit("baseline.other_lengths")
def other_lengths(results: Results) -> Group:
    """Every implementation along the other sweeps of lengths: other sizes, dtypes and ragged lengths."""
    sweeps = [sweep for sweep in results.study.sweeps if axis_of(sweep) == "seq_len" and sweep not in OF_LENGTHS]
    shown = {sweep.replace(" ", "_"): backends(results, sweep) for sweep in sweeps}
    parts = {name: table for name, table in shown.items() if isinstance(table, Table)}
    if not parts:
        raise NotMeasured(
            f"Nothing has a latency along sweeps of lengths other than {formats.listing(list(OF_LENGTHS))}"
        )
    return Group(parts)


@exhibit("baseline.listed", name="causal small")
def listed(results: Results, name: str) -> Table:
    """Every implementation at the shapes of a sweep without a single axis; the longer side of the table is vertical."""
    shapes = results.sweep(name)
    titles = [f"B={shape.batch} H={shape.heads} S={shape.seq_len}" for shape in shapes]
    caption = f"Median latency in µs with {CI} interval at the shapes of “{name}”; {results.headline.words}."
    note = f"{cells.at_shapes(results, shapes)} {_absent(results, shapes)}".strip()
    frame = _medians(results, shapes, titles)
    if len(shapes) > len(frame):
        frame = frame.set_index("implementation").T.rename_axis("shape", axis=0).reset_index()
    return Table(frame, caption, note)


@exhibit("baseline.scaling.seq_len", name="seq_len", implementation=baseline)
@exhibit("baseline.scaling.batch", name="batch", implementation=baseline)
@exhibit("baseline.scaling.heads", name="heads", implementation=baseline)
def scaling(results: Results, name: str, implementation: str) -> Table:
    """The growth of latency and of work from each step of a sweep to the next."""
    axis, rows = axis_of(name), []
    for (smaller, its_row), (larger, row) in pairwise(results.along(name, implementation)):
        numerator, denominator = results.samples(implementation, larger), results.samples(implementation, smaller)
        growth = ratio_ci(numerator, denominator, tick=max(results.tick_us(row), results.tick_us(its_row)))
        work = larger.flops / smaller.flops
        rows.append(
            {
                LETTERS[axis]: f"{getattr(smaller, axis)} → {getattr(larger, axis)}",
                "latency ×": formats.interval(growth),
                "FLOPs ×": formats.number(work),
                "bytes ×": formats.number(larger.bytes / smaller.bytes),
                "latency over FLOPs": formats.number(growth.estimate / work),
            }
        )
    caption = f"Scaling between steps of the {AXIS_TITLES[axis]}, `{implementation}`; {results.headline.words}."
    return Table(
        pd.DataFrame(rows),
        caption,
        "Below 1 in the last column, the larger size takes less time per FLOP.",
    )


@exhibit("baseline.memory.table", name="seq_len")
def memory_table(results: Results, name: str) -> Table:
    """Peak memory along a sweep; those that need the same at every shape share a row."""
    axis, shapes = axis_of(name), results.sweep(name)
    alike: dict[tuple[str | None, ...], list[str]] = {}  # names by their cells
    for implementation in results.study.implementations:
        peaks = [results.peak_bytes(implementation, shape) for shape in shapes]
        cells = tuple(None if np.isnan(peak) else formats.mebibytes(peak) for peak in peaks)
        alike.setdefault(cells, []).append(implementation)
    rows: list[tuple[str | None, ...]] = [("Q, K, V, O", *(formats.mebibytes(shape.bytes) for shape in shapes))]
    rows += [(", ".join(names), *cells) for cells, names in alike.items()]
    columns = ["implementation", *(f"{LETTERS[axis]}={getattr(shape, axis)}" for shape in shapes)]
    caption = "Peak memory allocated during a call in MiB, including inputs and output."
    return Table(pd.DataFrame(rows, columns=columns, dtype=object), caption)


@exhibit("baseline.timings", shape=target)
def timings(results: Results, shape: Shape) -> Table:
    """One shape under every timing."""
    rows = []
    for name in results.study.implementations:
        medians = {
            str(t): interval_cell(results.at(shape, t).loc[name])
            for t in results.timings
            if name in results.at(shape, t).index
        }
        if medians:
            rows.append({"implementation": name, **medians})
    caption = f"The target, {shape.label}, under every timing: median in µs with {CI} interval."
    return Table(pd.DataFrame(rows), caption, f"The columns are clock and cache.{cold_note(results)}")


@exhibit("baseline.every_case")
def every_case(results: Results) -> Table:
    """Every case under every timing."""
    rows = [
        {
            "implementation": row["implementation"],
            "B, H, S, D": f"{row['batch']}, {row['heads']}, {row['seq_len']}, {row['head_dim']}",
            "mask": "causal" if row["causal"] else "full",
            "timing": f"{row['clock']} {row['cache']}",
            "k": _launches(row),
        }
        | quantities.cells(row, "median_us", "throughput_tflops", "bandwidth_gbs", "speed_of_light_pct")
        for row in results.table.to_dict("records")
    ]
    note = "k: launches per sample, which each replicate chooses for itself; speed of light: floor over median."
    return Table(pd.DataFrame(rows), "Every case under every timing.", note)


def place(results: Results, shapes: list[Shape]) -> int | None:
    target = results.study.target_shape
    return shapes.index(target) if target in shapes else None


def _medians(results: Results, shapes: list[Shape], titles: list[str]) -> pd.DataFrame:
    """Every implementation's median at each shape, a row for each implementation."""
    there = [results.at(shape) for shape in shapes]
    if all(rows.empty for rows in there):
        raise NotMeasured(f"Nothing has a latency at {formats.shapes(shapes)}")
    rows = [
        [name, *(stacked_cell(at.loc[name]) if name in at.index else None for at in there)]
        for name in results.study.implementations
    ]
    return pd.DataFrame(rows, columns=["implementation", *titles])


def _absent(results: Results, shapes: list[Shape]) -> str:
    """Sentences on the implementations without a latency at some of these shapes, each with the first reason."""
    sentences = []
    for name in results.study.implementations:
        missing = [shape for shape in shapes if name not in results.at(shape).index]
        if missing:
            reason = formats.ended(absence(results, name, missing[0]), 120)
            sentences.append(f"`{name}` has no latency at {len(missing)} of {len(shapes)}: {reason}")
    return " ".join(sentences)


def _launches(row: Any) -> str:
    least, most = row["launches"], row["launches_most"]
    return f"{least}" if least == most else f"{least}–{most}"


def _fixed(shapes: list[Shape], axis: str) -> str:
    first = shapes[0]
    sizes = {"B": first.batch, "H": first.heads, "S": first.seq_len, "D": first.head_dim}
    kept = [f"{letter}={size}" for letter, size in sizes.items() if letter != LETTERS[axis]]
    special = first.resized(**{axis: 0}).special if axis.startswith("kv_") else first.special
    return ", ".join([*kept, first.dtype, *(["causal"] if first.causal else []), *special])
