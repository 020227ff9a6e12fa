"""Is the clock right? The same calls by every clock at hand, and how far each lies from ours, with the reason.

A method is set against our clock with the same cache: warm ones against ``device``, cold ones against ``device.cold``.
Methods of one process took turns, and are compared round by round; Nsight Compute and NVBench ran in processes of their
own, and are compared with the median of ours.
"""

import re
from dataclasses import dataclass
from functools import cached_property

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from attnlab import stats
from attnlab.analyse import formats
from attnlab.analyse.display import Figure, Prose, Table, telling
from attnlab.analyse.figures import styled
from attnlab.analyse.regime import why_absent
from attnlab.analyse.results import CASE, NotMeasured, Results
from attnlab.shapes import Shape
from attnlab.stats import Interval

SHORT_US = 20
"""Below this a method is to lie within `NEAR_US` of ours, above it within `NEAR_PCT`."""
NEAR_US, NEAR_PCT = 0.5, 1.0
WARM, COLD = "device", "device.cold"
JUDGE = "cupti.graph"
"""What the device clock is held to: CUPTI's durations of the kernels in the graph that it replays."""
TITLES = {
    "device": "`device`",
    "cupti.graph": "CUPTI, in the graph",
    "cupti.span": "CUPTI, with gaps",
    "cupti": "CUPTI, called",
    "ncu": "Nsight Compute",
    "nvbench.batch": "NVBench, batch",
    "triton.cudagraph": "Triton, graph",
    "eager": "`eager`",
    "device.traced": "`device`, traced",
    "device.cold": "`device`, cold",
    "ncu.cold": "Nsight Compute, flushed",
    "nvbench.cold": "NVBench, cold",
    "triton.do_bench": "Triton, do_bench",
}
CUPTI_METHODS = list(TITLES)[1:4]
WARM_METHODS = list(TITLES)[1:8]
COLD_METHODS = list(TITLES)[10:]
LOOKS = {
    "cupti.graph": ("#0072B2", "o"),
    "cupti.span": ("#56B4E9", "P"),
    "cupti": ("#000000", "s"),
    "ncu": ("#009E73", "D"),
    "nvbench.batch": ("#CC79A7", "v"),
    "triton.cudagraph": ("#E69F00", "^"),
    "eager": ("#D55E00", "X"),
    "ncu.cold": ("#009E73", "D"),
    "nvbench.cold": ("#CC79A7", "v"),
    "triton.do_bench": ("#E69F00", "^"),
}


CAUSES = {
    "cupti.graph": "It counts what runs and nothing else; the time from one kernel's end to the next one's start, "
    "which a program pays for too, is in ours.",
    "cupti.span": "It counts that time too, but tracing lengthens it.",
    "cupti": "It counts what runs and nothing else, each call launched by the host instead of by a graph.",
    "ncu": "It runs each kernel alone and after a pause, in which the card rests, and leaves out what is no kernel, "
    "such as clearing memory.",
    "nvbench.batch": "The graph that ours replays, between another's events.",
    "triton.cudagraph": "The same calls in a graph of its own, between another's events.",
    "eager": "The launch gap: the host launches into an idle stream, between the events.",
    "ncu.cold": "As Nsight Compute above, after our flush.",
    "nvbench.cold": "One call's graph on a held stream, as ours, after a flush of its own.",
    "triton.do_bench": "A plain call after a write of 256 MB, so a cold number; where a call launches many kernels, "
    "the card waits for the host between them.",
}


@dataclass(frozen=True)
class Reading:
    """What one method says of one case, in us: its median with interval, and its distance from our clock."""

    median: Interval
    gap: Interval
    ours_us: float

    @property
    def gap_pct(self) -> float:
        """The distance in percent of ours."""
        return 100 * self.gap.estimate / self.ours_us

    @property
    def short(self) -> bool:
        """Whether the distance counts in us, and not in percent."""
        return self.ours_us < SHORT_US

    @property
    def near(self) -> bool:
        """Whether it lies as near to our clock as it should."""
        return _is_near(self.gap.estimate, self.ours_us)


