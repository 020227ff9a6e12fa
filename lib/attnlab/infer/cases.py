"""From the samples of a case to its row: median with interval, spread, tails, work and floor."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from attnlab.infer import parallel, stats
from attnlab.infer.ceilings import Ceilings, work_of
from attnlab.runs import schema
from attnlab.study import implementations, studies
from attnlab.study.shapes import Shape
from attnlab.study.studies import Study

AXES = list(Shape.AXES)
CASE = list(schema.CASE)
TIMING = list(schema.TIMING)
QUANTILES = (0.95, 0.99)
LEAST_CARDS = 3
"""Fewer can't stand for others of their kind: an interval over two cards is 12.7 standard errors to either side."""
CONTEXT = ["replicates", "launches", "launches_most", "sm_clock_mhz", "throttled_pct"]
MEDIAN = ["samples", "median_us", "low_us", "high_us"]
SPREAD = ["mean_us", "std_us", "cv_pct", "min_us", "max_us", "outliers_pct", "lag1", "effective_n"]
TAILS = [f"p{100 * p:.0f}{end}_us" for p in QUANTILES for end in ("", "_low", "_high")]
WORK = ["flops", "bytes", "intensity", "throughput_tflops", "throughput_mark", "bandwidth_gbs", "bandwidth_mark"]
FLOOR = ["floor_us", "limit", "speed_of_light_pct"]
COLUMNS = [*CASE, *TIMING, *CONTEXT, *MEDIAN, *SPREAD, *TAILS, *WORK, *FLOOR]


class Samples(NamedTuple):
    """The samples of a case under one timing that passed, in the order of the run: columns of `samples`, (samples,).

    Attributes:
        sm_clock_mhz: NaN where it was not read.
        throttled: 0 or 1; NaN likewise.
    """

    replicate: np.ndarray
    process: np.ndarray
    launches: np.ndarray
    latency_us: np.ndarray
    sm_clock_mhz: np.ndarray
    throttled: np.ndarray

    def of(self, mask: np.ndarray) -> "Samples":
        """Those that a mask, or a slice, takes."""
        return Samples(*(column[mask] for column in self))

    @property
    def clock_mhz(self) -> float:
        """The median of the SM clock; NaN where it was not read."""
        read = self.sm_clock_mhz[~np.isnan(self.sm_clock_mhz)]
        return float(np.median(read)) if read.size else np.nan

    @property
    def throttled_pct(self) -> float:
        """The share of samples that were taken at a throttled clock, in percent; NaN where that was not read."""
        known = self.throttled[~np.isnan(self.throttled)]
        return 100 * float(known.mean()) if known.size else np.nan


NO_SAMPLES = Samples(*(np.empty(0) for _ in Samples._fields))


def infer(run: schema.Run, taken: dict[Any, Samples] | None = None) -> pd.DataFrame:
    """A row per case and timing that passed the gate, in the order of the study, without controls.

    Args:
        taken: what `by_case` makes of the `passed_samples`, where that is known.
    """
    study, cards = studies.recorded(run.manifest), cards_of(run)
    taken = by_case(passed_samples(run)) if taken is None else taken
    groups = [
        (key, independent(samples, cards), _context(samples))
        for key, samples in taken.items()
        if not implementations.is_control(key[0])
    ]
    if not groups:
        return pd.DataFrame(columns=COLUMNS)
    tick_us = float(run.manifest["clocks"]["tick_us"])
    jobs = [(samples, tick_us / context["launches"]) for _, samples, context in groups]
    inferred = parallel.each(infer_case, jobs)
    ceilings = Ceilings(run.manifest)
    rows = [
        dict(zip([*CASE, *TIMING], key, strict=True)) | context | row | _rates(key, row, ceilings)
        for (key, _, context), row in zip(groups, inferred, strict=True)
    ]
    return _in_order(pd.DataFrame(rows, columns=COLUMNS), study)


def infer_case(samples: list[np.ndarray], tick_us: float) -> dict[str, float]:
    """What the samples of one case say, as `independent` gives them; latencies in us.

    Median with its interval, the moments, P95 and P99 with order-statistic intervals (NaN where there are too few
    samples for one), outliers by Tukey's fences (labelled, never dropped), lag-1 autocorrelation and effective N.
    """
    replicates = [replicate for block in samples for replicate in np.atleast_2d(block)]
    pooled = np.concatenate(replicates)
    median = stats.bootstrap_ci(samples, tick=tick_us)
    lower, upper = np.quantile(pooled, [0.25, 0.75])
    reach = 1.5 * (upper - lower)
    row: dict[str, float] = {
        "samples": pooled.size,
        "median_us": median.estimate,
        "low_us": median.low,
        "high_us": median.high,
        "mean_us": pooled.mean(),
        "std_us": pooled.std(ddof=1),
        "cv_pct": 100 * pooled.std(ddof=1) / pooled.mean(),
        "min_us": pooled.min(),
        "max_us": pooled.max(),
        "outliers_pct": 100 * np.mean((pooled < lower - reach) | (pooled > upper + reach)),
        "lag1": stats.lag1(replicates),
        "effective_n": stats.effective_n(replicates),
    }
    for p in QUANTILES:
        name, interval = f"p{100 * p:.0f}", stats.quantile_ci(replicates, p)
        for end, title in (("estimate", name), ("low", f"{name}_low"), ("high", f"{name}_high")):
            row[f"{title}_us"] = getattr(interval, end, np.nan)
    return row


