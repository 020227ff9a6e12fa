"""The same cases in another recorded run: what was found again, what moved, and whether the clock moved it.

A case is compared where both runs measured it on a device of the same name, under the same timing and, if it is a
hand-written kernel, from the same source. Whether that was the same card is not recorded.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.ticker import FuncFormatter

from attnlab import ladder, runs, stats
from attnlab.analyse import formats
from attnlab.analyse.display import Figure, Group, Prose, Table, telling
from attnlab.analyse.figures import LEGEND_COLUMNS, look, styled
from attnlab.analyse.results import AXES, CASE, NotMeasured, Results
from attnlab.errors import UserError
from attnlab.shapes import Shape
from attnlab.stats import Interval
from attnlab.studies import Timing

LEAST_US = 20
"""Of the median: below it, the clock's tick and the launch weigh too much for `NEAR_PCT`."""
NEAR_PCT = 1.0
"""Medians no farther apart than this were found again."""
MOST_ROWS = 12
FIELDS = ("driver", "cuda", "cudnn", "python", "system", "threads", "card", "packages", "settings")
"""Of the environment, what is compared."""
Key = tuple[Any, ...]
"""A case: the implementation and the axes of its shape."""
Rows = dict[Key, pd.DataFrame]


@dataclass(frozen=True)
class Side:
    """A case in one run.

    Attributes:
        samples: the latencies in us, an array per replicate.
        tick_us: how finely a sample can be told.
        spread_pct: how far the medians of its replicates lie apart, in percent of the median; NaN for one replicate.
        sm_clock_mhz: the median of the SM clock; NaN where it was not read.
        throttled_pct: the share of samples that were taken while the card held its clock back; NaN likewise.
    """

    samples: list[np.ndarray]
    tick_us: float
    spread_pct: float
    sm_clock_mhz: float
    throttled_pct: float

    @property
    def median_us(self) -> float:
        """The median of all samples."""
        return float(np.median(np.concatenate(self.samples)))

    @property
    def median(self) -> Interval:
        """The same with its 95 % interval, which takes a while."""
        return stats.bootstrap_ci(self.samples, tick=self.tick_us)


@dataclass(frozen=True)
class Case:
    """A case in both runs; `ratio` is the median here over the median there, with its 95 % interval."""

    implementation: str
    shape: Shape
    here: Side
    there: Side
    ratio: Interval

    @property
    def change_pct(self) -> float:
        """By how much the median here is larger."""
        return 100 * (self.ratio.estimate - 1)

    @property
    def cycles_pct(self) -> float:
        """The same of the latency in cycles, which is the latency times the SM clock; NaN where that was not read."""
        return 100 * (self.ratio.estimate * self.here.sm_clock_mhz / self.there.sm_clock_mhz - 1)

    @property
    def moved(self) -> bool:
        """Whether the medians lie farther apart than they may."""
        return abs(self.change_pct) > NEAR_PCT

    @property
    def moved_surely(self) -> bool:
        """Whether the whole interval says so."""
        return self.moved and not _in_percent(self.ratio).overlaps(Interval(0, -NEAR_PCT, NEAR_PCT))


@dataclass(frozen=True)
class Repetition:
    """A run beside the other that shares the most cases with it.

    Attributes:
        shared: the cases that both measured, under the timing.
        cases: those of them whose median here is above `LEAST_US`.
        changed: kernels that both ran, but from another source.
    """

    here: Results
    there: Results
    timing: Timing
    shared: list[Key]
    cases: list[Case]
    changed: list[str]

    @property
    def moved(self) -> list[Case]:
        """The cases that moved, those that moved most first."""
        return [case for case in self.by_distance if case.moved]

    @property
    def by_distance(self) -> list[Case]:
        """The cases, those that moved most first."""
        return sorted(self.cases, key=lambda case: -abs(case.change_pct))


@telling
def told(results: Results) -> Group:
    """What another run says of the same cases: in words, drawn, the cases that moved most, and what else differs."""
    repetition = find(results)
    return Group((words(repetition), *_drawn(repetition), differences(repetition)))


def find(results: Results) -> Repetition:
    """The other run that shares the most cases with this one; of several, the newest.

    Raises:
        NotMeasured: there is none.
    """
    timing = results.headline
    mine = _by_case(results, timing)
    best: tuple[Results, Rows, list[Key]] | None = None
    for other in _others(results):
        theirs, changed = _by_case(other, timing), _changed(results, other)
        keys = [key for key in mine if key in theirs and key[0] not in changed]
        if keys and (best is None or len(keys) >= len(best[2])):
            best = other, theirs, keys
    if best is None:
        device = results.run.manifest["device"]["name"]
        raise NotMeasured(f"No other complete run here, on {device}, shares a case with this one")
    other, theirs, keys = best
    sides = {key: (_side(results, mine[key]), _side(other, theirs[key])) for key in keys}
    cases = [_case(key, *both) for key, both in sides.items() if both[0].median_us > LEAST_US]
    both_ran = {key[0] for key in mine.keys() & theirs.keys()}
    return Repetition(results, other, timing, keys, cases, sorted(both_ran & _changed(results, other)))


