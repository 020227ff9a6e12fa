"""A run beside published numbers: the nearest case to each, and the shares of both devices' peaks."""

import math
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from attnlab.infer.lookup import shape_of
from attnlab.infer.results import Results
from attnlab.literature.throughputs import Published
from attnlab.study.shapes import Shape
from attnlab.study.values import NORMAL

COUNTERPARTS = {
    "FlashAttention-2": "sdpa.flash",
    "FlashAttention-3": "peer.flashinfer",
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
        run: the run that it is from.
        datasheet_pct, measured_pct: shares of the dense peak in the datasheet, and of the matrix product that the run
            measured; NaN where there is none.
    """

    name: str
    run: str
    shape: Shape
    throughput_tflops: float
    datasheet_pct: float
    measured_pct: float

    def is_same_algorithm(self, number: Published) -> bool:
        """Whether it is the published number's algorithm, be it of another version."""
        return COUNTERPARTS.get(number.implementation) == self.name


@dataclass(frozen=True)
class Cases:
    """The cases of a run that can be compared with published numbers, under the headline's timing.

    Attributes:
        peers: another run on the same device, which stands in for the algorithms that this one has not.
    """

    results: Results
    peers: Results | None = None

    @cached_property
    def rows(self) -> pd.DataFrame:
        """Forward passes with as many keys as queries and sequences of equal lengths."""
        rows = self.results.under(self.results.headline)
        same = rows["kv_len"] == rows["seq_len"]
        plain = {"lengths": "equal", "direction": "forward", "layout": "heads first", "scale": 0.0, "values": NORMAL}
        return rows[same & (rows[list(plain)] == pd.Series(plain)).all(axis=1)]

    def nearest(self, number: Published) -> Nearest | None:
        """The nearest case to a published number; None where there is none with its head_dim and mask.

        The same algorithm comes before any other: in this run, or else in that of the peers; if it was measured with
        the other mask alone, with that one. The distance is, in this order, the ratio of the sequence lengths, of the
        heads of the whole batch, of the batches and of the heads that share their keys; then the dtype and the latency.
        """
        if number.seq_len is None or number.causal is None:
            return None
        others = self._of_kind(number, number.causal)
        same = self._alike(number, number.causal) or (others and self._alike(number, not number.causal))
        row = min(same or others, key=lambda row: _distance(row, number), default=None)
        return row["of"].shown(row) if row else None

    def shown(self, row: Any) -> Nearest:
        """A row of this run, with its shares of both peaks."""
        shape, tflops = shape_of(row), float(row["throughput_tflops"])
        shares = self.shares_pct(shape.dtype, tflops)
        return Nearest(str(row["implementation"]), self.results.run.name, shape, tflops, *shares)

    @cached_property
    def _stand_in(self) -> "Cases | None":
        return Cases(self.peers) if self.peers and self.peers.run.name != self.results.run.name else None

    def _alike(self, number: Published, causal: bool) -> list[Row]:
        """The cases of a published number's algorithm with its head_dim and this mask, of the first run with any."""
        name = COUNTERPARTS.get(number.implementation)
        for cases in filter(None, (self, self._stand_in)):
            if rows := [row for row in cases._of_kind(number, causal) if row["implementation"] == name]:
                return rows
        return []

    def _of_kind(self, number: Published, causal: bool) -> list[Row]:
        return self._by_kind.get((number.head_dim, causal), [])

    @cached_property
    def _by_kind(self) -> dict[tuple[int | None, bool], list[Row]]:
        groups = self.rows.assign(of=self).groupby(["head_dim", "causal"], sort=False)
        return {(int(head_dim), bool(causal)): rows.to_dict("records") for (head_dim, causal), rows in groups}

    def shares_pct(self, dtype: str, tflops: float) -> tuple[float, float]:
        """A throughput over the dense peak in the datasheet, and over the measured matrix product, in percent."""
        name, ceilings = f"matmul.{dtype}", self.results.ceilings
        stated = ceilings.by_name[name].datasheet if name in ceilings.by_name else None
        return 100 * tflops / (stated or math.nan), 100 * tflops / ceilings.rate(name)


def highest_here(results: Results) -> Nearest | None:
    """The case of a run with the highest throughput in FP16 or BF16; None where neither share of it is known."""
    cases = Cases(results)
    rows = cases.rows[cases.rows["dtype"].isin(["float16", "bfloat16"])]
    if rows.empty:
        return None
    found = cases.shown(rows.loc[rows["throughput_tflops"].idxmax()])
    return None if np.isnan([found.datasheet_pct, found.measured_pct]).all() else found


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
    return abs(math.log(ours / theirs)) if theirs else 0.0
