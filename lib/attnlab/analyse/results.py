"""What a run says once its samples are inferred from: a row per case and timing."""

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy.stats

from attnlab import bootstrap, implementations, paths, runs, shapes, stats, studies
from attnlab.analyse import formats, roofline
from attnlab.analyse.roofline import Ceilings
from attnlab.runs import is_of
from attnlab.shapes import Shape
from attnlab.studies import Study, Timing

AXES = list(Shape.AXES)
CASE = list(runs.CASE)
TIMING = ["clock", "cache"]
QUANTILES = (0.95, 0.99)
CONTEXT = ["replicates", "launches", "launches_most", "sm_clock_mhz", "throttled_pct"]
MEDIAN = ["samples", "median_us", "low_us", "high_us"]
SPREAD = ["mean_us", "std_us", "cv_pct", "min_us", "max_us", "outliers_pct", "lag1", "effective_n"]
TAILS = [f"p{100 * p:.0f}{end}_us" for p in QUANTILES for end in ("", "_low", "_high")]
WORK = ["flops", "bytes", "intensity", "throughput_tflops", "throughput_mark", "bandwidth_gbs", "bandwidth_mark"]
FLOOR = ["floor_us", "limit", "speed_of_light_pct"]
COLUMNS = [*CASE, *TIMING, *CONTEXT, *MEDIAN, *SPREAD, *TAILS, *WORK, *FLOOR]
Pair = tuple[str, str]
"""A baseline and a candidate, in this order."""
Place = tuple[Shape, Timing]
VERDICT = ["decision", "claimable", "speedup", "low", "high", "delta", "g", "pvalue"]
MANY = 64
"""Jobs from which on it saves time to start processes for them."""
NO_CONTROL = "This run did not measure its baseline against itself, so how often it errs can't be told from it"


class NotMeasured(Exception):
    """Something was asked of a run that it does not hold; the message is a sentence without its full stop."""


@dataclass(frozen=True)
class FalsePositives:
    """How often a run told its baseline from itself.

    Attributes:
        wrong: how many of the comparisons found it faster or slower.
        comparisons: all of them, one per shape and timing.
        rate: their ratio with its exact 95 % interval (Clopper & Pearson 1934, Biometrika 26:404). It takes the
            comparisons for independent.
    """

    wrong: int
    comparisons: int
    rate: stats.Interval


class Sides(NamedTuple):
    """Two implementations' samples in us, an array per replicate, and how finely they can be told."""

    baseline: list[np.ndarray]
    candidate: list[np.ndarray]
    tick_us: float


@dataclass(frozen=True)
class Family:
    """What is said of the candidates at one shape under one timing, against the baseline: one family of tests.

    Attributes:
        verdicts: by candidate, in the order of the study, with Holm's p-values.
        unadjusted: the p-values before Holm's adjustment.
        control: the verdict on the baseline against itself, from its samples alone; None where there is no control.
        smallest_effect: what that leaves to be seen, a fraction; 0 where there is no control.
    """

    verdicts: dict[str, stats.Verdict]
    unadjusted: dict[str, float]
    control: stats.Verdict | None
    smallest_effect: float


