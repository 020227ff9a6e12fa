"""Whether a result holds whatever the numbers in Q, K and V are: every kind of values at one shape."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure as Drawing

from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import exhibit, target
from attnlab.exhibits.display import Figure, Group, Prose, Table
from attnlab.exhibits.words import say
from attnlab.infer import kinds
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Results
from attnlab.study import values
from attnlab.study.shapes import Shape

STRETCH = 1.6
"""The ratio to the first kind at which a cell has its full colour."""
SLOW = 2.0
"""What takes more than so many times as long as the baseline on all kinds is not drawn."""
COLOURS = LinearSegmentedColormap.from_list("ratios", ["#78b7e6", "#ffffff", "#f0735a"], N=257)
"""From faster to slower. Black can be read on all of them, and in the dark theme what becomes of it."""


@exhibit("verdicts.kinds", of="valued")
def described(results: Results) -> Table:
    """The kinds of values that the run timed, in words."""
    names = dict.fromkeys(shape.values for shape in results.study.shapes)
    sources = {name: values.KINDS[values.split(name)[0]].source for name in names}
    rows = [{"values": name, "what they are": values.about(name), "source": sources[name]} for name in names]
    note = "What is not named is standard normal, V included. `zeros` are in no verdict over all kinds."
    return Table.of(rows, "The kinds of values that were timed.", note)


@exhibit("verdicts.values", of="valued", shape=target)
def at_target(results: Results, shape: Shape) -> Figure:
    """The latency of every implementation on every kind of values at one shape."""
    return _map(results, shape)


@exhibit("verdicts.values.elsewhere", of="valued")
def elsewhere(results: Results) -> Group:
    """The same at every other shape that was timed on several kinds."""
    others = [shape for shape in kinds.several(results) if shape.plain != results.study.target_shape.plain]
    if not others:
        raise NotMeasured("No other shape was timed on several kinds of values")
    return Group({f"shape_{number}": _map(results, shape) for number, shape in enumerate(others, 1)})


@exhibit("verdicts.values.said", of="valued", shape=target)
def said(results: Results, shape: Shape) -> Prose:
    """What the values change at one shape: whose verdict they turn round, who gains, and who takes as long on all."""
    _require_several(results, shape)
    return Prose(
        say(
            "verdicts.values",
            turned_over=kinds.turned(results, shape),
            safest_over=kinds.safest(results, shape),
            s=kinds.steadiness(results, shape),
            baseline=results.study.baseline,
        )
    )


def in_short(results: Results, valued: Results | None) -> str:
    """What the values change at the target of a run, or of another on the same device that timed several kinds."""
    found = valued or results
    shape = found.study.target_shape
    is_alone = len(kinds.shapes(found, shape)) < 2
    return say(
        "verdicts.values_in_short",
        alone=results.study.target_shape.values if is_alone else None,
        turned_over=kinds.turned(found, shape),
        safest_over=kinds.safest(found, shape),
        baseline=found.study.baseline,
        run="" if found.run.name == results.run.name else found.run.name,
    )


def _map(results: Results, shape: Shape) -> Figure:
    _require_several(results, shape)
    zeros = shape.resized(values=values.ZEROS)
    alike = [*kinds.shapes(results, shape), *([zeros] if zeros in results.study.shapes else [])]
    names = [name for name in results.study.implementations if any(name in results.at(one).index for one in alike)]
    medians = pd.DataFrame(
        {one.values: [results.value(name, one, "median_us") for name in names] for one in alike}, index=names
    )
    baseline = results.study.baseline
    slow = medians.min(axis=1) > SLOW * max(results.value(baseline, one, "median_us") for one in alike)
    said = say("verdicts.steadiness", s=kinds.steadiness(results, shape))
    return Figure(
        _grid(medians[~slow]),
        say(
            "verdicts.values_map",
            said=said,
            label=shape.label,
            timing=results.headline,
            first=alike[0].values,
            stretch=STRETCH,
            unjudged=[one.values for one in alike if one not in kinds.shapes(results, shape)],
            left_out=list(medians.index[slow]),
            slow=SLOW,
            baseline=baseline,
        ),
        f"Grid of latencies in microseconds, implementations by kinds of values. {said}",
    )


def _grid(medians: pd.DataFrame) -> Drawing:
    """Medians in cells, coloured by their ratio to the first of their row."""
    ratios = np.log2(medians.div(medians.iloc[:, 0], axis=0))
    rows, columns = medians.shape
    drawing, axes = plt.subplots(figsize=(min(6.5, 1.4 + 0.34 * columns), 1.2 + 0.15 * rows))
    reach = np.log2(STRETCH)
    # Not an image: the colours of an image don't follow the page's theme, and the numbers on it do.
    axes.pcolor(np.arange(columns), np.arange(rows), ratios, cmap=COLOURS, vmin=-reach, vmax=reach, edgecolors="face")
    axes.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))
    for row, column in np.ndindex(rows, columns):
        latency_us = float(medians.iloc[row, column])
        words = "–" if np.isnan(latency_us) else formats.number(latency_us)
        axes.text(column, row, words, ha="center", va="center", fontsize=7, color="black")
    axes.set_xticks(range(columns), medians.columns, rotation=35, ha="left", rotation_mode="anchor")
    axes.xaxis.tick_top()
    axes.set_yticks(range(rows), medians.index)
    axes.tick_params(length=0, labelsize=7)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    return drawing


def _require_several(results: Results, shape: Shape) -> None:
    if len(kinds.shapes(results, shape)) < 2:
        raise NotMeasured(f"{shape.label} was timed on a single kind of values")
