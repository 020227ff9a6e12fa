"""Whether the clock is right: the same calls timed by every available clock, and why each differs from ours.

A method is compared with our clock with the same cache: warm methods with ``device``, cold ones with ``device.cold``.
Methods that took turns in one process are compared round by round; Nsight Compute and NVBench ran in processes of their
own and are compared with the median of ours.
"""

from collections.abc import Sized

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.ticker import NullLocator

from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Figure, Prose, Table
from attnlab.exhibits.formats import CI
from attnlab.exhibits.style import TIMINGS
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.panel import NEAR_PCT, NEAR_US, SHORT_US, Panel, Reading, bracketed, of, pieces_of
from attnlab.infer.results import Results
from attnlab.runs import methods
from attnlab.study.shapes import Shape

TITLES = {
    methods.DEVICE: "`device`",
    methods.CUPTI_GRAPH: "CUPTI, in the graph",
    methods.CUPTI_SPAN: "CUPTI, with gaps",
    methods.CUPTI: "CUPTI, called",
    methods.NCU: "Nsight Compute",
    methods.NVBENCH_BATCH: "NVBench, batch",
    methods.TRITON_CUDAGRAPH: "Triton, graph",
    methods.DEVICE_REPEATED: "`device`, repeated",
    methods.EAGER: "`eager`",
    methods.DEVICE_COLD: "`device`, cold",
    methods.NCU_COLD: "Nsight Compute, flushed",
    methods.NVBENCH_COLD: "NVBench, cold",
    methods.TRITON_DO_BENCH: "Triton, do_bench",
}
NAMED = 3
"""The most cases that a sentence names."""
MOST_ROWS = 40
CAUSES = {
    methods.CUPTI_GRAPH: "It times only what runs on the device; ours includes the time from the end of one kernel "
    "to the start of the next, which a program pays for too.",
    methods.CUPTI_SPAN: "It includes that time too, but tracing lengthens it.",
    methods.CUPTI: "It times only what runs on the device, with each call launched by the host instead of by a graph.",
    methods.NCU: "It runs each kernel alone and after a pause, in which the card rests, and leaves out what is not a "
    "kernel, such as clearing memory.",
    methods.NVBENCH_BATCH: "The graph that ours replays, between its own events.",
    methods.TRITON_CUDAGRAPH: "The same calls in a graph of its own, between its own events.",
    methods.DEVICE_REPEATED: "The same clock around calls that all read the same values; no sample of the run does.",
    methods.EAGER: "The launch gap: the host launches into an idle stream, between the events.",
    methods.NCU_COLD: "As Nsight Compute above, after our flush.",
    methods.NVBENCH_COLD: "One call's graph on a held stream, as ours, after a flush of its own.",
    methods.TRITON_DO_BENCH: "A plain call after a write of 256 MB, so a cold number; where a call launches many "
    "kernels, the card waits for the host between them.",
}


@exhibit("environment.panel.warm")
def warm(results: Results) -> Table:
    """Every warm method, compared with the device clock."""
    return _table(results, methods.DEVICE, methods.compared("warm"), "The panel of clocks, warm cache")


@exhibit("environment.panel.cold")
def cold(results: Results) -> Table:
    """Every cold method, compared with the device clock with a cold cache."""
    return _table(results, methods.DEVICE_COLD, methods.compared("cold"), "The panel of clocks, cold cache")


