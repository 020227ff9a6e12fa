"""Latency, throughput and memory against sequence length, and lengths that no tile of rows divides."""

import matplotlib.pyplot as plt

from attnlab.exhibits import cells, formats, style
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Figure
from attnlab.exhibits.style import look
from attnlab.exhibits.words import say
from attnlab.infer.facts import lengths
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Results
from attnlab.study.ladder import BEST, PREFIX

SWEEPS = ("seq_len", "causal seq_len")
OF_SIZE = ("head_dim 128 16384 tokens seq_len", "head_dim 128 16384 tokens causal seq_len")
"""Lengths as the papers of FlashAttention have them: at D = 128, with the same number of tokens at each."""
ASIDE = 2**0.5
"""How far a length's shade reaches to both sides, as a factor: lengths double."""
LENGTH = "sequence length S, logarithmic"
MIB = 2**20


@exhibit("baseline.latency")
def latency(results: Results) -> Figure:
    """Latency against sequence length, a panel for each implementation."""
    drawing, panels = style.multiples(results, SWEEPS, "median_us", "latency (µs), logarithmic")
    panels[0].set_yscale("log")
    style.plain_logarithm(panels[0].yaxis)
    said = say("baseline.fastest", best=results.most_often_fastest(SWEEPS))
    return Figure(
        drawing,
        f"{said} Median latency, {results.headline.words}: each implementation before all others in grey"
        f"{dashed(results)}.",
        "Line plots of latency over sequence length on logarithmic axes, one panel for each implementation. " + said,
    )


def dashed(results: Results) -> str:
    """What dashed lines are, for a caption; empty where there are none."""
    return ", dashed under the causal mask" if results.timed(SWEEPS) == list(SWEEPS) else ""


@exhibit("baseline.throughput")
def throughput(results: Results) -> Figure:
    """Throughput without and with the causal mask. Of a ladder with `kernel.best`, only that is drawn."""
    names, there = drawn(results), results.timed((*SWEEPS, *OF_SIZE))
    every = [shape for sweep in there for shape in results.study.sweep(sweep)]
    held_back = set(results.held_back()).intersection(every)
    drawing, grid = plt.subplots(1, len(there), sharey=True, squeeze=False, figsize=(6.5, 2.8))
    for axes, sweep in zip(grid[0], there, strict=True):
        points = style.lines(results, sweep, "throughput_tflops")
        for name in filter(points.__contains__, names):
            axes.plot(*points[name], **look(name) | {"markersize": 4})
        shapes = results.study.sweep(sweep)
        axes.set_title(f"D={shapes[0].head_dim}{', causal' if shapes[0].causal else ''}")
        style.few_powers_of_two(axes, [shape.seq_len for shape in shapes])
        for shape in filter(held_back.__contains__, shapes):
            axes.axvspan(shape.seq_len / ASIDE, shape.seq_len * ASIDE, color="#e4e4e4", linewidth=0, zorder=0)
    grid[0][0].set(ylabel="throughput (TFLOP/s)")
    drawing.supxlabel(LENGTH, fontsize="medium")
    grid[0][0].set_ylim(bottom=0)
    style.label_ends(grid[0][-1])
    rows = results.over(there)
    rows = rows[rows["implementation"].isin(names)]
    row = rows.loc[rows["throughput_tflops"].idxmax()]
    where, causal = cells.where(results, row), SWEEPS[1] in there
    return Figure(
        drawing,
        say(
            "baseline.throughput",
            row=row,
            where=where,
            values=list(dict.fromkeys(shape.values for shape in every)),
            timing=results.headline.words,
            causal=causal,
            held_back=bool(held_back),
            tokens=next(
                (shape.tokens for sweep in OF_SIZE if sweep in there for shape in results.study.sweep(sweep)), 0
            ),
        ),
        "Line plots of throughput in TFLOP/s over sequence length S, a line for each implementation.",
    )


def drawn(results: Results) -> list[str]:
    """The implementations of the study; of a ladder with `kernel.best`, only that."""
    named = results.study.implementations
    return [name for name in named if name == BEST or BEST not in named or not name.startswith(PREFIX)]


@exhibit("baseline.memory")
def memory(results: Results) -> Figure:
    """Peak memory against sequence length, beside what the tensors need."""
    shapes, names = results.sweep(SWEEPS[0]), results.study.implementations
    peaks = {name: {shape: results.peak_bytes(name, shape) for shape in shapes} for name in names}
    there = {name: {shape: peak for shape, peak in of.items() if peak > 0} for name, of in peaks.items()}
    ratios = [(peak / s.bytes, name, s.seq_len) for name, of in there.items() for s, peak in of.items()]
    if not ratios:
        raise NotMeasured(f"No case of the sweep “{SWEEPS[0]}” was measured, so its memory is not known")
    kept = {name: of for name, of in there.items() if of}
    points = {name: ([s.seq_len for s in of], [peak / MIB for peak in of.values()]) for name, of in kept.items()}
    drawing, panels = style.before_others(list(points), [points], "peak memory (MiB), logarithmic", LENGTH)
    sizes, needed = [shape.seq_len for shape in shapes], [shape.bytes / MIB for shape in shapes]
    for axes in panels.values():
        # On top, or an implementation that needs only the tensors would hide it.
        axes.plot(sizes, needed, ":", color="#222222", linewidth=1.6, zorder=5, label="Q, K, V and O")
    first = next(iter(panels.values()))
    first.set_yscale("log")
    style.few_powers_of_two(first, sizes)
    style.plain_logarithm(first.yaxis)
    ratio, name, size = max(ratios)
    return Figure(
        drawing,
        say("baseline.memory", ratio=ratio, name=name, size=size),
        "Line plots of peak memory over sequence length S on logarithmic axes, one panel for each implementation.",
    )


@exhibit("baseline.odd_lengths")
def odd_lengths(results: Results) -> Figure:
    """How much longer a score takes, as dots with intervals: a panel for each length, a row for each implementation."""
    found = lengths.odd_lengths(results)
    names = [name for name in results.study.implementations if any(name in more for more in found.values())]
    drawing, grid = plt.subplots(
        1, len(found), sharex=True, sharey=True, squeeze=False, figsize=(6.5, 0.9 + 0.16 * len(names))
    )
    for axes, ((odd, even), more) in zip(grid[0], found.items(), strict=True):
        for place, name in enumerate(names):
            if change := more.get(name):
                mark = look(name) | {"markersize": 5}
                axes.plot([change.estimate], [place], **mark)
                axes.hlines(place, change.low, change.high, color=mark["color"], linewidth=1.4)
        axes.axvline(0, color="#444444", linewidth=0.9)
        axes.set(title=f"S={odd.seq_len} against {even.seq_len}", xlabel="more time for a score (%)")
    grid[0][0].set_yticks(range(len(names)), names)
    grid[0][0].invert_yaxis()
    said = costliest(results)
    return Figure(
        drawing,
        f"{said} Medians with {formats.CI} intervals, {results.headline.words}.",
        f"Dots with intervals, a row for each implementation and a panel for each length. {said}",
    )


def costliest(results: Results) -> str:
    """What a length that no tile divides costs the baseline at most, in a sentence."""
    return say("baseline.costliest", c=lengths.costliest(results), tile=lengths.TILE)
