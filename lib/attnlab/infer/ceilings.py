"""The machine's ceilings, and the floor that they set for a latency.

The roofline of Williams, Waterman and Patterson (2009), with the exponentials of the softmax as a third ceiling, since
on recent GPUs the special-function units need as long as the matrix units do (FlashAttention-3, arXiv 2407.08608,
section 3.1).

Each amount of work is divided by the fastest ceiling that may apply, so that the floor is below any latency:

- FLOPs: the library's matrix product or, where it is faster, `wgmma` alone; of what computes in FP8, that of e4m3.
- Bytes: memory where the cache is cold. Where it is warm, all bytes take the L2, and only those that it can't hold
  take memory: which ones it holds is not known. The L2's ceiling is measured on a third of it, which stays there under
  any replacement policy.
- Exponentials: the special-function units.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pandas as pd

from attnlab.infer import stats
from attnlab.literature.datasheets import datasheet
from attnlab.study import implementations
from attnlab.study.shapes import BYTES_PER_ELEMENT, Shape

# Factor from a unit to operations, bytes or exponentials per microsecond.
PER_US = {"TFLOP/s": 1e6, "GB/s": 1e3, "Gexp/s": 1e3}
UNEXPLAINED = ", not explained by a cache: take it for an error until it is explained"
ABOVE_COPY = ", not explained by a cache: take it for an error unless the call mostly reads, which the copy doesn't"
"""A few queries over many keys write next to nothing; the copy writes as much as it reads."""
PRODUCTS = {"matmul": "matrix product", "wgmma": "wgmma"}
"""The ceilings of FLOPs, each for a dtype, and their titles."""
TITLES = PRODUCTS | {"copy": "memory copy", "l2": "L2 reads", "exponentials": "exponentials"}
LIMITS = {"copy": "memory", "l2": "L2", "exponentials": "exponentials"}
"""A ceiling as what limits a case; the others are of matrix products."""


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
        kind, *dtype = self.name.split(".")
        return ", ".join([TITLES[kind], *dtype])

    @property
    def datasheet_pct(self) -> float | None:
        """What was measured in percent of the datasheet's rate; None where either is missing."""
        return 100 * self.measured.estimate / self.datasheet if self.measured and self.datasheet else None