@exhibit("environment.panel")
def gaps(results: Results) -> Figure:
    """The difference of each method from our clock: a row for each, a dot for each case, the median and the range."""
    panel = of(results)
    shown = [method for cache in ("warm", "cold") for method in methods.compared(cache) if panel.readings(method)]
    short = [[r.gap.estimate for r in panel.readings(method) if r.short] for method in shown]
    long = [[r.gap_pct for r in panel.readings(method) if not r.short] for method in shown]
    (dark, _), (light, _), *_ = TIMINGS
    drawing, grid = plt.subplots(1, 2, sharey=True, figsize=(6.5, 1.0 + 0.26 * len(shown)))
    for axes, found, near in ((grid[0], short, NEAR_US), (grid[1], long, NEAR_PCT)):
        axes.axvspan(-near, near, color="#dddddd", linewidth=0, zorder=0)
        axes.axvline(0, color="#444444", linewidth=0.9)
        for place, values in enumerate(found):
            if values:
                colour = dark if methods.reference(shown[place]) == methods.DEVICE else light
                axes.hlines(place, min(values), max(values), color=colour, linewidth=1)
                axes.plot(values, [place] * len(values), "o", color=colour, markersize=2.5, alpha=0.5)
                axes.plot([float(np.median(values))], [place], "D", color=colour, markersize=5)
        axes.set_xscale("symlog", linthresh=near)
        low, high = axes.get_xlim()
        ticks = [tick for tick in (-100, -10, -1, 0, 1, 10, 100, 1000) if low <= tick <= high]
        axes.set_xticks(ticks, [f"{tick:+d}".replace("-", "−") if tick else "0" for tick in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
    grid[0].set_xlabel(f"µs more than ours, calls below {SHORT_US} µs")
    grid[1].set_xlabel("% more than ours, longer calls")
    grid[0].set_yticks(range(len(shown)), [_plain(TITLES[method]) for method in shown])
    grid[0].invert_yaxis()
    return Figure(
        drawing,
        f"{agreeing(results)} The difference of every other clock from ours with the same cache, warm in dark blue, "
        f"cold in light blue: a dot for each case, the range, and the median as a diamond. Grey is ±{NEAR_US:g} µs and "
        f"±{NEAR_PCT:g} %; axes are linear within it, logarithmic beyond.".strip(),
        "Forest plot with a row for each other clock: its difference from ours, in microseconds for short calls and in "
        f"percent for longer ones. {agreeing(results)}".strip(),
    )


def agreeing(results: Results) -> str:
    """In how many cases our clock is within CUPTI's bracket, in a sentence; empty where CUPTI timed nothing."""
    panel = of(results)
    found = [where for case in panel.cases if (where := bracketed(panel, case))]
    if not found:
        return ""
    return (
        f"The `device` clock is within the bracket of CUPTI's time stamps in {found.count('in')} of {len(found)} cases."
    )


@exhibit("environment.agreement")
def agreement(results: Results) -> Prose:
    """Whether our clock is right, by CUPTI."""
    panel = of(results)
    found = {case: where for case in panel.cases if (where := bracketed(panel, case))}
    if not found:
        raise NotMeasured(f"CUPTI timed nothing to compare our clock with: {panel.why(methods.CUPTI_GRAPH)}")
    cases = {
        where: [case_words(case, panel) for case in found if found[case] == where] for where in ("in", "out", "unsure")
    }
    text = (
        "CUPTI, which reads the device's own time stamps, brackets our clock. The durations of the kernels in the "
        "graph that `device` replays are a lower bound, since they leave out the time between kernels. The time from "
        "the start of the first to the end of the last is an upper bound, since tracing lengthens it. `device` is in "
        f"the bracket, or within {NEAR_US:g} µs of it for calls below {SHORT_US} µs and within {NEAR_PCT:g} % for "
        f"longer ones, in {len(cases['in'])} of {len(found)} cases."
    )
    text += f" It is outside at {_first(cases['out'])}." if cases["out"] else ""
    text += f" These rounds scatter too much to decide at {_first(cases['unsure'])}." if cases["unsure"] else ""
    return Prose(" ".join(filter(None, (text, _kernels_alone(results, panel)))))


def _first(cases: list[str]) -> str:
    """The first of these cases, and how many more there are."""
    more = len(cases) - NAMED
    return "; ".join(cases[:NAMED]) + (f"; and {more} more" if more > 0 else "")


def _kernels_alone(results: Results, panel: Panel) -> str:
    """The difference of our clock from the kernels alone, by the number of pieces of work in a call."""
    groups: dict[int, dict[str, Reading]] = {}
    for case in panel.cases:
        reading, pieces = panel.reading(case, methods.CUPTI_GRAPH), pieces_of(results, case[0])
        if reading and pieces:
            groups.setdefault(pieces, {})[case_words(case, panel)] = reading
    parts = []
    for pieces, readings in sorted(groups.items()):
        short = [-reading.gap.estimate for reading in readings.values() if reading.short]
        far = [f"{case}, {signed(-readings[case].gap.estimate)} µs" for case in readings if not readings[case].near]
        gap = f"{signed(float(np.median(short)), 'µs')} where they take less than {SHORT_US} µs; " if short else ""
        but = f", not {far[0]}" if len(far) == 1 else ""
        within = f"{len(readings) - len(far)} of {len(readings)} within those limits{but}"
        parts.append(f"calls of {formats.count(pieces, 'piece')} ({gap}{within})")
    if not parts:
        return ""
    return (
        "Our clock reads more than the kernels alone by the time between them, which grows with the number of pieces "
        f"of work (kernels and memory operations) in a call: {formats.listing(parts)}."
    )


@exhibit("environment.panel.explained")
def explained(results: Results) -> Prose:
    """The difference of each method from our clock, and its cause."""
    panel = of(results)
    lines = [
        _explanation(method, panel.readings(method))
        for method in (*methods.compared("warm"), *methods.compared("cold"))
    ]
    absent = [f"- {TITLES[m]}: not used: {panel.why(m)}." for m in CAUSES if not panel.readings(m) and panel.why(m)]
    return Prose("\n".join([*filter(None, lines), *absent]))


def _explanation(method: str, readings: list[Reading]) -> str:
    if not readings:
        return ""
    short = [reading.gap.estimate for reading in readings if reading.short]
    long = [reading.gap_pct for reading in readings if not reading.short]
    parts = []
    if short:
        parts.append(f"{_range(short, 'µs')} for calls below {SHORT_US} µs")
    if long:
        parts.append(f"{_range(long, '%')} for longer ones")
    against = "`device`" if methods.reference(method) == methods.DEVICE else "`device` cold"
    return f"- {TITLES[method]}, against {against}: {' and '.join(parts)}. {CAUSES[method]}"


def _range(values: list[float], unit: str) -> str:
    """``+0.12 µs (−0.01 to +0.40)``: the median, and the range where there is one."""
    middle = signed(float(np.median(values)), unit)
    return middle if len(values) == 1 else f"{middle} ({signed(min(values))} to {signed(max(values))})"


def signed(value: float, unit: str = "") -> str:
    sign = "+" if value > 0 else ""
    return f"{sign}{formats.number(value, 2)}{' ' * bool(unit)}{unit}"


def shown_cases(results: Results, panel: Panel) -> list[tuple[str, Shape]]:
    """The cases that a table has rows for: all, or of many those at the target and those of the baseline."""
    if len(panel.cases) <= MOST_ROWS:
        return panel.cases
    study = results.study
    return [case for case in panel.cases if case[0] == study.baseline or case[1] == study.target_shape]


def left_out(panel: Panel, rows: Sized) -> str:
    left = len(panel.cases) - len(rows)
    return f" {formats.count(left, 'other case')} of the panel {'has' if left == 1 else 'have'} no row." if left else ""


def _table(results: Results, ours: str, theirs: list[str], caption: str) -> Table:
    panel = of(results)
    cases = [case for case in shown_cases(results, panel) if panel.timed(case, ours)]
    readings = {method: {case: panel.reading(case, method) for case in cases} for method in theirs}
    there = [method for method in theirs if any(readings[method].values())]
    first = f"{_plain(TITLES[ours])} (µs)"
    rows = [
        dict[str, str | None]({"case": case_words(case, panel), first: formats.stacked(panel.median(case, ours))})
        | {_plain(TITLES[method]): _gap(readings[method][case]) for method in there}
        for case in cases
    ]
    unused = {method: panel.why(method) for method in theirs if method not in there}
    absent = [f"{TITLES[method]}: {why}" for method, why in unused.items() if why]
    note = (
        f"Medians with {CI} intervals; for the other methods, how much more (+) or less (−) they read, in µs and in "
        "percent of ours. With fewer than six rounds, the interval is from the smallest to the largest."
    )
    note += f"{left_out(panel, rows)}"
    note += f" Not used: {'; '.join(absent)}." if absent else ""
    return Table(pd.DataFrame(rows), f"{caption}: the difference of each method from {TITLES[ours]}.", note)


def _gap(reading: Reading | None) -> str | None:
    if reading is None:
        return None
    return f"{signed(reading.gap.estimate)}\n({signed(reading.gap_pct, '%')})"


def case_words(case: tuple[str, Shape], panel: Panel) -> str:
    name, shape = case
    return f"{name}, {formats.shapes([shape], [among for _, among in panel.cases])}"


def _plain(title: str) -> str:
    return title.replace("`", "")
