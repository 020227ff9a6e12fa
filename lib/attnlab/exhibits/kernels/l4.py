"""The kernel of an earlier report on an NVIDIA L4, beside the kernels of this run, at its five causal configurations.

Its numbers are in data/reference/002.csv as the report states them; everything else about them is recomputed.
"""

import math
from functools import cache
from typing import Any

import pandas as pd

from attnlab.base import paths
from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.cells import whole
from attnlab.exhibits.display import Prose, Table
from attnlab.exhibits.environment.machine import device_words
from attnlab.infer.cases import AXES
from attnlab.infer.lookup import NotMeasured, median_of
from attnlab.infer.results import Results
from attnlab.infer.rungs import has_kernels, resources, rungs
from attnlab.infer.stats import Interval
from attnlab.runs.schema import is_of
from attnlab.study.shapes import Shape
from attnlab.study.values import NORMAL

REPORT = "the kernel benchmark report of 13 October 2025 (document 002)"
DEVICE = "an NVIDIA L4"
FIVE = "Comparative Performance"
"""The section with its five configurations."""
STILL_PCT = 2
"""Latencies that differ by no more count as the same."""


@cache
def l4_numbers() -> pd.DataFrame:
    """Every transcribed number of the report, a row each, with its place."""
    types = {"document": str, "causal": "boolean", "dtype": "string"}
    stated = pd.read_csv(paths.REFERENCE / "002.csv", dtype=types)
    return stated.assign(
        kv_heads=stated["heads"],
        kv_len=stated["seq_len"],
        lengths="equal",
        direction="forward",
        layout="heads first",
        scale=0.0,
        values=NORMAL,
    )


@cache
def stated(subject: str, quantity: str, place: str = FIVE, shape: Shape | None = None) -> float:
    """One number of the report, in the report's unit."""
    rows = l4_numbers()
    rows = rows[(rows["subject"] == subject) & (rows["quantity"] == quantity) & (rows["place"] == place)]
    if shape is not None:
        rows = rows[is_of(rows, shape)]
    (value,) = rows["value"]
    return float(value)


@cache
def l4_shapes() -> list[Shape]:
    """The report's five configurations, in its order."""
    rows = l4_numbers()
    rows = rows[rows["place"] == FIVE].dropna(subset=AXES).drop_duplicates(AXES)
    sizes = rows[AXES[:4]].astype(int).to_dict("records")
    return [Shape(**axes, causal=True, dtype=dtype) for axes, dtype in zip(sizes, rows["dtype"], strict=True)]


@exhibit("kernels.l4.errors", where=has_kernels)
def l4_errors(results: Results) -> Prose:
    """The errors that the report states, beside those of this run at the same shape."""
    rows = l4_numbers()
    place = "Correctness Verification"
    (shape,) = {shape for shape in l4_shapes() if is_of(rows[rows["place"] == place], shape).any()}
    subject = "kernel minus sdpa"
    most, mean = (stated(subject, f"{kind} absolute difference", place) for kind in ("maximum", "mean"))
    theirs = (
        f"At {shape.label}, {REPORT} states a largest difference of {most:g} and a mean difference of "
        f"{formats.number(mean)} between its kernel and SDPA, which is itself rounded."
    )
    checks = results.run.checks
    if checks.empty or not (there := is_of(checks, shape)).any():
        return Prose(f"{theirs} This run made no checks at that shape.")
    found = (
        checks[there]
        .groupby("implementation", sort=False)[["max_error", "mean_error"]]
        .agg({"max_error": "max", "mean_error": "mean"})
    )
    parts = [
        f"`{rung.name}` {formats.number(found.loc[rung.name, 'max_error'])} and "
        f"{formats.number(found.loc[rung.name, 'mean_error'])}"
        for rung in rungs(results)
        if rung.name in found.index
    ]
    return Prose(f"{theirs} In this run, at the same shape and against float64: {formats.listing(parts)}.")


