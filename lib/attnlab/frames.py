"""A recorded run as tidy frames: a row per sample, then a row per case, then a row per comparison.

Every function takes frames and gives a frame. Latencies are in microseconds (`_us`), shares in percent (`_pct`).
Your own frames work too: they need `implementation`, `latency_us` and the first 4 axes; other axes have the defaults of
`Shape`. A wrong column, a name that was not measured, or samples that must not be pooled raise UserError.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from attnlab import cache, roofline, stats
from attnlab.base.errors import UserError, suggestion
from attnlab.base.rules import ALPHA, EQUIVALENCE_MARGIN
from attnlab.runs import read, schema
from attnlab.study import implementations, studies
from attnlab.study.ladder import PREFIX
from attnlab.study.shapes import Shape
from attnlab.study.values import ZEROS

AXES = list(Shape.AXES)
TIMING = list(schema.TIMING)
CASE = list(schema.CASE)
KEY = [*CASE, *TIMING]
is_equal = schema.is_equal
LEAST_CARDS = 3
"""The fewest cards that serve as blocks: with 2, a 95 % interval is ±12.7 standard errors."""
QUANTILES = {"p95": 0.95, "p99": 0.99}
USED = ["replicate", "block", "round", "launches", "latency_us", "tick_us", "sm_clock_mhz", "throttled", "run"]
"""The columns of samples that inference reads, in addition to those of the case and its timing."""
DEFAULTS = {axis: getattr(Shape(1, 1, 1, 8), axis) for axis in AXES[4:]} | {
    **{"kv_heads": 0, "kv_len": 0, "clock": "device", "cache": "warm", "replicate": 0, "launches": 1, "tick_us": 0.0},
    **{"round": np.nan, "sm_clock_mhz": np.nan, "throttled": np.nan, "run": ""},
}
MAD = 1.4826
"""The standard deviation of normal values over their median absolute deviation."""


def load(name: str) -> schema.Run:
    """Read a run: `.samples .checks .cases .processes .panel .profile .ceilings ...` are frames, `.manifest` is a dict.

    `.samples` has the samples of cases that passed every check in every replicate, and 4 more columns: `card`;
    `block`, the independent unit of intervals (the card if there are 3 or more, else the replicate); `tick_us`, the
    step of the clock divided by the launches of a sample; and `run`.

    Raises UserError: there is no such run, it was changed after it was recorded, or it is inconsistent.
    """
    seal = read.read_manifest(str(name))["seal"]
    if is_judged := cache.is_marked(str(name), f"judged {seal}"):
        read.JUDGED.add(seal)
    run = read.load(str(name))
    if run.complete and not is_judged:
        cache.mark(run.name, f"judged {seal}")
    return with_blocks(run)


def with_blocks(run: schema.Run) -> schema.Run:
    """A run with only the samples of cases that were measured in every replicate, and with the columns of `load`.

    If the cases of a shape are not recorded yet, its last checks are missing: that replicate doesn't count.
    """
    is_measured = run.cases["status"] == schema.MEASURED
    is_whole = is_measured.groupby([run.cases[name] for name in CASE]).transform("all")
    samples = run.samples.merge(run.cases.loc[is_whole, [*CASE, "replicate"]])
    card, block = samples["process"].map(run.processes.set_index("process")["card"]), samples["replicate"].astype(str)
    if card.nunique() >= LEAST_CARDS:
        few = card.groupby(_number(samples, KEY)).transform("nunique") < LEAST_CARDS
        block = card.mask(few | card.isna(), block)
    tick_us = float(run.manifest["clocks"]["tick_us"]) / samples["launches"]
    samples = samples.assign(card=card, block=block, tick_us=tick_us, run=run.name)
    return replace(run, samples=samples, ceilings=roofline.ceilings(run.manifest))


def _number(rows: pd.DataFrame, columns: list[str]) -> np.ndarray:
    """The number of each row's key; keys are numbered by first appearance."""
    return rows.groupby(columns, sort=False, dropna=False).ngroup().to_numpy()


