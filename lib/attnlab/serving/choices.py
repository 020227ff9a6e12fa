"""The dispatch table of `attnlab.attend` from runs, and the study that compares `attend` with `sdpa.auto`."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import pandas as pd
from scipy.stats import gmean

from attnlab import frames
from attnlab.base.errors import UserError
from attnlab.frames import AXES, TIMING
from attnlab.runs.dispatch import Choice, Dispatch, Regret
from attnlab.runs.schema import Run
from attnlab.runs.stale import stale
from attnlab.study import implementations, ladder, studies, tuning
from attnlab.study.implementations import FALLBACK
from attnlab.study.ladder import BEST, PREFIX
from attnlab.study.shapes import Shape, shape_of
from attnlab.study.studies import Timing
from attnlab.study.values import ZEROS

CLOCKS = [Timing(clock="eager", cache="warm"), Timing(clock="device", cache="warm")]
"""The timings that decide: of a program's calls, launch gap included, and of replayed graphs."""
CALLABLE = ("sdpa.", PREFIX)
REQUESTS = 2000
"""Length of the stream of requests in each replicate."""
BEST_PCT = 1.0
"""A choice is among the best if its latency is at most this many percent above the fastest."""
PLAIN = [axis for axis in AXES if axis != "values"]


def table(*several: Run, before: Dispatch | None = None) -> Dispatch:
    """At each shape of runs as `frames.load` gives them, the `fastest` by `CLOCKS` on the worst input distribution.

    The table leaves out shapes with an axis that it doesn't have, peers, and implementations without a latency on some
    distribution. It leaves out shapes that a study drew at random, even if a later study states them again: they test
    the table at shapes that it lacks. If several runs have a shape, the last one counts. If `kernel.best` has changed,
    a run of the table `before` counts only at shapes where the instance is that table's.

    Raises UserError: a run has another baseline, was timed by none of the clocks, or was not recorded on a GPU. Or the
    runs are of several devices, versions of PyTorch or clocks.
    """
    parts = [HeldOut.of(run, before) for run in several]
    shared, first = parts[0].shared, several[0].name
    for part in parts:
        if unlike := [field for field in shared if part.shared[field] != shared[field]]:
            values = f"their {unlike[0]} is {shared[unlike[0]]} and {part.shared[unlike[0]]}"
            raise UserError(f"{first!r} and {part.run.name!r} can't make one table: {values}")
    run = ",".join(part.run.name for part in parts)
    drawn = dict.fromkeys(s.plain for one in several for s in studies.recorded(one.manifest).drawn_shapes)
    choices = {choice.shape: choice for part in parts for choice in part.choices() if choice.shape not in drawn}
    if not choices:
        raise UserError(f"the run {run!r} has no latency of {FALLBACK} that a table could speak of")
    named = {name for part in parts for name in part.names}
    made = Dispatch(
        run=run,
        seal=",".join(part.run.manifest["seal"] for part in parts),
        **shared,
        choices=sorted(choices.values(), key=attrgetter(*Choice.AXES)),
        sources={name: source for name, source in ladder.hashes().items() if name in named},
    )
    held_out = {shape: part for part in parts for shape in part.served if shape not in choices}
    regrets = [_regret(held_out, made, timing) for timing in parts[0].timings] if held_out else []
    ran = {shape.label: part.running(shape) for shape, part in held_out.items() if part.running}
    dropped = [shape.label for shape in drawn if shape not in held_out]
    more = {"error_pct": _errors_pct(made), "regret": regrets, "drawn": ran, "dropped": dropped}
    return made.model_copy(update=more)