@dataclass(frozen=True)
class Results:
    """A run and what was inferred from it.

    Attributes:
        table: a row per case and timing, in the order of the study; latencies in us. See `infer_case`.
        key: under which name the verdicts are kept for other processes; empty where they are not.
    """

    run: runs.Run
    table: pd.DataFrame
    key: str = ""

    @cached_property
    def study(self) -> Study:
        """The study that was measured."""
        return studies.recorded(self.run.manifest)

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
        return (self.timings or self.study.timings)[0]

    @cached_property
    def passed(self) -> pd.DataFrame:
        """The samples of the cases that passed in every replicate: those that the table was inferred from."""
        return _passed(self.run)

    @cached_property
    def _samples_by_case(self) -> dict[Any, pd.DataFrame]:
        return dict(iter(self.passed.groupby([*CASE, *TIMING], sort=False)))

    @cached_property
    def _samples(self) -> dict[tuple[str, Shape, Timing], list[np.ndarray]]:
        return {}

    def sweep(self, name: str) -> list[Shape]:
        """The shapes of one sweep.

        Raises:
            NotMeasured: the study has no such sweep.
        """
        if name not in self.study.sweeps:
            raise NotMeasured(f"The study “{self.study.name}” has no sweep “{name}”")
        return self.study.sweep(name)

    def under(self, timing: Timing) -> pd.DataFrame:
        """The rows of one timing."""
        return self.table[(self.table["clock"] == timing.clock) & (self.table["cache"] == timing.cache)]

    def at(self, shape: Shape, timing: Timing | None = None) -> pd.DataFrame:
        """The rows of one shape, under one timing (default: the headline's), indexed by implementation."""
        rows = self.under(timing or self.headline)
        return rows[is_of(rows, shape)].set_index("implementation", drop=False)

    def row(self, implementation: str, shape: Shape, timing: Timing | None = None) -> pd.Series:
        """The row of one case.

        Raises:
            NotMeasured: it has no latency.
        """
        rows = self.at(shape, timing)
        if implementation not in rows.index:
            where = f"{formats.shape(shape)}, {(timing or self.headline).words}"
            raise NotMeasured(f"`{implementation}` has no latency at {where}")
        return rows.loc[implementation]

    def along(self, sweep: str, implementation: str) -> list[tuple[Shape, pd.Series]]:
        """The shapes of a sweep at which an implementation has a latency, each with its row.

        Raises:
            NotMeasured: the study has no such sweep, or the implementation no latency in it.
        """
        there = [(shape, self.at(shape)) for shape in self.sweep(sweep)]
        found = [(shape, rows.loc[implementation]) for shape, rows in there if implementation in rows.index]
        if not found:
            words = self.headline.words
            raise NotMeasured(f"`{implementation}` has no latency in the sweep “{sweep}”, {words}")
        return found

    def samples(self, implementation: str, shape: Shape, timing: Timing | None = None) -> list[np.ndarray]:
        """The latencies of one case that passed in us, an array per replicate, in the order of the rounds."""
        key = (implementation, shape, timing or self.headline)
        if key not in self._samples:
            case = self._case(*key)
            self._samples[key] = [] if case is None else _by_replicate(case)
        return self._samples[key]

    def median(self, name: str, shape: Shape, timing: Timing | None = None) -> stats.Interval:
        """The median of one case with its interval, in us; a control's too, which has no row.

        Raises:
            NotMeasured: it has no latency.
        """
        samples = self.samples(name, shape, timing)
        if not samples or not implementations.is_control(name):
            return median_of(self.row(name, shape, timing))
        return _median_us(samples, self._sides((name, name), shape, timing).tick_us)

    def throttled(self, names: Sequence[str], shape: Shape, timing: Timing | None = None) -> pd.Series:
        """Whether the card held itself back, for each sample of these implementations that passed; NA: not known."""
        cases = [self._case(name, shape, timing) for name in names]
        return pd.concat([case["throttled"] for case in cases if case is not None])

    def tick_us(self, row: pd.Series) -> float:
        """How finely a sample of a case can be told: the step of the clock over the fewest launches it spans."""
        return float(self.run.manifest["clocks"]["tick_us"]) / float(row["launches"])

    def candidates(self, shape: Shape, timing: Timing | None = None) -> list[str]:
        """What is compared with the baseline at one shape: one family of tests.

        Raises:
            NotMeasured: the baseline has no latency there, or nothing else has.
        """
        self.row(self.study.baseline, shape, timing)
        names = [str(name) for name in self.at(shape, timing).index if name != self.study.baseline]
        if not names:
            raise NotMeasured(f"Nothing but `{self.study.baseline}` has a latency at {formats.shape(shape)}")
        return names

    def compare(self, candidate: str, shape: Shape, timing: Timing | None = None) -> stats.Verdict:
        """The verdict on a candidate against the study's baseline at one shape, from rounds taken together.

        Its p-value is Holm's, over all candidates at this shape and timing. Where the run measured its baseline against
        itself there, nothing is faster, slower or equivalent by less than the `smallest_effect`; where it didn't, only
        the comparison's own samples decide (`is_controlled` tells which).

        Raises:
            NotMeasured: one of the two has no latency there.
        """
        self.row(candidate, shape, timing)
        return self.family(shape, timing).verdicts[candidate]

    def family(self, shape: Shape, timing: Timing | None = None) -> Family:
        """What is said of the candidates at one shape under one timing.

        Raises:
            NotMeasured: the baseline has no latency there.
        """
        place = (shape, timing or self.headline)
        if place not in self._known:
            self._known[place] = infer_family(*self._job(*place))
        return self._known[place]

    @cached_property
    def families(self) -> dict[Place, Family]:
        """The family of every shape and timing at which the baseline has a latency; on all cores, and kept."""
        places = [(shape, timing) for timing in self.timings for shape in self.study.shapes]
        places = [place for place in places if self.samples(self.study.baseline, *place)]
        missing = [place for place in places if place not in self._known]
        inferred = _on_all_cores(infer_family, [self._job(*place) for place in missing])
        self._known.update(zip(missing, inferred, strict=True))
        found = {place: self._known[place] for place in places}
        if missing and self.key:
            _keep(_as_table(found), self._kept_families)
        return found

    def families_under(self, timing: Timing) -> dict[Shape, Family]:
        """The same of one timing, by shape."""
        return {shape: family for (shape, under), family in self.families.items() if under == timing}

    def compare_pairs(self, pairs: Sequence[Pair], shape: Shape, timing: Timing | None = None) -> list[stats.Verdict]:
        """The verdicts on pairs of (baseline, candidate) at one shape, from rounds taken together.

        The pairs are one family of tests: their p-values are Holm's, over these and no others.

        Raises:
            NotMeasured: one of them has no latency there.
        """
        for name in dict.fromkeys(name for pair in pairs for name in pair):
            self.row(name, shape, timing)
        smallest = self.smallest_effect(shape, timing) if self.is_controlled(shape, timing) else 0.0
        judged, _ = _judge([self._sides(pair, shape, timing) for pair in pairs], smallest)
        return judged

    def speedup(
        self, candidate: str, shape: Shape, timing: Timing | None = None, baseline: str | None = None
    ) -> stats.Interval:
        """Ratio of medians over a baseline (default: the study's) at one shape, from rounds taken together.

        Raises:
            NotMeasured: one of the two has no latency there.
        """
        pair = (baseline or self.study.baseline, candidate)
        for name in pair:
            self.row(name, shape, timing)
        sides = self._sides(pair, shape, timing)
        return stats.ratio_ci(sides.baseline, sides.candidate, tick=sides.tick_us, paired=True)

    def is_controlled(self, shape: Shape, timing: Timing | None = None) -> bool:
        """Whether the run measured its baseline against itself at one shape, and both passed."""
        names = (self.study.baseline, implementations.control(self.study.baseline))
        return all(self.samples(name, shape, timing) for name in names)

    def control(self, shape: Shape, timing: Timing | None = None) -> stats.Verdict:
        """The verdict on the baseline against itself at one shape (A/A), from its samples alone.

        Raises:
            NotMeasured: the run has no control there.
        """
        return self._controlled(shape, timing)[0]

    def smallest_effect(self, shape: Shape, timing: Timing | None = None) -> float:
        """The smallest effect, a fraction, that could have been seen at one shape: `stats.smallest_effect` of the A/A.

        Raises:
            NotMeasured: the run has no control there.
        """
        return self._controlled(shape, timing)[1]

    def controlled(self) -> list[tuple[Shape, Timing]]:
        """The shapes and timings at which the run measured its baseline against itself."""
        places = [(shape, timing) for timing in self.timings for shape in self.study.shapes]
        return [place for place in places if self.is_controlled(*place)]

    @cached_property
    def false_positives(self) -> FalsePositives:
        """How often this run told its baseline from itself, over all shapes and timings.

        Raises:
            NotMeasured: the run has no control anywhere.
        """
        decisions = [family.control.decision for family in self.families.values() if family.control]
        if not decisions:
            raise NotMeasured(NO_CONTROL)
        wrong = sum(decision in ("faster", "slower") for decision in decisions)
        exact = scipy.stats.binomtest(wrong, len(decisions)).proportion_ci(0.95, method="exact")
        rate = stats.Interval(wrong / len(decisions), float(exact.low), float(exact.high))
        return FalsePositives(wrong, len(decisions), rate)

    @cached_property
    def _known(self) -> dict[Place, Family]:
        """The families that were inferred so far, in this process or before."""
        table = _kept(self._kept_families) if self.key else None
        return {} if table is None else _from_table(table)

    @property
    def _kept_families(self) -> Path:
        return _path(self.run, "verdicts", self.key)

    def _controlled(self, shape: Shape, timing: Timing | None) -> tuple[stats.Verdict, float]:
        if not self.is_controlled(shape, timing):
            where = f"{formats.shape(shape)}, {(timing or self.headline).words}"
            raise NotMeasured(f"`{self.study.baseline}` was not measured against itself at {where}")
        family = self.family(shape, timing)
        assert family.control is not None
        return family.control, family.smallest_effect

    def _job(self, shape: Shape, timing: Timing) -> tuple[dict[str, Sides], Sides | None]:
        """What `infer_family` takes."""
        baseline = self.study.baseline
        self.row(baseline, shape, timing)
        names = [str(name) for name in self.at(shape, timing).index if name != baseline]
        against_itself = (baseline, implementations.control(baseline))
        control = self._sides(against_itself, shape, timing) if self.is_controlled(shape, timing) else None
        return {name: self._sides((baseline, name), shape, timing) for name in names}, control

    def fastest(self, shape: Shape, timing: Timing | None = None) -> str:
        """The implementation with the smallest median at a shape.

        Raises:
            NotMeasured: nothing has a latency there.
        """
        rows = self.at(shape, timing)
        if rows.empty:
            raise NotMeasured(f"Nothing has a latency at {formats.shape(shape)}")
        return str(rows["median_us"].idxmin())

    def peak_bytes(self, implementation: str, shape: Shape) -> float:
        """The most memory that a case had allocated at once; NaN where it was not measured."""
        cases = self.run.cases
        chosen = cases[
            (cases["implementation"] == implementation) & (cases["status"] == "measured") & is_of(cases, shape)
        ]
        return float(chosen["peak_memory_bytes"].max()) if len(chosen) else np.nan

    def held_back(self) -> list[Shape]:
        """The shapes that had more than half of their samples, all implementations', taken at a throttled clock."""
        rows = self.under(self.headline)
        shares = rows.groupby(AXES, sort=False)["throttled_pct"].mean()
        return [Shape(**dict(zip(AXES, key, strict=True))) for key in shares[shares > 50].index]

    def _sides(self, pair: Pair, shape: Shape, timing: Timing | None) -> Sides:
        """The samples of a pair, and how finely both can be told."""
        baseline, candidate = (self.samples(name, shape, timing) for name in pair)
        cases = [self._case(name, shape, timing) for name in pair]
        launches = min(int(case["launches"].min()) for case in cases if case is not None)
        return Sides(baseline, candidate, float(self.run.manifest["clocks"]["tick_us"]) / launches)

    def _case(self, name: str, shape: Shape, timing: Timing | None) -> pd.DataFrame | None:
        timing = timing or self.headline
        return self._samples_by_case.get((name, *shape.axes.values(), timing.clock, timing.cache))


