"""What the explorer says of one run: its cases and verdicts, in the words of the pages."""

import math
from collections.abc import Sequence
from typing import Any

from attnlab.exhibits import decisions, formats
from attnlab.exhibits.cells import changes
from attnlab.exhibits.quantities import QUANTITIES, Quantity
from attnlab.exhibits.verdicts.target import judged, power, supported
from attnlab.infer import kinds
from attnlab.infer.bootstrap import sample_median
from attnlab.infer.cases import AXES
from attnlab.infer.families import Place
from attnlab.infer.kernels import leads, rungs
from attnlab.infer.lookup import median_of
from attnlab.infer.results import Pair, Results, absence
from attnlab.infer.stats import Interval, Verdict
from attnlab.study.implementations import in_fp8
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing

Verdicts = dict[tuple[Shape, str], dict[Timing, Verdict]]
"""By shape and candidate: the verdict under each timing that has both sides."""
Columns = dict[str, list[Any]]
Cases = dict[tuple[Timing, Shape, str], int]
"""Where a case stands among those of a run."""
METRICS = {
    "latency": "median_us",
    "throughput": "throughput_tflops",
    "bandwidth": "bandwidth_gbs",
    "light": "speed_of_light_pct",
}
"""The quantity of each metric of a case."""
SIDES = {
    "interval": "median_us",
    "samples": "samples",
    **{f"{name} text": quantity for name, quantity in METRICS.items() if name != "latency"},
}
"""The quantities that are shown of both sides of a verdict, by the fields of a case that print them."""
READ = {"clock": "sm_clock_mhz", "throttled": "throttled_pct"}
"""The same of those that not every device tells; their fields have the unit too."""
FASTEST = "fastest peer"
"""As a baseline: at each shape, under each timing, whichever of SDPA's backends and the peers is the fastest."""
OTHERS = (FASTEST, "sdpa.flash")
"""Baselines beside the study's; each takes as long to judge against as the study's own."""


def recorded(results: Results, baselines: Sequence[str]) -> dict[str, Any]:
    """A run as lists: its axes, its cases, and the verdicts against each of the baselines."""
    manifest, study = results.run.manifest, results.study
    cases, listed = _cases(results)
    changed = rungs.stale(results.run)
    return {
        "name": results.run.name,
        "label": f"{results.run.name}, {manifest['created'][:10]}",
        "device": manifest["device"]["name"],
        "created": manifest["created"][:10],
        "changed": {name: at and sorted(map(study.shapes.index, at)) for name, at in changed.items()},
        "fp8": [name for name in study.implementations if in_fp8(name)],
        "unsteady": _unsteady(results),
        "since": f" · {changes(changed)} changed since" if changed else "",
        "complete": results.run.complete,
        "samples": len(results.passed),
        "baseline": study.baseline,
        "implementations": study.implementations,
        "peers": leads.others(results),
        "timings": [one.model_dump() | {"words": one.words} for one in results.timings or study.timings],
        "shapes": [{"name": str(shape), "label": shape.label, **shape.axes} for shape in study.shapes],
        "target": study.shapes.index(study.target_shape),
        "cases": cases,
        "absent": _absent(results),
        "verdicts": {baseline: _said(results, baseline, against(results, baseline), listed) for baseline in baselines},
    }


def baselines(results: Results) -> list[str]:
    """The baselines that the explorer offers, the study's first."""
    there = set(results.table["implementation"])
    there |= {FASTEST for name in leads.others(results) if name in there}
    return [results.study.baseline, *(name for name in OTHERS if name in there and name != results.study.baseline)]


def against(results: Results, baseline: str) -> Verdicts:
    """The verdicts on every other implementation; those at one shape under one timing are a family."""
    found: Verdicts = {}
    families = results.families_over(_fastest(results)) if baseline == FASTEST else results.families_against(baseline)
    for (shape, timing), family in families.items():
        for name, verdict in family.verdicts.items():
            found.setdefault((shape, name), {})[timing] = verdict
    return found


def _unsteady(results: Results) -> dict[str, str]:
    """The implementations whose time goes by the values at some shape: by how much at most, on which kind and where."""
    found = [(one, shape) for shape in kinds.several(results) for one in kinds.steadiness(results, shape).stretched]
    worst = {one.implementation: (one, shape) for one, shape in sorted(found, key=lambda each: each[0].ratio)}
    return {
        name: f"{formats.times(one.ratio)} as long on {one.slowest} values as on its fastest at {shape.label}"
        for name, (one, shape) in worst.items()
    }


def _fastest(results: Results) -> dict[Place, str]:
    """The fastest peer at each place that has one."""
    return {
        (shape, timing): name
        for timing in results.timings
        for shape, name in leads.rivals(results, timing, results.study.shapes).items()
    }


