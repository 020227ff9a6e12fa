"""Why an implementation takes as long as it does, by Nsight Compute's counters of one call at the target.

The same cycles are read in two ways. A **unit** (a pipe, the issue slots, a level of memory) is used at a share of its
peak; that share of the time remains whatever else is improved. In each of the **schedulers' cycles**, an instruction is
issued, or the multiprocessor has no work, or every warp waits. Cycles in which all warps wait are divided among the
reasons, in proportion to the warps that wait for each. That is an attribution, since a warp may also wait while another
issues.

The rule for the bottlenecks is that of Nsight Compute's guided analysis: it calls a kernel bound by latency where every
unit stays below 60 % of its peak (section "GPU Speed Of Light Throughput"), and considers the reasons for which warps
wait only then (section "Warp State Statistics"). So units from `SATURATED_PCT` of their peak come first, the busiest
first; then the largest losses: reasons to wait, multiprocessors without work, bank conflicts.
"""

from collections import Counter

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Figure, Group, Prose, Table
from attnlab.exhibits.style import bar_columns
from attnlab.infer.counters import (
    IDLE,
    ISSUED,
    SATURATED_PCT,
    TOP,
    UNITS,
    Profile,
    beyond_us,
    count,
    counted_shapes,
    has_counters,
    of,
)
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Results
from attnlab.runs import metrics
from attnlab.runs.metrics import CYCLES
from attnlab.study.shapes import Shape

NAME = 24
"""The length of a kernel's name in a table of many columns."""
HEADINGS = {"exponentials (XU)": "exp.\n(XU)", "load/store (LSU)": "load/\nstore", "L1 and shared": "L1,\nshared"}
LIMITS = {"registers": "registers", "shared_mem": "shared", "warps": "warps", "blocks": "CTAs"}
SHOWN_WAITS = 5
FAR = 4


@exhibit("profile.how")
def how(results: Results) -> Prose:
    """How the counters were taken and what they are not used for, or why there are none."""
    profiles, taken = of(results), results.run.manifest["profile"]
    lacking = f" Without counters: {taken['why']}." if taken["why"] else ""
    return Prose(
        f"The counters are of one call at the target, {results.study.target_shape.label}, after a warm-up, of "
        f"{formats.count(len(profiles), 'implementation')}, by {taken['tool']}. It runs each kernel several times, "
        "some counters at a time, at the card's clock of the moment and with the caches as the previous run left them. "
        f"Its durations are shown beside its other counters, and never compared with samples.{lacking}"
    )


@exhibit("profile.launches", where=has_counters)
def launches(results: Results) -> Table:
    """The longest launch of each call: its size and its occupancy."""
    rows = []
    for profile in of(results):
        launch = profile.longest
        rows.append(
            {
                "implementation": profile.implementation,
                "longest kernel": formats.shortened(formats.kernel(launch["function"]), NAME),
                "launches": len(profile.launches),
                "its share": formats.percent(profile.longest_share_pct),
                "CTAs": _whole(launch, metrics.CTAS),
                "threads": _whole(launch, metrics.THREADS),
                "registers": _whole(launch, metrics.REGISTERS),
                "shared (KiB)": formats.number(_shared_bytes(launch) / 2**10),
                "warps": formats.percent(count(launch, metrics.WARPS)),
                "at most": formats.percent(count(launch, metrics.WARPS_AT_MOST)),
                "limited by": _limits(launch),
            }
        )
    note = (
        "Its share: of the call's cycles. Threads and shared memory are per CTA, registers per thread. Warps: the "
        "achieved occupancy, warps on a multiprocessor over those that it can hold; at most: the highest occupancy of "
        "this launch; limited by: the resource that sets it."
    )
    return Table(pd.DataFrame(rows), "The longest launch of each call.", note)


@exhibit("profile.traffic", where=has_counters)
def traffic(results: Results) -> Table:
    """Traffic of each call: DRAM, L2, shared memory."""
    compulsory = results.study.target_shape.bytes
    rows = []
    for profile in of(results):
        dram = profile.total(metrics.DRAM_READ) + profile.total(metrics.DRAM_WRITTEN)
        rows.append(
            {
                "implementation": profile.implementation,
                "µs in ncu": formats.number(profile.total(metrics.DURATION) / 1e3),
                "instructions (M)": formats.number(profile.total(metrics.INSTRUCTIONS) / 1e6),
                "DRAM (MB)": formats.number(dram / 1e6),
                "of compulsory": formats.percent(100 * dram / compulsory),
                "L2 to L1 (MB)": formats.number(profile.total(metrics.L2_TO_L1) / 1e6),
                "L2 hits": formats.percent(profile.mean(metrics.L2_HITS)),
                "L1 hits": formats.percent(profile.mean(metrics.L1_HITS)),
                "bank conflicts": formats.percent(profile.conflicts_pct),
            }
        )
    note = (
        "For the whole call. Below 100 % of the compulsory bytes, the L2 still held data of the previous call, or had "
        "not yet written everything back. Bank conflicts: repeats over accesses to shared memory, without copies and "
        "matrix products that bypass the load and store unit."
    )
    return Table(pd.DataFrame(rows), "The traffic of each call, by the counters.", note)


