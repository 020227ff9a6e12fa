"""The hand-written kernels of a run: how far each rung of the ladder gets. A run without kernels shows nothing."""

from typing import Any

import matplotlib.pyplot as plt
import pandas as pd

from attnlab.exhibits import cells, formats, quantities, style
from attnlab.exhibits.catalogue import exhibit, target
from attnlab.exhibits.display import Figure, Prose, Table
from attnlab.exhibits.formats import CI
from attnlab.exhibits.words import say
from attnlab.infer.kernels import steps
from attnlab.infer.kernels.rungs import has_kernels, rungs
from attnlab.infer.kernels.rungs import stale as stale_kernels
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Results, absence
from attnlab.study.implementations import SDPA
from attnlab.study.ladder import BEST
from attnlab.study.shapes import Shape

RIVALS = ("sdpa.flash", "sdpa.cudnn")
"""The backends of SDPA that every rung is compared with."""


@exhibit("kernels.stale")
def stale(results: Results) -> Prose | None:
    """The kernels whose source has changed since the run, so that its evidence is of an older source."""
    changed = stale_kernels(results.run)
    return Prose(say("kernels.stale", changes=cells.changes(changed))) if changed else None


@exhibit("kernels.climb", where=has_kernels, shape=target)
def climb(results: Results, shape: Shape) -> Figure:
    """The speed of light of each rung and each backend of SDPA at a shape."""
    at, kernels, backends = results.at(shape), [rung.implementation for rung in rungs(results)], _backends(results)
    others = [name for name in results.study.implementations if name not in (*kernels, *backends)]
    names = [name for name in (*kernels, *backends, *others) if name != BEST]  # it is one of the rungs at each shape
    if at.empty or at["speed_of_light_pct"].isna().all():
        raise NotMeasured(f"Nothing has a speed of light at {shape.label}")
    places = [place + 0.6 * (name not in kernels) for place, name in enumerate(names)]
    drawing, axes = plt.subplots(figsize=(6.5, 0.8 + 0.2 * len(names)))
    reach = float((100 * at["floor_us"] / at["low_us"]).max())
    for place, name in zip(places, names, strict=True):
        if name in at.index:
            row = at.loc[name]
            light, ends = row["speed_of_light_pct"], [100 * row["floor_us"] / row[end] for end in ("high_us", "low_us")]
            axes.barh(place, light, height=0.62, color=style.look(name)["color"])
            axes.hlines(place, *ends, color="#222222", linewidth=1.4)
            axes.text(ends[1] + 0.012 * reach, place, f"{formats.number(row['median_us'])} µs", va="center", fontsize=8)
        else:
            why = formats.clause(absence(results, name, shape), 84)
            axes.text(
                0.012 * reach, place, why, va="center", fontsize=8, color="#666666", style="italic", parse_math=False
            )
    best = {"hand-written": _nearest(at, kernels), "of SDPA": _nearest(at, backends)}
    if (rival := best["of SDPA"]) is not None:
        axes.axvline(rival["speed_of_light_pct"], color="#888888", linewidth=1, linestyle=":", zorder=0)
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set(xlabel="speed of light (%)", xlim=(0, 1.16 * reach))
    said = say("kernels.nearest", best={what: row for what, row in best.items() if row is not None})
    return Figure(
        drawing,
        f"{said} Floor by the measured ceilings over the median, with its {CI} "
        f"interval, and the median itself, at {shape.label}, {results.headline.words}. SDPA's backends and all else "
        "are below; the dotted line is the fastest backend.".strip(),
        "Horizontal bars, one for each rung of the ladder and each backend of SDPA: percent of the speed of light, "
        f"labelled with the latency in microseconds. {said}",
    )


def _nearest(at: pd.DataFrame, names: list[str]) -> pd.Series | None:
    """The row of those that is nearest to the speed of light; None where none was timed."""
    timed = [name for name in names if name in at.index]
    return at.loc[at.loc[timed, "speed_of_light_pct"].idxmax()] if timed else None


@exhibit("kernels.ladder", where=has_kernels, shape=target)
def ladder(results: Results, shape: Shape) -> Table:
    """Every rung at a shape: latency, speedup over the rung before it and over SDPA, speed of light."""
    rivals = [name for name in RIVALS if name in results.at(shape).index]
    of_rungs = {rung.implementation: rung for rung in rungs(results)}
    names = [*of_rungs, *(name for name in _backends(results) if name in results.at(shape).index)]
    rows = [
        {"rung": name, "what it changes": rung.title if rung else None}
        | _rates(results, name, shape)
        | {"over the rung before": _speedup(results, rung.before, name, shape) if rung else None}
        | {f"over {rival}": _speedup(results, rival, name, shape) for rival in rivals}
        for name in names
        for rung in [of_rungs.get(name)]
    ]
    note = (
        f"Speedups are ratios of medians from paired rounds, with {CI} intervals; above 1 the row is faster. "
        f"Speed of light is the floor over the median. {without(results, shape)}"
    )
    caption = f"The ladder at {shape.label}, and SDPA's backends; {results.headline.words}."
    return Table.of(rows, caption, note.strip())


def without(results: Results, shape: Shape) -> str:
    """Sentences on the rungs that have no latency at a shape, each with the reason."""
    return cells.without(results, [rung.implementation for rung in rungs(results)], shape)


def _rates(results: Results, name: str, shape: Shape) -> dict[str, Any]:
    names, at = ("median_us", "throughput_tflops", "speed_of_light_pct"), results.at(shape)
    return quantities.cells(at.loc[name], *names) if name in at.index else dict.fromkeys(names)


def _speedup(results: Results, baseline: str, candidate: str, shape: Shape) -> Any:
    there = results.at(shape).index
    if baseline == candidate or baseline not in there or candidate not in there:
        return None
    return results.speedup(candidate, shape, baseline=baseline)


def _backends(results: Results) -> list[str]:
    return [name for name in results.study.implementations if name in SDPA]


@exhibit("kernels.standing", where=has_kernels)
def standing(results: Results) -> Prose:
    """The fastest rung against SDPA's fastest backend at the target."""
    return Prose(standing_sentence(results))


def standing_sentence(results: Results) -> str:
    """Where the fastest rung stands at the target, in a sentence; empty for a run without kernels."""
    found = steps.standing(results)
    return say("kernels.standing", s=found) if found else ""