@exhibit("kernels.l4", where=has_kernels)
def beside_l4(results: Results) -> Table:
    """The report's kernel over its SDPA, and this run's fastest rung over this run's SDPA, at the same five shapes."""
    names, baseline, rows = [rung.name for rung in rungs(results)], results.study.baseline, []
    for shape in l4_shapes():
        at = results.at(shape)
        here = [name for name in names if name in at.index]
        row: dict[str, Any] = {"B": shape.batch, "H": shape.heads, "S": shape.seq_len}
        row |= {
            "L4: kernel (ms)": f"{stated('kernel', 'mean latency', shape=shape):.3f}",
            "L4: SDPA (ms)": f"{stated('sdpa', 'mean latency', shape=shape):.3f}",
            "L4: kernel over SDPA": f"{stated('kernel over sdpa', 'ratio of latencies', shape=shape):.1f}×",
        }
        if here and baseline in at.index:
            best = min(here, key=lambda name: at.loc[name, "median_us"])
            row |= {
                "here: fastest rung": best,
                "its median (µs)": formats.stacked(median_of(at.loc[best])),
                "here: SDPA (µs)": formats.stacked(median_of(at.loc[baseline])),
                "here: rung over SDPA": formats.stacked(_inverse(results.speedup(best, shape))).replace("\n", "×\n"),
            }
        rows.append(row)
    if not any("here: fastest rung" in row for row in rows):
        raise NotMeasured(f"No rung has a latency at the five causal configurations of {REPORT}")
    note = (
        f"L4: means on {DEVICE}, as stated in {REPORT}. Here: medians of this run, {results.headline.words}, against "
        f"`{baseline}`. Ratios are of latencies, as in that report: above 1, the kernel is slower."
    )
    return Table(whole(rows), f"The five causal configurations of {REPORT}, in that report and in this run.", note)


@exhibit("kernels.l4.work", where=has_kernels)
def l4_work(results: Results) -> Table:
    """The report's GFLOP/s beside those of its latencies and shapes, with and without the masked scores."""
    rows = []
    for shape in l4_shapes():
        for subject, title in (("kernel", "its kernel"), ("sdpa", "its SDPA")):
            latency_ms, rate = (stated(subject, quantity, shape=shape) for quantity in ("mean latency", "throughput"))
            square, masked = (flops / latency_ms / 1e6 for flops in (_square_flops(shape), shape.flops))
            rates = {"stated": rate, "4·B·H·S²·D": square, "under the mask": masked}
            row: dict[str, Any] = {"B": shape.batch, "H": shape.heads, "S": shape.seq_len, "what": title}
            row |= {"latency (ms)": f"{latency_ms:.3f}"} | {name: f"{value:,.1f}" for name, value in rates.items()}
            rows.append(row | {"stated over that": f"{rate / masked:.2f}×"})
    return Table(
        pd.DataFrame(rows),
        f"GFLOP/s of {REPORT}, as stated and as recomputed from its latencies.",
        "Under the mask, 2·B·H·S·(S+1)·D FLOPs are counted: masked scores are no work.",
    )


@exhibit("kernels.l4.finding", where=has_kernels)
def l4_finding(results: Results) -> Prose:
    """Which FLOPs the report's GFLOP/s count, in a sentence."""
    both = [(subject, shape) for shape in l4_shapes() for subject in ("kernel", "sdpa")]
    off, over = [], []
    for subject, shape in both:
        latency_ms, rate = (stated(subject, quantity, shape=shape) for quantity in ("mean latency", "throughput"))
        off.append(100 * abs(rate / (_square_flops(shape) / latency_ms / 1e6) - 1))
        over.append(rate / (shape.flops / latency_ms / 1e6))
    return Prose(
        f"The throughputs that {REPORT} states count the full square of scores, all {len(both)} within "
        f"{formats.percent(max(off))}, though both its kernel and SDPA are causal. That is {min(over):.2f} to "
        f"{max(over):.2f} times the work under the mask."
    )


@exhibit("kernels.l4.limits", where=has_kernels)
def l4_limits(results: Results) -> Prose:
    """What can't be compared between the report and this run, and why."""
    same = _same_latency()
    lines = [
        f"**The device**: {DEVICE} there, {device_words(results)} here. Latencies can't be compared across devices; "
        "only the ratio of kernel to SDPA on the same device can, and SDPA itself has changed since.",
        "**The clock**: there the host's performance counter around a call and a synchronisation, which includes "
        f"launching and waiting; here {results.headline.words}.",
        "**The estimate**: there a mean and a standard deviation; here a median with its interval, from interleaved "
        "rounds.",
    ]
    if len(same) > 1:
        least, most = (edge(stated("sdpa", "mean latency", shape=shape) for shape in same) for edge in (min, max))
        lines[1] += (
            f" Its SDPA takes {least:.3f} to {most:.3f} ms at its first {len(same)} configurations, though the last of "
            f"them is {same[-1].flops / same[0].flops:.0f} times the work of the first: that is the host's time, so "
            "these ratios are smaller than those of the kernels."
        )
    return Prose("\n".join(f"- {line}" for line in lines))


