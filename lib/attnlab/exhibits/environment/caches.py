"""Whether cold is cold and warm is warm: how much of Q, K and V the L2 held when a sample of each clock began.

There are two independent measurements. Nsight Compute counts the bytes that a call reads from memory when it is made in
place of a timed call. The canary reads single lines at the same point and times each. It counts cycles, and the cycles
of a miss depend on the clock, so its readings are used only where the card ran at its highest clock.
"""

import numpy as np
import pandas as pd

from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Prose, Table
from attnlab.infer.cases import CASE
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
TIMINGS = (("device", "warm"), ("device", "cold"), ("eager", "warm"), ("eager", "cold"))


@exhibit("environment.residency.table")
def table(results: Results) -> Table:
    """Bytes read from memory, beside the bytes of Q, K and V, and lines found in the L2."""
    seen = _seen(results)
    rows = []
    for shape, group in _by_shape(seen[seen["implementation"] == CALLER]):
        hits = {f"{clock}, {cache}": _hits_pct(group, clock, cache) for clock, cache in TIMINGS}
        rows.append(
            {"shape": shape.label, "Q, K, V (MiB)": formats.mebibytes(_inputs_bytes(shape))}
            | {f"read {cache} (MiB)": _read_mebibytes(group, cache) for cache in ("warm", "cold")}
            | {f"L2 {title}": None if np.isnan(share) else formats.percent(share) for title, share in hits.items()}
        )
    l2 = formats.mebibytes(results.run.manifest["device"]["l2_bytes"])
    note = (
        f"The L2 has {l2} MiB. Read: bytes that Nsight Compute counted from memory in a call made in place of one that "
        "the device clock would time. L2: lines of Q, K and V that the canary found there at that point; a hit took "
        f"{_cycles(seen, metrics.HIT)} cycles, a miss {_cycles(seen, metrics.MISS)}. A dash: the clock was below "
        f"{formats.percent(100 * FULL_SPEED)} of its highest, or the tensors have too few lines."
    )
    absent = sorted({str(why) for why in seen["why"].dropna() if why})
    note += f" Not used: {'; '.join(absent)}." if absent else ""
    caption = f"Bytes that a call of `{CALLER}` reads from memory, and the share of its inputs that is in the L2."
    return Table(pd.DataFrame(rows), caption, note)


@exhibit("environment.residency")
def residency(results: Results) -> Prose:
    """Whether cold was cold, and warm as warm as the L2 allows."""
    seen = _seen(results)
    words = [*_cold(seen), *_warm(results, seen)]
    if not words:
        reasons = sorted({str(why) for why in seen["why"].dropna() if why})
        raise NotMeasured(f"What the L2 held is not known: {formats.listing(reasons)}")
    return Prose(" ".join(words))


def _cold(seen: pd.DataFrame) -> list[str]:
    shares = [_read_pct(group, shape, "cold") for shape, group in _by_case(seen)]
    read = [share for share in shares if not np.isnan(share)]
    hits = _hits(seen, "cold")
    words = []
    clear = len(_by_case(seen[seen["reliable"]]))
    if read:
        verdict = "Cold was cold" if min(read) >= COLD_READS_PCT else "Cold was not everywhere cold"
        words.append(
            f"{verdict}: in each of {formats.count(len(read), 'case')}, a call after our flush read at least "
            f"{formats.percent(min(read))} of the bytes of Q, K and V from memory, by Nsight Compute's counters."
        )
    if len(hits):
        words.append(
            f"When a cold sample begins, the canary found {formats.percent(float(hits.mean()))} of the lines of Q, K "
            f"and V in the L2, and at most {formats.percent(float(hits.max()))} in any round of any tensor, in the "
            f"{formats.count(clear, 'case')} in which it can tell: with lines enough, and the card at full speed."
        )
    return words


