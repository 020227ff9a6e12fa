"""Few queries over more keys: bandwidth against the measured ceiling, and the lead over the fastest of the others."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.artist import Artist
from matplotlib.figure import Figure as Drawing

from attnlab.exhibits import cells, formats, quantities
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Figure, Group, Prose, Table
from attnlab.exhibits.kernels.lead import on_another_device
from attnlab.exhibits.style import AXIS_TITLES, LEGEND_COLUMNS, PLAIN, few_powers_of_two, grid_of, look
from attnlab.exhibits.words import say
from attnlab.infer.backends import few
from attnlab.infer.lookup import known
from attnlab.infer.results import Results
from attnlab.study.implementations import PEERS
from attnlab.study.ladder import BEST
from attnlab.study.shapes import Shape

MOST = 8
"""The series that are drawn, a panel each."""
QUERIES, COPY = "queries", "measured copy"


@exhibit("backends.few", of="decoded")
def shown(results: Results) -> Group:
    """The bandwidth of few queries in words, and drawn for each implementation."""
    return Group({"said": Prose(_said(results)), "bandwidth": _drawn(results)})


@exhibit("backends.lead", of="decoded")
def led(results: Results) -> Prose | None:
    """Where `kernel.best` leads over few queries, and where it lags."""
    said = in_short(results, None)
    return Prose(said) if said else None


def in_short(results: Results, decoded: Results | None) -> str:
    """What was found at few queries, in a sentence; empty for a run without them, or without `kernel.best`."""
    found = decoded or results
    groups = known(lambda: few.groups(found))
    if not groups:
        return ""
    facts = {"refused": few.refusals(found), "peers": _has_peers(found), "among": found.study.shapes}
    said = say("backends.few_in_short", groups=groups, **facts)
    return f"{said}{cells.of_another(results, found, BEST)}"


def ahead_of_it(results: Results) -> list[str]:
    """What is the fastest at a shape of few queries at which `kernel.best` lags, each once."""
    return sorted({name for group in known(lambda: few.groups(results)) or [] for name in group.ahead_of_it})


def _has_peers(results: Results) -> bool:
    return not set(PEERS).isdisjoint(results.study.implementations)


def _said(results: Results) -> str:
    return say(
        "backends.few",
        shapes=len(few.distinct(few.shapes(results))),
        timing=results.headline.words,
        groups=few.groups(results),
        copy_gbs=results.ceilings.rate("copy"),
    )


def _drawn(results: Results) -> Figure:
    axis, series = few.along(results, MOST)
    copy_gbs = results.ceilings.rate("copy")
    facts = {"timing": results.headline.words, "axis": _axis_title(axis), "copy_gbs": copy_gbs}
    several = [shape.causal for shapes in series for shape in shapes if shape.seq_len > 1]
    facts["masked"] = bool(several) and all(several)
    return Figure(
        _panels(results, axis, series, copy_gbs),
        say(
            "backends.few_drawn", shape=series[0][0], others=_others(series), cached=_fitting(results, series), **facts
        ),
        f"Line plots of bandwidth over {_axis_title(axis)}, a line for each implementation and a panel for each "
        "batch and number of keys, below the rate of a copy of memory.",
    )


def _panels(results: Results, axis: str, series: list[list[Shape]], copy_gbs: float) -> Drawing:
    rows, columns = grid_of(len(series))
    legend = -(-(len(results.study.implementations) + 1) // LEGEND_COLUMNS)
    drawing, grid = plt.subplots(
        rows, columns, sharex=True, sharey=True, squeeze=False, figsize=(6.5, 0.8 + 1.05 * rows + 0.16 * legend)
    )
    labelled: dict[str, Artist] = {}
    sizes = [getattr(shape, axis) for shapes in series for shape in shapes]
    for axes, shapes in zip(grid.flat, series, strict=False):
        for name in results.study.implementations:
            rates = [(getattr(shape, axis), results.value(name, shape, "bandwidth_gbs")) for shape in shapes]
            if not all(np.isnan(rate) for _, rate in rates):
                (labelled[name],) = axes.plot(*zip(*rates, strict=True), **{"markersize": 4} | look(name))
        if copy_gbs == copy_gbs:
            labelled[COPY] = axes.axhline(copy_gbs, color="#444444", linewidth=1, linestyle=":")
        axes.set_title(_title(shapes[0], axis, results), fontsize=8)
        axes.yaxis.set_major_formatter(PLAIN)
    for axes in grid.flat[len(series) :]:
        axes.set_visible(False)
    few_powers_of_two(grid[0][0], sizes)
    grid[0][0].margins(y=0.08)
    grid[0][0].set_ylim(bottom=0)
    drawing.supxlabel(f"{_axis_title(axis)}, logarithmic", fontsize=9)
    drawing.supylabel("bandwidth (GB/s)", fontsize=9)
    named = [name for name in (*results.study.implementations, COPY) if name in labelled]
    drawing.legend([labelled[name] for name in named], named, loc="outside upper center", ncols=LEGEND_COLUMNS)
    return drawing


def _others(series: list[list[Shape]]) -> list[Shape]:
    """Of the series that have other heads, dimension or type than the first, one shape each."""

    def heads(shape: Shape) -> tuple[object, ...]:
        return shape.heads, shape.kv_heads, shape.head_dim, shape.dtype

    firsts = {heads(shapes[0]): shapes[0] for shapes in reversed(series)}
    return [shape for which, shape in firsts.items() if which != heads(series[0][0])]


def _fitting(results: Results, series: list[list[Shape]]) -> bool:
    """Whether some of what is drawn may be held by a warm L2."""
    return results.headline.cache == "warm" and any(results.ceilings.fits(s) for shapes in series for s in shapes)


def _axis_title(axis: str) -> str:
    return QUERIES if axis == "seq_len" else AXIS_TITLES[axis]


def _title(shape: Shape, axis: str, results: Results) -> str:
    """What tells a panel from the others: its batch, keys and dimension, and a star where the L2 may hold it."""
    words = {
        "batch": f"B={shape.batch}",
        "kv_len": f"{formats.whole(shape.kv_len)} keys",
        "seq_len": f"S={shape.seq_len}",
    }
    kept = [word for name, word in words.items() if name != axis]
    star = " *" if results.headline.cache == "warm" and results.ceilings.fits(shape) else ""
    return ", ".join([*kept, f"D={shape.head_dim}"][: 2 if shape.head_dim == 128 else 3]) + star


@exhibit("backends.decode", of="decoded")
def every(results: Results) -> Table:
    """Every shape of few queries: the fastest, its bandwidth beside the measured copy, the lead of `kernel.best`."""
    found, copy_gbs = few.distinct(few.shapes(results)), results.ceilings.rate("copy")
    leads = {shape: lead for group in few.groups(results) for shape, lead in group.by_shape.items()}
    rows = []
    for shape in found:
        name = results.fastest(shape)
        row, lead = results.row(name, shape), leads.get(shape)
        rows.append(
            {"shape": shape.label, "fastest": name}
            | quantities.cells(row, "median_us", "bandwidth_gbs")
            | {"of the measured copy": 100 * row["bandwidth_gbs"] / copy_gbs}
            | {"lead of kernel.best": lead.ratio if lead else None, "over": lead.over if lead else None}
        )
    caption, shows = f"Few queries over more keys; {results.headline.words}.", {"of the measured copy": formats.percent}
    return Table.of(rows, caption, say("backends.decode"), shows=shows, sparse=True)


exhibit("backends.decode_elsewhere", of="decoded")(on_another_device)
