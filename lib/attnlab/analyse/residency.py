"""Is cold cold, is warm warm? What the L2 held of Q, K and V where a sample of each clock began.

Two witnesses that know nothing of each other. Nsight Compute counts the bytes that a call reads from memory, in the
place where the clock would time it. And the canary reads single lines in that place and takes the time of each. It
counts cycles, and what a miss takes in cycles depends on the clock: it is heard only where the card ran at its highest.
"""

import numpy as np
import pandas as pd

from attnlab.analyse import formats
from attnlab.analyse.display import Prose, Table, telling
from attnlab.analyse.regime import why_absent
from attnlab.analyse.results import CASE, NotMeasured, Results
from attnlab.runs import is_of
from attnlab.shapes import Shape

READ = "dram__bytes_read.sum"
CALLER = "sdpa.auto"
"""Whose calls warm sets are told by: it touches Q, K, V and O and nothing else."""
COLD_READS_PCT, WARM_READS_PCT = 99, 5
"""Of the bytes of Q, K and V: a cold call reads at least so many from memory, a warm one at most, if they fit."""
FITS = 1 / 3
"""A set of at most this share of the L2 stays there, also where each half of the L2 keeps a copy."""
LEAST_BYTES = 2**18
"""A tensor of fewer has not enough lines for the canary to read each only once."""
FULL_SPEED = 0.97
"""Of the highest clock: below it, cycles are no measure of what was a hit."""
TIMINGS = (("device", "warm"), ("device", "cold"), ("eager", "warm"), ("eager", "cold"))


@telling
def table(results: Results) -> Table:
    """Bytes read from memory, beside those that must be read, and lines found in the L2."""
    seen = _seen(results)
    rows = []
    for shape, group in _by_shape(seen[seen["implementation"] == CALLER]):
        hits = {f"{clock}, {cache}": _hits_pct(results, group, clock, cache) for clock, cache in TIMINGS}
        rows.append(
            {"shape": formats.shape(shape), "Q, K, V (MiB)": formats.mebibytes(_inputs_bytes(shape))}
            | {f"read {cache} (MiB)": _read_mebibytes(group, cache) for cache in ("warm", "cold")}
            | {f"L2 {title}": None if np.isnan(share) else formats.percent(share) for title, share in hits.items()}
        )
    l2 = formats.mebibytes(results.run.manifest["device"]["l2_bytes"])
    note = (
        f"The L2 holds {l2} MiB. Read: what Nsight Compute counted from memory in the call that the device clock would "
        "time. L2: lines of Q, K and V that the canary found there in place of that call; a hit took it "
        f"{_cycles(seen, 'hit')} cycles, a miss {_cycles(seen, 'miss')}. A dash: the clock was below "
        f"{formats.percent(100 * FULL_SPEED)} of its highest, or the tensors have too few lines."
    )
    absent = sorted({str(why) for why in seen["why"].dropna() if why})
    note += f" Not used: {'; '.join(absent)}." if absent else ""
    caption = f"What a call of `{CALLER}` reads from memory, and what the L2 holds where its sample begins."
    return Table(pd.DataFrame(rows), "residency", caption, note)


@telling
def told(results: Results) -> Prose:
    """Whether cold was cold, and warm as warm as the L2 allows."""
    seen = _seen(results)
    words = [*_cold(results, seen), *_warm(results, seen)]
    if not words:
        reasons = sorted({str(why) for why in seen["why"].dropna() if why})
        raise NotMeasured(f"What the L2 held could not be told: {formats.listing(reasons)}")
    return Prose(" ".join(words))


def _cold(results: Results, seen: pd.DataFrame) -> list[str]:
    shares = [_read_pct(group, shape, "cold") for shape, group in _by_case(seen)]
    read = [share for share in shares if not np.isnan(share)]
    hits = _heard(results, seen, "cold")
    words = []
    if read:
        verdict = "Cold was cold" if min(read) >= COLD_READS_PCT else "Cold was not everywhere cold"
        words.append(
            f"{verdict}: in each of {formats.count(len(read), 'case')}, a call after our flush read at least "
            f"{formats.percent(min(read))} of the bytes of Q, K and V from memory, counted by Nsight Compute."
        )
    if len(hits):
        words.append(
            f"Of their lines, where a cold sample begins, the canary found {formats.percent(float(hits.mean()))} in "
            f"the L2, at most {formats.percent(float(hits.max()))} in any look at any tensor."
        )
    return words