@dataclass(frozen=True)
class HeldOut:
    """The part of a run that counts for a table.

    Attributes:
        timings: the timings of `CLOCKS` that the run has; `samples` has only these.
        names: the candidates, without kernels that have changed since.
        served: the shapes that a table can have, each once, without those at which a candidate `kernel.best` changed.
        shared: the fields of a table that its runs share: the device, PyTorch, and the timings that decide, in words.
        running: the instance that `kernel.best` runs at a shape (`Tuning.running`); None if it isn't a candidate.
    """

    run: Run
    timings: list[Timing]
    samples: pd.DataFrame
    names: list[str]
    served: list[Shape]
    shared: dict[str, Any]
    running: Callable[[Shape], str] | None

    @classmethod
    def of(cls, run: Run, before: Dispatch | None = None) -> "HeldOut":
        """The part of a run; UserError as `table`."""
        study = studies.recorded(run.manifest)
        if run.manifest["device"]["kind"] != "cuda":
            raise UserError(f"the run {run.name!r} was recorded on a CPU, where `attend` is SDPA: name one of a GPU")
        if study.baseline != FALLBACK:
            raise UserError(f"the baseline of {run.name!r} is {study.baseline}, and has to be {FALLBACK}")
        timings = [timing for timing in CLOCKS if len(_under(run.samples, timing))]
        if not timings:
            words = " or ".join(timing.words for timing in CLOCKS)
            raise UserError(f"the run {run.name!r} was not timed by the {words}, by which `attend` is to choose")
        samples, changed = _under(run.samples, *timings), stale(run)
        timed = samples.loc[samples["implementation"] == FALLBACK, [*PLAIN, *TIMING]].drop_duplicates()
        by_all = {_plain(key) for key, count in timed.groupby(PLAIN).size().items() if count == len(timings)}
        plain = dict.fromkeys(shape.plain for shape in study.shapes)
        served = [shape for shape in plain if shape == Shape(**_chosen_by(shape)) and shape in by_all]
        if BEST in changed and before and run.manifest["seal"] in before.seal.split(","):
            served = [shape for shape in served if before.still_runs(shape)]
            del changed[BEST]
        elif at := changed.get(BEST):
            served = [shape for shape in served if shape not in {each.plain for each in at}]
            del changed[BEST]
        names = [n for n in study.implementations if _is_callable(n) and n not in (FALLBACK, *changed)]
        device, torch = run.manifest["device"]["name"], run.manifest["environment"]["packages"]["torch"]
        shared = {"device": device, "torch": torch, "timing": " and ".join(timing.words for timing in timings)}
        running = tuning.load(device).running if BEST in names else None
        return cls(run, timings, samples, names, served, shared, running)

    def choices(self) -> list[Choice]:
        """The choice at each shape that the study states, by the verdicts on the worst distribution."""
        if not self.served:
            return []
        found = frames.worst(frames.compare(self.samples, FALLBACK))
        timed = self.samples[(self.samples["implementation"] == FALLBACK) & (self.samples["values"] != ZEROS)]
        wanted = timed.groupby([*PLAIN, *TIMING])["values"].nunique().rename("wanted").reset_index()
        found = found[found["candidate"].isin(self.names)].merge(wanted, on=[*PLAIN, *TIMING], how="left")
        found = found[~(found["n"] < found["wanted"])]
        is_whole = found.groupby(["candidate", *PLAIN])["n"].transform("size") == len(self.timings)
        worst = {_plain(key): rows for key, rows in found[is_whole].groupby(PLAIN)}
        stated = {shape.plain for shape in studies.recorded(self.run.manifest).swept_shapes}
        return [_choice(shape, worst.get(shape), self.running) for shape in self.served if shape in stated]


def _under(rows: pd.DataFrame, *timings: Timing) -> pd.DataFrame:
    return rows.merge(pd.DataFrame([dict(timing) for timing in timings]))


def _plain(key: Any) -> Shape:
    return shape_of({**dict(zip(PLAIN, key, strict=True)), "values": "normal"})


def study(made: Dispatch) -> dict[str, Any]:
    """The study that measures `attnlab.attend` against `sdpa.auto` at every shape of a table, as in a YAML file."""
    return {
        "title": f"attnlab.attend by the table of {made.run}",
        "device": "cuda",
        "implementations": [FALLBACK, implementations.DISPATCH],
        "baseline": FALLBACK,
        "target": axes(made.choices[0].shape),
        "timings": [timing.model_dump() for timing in CLOCKS if timing.words in made.timing],
        "samples": 50,
        "replicates": 5,
        "panel": False,
        "stream": REQUESTS,
        "sweeps": {"table": [axes(choice.shape) for choice in made.choices]},
    }


def fastest(verdicts: pd.DataFrame) -> tuple[str, dict[str, pd.Series]]:
    """The fastest candidate that is faster by one clock and slower by none, else FALLBACK; and the least speedups.

    Args:
        verdicts: rows of `frames.compare`, one for each candidate and clock; candidate, speedup, low, high, decision.

    Among several, the one with the highest `gain` is the fastest. The least speedups are rows, by candidate.
    """
    by_name = {str(name): rows for name, rows in verdicts.groupby("candidate", sort=False)}
    least = {name: rows.loc[rows["speedup"].idxmin()] for name, rows in by_name.items()}
    decisions = {name: set(rows["decision"]) for name, rows in by_name.items()}
    faster = [name for name, its in decisions.items() if "faster" in its and "slower" not in its]
    return max(faster, key=lambda name: gain(by_name[name]), default=FALLBACK), least


def gain(rows: pd.DataFrame) -> float:
    """The gain of a candidate by all clocks: the geometric mean of its speedups, or the least if it is slower by any.

    The least alone would follow the noise of one clock. At (1, 1, 2048, 64) the speedup of flash over SDPA is 1.8 by
    the device clock. By the eager clock it is 0.91, which no verdict tells from 1.
    """
    speedups = rows["speedup"]
    return float(speedups.min()) if (rows["decision"] == "slower").any() else float(gmean(speedups))


