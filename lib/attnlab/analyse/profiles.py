"""Why an implementation takes as long as it does, by Nsight Compute's counters of one call at the target.

Two readings of the same cycles. A **unit** (a pipe, the issue slots, a level of memory) was used at a share of its
peak: whatever else is improved, that share of the time stays. And the **schedulers' cycles**, all of them: in one, an
instruction was issued, or the multiprocessor had nothing to do, or every warp waited. Cycles in which all waited are
shared out among the reasons, in proportion to the warps that waited for each. That is an attribution, since a warp may
as well wait while another issues.

The rule for the bottlenecks is that of Nsight Compute's guided analysis: it calls a kernel bound by latency where every
unit stays below 60 % of its peak (section "GPU Speed Of Light Throughput"), and looks at the reasons for which warps
wait only then (section "Warp State Statistics"). So units from `SATURATED_PCT` of their peak come first, the busiest
at the head; after them the largest losses: reasons to wait, multiprocessors without work, bank conflicts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, TypeVar

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from attnlab.analyse import formats
from attnlab.analyse.display import Figure, Prose, Table, telling
from attnlab.analyse.figures import styled
from attnlab.analyse.results import NotMeasured, Results
from attnlab.runs import is_of

SATURATED_PCT = 60
"""From this share of its peak a unit counts as the bottleneck, below it latency does."""
TOP = 3
NAME = 24
"""Characters of a kernel's name that a table of many columns has room for."""
LEAST_PCT = 1
"""A loss of less than this is none that a table needs."""

CYCLES, DURATION = "sm__cycles_elapsed.max", "gpu__time_duration.sum"
ELAPSED = "avg.pct_of_peak_sustained_elapsed"
SHARED = "l1tex__data_pipe_lsu_wavefronts_mem_shared"
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
UNITS = {
    "tensor cores": f"sm__pipe_tensor_cycles_active.{ELAPSED}",
    "exponentials (XU)": f"sm__inst_executed_pipe_xu.{ELAPSED}",
    "FMA": f"sm__pipe_fma_cycles_active.{ELAPSED}",
    "ALU": f"sm__pipe_alu_cycles_active.{ELAPSED}",
    "load/store (LSU)": f"sm__inst_executed_pipe_lsu.{ELAPSED}",
    "issue slots": f"smsp__issue_active.{ELAPSED}",
    "L1 and shared": f"l1tex__throughput.{ELAPSED}",
    "L2": f"lts__throughput.{ELAPSED}",
    "DRAM": f"dram__throughput.{ELAPSED}",
}
"""What can be busy, and the metric that says how much of its peak rate it was, over the kernel's whole time."""
ISSUED, IDLE, BANKS = "instruction issued", "no work on the multiprocessor", "bank conflicts of shared memory"
WAITS = {
    "barrier": "a barrier of the CTA",
    "branch_resolving": "a branch",
    "dispatch_stall": "the dispatch",
    "drain": "stores at the exit",
    "gmma": "wgmma",
    "imc_miss": "constants",
    "lg_throttle": "room for loads and stores",
    "long_scoreboard": "global memory",
    "math_pipe_throttle": "a free pipe",
    "membar": "a memory fence",
    "mio_throttle": "room for shared memory and XU",
    "misc": "something else",
    "no_instruction": "instructions",
    "short_scoreboard": "shared memory or XU",
    "sleeping": "a sleep to end",
    "tex_throttle": "room for textures",
    "wait": "a fixed latency",
}
"""What warps wait for, by the name in Nsight Compute's metric; being selected, or not, is no waiting."""
HEADINGS = {"exponentials (XU)": "exp.\n(XU)", "load/store (LSU)": "load/\nstore", "L1 and shared": "L1,\nshared"}
LIMITS = {"registers": "registers", "shared_mem": "shared", "warps": "warps", "blocks": "CTAs"}
SHOWN_WAITS = 5
T = TypeVar("T")
COLOURS = ("#D55E00", "#E69F00", "#009E73", "#CC79A7", "#56B4E9")


@dataclass(frozen=True)
class Bottleneck:
    """Something that takes a share of the time: of a unit's peak, or of the schedulers' cycles."""

    title: str
    share_pct: float
    evidence: str

    def __str__(self) -> str:
        return f"{self.title}: {self.evidence}"


