"""Tables along the sweeps of a study: latency, throughput, bandwidth, memory, and how they grow."""

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from itertools import combinations
from typing import Any

import pandas as pd

from attnlab.exhibits import cells, formats, quantities
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.cells import LETTERS
from attnlab.exhibits.display import Group, Prose, Table
from attnlab.exhibits.environment.machine import interval_words
from attnlab.exhibits.formats import CI
from attnlab.exhibits.words import say
from attnlab.infer.lookup import NotMeasured, axis_of, median_of, shape_of
from attnlab.infer.regimes import grouped
from attnlab.infer.results import Results, absences
from attnlab.infer.stats import samples_needed
from attnlab.runs.schema import MEASURED
from attnlab.study import implementations
from attnlab.study.ladder import MASKS
from attnlab.study.shapes import Shape

SIZES = ("batch", "heads", "seq_len")
TAILS = ("median_us", "p95_us", "p99_us", "cv_pct", "outliers_pct", "lag1", "effective_n", "samples", "throttled_pct")


def over(sweeps: Iterable[str], make: Callable[[str], Table]) -> Group:
    """A table for each of the sweeps that has latencies.

    Raises:
        NotMeasured: none has.
    """
    tables: dict[str, Table] = {}
    for sweep in sweeps:
        with suppress(NotMeasured):
            tables[sweep.replace(" ", "_")] = make(sweep)
    if not tables:
        raise NotMeasured("Nothing has a latency along a sweep")
    return Group(tables)


@exhibit("baseline.span")
def span(results: Results) -> Prose:
    """The extremes of the baseline's latency and rates over all shapes."""
    name = results.study.baseline
    return Prose(say("baseline.span", name=name, e=results.extremes(name), at=partial(cells.where, results)))


@exhibit("baseline.implementations")
def every_sweep(results: Results) -> Group:
    """Every implementation along every sweep, but for those of kinds of values, which `verdicts.values` shows."""
    plain = {name: {shape.plain for shape in results.sweep(name)} for name in results.study.sweeps}
    sweeps = [name for name, shapes in plain.items() if not len(results.sweep(name)) > len(shapes) == 1]
    nowhere = [one for one in absences(results, results.study.shapes) if one.missing == one.of]
    left_out = {one.implementation for one in nowhere}
    tables = over(sweeps, lambda name: backends(results, name, left_out))
    return Group({**tables.parts, "nowhere": Prose(cells.absent(nowhere))}) if nowhere else tables


def backends(results: Results, name: str, left_out: Collection[str] = ()) -> Table:
    """Every implementation along one sweep, a column for each shape; a row for each where these are more.

    Args:
        left_out: implementations without a row and a word, since they have no latency at all.

    Raises:
        NotMeasured: the study has no such sweep, or nothing a latency in it.
    """
    axis, shapes = axis_of(name), results.sweep(name)
    by_axis = axis in LETTERS and not any(_differ(shapes, size) for size in SIZES if size != axis)
    at = _fixed(shapes, axis) if by_axis else f"at the shapes of “{name}”"
    caption = f"Median latency in µs with {CI} interval, every implementation, {at}; {results.headline.words}."
    in_regimes = say("environment.at_shapes", by_regime=grouped(results, shapes), among=results.study.shapes)
    names = [each for each in results.study.implementations if each not in left_out]
    lacking = (one for one in absences(results, shapes) if one.implementation in names)
    note = f"{in_regimes} {cells.absent(lacking)}".strip()
    titles = [f"{LETTERS[axis]}={getattr(s, axis)}" if by_axis else _sizes(s) for s in shapes]
    frame = _medians(results, names, shapes, titles)
    if not by_axis and len(shapes) > len(frame):
        frame = frame.set_index("implementation").T.rename_axis("shape", axis=0).reset_index()
    return Table(frame, caption, note)