def _warm(results: Results, seen: pd.DataFrame) -> list[str]:
    l2_bytes, ours = results.run.manifest["device"]["l2_bytes"], seen[seen["implementation"] == CALLER]
    groups = _by_shape(ours)
    fitting = [(shape, group) for shape, group in groups if shape.bytes <= FITS * l2_bytes]
    read = [share for shape, group in fitting if not np.isnan(share := _read_pct(group, shape, "warm"))]
    hits = [heard.min() for _, group in fitting if len(heard := _heard(results, group, "warm", "device"))]
    words = []
    if read:
        verdict = "Warm was warm" if max(read) <= WARM_READS_PCT else "Warm was not everywhere warm"
        words.append(
            f"{verdict}: where Q, K, V and O take at most a third of the L2, a call of `{CALLER}` after a replay read "
            f"at most {formats.percent(max(read))} of those bytes from memory."
        )
    if hits:
        words.append(f"The canary found at least {formats.percent(min(hits))} of their lines in the L2.")
    return words + _target(results, groups)


def _target(results: Results, groups: list[tuple[Shape, pd.DataFrame]]) -> list[str]:
    """What warm means at the target."""
    shape = results.study.target_shape
    share = next((_read_pct(group, there, "warm") for there, group in groups if there == shape), np.nan)
    if np.isnan(share):
        return []
    return [
        f"At the target, whose tensors take {formats.mebibytes(shape.bytes)} MiB, a warm call reads "
        f"{formats.percent(share)} of those bytes from memory."
    ]


def _seen(results: Results) -> pd.DataFrame:
    if results.run.residency.empty:
        raise NotMeasured(f"What the L2 held was not looked at: {why_absent(results)}")
    return results.run.residency


def _by_shape(seen: pd.DataFrame) -> list[tuple[Shape, pd.DataFrame]]:
    axes = list(Shape.AXES)
    return [(Shape(**dict(zip(axes, key, strict=True))), group) for key, group in seen.groupby(axes, sort=False)]


def _by_case(seen: pd.DataFrame) -> list[tuple[Shape, pd.DataFrame]]:
    groups = seen.groupby(list(CASE), sort=False)
    return [(Shape(**dict(zip(CASE[1:], key[1:], strict=True))), group) for key, group in groups]


def _read_pct(seen: pd.DataFrame, shape: Shape, cache: str) -> float:
    """Bytes read from memory, of those of Q, K and V."""
    return 100 * float(_read(seen, cache).median()) / _inputs_bytes(shape)


def _read_mebibytes(seen: pd.DataFrame, cache: str) -> str | None:
    read = _read(seen, cache)
    return formats.mebibytes(float(read.median())) if len(read) else None


def _read(seen: pd.DataFrame, cache: str) -> pd.Series:
    return seen[(seen["metric"] == READ) & (seen["cache"] == cache)]["value"].dropna().astype(float)


def _hits_pct(results: Results, seen: pd.DataFrame, clock: str, cache: str) -> float:
    return float(_heard(results, seen, cache, clock).mean())


def _heard(results: Results, seen: pd.DataFrame, cache: str, clock: str = "") -> pd.Series:
    """Shares of lines that the canary found in the L2, in percent, of the cases in which it is heard."""
    rows = seen[seen["metric"].str.endswith(".hits") & (seen["cache"] == cache)]
    rows = rows[rows["clock"] == clock] if clock else rows
    heard = [group["value"] for shape, group in _by_case(rows) if _is_heard(results, group, shape)]
    return pd.concat(heard).dropna().astype(float) if heard else pd.Series(dtype=float)


def _is_heard(results: Results, group: pd.DataFrame, shape: Shape) -> bool:
    if shape.bytes / 4 < LEAST_BYTES:
        return False
    panel = results.run.panel
    there = panel[is_of(panel, shape) & (panel["implementation"] == group["implementation"].iloc[0])]
    clocks = there["sm_clock_mhz"].dropna()
    return clocks.empty or float(clocks.median()) >= FULL_SPEED * float(panel["sm_clock_mhz"].max())


def _cycles(seen: pd.DataFrame, what: str) -> str:
    known = seen[seen["metric"].str.endswith(f".{what}")]["value"].dropna().astype(float)
    return formats.number(float(known.median())) if len(known) else "—"


def _inputs_bytes(shape: Shape) -> float:
    return shape.bytes * 3 / 4