@dataclass(frozen=True)
class Profile:
    """The counters of one call.

    Attributes:
        launches: a row per launch in their order: ``function`` and a column for each metric that was counted.
    """

    implementation: str
    launches: pd.DataFrame

    @cached_property
    def longest(self) -> pd.Series:
        """The launch that took the most cycles."""
        return self.launches.loc[self.launches[CYCLES].idxmax()]

    @property
    def longest_share_pct(self) -> float:
        """How much of the call's cycles that launch took."""
        return 100 * float(self.longest[CYCLES] / self.launches[CYCLES].sum())

    def total(self, metric: str) -> float:
        """A sum over the launches; NaN where it wasn't counted."""
        return float(self.launches[metric].sum(min_count=1)) if metric in self.launches else np.nan

    def mean(self, metric: str) -> float:
        """A mean over the launches, weighted by their cycles; NaN where it wasn't counted."""
        counted = self.launches.dropna(subset=[metric]) if metric in self.launches else self.launches.head(0)
        return float(np.average(counted[metric], weights=counted[CYCLES])) if len(counted) else np.nan

    @cached_property
    def units_pct(self) -> dict[str, float]:
        """How much of its peak each unit was used at."""
        return {unit: self.mean(metric) for unit, metric in UNITS.items()}

    @cached_property
    def cycles(self) -> dict[str, float]:
        """Where the schedulers' cycles went: all of the call's, by what happened in them."""
        total: dict[str, float] = {}
        for _, launch in self.launches.iterrows():
            for what, cycles in _cycles(launch).items():
                total[what] = total.get(what, 0.0) + cycles
        return total

    @cached_property
    def cycles_pct(self) -> dict[str, float]:
        """The same as shares."""
        return {what: 100 * cycles / self.total(CYCLES) for what, cycles in self.cycles.items()}

    @property
    def conflicts_pct(self) -> float:
        """How much of the accesses to shared memory were repeats for bank conflicts; NaN where there was no access."""
        accesses = self.total(f"{SHARED}.sum")
        return 100 * self.total(CONFLICTS) / accesses if accesses > 0 else np.nan

    @cached_property
    def bottlenecks(self) -> list[Bottleneck]:
        """The first three, by the rule of this module."""
        units = [
            Bottleneck(unit, share, f"{formats.percent(share)} of peak")
            for unit, share in self.units_pct.items()
            if share >= SATURATED_PCT
        ]
        losses = [loss for loss in self._losses() if loss.share_pct >= LEAST_PCT]
        return [*_largest_first(units), *_largest_first(losses)][:TOP]

    def _losses(self) -> list[Bottleneck]:
        waits = {what: share for what, share in self.cycles_pct.items() if what not in (ISSUED, IDLE)}
        losses = [
            Bottleneck(f"waiting for {what}", share, f"{formats.percent(share)} of cycles")
            for what, share in waits.items()
        ]
        idle = self.cycles_pct.get(IDLE, np.nan)
        losses.append(Bottleneck(IDLE, idle, f"{formats.percent(idle)} of cycles"))
        repeats = self.mean(f"{SHARED}.{ELAPSED}") * self.conflicts_pct / 100
        losses.append(Bottleneck(BANKS, repeats, f"{formats.percent(repeats)} of its cycles"))
        return losses


def of(results: Results) -> list[Profile]:
    """The profiles of the target, in the order of the study.

    Raises:
        NotMeasured: the run holds no counters; the message has the manifest's reason.
    """
    rows = _rows(results)
    if rows.empty:
        raise NotMeasured(f"No counters were recorded, so there is no profile: {_why(results)}")
    found = []
    for name in results.study.implementations:
        if len(own := rows[rows["implementation"] == name]):
            wide = own.pivot(index="launch", columns="metric", values="value")
            found.append(Profile(name, wide.assign(function=own.groupby("launch")["function"].first())))
    return found


def _counted(show: Callable[[Results], T]) -> Callable[[Results], T | None]:
    """Let `show` be silent where there are no counters: `how` says so once, and why."""

    @wraps(show)
    def shown(results: Results) -> T | None:
        return show(results) if len(_rows(results)) else None

    return shown