def target(run: schema.Run, **stated: Any) -> dict[str, Any]:
    """The axes of the study's target and its first timing; stated values replace them unless they are None.

    Raises UserError: a stated name is not an axis.
    """
    study = studies.recorded(run.manifest)
    timings = [timing for timing in study.timings if is_equal(run.samples, dict(timing)).any()]
    known = study.target_shape.axes | (timings or study.timings)[0].model_dump()
    given = {axis: value for axis, value in stated.items() if value is not None}
    for axis in given:
        require_column(axis, known)
    for axis, like in (("kv_heads", "heads"), ("kv_len", "seq_len")):  # still equal, if they were
        if like in given and axis not in given and known[axis] == known[like]:
            given[axis] = given[like]
    return known | given


def require_column(name: str, known: Iterable[str]) -> None:
    """Raise UserError unless a frame with these columns has this one."""
    known = list(known)
    if name not in known:
        raise UserError(f"there is no column {name!r}{suggestion(name, known)}; columns are {', '.join(known)}")


def where(frame: pd.DataFrame, **equal: Any) -> pd.DataFrame:
    """The rows at which columns have these values; a value may be a list of values.

    Raises UserError: no such column; a value, or a combination of values, that no row has.
    """
    kept = frame
    for name, value in equal.items():
        require_column(name, frame.columns)
        wanted = list(value) if pd.api.types.is_list_like(value) else [value]
        for one in wanted:
            _require_value(frame[name], one)
        kept = kept[kept[name].isin(wanted)]
        if kept.empty and len(frame):
            said = " and ".join(f"{name}={value!r}" for name, value in equal.items())
            raise UserError(f"no row has {said}: look at what there is")
    return kept


def _require_value(column: pd.Series, value: Any) -> None:
    known = column.dropna().unique()
    if value in known or (isinstance(value, float) and math.isnan(value)):
        return
    ordered = sorted(known, key=lambda one: (type(one).__name__, one))
    there = ", ".join(map(str, ordered[:20])) + (", ..." if len(known) > 20 else "")
    is_number = pd.api.types.is_numeric_dtype(column)
    if is_number and isinstance(value, (int, float)) and len(known):
        near = f"; did you mean {min(known, key=lambda one: abs(float(one) - value))}?"
    else:
        near = suggestion(str(value), map(str, known))
    if is_number:
        near = near.replace("'", "")  # a number stands without quotes
    raise UserError(f"no row has {column.name}={value!r}; there are {there or 'no rows'}{near}")


@dataclass(frozen=True)
class _Taken:
    """The samples of one case under one timing: latencies in blocks and in replicates, in the order taken."""

    blocks: list[np.ndarray]
    replicates: list[np.ndarray]
    rounds: np.ndarray
    tick_us: float


def _by_case(samples: pd.DataFrame) -> dict[tuple[Any, ...], _Taken]:
    """The samples of each case by the values of CASE and TIMING; cases are in order of first appearance."""
    case, block = _number(samples, KEY), pd.factorize(samples["block"], use_na_sentinel=False)[0]
    replicate = pd.factorize(samples["replicate"])[0]
    turn = samples["round"].to_numpy(float, na_value=np.nan)
    order = np.lexsort((turn, replicate, block, case))  # stable: samples without a round keep their order
    case, block, replicate, turn = case[order], block[order], replicate[order], turn[order]
    if not np.any([np.diff(column) for column in (case, block, replicate, turn)], axis=0).all():
        raise UserError("a case has several samples of the same replicate and round: leave out what is there twice")
    latency, tick = samples["latency_us"].to_numpy(float)[order], samples["tick_us"].to_numpy(float)[order]
    ends = np.flatnonzero(np.diff(case)) + 1
    keys = samples[KEY].iloc[order[np.r_[0, ends]]].itertuples(index=False, name=None) if len(order) else ()
    parts = zip(*(np.split(column, ends) for column in (latency, block, replicate, turn, tick)), strict=True)
    found = {}
    for key, (taken, its_block, its_replicate, its_turn, its_tick) in zip(keys, parts, strict=bool(len(order))):
        at = np.flatnonzero(np.diff(its_block)) + 1
        within = np.flatnonzero(np.diff(its_block) | np.diff(its_replicate)) + 1
        found[key] = _Taken(np.split(taken, at), np.split(taken, within), its_turn, float(its_tick.max()))
    return found


