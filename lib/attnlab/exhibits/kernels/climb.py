"""The hand-written kernels of a run: their errors, their resources, and the speed of each rung of the ladder.

For a run without kernels, `overview` says so and everything else shows nothing.
"""

from typing import Any

import matplotlib.pyplot as plt
import pandas as pd

from attnlab.exhibits import cells, decisions, formats, style
from attnlab.exhibits.catalogue import exhibit, target
from attnlab.exhibits.cells import whole
from attnlab.exhibits.display import Figure, Group, Prose, Table
from attnlab.exhibits.formats import CI
from attnlab.infer.lookup import NotMeasured, median_of
from attnlab.infer.results import Results, absence
from attnlab.infer.rungs import Rung, has_kernels, instances, resources, rungs
from attnlab.infer.rungs import stale as stale_kernels
from attnlab.infer.stats import Verdict
from attnlab.runs.schema import FAILED
from attnlab.study.implementations import SDPA
from attnlab.study.ladder import BEST
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing

RIVALS = ("sdpa.flash", "sdpa.cudnn")
"""The backends of SDPA that every rung is compared with."""


@exhibit("kernels.overview")
def overview(results: Results) -> Prose:
    """The rungs in the order of the ladder, and whether the gate refused them."""
    listed = [
        f"{number}. `{rung.name}`, {rung.title} (`kernels/{rung.stated['source']}`){_refused(results, rung)}"
        for number, rung in enumerate(rungs(results), 1)
    ]
    return Prose("\n".join(listed))


@exhibit("kernels.stale", where=has_kernels)
def stale(results: Results) -> Prose | None:
    """The kernels whose source has changed since the run, so that its evidence is of an older source."""
    names = [f"`{name}`" for name in stale_kernels(results.run)]
    if not names:
        return None
    have, are, them = ("has", "is", "it") if len(names) == 1 else ("have", "are", "them")
    return Prose(
        f"**Stale.** {formats.listing(names)} {have} changed since this run was recorded, or {are} gone: its results "
        f"for {them} are no evidence for the current source."
    )


@exhibit("kernels.correctness", where=has_kernels)
def correctness(results: Results) -> Table:
    """Errors against float64 by implementation and kind of input, beside the framework's own errors."""
    checks = results.run.checks
    groups = dict(iter(checks.groupby(["implementation", "inputs"], sort=False)))
    order = [(name, kind) for name in _in_climbing_order(results) for kind in dict.fromkeys(checks["inputs"])]
    rows = [
        {
            "implementation": name,
            "inputs": kind,
            "passed": f"{int(group['passed'].sum())} of {len(group)}",
            "largest error": formats.number(group["max_error"].max()),
            "framework's": formats.number(group["framework_max_error"].max()),
            "mean error": formats.number(group["mean_error"].mean()),
            "framework's ": formats.number(group["framework_mean_error"].mean()),
        }
        for name, kind in order
        if (group := groups.get((name, kind))) is not None
    ]
    note = (
        "Absolute errors against the float64 oracle over all checks of an implementation, before and after timing. "
        "Beside them are those of the framework's own composition in the dtype of the inputs, at the same shapes."
    )
    return Table(pd.DataFrame(rows), "Errors of the kernels and of SDPA's backends.", note)


@exhibit("kernels.compiled", where=has_kernels, shape=target)
def compiled(results: Results, shape: Shape) -> Table | Group:
    """Registers, spills, shared memory, threads and occupancy of every rung at a shape, and which instances ran."""
    rows = []
    for rung in rungs(results):
        row: dict[str, Any] = {"rung": rung.name}
        if used := resources(results, rung, shape):
            row |= {
                "for": used.row["architecture"],
                "threads": str(used.threads),
                "registers": str(used.registers),
                "local (B)": str(used.local_bytes),
                "shared, static (KiB)": formats.kibibytes(used.static_shared_bytes),
                "shared, dynamic (KiB)": formats.kibibytes(used.dynamic_shared_bytes),
                "CTAs per SM": str(used.ctas_per_sm),
                "occupancy": formats.percent(used.occupancy_pct),
                "limited by": formats.listing(used.limits) if used.limits else None,
            }
        rows.append(row)
    if not any("threads" in row for row in rows):
        raise NotMeasured(f"No kernel was launched at {shape.label}")
    note = (
        "Registers and local memory, which the compiler spills to, are per thread; shared memory is per CTA. CTAs per "
        "SM comes from the driver; occupancy is their warps over the warps that a multiprocessor can hold. "
        f"{without(results, shape)}"
    )
    table = Table(whole(rows), f"Resources of the kernels at {shape.label}.", " ".join(note.split()))
    ran = instances(results)
    return Group({"resources": table, "instances": _instances(ran)}) if ran else table


def _instances(ran: dict[str, dict[str, list[Shape]]]) -> Table:
    rows = [
        {"implementation": name, "instance": function, "ran at": _sizes(shapes)}
        for name, functions in ran.items()
        for function, shapes in functions.items()
    ]
    note = "An instance is named by its template arguments: first the dtype, the head dimension and the mask."
    return Table(pd.DataFrame(rows), "Which instance ran where, of kernels that have several for a shape.", note)


