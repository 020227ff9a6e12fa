"""Each rung against the rung that it builds on."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from attnlab.exhibits import cells, decisions, formats
from attnlab.exhibits.catalogue import exhibit, target
from attnlab.exhibits.cells import whole
from attnlab.exhibits.display import MISSING, Group, Prose, Table
from attnlab.exhibits.formats import CI
from attnlab.exhibits.kernels.climb import without
from attnlab.infer.lookup import NotMeasured, median_of
from attnlab.infer.results import Results, absence
from attnlab.infer.rungs import Resources, Rung, has_kernels, resources, rungs
from attnlab.infer.stats import Interval, Verdict, magnitude
from attnlab.runs.rules import EQUIVALENCE_MARGIN
from attnlab.study.shapes import Shape


@exhibit("kernels.ablation", where=has_kernels, shape=target)
def ablation(results: Results, shape: Shape) -> Table:
    """Every rung against the rung that it builds on, a row each."""
    judged = family(results, shape)
    rows = []
    for rung in rungs(results):
        row: dict[str, Any] = {"rung": f"{rung.name}\nover {rung.stated['after']}" if rung.after else rung.name}
        row["expected"] = formats.times(rung.expected) if rung.after else None
        if verdict := judged.get(rung.name):
            before, after = (results.row(name, shape) for name in (rung.after, rung.name))
            row["expected"] += f"\n{outcome(rung.expected, verdict.speedup)}"
            row |= {
                f"speedup [{CI}]": formats.stacked(verdict.speedup),
                "latency": formats.change(_latency_change(verdict)).replace(" [", "\n["),
                "intervals": "overlap" if median_of(before).overlaps(median_of(after)) else "apart",
                "Cliff's delta": f"{formats.signed(verdict.delta)}\n{magnitude(verdict.delta)}",
                "p (Holm)": formats.pvalue(verdict.pvalue),
                "verdict": decisions.cell(verdict),
            }
            used = [_resources_of(results, name, shape) for name in (rung.after, rung.name)]
            row |= {title: _arrow(used, cell) for title, cell in _USES.items() if title in _BRIEF}
            row["light"] = _arrow([before, after], cells.light)
        rows.append(row)
    if not judged:
        raise NotMeasured(f"No rung and the one before it both have a latency at {shape.label}")
    note = (
        f"The p-value is Mann-Whitney's, adjusted by Holm over the {formats.count(len(judged), 'comparison')} of this "
        f"table. An expectation is *reached* where the interval of the speedup comes within {formats.MARGIN} of it. "
        "Cliff's delta is negligible below 0.147, small below 0.33, medium below 0.474 and large otherwise. "
        f"{without(results, shape)}"
    )
    caption = f"Ablation: each rung against the rung that it builds on, at {shape.label}; "
    return Table(whole(rows), f"{caption}{results.headline.words}.", " ".join(note.split()))


@exhibit("kernels.ablations", where=has_kernels, shape=target)
def ablations(results: Results, shape: Shape) -> Group:
    """Every rung against the rung that it builds on, a table each: expectation, result and resources."""
    judged = family(results, shape)
    return Group(
        {
            str(rung.stated["name"]): _card(results, rung, judged[rung.name], shape)
            if rung.name in judged
            else _no_card(results, rung, shape)
            for rung in rungs(results)
        }
    )


@exhibit("kernels.lessons", where=has_kernels, shape=target)
def lessons(results: Results, shape: Shape) -> Prose:
    """For every rung, whether its expected speedup was reached; losses are stated as plainly as gains."""
    judged = family(results, shape)
    lines = [
        f"- `{rung.name}`, {rung.title}. {_lesson(rung, judged[rung.name])}"
        if rung.name in judged
        else f"- `{rung.name}`, {rung.title}. {_no_lesson(results, rung, shape)}"
        for rung in rungs(results)
    ]
    return Prose("\n".join(lines))


def family(results: Results, shape: Shape) -> dict[str, Verdict]:
    """The verdict on each rung against the rung before it, where both have a latency: one family of tests."""
    there = results.at(shape).index
    pairs = [(rung.after, rung.name) for rung in rungs(results) if rung.after in there and rung.name in there]
    verdicts = results.compare_pairs(pairs, shape)
    return {candidate: verdict for (_, candidate), verdict in zip(pairs, verdicts, strict=True)}


def _card(results: Results, rung: Rung, verdict: Verdict, shape: Shape) -> Table:
    before, after = (results.row(name, shape) for name in (rung.after, rung.name))
    overlap = "they overlap" if median_of(before).overlaps(median_of(after)) else "they are apart"
    gain = verdict.speedup
    throughput = Interval(*(100 * (ratio - 1) for ratio in (gain.estimate, gain.low, gain.high)))
    both: dict[str, tuple[Any, Any]] = {title: (cell(before), cell(after)) for title, cell in _MEASURED.items()}
    used = [_resources_of(results, name, shape) for name in (rung.after, rung.name)]
    spent = {title: tuple(u and cell(u) for u in used) for title, cell in _USES.items()} if any(used) else {}
    changes = {
        "median (µs)": formats.change(_latency_change(verdict)),
        f"its {CI} interval": overlap,
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
    return Table(
        frame.astype(object),
        f"`{rung.name}`, {rung.title}. *Hypothesis:* {rung.hypothesis}",
        f"**{decisions.kind(verdict).capitalize()}.** {_lesson(rung, verdict)}",
    )


def _no_card(results: Results, rung: Rung, shape: Shape) -> Prose:
    return Prose(f"`{rung.name}`, {rung.title}. *Hypothesis:* {rung.hypothesis} {_no_lesson(results, rung, shape)}")


def _lesson(rung: Rung, verdict: Verdict) -> str:
    """Whether the expected speedup was reached, in words and numbers."""
    measured, expected = f"{formats.interval(verdict.speedup)}", f"where {formats.times(rung.expected)} was expected"
    relation, reached = decisions.relation(verdict), outcome(rung.expected, verdict.speedup)
    if verdict.decision == decisions.SLOWER:
        return f"A loss: a speedup of {measured} over `{rung.after}`, {expected}."
    if verdict.decision == decisions.INCONCLUSIVE:
        return f"{relation.capitalize()} `{rung.after}`: {measured}, {expected}."
    if verdict.decision == decisions.EQUIVALENT and reached != "reached":
        return f"No gain: {measured}, {relation} `{rung.after}`, {expected}."
    share = 100 * (verdict.speedup.estimate - 1) / (rung.expected - 1) if rung.expected > 1 else np.nan
    of_gain = f", {formats.percent(share)} of that gain" if reached == "missed" and share > 0 else ""
    return f"The expectation was {reached}: {measured} over `{rung.after}`, {expected}{of_gain}."


def _no_lesson(results: Results, rung: Rung, shape: Shape) -> str:
    there = results.at(shape).index
    if rung.name not in there:
        return f"It has no latency here: {formats.clause(absence(results, rung.name, shape))}."
    if not rung.after:
        return "It is the first rung."
    return (
        f"The rung before, `{rung.after}`, has no latency here: {formats.clause(absence(results, rung.after, shape))}."
    )


def outcome(expected: float, speedup: Interval) -> str:
    """Whether a speedup exceeded, reached or missed what was expected, with the margin of equivalence."""
    if speedup.low > expected * (1 + EQUIVALENCE_MARGIN):
        return "exceeded"
    return "missed" if speedup.high < expected / (1 + EQUIVALENCE_MARGIN) else "reached"


def _latency_change(verdict: Verdict) -> Interval:
    """The change of the latency in percent of the baseline's; negative: faster."""
    gain = verdict.speedup
    return Interval(*(100 * (1 / ratio - 1) for ratio in (gain.estimate, gain.high, gain.low)))