def _prepared(samples: pd.DataFrame) -> pd.DataFrame:
    """The columns that inference reads; axes that a frame lacks have the defaults of `Shape`.

    Raises UserError: a column is missing; samples are of several runs; a latency is not a positive number.
    """
    for name in ("implementation", "latency_us", *AXES[:4]):
        require_column(name, samples.columns)
    lacking = {name: value for name, value in DEFAULTS.items() if name not in samples}
    samples = samples.assign(**lacking)
    for axis, like in (("kv_heads", "heads"), ("kv_len", "seq_len")):
        if axis in lacking:
            samples[axis] = samples[like]
    if "block" not in samples:
        samples["block"] = samples["replicate"].astype(str)
    if len(runs := samples["run"].unique()) > 1:
        named = ", ".join(sorted(map(str, runs)))
        advice = "choose one, or use compare_runs(before, after)"
        raise UserError(f"these samples are of {len(runs)} runs ({named}): {advice}")
    latencies = samples["latency_us"].to_numpy(float, na_value=np.nan)
    if not (np.isfinite(latencies) & (latencies > 0)).all():
        raise UserError("latency_us has values that are not positive numbers: leave these rows out")
    return samples[[*KEY, *USED]]


def summarize(samples: pd.DataFrame) -> pd.DataFrame:
    """A row per case and timing, without controls, in order of first appearance.

    Columns, after CASE and TIMING: replicates, blocks, launches, sm_clock_mhz, throttled_pct; samples, median_us with
    its 95 % interval low_us to high_us (`stats.bootstrap_ci`), mean_us, std_us, cv_pct, min_us, max_us; outliers_pct by
    Tukey's fences (labelled, never dropped); lag1, effective_n; p95_us and p99_us with the ends of order-statistic
    intervals (NaN if there are too few samples).

    Raises UserError: a column is missing, samples of several runs are mixed, or a round has 2 samples of a case.
    """
    samples = _prepared(samples)
    samples = samples[~samples["implementation"].str.startswith("control.")]
    return cache.kept(_run_of(samples), "summarize", samples, make=lambda: _summarized(samples))


def _run_of(samples: pd.DataFrame) -> str:
    return str(samples["run"].iloc[0]) if len(samples) else ""


def _summarized(samples: pd.DataFrame) -> pd.DataFrame:
    rows = [dict(zip(KEY, key, strict=True)) | _summary(taken) for key, taken in _by_case(samples).items()]
    state = samples.assign(throttled=100 * samples["throttled"].astype("Float64").astype(float))
    state["sm_clock_mhz"] = state["sm_clock_mhz"].astype("Float64").astype(float)
    context = state.groupby(_number(state, KEY)).agg(
        replicates=("replicate", "nunique"),
        launches=("launches", "min"),
        sm_clock_mhz=("sm_clock_mhz", "median"),
        throttled_pct=("throttled", "mean"),
    )
    names = _summary(_Taken([np.ones(2)], [np.ones(2)], np.ones(2), 0.0))
    found = pd.DataFrame(rows, columns=[*KEY, *names]).astype(samples[KEY].dtypes)  # also without rows
    return found.join(context)


def _summary(taken: _Taken) -> dict[str, float]:
    pooled = np.concatenate(taken.blocks)
    median = stats.bootstrap_ci(taken.blocks, tick=taken.tick_us)
    lower, upper = np.quantile(pooled, [0.25, 0.75])
    reach, deviation = 1.5 * (upper - lower), pooled.std(ddof=1) if pooled.size > 1 else np.nan
    row = {
        "blocks": len(taken.blocks),
        "samples": pooled.size,
        "median_us": median.estimate,
        "low_us": median.low,
        "high_us": median.high,
        "mean_us": pooled.mean(),
        "std_us": deviation,
        "cv_pct": 100 * deviation / pooled.mean(),
        "min_us": pooled.min(),
        "max_us": pooled.max(),
        "outliers_pct": 100 * np.mean((pooled < lower - reach) | (pooled > upper + reach)),
        "lag1": (lag1 := stats.lag1(taken.replicates)),
        "effective_n": stats.effective_n(pooled.size, lag1),
    }
    for name, p in QUANTILES.items():
        found = stats.quantile_ci(pooled, p) or stats.Interval(np.nan, np.nan, np.nan)
        row |= {f"{name}_us": found.estimate, f"{name}_low_us": found.low, f"{name}_high_us": found.high}
    return row


