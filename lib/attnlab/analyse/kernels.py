"""What a run says of the hand-written kernels: their errors, their resources, and how far each rung of the ladder gets.

Of a run without kernels `overview` says so, and everything else shows nothing.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from attnlab.analyse import figures, formats, staleness, tables
from attnlab.analyse.display import MISSING, Figure, Group, Prose, Table, telling
from attnlab.analyse.results import NotMeasured, Results, axis_of, median_of
from attnlab.analyse.rungs import Resources, Rung, absence, resources, rungs
from attnlab.implementations import SDPA
from attnlab.shapes import Shape
from attnlab.stats import EQUIVALENCE_MARGIN, Interval, Verdict, magnitude

P = ParamSpec("P")
T = TypeVar("T")

RIVALS = ("sdpa.flash", "sdpa.cudnn")
"""The backends of SDPA that every rung is set against."""


def of_kernels(show: Callable[Concatenate[Results, P], T]) -> Callable[Concatenate[Results, P], T | Prose | None]:
    """Show nothing of a run without kernels, and say what is missing of one that has some."""
    told = telling(show)

    @wraps(show)
    def shown(results: Results, /, *args: P.args, **kwargs: P.kwargs) -> T | Prose | None:
        return told(results, *args, **kwargs) if has_kernels(results) else None

    return shown


def has_kernels(results: Results) -> bool:
    """Whether any rung of the ladder is in the run's study."""
    try:
        return bool(rungs(results))
    except NotMeasured:
        return False


# ----------------------------------------------------------------------------------------------------- what there is


@telling
def overview(results: Results) -> Prose:
    """The rungs in the order of the climb, and whether the gate let them through."""
    listed = [
        f"{number}. `{rung.name}`, {rung.title} (`kernels/{rung.stated['source']}`){_refused(results, rung)}"
        for number, rung in enumerate(rungs(results), 1)
    ]
    return Prose("\n".join(listed))


@of_kernels
def stale(results: Results) -> Prose | None:
    """Which kernels have changed since the run, whose evidence is of a source that is no more."""
    names = [f"`{name}`" for name in staleness.stale(results.run)]
    if not names:
        return None
    have, are, them = ("has", "is", "it") if len(names) == 1 else ("have", "are", "them")
    return Prose(
        f"**Stale.** {formats.listing(names)} {have} changed since this run was recorded, or {are} gone: what it says "
        f"of {them} is no evidence for the kernels as they are now."
    )


@of_kernels
def correctness(results: Results) -> Table:
    """Errors against float64 by implementation and kind of input, the framework's own beside them."""
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
        "Absolute errors against the float64 oracle over all checks of an implementation, before timing and after it; "
        "beside them those of the framework's own composition in the dtype of the inputs, at the same shapes."
    )
    return Table(pd.DataFrame(rows), "kernel-errors", "Errors of the kernels and of SDPA's backends.", note)


@of_kernels
def compiled(results: Results, shape: Shape) -> Table:
    """Registers, spills, shared memory, threads and occupancy of every rung at a shape."""
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
        raise NotMeasured(f"No kernel was launched at {formats.shape(shape)}")
    note = (
        "Registers and local memory are a thread's, where the compiler spills to; shared memory is a CTA's. CTAs per "
        "SM is what the driver says; occupancy is their warps over those that a multiprocessor can hold. "
        f"{_without(results, shape)}"
    )
    return Table(
        whole(rows), "compiled", f"Resources of the kernels at {formats.shape(shape)}.", " ".join(note.split())
    )


# --------------------------------------------------------------------------------------------------------- the ladder