def _cases(results: Results) -> tuple[Columns, Cases]:
    """A row for each case and timing that has a latency, and where it stands."""
    rows: list[dict[str, Any]] = []
    listed: Cases = {}
    for number, timing in enumerate(results.timings):
        for place, shape in enumerate(results.study.shapes):
            for row in results.at(shape, timing).to_dict("records"):
                name = row["implementation"]
                medians_us = [sample_median(samples) for samples in results.samples(name, shape, timing)]
                listed[timing, shape, name] = len(rows)
                rows.append(
                    {"timing": number, "shape": place, "implementation": results.study.implementations.index(name)}
                    | _case(row, medians_us)
                )
    return _columns(rows), listed


def _case(row: dict[str, Any], medians_us: list[float]) -> dict[str, Any]:
    median = median_of(row)
    marks = dict.fromkeys(f"{row[mark]}." for mark in ("bandwidth_mark", "throughput_mark") if row[mark])
    return {
        "samples": int(row["samples"]),
        "low_us": _number(median.low),
        "high_us": _number(median.high),
        "interval": formats.interval(median),
        "replicates_us": [_number(value) for value in medians_us],
        **{field: _read(row[quantity], QUANTITIES[quantity]) for field, quantity in READ.items()},
        **{name: _number(row[quantity]) for name, quantity in METRICS.items()},
        **{f"{name} text": QUANTITIES[quantity].show(row[quantity]) for name, quantity in METRICS.items()},
        "marks": " ".join(marks),
    }


def _said(results: Results, baseline: str, verdicts: Verdicts, listed: Cases) -> Columns:
    """A row for each verdict: numbers to draw, and what the pages say; `statements` are the templates of all."""
    rows, titles, statements = [], list[str](), dict[str, int]()
    fastest = _fastest(results) if baseline == FASTEST else {}
    for (shape, name), under in verdicts.items():
        for timing, verdict in under.items():
            over = fastest.get((shape, timing), baseline)
            pair = over, name
            alike = {other: found for other, found in under.items() if fastest.get((shape, other), baseline) == over}
            cells = judged(results, pair, shape, timing, verdict)
            titles = [QUANTITIES[name].head for name in cells]
            shown = [_shown(name, cell) for name, cell in cells.items()]
            statement = supported(results, pair, shape, timing, alike)
            template = _without(statement, _elsewhere(results, pair, shape, timing, alike, shown))
            rows.append(
                {
                    "case": listed[timing, shape, name],
                    "kind": decisions.kind(verdict),
                    "speedup": _number(verdict.speedup.estimate),
                    "low": _number(verdict.speedup.low),
                    "high": _number(verdict.speedup.high),
                    "short": short(verdict.speedup.estimate),
                    "cells": shown,
                    "statement": statements.setdefault(template, len(statements)),
                    "power": power(results, shape, timing, verdict),
                }
            )
    return _columns(rows) | {"titles": titles, "statements": [*statements]}


def _elsewhere(
    results: Results, pair: Pair, shape: Shape, timing: Timing, under: dict[Timing, Verdict], cells: list[str]
) -> dict[str, str]:
    """What a statement repeats of what is sent anyhow, by the mark for it; `stated` in cell.js looks it up.

    Of the pair the names and the medians, the speedup under each timing, and the first cells of the verdict.
    """
    medians = [formats.interval(results.median(name, shape, timing)) for name in pair]
    speedups = {results.timings.index(other): formats.interval(one.speedup) for other, one in under.items()}
    found = {"n": dict(enumerate(pair)), "t": speedups, "m": dict(enumerate(medians)), "c": dict(enumerate(cells[:3]))}
    return {f"{{{of}{place}}}": text for of, texts in found.items() for place, text in texts.items()}


def _without(statement: str, texts: dict[str, str]) -> str:
    """A statement with marks instead of these texts: thousands of statements are a few hundred templates."""
    for mark, text in texts.items():
        statement = statement.replace(text, mark)
    return statement


def _absent(results: Results) -> list[list[Any]]:
    """The cases without a latency under any timing: the places of shape and implementation, and the reason."""
    there = set(results.table[["implementation", *AXES]].itertuples(index=False, name=None))
    return [
        [place, number, formats.clause(absence(results, name, shape))]
        for place, shape in enumerate(results.study.shapes)
        for number, name in enumerate(results.study.implementations)
        if (name, *shape.axes.values()) not in there
    ]


def short(speedup: float) -> str:
    """A speedup as a cell of the map prints it."""
    return f"{speedup:.3f}" if speedup < 10 else f"{speedup:.1f}" if speedup < 100 else f"{speedup:.0f}"


def _shown(name: str, cell: Any) -> str:
    """A cell as a table prints it."""
    return formats.interval(cell) if isinstance(cell, Interval) else QUANTITIES[name].show(cell)


def _read(value: float, quantity: Quantity) -> str:
    return "not read" if math.isnan(value) else f"{quantity.show(value)}{quantity.suffix}"


def _columns(rows: list[dict[str, Any]]) -> Columns:
    """A list for each field of the rows: names are sent once."""
    return {name: [row[name] for row in rows] for name in rows[0]} if rows else {}


def _number(value: float) -> float | None:
    """Six significant digits, as many as a drawing can show; None where JSON has no such number."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