def compare(samples: pd.DataFrame, baseline: str = "sdpa.auto") -> pd.DataFrame:
    """A row per candidate, shape and timing: the candidate against the baseline, from the same rounds.

    Columns: candidate, baseline, AXES, TIMING, baseline_us, candidate_us, speedup with its 95 % interval low to high
    (`stats.ratio_ci`, rounds paired), p (`stats.difference_pvalue`), p_holm (adjusted over the candidates at the shape
    and timing), delta (Cliff), g (Hedges), smallest_effect (the smallest that A/A can detect, a fraction; 0
    without a control), decision (faster, slower, equivalent, inconclusive), claimable, blocks.

    Raises UserError: as `summarize`; the baseline has no sample.
    """
    samples = _prepared(samples)
    require_implementation(samples, baseline)
    return cache.kept(_run_of(samples), f"compare {baseline}", samples, make=lambda: _compared(samples, baseline))


def control(samples: pd.DataFrame, baseline: str = "sdpa.auto") -> pd.DataFrame:
    """The baseline against itself (A/A) at each shape and timing: the columns of `compare`, and `excludes_1`.

    Any decision of faster or slower here is a false positive. The p-value is not adjusted.

    Raises UserError: as `compare`; the run has no control of the baseline.
    """
    samples = _prepared(samples)
    require_implementation(samples, baseline)
    name = implementations.control(baseline)
    both = samples[samples["implementation"].isin([baseline, name])]
    if name not in both["implementation"].unique():
        raise UserError(f"{baseline} was not measured against itself: only a study's baseline has a control")
    make = partial(_compared, both, baseline, is_control=True)
    judged = cache.kept(_run_of(samples), f"control {baseline}", both, make=make)
    return judged.assign(excludes_1=(judged["low"] > 1) | (judged["high"] < 1))


def require_implementation(frame: pd.DataFrame, name: str) -> None:
    """Raise UserError unless a frame holds this implementation."""
    known = sorted(one for one in map(str, frame["implementation"].unique()) if not implementations.is_control(one))
    if name not in known:
        raise UserError(f"no sample is of {name!r}{suggestion(name, known)}; there are {', '.join(known) or 'none'}")


def _compared(samples: pd.DataFrame, baseline: str, is_control: bool = False) -> pd.DataFrame:
    """The candidates, or the control alone; the tests at a shape and timing are one family."""
    places: dict[tuple[Any, ...], dict[str, _Taken]] = {}
    for (name, *place), taken in _by_case(samples).items():
        places.setdefault(tuple(place), {})[str(name)] = taken
    rows = []
    for at, there in places.items():
        if (base := there.pop(baseline, None)) is None:
            continue
        itself = there.get(implementations.control(baseline))
        smallest = _judged(stats.smallest_effect, base, itself) if itself else 0.0
        others = {name: it for name, it in there.items() if is_control or not implementations.is_control(name)}
        ps = [stats.difference_pvalue(base.blocks, it.blocks, _paired(base, it)) for it in others.values()]
        for (name, it), p, adjusted in zip(others.items(), ps, stats.holm(ps), strict=True):
            least = 0.0 if is_control else smallest
            verdict = _judged(stats.verdict, base, it, pvalue=float(adjusted), smallest_effect=least)
            medians = (float(np.median(np.concatenate(side.blocks))) for side in (base, it))
            interval = verdict.speedup
            values = (interval.estimate, interval.low, interval.high, p, verdict.pvalue, verdict.delta, verdict.g)
            fate = (smallest, verdict.decision, verdict.claimable, len(it.blocks))
            rows.append((name, baseline, *at, *medians, *values, *fate))
    compared = ["baseline_us", "candidate_us", "speedup", "low", "high", "p", "p_holm", "delta", "g"]
    compared += ["smallest_effect", "decision", "claimable", "blocks"]
    return pd.DataFrame(rows, columns=["candidate", "baseline", *AXES, *TIMING, *compared])


def _paired(one: _Taken, other: _Taken) -> bool:
    """Whether rounds can be paired: both sides have the same ones, and the same number in each block."""
    sizes = [[block.size for block in side.blocks] for side in (one, other)]
    return sizes[0] == sizes[1] and np.array_equal(one.rounds, other.rounds, equal_nan=True)


def _judged(judge: Callable[..., Any], base: _Taken, other: _Taken, **options: Any) -> Any:
    tick, paired = max(base.tick_us, other.tick_us), _paired(base, other)
    return judge(base.blocks, other.blocks, tick=tick, paired=paired, **options)


