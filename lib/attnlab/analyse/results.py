"""What a run says once its samples are inferred from: a row per case and timing."""

import hashlib
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pandas as pd

from attnlab import paths, runs, stats, studies
from attnlab.analyse.roofline import Ceilings
from attnlab.shapes import Shape
from attnlab.studies import Study, Timing

AXES = list(Shape.AXES)
CASE = ["implementation", *AXES]
TIMING = ["clock", "cache"]
QUANTILES = (0.95, 0.99)


@dataclass(frozen=True)
class Results:
    """A run and what was inferred from it.

    Attributes:
        table: a row per case and timing, in the order of the study; latencies in us. See `infer_case`.
    """

    run: runs.Run
    table: pd.DataFrame

    @cached_property
    def study(self) -> Study:
        """The study that was measured."""
        return studies.parse(self.run.manifest["study"], self.run.name)

    @cached_property
    def ceilings(self) -> Ceilings:
        """The ceilings that were measured with it."""
        return Ceilings(self.run.manifest)

    @property
    def timings(self) -> list[Timing]:
        """The timings that were recorded, in the order of the study."""
        there = set(self.table[TIMING].itertuples(index=False, name=None))
        return [timing for timing in self.study.timings if (timing.clock, timing.cache) in there]

    @property
    def headline(self) -> Timing:
        """The timing that tables and figures speak of where they don't name one: the first of the study."""
        return self.timings[0]

    @property
    def tick_us(self) -> float:
        """The step of the clock."""
        return float(self.run.manifest["clocks"]["tick_us"])

    def under(self, timing: Timing) -> pd.DataFrame:
        """The rows of one timing."""
        return self.table[(self.table["clock"] == timing.clock) & (self.table["cache"] == timing.cache)]

    def at(self, shape: Shape, timing: Timing | None = None) -> pd.DataFrame:
        """The rows of one shape, under one timing (default: the headline's), indexed by implementation."""
        rows = self.under(timing or self.headline)
        return rows[_is(rows, shape)].set_index("implementation", drop=False)

    def samples(self, implementation: str, shape: Shape, timing: Timing | None = None) -> list[np.ndarray]:
        """The latencies of one case in us, an array per replicate, in the order of the rounds."""
        timing, rows = timing or self.headline, self.run.samples
        chosen = rows[
            (rows["implementation"] == implementation)
            & (rows["clock"] == timing.clock)
            & (rows["cache"] == timing.cache)
            & _is(rows, shape)
        ]
        return _by_replicate(chosen)

    def compare(self, candidate: str, shape: Shape, timing: Timing | None = None) -> stats.Verdict:
        """The verdict on a candidate against the study's baseline at one shape, from rounds taken together."""
        baseline = self.samples(self.study.baseline, shape, timing)
        return stats.verdict(baseline, self.samples(candidate, shape, timing), tick=self.tick_us, paired=True)

    def fastest(self, shape: Shape, timing: Timing | None = None) -> str:
        """The implementation with the smallest median at a shape."""
        return str(self.at(shape, timing)["median_us"].idxmin())


def of(run: runs.Run) -> Results:
    """Infer from a run, or take what was inferred from exactly these samples by exactly this code before."""
    key = hashlib.sha256(f"{runs.digest(run.manifest)} {_code()}".encode()).hexdigest()[:16]
    kept = paths.reports() / run.name / f"inference-{key}.parquet"
    if run.complete and kept.is_file():
        return Results(run, pd.read_parquet(kept))
    results = Results(run, infer(run))
    if run.complete:
        _keep(results.table, kept)
    return results


def infer(run: runs.Run) -> pd.DataFrame:
    """A row per case and timing that passed the gate, in the order of the study; on all cores."""
    study = studies.parse(run.manifest["study"], run.name)
    if run.samples.empty:
        return pd.DataFrame(columns=[*CASE, *TIMING, "median_us"])
    passed = _passed(run)
    groups = [
        (key, _by_replicate(rows), rows) for key, rows in passed.groupby([*CASE, *TIMING], sort=False, observed=True)
    ]
    tick_us = float(run.manifest["clocks"]["tick_us"])
    jobs = [(samples, tick_us / rows["launches"].iloc[0]) for _, samples, rows in groups]
    inferred = _on_all_cores(jobs)
    ceilings = Ceilings(run.manifest)
    rows = [
        dict(zip([*CASE, *TIMING], key, strict=True)) | _context(rows) | row | _rates(key, row, ceilings)
        for (key, _, rows), row in zip(groups, inferred, strict=True)
    ]
    return _in_order(pd.DataFrame(rows), study)


