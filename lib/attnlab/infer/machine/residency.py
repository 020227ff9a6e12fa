"""How much of Q, K and V the L2 held when a sample began: whether cold is cold and warm is warm.

There are two independent measurements. Nsight Compute counts the bytes that a call reads from memory when it is made in
place of a timed call. The canary reads single lines at the same point and times each. It counts cycles, and the cycles
of a miss depend on the clock, so its readings are used only where the card ran at its highest clock.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from attnlab.base.texts import escaped
from attnlab.infer.cases import AXES, CASE
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.regimes import why_absent
from attnlab.infer.results import Results
from attnlab.runs import metrics
from attnlab.study.shapes import Shape

CALLER = "sdpa.auto"
"""The implementation that is read with a warm cache: it touches only Q, K, V and O."""
COLD_READS_PCT, WARM_READS_PCT = 99, 5
"""Shares of the bytes of Q, K and V: a cold call reads at least the first from memory; a warm call reads at most the
second, if they fit."""
STAYS = 1 / 3
"""Tensors of at most this share of the L2 stay there, even where each half of the L2 keeps a copy."""
LEAST_BYTES = 2**18
"""A smaller tensor has too few lines for the canary to read each only once."""
FULL_SPEED = 0.97
"""A share of the highest clock, below which cycles don't separate hits from misses."""


@dataclass(frozen=True)
class Residency:
    """What was in the L2, all in percent of Q, K and V: of their bytes by Nsight Compute, of their lines by the canary.

    Attributes:
        cold_reads: bytes that a call after our flush read from memory, a value for each case.
        cold_hits: lines that the canary found when a cold sample began, a value for each round and tensor.
        clear_cases: the cases in which the canary can tell.
        warm_reads: bytes that a call of `CALLER` after a replay read from memory, a value for each shape that stays in
            the L2.
        warm_hits: by clock, the fewest lines of these shapes that the canary found when a warm sample began.
        target_reads: what a warm call of `CALLER` reads at the target; None where it wasn't counted.
    """

    cold_reads: list[float]
    cold_hits: list[float]
    clear_cases: int
    warm_reads: list[float]
    warm_hits: dict[str, float]
    target_reads: float | None

    @property
    def is_cold(self) -> bool:
        """Whether cold calls read everything."""
        return min(self.cold_reads) >= COLD_READS_PCT

    @property
    def is_warm(self) -> bool:
        """Whether warm calls read next to nothing, where their tensors stay in the L2."""
        return max(self.warm_reads) <= WARM_READS_PCT


def residency(results: Results) -> Residency:
    """What the L2 held; NotMeasured where it was not recorded, or neither measurement worked."""
    if results.run.residency.empty:
        raise NotMeasured(f"What the L2 held was not recorded: {why_absent(results)}")
    seen = results.run.residency.merge(_cases(results), on=CASE)
    known = seen.dropna(subset=["value"]).astype({"value": float})
    if known.empty:
        reasons = ", ".join(sorted({str(why) for why in seen["why"].dropna() if why}))
        raise NotMeasured(f"What the L2 held is not known: {escaped(reasons)}")
    reads, hits = _reads(known), known[known["metric"].str.endswith(f".{metrics.HITS}") & known["is_clear"]]
    cold, warm = (reads[reads["cache"] == cache] for cache in ("cold", "warm"))
    warm = warm[warm["implementation"] == CALLER]
    stays = hits[(hits["cache"] == "warm") & hits["stays"] & (hits["implementation"] == CALLER)]
    at_target = warm[warm["is_target"]]["pct"]
    return Residency(
        cold["pct"].tolist(),
        hits[hits["cache"] == "cold"]["value"].tolist(),
        len(seen[seen["is_clear"]].drop_duplicates(CASE)),
        warm[warm["stays"]]["pct"].tolist(),
        stays.groupby("clock")["value"].min().to_dict(),
        float(at_target.iloc[0]) if len(at_target) else None,
    )


def _cases(results: Results) -> pd.DataFrame:
    """The cases that were looked at.

    Columns: `inputs_bytes` of Q, K and V; whether they with O stay in the L2 (`stays`), are the target (`is_target`),
    and whether the canary separates hits from misses (`is_clear`): with lines enough, and the card at full speed.
    """
    cases = results.run.residency[CASE].drop_duplicates(ignore_index=True)
    shapes = [Shape(*axes) for axes in cases[AXES].itertuples(index=False, name=None)]
    sizes = np.array([shape.bytes for shape in shapes])
    clocks = results.run.panel.groupby(CASE, sort=False)["sm_clock_mhz"].median().dropna()
    slow = set(clocks[clocks < FULL_SPEED * results.run.panel["sm_clock_mhz"].max()].index)
    at_speed = np.array([case not in slow for case in cases.itertuples(index=False, name=None)])
    return cases.assign(
        inputs_bytes=sizes * 3 / 4,
        stays=sizes <= STAYS * results.run.manifest["device"]["l2_bytes"],
        is_target=[shape == results.study.target_shape for shape in shapes],
        is_clear=(sizes / 4 >= LEAST_BYTES) & at_speed,
    )


def _reads(known: pd.DataFrame) -> pd.DataFrame:
    """A row for each case and cache, with the bytes that were read from memory in percent of the inputs' (`pct`)."""
    rows = known[known["metric"] == metrics.DRAM_READ]
    rows = rows.assign(pct=100 * rows["value"] / rows["inputs_bytes"])
    return rows.groupby([*CASE, "cache", "stays", "is_target"], sort=False)["pct"].median().reset_index()