def of(run: runs.Run) -> Results:
    """Infer from a run, or take what was inferred from exactly these samples by exactly this code before."""
    if not run.complete:
        return Results(run, infer(run))
    key = hashlib.sha256(f"{runs.digest(run.manifest)} {_code()}".encode()).hexdigest()[:16]
    kept = _path(run, "inference", key)
    if (table := _kept(kept)) is None:
        table = infer(run)
        _keep(table, kept)
    return Results(run, table, key)


def infer(run: runs.Run) -> pd.DataFrame:
    """A row per case and timing that passed the gate, in the order of the study, without controls; on all cores."""
    study = studies.recorded(run.manifest)
    passed = _passed(run)
    passed = passed[~passed["implementation"].map(implementations.is_control).astype(bool)]
    if passed.empty:
        return pd.DataFrame(columns=COLUMNS)
    groups = [
        (key, _by_replicate(rows), rows) for key, rows in passed.groupby([*CASE, *TIMING], sort=False, observed=True)
    ]
    tick_us = float(run.manifest["clocks"]["tick_us"])
    jobs = [(samples, tick_us / rows["launches"].min()) for _, samples, rows in groups]
    inferred = _on_all_cores(infer_case, jobs)
    ceilings = Ceilings(run.manifest)
    rows = [
        dict(zip([*CASE, *TIMING], key, strict=True)) | _context(rows) | row | _rates(key, row, ceilings)
        for (key, _, rows), row in zip(groups, inferred, strict=True)
    ]
    return _in_order(pd.DataFrame(rows, columns=COLUMNS), study)