@of_kernels
@figures.styled
def climb(results: Results, shape: Shape) -> Figure:
    """How near each rung and each backend of SDPA comes to the floor at a shape."""
    at, kernels = results.at(shape), [rung.name for rung in rungs(results)]
    names = _in_climbing_order(results)
    if at.empty or at["speed_of_light_pct"].isna().all():
        raise NotMeasured(f"Nothing has a speed of light at {formats.shape(shape)}")
    places = [place + 0.6 * (name not in kernels) for place, name in enumerate(names)]
    drawing, axes = plt.subplots(figsize=(7.2, 0.8 + 0.3 * len(names)))
    reach = float((100 * at["floor_us"] / at["low_us"]).max())
    for place, name in zip(places, names, strict=True):
        if name in at.index:
            row = at.loc[name]
            light, ends = row["speed_of_light_pct"], [100 * row["floor_us"] / row[end] for end in ("high_us", "low_us")]
            axes.barh(place, light, height=0.62, color=figures.look(name)["color"])
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
    return Figure(
        drawing,
        "ladder",
        f"The ladder at {formats.shape(shape)}, {results.headline.words}: the floor by the measured ceilings over the "
        "median, with its 95 % interval, and the median itself. Below stand SDPA's backends; the dotted line is the "
        "fastest of them.",
        "Horizontal bars, one for each rung of the ladder and each backend of SDPA: percent of the speed of light, "
        "labelled with the latency in microseconds.",
    )


@of_kernels
def ladder(results: Results, shape: Shape) -> Table:
    """Every rung at a shape: latency, speedup over the rung before and over SDPA, share of the floor."""
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
        "Speedups are ratios of medians from rounds taken together, with 95 % intervals; above 1 the row is faster. "
        f"Light is the floor over the median. {tables.explanations(at.to_dict('records'))} {_without(results, shape)}"
    )
    caption = f"The ladder at {formats.shape(shape)}, and SDPA's backends; {results.headline.words}."
    return Table(whole(rows), "ladder", caption, " ".join(note.split()))


@of_kernels
def standing(results: Results) -> Prose:
    """Where the best rung stands against the best backend of SDPA at the target."""
    return Prose(standing_sentence(results))


def standing_sentence(results: Results) -> str:
    """The same as a sentence of a paragraph; empty for a run without kernels."""
    shape = results.study.target_shape
    at, names = results.at(shape), [rung.name for rung in rungs(results)] if has_kernels(results) else []
    timed, rivals = ([name for name in found if name in at.index] for found in (names, _named_backends(results)))
    if not timed:
        words = f"Not one of the {len(names)} hand-written kernels" if len(names) > 1 else "The hand-written kernel"
        negated = "has a latency" if len(names) > 1 else "has no latency"
        return f"{words} {negated} at the target." if names else ""
    best = min(timed, key=lambda name: at.loc[name, "median_us"])
    which = f"The fastest of {len(names)} hand-written kernels," if len(names) > 1 else "The hand-written kernel"
    comma = "," if len(names) > 1 else ""
    told = f"{which} `{best}`{comma} takes {formats.interval(median_of(at.loc[best]))} µs at the target"
    if not rivals:
        return f"{told}."
    rival = min(rivals, key=lambda name: at.loc[name, "median_us"])
    verdict = results.compare_pairs([(rival, name) for name in timed], shape)[timed.index(best)]
    return f"{told}: {_word(verdict)} `{rival}`, SDPA's fastest backend (speedup {formats.interval(verdict.speedup)})."


def _named_backends(results: Results) -> list[str]:
    """SDPA's backends without `sdpa.auto`, which is one of the others under another name, unless it is all there is."""
    return [name for name in _backends(results) if name != "sdpa.auto"] or _backends(results)


def _word(verdict: Verdict) -> str:
    return {
        "faster": "faster than" if verdict.claimable else "faster, by less than may be claimed, than",
        "slower": "slower than",
        "equivalent": "equivalent within 2 % to",
        "inconclusive": "not to be told from",
    }[verdict.decision]


@of_kernels
def along(results: Results) -> Group:
    """Every implementation along every sweep of lengths."""
    sweeps = [sweep for sweep in results.study.sweeps if axis_of(sweep) == "seq_len"]
    shown = [tables.backends(results, sweep) for sweep in sweeps]
    there = tuple(thing for thing in shown if isinstance(thing, Table))
    if not there:
        raise NotMeasured("Nothing has a latency along any sweep of lengths")
    return Group(there)


