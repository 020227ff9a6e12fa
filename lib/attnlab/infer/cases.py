"""From the samples of a case to its row: median with interval, spread, tails, work and floor."""

from collections.abc import Iterable

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
TIMING = ["clock", "cache"]
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


def infer(run: schema.Run) -> pd.DataFrame:
    """A row per case and timing that passed the gate, in the order of the study, without controls."""
    study = studies.recorded(run.manifest)
    passed = passed_samples(run)
    passed = passed[~passed["implementation"].map(implementations.is_control).astype(bool)]
    if passed.empty:
        return pd.DataFrame(columns=COLUMNS)
    cards = cards_of(run)
    groups = [
        (key, independent(rows, cards), _context(rows))
        for key, rows in passed.groupby([*CASE, *TIMING], sort=False, observed=True)
    ]
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


def _context(rows: pd.DataFrame) -> dict[str, float]:
    return {
        "replicates": rows["replicate"].nunique(),
        "launches": int(rows["launches"].min()),
        "launches_most": int(rows["launches"].max()),
        "sm_clock_mhz": float(rows["sm_clock_mhz"].dropna().astype(float).median()),
        "throttled_pct": 100 * float(rows["throttled"].dropna().astype(float).mean()),
    }


def _rates(key: tuple[object, ...], row: dict[str, float], ceilings: Ceilings) -> dict[str, object]:
    shape = Shape(**dict(zip(AXES, key[1 : 1 + len(AXES)], strict=True)))  # type: ignore[arg-type]
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
    return run.samples.merge(kept, on=[*CASE, "replicate"], how="inner")


def _in_order(table: pd.DataFrame, study: Study) -> pd.DataFrame:
    shapes = {tuple(shape.axes.values()): index for index, shape in enumerate(study.shapes)}
    cases = table[CASE].itertuples(index=False, name=None)
    places = [(shapes[tuple(axes)], study.implementations.index(name)) for name, *axes in cases]
    return table.iloc[sorted(range(len(places)), key=places.__getitem__)].reset_index(drop=True)


def cards_of(run: schema.Run) -> dict[str, str]:
    """The card of each process, where the run used several; empty where it used one, or doesn't say."""
    known = run.processes[run.processes["card"].isin(run.cards)]
    return dict(zip(known["process"], known["card"], strict=True)) if len(run.cards) > 1 else {}


def independent(rows: pd.DataFrame, cards: dict[str, str]) -> list[np.ndarray]:
    """The latencies of a case under one timing in the blocks that are taken for independent.

    Of `LEAST_CARDS` cards and more, as `by_card` gives them; else a 1-D array per replicate.
    """
    # Few cards in the run are few in each case, and to look at the run alone is faster.
    over_cards = enough(cards.values()) and enough(rows["process"].map(cards).dropna())
    return by_card(rows, cards) if over_cards else by_replicate(rows)


def enough(cards: Iterable[str]) -> bool:
    """Whether these are enough cards for intervals over them."""
    return len(set(cards)) >= LEAST_CARDS


def by_card(rows: pd.DataFrame, cards: dict[str, str]) -> list[np.ndarray]:
    """The latencies of a case under one timing: for each card a 2-D array with a row per replicate."""
    card = np.array([cards.get(process) for process in rows["process"].to_numpy(dtype=object)], dtype=object)
    there = [mine for mine in dict.fromkeys(card) if mine is not None]
    return [np.stack(by_replicate(rows[card == mine])) for mine in there]


def by_replicate(rows: pd.DataFrame) -> list[np.ndarray]:
    """The latencies of a case under one timing, an array per replicate, in the order of the rounds."""
    replicates, latencies_us = rows["replicate"].to_numpy(), rows["latency_us"].to_numpy()
    return [latencies_us[replicates == replicate] for replicate in np.unique(replicates)]