def infer_case(samples: list[np.ndarray], tick_us: float) -> dict[str, float]:
    """What the samples of one case say, an array per replicate; latencies in us.

    Median with its interval, the moments, P95 and P99 with order-statistic intervals (NaN where there are too few
    samples for one), outliers by Tukey's fences (labelled, never dropped), lag-1 autocorrelation and effective N.
    """
    pooled = np.concatenate(samples)
    median = _median_us(samples, tick_us)
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


def _median_us(samples: list[np.ndarray], tick_us: float) -> stats.Interval:
    """The median with its interval; Student's t over few replicates doesn't know that no latency is below 0."""
    median = stats.bootstrap_ci(samples, tick=tick_us)
    return stats.Interval(median.estimate, max(median.low, 0.0), median.high)


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
        "launches": int(rows["launches"].min()),
        "launches_most": int(rows["launches"].max()),
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
        "throughput_mark": ceilings.throughput_mark(shape, median_us),
        "bandwidth_gbs": shape.bytes / median_us / 1e3,
        "bandwidth_mark": ceilings.bandwidth_mark(shape, median_us),
        "floor_us": floor_us,
        "limit": ceilings.limit(shape),
        "speed_of_light_pct": 100 * floor_us / median_us,
    }


def infer_family(pairs: dict[str, Sides], control: Sides | None) -> Family:
    """The verdicts on candidates at one shape, each from its and the baseline's samples, and on the baseline itself."""
    itself, smallest = None, 0.0
    if control is not None:
        sides = control.baseline, control.candidate
        itself = stats.verdict(*sides, tick=control.tick_us, paired=True)
        smallest = stats.smallest_effect(*sides, tick=control.tick_us, paired=True)
    verdicts, pvalues = _judge(list(pairs.values()), smallest)
    named = dict(zip(pairs, verdicts, strict=True)), dict(zip(pairs, pvalues, strict=True))
    return Family(*named, itself, smallest)


