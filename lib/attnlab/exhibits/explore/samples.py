"""The samples of a run, small enough to be sent with a page: what is left out and how they are rounded is stated."""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from attnlab.infer.cases import AXES, CASE, TIMING, numbered
from attnlab.infer.results import Results
from attnlab.study import implementations

STEPS = 2**12 - 1
"""Steps between the smallest and the largest sample of a case, equal on a logarithmic scale."""
COLUMNS = [*CASE, *TIMING, "replicate", "round", "latency_us", "started_s", "sm_clock_mhz", "throttled"]
THROTTLED = 2**15
"""Added to the SM clock of a sample that was throttled; 0 alone is a clock that was not read."""


class Packed(NamedTuple):
    """The samples of a run.

    Attributes:
        cases: a list per column, all of one length: the places of a case's timing, shape and implementation (one
            beyond the last for the control), its smallest sample in us (`low_us`), the logarithm of the ratio of the
            largest to it (`span`), and for each replicate its number of samples (`sizes`) and how long after the first
            the last was taken (`seconds`).
        codes: uint16 for each sample, in the order of `cases`, replicates and rounds: `STEPS` at the largest.
        clocks: uint16 for each sample: the SM clock in MHz, and `THROTTLED`.
        error_pct: the most by which a sample differs from what was recorded, in percent.
    """

    cases: dict[str, list[Any]]
    codes: np.ndarray
    clocks: np.ndarray
    error_pct: float


class Passed(NamedTuple):
    """The samples of a run that passed, in the order of their cases, replicates and rounds.

    Attributes:
        cases: for each case the places of its timing, shape and implementation, as in `Packed`.
        case: the place of each sample's case, (samples,), like all that follow.
        clocks: as in `Packed`.
    """

    cases: dict[str, list[int]]
    case: np.ndarray
    replicate: np.ndarray
    round: np.ndarray
    latency_us: np.ndarray
    started_s: np.ndarray
    clocks: np.ndarray


def passed(results: Results) -> Passed:
    """The samples of a run that may be sent: all that `pack` needs of it."""
    rows = results.passed[COLUMNS]
    ranks, keys = _ranks(rows)
    order = np.lexsort((rows["round"], rows["replicate"], ranks))
    columns = {name: rows[name].to_numpy()[order] for name in ("replicate", "round", "latency_us", "started_s")}
    return Passed(_places(results, keys), ranks[order], **columns, clocks=_clocks(rows)[order])


def pack(rows: Passed, most: int | None) -> Packed:
    """The samples that passed; of a replicate with more than `most`, so many, spread evenly over it."""
    replicates = np.flatnonzero(np.diff(rows.case, prepend=-1) | np.diff(rows.replicate, prepend=0))
    taken = np.diff(replicates, append=len(rows.case))
    sizes = np.minimum(taken, most or taken)
    kept = _spread(taken, sizes)
    case, latencies = rows.case[kept], rows.latency_us[kept]
    first = np.flatnonzero(np.diff(case, prepend=-1))
    low = _short(np.minimum.reduceat(latencies, first) if len(first) else latencies)
    span = _short(np.log(np.maximum.reduceat(latencies, first) / low) if len(first) else latencies)
    lengths = np.diff(first, append=len(case))
    steps = np.log(latencies / np.repeat(low, lengths)) / np.repeat(np.where(span > 0, span, 1), lengths) * STEPS
    of_case = np.split(np.arange(len(replicates)), np.flatnonzero(np.diff(rows.case[replicates])) + 1)
    seconds = (rows.started_s[replicates + taken - 1] - rows.started_s[replicates]).round(1)
    cases = {axis: [places[number] for number in case[first]] for axis, places in rows.cases.items()} | {
        "low_us": low.tolist(),
        "span": span.tolist(),
        "sizes": [sizes[some].tolist() for some in of_case if len(some)],
        "seconds": [seconds[some].tolist() for some in of_case if len(some)],
    }
    error_pct = 100 * float(np.expm1(span.max(initial=0.0) / STEPS / 2))
    return Packed(cases, np.rint(steps).astype("<u2"), rows.clocks[kept], error_pct)


def _short(values: np.ndarray) -> np.ndarray:
    """Seven significant digits, which is nearer than a step."""
    return np.array([float(f"{value:.7g}") for value in values])


def _spread(taken: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Which samples are kept, the first among them, of replicates of which so many were taken; `sizes` of each."""
    of, some = np.repeat(taken, taken), np.repeat(sizes, taken)
    place = np.arange(len(of)) - np.repeat(np.cumsum(taken) - taken, taken)
    return place * some // of > (place - 1) * some // of


def _ranks(rows: pd.DataFrame) -> tuple[np.ndarray, pd.DataFrame]:
    """The place of each row's case and timing among all in order, and those in order: sorting the rows takes longer."""
    names = [*CASE, *TIMING]
    numbers, first = numbered(rows, names)
    keys = rows[names].iloc[first].reset_index(drop=True).sort_values(names)
    return np.argsort(keys.index.to_numpy())[numbers], keys


def _places(results: Results, cases: pd.DataFrame) -> dict[str, list[Any]]:
    """The places of timing, shape and implementation of each case."""
    names = [*results.study.implementations, implementations.control(results.study.baseline)]
    shapes = {tuple(shape.axes.values()): place for place, shape in enumerate(results.study.shapes)}
    timings = {(timing.clock, timing.cache): place for place, timing in enumerate(results.timings)}
    return {
        "timing": [timings[key] for key in cases[TIMING].itertuples(index=False, name=None)],
        "shape": [shapes[key] for key in cases[AXES].itertuples(index=False, name=None)],
        "implementation": [names.index(name) for name in cases["implementation"]],
    }


def planes(values: np.ndarray) -> bytes:
    """The low bytes of all values and then the high ones, which compress better apart."""
    return values.astype("<u2").view(np.uint8).reshape(-1, 2).T.tobytes()


def _clocks(rows: pd.DataFrame) -> np.ndarray:
    mhz = rows["sm_clock_mhz"].astype("Float64").fillna(0).to_numpy(float)
    throttled = rows["throttled"].astype("boolean").fillna(False).to_numpy(bool)
    return (np.clip(mhz, 0, THROTTLED - 1).astype("<u2") + THROTTLED * throttled).astype("<u2")