def words(repetition: Repetition) -> Prose:
    """How many cases were found again, how many moved, and how far replicates scatter beside that."""
    return Prose("\n\n".join([_which(repetition), _how_many(repetition), _scatter(repetition)]).strip())


@styled
def drawn(repetition: Repetition) -> Figure:
    """By how much each median moved, against the latency; and the same counted in cycles, where clocks were read."""
    cases = repetition.cases
    panels = {"latency": [_in_percent(case.ratio) for case in cases]}
    if not any(np.isnan(case.cycles_pct) for case in cases):
        panels["cycles: latency times SM clock"] = [
            _in_percent(_scaled(case.ratio, case.here.sm_clock_mhz / case.there.sm_clock_mhz)) for case in cases
        ]
    drawing, grid = plt.subplots(1, len(panels), sharey=True, squeeze=False)
    for axes, (title, changes) in zip(grid[0], panels.items(), strict=True):
        axes.axhspan(-NEAR_PCT, NEAR_PCT, color="#888888", alpha=0.25, linewidth=0)
        for name in repetition.here.study.implementations:
            mine = [(case, change) for case, change in zip(cases, changes, strict=True) if case.implementation == name]
            if not mine:
                continue
            latencies = [case.here.median_us for case, _ in mine]
            style = look(name) | {"linestyle": "none"}
            axes.plot(latencies, [change.estimate for _, change in mine], **style)
            ends = [change.low for _, change in mine], [change.high for _, change in mine]
            axes.vlines(latencies, *ends, color=style["color"], linewidth=1, alpha=0.6)
        axes.set(title=title, xscale="log", xlabel="median latency here (µs)")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
        axes.yaxis.set_major_formatter(
            FuncFormatter(lambda value, _: f"{value:+g}".replace("-", "−") if value else "0")
        )
    grid[0][0].set_ylabel("here over there (%)")
    estimates = [change.estimate for changes in panels.values() for change in changes]
    low, high = min(-NEAR_PCT, *estimates), max(NEAR_PCT, *estimates)
    low, high = low - (high - low) / 4, high + (high - low) / 4
    grid[0][0].set_ylim(low, high)  # one long interval would flatten all else
    beyond = any(change.low < low or change.high > high for changes in panels.values() for change in changes)
    handles, labels = grid[0][0].get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), LEGEND_COLUMNS))
    by_clock = " Right: the same in cycles, where a lower clock makes no difference." if len(panels) > 1 else ""
    cut = " Intervals that leave the picture are longer still." if beyond else ""
    return Figure(
        drawing,
        "again",
        f"Medians of this run against those of `{repetition.there.run.name}`, {repetition.timing.words}, with 95 % "
        f"intervals of the ratio; the band is ±{NEAR_PCT:g} %.{by_clock}{cut}",
        "Scatter plots over latency: by how many percent the median of each case differs between two runs.",
    )


def table(repetition: Repetition) -> Table:
    """The cases that moved most, with what the card did in both runs."""
    cases = repetition.by_distance[:MOST_ROWS]
    rows = [
        {
            "implementation": case.implementation,
            "shape": formats.shape(case.shape).replace(") ", ")\n"),
            "here (µs)\n[95 %]": formats.stacked(case.here.median),
            "there (µs)\n[95 %]": formats.stacked(case.there.median),
            "change\n[95 %]": formats.change(_in_percent(case.ratio)).replace(" [", "\n["),
            "in\ncycles": None if np.isnan(case.cycles_pct) else f"{formats.signed(case.cycles_pct)} %",
            "SM clock\n(MHz)": _pair(case, "sm_clock_mhz", "{:.0f}"),
            "held\nback (%)": _pair(case, "throttled_pct", "{:.0f}"),
            "replicates\napart (%)": _pair(case, "spread_pct", "{:.2f}"),
        }
        for case in cases
    ]
    note = (
        "Of two numbers the upper is of this run. Held back: the share of samples taken while the card held its clock "
        "back. Replicates apart: the largest less the smallest median of a replicate, over the median. In cycles: the "
        "change of the latency times the SM clock."
    )
    frame = pd.DataFrame(rows).dropna(axis="columns", how="all")
    return Table(
        frame, "again", f"What moved most since `{repetition.there.run.name}`, {repetition.timing.words}.", note
    )


