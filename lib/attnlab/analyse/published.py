"""A kernel that was published, beside this run's: the five causal configurations of a report on an NVIDIA L4.

Its numbers stand in data/reference/002.csv as they were stated; whatever else is said of them is recomputed.
"""

import math
from functools import cache
from typing import Any

import pandas as pd

from attnlab import paths, runs
from attnlab.analyse import formats
from attnlab.analyse.display import Prose, Table
from attnlab.analyse.kernels import of_kernels, whole
from attnlab.analyse.results import AXES, NotMeasured, Results, median_of
from attnlab.analyse.rungs import resources, rungs
from attnlab.runs import is_of
from attnlab.shapes import Shape
from attnlab.stats import Interval

REPORT = "the kernel benchmark report of 13 October 2025 (document 002)"
DEVICE = "an NVIDIA L4"
FIVE = "Comparative Performance"
"""Where its five configurations are."""
STILL_PCT = 2
"""Latencies that differ by no more are the same, whatever the work."""


@cache
def l4_numbers() -> pd.DataFrame:
    """Every number of the report that was transcribed, a row each, with the place where it stands."""
    types = {"document": str, "causal": "boolean", "dtype": "string"}
    return runs.plain(pd.read_csv(paths.REFERENCE / "002.csv", dtype=types))


def stated(subject: str, quantity: str, place: str = FIVE, shape: Shape | None = None) -> float:
    """One number of the report, in the unit that it is stated in."""
    rows = l4_numbers()
    rows = rows[(rows["subject"] == subject) & (rows["quantity"] == quantity) & (rows["place"] == place)]
    if shape is not None:
        rows = rows[is_of(rows, shape)]
    (value,) = rows["value"]
    return float(value)


def l4_shapes() -> list[Shape]:
    """The report's five configurations, in its order."""
    rows = l4_numbers()
    rows = rows[rows["place"] == FIVE].dropna(subset=AXES).drop_duplicates(AXES)
    sizes = rows[AXES[:4]].astype(int).to_dict("records")
    return [Shape(**axes, causal=True, dtype=dtype) for axes, dtype in zip(sizes, rows["dtype"], strict=True)]


@of_kernels
def l4_errors(results: Results) -> Prose:
    """The errors that it states, beside those of this run at the same shape."""
    rows = l4_numbers()
    place = "Correctness Verification"
    (shape,) = {shape for shape in l4_shapes() if is_of(rows[rows["place"] == place], shape).any()}
    subject = "kernel minus sdpa"
    most, mean = (stated(subject, f"{kind} absolute difference", place) for kind in ("maximum", "mean"))
    told = (
        f"At {formats.shape(shape)}, {REPORT} states a largest difference of {most:g} and a mean of "
        f"{formats.number(mean)} between its kernel and SDPA, which is itself rounded."
    )
    checks = results.run.checks
    if checks.empty or not (there := is_of(checks, shape)).any():
        return Prose(f"{told} This run made no checks at that shape.")
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
    return Prose(f"{told} Here, at the same shape and against float64: {formats.listing(parts)}.")


@of_kernels
def beside_l4(results: Results) -> Table:
    """Its kernel over its SDPA, and this run's fastest rung over this run's SDPA, at the same five shapes."""
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
        f"Then: as stated in {REPORT}, means on {DEVICE}. Now: medians of this run, {results.headline.words}, against "
        f"`{baseline}`. Ratios are of latencies, as that report takes them: above 1 the kernel is the slower."
    )
    return Table(
        whole(rows),
        "beside-l4",
        f"The five causal configurations of {REPORT}, then and now.",
        note,
    )


@of_kernels
def l4_work(results: Results) -> Table:
    """Its GFLOP/s beside what its own latencies and shapes come to, with and without what the mask hides."""
    rows = []
    for shape in l4_shapes():
        for subject, title in (("kernel", "its kernel"), ("sdpa", "its SDPA")):
            latency_ms, told = (stated(subject, quantity, shape=shape) for quantity in ("mean latency", "throughput"))
            square, masked = (flops / latency_ms / 1e6 for flops in (_square_flops(shape), shape.flops))
            rates = {"stated": told, "4·B·H·S²·D": square, "under the mask": masked}
            row: dict[str, Any] = {"B": shape.batch, "H": shape.heads, "S": shape.seq_len, "what": title}
            row |= {"latency (ms)": f"{latency_ms:.3f}"} | {name: f"{rate:,.1f}" for name, rate in rates.items()}
            rows.append(row | {"stated over that": f"{told / masked:.2f}×"})
    return Table(
        pd.DataFrame(rows),
        "l4-work",
        f"GFLOP/s of {REPORT}, as stated and as its latencies give them.",
        "Under the mask, 2·B·H·S·(S+1)·D FLOPs count: scores that no one needs are no work done.",
    )