@telling
def how(results: Results) -> Prose:
    """How the counters were taken and what they are not, or why there are none."""
    profiles, told = of(results), results.run.manifest["profile"]
    lacking = f" Without counters: {told['why']}." if told["why"] else ""
    return Prose(
        f"The counters are of one call at the target, {formats.shape(results.study.target_shape)}, after a warm-up, of "
        f"{formats.count(len(profiles), 'implementation')}, by {told['tool']}. It runs each kernel several times, some "
        "counters at a time, at whatever clock the card then has and with the caches as the run before left them: its "
        f"durations are shown beside its other counters, and never set against samples.{lacking}"
    )


@_counted
@telling
def launches(results: Results) -> Table:
    """What was launched, and how full it made the multiprocessors: the longest launch of each call."""
    rows = []
    for profile in of(results):
        launch = profile.longest
        rows.append(
            {
                "implementation": profile.implementation,
                "longest kernel": formats.shortened(formats.kernel(launch["function"]), NAME),
                "launches": len(profile.launches),
                "its share": formats.percent(profile.longest_share_pct),
                "CTAs": _whole(launch, "launch__grid_size"),
                "threads": _whole(launch, "launch__block_size"),
                "registers": _whole(launch, "launch__registers_per_thread"),
                "shared (KiB)": formats.number(_shared_bytes(launch) / 2**10),
                "warps": formats.percent(_count(launch, "sm__warps_active.avg.pct_of_peak_sustained_active")),
                "at most": formats.percent(_count(launch, "sm__maximum_warps_per_active_cycle_pct")),
                "limited by": _limits(launch),
            }
        )
    note = (
        "Its share is of the call's cycles. Threads and shared memory are a CTA's, registers a thread's. Warps: the "
        "occupancy, warps on a multiprocessor over those that it could hold, as achieved and at most with this launch, "
        "and what keeps it from more."
    )
    return Table(pd.DataFrame(rows), "launches", "The longest launch of each call.", note)


@_counted
@telling
def traffic(results: Results) -> Table:
    """What was moved: DRAM, L2, shared memory."""
    compulsory = results.study.target_shape.bytes
    rows = []
    for profile in of(results):
        dram = sum(profile.total(f"dram__bytes_{way}.sum") for way in ("read", "write"))
        rows.append(
            {
                "implementation": profile.implementation,
                "µs in ncu": formats.number(profile.total(DURATION) / 1e3),
                "instructions (M)": formats.number(profile.total("sm__inst_executed.sum") / 1e6),
                "DRAM (MB)": formats.number(dram / 1e6),
                "of compulsory": formats.percent(100 * dram / compulsory),
                "L2 to L1 (MB)": formats.number(profile.total("l1tex__m_xbar2l1tex_read_bytes.sum") / 1e6),
                "L2 hits": formats.percent(profile.mean("lts__t_sector_hit_rate.pct")),
                "L1 hits": formats.percent(profile.mean("l1tex__t_sector_hit_rate.pct")),
                "bank conflicts": formats.percent(profile.conflicts_pct),
            }
        )
    note = (
        "Of the whole call. Below 100 % of the compulsory bytes, the L2 held what the call before had left there, or "
        "had not written all back yet. Bank conflicts: repeats over accesses to shared memory; copies and matrix "
        "products that bypass the load and store unit are not in it."
    )
    return Table(pd.DataFrame(rows), "traffic", "What each call moved, by the counters.", note)


@_counted
@telling
def bottlenecks(results: Results) -> Table:
    """The three bottlenecks of each, with the counters that rank them."""
    rows = []
    for profile in of(results):
        found = [str(bottleneck) for bottleneck in profile.bottlenecks]
        places = dict(zip(("first", "second", "third"), [*found, *[None] * TOP], strict=False))
        rows.append({"implementation": profile.implementation, **places})
    note = (
        f"Units from {SATURATED_PCT} % of their peak, the busiest first; then what costs the most cycles: in every one "
        "of them each warp of a scheduler waited, and they are shared out by what warps waited for."
    )
    return Table(pd.DataFrame(rows), "bottlenecks", "The first three bottlenecks, ranked by the counters.", note)


