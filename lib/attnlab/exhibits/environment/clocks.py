"""Our clock: its tick, the launch gap, and the difference between timings."""

import math
from typing import Any

import pandas as pd

from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.cells import LETTERS, added_us
from attnlab.exhibits.display import Figure, Prose, Table
from attnlab.exhibits.style import AXIS_TITLES, TIMINGS, few_powers_of_two, legend, panel_each, plain_ratios
from attnlab.infer import panel
from attnlab.infer.lookup import NotMeasured, axis_of
from attnlab.infer.results import Results
from attnlab.infer.stats import Interval
from attnlab.runs import methods
from attnlab.runs.methods import DEVICE
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing


@exhibit("environment.clocks")
def clocks(results: Results) -> Table:
    """What a sample is under each timing of the run."""
    rows = [
        {
            "timing": str(timing),
            "a sample is": SAMPLES.get((timing.clock, timing.cache), "the time of one call"),
            "it answers": ANSWERS[timing.clock],
        }
        for timing in results.timings or results.study.timings
    ]
    caption = (
        f"{formats.count(len(rows), 'timing')} of the same calls: what a sample is, and which question it answers."
    )
    return Table(pd.DataFrame(rows), caption)


GAPLESS = "k calls in a row, replayed by a graph into a busy stream, over k"
SAMPLES = {
    ("device", "warm"): f"{GAPLESS}; the cache holds what the call before left",
    ("device", "cold"): "one call on a held stream, after twice the last level of cache was overwritten",
    ("eager", "warm"): "one call into an idle stream, between events; on a CPU, between readings of its counter",
    ("eager", "cold"): "the same, after twice the last level of cache was overwritten",
    ("cupti", "warm"): "the durations of the kernels in a graph of k calls, by the device's time stamps, over k",
}
ANSWERS = {
    "device": "how long the device works: a program that replays graphs, or keeps the device ahead of the host",
    "eager": "how long a program waits that launches each call by itself",
    "cupti": "how long the kernels alone take",
}


@exhibit("environment.timings")
def timings(results: Results, sweep: str = "seq_len") -> Figure:
    """The same calls under each timing, relative to the headline's."""
    sizes, names = [getattr(s, axis_of(sweep)) for s in results.sweep(sweep)], results.study.implementations
    others = [timing for timing in results.timings if timing != results.headline]
    ratios = {(timing, name): _ratios(results, sweep, name, timing) for timing in others for name in names}
    if not any(ratios.values()):
        raise NotMeasured("No case was timed in two ways, so clocks and caches can't be compared")
    there = [name for name in names if any(ratios[timing, name] for timing in others)]
    drawing, panels = panel_each(there, "ratio, logarithmic", f"{AXIS_TITLES[axis_of(sweep)]}, logarithmic")
    for name, axes in panels.items():
        axes.axhline(1, color="#444444", linewidth=0.9)
        for timing in others:
            if points := ratios[timing, name]:
                colour, marker = TIMINGS[results.timings.index(timing) % len(TIMINGS)]
                drawn: dict[str, Any] = {
                    "color": colour,
                    "marker": marker,
                    "markersize": 2.5,
                    "label": f"{timing} over {results.headline}",
                }
                axes.plot(*zip(*points, strict=True), **drawn)
    first = panels[there[0]]
    first.set_yscale("log")
    plain_ratios(first.yaxis)
    few_powers_of_two(first, sizes)
    legend(drawing)
    farthest = {
        timing: max(
            ((ratio, name, size) for name in there for size, ratio in ratios[timing, name]),
            key=lambda found: abs(math.log(found[0])),
        )
        for timing in others
        if any(ratios[timing, name] for name in there)
    }
    most = formats.listing(
        [
            f"{formats.times(ratio)} with {timing} at {LETTERS[axis_of(sweep)]}={size} (`{name}`)"
            for timing, (ratio, name, size) in farthest.items()
        ]
    )
    return Figure(
        drawing,
        f"The choice of clock and cache changes a median at most to {most}. The same calls under each timing over "
        f"{results.headline.words}; at 1, neither makes a difference.{cold_note(results)}",
        f"Line plots of the ratio between timings over {AXIS_TITLES[axis_of(sweep)]}, one panel for each "
        f"implementation. The most: {most}.",
    )