@of_kernels
def l4_finding(results: Results) -> Prose:
    """What its GFLOP/s count, in a sentence."""
    both = [(subject, shape) for shape in l4_shapes() for subject in ("kernel", "sdpa")]
    off, over = [], []
    for subject, shape in both:
        latency_ms, told = (stated(subject, quantity, shape=shape) for quantity in ("mean latency", "throughput"))
        off.append(100 * abs(told / (_square_flops(shape) / latency_ms / 1e6) - 1))
        over.append(told / (shape.flops / latency_ms / 1e6))
    return Prose(
        f"The throughputs that {REPORT} states are those of the full square of scores, all {len(both)} within "
        f"{formats.percent(max(off))}, though both its kernel and SDPA are causal: {min(over):.2f} to {max(over):.2f} "
        "times the work under the mask."
    )


@of_kernels
def l4_limits(results: Results) -> Prose:
    """What in the two can't be compared, and why."""
    device, same = results.run.manifest["device"]["name"], _same_latency()
    told = [
        f"**The device**: {DEVICE} then, one {device} now. Latencies say nothing of each other; only the "
        "ratio of kernel to SDPA on the same device does, and SDPA itself has changed since.",
        "**The clock**: then the host's performance counter around a call and a synchronisation, so launch and waiting "
        f"are in it; now {results.headline.words}.",
        "**The estimate**: then a mean and a standard deviation, now a median with its interval, from rounds that "
        "alternate.",
    ]
    if len(same) > 1:
        least, most = (edge(stated("sdpa", "mean latency", shape=shape) for shape in same) for edge in (min, max))
        told[1] += (
            f" Its SDPA takes {least:.3f} to {most:.3f} ms at its first {len(same)} configurations, though the last of "
            f"them is {same[-1].flops / same[0].flops:.0f} times the work of the first: that is the host's time, so "
            "these ratios are smaller than those of the kernels."
        )
    return Prose("\n".join(f"- {line}" for line in told))


@of_kernels
def l4_geometry(results: Results) -> Table:
    """How each rung's grid fills this machine at the five configurations."""
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
        "l4-geometry",
        f"CTAs launched at the five causal configurations, and the share of the "
        f"{results.run.manifest['device']['multiprocessors']} multiprocessors that get any.",
    )


@of_kernels
def l4_parallelism(results: Results) -> Prose:
    """Whether too few CTAs explain what that report found, as it suspected."""
    place, shapes = "Root Cause Hypothesis", l4_shapes()
    small, worst = shapes[0], max(shapes, key=lambda s: stated("kernel over sdpa", "ratio of latencies", shape=s))
    ctas, share = stated("kernel", "CTAs launched", place), stated("kernel", "GPU utilization", place)
    sms = stated("device", "multiprocessors", "Hardware and Software Environment")
    rows = small.seq_len * small.batch * small.heads / ctas
    there = worst.batch * worst.heads * math.ceil(worst.seq_len / rows)
    ratio = stated("kernel over sdpa", "ratio of latencies", shape=worst)
    told = (
        f"T{REPORT[1:]} suspects too few CTAs: {ctas:.0f} of them at {formats.shapes([small])} on {sms:.0f} "
        f"multiprocessors, {formats.percent(share)} of the device; {ctas:.0f}/{sms:.0f} is indeed "
        f"{formats.percent(100 * ctas / sms)}. It leaves open why larger shapes fare worse. {ctas:.0f} CTAs there are "
        f"{rows:.0f} query rows each, by which {formats.shapes([worst])}, where its ratio is the worst ({ratio:g}×), "
        f"has {there:,} of them, {formats.number(there / sms)} for every multiprocessor. So the grid can explain the "
        "first configuration, and none of the worse ones."
    )
    return Prose(f"{told} {_here(results, small)}".strip())


def _here(results: Results, shape: Shape) -> str:
    """How many CTAs this run's rungs launch where that report's launched so few."""
    launched = [(rung.name, used) for rung in rungs(results) if (used := resources(results, rung, shape))]
    if not launched:
        return ""
    name, used = max(launched, key=lambda pair: pair[1].ctas)
    return (
        f"Here the widest grid at that shape is `{name}`'s: {formats.count(used.ctas, 'CTA')} for "
        f"{used.multiprocessors} multiprocessors, which gives work to {formats.percent(used.busy_pct)} of them."
    )


def _square_flops(shape: Shape) -> int:
    """FLOPs if nothing were masked."""
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
