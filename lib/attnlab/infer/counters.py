"""Nsight Compute's counters of one call, and its bottlenecks by them."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd

from attnlab.base.texts import escaped
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.regimes import why_absent
from attnlab.infer.results import Results
from attnlab.runs import metrics
from attnlab.runs.metrics import CYCLES
from attnlab.runs.schema import is_of
from attnlab.study.shapes import Shape

SATURATED_PCT = 60
"""From this share of its peak on, a unit counts as a bottleneck; below it, what the warps wait for does."""
TOP = 3
LEAST_PCT = 1
"""Smaller losses are left out."""
NAMED_WAITS = 5
"""So many reasons to wait are named in a distance from the floor."""
FAR = 4
"""What takes more than this many times its floor has no distance from it."""

UNITS = {
    "tensor cores": metrics.TENSOR_CORES_USED,
    "exponentials (XU)": metrics.XU_USED,
    "FMA": metrics.FMA_USED,
    "ALU": metrics.ALU_USED,
    "load/store (LSU)": metrics.LSU_USED,
    "issue slots": metrics.ISSUE_SLOTS_USED,
    "L1 and shared": metrics.L1_USED,
    "L2": metrics.L2_USED,
    "DRAM": metrics.DRAM_USED,
}
"""What can be busy, and the metric that says how much of its peak rate it was, over the kernel's whole time."""
ISSUED, IDLE, BANKS = "instruction issued", "no work on the multiprocessor", "bank conflicts of shared memory"


@dataclass(frozen=True)
class Bottleneck:
    """Something that takes a share of the time.

    Attributes:
        title: the unit that is busy, or what warps wait for.
        of: the whole that `share_pct` refers to: ``peak`` of the unit, ``cycles`` of the schedulers, or ``its cycles``.
    """

    title: str
    share_pct: float
    of: str


@dataclass(frozen=True)
class Profile:
    """The counters of one call: a row per launch in their order, with its ``function`` and a column for each metric."""

    implementation: str
    launches: pd.DataFrame

    def total(self, metric: str) -> float:
        """A sum over the launches; NaN where it wasn't counted."""
        return float(self.launches[metric].sum(min_count=1)) if metric in self.launches else np.nan

    def mean(self, metric: str) -> float:
        """A mean over the launches, weighted by their cycles; NaN where it wasn't counted."""
        counted = self.launches.dropna(subset=[metric]) if metric in self.launches else self.launches.head(0)
        return float(np.average(counted[metric], weights=counted[CYCLES])) if len(counted) else np.nan

    @cached_property
    def units_pct(self) -> dict[str, float]:
        """Utilization of each unit in percent of its peak; of the tensor cores by matrix products, where counted."""
        used = {unit: self.mean(metric) for unit, metric in UNITS.items()}
        products = self.mean(metrics.MATRIX_PRODUCTS_USED)
        return used if np.isnan(products) else used | {"tensor cores": products}

    @cached_property
    def cycles(self) -> dict[str, float]:
        """The schedulers' cycles over the whole call, by what happened in them."""
        total: Counter[str] = Counter()
        for _, launch in self.launches.iterrows():
            total.update(_cycles(launch))
        return dict(total)

    @cached_property
    def cycles_pct(self) -> dict[str, float]:
        return {what: 100 * cycles / self.total(CYCLES) for what, cycles in self.cycles.items()}

    @cached_property
    def waits(self) -> dict[str, float]:
        """Those of the cycles in which every warp waited, by what for."""
        return {what: cycles for what, cycles in self.cycles.items() if what not in (ISSUED, IDLE)}

    @property
    def conflicts_pct(self) -> float:
        """Share of the accesses to shared memory that repeat for bank conflicts; NaN where there was no access."""
        accesses = self.total(metrics.SHARED_ACCESSES)
        return 100 * self.total(metrics.SHARED_CONFLICTS) / accesses if accesses > 0 else np.nan

    @cached_property
    def bottlenecks(self) -> list[Bottleneck]:
        """The first three: units from `SATURATED_PCT` of their peak on, then the largest losses."""
        units = [Bottleneck(unit, share, "peak") for unit, share in self.units_pct.items() if share >= SATURATED_PCT]
        losses = [Bottleneck(f"waiting for {what}", self.cycles_pct[what], "cycles") for what in self.waits]
        losses.append(Bottleneck(IDLE, self.cycles_pct.get(IDLE, np.nan), "cycles"))
        losses.append(Bottleneck(BANKS, self.mean(metrics.SHARED_USED) * self.conflicts_pct / 100, "its cycles"))
        named = [loss for loss in losses if loss.share_pct >= LEAST_PCT]
        return [one for kind in (units, named) for one in sorted(kind, key=lambda one: -one.share_pct)][:TOP]