def worst(verdicts: pd.DataFrame, over: str | Sequence[str] = "values", of: str = "speedup") -> pd.DataFrame:
    """For each candidate, shape and timing, the row of `compare` with the least speedup over an axis, e.g. `values`.

    A claim must hold for this row. Zeros are skipped if other inputs were timed: no program attends to zeros.
    More columns: `n`, the number of the axis's values at which the candidate was timed; `mean`, the geometric mean of
    its speedups; `highest`, the largest; `lacking`, the number of values at which only others were timed; `over`.

    Args:
        over: an axis or several. With `seq_len` name `kv_len`, and with `heads` `kv_heads`, if they are equal.
        of: `speedup`, or a ratio of `compare_errors`, of which the largest is the worst.

    Raises UserError: no such column; several rows of a candidate at one shape and timing.
    """
    over = [over] if isinstance(over, str) else list(over)
    for name in ("candidate", *over, of):
        require_column(name, verdicts.columns)
    place = [name for name in ["baseline", *AXES, *TIMING] if name not in over and name in verdicts]
    if verdicts.duplicated(["candidate", *place, *over]).any():
        raise UserError("a candidate has several rows at one shape and timing: leave out all but those of one run")
    judged = verdicts.reset_index(drop=True)
    if "values" in over:
        is_judged = judged["values"] != ZEROS
        others = is_judged.groupby([judged[name] for name in place], sort=False).transform("any")
        judged = judged[is_judged | ~others]
    groups = judged.groupby(["candidate", *place], sort=False)[of]
    means = groups.agg(_geometric_mean).to_numpy()
    found = judged.loc[groups.idxmin() if of == "speedup" else groups.idxmax()]
    found = found.assign(n=groups.size().to_numpy(), mean=means, highest=groups.max().to_numpy(), over=" ".join(over))
    at = judged[[*place, *over]].drop_duplicates().groupby(place, sort=False).size().rename("lacking")
    found = found.merge(at.reset_index(), on=place, how="left")
    return found.assign(lacking=found["lacking"] - found["n"])


def over_fastest(samples: pd.DataFrame, candidate: str, besides: Sequence[str] = ()) -> pd.DataFrame:
    """A row of `compare` per shape and timing: the candidate over the fastest of SDPA's backends and peers there.

    The column `fastest` has its name and replaces `baseline`. More columns: sdpa_us, the latency of ``sdpa.auto``, and
    over_sdpa, the speedup over it.

    Args:
        besides: implementations that don't count among the others, e.g. one that chooses from them.
    """
    others = [name for name in samples["implementation"].unique() if str(name).startswith(("sdpa.", "peer."))]
    pairs = (compare(samples[samples["implementation"].isin([other, candidate])], other) for other in others)
    verdicts, place = pd.concat(pairs, ignore_index=True), [*AXES, *TIMING]
    sdpa = verdicts[verdicts["baseline"] == implementations.FALLBACK].set_index(place)[["baseline_us", "speedup"]]
    fastest = verdicts[~verdicts["baseline"].isin(besides)].sort_values("baseline_us").drop_duplicates(place)
    sdpa = sdpa.set_axis(["sdpa_us", "over_sdpa"], axis=1)
    return fastest.rename(columns={"baseline": "fastest"}).join(sdpa, on=place)


def _geometric_mean(ratios: pd.Series) -> float:
    return float(np.exp(np.log(ratios).mean()))