class Work(Protocol):
    """What a call computes and moves: a shape, or what FP8 makes of one. `dtype` is that of its products."""

    @property
    def dtype(self) -> str: ...
    @property
    def flops(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def exponentials(self) -> int: ...
    @property
    def intensity(self) -> float: ...


@dataclass(frozen=True)
class InFp8:
    """The work of a shape where products are of e4m3 numbers."""

    flops: int
    bytes: int
    exponentials: int
    dtype: str = implementations.E4M3

    @property
    def intensity(self) -> float:
        """FLOP per byte."""
        return self.flops / self.bytes


def work_of(implementation: str, shape: Shape) -> Work:
    """The work of an implementation at a shape: where Q, K and V are given in e4m3, their bytes are fewer."""
    if not implementations.in_fp8(implementation):
        return shape
    given = shape.query_elements * (1 + BYTES_PER_ELEMENT[shape.dtype]) + 2 * shape.key_elements
    quantizes = implementations.under_control(implementation) in implementations.FP8_QUANTIZING
    return InFp8(shape.flops, shape.bytes if quantizes else given, shape.exponentials)


class Ceilings:
    """The ceilings of a run by name: ``matmul.<dtype>``, ``wgmma.<dtype>``, ``copy``, ``l2``, ``exponentials``."""

    def __init__(self, manifest: dict[str, Any]) -> None:
        sheet = datasheet(manifest["device"]["name"])
        self.l2_bytes = int(manifest["device"]["l2_bytes"])
        self.by_name = {name: _ceiling(name, found, sheet) for name, found in manifest["ceilings"].items()}
        self.all = list(self.by_name.values())
        self._rates = {c.name: c.measured.estimate * PER_US[c.unit] for c in self.all if c.measured}

    @property
    def stated(self) -> list[Ceiling]:
        """Those that were measured and that the datasheet states, from the lowest to the highest share of it."""
        return sorted((one for one in self.all if one.datasheet_pct), key=lambda one: one.datasheet_pct or 0.0)

    def terms_us(self, work: Work, cache: str) -> dict[str, float]:
        """Least time in us by each ceiling that applies and was measured, with a ``warm`` or a ``cold`` cache."""
        amounts = self._computed(work) | {"copy" if cache == "cold" else "l2": work.bytes}
        if cache == "warm" and not self.fits(work):
            amounts["copy"] = work.bytes - self.l2_bytes
        return {name: amount / self._rates[name] for name, amount in amounts.items() if name in self._rates}

    def _computed(self, work: Work) -> dict[str, float]:
        return {self.product(work.dtype): work.flops, "exponentials": work.exponentials}

    def bytes_us(self, work: Work, cache: str) -> float:
        """The larger of the terms of bytes, in us; NaN where neither was measured."""
        terms = self.terms_us(work, cache)
        return max((terms[name] for name in ("copy", "l2") if name in terms), default=np.nan)

    def floor_us(self, work: Work, cache: str) -> float:
        """The largest of the terms, in us; NaN where no ceiling was measured."""
        return max(self.terms_us(work, cache).values(), default=np.nan)

    def limit(self, work: Work, cache: str) -> str:
        """The ceiling that sets the floor, in words."""
        terms = self.terms_us(work, cache)
        return LIMITS.get(max(terms, key=lambda name: terms[name]), "matrix product") if terms else "n/a"

    def product(self, dtype: str) -> str:
        """The name of the faster ceiling of matrix products in a dtype, the library's where neither was measured."""
        return max((f"{kind}.{dtype}" for kind in PRODUCTS), key=lambda name: self._rates.get(name, 0.0))

    def fits(self, work: Work) -> bool:
        """Whether Q, K, V and O together are no larger than the L2, so that a warm one may hold them all."""
        return work.bytes <= self.l2_bytes

    def ridge(self, dtype: str) -> float:
        """Intensity in FLOP per byte of memory above which matrix products set the floor, by the measured ceilings."""
        return self._rates.get(self.product(dtype), np.nan) / self._rates.get("copy", np.nan)

    def rate(self, name: str) -> float:
        """The measured ceiling in its unit; NaN where there is none."""
        found = self.by_name.get(name)
        return found.measured.estimate if found and found.measured else np.nan

    def throughput_mark(self, work: Work, median_us: float) -> str:
        """The mark of a throughput in FLOP/s: empty, or a sign and the ceilings that it exceeds."""
        over = [name for name, amount in self._computed(work).items() if self._exceeds(name, amount, median_us)]
        return f"‡ above the measured ceiling of {self._titles(over)}{UNEXPLAINED}" if over else ""

    def bandwidth_mark(self, work: Work, median_us: float, cache: str) -> str:
        """The mark of a bandwidth: empty, or a sign and whether a warm cache explains that it exceeds the copy."""
        if not self._exceeds("copy", work.bytes, median_us):
            return ""
        if cache == "cold" or not self.fits(work):
            return f"‡ above the measured ceiling of {self._titles(['copy'])}{ABOVE_COPY}"
        if "l2" not in self._rates:
            return "† above the copy ceiling: the tensors fit the last level of cache, whose ceiling was not measured"
        if self._exceeds("l2", work.bytes, median_us):
            return f"‡ above the measured ceilings of {self._titles(['copy', 'l2'])}{UNEXPLAINED}"
        return "† above the copy ceiling: the tensors fit the last level of cache, explained by the L2's own ceiling"

    def _exceeds(self, name: str, amount: float, median_us: float) -> bool:
        return name in self._rates and amount / self._rates[name] > median_us

    def _titles(self, names: list[str]) -> str:
        return " and ".join(ceiling.title for ceiling in self.all if ceiling.name in names)


def _ceiling(name: str, found: dict[str, Any], sheet: pd.Series | None) -> Ceiling:
    # The datasheet's rate of matrix products is that of the tensor cores, however they are asked.
    stated_as = {"TFLOP/s": f"matmul_{name.split('.')[-1]}_tflops", "GB/s": f"{name}_gbs"}
    column = stated_as.get(found["unit"], "")
    stated = float(sheet[column]) if sheet is not None and pd.notna(sheet.get(column)) else None
    measured = stats.bootstrap_ci(found["samples"]) if found["samples"] else None
    return Ceiling(name, found["unit"], measured, stated, found["sm_clock_mhz"], found["how"])