def _sizes(shapes: list[Shape]) -> str:
    """The sizes of shapes of one head_dim, with the lengths of one batch and number of heads together."""
    lengths: dict[tuple[int, int], list[int]] = {}
    for shape in shapes:
        lengths.setdefault((shape.batch, shape.heads), []).append(shape.seq_len)
    return "; ".join(
        f"B={batch} H={heads} S={', '.join(map(str, sorted(found)))}" for (batch, heads), found in lengths.items()
    )


@exhibit("kernels.climb", where=has_kernels, shape=target)
def climb(results: Results, shape: Shape) -> Figure:
    """The speed of light of each rung and each backend of SDPA at a shape."""
    at, kernels = results.at(shape), [rung.name for rung in rungs(results)]
    names = [name for name in _in_climbing_order(results) if name != BEST]  # it is one of the rungs at each shape
    if at.empty or at["speed_of_light_pct"].isna().all():
        raise NotMeasured(f"Nothing has a speed of light at {shape.label}")
    places = [place + 0.6 * (name not in kernels) for place, name in enumerate(names)]
    drawing, axes = plt.subplots(figsize=(7.2, 0.8 + 0.3 * len(names)))
    reach = float((100 * at["floor_us"] / at["low_us"]).max())
    for place, name in zip(places, names, strict=True):
        if name in at.index:
            row = at.loc[name]
            light, ends = row["speed_of_light_pct"], [100 * row["floor_us"] / row[end] for end in ("high_us", "low_us")]
            axes.barh(place, light, height=0.62, color=style.look(name)["color"])
            axes.hlines(place, *ends, color="#222222", linewidth=1.4)
            axes.text(ends[1] + 0.012 * reach, place, f"{formats.number(row['median_us'])} µs", va="center", fontsize=8)
        else:
            why = formats.clause(absence(results, name, shape), 70)
            axes.text(0.012 * reach, place, why, va="center", fontsize=8, color="#666666", style="italic")
    rivals = [name for name in names if name in SDPA and name in at.index]
    if rivals:
        best = min(rivals, key=lambda name: at.loc[name, "median_us"])
        axes.axvline(at.loc[best, "speed_of_light_pct"], color="#888888", linewidth=1, linestyle=":", zorder=0)
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set(xlabel="speed of light (%)", xlim=(0, 1.16 * reach))
    said = _nearest_to_light(at, kernels, rivals)
    return Figure(
        drawing,
        f"{said} Floor by the measured ceilings over the median, with its {CI} "
        f"interval, and the median itself, at {shape.label}, {results.headline.words}. SDPA's backends are below; "
        "the dotted line is the fastest of them.".strip(),
        "Horizontal bars, one for each rung of the ladder and each backend of SDPA: percent of the speed of light, "
        f"labelled with the latency in microseconds. {said}",
    )


def _nearest_to_light(at: pd.DataFrame, kernels: list[str], rivals: list[str]) -> str:
    """How near the fastest rung and the fastest backend come to the speed of light, in a sentence."""
    parts = []
    for what, names in (("hand-written", kernels), ("of SDPA", rivals)):
        if timed := [name for name in names if name in at.index]:
            best = at.loc[timed, "speed_of_light_pct"].idxmax()
            parts.append(f"{formats.percent(at.loc[best, 'speed_of_light_pct'])} (`{best}`, {what})")
    return f"The fastest reach {formats.listing(parts)} of the speed of light." if parts else ""


@exhibit("kernels.ladder", where=has_kernels, shape=target)
def ladder(results: Results, shape: Shape) -> Table:
    """Every rung at a shape: latency, speedup over the rung before it and over SDPA, speed of light."""
    at = results.at(shape)
    rivals = [name for name in RIVALS if name in at.index]
    rows = []
    for rung in rungs(results):
        row: dict[str, Any] = {"rung": rung.name, "what it changes": rung.title}
        row |= _rates(results, rung.name, shape)
        row["over the rung before"] = _speedup(results, rung.after, rung.name, shape)
        row |= {f"over {rival}": _speedup(results, rival, rung.name, shape) for rival in rivals}
        rows.append(row)
    for name in _backends(results):
        if name in at.index:
            row = {"rung": name, "what it changes": None} | _rates(results, name, shape)
            rows.append(row | {f"over {rival}": _speedup(results, rival, name, shape) for rival in rivals})
    note = (
        f"Speedups are ratios of medians from paired rounds, with {CI} intervals; above 1 the row is faster. "
        f"Light is the floor over the median. {cells.explanations(at.to_dict('records'))} {without(results, shape)}"
    )
    caption = f"The ladder at {shape.label}, and SDPA's backends; {results.headline.words}."
    return Table(whole(rows), caption, " ".join(note.split()))


@exhibit("kernels.standing", where=has_kernels)
def standing(results: Results) -> Prose:
    """The fastest rung against SDPA's fastest backend at the target."""
    return Prose(standing_sentence(results))