# ------------------------------------------------------------------------------------------------------- the ablation


@of_kernels
def ablation(results: Results, shape: Shape) -> Table:
    """Every rung against the one that it builds on, in a row each."""
    family = _family(results, shape)
    rows = []
    for rung in rungs(results):
        row: dict[str, Any] = {"rung": f"{rung.name}\nover {rung.stated['after']}" if rung.after else rung.name}
        row["expected"] = formats.times(rung.expected) if rung.after else None
        if verdict := family.get(rung.name):
            before, after = (results.row(name, shape) for name in (rung.after, rung.name))
            row["expected"] += f"\n{outcome(rung.expected, verdict.speedup)}"
            row |= {
                "speedup [95 %]": formats.stacked(verdict.speedup),
                "latency": formats.change(_latency_change(verdict)).replace(" [", "\n["),
                "intervals": "overlap" if median_of(before).overlaps(median_of(after)) else "apart",
                "Cliff's delta": f"{formats.signed(verdict.delta)}\n{magnitude(verdict.delta)}",
                "p (Holm)": formats.pvalue(verdict.pvalue),
                "verdict": verdict.decision + (",\nclaimable" if verdict.claimable else ""),
            }
            used = [_resources_of(results, name, shape) for name in (rung.after, rung.name)]
            row |= {title: _arrow(used, told) for title, told in _USES.items() if title in _BRIEF}
            row["light"] = _arrow([before, after], tables.light)
        rows.append(row)
    if not family:
        raise NotMeasured(f"No rung and the one before it both have a latency at {formats.shape(shape)}")
    note = (
        f"The p-value is Mann-Whitney's, adjusted by Holm over the {formats.count(len(family), 'comparison')} of this "
        "table. An expectation is *reached* where the interval of the speedup comes within 2 % of it. Cliff's delta is "
        "negligible below 0.147, small below 0.33, medium below 0.474 and large from there. "
        f"{_without(results, shape)}"
    )
    caption = f"Ablation: each rung against the one that it builds on, at {formats.shape(shape)}; "
    return Table(whole(rows), "ablation", f"{caption}{results.headline.words}.", " ".join(note.split()))


@of_kernels
def ablations(results: Results, shape: Shape) -> Group:
    """Every rung against the one that it builds on, a table each: what was expected, what came, and what it cost."""
    family = _family(results, shape)
    parts = [
        _card(results, rung, family[rung.name], shape) if rung.name in family else _no_card(results, rung, shape)
        for rung in rungs(results)
    ]
    return Group(tuple(parts))


@of_kernels
def lessons(results: Results, shape: Shape) -> Prose:
    """For every rung whether what was expected of it came true, a loss as plainly as a gain."""
    family = _family(results, shape)
    told = [
        f"- `{rung.name}`, {rung.title}. {_lesson(rung, family[rung.name])}"
        if rung.name in family
        else f"- `{rung.name}`, {rung.title}. {_no_lesson(results, rung, shape)}"
        for rung in rungs(results)
    ]
    return Prose("\n".join(told))


def _family(results: Results, shape: Shape) -> dict[str, Verdict]:
    """The verdict on each rung over the one before it, where both have a latency: one family of tests."""
    there = results.at(shape).index
    pairs = [(rung.after, rung.name) for rung in rungs(results) if rung.after in there and rung.name in there]
    verdicts = results.compare_pairs(pairs, shape)
    return {candidate: verdict for (_, candidate), verdict in zip(pairs, verdicts, strict=True)}


