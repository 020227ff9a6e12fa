"""FP8 beside 16 bits: throughput over error, and what is gained over the fastest in 16 bits."""

import matplotlib.pyplot as plt

from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Figure, Group, Prose
from attnlab.exhibits.style import LEGEND_COLUMNS, look
from attnlab.exhibits.words import say
from attnlab.infer.backends import fp8
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Results
from attnlab.study.values import NORMAL


@exhibit("backends.fp8", of="eight_bits")
def shown(results: Results) -> Group:
    """What FP8 gains and costs in words, and throughput over error; in words alone where no error was recorded."""
    found = fp8.of(results)
    facts = {"run": results.run, "shapes": len(found.shapes), "timing": results.headline.words}
    parts: dict[str, Prose | Figure] = {"said": Prose(say("backends.fp8", gains=found.gains, **facts))}
    points = [
        point for point in found.points if point.shape.values == NORMAL and point.shape.kv_heads == point.shape.heads
    ]
    return Group(parts | ({"error": _drawn(results, points)} if points else {}))


def in_short(results: Results, eight_bits: Results | None) -> str:
    """What was found of FP8, in a sentence; empty for a run without it."""
    shown = eight_bits or results
    try:
        gains = fp8.of(shown).gains
    except NotMeasured:
        return ""
    same = shown.run.name == results.run.name
    run = "" if same else f"`{shown.run.name}` of {shown.run.manifest['created'][:10]}"
    return say("backends.fp8_in_short", gains=gains, run=run)


def _drawn(results: Results, points: list[fp8.Point]) -> Figure:
    panels = fp8.series(points)
    drawing, grid = plt.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False, figsize=(6.5, 2.4))
    labelled = {}
    for axes, ((head_dim, causal), rows) in zip(grid[0], panels.items(), strict=True):
        for name in results.study.implementations:
            mine = rows[rows["name"] == name]
            if len(mine):
                (labelled[name],) = axes.plot(mine["rms_error"], mine["throughput_tflops"], **look(name))
        axes.set_title(f"D={head_dim}{', causal' if causal else ''}")
    grid[0][0].set(xscale="log", ylabel="throughput (TFLOP/s)")
    grid[0][0].set_ylim(bottom=0)
    drawing.supxlabel("root mean square error against float64, logarithmic", fontsize=9)
    named = [name for name in results.study.implementations if name in labelled]
    drawing.legend([labelled[name] for name in named], named, loc="outside upper center", ncols=LEGEND_COLUMNS)
    said = say("backends.fp8_drawn", timing=results.headline.words)
    return Figure(
        drawing,
        said,
        "Lines of throughput over error, a panel for each head dimension and mask and a line for each implementation.",
    )