def drawn(
    run: schema.Run, candidate: str = implementations.DISPATCH, clock: str = "device", cache: str = "warm"
) -> pd.DataFrame:
    """A row per random shape of the run's study: the candidate and the others, also where it lost or has no latency.

    Columns: AXES, label, keys (`KEYS`), clears (the baseline's call clears memory first), us of the candidate,
    baseline_us, speedup, fastest (of implementations that are not ours), fastest_us, over_fastest. Ratios are above 1
    if the candidate is faster, and NaN if one of the 2 was not measured.

    Raises UserError: the study drew no shapes; the candidate or the timing was not measured.
    """
    study = studies.recorded(run.manifest)
    if not study.drawn_shapes:
        raise UserError(f"the study of {run.name!r} drew no shapes: name a run of the study 'drawn'")
    cases = summarize(where(run.samples, clock=clock, cache=cache))
    require_implementation(cases, candidate)
    us = cases.pivot(index=AXES, columns="implementation", values="median_us")
    rows = pd.DataFrame([shape.axes | {"label": shape.label} for shape in study.drawn_shapes]).set_index(AXES)
    us, shapes = us.reindex(rows.index), run.cases[run.cases["implementation"] == study.baseline].groupby(AXES)
    clears = shapes["kernels"].agg(lambda each: each.str.contains(f"(?m)^{schema.MEMSET}").any())
    ours = [name for name in us if name in (candidate, implementations.DISPATCH) or name.startswith(PREFIX)]
    others = us.drop(columns=ours).dropna(how="all")
    rows["keys"] = pd.cut(rows.index.get_level_values("kv_len"), [0, 64, 512, math.inf], labels=KEYS).astype(str)
    rows = rows.assign(clears=clears.reindex(rows.index, fill_value=False), us=us[candidate])
    rows = rows.assign(baseline_us=us[study.baseline], fastest=others.idxmin(axis=1), fastest_us=others.min(axis=1))
    rows = rows.assign(speedup=rows["baseline_us"] / rows["us"], over_fastest=rows["fastest_us"] / rows["us"])
    return rows.reset_index()


KEYS = ["up to 64 keys", "up to 512 keys", "more keys"]
"""The classes of kv_len in `drawn`."""


def summarize_drawn(rows: pd.DataFrame) -> pd.DataFrame:
    """2 rows each for all of `drawn`, for each class of kv_len, and for shapes with and without a memset.

    Columns: part, over (`baseline` or `fastest`), shapes, unmeasured, speedup (geometric mean), least, losses (shapes
    with a ratio below 1), total (the ratio of the sums of all times).
    """
    parts = {"all": rows} | {keys: rows[rows["keys"] == keys] for keys in KEYS}
    parts |= {"memset in the baseline": rows[rows["clears"]], "no memset": rows[~rows["clears"]]}
    found = []
    for (part, its), over in product(parts.items(), ("baseline", "fastest")):
        both = its[[f"{over}_us", "us"]].dropna()
        ratio = both[f"{over}_us"] / both["us"]
        row = {"part": part, "over": over, "shapes": len(its), "unmeasured": len(its) - len(both)}
        row |= {"speedup": _geometric_mean(ratio), "least": ratio.min(), "losses": int((ratio < 1).sum())}
        found.append(row | {"total": both[f"{over}_us"].sum() / both["us"].sum() if len(both) else np.nan})
    return pd.DataFrame(found)


def compare_errors(checks: pd.DataFrame, baseline: str = "sdpa.cudnn") -> pd.DataFrame:
    """A row per candidate and shape: its errors against float64, over those of the baseline.

    Columns: candidate, baseline, AXES; rms_error, over all checks on the timed values; max_error, the largest of these
    checks; rms_ratio and max_ratio, over the baseline's. No row has zeros, a case that failed a check, or a case of an
    older run whose checks lack `drawn_rms_error`.

    Raises UserError: the baseline was not checked.
    """
    require_implementation(checks, baseline)
    measures = ["rms_error", "max_error"]
    taken = checks.assign(rms_error=checks["drawn_rms_error"] ** 2, max_error=checks["drawn_max_error"])
    taken = taken[taken.groupby(CASE)["passed"].transform("all") & (taken["values"] != ZEROS)]
    taken = taken[~taken["implementation"].map(implementations.is_control).astype(bool)].dropna(subset=measures)
    errors = taken.groupby(CASE, sort=False).agg({"rms_error": "mean", "max_error": "max"}).astype(float)
    errors = errors.assign(rms_error=errors["rms_error"] ** 0.5).reset_index("implementation", names="candidate")
    is_baseline = errors["candidate"] == baseline
    base = errors.loc[is_baseline & (errors["max_error"] > 0), measures].add_suffix("_base")
    errors = errors[~is_baseline].join(base, how="inner").reset_index()
    ratios = {f"{name[:3]}_ratio": errors[name] / errors[f"{name}_base"] for name in measures}
    return errors.assign(baseline=baseline, **ratios)[["candidate", "baseline", *AXES, *measures, *ratios]]