@dataclass(frozen=True)
class Panel:
    """The panel of a run: its rows, and every reading of them."""

    rows: pd.DataFrame

    @cached_property
    def _samples(self) -> dict[tuple[str, Shape], dict[str, pd.Series]]:
        taken = self.rows[self.rows["latency_us"].notna()]
        found: dict[tuple[str, Shape], dict[str, pd.Series]] = {}
        for (name, *axes, method), group in taken.groupby([*CASE, "method"], sort=False):
            shape = Shape(**dict(zip(Shape.AXES, axes, strict=True)))
            found.setdefault((name, shape), {})[method] = group.set_index("round")["latency_us"].astype(float)
        return found

    @cached_property
    def cases(self) -> list[tuple[str, Shape]]:
        """Those that our warm clock timed, short to long."""
        ours = {case: methods[WARM].median() for case, methods in self._samples.items() if WARM in methods}
        return sorted(ours, key=lambda case: ours[case])

    def ours_us(self, case: tuple[str, Shape], method: str = WARM) -> float:
        """Our clock's median of a case."""
        return float(self._samples[case][method].median())

    def median(self, case: tuple[str, Shape], method: str) -> Interval:
        """A method's median of a case with its interval."""
        return _median(self._samples[case][method])

    def reading(self, case: tuple[str, Shape], method: str) -> Reading | None:
        """What a method says of a case; None where it says nothing, or ours doesn't."""
        return self.against(case, method, WARM if method in WARM_METHODS else COLD)

    def against(self, case: tuple[str, Shape], method: str, ours: str) -> Reading | None:
        """What a method says, beside what another says; None where either says nothing."""
        methods = self._samples[case]
        if method not in methods or ours not in methods:
            return None
        theirs, reference = methods[method], methods[ours]
        paired = set(theirs.index) == set(reference.index)
        gaps = theirs - (reference if paired else reference.median())
        return Reading(_median(theirs), _median(gaps), float(reference.median()))

    def readings(self, method: str) -> list[Reading]:
        """A method's readings, short to long."""
        return [found for case in self.cases if (found := self.reading(case, method))]

    def why(self, method: str) -> str:
        """Why a method has no reading of some case, the first reason given; empty where it has."""
        refused = self.rows[(self.rows["method"] == method) & self.rows["latency_us"].isna()]["why"]
        return str(refused.iloc[0]) if len(refused) else ""


def of(results: Results) -> Panel:
    """The panel of a run.

    Raises:
        NotMeasured: it has none; the message says why.
    """
    if results.run.panel.empty:
        raise NotMeasured(f"No panel of clocks was recorded: {why_absent(results)}")
    panel = Panel(results.run.panel)
    if not panel.cases:
        raise NotMeasured(f"The panel of clocks timed nothing: {panel.why(WARM)}")
    return panel


def _is_near(gap_us: float, ours_us: float) -> bool:
    return abs(gap_us) <= (NEAR_US if ours_us < SHORT_US else NEAR_PCT / 100 * ours_us)


def _median(values: pd.Series) -> Interval:
    """A median with its order-statistic interval; of too few values, all that there are."""
    samples = values.to_numpy()
    found = stats.quantile_ci(samples, 0.5)
    return found or Interval(float(np.median(samples)), float(samples.min()), float(samples.max()))


@telling
def warm(results: Results) -> Table:
    """Every warm method beside the device clock."""
    return _table(of(results), WARM, WARM_METHODS, "panel-warm", "The panel of clocks, warm cache")


@telling
def cold(results: Results) -> Table:
    """Every cold method beside the device clock's cold one."""
    return _table(of(results), COLD, COLD_METHODS, "panel-cold", "The panel of clocks, cold cache")


@styled
def gaps(results: Results) -> Figure:
    """How far each method lies from our clock, over how long the call takes."""
    panel = of(results)
    drawing, grid = plt.subplots(1, 3, sharey=True, figsize=(7.2, 4.4))
    groups = (("CUPTI", CUPTI_METHODS), ("others, warm cache", WARM_METHODS), ("others, cold cache", COLD_METHODS))
    for axes, (title, methods) in zip(grid, groups, strict=True):
        _band(axes, panel)
        for method in methods:
            readings = panel.readings(method)
            if (title != "CUPTI" and method in CUPTI_METHODS) or not readings:
                continue
            colour, marker = LOOKS[method]
            us = [reading.ours_us for reading in readings]
            look = {"color": colour, "marker": marker, "markersize": 4, "label": _plain(TITLES[method])}
            axes.plot(us, [reading.gap.estimate for reading in readings], linestyle="none", **look)
            axes.vlines(us, *_ends(readings), color=colour, linewidth=0.8, alpha=0.6)
        axes.set(title=title, xscale="log", xlabel="our clock (µs)")
        axes.set_yscale("symlog", linthresh=0.1)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), fontsize=7)
    grid[0].set_ylabel("other clock less ours (µs)")
    return Figure(
        drawing,
        "panel",
        f"How far every other clock lies from ours, which it is set against with the same cache. Grey: {NEAR_US:g} µs "
        f"below {SHORT_US} µs and {NEAR_PCT:g} % above. Linear within 0.1 µs, logarithmic beyond.",
        "Three scatter plots over latency: the difference of each other clock from ours in microseconds.",
    )


