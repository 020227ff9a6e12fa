"""Whether the clock is right: the same calls timed by every available clock, and why each differs from ours."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import NullLocator

from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Figure, Table
from attnlab.exhibits.style import TIMINGS
from attnlab.exhibits.words import say
from attnlab.infer.machine.panel import NEAR_PCT, NEAR_US, SHORT_US, brackets, of, spread
from attnlab.infer.results import Results
from attnlab.runs import methods

TOLERANCE = {"near_us": NEAR_US, "near_pct": NEAR_PCT, "short_us": SHORT_US}
CLOCKS = {
    methods.CUPTI_GRAPH: (
        "CUPTI, in the graph",
        "It times only what runs on the device; ours includes the time from the end of one kernel to the start of the "
        "next, which a program pays for too.",
    ),
    methods.CUPTI_SPAN: ("CUPTI, with gaps", "It includes that time too, but tracing lengthens it."),
    methods.CUPTI: ("CUPTI, called", "As CUPTI in the graph, with each call launched by the host."),
    methods.NCU: (
        "Nsight Compute",
        "It runs each kernel alone and after a pause, in which the card rests, and leaves out what is not a kernel, "
        "such as clearing memory.",
    ),
    methods.NVBENCH_BATCH: ("NVBench, batch", "The graph that ours replays, between its own events."),
    methods.TRITON_CUDAGRAPH: ("Triton, graph", "The same calls in a graph of its own, between its own events."),
    methods.DEVICE_REPEATED: (
        "device, repeated",
        "The same clock around calls that all read the same values; no sample of the run does.",
    ),
    methods.EAGER: ("eager", "The launch gap: the host launches into an idle stream, between the events."),
    methods.NCU_COLD: ("Nsight Compute, flushed", "As Nsight Compute above, after our flush."),
    methods.NVBENCH_COLD: ("NVBench, cold", "One call's graph on a held stream, as ours, after a flush of its own."),
    methods.TRITON_DO_BENCH: (
        "Triton, do_bench",
        "A plain call after a write of 256 MB, so a cold number; where a call launches many kernels, the card waits "
        "for the host between them.",
    ),
}
"""Every clock that is compared with ours: its title, and why it differs."""


MOST_TICKS = 6
"""More labels would touch; then every second power of ten has one."""


@exhibit("environment.panel")
def gaps(results: Results) -> Figure:
    """The difference of each method from our clock: a row for each, a dot for each case, the median and the range."""
    panel = of(results)
    shown = {method: found for method in CLOCKS if (found := panel.readings(method))}
    short = [[one.gap.estimate for one in found if one.short] for found in shown.values()]
    long = [[one.gap_pct for one in found if not one.short] for found in shown.values()]
    (dark, _), (light, _), *_ = TIMINGS
    drawing, grid = plt.subplots(1, 2, sharey=True, figsize=(6.5, 0.9 + 0.18 * len(shown)))
    for axes, differences, near in ((grid[0], short, NEAR_US), (grid[1], long, NEAR_PCT)):
        axes.axvspan(-near, near, color="#dddddd", linewidth=0, zorder=0)
        axes.axvline(0, color="#444444", linewidth=0.9)
        for place, (method, values) in enumerate(zip(shown, differences, strict=True)):
            if values:
                is_warm = methods.reference(method) == methods.DEVICE
                colour = dark if is_warm else light
                axes.hlines(place, min(values), max(values), color=colour, linewidth=1)
                axes.plot(values, [place] * len(values), "o", color=colour, markersize=2.5, alpha=0.5)
                face = colour if is_warm else "white"
                axes.plot([float(np.median(values))], [place], "D", color=colour, markerfacecolor=face, markersize=5)
        axes.set_xscale("symlog", linthresh=near)
        low, high = axes.get_xlim()
        reached = [tick for tick in (-100, -10, -1, 0, 1, 10, 100, 1000) if low <= tick <= high]
        ticks = reached if len(reached) <= MOST_TICKS else [tick for tick in reached if abs(tick) in (0, 1, 100)]
        axes.set_xticks(ticks, [f"{tick:+d}".replace("-", "−") if tick else "0" for tick in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
    grid[0].set_xlabel(f"µs more than ours, calls below {SHORT_US} µs")
    grid[1].set_xlabel("% more than ours, longer calls")
    grid[0].set_yticks(range(len(shown)), [CLOCKS[method][0] for method in shown])
    grid[0].invert_yaxis()
    said = say("environment.agreeing", brackets=brackets(panel), **TOLERANCE)
    return Figure(
        drawing,
        f"{said} The difference of every other clock from ours with the same cache, a dot for each "
        "case, the range, and the median as a diamond, full with a warm cache and hollow with a cold one. "
        f"Grey is ±{NEAR_US:g} µs and "
        f"±{NEAR_PCT:g} %; axes are linear within it, logarithmic beyond.".strip(),
        "Forest plot with a row for each other clock: its difference from ours, in microseconds for short calls and in "
        f"percent for longer ones. {said}".strip(),
    )


def agreeing(results: Results) -> str:
    """In how many cases our clock is within CUPTI's bracket, in a sentence; empty where CUPTI timed nothing."""
    return say("environment.agreeing", brackets=brackets(of(results)), **TOLERANCE)


@exhibit("environment.panel.table")
def table(results: Results) -> Table:
    """The difference of each method from our clock, and its cause."""
    panel = of(results)
    short, long = f"below {SHORT_US} µs (µs more)", f"from {SHORT_US} µs on (more)"
    readings = {method: panel.readings(method) for method in CLOCKS}
    rows = [
        {
            "clock": CLOCKS[method][0],
            "against": "device" if methods.reference(method) == methods.DEVICE else "device, cold",
            "cases": len(found),
            "near": sum(reading.near for reading in found),
            short: spread([reading.gap.estimate for reading in found if reading.short]),
            long: spread([reading.gap_pct for reading in found if not reading.short]),
            "why": CLOCKS[method][1],
        }
        for method, found in readings.items()
        if found
    ]
    facts = {
        "brackets": brackets(panel),
        "among": [shape for _, shape in panel.cases],
        "absent": {CLOCKS[method][0]: panel.why(method) for method, found in readings.items() if not found},
    }
    note = say("environment.panel", **facts, **TOLERANCE)
    caption = "The panel of clocks: how far each reads from ours with the same cache, and why."
    return Table.of(rows, caption, note, shows={long: formats.change})