def infer_case(samples: list[np.ndarray], tick_us: float) -> dict[str, float]:
    """What the samples of one case say, an array per replicate; latencies in us.

    Median with its interval, the moments, P95 and P99 with order-statistic intervals (NaN where there are too few
    samples for one), outliers by Tukey's fences (labelled, never dropped), lag-1 autocorrelation and effective N.
    """
    pooled = np.concatenate(samples)
    median = stats.bootstrap_ci(samples, tick=tick_us)
    lower, upper = np.quantile(pooled, [0.25, 0.75])
    reach = 1.5 * (upper - lower)
    row = {
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
        "lag1": stats.lag1(samples),
        "effective_n": stats.effective_n(samples),
    }
    return row | _quantiles(samples)


def _quantiles(samples: list[np.ndarray]) -> dict[str, float]:
    row = {}
    for p in QUANTILES:
        name, interval = f"p{100 * p:.0f}", stats.quantile_ci(samples, p)
        for end in ("estimate", "low", "high"):
            row[f"{name}_us" if end == "estimate" else f"{name}_{end}_us"] = getattr(interval, end, np.nan)
    return row


def _context(rows: pd.DataFrame) -> dict[str, float]:
    """What the samples were taken under."""
    throttled = rows["throttled"].astype("Float64")
    return {
        "replicates": rows["replicate"].nunique(),
        "launches": int(rows["launches"].iloc[0]),
        "sm_clock_mhz": _number(rows["sm_clock_mhz"].median()),
        "throttled_pct": _number(100 * throttled.mean()),
    }


def _rates(key: tuple[object, ...], row: dict[str, float], ceilings: Ceilings) -> dict[str, object]:
    """Work over the median latency, and the floor over it."""
    shape = Shape(**dict(zip(AXES, key[1 : 1 + len(AXES)], strict=True)))  # type: ignore[arg-type]
    median_us, floor_us = row["median_us"], ceilings.floor_us(shape)
    return {
        "flops": shape.flops,
        "bytes": shape.bytes,
        "intensity": shape.intensity,
        "throughput_tflops": shape.flops / median_us / 1e6,
        "bandwidth_gbs": shape.bytes / median_us / 1e3,
        "floor_us": floor_us,
        "limit": ceilings.limit(shape),
        "speed_of_light_pct": 100 * floor_us / median_us,
        "mark": ceilings.mark(shape, median_us),
    }


def _on_all_cores(jobs: list[tuple[list[np.ndarray], float]]) -> list[dict[str, float]]:
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("forkserver")) as pool:
        return list(pool.map(infer_case, *zip(*jobs, strict=True), chunksize=8))


def _passed(run: runs.Run) -> pd.DataFrame:
    """The samples of cases that passed the gate in every replicate, before timing and after."""
    if run.cases.empty:
        return run.samples
    failed = run.cases.loc[run.cases["status"] == "failed", CASE].drop_duplicates()
    joined = run.samples.merge(failed, on=CASE, how="left", indicator=True)
    return joined[joined["_merge"] == "left_only"].drop(columns="_merge")


def _in_order(table: pd.DataFrame, study: Study) -> pd.DataFrame:
    shapes = {tuple(shape.axes.values()): index for index, shape in enumerate(study.shapes)}
    order = pd.DataFrame(
        {
            "shape": [shapes[key] for key in table[AXES].itertuples(index=False, name=None)],
            "implementation": [study.implementations.index(name) for name in table["implementation"]],
        },
        index=table.index,
    )
    return table.loc[order.sort_values(["shape", "implementation"], kind="stable").index].reset_index(drop=True)


def _by_replicate(rows: pd.DataFrame) -> list[np.ndarray]:
    return [group["latency_us"].to_numpy() for _, group in rows.groupby("replicate", sort=True)]


def _is(rows: pd.DataFrame, shape: Shape) -> pd.Series:
    return np.logical_and.reduce([rows[axis] == value for axis, value in shape.axes.items()])


def _number(value: object) -> float:
    return float("nan") if pd.isna(value) else float(value)  # type: ignore[arg-type]


def _code() -> str:
    files = [Path(stats.__file__), Path(__file__), Path(__file__).with_name("roofline.py")]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _keep(table: pd.DataFrame, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    for old in path.parent.glob("inference-*.parquet"):
        old.unlink()
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    table.to_parquet(temporary, index=False)
    temporary.replace(path)