def _warm(results: Results, seen: pd.DataFrame) -> list[str]:
    l2_bytes, ours = results.run.manifest["device"]["l2_bytes"], seen[seen["implementation"] == CALLER]
    groups = _by_shape(ours)
    staying = [(shape, group) for shape, group in groups if shape.bytes <= STAYS * l2_bytes]
    read = [share for shape, group in staying if not np.isnan(share := _read_pct(group, shape, "warm"))]
    hits = [found.min() for _, group in staying if len(found := _hits(group, "warm", "device"))]
    words = []
    if read:
        verdict = "Warm was warm" if max(read) <= WARM_READS_PCT else "Warm was not everywhere warm"
        words.append(
            f"{verdict}: where Q, K, V and O take at most a third of the L2, a call of `{CALLER}` after a replay read "
            f"at most {formats.percent(max(read))} of the bytes of Q, K and V from memory."
        )
    if hits:
        words.append(
            f"When a warm `device` sample begins, the canary found at least {formats.percent(min(hits))} of the "
            f"lines of these small tensors in the L2{_by_eager(staying)}."
        )
    return words + _target(results, groups)


def _by_eager(staying: list[tuple[Shape, pd.DataFrame]]) -> str:
    """What the canary found where a warm sample of the other clock begins."""
    hits = [found.min() for _, group in staying if len(found := _hits(group, "warm", "eager"))]
    return f", and when an `eager` one does at least {formats.percent(min(hits))}" if hits else ""


def _target(results: Results, groups: list[tuple[Shape, pd.DataFrame]]) -> list[str]:
    """What a warm call reads at the target, in a sentence."""
    shape = results.study.target_shape
    share = next((_read_pct(group, there, "warm") for there, group in groups if there == shape), np.nan)
    if np.isnan(share):
        return []
    return [
        f"At the target, whose tensors take {formats.mebibytes(shape.bytes)} MiB, a warm call reads "
        f"{formats.percent(share)} of the bytes of Q, K and V from memory."
    ]


def _seen(results: Results) -> pd.DataFrame:
    if results.run.residency.empty:
        raise NotMeasured(f"What the L2 held was not recorded: {why_absent(results)}")
    return results.run.residency.assign(reliable=_reliable(results))


def _by_shape(seen: pd.DataFrame) -> list[tuple[Shape, pd.DataFrame]]:
    axes = list(Shape.AXES)
    return [(Shape(**dict(zip(axes, key, strict=True))), group) for key, group in seen.groupby(axes, sort=False)]


def _by_case(seen: pd.DataFrame) -> list[tuple[Shape, pd.DataFrame]]:
    groups = seen.groupby(list(CASE), sort=False)
    return [(Shape(**dict(zip(CASE[1:], key[1:], strict=True))), group) for key, group in groups]


def _read_pct(seen: pd.DataFrame, shape: Shape, cache: str) -> float:
    """Bytes read from memory in percent of those of Q, K and V."""
    return 100 * float(_read(seen, cache).median()) / _inputs_bytes(shape)


def _read_mebibytes(seen: pd.DataFrame, cache: str) -> str | None:
    read = _read(seen, cache)
    return formats.mebibytes(float(read.median())) if len(read) else None


def _read(seen: pd.DataFrame, cache: str) -> pd.Series:
    return seen[(seen["metric"] == metrics.DRAM_READ) & (seen["cache"] == cache)]["value"].dropna().astype(float)


def _hits_pct(seen: pd.DataFrame, clock: str, cache: str) -> float:
    return float(_hits(seen, cache, clock).mean())


def _hits(seen: pd.DataFrame, cache: str, clock: str = "") -> pd.Series:
    """Shares of lines that the canary found in the L2, in percent, in the cases where it is reliable."""
    rows = seen[seen["metric"].str.endswith(f".{metrics.HITS}") & (seen["cache"] == cache)]
    rows = rows[rows["clock"] == clock] if clock else rows
    return rows[rows["reliable"]]["value"].dropna().astype(float)


def _reliable(results: Results) -> list[bool]:
    """For each row, whether the canary separates hits from misses: enough lines, and the card at full speed."""
    panel = results.run.panel
    clocks = panel.groupby(CASE, sort=False)["sm_clock_mhz"].median().dropna()
    slow = set(clocks[clocks < FULL_SPEED * panel["sm_clock_mhz"].max()].index)
    cases = results.run.residency[CASE].itertuples(index=False, name=None)
    return [Shape(*axes).bytes / 4 >= LEAST_BYTES and (name, *axes) not in slow for name, *axes in cases]


def _cycles(seen: pd.DataFrame, what: str) -> str:
    known = seen[seen["metric"].str.endswith(f".{what}")]["value"].dropna().astype(float)
    return formats.number(float(known.median())) if len(known) else "—"


def _inputs_bytes(shape: Shape) -> float:
    return shape.bytes * 3 / 4