def differences(repetition: Repetition) -> Table:
    """What of environment and code differs between the two runs, and the ceilings that each measured."""
    here, there = repetition.here.run.manifest, repetition.there.run.manifest
    stated = _stated(here), _stated(there)
    names = [name for name in {**stated[0], **stated[1]} if stated[0].get(name) != stated[1].get(name)]
    rows = [(name, *(side.get(name, "not recorded") for side in stated)) for name in names]
    apart = sorted(n for n in here["sources"] | there["sources"] if here["sources"].get(n) != there["sources"].get(n))
    if apart:
        rows.append(("measuring code", f"commit {here['commit'][:7]}", f"commit {there['commit'][:7]}"))
    rows += _ceilings(repetition.here, repetition.there)
    apart_in = {name.split()[0] for name in names}
    same = [name for name in FIELDS if name in here["environment"] and name not in apart_in]
    note = f"The same in both: {formats.listing(same)}." if same else ""
    note += f" Files of the measuring code that differ: {len(apart)}." if apart else ""
    frame = pd.DataFrame(rows, columns=["", "here", "there"])
    return Table(
        frame, "again-environment", f"What differs between this run and `{repetition.there.run.name}`.", note.strip()
    )


def _drawn(repetition: Repetition) -> Iterator[Any]:
    if repetition.cases:
        yield drawn(repetition)
        yield table(repetition)


def _which(repetition: Repetition) -> str:
    here, there = repetition.here.run.manifest, repetition.there.run.manifest
    apart_s = abs((_began(here) - _began(there)).total_seconds())
    replicates = [_replicates(of) for of in (repetition.there, repetition.here)]
    both = f"Both ran on {here['device']['name']}; whether on the same card, they don't say."
    apart = (
        formats.count(round(apart_s / 60), "minute") if apart_s < 7200 else f"{formats.number(apart_s / 3600, 2)} hours"
    )
    return (
        f"Another run, `{repetition.there.run.name}`, was recorded on {_span(there)} in {replicates[0]}; this one on "
        f"{_span(here)} in {replicates[1]}, "
        f"{apart} apart from start to start. {both}"
    )


def _replicates(results: Results) -> str:
    """How many replicates are whole, and whether there is a part of one more."""
    sizes = results.run.cases.groupby("replicate").size()
    whole = int((sizes == sizes.max()).sum())
    return formats.count(whole, "replicate") + (" and a part of one more" if len(sizes) > whole else "")


def _how_many(repetition: Repetition) -> str:
    cases, moved = repetition.cases, repetition.moved
    count = f"{formats.count(len(repetition.shared), 'case')}, {repetition.timing.words}{_left_out(repetition)}"
    shared = f"They share {count}; {len(cases)} of them take longer than {LEAST_US} µs here."
    if not cases:
        return shared
    again = f"Of these, {len(cases) - len(moved)} have medians within {NEAR_PCT:g} % of each other"
    if not moved:
        return f"{shared} {again}: none moved."
    surely = sum(case.moved_surely for case in moved)
    most = moved[0]
    return (
        f"{shared} {again}, and {len(moved)} moved, {surely} of them with the whole interval of the "
        f"ratio beyond. The farthest is "
        f"`{most.implementation}` at {formats.shape(most.shape)}, by {formats.change(_in_percent(most.ratio))}."
        f"{_by_clock(moved)}"
    )


def _left_out(repetition: Repetition) -> str:
    if repetition.changed:
        names = formats.listing([f"`{name}`" for name in repetition.changed])
        return f", without {names}, whose source changed between them"
    mine = [name for name in repetition.here.study.implementations if name.startswith(ladder.PREFIX)]
    compared = {key[0] for key in repetition.shared}
    return ", no hand-written kernel among them" if mine and not compared & set(mine) else ""


def _by_clock(moved: list[Case]) -> str:
    """What of it the SM clock explains."""
    if any(np.isnan(case.cycles_pct) for case in moved):
        return ""
    other = [abs(case.cycles_pct) for case in moved if abs(case.cycles_pct) > NEAR_PCT]
    if len(other) == len(moved):
        return " The SM clock explains none of these: counted in cycles, they moved as well."
    rest = f" The others differ in cycles by at most {_percent(max(other))}." if other else ""
    return (
        f" Counted in cycles, {len(moved) - len(other)} of {len(moved)} lie within {NEAR_PCT:g} %: there the SM "
        f"clock moved.{rest}"
    )


def _scatter(repetition: Repetition) -> str:
    cases = repetition.cases
    if not cases or any(np.isnan(side.spread_pct) for case in cases for side in (case.here, case.there)):
        return ""
    between = [abs(case.change_pct) for case in cases]
    here, there = ([getattr(case, side).spread_pct for case in cases] for side in ("here", "there"))
    return (
        f"Within this run, the medians of a case's replicates lie at most {_percent(max(here))} apart, and in half of "
        f"the cases less than {_percent(float(np.median(here)))}; within the other, at most {_percent(max(there))} and "
        f"{_percent(float(np.median(there)))}. Between the two, medians differ by at most {_percent(max(between))}, in "
        f"half of the cases by less than {_percent(float(np.median(between)))}."
    )


