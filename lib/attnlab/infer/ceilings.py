"""The machine's ceilings, and the floor that they set for a latency.

The roofline of Williams, Waterman and Patterson (2009), with the exponentials of the softmax as a third ceiling, since
on recent GPUs the special-function units need as long as the matrix units do (FlashAttention-3, arXiv 2407.08608,
section 3.1).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from attnlab.infer import stats
from attnlab.literature.datasheets import datasheet
from attnlab.study.shapes import Shape

# Factor from a unit to operations, bytes or exponentials per microsecond.
PER_US = {"TFLOP/s": 1e6, "GB/s": 1e3, "Gexp/s": 1e3}
UNEXPLAINED = ", not explained by a cache: take it for an error until it is explained"
TITLES = {"copy": "memory copy", "l2": "L2 reads", "exponentials": "exponentials"}


@dataclass(frozen=True)
class Ceiling:
    """A rate of this machine.

    Attributes:
        measured: median of the run's own samples with its interval; None where it was not measured.
        datasheet: the vendor's rate; None where the datasheet has none.
        how: how it was measured, or why it wasn't.
    """

    name: str
    unit: str
    measured: stats.Interval | None
    datasheet: float | None
    sm_clock_mhz: int | None
    how: str

    @property
    def title(self) -> str:
        """Its name in a table."""
        return TITLES.get(self.name, f"matrix product, {self.name.removeprefix('matmul.')}")


class Ceilings:
    """The ceilings of a run by name: ``matmul.<dtype>``, ``copy``, ``l2``, ``exponentials``."""

    def __init__(self, manifest: dict[str, Any]) -> None:
        sheet = datasheet(manifest["device"]["name"])
        self.l2_bytes = int(manifest["device"]["l2_bytes"])
        self.all = [_ceiling(name, found, sheet) for name, found in manifest["ceilings"].items()]
        self._rates = {c.name: c.measured.estimate * PER_US[c.unit] for c in self.all if c.measured}

    def terms_us(self, shape: Shape) -> dict[str, float]:
        """Least time in us for the shape by each ceiling that was measured."""
        work = {f"matmul.{shape.dtype}": shape.flops, "copy": shape.bytes, "exponentials": shape.exponentials}
        return {name: amount / self._rates[name] for name, amount in work.items() if name in self._rates}

    def floor_us(self, shape: Shape) -> float:
        """The largest of the terms, in us; NaN where no ceiling was measured."""
        return max(self.terms_us(shape).values(), default=np.nan)

    def limit(self, shape: Shape) -> str:
        """The ceiling that sets the floor, in words."""
        terms = self.terms_us(shape)
        return _limit_title(max(terms, key=lambda name: terms[name])) if terms else "n/a"

    def ridge(self, dtype: str) -> float:
        """Intensity in FLOP per byte above which matrix products set the floor, by the measured ceilings."""
        return self._rates.get(f"matmul.{dtype}", np.nan) / self._rates.get("copy", np.nan)

    def rate(self, name: str) -> float:
        """The measured ceiling in its unit; NaN where there is none."""
        return next((c.measured.estimate for c in self.all if c.name == name and c.measured), np.nan)

    def exceeded(self, shape: Shape, median_us: float) -> list[str]:
        """Names of the ceilings that a latency exceeds."""
        return [name for name, least_us in self.terms_us(shape).items() if least_us > median_us]

    def throughput_mark(self, shape: Shape, median_us: float) -> str:
        """The mark of a throughput in FLOP/s: empty, or a sign and the ceilings that it exceeds."""
        over = [name for name in self.exceeded(shape, median_us) if name != "copy"]
        return f"‡ above the measured ceiling of {self._titles(over)}{UNEXPLAINED}" if over else ""

    def bandwidth_mark(self, shape: Shape, median_us: float) -> str:
        """The mark of a bandwidth: empty, or a sign and whether a cache explains that it exceeds the copy ceiling."""
        if "copy" not in self.exceeded(shape, median_us):
            return ""
        if shape.bytes > self.l2_bytes:
            return f"‡ above the measured ceiling of {self._titles(['copy'])}{UNEXPLAINED}"
        if "l2" not in self._rates:
            return "† above the copy ceiling: the tensors fit the last level of cache, whose ceiling was not measured"
        if shape.bytes / self._rates["l2"] > median_us:
            return f"‡ above the measured ceilings of {self._titles(['copy', 'l2'])}{UNEXPLAINED}"
        return "† above the copy ceiling: the tensors fit the last level of cache, explained by the L2's own ceiling"

    def _titles(self, names: list[str]) -> str:
        return " and ".join(ceiling.title for ceiling in self.all if ceiling.name in names)


def _ceiling(name: str, found: dict[str, Any], sheet: pd.Series | None) -> Ceiling:
    column = {"TFLOP/s": name.replace(".", "_") + "_tflops", "GB/s": f"{name}_gbs"}.get(found["unit"], "")
    stated = float(sheet[column]) if sheet is not None and pd.notna(sheet.get(column)) else None
    measured = stats.bootstrap_ci(found["samples"]) if found["samples"] else None
    return Ceiling(name, found["unit"], measured, stated, found["sm_clock_mhz"], found["how"])


def _limit_title(name: str) -> str:
    return {"copy": "memory", "exponentials": "exponentials"}.get(name, "matrix product")