def _ends(row: pd.Series) -> str:
    return formats.interval(median_of(row)).split(" ", 1)[-1]


_MEASURED: dict[str, Callable[[pd.Series], str]] = {
    "median (µs)": lambda row: formats.number(row["median_us"], 4),
    f"its {CI} interval": _ends,
    "throughput (TFLOP/s)": lambda row: formats.number(row["throughput_tflops"]),
    "speed of light": cells.light,
}
_USES: dict[str, Callable[[Resources], str]] = {
    "registers": lambda used: str(used.registers),
    "local memory (B)": lambda used: str(used.local_bytes),
    "shared memory (KiB)": lambda used: formats.kibibytes(used.shared_bytes),
    "threads": lambda used: str(used.threads),
    "CTAs": lambda used: f"{used.ctas:,}",
    "CTAs per SM": lambda used: str(used.ctas_per_sm),
    "occupancy": lambda used: formats.percent(used.occupancy_pct),
}
_BRIEF = ("registers", "shared memory (KiB)", "CTAs per SM")


def _arrow(both: list[Any], cell: Callable[[Any], str]) -> str | None:
    """Two cells, before and after, with an arrow between them; None if both are missing."""
    if not any(thing is not None for thing in both):
        return None
    return " →\n".join(MISSING if thing is None else cell(thing) for thing in both)


def _resources_of(results: Results, name: str, shape: Shape) -> Resources | None:
    known = {rung.name: rung for rung in rungs(results)}
    return resources(results, known[name], shape) if name in known else None