def _context(samples: Samples) -> dict[str, float]:
    return {
        "replicates": np.unique(samples.replicate).size,
        "launches": int(samples.launches.min()),
        "launches_most": int(samples.launches.max()),
        "sm_clock_mhz": samples.clock_mhz,
        "throttled_pct": samples.throttled_pct,
    }


def _rates(key: tuple[object, ...], row: dict[str, float], ceilings: Ceilings) -> dict[str, object]:
    shape = Shape(*key[1 : 1 + len(AXES)])  # type: ignore[arg-type]
    median_us, cache, work = row["median_us"], str(key[-1]), work_of(str(key[0]), shape)
    floor_us = ceilings.floor_us(work, cache)
    return {
        "flops": work.flops,
        "bytes": work.bytes,
        "intensity": work.intensity,
        "throughput_tflops": work.flops / median_us / 1e6,
        "throughput_mark": ceilings.throughput_mark(work, median_us),
        "bandwidth_gbs": work.bytes / median_us / 1e3,
        "bandwidth_mark": ceilings.bandwidth_mark(work, median_us, cache),
        "floor_us": floor_us,
        "limit": ceilings.limit(work, cache),
        "speed_of_light_pct": 100 * floor_us / median_us,
    }


def passed_samples(run: schema.Run) -> pd.DataFrame:
    """The samples of cases that were measured in every replicate, each checked before and after.

    A shape whose cases are not recorded yet was cut off before its last checks: in that replicate it doesn't count.
    """
    if run.cases.empty or run.samples.empty:  # an empty table has no types of its own
        return run.samples.head(0)
    measured = run.cases["status"] == schema.MEASURED
    lost = pd.MultiIndex.from_frame(run.cases.loc[~measured, CASE])
    whole = run.cases.loc[measured, [*CASE, "replicate"]]
    kept = whole[~pd.MultiIndex.from_frame(whole[CASE]).isin(lost)]
    numbers, first = numbered(run.samples, list(kept))
    is_kept = pd.MultiIndex.from_frame(run.samples[list(kept)].iloc[first]).isin(pd.MultiIndex.from_frame(kept))
    mask = is_kept[numbers]
    return run.samples if mask.all() else run.samples[mask].reset_index(drop=True)


def numbered(rows: pd.DataFrame, columns: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """The number of each row's key, in the order in which keys come first, and the first row of each."""
    numbers = rows.groupby(columns, sort=False, observed=True).ngroup().to_numpy()
    return numbers, np.unique(numbers, return_index=True)[1]


def by_case(passed: pd.DataFrame) -> dict[Any, Samples]:
    """The samples of each case under each timing, by the values of `CASE` and `TIMING`, in the order of the first."""
    if passed.empty:
        return {}
    numbers, first = numbered(passed, [*CASE, *TIMING])
    order, ends = np.argsort(numbers, kind="stable"), np.cumsum(np.bincount(numbers))
    split = zip(*(np.split(_column(passed, name)[order], ends[:-1]) for name in Samples._fields), strict=True)
    keys = passed[[*CASE, *TIMING]].iloc[first].itertuples(index=False, name=None)
    return {key: Samples(*arrays) for key, arrays in zip(keys, split, strict=True)}


def _column(passed: pd.DataFrame, name: str) -> np.ndarray:
    if name in ("sm_clock_mhz", "throttled"):
        return passed[name].astype("Float64").to_numpy(float, na_value=np.nan)
    if name == "process":  # a text for each process, and not for each sample
        places, names = pd.factorize(passed[name], use_na_sentinel=False)
        return names.to_numpy(object)[places]
    return passed[name].to_numpy()


def _in_order(table: pd.DataFrame, study: Study) -> pd.DataFrame:
    shapes = {tuple(shape.axes.values()): index for index, shape in enumerate(study.shapes)}
    cases = table[CASE].itertuples(index=False, name=None)
    places = [(shapes[tuple(axes)], study.implementations.index(name)) for name, *axes in cases]
    return table.iloc[sorted(range(len(places)), key=places.__getitem__)].reset_index(drop=True)


def cards_of(run: schema.Run) -> dict[str, str]:
    """The card of each process, where the run used several; empty where it used one, or doesn't say."""
    known = run.processes[run.processes["card"].isin(run.cards)]
    return dict(zip(known["process"], known["card"], strict=True)) if len(run.cards) > 1 else {}


def independent(samples: Samples, cards: dict[str, str]) -> list[np.ndarray]:
    """The latencies of a case under one timing in the blocks that are taken for independent.

    Of `LEAST_CARDS` cards and more, as `by_card` gives them; else a 1-D array per replicate.
    """
    # Few cards in the run are few in each case, and to look at the run alone is faster.
    over_cards = enough(cards.values()) and enough({cards[name] for name in samples.process if name in cards})
    return by_card(samples, cards) if over_cards else by_replicate(samples)


def enough(cards: Iterable[str]) -> bool:
    """Whether these are enough cards for intervals over them."""
    return len(set(cards)) >= LEAST_CARDS


def by_card(samples: Samples, cards: dict[str, str]) -> list[np.ndarray]:
    """The latencies of a case under one timing: for each card a 2-D array with a row per replicate."""
    card = np.array([cards.get(process) for process in samples.process], dtype=object)
    there = [mine for mine in dict.fromkeys(card) if mine is not None]
    return [np.stack(by_replicate(samples.of(card == mine))) for mine in there]


def by_replicate(samples: Samples) -> list[np.ndarray]:
    """The latencies of a case under one timing, an array per replicate, in the order of the rounds."""
    return [samples.latency_us[samples.replicate == replicate] for replicate in np.unique(samples.replicate)]