class Distances(NamedTuple):
    """The floor at a shape in µs; and by implementation its median, and what lies between the two by what took it."""

    floor_us: float
    of: dict[str, tuple[float, dict[str, float]]]


class Step(NamedTuple):
    """A rung and the rung before; `changes` are cycles by what happened in them, the largest saving first."""

    rung: str
    after: str
    cycles_before: float
    cycles: float
    changes: list[tuple[str, float]]


def of(results: Results, shape: Shape | None = None) -> list[Profile]:
    """The profiles at a shape, by default the target, in the order of the study.

    Raises NotMeasured where the run holds no counters there; the message has the manifest's reason.
    """
    rows = _rows_of(results, shape or results.study.target_shape)
    if rows.empty:
        told = results.run.manifest.get("profile")
        why = escaped(told["why"]) if told else why_absent(results)
        raise NotMeasured(f"No counters were recorded, so there is no profile: {why}")
    found = []
    for name in results.study.implementations:
        if len(own := rows[rows["implementation"] == name]):
            wide = own.pivot(index="launch", columns="metric", values="value")
            found.append(Profile(name, wide.assign(function=own.groupby("launch")["function"].first())))
    return found


def has_counters(results: Results) -> bool:
    """Whether anything was profiled at the target."""
    return len(_rows_of(results, results.study.target_shape)) > 0


def counted_shapes(results: Results) -> list[Shape]:
    """The shapes at which anything was profiled."""
    return [shape for shape in results.study.counted_shapes if len(_rows_of(results, shape))]


def _rows_of(results: Results, shape: Shape) -> pd.DataFrame:
    rows = results.run.profile
    return rows[is_of(rows, shape)]


def beyond_us(profile: Profile, latency_us: float, floor_us: float) -> dict[str, float]:
    """The time of a call beyond its floor, in µs, by what happened in it; the parts add up to it.

    First comes the time in which a multiprocessor had no work. The rest is divided by what warps waited for, in
    proportion to the cycles in which every warp of a scheduler waited. It is empty if the floor is not below.
    """
    beyond = latency_us - floor_us
    if not beyond > 0:
        return {}
    idle_us = min(beyond, profile.cycles_pct.get(IDLE, 0.0) / 100 * latency_us)
    everything = sum(profile.waits.values())
    return {IDLE: idle_us} | {what: (beyond - idle_us) * cycles / everything for what, cycles in profile.waits.items()}


def distances(results: Results, shape: Shape) -> Distances:
    """How far each implementation is from the floor, without those that take more than `FAR` times as long.

    Raises NotMeasured where the run holds no counters at the shape, or the baseline has no latency there.
    """
    floor_us = float(results.row(results.study.baseline, shape)["floor_us"])
    profiles = {profile.implementation: profile for profile in of(results, shape)}
    medians = {name: float(results.row(name, shape)["median_us"]) for name in profiles}
    near = {name: profile for name, profile in profiles.items() if medians[name] <= FAR * floor_us}
    found = {name: beyond_us(profile, medians[name], floor_us) for name, profile in near.items()}
    totals: Counter[str] = Counter()
    for parts in found.values():
        totals.update({what: us for what, us in parts.items() if what != IDLE})
    named = [IDLE, *(what for what, _ in totals.most_common(NAMED_WAITS))]
    rows = {}
    for name, parts in found.items():
        shown = {what: parts.get(what, 0.0) for what in named}
        rows[name] = medians[name], shown | {"other waits": sum(parts.values()) - sum(shown.values())}
    return Distances(floor_us, rows)


def steps(results: Results) -> list[Step]:
    """The rungs that were counted together with the rung before."""
    profiles = {profile.implementation: profile for profile in of(results)}
    found = []
    for rung in results.run.manifest["ladder"]:
        before, after = (profiles.get(f"kernel.{name}") for name in (rung["after"], rung["name"]))
        if before and after:
            change = {
                what: after.cycles.get(what, 0.0) - before.cycles.get(what, 0.0)
                for what in {**before.cycles, **after.cycles}
            }
            changes = sorted(change.items(), key=lambda each: each[1])
            found.append(Step(rung["name"], rung["after"], before.total(CYCLES), after.total(CYCLES), changes))
    return found


def _cycles(launch: pd.Series) -> dict[str, float]:
    elapsed, active = launch[CYCLES], float(launch.get(metrics.CYCLES_ACTIVE, np.nan))
    issued = active * float(launch.get(metrics.ISSUED, np.nan)) / 100
    warps = {title: float(launch.get(metrics.stalled(reason), np.nan)) for reason, title in metrics.WAITS.items()}
    counted = {title: amount for title, amount in warps.items() if amount > 0}
    everything = sum(counted.values())
    waits = {title: (active - issued) * amount / everything for title, amount in counted.items()}
    return {ISSUED: issued, **waits, IDLE: max(0.0, elapsed - active)}