def _choice(shape: Shape, rows: pd.DataFrame | None, running: Callable[[Shape], str] | None) -> Choice:
    rows = pd.DataFrame(columns=["candidate", "speedup", "decision"]) if rows is None else rows
    best, least = fastest(rows)
    speedup: Any = least.get(best, dict.fromkeys(("speedup", "low", "high"), 1.0))
    return Choice(
        **_chosen_by(shape),
        implementation=best,
        speedup=float(speedup["speedup"]),
        low=float(speedup["low"]),
        high=float(speedup["high"]),
        speedups={str(name): gain(each) for name, each in rows.groupby("candidate", sort=False)},
        instance=running(shape) if running and BEST in least else "",
    )


def _errors_pct(made: Dispatch) -> dict[str, float]:
    """By implementation, the RMS error in percent of its gains as estimated from the other shapes."""
    errors: dict[str, list[float]] = {}
    for choice in made.choices:
        for name, expected in made.estimate(choice.shape).items():
            if name in choice.speedups:
                errors.setdefault(name, []).append(math.log(choice.speedups[name] / expected))
    return {name: 100 * math.sqrt(sum(e * e for e in some) / len(some)) for name, some in errors.items()}


def _regret(held_out: Mapping[Shape, HeldOut], made: Dispatch, timing: Timing) -> Regret:
    """The latency that a table's choices cost by one clock, at measured shapes that the table lacks.

    At each shape, the input distribution with the highest cost counts.
    """
    parts = {part.run.name: part for part in held_out.values()}.values()
    chosen = ({shape: made.choose(shape) for shape, its in held_out.items() if its is part} for part in parts)
    each = pd.concat([_costs(part, choices, timing) for part, choices in zip(parts, chosen, strict=True)])
    at = each.groupby("shape", sort=False)
    costs, leads = at["over_best"].max(), at["lead"].min()
    return Regret(
        clock=timing.words,
        shapes=len(costs),
        best_pct=100 * float((costs <= 1 + BEST_PCT / 100).mean()),
        mean_pct=100 * (float(gmean(costs)) - 1),
        worst_pct=100 * (float(costs.max()) - 1),
        worst=str(costs.idxmax()),
        certain_pct=100 * (float(each["certain"].max()) - 1),
        lead=float(gmean(leads)),
        least_lead=float(leads.min()),
    )


def _costs(part: HeldOut, chosen: Mapping[Shape, str], timing: Timing) -> pd.DataFrame:
    """The cost of choices on each distribution: shape, over_best (latency over the least), lead over SDPA, certain.

    A choice without a latency would fail when it is called, so the fallback counts. `certain` is over_best if a verdict
    says that the best is faster than the choice, each in a separate family; else 1.
    """
    samples = _under(part.samples, timing)
    smallest = frames.control(samples, FALLBACK).set_index(AXES)["smallest_effect"]
    samples = samples[samples["implementation"].map(_is_callable)]
    cases = frames.summarize(samples)
    rows = []
    for key, group in cases[cases["values"] != ZEROS].groupby(AXES, sort=False):
        shape, us = _plain(key[: len(PLAIN)]), group.set_index("implementation")["median_us"]
        if shape in chosen and FALLBACK in us:
            called, best = chosen[shape] if chosen[shape] in us else FALLBACK, str(us.idxmin())
            rows.append((*key, shape.label, called, best, us[called] / us[best], us[FALLBACK] / us[called]))
    found = pd.DataFrame(rows, columns=[*AXES, "shape", "called", "best", "over_best", "lead"])
    roles = found[found["called"] != found["best"]].melt(AXES, ["called", "best"], "role", "implementation")
    both = samples.merge(roles, on=[*AXES, "implementation"])
    found, is_certain = found.set_index(AXES), pd.Series(dtype=bool)
    if len(both):
        verdicts = frames.compare(
            both.drop(columns="implementation").rename(columns={"role": "implementation"}), "called"
        )
        verdicts = verdicts.set_index(AXES).assign(smallest=smallest).fillna({"smallest": 0.0})
        is_certain = (verdicts["decision"] == "faster") & (verdicts["speedup"] >= 1 + verdicts["smallest"])
    return found.assign(certain=found["over_best"].where(is_certain.reindex(found.index, fill_value=False), 1.0))


def _is_callable(name: str) -> bool:
    """Whether `attend` may call an implementation by itself: users have to ask for FP8."""
    return name.startswith(CALLABLE) and not implementations.in_fp8(name)


def _chosen_by(shape: Shape) -> dict[str, Any]:
    """The axes of a shape that a dispatch table has."""
    return {axis: getattr(shape, axis) for axis in Choice.AXES}


def axes(shape: Shape) -> dict[str, Any]:
    """The axes of a shape as a study states them, without those that have their defaults."""
    plain = Shape(shape.batch, shape.heads, shape.seq_len, shape.head_dim)
    always = ("batch", "heads", "seq_len", "head_dim", "dtype")
    return {axis: value for axis, value in shape.axes.items() if axis in always or value != getattr(plain, axis)}