def _ratios(results: Results, sweep: str, name: str, timing: Timing) -> list[tuple[int, float]]:
    """For each size, the median under another timing over the headline's."""
    ratios = []
    for shape in results.sweep(sweep):
        ours, theirs = results.at(shape), results.at(shape, timing)
        if name in ours.index and name in theirs.index:
            ratio = theirs.loc[name, "median_us"] / ours.loc[name, "median_us"]
            ratios.append((getattr(shape, axis_of(sweep)), ratio))
    return ratios


def cold_note(results: Results) -> str:
    """What else than the cache a cold sample of the device clock differs in from a warm one, in a sentence."""
    device = {timing.cache for timing in results.timings if timing.clock == DEVICE}
    if device != {"warm", "cold"}:
        return ""
    clocks = results.run.manifest["clocks"]
    return (
        " A cold `device` sample is one call between its events, which read "
        f"{formats.number(clocks['nothing_us'])} µs around nothing; a warm one spreads that over k calls in a row. "
        "What lies between the two is not the cache's alone."
    )


MOSTLY_HOST_PCT = 50
"""If the launch gap is above this share of the kernel's own time, events around calls mostly time the host."""


@exhibit("environment.launch_gap")
def launch_gap(results: Results) -> Prose:
    """The launch gap, where both clocks were used with a warm cache."""
    eager, device = Timing(clock="eager", cache="warm"), Timing(clock="device", cache="warm")
    if not {eager, device} <= set(results.timings):
        there = formats.listing([timing.words for timing in results.timings])
        raise NotMeasured(
            f"The launch gap, `eager` minus `device` with a warm cache, is not known; the run has {there}"
        )
    name, parts, shares, others = results.study.baseline, [], [], []
    for shape in dict.fromkeys((results.study.shapes[0], results.study.target_shape)):
        _, without_us = (results.row(name, shape, timing)["median_us"] for timing in (eager, device))
        gap = added_us(*(results.samples(name, shape, timing) for timing in (eager, device)))
        shares.append(100 * gap.estimate / without_us)
        parts.append(
            f"{formats.interval(gap)} µs at {shape.label}, which is {formats.percent(shares[-1])} of the "
            f"{formats.number(without_us)} µs that `device` reads"
        )
        others += _by_panel(results, shape, gap)
    return Prose(
        f"The launch gap of `{name}`, `eager` minus `device`, is {formats.listing(parts)}: the mean over "
        f"replicates, with Student's t.{_host(shares)}{_disagreeing(others)}"
    )


def _by_panel(results: Results, shape: Shape, gap: Interval) -> list[str]:
    """The baseline's launch gap in the panel of clocks, in words, where its interval is apart from the samples'."""
    try:
        found = panel.of(results)
    except NotMeasured:
        return []
    case = (results.study.baseline, shape)
    reading = found.reading(case, methods.EAGER) if case in found.cases else None
    if reading is None or reading.gap.overlaps(gap):
        return []
    return [f"{formats.interval(reading.gap)} µs at {shape.label}"]


def _disagreeing(others: list[str]) -> str:
    if not others:
        return ""
    return (
        f" The panel of clocks, which times one implementation at a time, has {formats.listing(others)}: the gap "
        "depends on what the host and the card did just before, and is no constant of this machine."
    )


def _host(shares: list[float]) -> str:
    """Whether events around calls mostly time the host, in a sentence."""
    mostly = [share > MOSTLY_HOST_PCT for share in shares]
    if not any(mostly):
        return ""
    where = "At such shapes" if all(mostly) else "At the first shape" if mostly[0] else "At the second shape"
    return f" {where}, a comparison by events around each call mostly compares the host."


@exhibit("environment.clock")
def clock_quality(results: Results) -> Table:
    """The clock's own resolution and overhead."""
    titles = {
        "tick_us": "tick of the clock",
        "nothing_us": "two readings with nothing between",
        "smallest_graph_us": "a graph of one smallest kernel",
    }
    clocks = results.run.manifest["clocks"]
    rows = [(title, formats.number(clocks[key])) for key, title in titles.items() if key in clocks]
    note = "No interval is narrower than the clock's tick over the launches that a sample spans."
    return Table(pd.DataFrame(rows, columns=["reading", "µs"]), "The clock itself.", note)
