"""The kernel of an earlier report on an NVIDIA L4, beside the kernels of this run, at its five causal configurations.

Its numbers are in data/reference/002.csv as the report states them.
"""

from functools import cache
from typing import Any

from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.cells import whole
from attnlab.exhibits.display import Prose, Table
from attnlab.exhibits.environment.machine import device_words
from attnlab.exhibits.words import say
from attnlab.infer.kernels.rungs import has_kernels, rungs
from attnlab.infer.lookup import NotMeasured, median_of
from attnlab.infer.results import Results
from attnlab.infer.stats import Interval
from attnlab.literature.audit.reference import Reference, Row
from attnlab.study.shapes import Shape

REPORT = "the kernel benchmark report of 13 October 2025 (document 002)"
FIVE = "Comparative Performance"
"""The section with its five configurations."""
STILL_PCT = 2
"""Latencies that differ by no more count as the same."""


@cache
def _rows() -> list[Row]:
    return [row for row in Reference().rows["002"].values() if row.place == FIVE and row.shape]


def stated(subject: str, quantity: str, shape: Shape) -> str:
    """One number of the report at one of its configurations, as printed."""
    key = (subject, quantity, shape)
    (value,) = (row.value for row in _rows() if (row.subject, row.quantity, row.shape) == key)
    return value


def shapes() -> list[Shape]:
    """The report's five configurations, in its order."""
    return list(dict.fromkeys(row.shape for row in _rows() if row.shape))


@exhibit("kernels.l4", where=has_kernels)
def beside_l4(results: Results) -> Table:
    """The report's kernel over its SDPA, and this run's fastest rung over this run's SDPA, at the same five shapes."""
    rows = [_stated(shape) | _here(results, shape) for shape in shapes()]
    if not any("here: fastest rung" in row for row in rows):
        raise NotMeasured(f"No rung has a latency at the five causal configurations of {REPORT}")
    note = (
        f"L4: means on an NVIDIA L4, as stated in {REPORT}. Here: medians of this run, {results.headline.words}, "
        f"against `{results.study.baseline}`. Ratios are of latencies, as there: above 1, the kernel is slower."
    )
    return Table(whole(rows), f"The five causal configurations of {REPORT}, in that report and in this run.", note)


def _stated(shape: Shape) -> dict[str, Any]:
    return {
        "B": shape.batch,
        "H": shape.heads,
        "S": shape.seq_len,
        "L4: kernel (ms)": stated("kernel", "mean latency", shape),
        "L4: SDPA (ms)": stated("sdpa", "mean latency", shape),
        "L4: kernel over SDPA": stated("kernel over sdpa", "ratio of latencies", shape),
    }


def _here(results: Results, shape: Shape) -> dict[str, Any]:
    at, baseline = results.at(shape), results.study.baseline
    names = [rung.name for rung in rungs(results) if rung.name in at.index]
    if not names or baseline not in at.index:
        return {}
    best = str(at.loc[names, "median_us"].idxmin())
    ratio = results.speedup(best, shape)
    return {
        "here: fastest rung": best,
        "its median (µs)": median_of(at.loc[best]),
        "here: SDPA (µs)": median_of(at.loc[baseline]),
        "here: rung over SDPA": Interval(1 / ratio.estimate, 1 / ratio.high, 1 / ratio.low),
    }


@exhibit("kernels.l4.limits", where=has_kernels)
def l4_limits(results: Results) -> Prose:
    """What can't be compared between the report and this run, and why."""
    still = _same_latency()
    sdpa_ms = [float(stated("sdpa", "mean latency", shape)) for shape in still]
    facts = {"device": device_words(results), "headline": results.headline.words}
    return Prose(say("kernels.l4_limits", sdpa_ms=sdpa_ms, shapes=still, **facts))


def _same_latency() -> list[Shape]:
    """The configurations, from the smallest on, at which its SDPA takes as long as at the smallest."""
    ordered = sorted(shapes(), key=lambda shape: shape.flops)
    latencies_ms = [float(stated("sdpa", "mean latency", shape)) for shape in ordered]
    near = [abs(latency_ms / latencies_ms[0] - 1) <= STILL_PCT / 100 for latency_ms in latencies_ms]
    return ordered[: near.index(False)]