def _differ(shapes: list[Shape], axis: str) -> bool:
    return len({getattr(shape, axis) for shape in shapes}) > 1


def _sizes(shape: Shape) -> str:
    return f"B={shape.batch} H={shape.heads} S={shape.seq_len}"


def _medians(results: Results, names: list[str], shapes: list[Shape], titles: list[str]) -> pd.DataFrame:
    """The medians of implementations at each shape, a row for each implementation."""
    there = [results.at(shape) for shape in shapes]
    if all(rows.empty for rows in there):
        raise NotMeasured(f"Nothing has a latency at {formats.shapes(shapes)}")
    rows = [[name, *(median_of(at.loc[name]) if name in at.index else None for at in there)] for name in names]
    return pd.DataFrame(rows, columns=["implementation", *titles])


@exhibit("baseline.tails")
def tails(results: Results) -> Table:
    """Quantiles of the baseline's latency, and how much its samples vary, against sequence length."""
    name = results.study.baseline
    along = results.along("seq_len", name)
    rows = [{"S": shape.seq_len} | quantities.cells(row, *TAILS) for shape, row in along]
    note = say("baseline.tails", p95=samples_needed(0.95), p99=samples_needed(0.99), intervals=interval_words(results))
    caption = f"Spread and tails of the latency, `{name}`; {results.headline.words}."
    return Table.of(rows, caption, note, sparse=True)


@exhibit("baseline.every_case")
def every_case(results: Results) -> Table:
    """Every case under every timing."""
    rows = [
        {
            "implementation": row["implementation"],
            "B, H, S, D": f"{row['batch']}, {row['heads']}, {row['seq_len']}, {row['head_dim']}",
            "mask": MASKS[row["causal"]],
            "timing": f"{row['clock']} {row['cache']}",
            "k": "–".join(dict.fromkeys((f"{row['launches']}", f"{row['launches_most']}"))),
        }
        | quantities.cells(row, "median_us", "throughput_tflops", "bandwidth_gbs", "speed_of_light_pct")
        for row in results.table.to_dict("records")
    ]
    note = "k: launches per sample, which each replicate chooses for itself; speed of light: floor over median. "
    note += f"Intervals: {interval_words(results)}."
    return Table.of(rows, "Every case under every timing.", note)


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
    return Table.of(rows, "The longest kernel of each call, by torch.profiler, and where it ran.", note)


def _shapes_of(cases: pd.DataFrame) -> list[Shape]:
    return [shape_of(row) for row in cases[list(Shape.AXES)].drop_duplicates().to_dict("records")]


def _where(some: list[Shape], everywhere: list[Shape]) -> str:
    """The values of one or two axes that distinguish some shapes from all others, or else the shapes."""
    if set(some) == set(everywhere):
        return "all"
    shared = [axis for axis in Shape.AXES if not _differ(some, axis)]
    for axes in [*combinations(shared, 1), *combinations(shared, 2)]:
        alike = [shape for shape in everywhere if all(getattr(shape, a) == getattr(some[0], a) for a in axes)]
        if set(alike) == set(some):
            return " ".join(_named(axis, getattr(some[0], axis)) for axis in axes)
    return formats.shapes(some, everywhere)


def _named(axis: str, value: Any) -> str:
    if isinstance(value, bool):
        return "causal" if value else "not causal"
    return f"{'D' if axis == 'head_dim' else LETTERS[axis]}={value}" if isinstance(value, int) else str(value)


def _fixed(shapes: list[Shape], axis: str) -> str:
    first = shapes[0]
    sizes = {"B": first.batch, "H": first.heads, "S": first.seq_len, "D": first.head_dim}
    kept = [f"{letter}={size}" for letter, size in sizes.items() if letter != LETTERS[axis]]
    special = first.resized(**{axis: 0}).special if axis.startswith("kv_") else first.special
    return ", ".join([*kept, first.dtype, *(["causal"] if first.causal else []), *special])