def _card(results: Results, rung: Rung, verdict: Verdict, shape: Shape) -> Table:
    before, after = (results.row(name, shape) for name in (rung.after, rung.name))
    overlap = "they overlap" if median_of(before).overlaps(median_of(after)) else "they are apart"
    gain = verdict.speedup
    throughput = Interval(*(100 * (ratio - 1) for ratio in (gain.estimate, gain.low, gain.high)))
    both: dict[str, tuple[Any, Any]] = {title: (told(before), told(after)) for title, told in _TELLS.items()}
    used = [_resources_of(results, name, shape) for name in (rung.after, rung.name)]
    spent = {title: tuple(u and told(u) for u in used) for title, told in _USES.items()} if any(used) else {}
    changes = {
        "median (µs)": formats.change(_latency_change(verdict)),
        "its 95 % interval": overlap,
        "throughput (TFLOP/s)": formats.change(throughput),
    }
    summary = {
        f"speedup, {formats.times(rung.expected)} expected": (None, None, formats.interval(gain)),
        "Cliff's delta": (None, None, f"{formats.signed(verdict.delta)}, {magnitude(verdict.delta)}"),
        "p (Holm)": (None, None, formats.pvalue(verdict.pvalue)),
    }
    rows: list[tuple[Any, ...]] = [(title, *pair, changes.get(title)) for title, pair in both.items()]
    rows += [(title, *cells) for title, cells in summary.items()]
    rows += [(title, *pair, None) for title, pair in spent.items()]
    frame = pd.DataFrame(rows, columns=["at the same shape", rung.after, rung.name, "change"])
    claim = " It may be claimed." if verdict.claimable else ""
    return Table(
        frame.astype(object),
        f"ablation-{rung.stated['name']}",
        f"`{rung.name}`, {rung.title}. *Hypothesis:* {rung.hypothesis}",
        f"**{verdict.decision.capitalize()}.**{claim} {_lesson(rung, verdict)}",
    )


def _no_card(results: Results, rung: Rung, shape: Shape) -> Prose:
    return Prose(f"`{rung.name}`, {rung.title}. *Hypothesis:* {rung.hypothesis} {_no_lesson(results, rung, shape)}")


def _lesson(rung: Rung, verdict: Verdict) -> str:
    """Whether the expected speedup came, in words and numbers."""
    measured, expected = f"{formats.interval(verdict.speedup)}", formats.times(rung.expected)
    came = outcome(rung.expected, verdict.speedup)
    if verdict.decision == "slower":
        return f"A loss: a speedup of {measured} over `{rung.after}`, where {expected} was expected."
    if verdict.decision == "inconclusive":
        return f"This run can't tell it from `{rung.after}`: {measured}, where {expected} was expected."
    if verdict.decision == "equivalent" and came != "reached":
        return f"No gain: {measured}, which is `{rung.after}`'s within 2 %, where {expected} was expected."
    share = 100 * (verdict.speedup.estimate - 1) / (rung.expected - 1) if rung.expected > 1 else np.nan
    of_gain = f", {formats.percent(share)} of that gain" if came == "missed" and share > 0 else ""
    return f"The expectation was {came}: {measured} over `{rung.after}`, where {expected} was expected{of_gain}."


def _no_lesson(results: Results, rung: Rung, shape: Shape) -> str:
    there = results.at(shape).index
    if rung.name not in there:
        return f"It has no latency here: {formats.clause(absence(results, rung.name, shape))}."
    if not rung.after:
        return "It is the first, and there is none before it."
    return (
        f"The rung before, `{rung.after}`, has no latency here: {formats.clause(absence(results, rung.after, shape))}."
    )


def outcome(expected: float, speedup: Interval) -> str:
    """Whether a speedup is what was expected, the same within 2 % being the same."""
    if speedup.low > expected * (1 + EQUIVALENCE_MARGIN):
        return "exceeded"
    return "missed" if speedup.high < expected / (1 + EQUIVALENCE_MARGIN) else "reached"


def _latency_change(verdict: Verdict) -> Interval:
    """How much less time it takes, in percent of the baseline's, negative for less."""
    gain = verdict.speedup
    return Interval(*(100 * (1 / ratio - 1) for ratio in (gain.estimate, gain.high, gain.low)))


def _ends(row: pd.Series) -> str:
    return formats.interval(median_of(row)).split(" ", 1)[-1]


