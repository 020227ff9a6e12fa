"""The quantities of results, each declared once: title, unit, meaning, and how it is printed.

Tables, axes, the export's README and the explorer take them from here, by the names of the columns of
`Results.table` and of the export's records.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from attnlab.exhibits import formats
from attnlab.infer.stats import Interval

INTERVAL = f"{formats.CI} interval"


@dataclass(frozen=True)
class Marked:
    """A number with a mark that explains it, such as that it is above a ceiling; the mark begins with its sign."""

    value: float | Interval
    mark: str


@dataclass(frozen=True)
class Named:
    """A number with what it is of, which stands below it."""

    value: float | Interval
    name: str


@dataclass(frozen=True)
class Quantity:
    """A quantity.

    Attributes:
        title: its name in the head of a table and on an axis, without its unit.
        meaning: what it is, for the README of an export.
        show: prints one value.
        ends: the columns of the ends of its interval, if it has one.
        mark: the column of its mark, if it can have one.
    """

    title: str
    meaning: str
    unit: str = ""
    show: Callable[[Any], str] = formats.number
    ends: tuple[str, str] | None = None
    mark: str = ""

    @property
    def axis(self) -> str:
        """The title of an axis: ``latency (µs)``."""
        return f"{self.title} ({self.unit})" if self.unit else self.title

    @property
    def head(self) -> str:
        """The head of a column: as on an axis, with the confidence of intervals; percentages have theirs in cells."""
        name = self.title if self.show is formats.percent else self.axis
        return f"{name} [{formats.CI}]" if self.ends else name

    @property
    def suffix(self) -> str:
        """The unit after a printed value, with a space; empty where the print has it."""
        return f" {self.unit}" if self.unit and self.show is not formats.percent else ""

    def of(self, name: str, row: Mapping[str, Any]) -> Any:
        """The value in a row of results as a table takes it: an interval or with its mark where it has one, or None."""
        if pd.isna(row[name]):
            return None
        if self.ends:
            return Interval(row[name], *(row[end] for end in self.ends))
        return Marked(row[name], row[self.mark]) if self.mark and row[self.mark] else row[name]


QUANTITIES = {
    "samples": Quantity("samples", "how many, over all replicates; none dropped", show=formats.whole),
    "replicates": Quantity("replicates", "fresh processes that measured this case", show=formats.whole),
    "median_us": Quantity("median", f"median over all samples, and its {INTERVAL}", "µs", ends=("low_us", "high_us")),
    "mean_us": Quantity("mean", "of all samples; no verdict rests on it", "µs"),
    "std_us": Quantity("standard deviation", "of all samples; no verdict rests on it", "µs"),
    "cv_pct": Quantity("CV", "standard deviation over mean; no verdict rests on it", "%", formats.percent),
    "min_us": Quantity("minimum", "the shortest sample", "µs"),
    "max_us": Quantity("maximum", "the longest sample", "µs"),
    "outliers_pct": Quantity("outliers", "share beyond Tukey's fences; labelled, not dropped", "%", formats.percent),
    "lag1": Quantity("lag-1 autocorrelation", "of the samples in their order", show=formats.signed),
    "effective_n": Quantity("effective N", "how many independent samples tell as much"),
    "p95_us": Quantity(
        "P95",
        "95th percentile, and its interval from order statistics",
        "µs",
        ends=("p95_low_us", "p95_high_us"),
    ),
    "p99_us": Quantity("P99", "99th percentile, likewise", "µs", ends=("p99_low_us", "p99_high_us")),
    "flops": Quantity("FLOPs", "work of one call; see `conventions`"),
    "bytes": Quantity("bytes", "compulsory traffic of one call; see `conventions`"),
    "intensity": Quantity("intensity", "FLOPs over bytes", "FLOP/byte"),
    "throughput_tflops": Quantity("throughput", "FLOPs over the median", "TFLOP/s", mark="throughput_mark"),
    "bandwidth_gbs": Quantity("bandwidth", "compulsory bytes over the median", "GB/s", mark="bandwidth_mark"),
    "floor_us": Quantity("floor", "least time by the measured ceilings", "µs"),
    "limit": Quantity("limit", "the ceiling that sets the floor", show=str),
    "speed_of_light_pct": Quantity("speed of light", "floor over median", "%", formats.percent),
    "sm_clock_mhz": Quantity("SM clock", "median beside the samples", "MHz", formats.whole),
    "throttled_pct": Quantity(
        "throttled", "share of the samples while the card held its clock back", "%", formats.percent
    ),
    "peak_memory_bytes": Quantity("memory", "most memory allocated at once during a call", "MiB", formats.mebibytes),
    "speedup": Quantity(
        "speedup",
        f"ratio of medians over the baseline, and its {INTERVAL}",
        show=formats.interval,
        ends=("speedup_low", "speedup_high"),
    ),
    "cliffs_delta": Quantity("Cliff's delta", "effect size", show=formats.signed),
    "hedges_g": Quantity("Hedges' g", "difference of means in pooled standard deviations"),
    "p_unadjusted": Quantity("p", "before Holm's adjustment", show=formats.pvalue),
    "p_holm": Quantity("p (Holm)", "after Holm's adjustment, which decides", show=formats.pvalue),
    "decision": Quantity("verdict", "`faster`, `slower`, `equivalent` or `inconclusive`", show=str),
    "claimable": Quantity("claimable", "whether it is also past the bar of `conventions.claimable`", show=str),
    "intervals_of_medians": Quantity("intervals", "`apart` or `overlap`", show=str),
    "regime": Quantity("regime", "`burst`, `sustained`, `mixed` or `not recorded`: of all samples compared", show=str),
    "smallest_effect_pct": Quantity(
        "minimum detectable effect",
        "smallest effect that could have been seen, from the baseline against itself",
        "%",
        formats.percent,
    ),
}
"""By the names of columns of `Results.table`, and of fields of the export."""


def cells(row: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The cells of these quantities in a row of results, for a `Table`."""
    return {name: QUANTITIES[name].of(name, row) for name in names}