def compare_runs(before: schema.Run, after: schema.Run) -> pd.DataFrame:
    """A row per case and timing that both runs measured: is it faster or slower now, by more than the runs' noise?

    Columns: CASE, TIMING, before_us, after_us, speedup (before over after) with its interval low to high (Welch's t, or
    the bootstrap), p_holm (over all cases under the timing), noise, decision, edited (the kernel's source differs).
    `noise`, a fraction, is the largest of 3. One is the smallest effect that A/A of either run can detect here. The
    others are the distances between both runs of the unchanged implementations, at this shape and over all shapes
    (Student's t on their median). A smaller difference is never called faster or slower.

    Raises UserError: the runs share no case under the same timing.
    """
    sides = [_prepared(run.samples) for run in (before, after)]
    return cache.kept(after.name, "compare_runs", *sides, make=lambda: _compared_runs(before, after, sides))


def _compared_runs(before: schema.Run, after: schema.Run, sides: list[pd.DataFrame]) -> pd.DataFrame:
    taken = [_by_case(side[~side["implementation"].str.startswith("control.")]) for side in sides]
    keys = [key for key in taken[1] if key in taken[0]]
    if not keys:
        raise UserError(f"{before.name!r} and {after.name!r} share no case under the same timing: name runs that do")
    table = pd.DataFrame(keys, columns=KEY)
    table["p"] = [stats.difference_pvalue(taken[0][key].blocks, taken[1][key].blocks) for key in keys]
    table["p_holm"] = table.groupby(TIMING, sort=False)["p"].transform(stats.holm)
    earlier, later = before.manifest["kernels"], after.manifest["kernels"]
    edited = {name for name in earlier.keys() & later.keys() if earlier[name] != later[name]}
    table["edited"] = table["implementation"].isin(edited)
    medians = [[float(np.median(np.concatenate(side[key].blocks))) for key in keys] for side in taken]
    table["before_us"], table["after_us"] = medians
    table["noise"] = _noise(table, _unchanged(before, after, edited), sides)
    rows = []
    for (one, other), p, noise in zip(
        ([side[key] for side in taken] for key in keys), table["p_holm"], table["noise"], strict=True
    ):
        tick, least = max(one.tick_us, other.tick_us), max(noise, EQUIVALENCE_MARGIN)
        verdict = stats.verdict(one.blocks, other.blocks, tick=tick, pvalue=p, smallest_effect=least)
        rows.append((verdict.speedup.estimate, verdict.speedup.low, verdict.speedup.high, verdict.decision))
    judged = table.join(pd.DataFrame(rows, columns=["speedup", "low", "high", "decision"]))
    shown = ["before_us", "after_us", "speedup", "low", "high", "p_holm", "noise", "decision", "edited"]
    return judged[[*KEY, *shown]]


def _unchanged(before: schema.Run, after: schema.Run, edited: set[str]) -> set[str]:
    """The implementations that are the same in both runs; none if device, driver or packages differ."""
    fields = ("driver", "cuda", "cudnn", "card", "packages", "settings")
    manifests = [run.manifest for run in (before, after)]
    stated = [[m["device"]["name"], *(m["environment"].get(field) for field in fields)] for m in manifests]
    both = set(before.samples["implementation"].unique()) & set(after.samples["implementation"].unique())
    return both - edited - {implementations.DISPATCH} if stated[0] == stated[1] else set()


def _noise(table: pd.DataFrame, unchanged: set[str], sides: list[pd.DataFrame]) -> np.ndarray:
    place = [*AXES, *TIMING]
    distance = np.abs(np.log(table["after_us"] / table["before_us"])).to_numpy()
    steady, name = table["implementation"].isin(unchanged).to_numpy(), table["implementation"].to_numpy()
    groups = [_number(table, columns) for columns in (place, TIMING)]
    found = np.zeros(len(table))
    for side in sides:  # the smallest effects that the 2 runs' controls can detect
        names = set(side["implementation"].unique())
        for baseline in (one for one in names if implementations.control(one) in names):
            itself = control(side, baseline)[[*place, "smallest_effect"]]
            found = np.fmax(found, table[place].merge(itself, on=place, how="left")["smallest_effect"].to_numpy())
    for index, least in enumerate(found):
        others = steady & (name != name[index])
        reaches = [math.expm1(_reach(distance[others & (of == of[index])])) for of in groups]
        found[index] = max(*reaches, least)
    return found


def _reach(distances: np.ndarray) -> float:
    """The bound that a further distance stays below with probability 1 - ALPHA; 0 without distances."""
    if not distances.size:
        return 0.0
    return stats.student(distances.size, 1 - ALPHA / 2) * MAD * float(np.median(distances))