@telling
def agreement(results: Results) -> Prose:
    """Whether our clock is right, by CUPTI."""
    panel = of(results)
    found = {case: where for case in panel.cases if (where := _bracketed(panel, case))}
    if not found:
        raise NotMeasured(f"CUPTI timed nothing, so our clock can't be held to it: {panel.why(JUDGE)}")
    cases = {where: [_case(case) for case in found if found[case] == where] for where in ("in", "out", "unsure")}
    told = (
        "CUPTI, which reads the device's own time stamps, brackets our clock. The durations of the kernels in the "
        "graph that `device` replays are a lower bound, since they leave out the time between kernels; from the first "
        "one's start to the last one's end is an upper bound, since tracing lengthens that time. `device` lies in the "
        f"bracket, or within {NEAR_US:g} µs of it below {SHORT_US} µs and within {NEAR_PCT:g} % above, in "
        f"{len(cases['in'])} of {len(found)} cases."
    )
    told += f" It lies outside at {'; '.join(cases['out'])}." if cases["out"] else ""
    told += f" It can't be told from these rounds at {'; '.join(cases['unsure'])}." if cases["unsure"] else ""
    return Prose(" ".join(filter(None, (told, _traced(panel), _kernels_alone(results, panel)))))


def _bracketed(panel: Panel, case: tuple[str, Shape]) -> str:
    """Whether our clock lies in CUPTI's bracket or near enough, "in" or "out"; "unsure" if the intervals allow both."""
    kernels, span = panel.reading(case, JUDGE), panel.reading(case, "cupti.span")
    if kernels is None or span is None:
        return ""
    beyond = max(kernels.gap.estimate, -span.gap.estimate)
    surely = max(kernels.gap.low, -span.gap.high)
    if beyond <= 0 or _is_near(beyond, kernels.ours_us):
        return "in"
    return "unsure" if surely <= 0 or _is_near(surely, kernels.ours_us) else "out"


def _traced(panel: Panel) -> str:
    """How far CUPTI's span is from our clock around the very same replay, where no drift can come between."""
    readings = [found for case in panel.cases if (found := panel.against(case, "cupti.span", "device.traced"))]
    if not readings:
        return ""
    near = sum(reading.near for reading in readings)
    short = [-reading.gap.estimate for reading in readings if reading.short]
    long = [-reading.gap_pct for reading in readings if not reading.short]
    parts = [f"{_range(short, 'µs')} below {SHORT_US} µs"] if short else []
    parts += [f"{_range(long, '%')} above"] if long else []
    return (
        "Around the very replay that CUPTI traces, our clock and CUPTI's agree within those limits in "
        f"{near} of {len(readings)} cases: ours reads {' and '.join(parts)}."
    )


def _kernels_alone(results: Results, panel: Panel) -> str:
    """How far the kernels alone are from our clock, by how many pieces of work a call is made of."""
    groups: dict[int, dict[str, Reading]] = {}
    for case in panel.cases:
        reading, pieces = panel.reading(case, JUDGE), _pieces(results, case[0])
        if reading and pieces:
            groups.setdefault(pieces, {})[_case(case)] = reading
    parts = []
    for pieces, readings in sorted(groups.items()):
        short = [-reading.gap.estimate for reading in readings.values() if reading.short]
        far = [f"{case}, {_signed(-readings[case].gap.estimate)} µs" for case in readings if not readings[case].near]
        gap = f"{formats.number(float(np.median(short)), 2)} µs below {SHORT_US} µs; " if short else ""
        but = f", not {far[0]}" if len(far) == 1 else ""
        within = f"{len(readings) - len(far)} of {len(readings)} within those limits{but}"
        parts.append(f"calls of {formats.count(pieces, 'piece')} ({gap}{within})")
    if not parts:
        return ""
    return (
        "More than the kernels alone it reads by the time between them, which grows with the pieces of work, kernels "
        f"and memory operations, that a call is made of: {formats.listing(parts)}."
    )