def standing_sentence(results: Results) -> str:
    """The same as a sentence; empty for a run without kernels."""
    shape = results.study.target_shape
    at, names = results.at(shape), [rung.name for rung in rungs(results)] if has_kernels(results) else []
    timed, rivals = ([name for name in found if name in at.index] for found in (names, _named_backends(results)))
    if not timed:
        words = f"Not one of the {len(names)} hand-written kernels" if len(names) > 1 else "The hand-written kernel"
        negated = "has a latency" if len(names) > 1 else "has no latency"
        return f"{words} {negated} at the target." if names else ""
    best = min(timed, key=lambda name: at.loc[name, "median_us"])
    which = f"The fastest of {len(timed)} hand-written kernels," if len(timed) > 1 else "The hand-written kernel"
    comma = "," if len(timed) > 1 else ""
    taken = f"{which} `{best}`{comma} takes {formats.interval(median_of(at.loc[best]))} µs at the target"
    if not rivals:
        return f"{taken}."
    rival = min(rivals, key=lambda name: at.loc[name, "median_us"])
    judged = decisions.against(f"`{rival}`, SDPA's fastest backend", _over(results, rival, best, shape))
    return f"{taken}. {judged}"


def _over(results: Results, rival: str, rung: str, shape: Shape) -> dict[Timing, Verdict]:
    """The verdict on a rung against a backend of SDPA under each timing; the rungs timed there are one family."""
    found = {}
    for timing in results.timings:
        there = results.at(shape, timing).index
        if rival in there and rung in there:
            timed = [each.name for each in rungs(results) if each.name in there]
            judged = results.compare_pairs([(rival, name) for name in timed], shape, timing)
            found[timing] = judged[timed.index(rung)]
    return found


def _named_backends(results: Results) -> list[str]:
    """SDPA's backends without `sdpa.auto`, which calls one of the others, unless there is no other."""
    return [name for name in _backends(results) if name != "sdpa.auto"] or _backends(results)


@exhibit("kernels.geometry", where=has_kernels, shape=target)
def geometry(results: Results, shape: Shape) -> Table:
    """How each rung's grid fills the device at a shape."""
    rows = []
    for rung in rungs(results):
        if used := resources(results, rung, shape):
            rows.append(
                {
                    "rung": f"{rung.name}{' (persistent)' if used.persistent else ''}",
                    "work items": f"{used.items:,}",
                    "CTAs": f"{used.ctas:,}",
                    "CTAs per SM": used.ctas_per_sm,
                    "at once": f"{used.slots:,}",
                    "waves": formats.number(used.waves),
                    "last wave": formats.percent(used.last_wave_pct),
                    "SMs with work": formats.percent(used.busy_pct),
                }
            )
    unequal = " Under the causal mask, work items differ in size; they are counted as equal here."
    note = (
        "A work item is a tile of query rows of one head. A wave is as many work items as the device holds at once; "
        "last wave is how full the last one is. A persistent kernel launches no more CTAs than fit, and each takes "
        f"several items.{unequal if shape.causal else ''} {without(results, shape)}"
    )
    return Table(pd.DataFrame(rows), f"Launch geometry at {shape.label}.", " ".join(note.split()))


def _speedup(results: Results, baseline: str, candidate: str, shape: Shape) -> str | None:
    there = results.at(shape).index
    if baseline == candidate or baseline not in there or candidate not in there:
        return None
    return formats.stacked(results.speedup(candidate, shape, baseline=baseline))


def _rates(results: Results, name: str, shape: Shape) -> dict[str, str | None]:
    at = results.at(shape)
    if name not in at.index:
        return dict.fromkeys((f"median (µs) [{CI}]", "TFLOP/s", "light"))
    row = at.loc[name]
    return {
        f"median (µs) [{CI}]": formats.stacked(median_of(row)),
        "TFLOP/s": formats.number(row["throughput_tflops"]) + cells.sign(row["throughput_mark"]),
        "light": cells.light(row),
    }


def _backends(results: Results) -> list[str]:
    return [name for name in results.study.implementations if name in SDPA]


def _in_climbing_order(results: Results) -> list[str]:
    """The rungs, then the backends of SDPA, then what else the study names."""
    first = [*(rung.name for rung in rungs(results)), *_backends(results)]
    return [*first, *(name for name in results.study.implementations if name not in first)]


def without(results: Results, shape: Shape) -> str:
    """Sentences on the rungs that have no latency at a shape, each with the reason."""
    return cells.without(results, [rung.name for rung in rungs(results)], shape)


def _refused(results: Results, rung: Rung) -> str:
    """The number of shapes at which the gate refused a rung, in words."""
    cases = results.run.cases
    failed = cases[(cases["implementation"] == rung.name) & (cases["status"] == FAILED)]
    shapes = len(failed[list(Shape.AXES)].drop_duplicates())
    return f": **refused by the gate at {formats.count(shapes, 'shape')}**" if shapes else ""