@_counted
@telling
def steps(results: Results) -> Table:
    """From rung to rung, where the cycles went that were saved, and where new ones are spent."""
    profiles = {profile.implementation: profile for profile in of(results)}
    rows = []
    for rung in results.run.manifest.get("ladder", []):
        before, after = (profiles.get(f"kernel.{name}") for name in (rung["after"], rung["name"]))
        if before and after:
            change = {
                what: after.cycles.get(what, 0.0) - before.cycles.get(what, 0.0)
                for what in (*before.cycles, *(what for what in after.cycles if what not in before.cycles))
            }
            ordered = sorted(change, key=lambda what: change[what])
            rows.append(
                {
                    "rung": rung["name"],
                    "after": rung["after"],
                    "cycles before": formats.number(before.total(CYCLES)),
                    "cycles": formats.number(after.total(CYCLES)),
                    "saved most": _change(ordered[0], change[ordered[0]]),
                    "then": _change(ordered[1], change[ordered[1]]),
                    "added most": _change(ordered[-1], change[ordered[-1]]),
                }
            )
    note = (
        "Cycles of the call, each counted once: an instruction issued, no work on the multiprocessor, or what warps "
        "waited for."
    )
    return Table(pd.DataFrame(rows), "steps", "Where each rung of the ladder saves cycles, and spends them.", note)


@_counted
@telling
def findings(results: Results) -> Prose:
    """What holds each back, in a sentence."""
    busy: dict[str, list[str]] = {}
    waiting: dict[str, list[str]] = {}
    for profile in of(results):
        for first in profile.bottlenecks[:1]:
            kind = busy if first.title in UNITS else waiting
            kind.setdefault(first.title, []).append(f"`{profile.implementation}` ({formats.percent(first.share_pct)})")
    told = []
    if busy:
        found = "; ".join(f"{unit} in {formats.listing(names)}" for unit, names in busy.items())
        told.append(f"The busiest unit, at {SATURATED_PCT} % of its peak or more: {found}.")
    if waiting:
        found = "; ".join(f"{what} in {formats.listing(names)}" for what, names in waiting.items())
        told.append(f"Where every unit stays below that, the largest loss, in % of the cycles: {found}.")
    return Prose(" ".join(told) or "*The counters tell no bottleneck.*")


@_counted
@styled
def units(results: Results) -> Figure:
    """How much of its peak each unit was used at, as a map."""
    profiles = of(results)
    table = np.array([list(profile.units_pct.values()) for profile in profiles])
    drawing, axes = plt.subplots(figsize=(5.6, 0.9 + 0.3 * len(profiles)))
    axes.imshow(table, cmap="cividis", vmin=0, vmax=100, aspect="auto")
    for row, column in np.ndindex(table.shape):
        share = table[row, column]
        text = "—" if np.isnan(share) else f"{share:.0f}"
        colour = "white" if share < 55 else "black"
        weight = "bold" if share >= SATURATED_PCT else "normal"
        axes.text(column, row, text, ha="center", va="center", color=colour, fontweight=weight)
    axes.set_xticks(range(len(UNITS)), [HEADINGS.get(unit, unit.replace(" ", "\n")) for unit in UNITS])
    axes.set_yticks(range(len(profiles)), [profile.implementation for profile in profiles])
    _without_frame(axes)
    axes.xaxis.tick_top()
    return Figure(
        drawing,
        "units",
        "How much of its peak rate each unit was used at, in % over the whole call, by Nsight Compute's counters; in "
        f"bold from {SATURATED_PCT} %. For L1, L2 and DRAM it is the use of their busiest part.",
        "Map with a row for each implementation and a column for each unit of the multiprocessor and memory; the cells "
        "hold the percentage of the unit's peak.",
    )