def _judge(family: Sequence[Sides], smallest_effect: float) -> tuple[list[stats.Verdict], list[float]]:
    """The verdicts on one family of tests, with Holm's p-values, and the p-values that Holm adjusted."""
    alone = [stats.difference_pvalue(sides.baseline, sides.candidate, paired=True) for sides in family]
    verdicts = [
        stats.verdict(
            sides.baseline,
            sides.candidate,
            tick=sides.tick_us,
            paired=True,
            pvalue=float(pvalue),
            smallest_effect=smallest_effect,
        )
        for sides, pvalue in zip(family, stats.holm(alone), strict=True)
    ]
    return verdicts, alone


def _on_all_cores(work: Callable[..., Any], jobs: Sequence[tuple[Any, ...]]) -> list[Any]:
    """What each job comes to, in their order."""
    if len(jobs) < MANY:
        return [work(*job) for job in jobs]
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("forkserver")) as pool:
        return list(pool.map(work, *zip(*jobs, strict=True), chunksize=4))


def _passed(run: runs.Run) -> pd.DataFrame:
    """The samples of cases that were measured in every replicate, each checked before and after.

    A shape whose cases are not recorded yet was cut off before its last checks: in that replicate it doesn't count.
    """
    if run.cases.empty:
        return run.samples.head(0)
    measured = run.cases["status"] == "measured"
    lost = pd.MultiIndex.from_frame(run.cases.loc[~measured, CASE])
    whole = run.cases.loc[measured, [*CASE, "replicate"]]
    kept = whole[~pd.MultiIndex.from_frame(whole[CASE]).isin(lost)]
    return run.samples.merge(kept, on=[*CASE, "replicate"], how="inner")