@exhibit("kernels.l4.geometry", where=has_kernels)
def l4_geometry(results: Results) -> Table:
    """How each rung's grid fills this device at the five configurations."""
    rows = []
    for shape in l4_shapes():
        row: dict[str, Any] = {"B": shape.batch, "H": shape.heads, "S": shape.seq_len}
        for rung in rungs(results):
            used = resources(results, rung, shape)
            row[rung.name] = f"{used.ctas:,}\n{formats.percent(used.busy_pct)}" if used else None
        rows.append(row)
    if all(value is None for row in rows for value in list(row.values())[3:]):
        raise NotMeasured(f"No rung was launched at the five causal configurations of {REPORT}")
    return Table(
        pd.DataFrame(rows).astype(object),
        "CTAs launched at the five causal configurations, and the share of the "
        f"{results.run.manifest['device']['multiprocessors']} multiprocessors that have work.",
    )


@exhibit("kernels.l4.parallelism", where=has_kernels)
def l4_parallelism(results: Results) -> Prose:
    """Whether too few CTAs explain that report's ratios, as it suspected."""
    place, shapes = "Root Cause Hypothesis", l4_shapes()
    small, worst = shapes[0], max(shapes, key=lambda s: stated("kernel over sdpa", "ratio of latencies", shape=s))
    ctas, share = stated("kernel", "CTAs launched", place), stated("kernel", "GPU utilization", place)
    sms = stated("device", "multiprocessors", "Hardware and Software Environment")
    rows = small.seq_len * small.batch * small.heads / ctas
    there = worst.batch * worst.heads * math.ceil(worst.seq_len / rows)
    ratio = stated("kernel over sdpa", "ratio of latencies", shape=worst)
    suspected = (
        f"T{REPORT[1:]} suspects too few CTAs: {ctas:.0f} of them at {formats.shapes([small])} on {sms:.0f} "
        f"multiprocessors, {formats.percent(share)} of the device; {ctas:.0f}/{sms:.0f} is indeed "
        f"{formats.percent(100 * ctas / sms)}. It leaves open why larger shapes do worse. With {ctas:.0f} CTAs, each "
        f"has {rows:.0f} query rows there; by that, {formats.shapes([worst])}, where its ratio is worst ({ratio:g}×), "
        f"has {there:,} CTAs, {formats.number(there / sms)} for every multiprocessor. So the grid can explain the "
        "first configuration, but none of the worse ones."
    )
    return Prose(f"{suspected} {_here(results, small)}".strip())


def _here(results: Results, shape: Shape) -> str:
    """The number of CTAs that this run's rungs launch at a shape, in a sentence."""
    launched = [(rung.name, used) for rung in rungs(results) if (used := resources(results, rung, shape))]
    if not launched:
        return ""
    name, used = max(launched, key=lambda pair: pair[1].ctas)
    return (
        f"In this run, the widest grid at {shape.label} is `{name}`'s: {formats.count(used.ctas, 'CTA')} for "
        f"{used.multiprocessors} multiprocessors, which gives work to {formats.percent(used.busy_pct)} of them."
    )


def _square_flops(shape: Shape) -> int:
    """FLOPs without a mask."""
    return 4 * shape.batch * shape.heads * shape.seq_len**2 * shape.head_dim


def _same_latency() -> list[Shape]:
    """The configurations, from the smallest on, at which its SDPA takes as long as at the smallest."""
    shapes = sorted(l4_shapes(), key=lambda shape: shape.flops)
    first = stated("sdpa", "mean latency", shape=shapes[0])
    same = []
    for shape in shapes:
        if abs(stated("sdpa", "mean latency", shape=shape) / first - 1) > STILL_PCT / 100:
            break
        same.append(shape)
    return same


def _inverse(ratio: Interval) -> Interval:
    return Interval(1 / ratio.estimate, 1 / ratio.high, 1 / ratio.low)