@_counted
@styled
def schedulers(results: Results) -> Figure:
    """Where the schedulers' cycles went, as stacked bars."""
    profiles = of(results)
    waits = _greatest_waits(profiles)
    parts = {ISSUED: "#0072B2"} | dict(zip(waits, COLOURS, strict=False))
    parts |= {"other waits": "#bbbbbb", IDLE: "#eeeeee"}
    drawing, axes = plt.subplots(figsize=(5.6, 1.5 + 0.3 * len(profiles)))
    for row, profile in enumerate(profiles):
        left = 0.0
        for what, share in _parts_pct(profile, waits).items():
            axes.barh(row, share, left=left, color=parts[what], height=0.75, label=what if row == 0 else "_")
            if share >= 5:
                colour = "white" if what in (ISSUED, *waits[:1]) else "black"
                axes.text(left + share / 2, row, f"{share:.0f}", ha="center", va="center", color=colour, fontsize=8)
            left += share
    axes.set_yticks(range(len(profiles)), [profile.implementation for profile in profiles])
    axes.invert_yaxis()
    axes.set(xlabel="schedulers' cycles (%)", xlim=(0, 100))
    _without_frame(axes)
    drawing.legend(loc="outside upper center", ncols=2)
    return Figure(
        drawing,
        "schedulers",
        "Where the schedulers' cycles went. In those without an instruction every warp waited; they are shared out by "
        "what the warps waited for.",
        "Stacked bars, one for each implementation: percent of cycles in which an instruction was issued, in which "
        "warps waited by reason, and without work.",
    )


def _rows(results: Results) -> pd.DataFrame:
    rows = results.run.profile
    return rows[is_of(rows, results.study.target_shape)] if len(rows) else rows


def _cycles(launch: pd.Series) -> dict[str, float]:
    """One launch's cycles, by what happened in them."""
    elapsed, active = launch[CYCLES], _count(launch, "sm__cycles_active.avg")
    issued = active * _count(launch, "smsp__issue_active.avg.pct_of_peak_sustained_active") / 100
    warps = {title: _count(launch, _stalled(reason)) for reason, title in WAITS.items()}
    counted = {title: amount for title, amount in warps.items() if amount > 0}
    everything = sum(counted.values())
    waits = {title: (active - issued) * amount / everything for title, amount in counted.items()}
    return {ISSUED: issued, **waits, IDLE: max(0.0, elapsed - active)}


def _stalled(reason: str) -> str:
    return f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"


def _greatest_waits(profiles: list[Profile]) -> list[str]:
    """The reasons to wait that deserve a colour: those that cost any implementation the most."""
    most: dict[str, float] = {}
    for profile in profiles:
        for what, share in profile.cycles_pct.items():
            if what not in (ISSUED, IDLE):
                most[what] = max(share, most.get(what, 0.0))
    return sorted(most, key=lambda what: -most[what])[:SHOWN_WAITS]


def _parts_pct(profile: Profile, waits: list[str]) -> dict[str, float]:
    shares = profile.cycles_pct
    shown = {what: shares.get(what, 0.0) for what in (ISSUED, *waits)}
    return shown | {"other waits": 100 - sum(shown.values()) - shares[IDLE], IDLE: shares[IDLE]}


def _largest_first(found: list[Bottleneck]) -> list[Bottleneck]:
    return sorted(found, key=lambda bottleneck: -bottleneck.share_pct)


def _change(what: str, cycles: float) -> str:
    return f"{what}: {'+' if cycles > 0 else ''}{formats.number(cycles)}"


def _limits(launch: pd.Series) -> str:
    """What lets no more CTAs onto a multiprocessor."""
    ctas = {title: _count(launch, f"launch__occupancy_limit_{limit}") for limit, title in LIMITS.items()}
    least = min((amount for amount in ctas.values() if not np.isnan(amount)), default=np.nan)
    return formats.listing([title for title, amount in ctas.items() if amount == least])


def _shared_bytes(launch: pd.Series) -> float:
    return sum(_count(launch, f"launch__shared_mem_per_block_{kind}") for kind in ("dynamic", "static"))


def _count(launch: pd.Series, metric: str) -> float:
    return float(launch.get(metric, np.nan))


def _whole(launch: pd.Series, metric: str) -> str:
    amount = _count(launch, metric)
    return formats.number(amount) if np.isnan(amount) else f"{amount:,.0f}"


def _why(results: Results) -> str:
    """The manifest's reason for a run without counters."""
    told: dict[str, Any] = results.run.manifest.get("profile") or {}
    if not results.run.complete:
        return "the run is not complete, and its counters are taken last"
    return told.get("why") or "the run is older than the profile"


def _without_frame(axes: Axes) -> None:
    axes.grid(False)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
