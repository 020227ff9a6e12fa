"""For each published number, the nearest case of this run."""

import math
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from attnlab.infer.results import Results
from attnlab.literature.throughputs import Published
from attnlab.study.shapes import Shape

COUNTERPARTS = {
    "FlashAttention-2": "sdpa.flash",
    "FlashAttention-4": "peer.flash4",
    "PyTorch SDPA, efficient": "sdpa.efficient",
    "PyTorch SDPA, flash": "sdpa.flash",
    "cuDNN": "sdpa.cudnn",
}
"""The name of the same algorithm in a run; its version may differ."""
Row = dict[Hashable, Any]


@dataclass(frozen=True)
class Nearest:
    """The case of a run that is nearest to a published number, with the same head_dim and mask.

    Attributes:
        name: the implementation: the counterpart of the published one, or else the fastest.
        datasheet_pct, measured_pct: shares of the dense peak in the datasheet, and of the matrix product that the run
            measured; NaN where there is none.
    """

    name: str
    shape: Shape
    throughput_tflops: float
    datasheet_pct: float
    measured_pct: float


@dataclass(frozen=True)
class Cases:
    """The cases of a run that can be compared with published numbers, under the headline's timing."""

    results: Results

    @cached_property
    def rows(self) -> pd.DataFrame:
        """Forward passes with as many keys as queries and sequences of equal lengths."""
        rows = self.results.under(self.results.headline)
        same = rows["kv_len"] == rows["seq_len"]
        return rows[same & (rows["lengths"] == "equal") & (rows["direction"] == "forward")]

    def nearest(self, number: Published) -> Nearest | None:
        """The nearest case to a published number; None where the run has none with its head_dim and mask.

        The distance is, in this order, the ratio of the sequence lengths, of the heads of the whole batch, of the
        batches and of the heads that share their keys; then the dtype and the latency.
        """
        rows = self._by_kind.get((number.head_dim, number.causal), [])
        rows = [row for row in rows if row["implementation"] == COUNTERPARTS.get(number.implementation)] or rows
        if number.seq_len is None or not rows:
            return None
        row = min(rows, key=lambda row: _distance(row, number))
        shape = Shape(*(row[axis] for axis in Shape.AXES))
        tflops = float(row["throughput_tflops"])
        return Nearest(str(row["implementation"]), shape, tflops, *self.shares_pct(shape.dtype, tflops))

    @cached_property
    def _by_kind(self) -> dict[tuple[int | None, bool | None], list[Row]]:
        groups = self.rows.groupby(["head_dim", "causal"], sort=False)
        return {(int(head_dim), bool(causal)): rows.to_dict("records") for (head_dim, causal), rows in groups}

    def shares_pct(self, dtype: str, tflops: float) -> tuple[float, float]:
        """A throughput over the dense peak in the datasheet, and over the measured matrix product, in percent."""
        name, ceilings = f"matmul.{dtype}", self.results.ceilings
        stated = next((ceiling.datasheet for ceiling in ceilings.all if ceiling.name == name), None)
        return 100 * tflops / (stated or math.nan), 100 * tflops / ceilings.rate(name)


def _distance(row: Row, number: Published) -> tuple[float, ...]:
    seq_len, batch, heads, kv_heads = (float(row[axis]) for axis in ("seq_len", "batch", "heads", "kv_heads"))
    return (
        _apart(seq_len, number.seq_len),
        _apart(batch * heads, number.batch and number.heads and number.batch * number.heads),
        _apart(batch, number.batch),
        _apart(heads / kv_heads, number.heads and number.kv_heads and number.heads / number.kv_heads),
        float(number.dtype is not None and row["dtype"] != number.dtype),
        float(row["median_us"]),
    )


def _apart(ours: float, theirs: float | None) -> float:
    """The distance of two sizes by their ratio; 0 where the source does not state its size."""
    return abs(math.log(ours / theirs)) if theirs else 0.0