def _in_order(table: pd.DataFrame, study: Study) -> pd.DataFrame:
    places = {tuple(shape.axes.values()): index for index, shape in enumerate(study.shapes)}
    order = pd.DataFrame(
        {
            "shape": [places[key] for key in table[AXES].itertuples(index=False, name=None)],
            "implementation": [study.implementations.index(name) for name in table["implementation"]],
        },
        index=table.index,
    )
    return table.loc[order.sort_values(["shape", "implementation"], kind="stable").index].reset_index(drop=True)


def _by_replicate(rows: pd.DataFrame) -> list[np.ndarray]:
    return [group["latency_us"].to_numpy() for _, group in rows.groupby("replicate", sort=True)]


def median_of(row: Any) -> stats.Interval:
    """The median of a row of the table with its interval, in us."""
    return stats.Interval(row["median_us"], row["low_us"], row["high_us"])


def on_normal(checks: pd.DataFrame) -> pd.DataFrame:
    """The checks that were made on standard normal inputs, as is timed."""
    return checks[checks["inputs"] == "normal"]


def axis_of(sweep: str) -> str:
    """The axis that a sweep goes along: the last word of its name."""
    return sweep.split()[-1]


def _number(value: object) -> float:
    return float("nan") if pd.isna(value) else float(value)  # type: ignore[arg-type]


def _code() -> str:
    files = [Path(name) for name in (stats.__file__, bootstrap.__file__, shapes.__file__, roofline.__file__, __file__)]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _path(run: runs.Run, what: str, key: str) -> Path:
    return paths.reports() / run.name / f"{what}-{key}.parquet"


def _kept(path: Path) -> pd.DataFrame | None:
    """What was kept, unless it isn't there or not whole: it can always be inferred again."""
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError):  # pyarrow's errors are one or the other
        return None


def _keep(table: pd.DataFrame, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    for old in path.parent.glob(f"{path.stem.split('-')[0]}-*.parquet"):
        old.unlink(missing_ok=True)  # another process may be keeping the same
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    table.to_parquet(temporary, index=False)
    temporary.replace(path)


def _as_table(families: dict[Place, Family]) -> pd.DataFrame:
    """A row per verdict, the control's first, as `_from_table` reads them."""
    rows = []
    for (shape, timing), family in families.items():
        where = {**shape.axes, "clock": timing.clock, "cache": timing.cache, "smallest": family.smallest_effect}
        for name, verdict in {"": family.control, **family.verdicts}.items():
            told = [None] * len(VERDICT) if verdict is None else _flat(verdict)
            alone = family.unadjusted.get(name, np.nan)
            rows.append({**where, "candidate": name, **dict(zip(VERDICT, told, strict=True)), "unadjusted": alone})
    return pd.DataFrame(rows, columns=[*AXES, *TIMING, "smallest", "candidate", *VERDICT, "unadjusted"])


def _flat(verdict: stats.Verdict) -> list[Any]:
    speedup = verdict.speedup
    ends = [speedup.estimate, speedup.low, speedup.high]
    return [verdict.decision, verdict.claimable, *ends, verdict.delta, verdict.g, verdict.pvalue]


def _from_table(table: pd.DataFrame) -> dict[Place, Family]:
    families = {}
    for key, rows in table.groupby([*AXES, *TIMING], sort=False):
        *axes, clock, cache = key
        place = Shape(**dict(zip(AXES, axes, strict=True))), Timing(clock=clock, cache=cache)
        (control, *_), *candidates = [(_verdict(row), row) for row in rows.to_dict("records")]
        verdicts = {row["candidate"]: verdict for verdict, row in candidates if verdict}
        unadjusted = {row["candidate"]: row["unadjusted"] for _, row in candidates}
        families[place] = Family(verdicts, unadjusted, control, float(rows["smallest"].iloc[0]))
    return families


def _verdict(row: dict[str, Any]) -> stats.Verdict | None:
    if pd.isna(row["decision"]):
        return None
    speedup = stats.Interval(row["speedup"], row["low"], row["high"])
    return stats.Verdict(row["decision"], bool(row["claimable"]), speedup, row["delta"], row["g"], row["pvalue"])