_TELLS: dict[str, Callable[[pd.Series], str]] = {
    "median (µs)": lambda row: formats.number(row["median_us"], 4),
    "its 95 % interval": _ends,
    "throughput (TFLOP/s)": lambda row: formats.number(row["throughput_tflops"]),
    "speed of light": tables.light,
}
_USES: dict[str, Callable[[Resources], str]] = {
    "registers": lambda used: str(used.registers),
    "local memory (B)": lambda used: str(used.local_bytes),
    "shared memory (KiB)": lambda used: formats.kibibytes(used.shared_bytes),
    "threads": lambda used: str(used.threads),
    "CTAs": lambda used: str(used.ctas),
    "CTAs per SM": lambda used: str(used.ctas_per_sm),
    "occupancy": lambda used: formats.percent(used.occupancy_pct),
}
_BRIEF = ("registers", "shared memory (KiB)", "CTAs per SM")


# ------------------------------------------------------------------------------------------------------- the geometry


@of_kernels
def geometry(results: Results, shape: Shape) -> Table:
    """How each rung's grid fills the machine at a shape."""
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
    unequal = " Under the causal mask work items are unequal; they are counted as equal here." if shape.causal else ""
    note = (
        "A work item is a tile of query rows of one head. A wave is as many of them as the device holds at once; the "
        "last one is as full as told. A persistent kernel launches no more CTAs than fit, and each takes several "
        f"items.{unequal} {_without(results, shape)}"
    )
    return Table(pd.DataFrame(rows), "geometry", f"Launch geometry at {formats.shape(shape)}.", " ".join(note.split()))


def _speedup(results: Results, baseline: str, candidate: str, shape: Shape) -> str | None:
    there = results.at(shape).index
    if baseline == candidate or baseline not in there or candidate not in there:
        return None
    return formats.stacked(results.speedup(candidate, shape, baseline=baseline))


def _rates(results: Results, name: str, shape: Shape) -> dict[str, str | None]:
    at = results.at(shape)
    if name not in at.index:
        return dict.fromkeys(("median (µs) [95 %]", "TFLOP/s", "light"))
    row = at.loc[name]
    return {
        "median (µs) [95 %]": formats.stacked(median_of(row)),
        "TFLOP/s": formats.number(row["throughput_tflops"]) + tables.sign(row["throughput_mark"]),
        "light": tables.light(row),
    }


def _arrow(both: list[Any], told: Callable[[Any], str]) -> str | None:
    """What something was before and is after."""
    if not any(thing is not None for thing in both):
        return None
    return " →\n".join(MISSING if thing is None else told(thing) for thing in both)


def _resources_of(results: Results, name: str, shape: Shape) -> Resources | None:
    known = {rung.name: rung for rung in rungs(results)}
    return resources(results, known[name], shape) if name in known else None


def _backends(results: Results) -> list[str]:
    return [name for name in results.study.implementations if name in SDPA]


def _in_climbing_order(results: Results) -> list[str]:
    """The rungs, then the backends of SDPA, then what else the study names."""
    first = [*(rung.name for rung in rungs(results)), *_backends(results)]
    return [*first, *(name for name in results.study.implementations if name not in first)]


def _without(results: Results, shape: Shape) -> str:
    """Which rungs have no latency at a shape, and why."""
    return tables.without(results, [rung.name for rung in rungs(results)], shape)


def _refused(results: Results, rung: Rung) -> str:
    """At how many shapes the gate refused a rung."""
    cases = results.run.cases
    failed = cases[(cases["implementation"] == rung.name) & (cases["status"] == "failed")]
    shapes = len(failed[list(Shape.AXES)].drop_duplicates())
    return f": **refused by the gate at {formats.count(shapes, 'shape')}**" if shapes else ""


def whole(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """A frame of rows whose columns are those of the fullest, in its order."""
    columns = max(rows, key=len)
    return pd.DataFrame(rows, columns=[*columns, *(c for row in rows for c in row if c not in columns)]).astype(object)