@exhibit("profile.values", where=has_counters)
def instructions(results: Results) -> Table:
    """Instructions of a call on each kind of values at the target: who computes again because of them."""
    target = results.study.target_shape
    shapes = [shape for shape in counted_shapes(results) if shape.plain == target.plain]
    if len(shapes) < 2:
        raise NotMeasured("Calls were counted on a single kind of values")
    counted = {
        shape.values: {each.implementation: each.total(metrics.INSTRUCTIONS) / 1e6 for each in of(results, shape)}
        for shape in shapes
    }
    first = counted[target.values]
    rows = [
        {"implementation": name}
        | {kind: formats.number(found.get(name, np.nan)) for kind, found in counted.items()}
        | {"at most": formats.times(max(found.get(name, 0.0) for found in counted.values()) / count)}
        for name, count in first.items()
    ]
    note = (
        f"Millions of instructions of a call at {target.label}, a column for each kind of values that was counted; at "
        f"most: over those on {target.values} values. A kernel that computes a tile again, or corrects what it has, "
        "executes more where it does so."
    )
    return Table(pd.DataFrame(rows), "Instructions of a call, by the values.", note)


@exhibit("profile.bottlenecks", where=has_counters)
def bottlenecks(results: Results) -> Table:
    """The three largest bottlenecks of each implementation, with the counters that rank them."""
    rows = []
    for profile in of(results):
        found = [f"{b.title}: {formats.percent(b.share_pct)} of {b.of}" for b in profile.bottlenecks]
        places = dict(zip(("first", "second", "third"), [*found, *[None] * TOP], strict=False))
        rows.append({"implementation": profile.implementation, **places})
    note = (
        f"Units from {SATURATED_PCT} % of their peak, the busiest first; then the reasons that cost the most cycles. "
        "In these cycles every warp of a scheduler waited; they are divided by what the warps waited for."
    )
    return Table(pd.DataFrame(rows), "The first three bottlenecks, ranked by the counters.", note)


@exhibit("profile.beyond", where=has_counters)
def beyond(results: Results) -> Group:
    """How far each implementation is from its floor, as a sum of named parts, at each shape that was counted."""
    return Group({str(number): _beyond(results, shape) for number, shape in enumerate(counted_shapes(results))})


def _beyond(results: Results, shape: Shape) -> Table:
    floor_us = float(results.row(results.study.baseline, shape)["floor_us"])
    found: dict[str, tuple[float, dict[str, float]]] = {}
    for profile in of(results, shape):
        latency_us = float(results.row(profile.implementation, shape)["median_us"])
        if latency_us <= FAR * floor_us:
            found[profile.implementation] = latency_us, beyond_us(profile, latency_us, floor_us)
    totals: Counter[str] = Counter()
    for _, parts in found.values():
        totals.update({what: us for what, us in parts.items() if what != IDLE})
    shown = [IDLE, *(what for what, _ in totals.most_common(SHOWN_WAITS))]
    rows = []
    for name, (latency_us, parts) in found.items():
        named = {what: parts.get(what, 0.0) for what in shown}
        others = sum(parts.values()) - sum(named.values())
        cells = {"median": latency_us} | named | {"other waits": others}
        rows.append({"implementation": name} | {what: formats.number(us) for what, us in cells.items()})
    note = (
        "The median is the floor and all columns to its right: first the time in which a multiprocessor had no work, "
        "then the rest by what warps waited for, in proportion to the counters' cycles in which every warp of a "
        f"scheduler waited. Without what takes more than {FAR} times its floor."
    )
    floor = formats.number(floor_us)
    caption = f"The distance to the floor of {floor} µs at {shape.label}, in µs; {results.headline.words}."
    return Table(pd.DataFrame(rows), caption, note)


@exhibit("profile.steps", where=has_counters)
def steps(results: Results) -> Table:
    """Where each rung saves cycles compared with the rung before, and where it adds some."""
    profiles = {profile.implementation: profile for profile in of(results)}
    rows = []
    for rung in results.run.manifest["ladder"]:
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
        "Cycles of the call, each counted once: an instruction issued, no work on the multiprocessor, or the reason "
        "for which warps waited."
    )
    return Table(pd.DataFrame(rows), "Where each rung of the ladder saves and adds cycles.", note)