def _others(results: Results) -> list[Results]:
    """Other complete runs on a device of the same name, the newest last, with nothing inferred from them."""
    mine, found = results.run.manifest, []
    for name in runs.names():
        with suppress(UserError):  # one that is refused says so where it is itself asked for
            stated = runs.read_manifest(name)
            same = stated["device"]["name"] == mine["device"]["name"]
            if same and stated["complete"] and stated["seal"] != mine["seal"]:  # nor is a copy another run
                found.append(Results(runs.load(name), results.table.head(0)))
    return found


def _changed(one: Results, other: Results) -> set[str]:
    """The kernels that two runs ran from different sources."""
    here, there = one.run.manifest["kernels"], other.run.manifest["kernels"]
    return {name for name in here.keys() & there.keys() if here[name] != there[name]}


def _by_case(results: Results, timing: Timing) -> Rows:
    """The samples of each case under a timing, in the order of the study, without controls."""
    passed = results.passed
    rows = passed[(passed["clock"] == timing.clock) & (passed["cache"] == timing.cache)]
    found = dict(iter(rows.groupby(CASE, sort=False)))
    study = results.study
    keys = [(name, *shape.axes.values()) for shape in study.shapes for name in study.implementations]
    return {key: found[key] for key in keys if key in found}


def _case(key: Key, here: Side, there: Side) -> Case:
    tick_us = max(here.tick_us, there.tick_us)
    ratio = stats.ratio_ci(here.samples, there.samples, tick=tick_us)
    return Case(key[0], Shape(**dict(zip(AXES, key[1:], strict=True))), here, there, ratio)


def _side(results: Results, rows: pd.DataFrame) -> Side:
    samples = [latencies.to_numpy() for _, latencies in rows.groupby("replicate")["latency_us"]]
    tick_us = float(results.run.manifest["clocks"]["tick_us"]) / int(rows["launches"].min())
    medians = [float(np.median(replicate)) for replicate in samples]
    apart_us = max(medians) - min(medians) if len(medians) > 1 else float("nan")
    spread_pct = 100 * apart_us / float(rows["latency_us"].median())
    clock, held = rows["sm_clock_mhz"].astype("Float64").median(), rows["throttled"].astype("Float64").mean()
    return Side(samples, tick_us, spread_pct, _number(clock), 100 * _number(held))


def _number(value: Any) -> float:
    return float("nan") if pd.isna(value) else float(value)


def _in_percent(ratio: Interval) -> Interval:
    return Interval(*(100 * (value - 1) for value in (ratio.estimate, ratio.low, ratio.high)))


def _scaled(ratio: Interval, by: float) -> Interval:
    return Interval(ratio.estimate * by, ratio.low * by, ratio.high * by)


def _percent(value: float) -> str:
    return f"{value:.2f} %"


def _pair(case: Case, field: str, form: str) -> str | None:
    values = getattr(case.here, field), getattr(case.there, field)
    return None if any(np.isnan(values)) else "\n".join(form.format(value) for value in values)


def _began(manifest: runs.Manifest) -> datetime:
    return datetime.fromisoformat(manifest["created"])


def _span(manifest: runs.Manifest) -> str:
    """``2026-11-21, 07:39 to 07:57 UTC``."""
    began = _began(manifest)
    if "finished" not in manifest:
        return f"{began:%Y-%m-%d, from %H:%M %Z}"
    ended = datetime.fromisoformat(manifest["finished"])
    day = "" if ended.date() == began.date() else f"{ended:%Y-%m-%d, }"
    return f"{began:%Y-%m-%d, %H:%M} to {day}{ended:%H:%M %Z}"


def _stated(manifest: runs.Manifest) -> dict[str, str]:
    """What a manifest says of the environment, a line each."""
    lines: dict[str, str] = {}
    for field in FIELDS:
        value = manifest["environment"].get(field)
        parts = value.items() if isinstance(value, dict) else [("", value)]
        lines |= {f"{field} {part}".strip(): str(told) for part, told in parts if told is not None}
    return lines


def _ceilings(here: Results, there: Results) -> list[tuple[str, str, str]]:
    """The ceilings that both runs measured: where these moved too, the machine did, and not the kernels."""
    ours, theirs = (
        {
            f"{ceiling.title} ({ceiling.unit})": formats.interval(ceiling.measured)
            for ceiling in of.ceilings.all
            if ceiling.measured
        }
        for of in (here, there)
    )
    return [(title, ours[title], theirs[title]) for title in ours if title in theirs]