def _pieces(results: Results, implementation: str) -> int:
    """How many kernels and memory operations one call is, by the profiler in the run itself; 0 where it isn't known."""
    rows = results.run.cases
    rows = rows[(rows["implementation"] == implementation) & (rows["status"] == "measured")]
    if rows.empty:
        return 0
    names = str(rows["kernels"].iloc[0]).split("\n")
    return sum(not re.match(r"cu(da)?[A-Z]|Activity Buffer|Instrumentation|Resource", name) for name in names)


@telling
def explained(results: Results) -> Prose:
    """How far each method lies from our clock, and why."""
    panel = of(results)
    told = [_explanation(method, panel.readings(method)) for method in (*WARM_METHODS, *COLD_METHODS)]
    absent = [f"- {TITLES[m]}: not used: {panel.why(m)}." for m in CAUSES if not panel.readings(m) and panel.why(m)]
    return Prose("\n".join([*filter(None, told), *absent]))


def _explanation(method: str, readings: list[Reading]) -> str:
    if not readings:
        return ""
    short = [reading.gap.estimate for reading in readings if reading.short]
    long = [reading.gap_pct for reading in readings if not reading.short]
    parts = []
    if short:
        parts.append(f"{_range(short, 'µs')} below {SHORT_US} µs")
    if long:
        parts.append(f"{_range(long, '%')} above")
    against = "`device`" if method in WARM_METHODS else "`device` cold"
    return f"- {TITLES[method]}, against {against}: {' and '.join(parts)}. {CAUSES[method]}"


def _range(values: list[float], unit: str) -> str:
    """``+0.12 µs (−0.01 to +0.40)``: the median, and the range where there is one."""
    middle = _signed(float(np.median(values)), unit)
    return middle if len(values) == 1 else f"{middle} ({_signed(min(values))} to {_signed(max(values))})"


def _signed(value: float, unit: str = "") -> str:
    sign = "+" if value > 0 else ""
    return f"{sign}{formats.number(value, 2)}{' ' * bool(unit)}{unit}"


def _band(axes: Axes, panel: Panel) -> None:
    longest = max(panel.ours_us(case) for case in panel.cases)
    spans = [(np.array([panel.ours_us(panel.cases[0]), SHORT_US]), np.full(2, NEAR_US))]
    if longest > SHORT_US:
        long = np.geomspace(SHORT_US, longest, 50)
        spans.append((long, long * NEAR_PCT / 100))
    for us, near in spans:
        axes.fill_between(us, -near, near, color="#888888", alpha=0.2, linewidth=0)


def _ends(readings: list[Reading]) -> tuple[list[float], list[float]]:
    return [reading.gap.low for reading in readings], [reading.gap.high for reading in readings]


def _table(panel: Panel, ours: str, methods: list[str], name: str, caption: str) -> Table:
    said = {method: {case: panel.reading(case, method) for case in panel.cases} for method in methods}
    there = [method for method in methods if any(said[method].values())]
    first = f"{_plain(TITLES[ours])} (µs)"
    rows = [
        dict[str, str | None]({"case": _case(case), first: formats.stacked(panel.median(case, ours))})
        | {_plain(TITLES[method]): _gap(said[method][case]) for method in there}
        for case in panel.cases
        if ours in panel._samples[case]
    ]
    absent = [f"{TITLES[method]}: {panel.why(method)}" for method in methods if method not in there]
    note = (
        "Medians with 95 % intervals; of the others how much more (+) or less (−) they read, in µs and in percent of "
        "ours. Of fewer than six rounds the interval is all that was seen."
    )
    note += f" Not used: {'; '.join(absent)}." if absent else ""
    return Table(pd.DataFrame(rows), name, f"{caption}: how far each lies from {TITLES[ours]}.", note)


def _gap(reading: Reading | None) -> str | None:
    if reading is None:
        return None
    return f"{_signed(reading.gap.estimate)}\n({_signed(reading.gap_pct, '%')})"


def _case(case: tuple[str, Shape]) -> str:
    name, shape = case
    return f"{name}, B·H={shape.batch * shape.heads} S={shape.seq_len}{' causal' if shape.causal else ''}"


def _plain(title: str) -> str:
    return title.replace("`", "")