@exhibit("profile.findings", where=has_counters)
def findings(results: Results) -> Prose:
    """The bottleneck of each implementation, in sentences."""
    busy: dict[str, list[str]] = {}
    waiting: dict[str, list[str]] = {}
    for profile in of(results):
        for first in profile.bottlenecks[:1]:
            kind = busy if first.title in UNITS else waiting
            kind.setdefault(first.title, []).append(f"`{profile.implementation}` ({formats.percent(first.share_pct)})")
    sentences = []
    if busy:
        found = "; ".join(f"{unit} in {formats.listing(names)}" for unit, names in busy.items())
        sentences.append(f"The busiest unit, at {SATURATED_PCT} % of its peak or more: {found}.")
    if waiting:
        found = "; ".join(f"{what} in {formats.listing(names)}" for what, names in waiting.items())
        sentences.append(f"Where every unit stays below that, the largest loss, in % of the cycles: {found}.")
    return Prose(" ".join(sentences) or "*The counters show no bottleneck.*")


@exhibit("profile.units", where=has_counters)
def units(results: Results) -> Figure:
    """The use of each unit in percent of its peak, as a map."""
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
    said = _busiest(profiles)
    return Figure(
        drawing,
        f"{said} The use of each unit in % of its peak rate over the whole call, by Nsight Compute's "
        f"counters; in bold from {SATURATED_PCT} %. For L1, L2 and DRAM it is the use of their busiest part.",
        "Map with a row for each implementation and a column for each unit of the multiprocessor and memory; the cells "
        f"hold the percentage of the unit's peak. {said}",
    )


def _busiest(profiles: list[Profile]) -> str:
    """The unit that is used most in any implementation, in a sentence."""
    shares = [
        (share, unit, profile.implementation)
        for profile in profiles
        for unit, share in profile.units_pct.items()
        if not np.isnan(share)
    ]
    if not shares:
        return "The counters name no unit."
    share, unit, name = max(shares)
    return f"The busiest unit is that of `{name}` for {unit}, at {formats.percent(share)} of its peak."


@exhibit("profile.schedulers", where=has_counters)
def schedulers(results: Results) -> Figure:
    """Where the schedulers' cycles went, a column of bars for each use."""
    profiles = of(results)
    waits = _greatest_waits(profiles)
    parts = [_parts_pct(profile, waits) for profile in profiles]
    columns = {what: [shares[what] for shares in parts] for what in parts[0]}
    drawing = bar_columns([profile.implementation for profile in profiles], columns, "schedulers' cycles (%)")
    said = _longest_wait(profiles, waits)
    return Figure(
        drawing,
        f"{said} Where the schedulers' cycles went. In cycles without an instruction every warp waited; they are "
        "divided by what the warps waited for.",
        "Bars with a row for each implementation and a column for each use of cycles: an instruction issued, the "
        f"reasons for which warps waited, and no work. {said}",
    )


def _longest_wait(profiles: list[Profile], waits: list[str]) -> str:
    """The reason that costs any implementation the most, in a sentence; empty where nothing waited."""
    if not waits:
        return ""
    most = max(profiles, key=lambda profile: profile.cycles_pct.get(waits[0], 0.0))
    share = formats.percent(most.cycles_pct.get(waits[0], 0.0))
    return f"The costliest wait is that of `{most.implementation}` for {waits[0]}: {share} of its schedulers' cycles."


def _greatest_waits(profiles: list[Profile]) -> list[str]:
    """The reasons to wait that have their own colour: those that cost any implementation the most."""
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


def _change(what: str, cycles: float) -> str:
    return f"{what}: {'+' if cycles > 0 else ''}{formats.number(cycles)}"


def _limits(launch: pd.Series) -> str:
    """The resources that limit the CTAs on a multiprocessor."""
    ctas = {title: count(launch, metrics.CTA_LIMITS[limit]) for limit, title in LIMITS.items()}
    least = min((amount for amount in ctas.values() if not np.isnan(amount)), default=np.nan)
    return formats.listing([title for title, amount in ctas.items() if amount == least])


def _shared_bytes(launch: pd.Series) -> float:
    return count(launch, metrics.SHARED_DYNAMIC) + count(launch, metrics.SHARED_STATIC)


def _whole(launch: pd.Series, metric: str) -> str:
    amount = count(launch, metric)
    return formats.number(amount) if np.isnan(amount) else f"{amount:,.0f}"


def _without_frame(axes: Axes) -> None:
    axes.grid(False)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
