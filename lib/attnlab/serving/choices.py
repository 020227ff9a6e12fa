"""The dispatch table of `attnlab.attend` from runs, and the study that compares `attend` with `sdpa.auto`."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from scipy.stats import gmean

from attnlab import frames
from attnlab.base.errors import UserError
from attnlab.frames import AXES, TIMING
from attnlab.runs.dispatch import Choice, Dispatch, Regret
from attnlab.runs.schema import Run
from attnlab.runs.stale import shape_of, stale
from attnlab.study import implementations, ladder, studies, tuning
from attnlab.study.implementations import FALLBACK
from attnlab.study.ladder import BEST, PREFIX
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing
from attnlab.study.values import ZEROS

CLOCKS = [Timing(clock="eager", cache="warm"), Timing(clock="device", cache="warm")]
"""The timings that decide: what a program sees that calls, launch gap included, and one that replays graphs."""
CALLABLE = ("sdpa.", PREFIX)
REQUESTS = 2000
"""Length of the stream of requests in each replicate."""
BEST_PCT = 1.0
"""A choice that takes at most this much longer than the fastest is among the best."""
PLAIN = [axis for axis in AXES if axis != "values"]


def table(*several: Run, before: Dispatch | None = None) -> Dispatch:
    """At each shape of runs, the fastest implementation whose verdict over `sdpa.auto` is faster; else `sdpa.auto`.

    The verdict is faster by one of `CLOCKS` and slower by none, on the worst of the input distributions that were
    timed. Of several, the one with the highest `gain` is the fastest. Left out are shapes with an axis that a table
    doesn't have, peers, and implementations without a latency on some distribution. Shapes that the studies drew are
    not in the table: they show what it is worth elsewhere. At a shape of several runs, the last of them counts.

    A run from which the table `before` was made counts after `kernel.best` changed too, at the shapes where it still
    launches what that table says; the others are left out.

    Args:
        several: runs as `frames.load` gives them.

    Raises UserError: a run has another baseline, was timed by none of the clocks, or was not recorded on a GPU; the
    runs are of several devices, versions of PyTorch or clocks.
    """
    parts = [HeldOut.of(run, before) for run in several]
    first = parts[0]
    for part in parts:
        if unlike := next((what for what in HeldOut.SHARED if getattr(part, what) != getattr(first, what)), ""):
            values = f"{getattr(first, unlike)} and {getattr(part, unlike)}"
            names = f"{first.run.name!r} and {part.run.name!r}"
            raise UserError(f"{names} can't make one table: their {unlike} is {values}")
    run = ",".join(part.run.name for part in parts)
    choices = {choice.shape: choice for part in parts for choice in part.choices()}
    if not choices:
        raise UserError(f"the run {run!r} has no latency of {FALLBACK} that a table could speak of")
    named = {name for part in parts for name in part.names}
    made = Dispatch(
        run=run,
        seal=",".join(part.run.manifest["seal"] for part in parts),
        device=first.device,
        torch=first.torch,
        timing=first.clocks,
        choices=sorted(choices.values(), key=attrgetter(*Choice.AXES)),
        sources={name: source for name, source in ladder.hashes().items() if name in named},
    )
    made = made.model_copy(update={"error_pct": _errors_pct(made)})
    held_out = {shape: part for part in parts for shape in part.served if shape not in choices}
    regrets = [_regret(held_out, made, timing) for timing in first.timings] if held_out else []
    drawn = {s.label: part.running(s) for part in parts if part.running for s in part.served if s in held_out}
    return made.model_copy(update={"regret": regrets, "drawn": drawn})


@dataclass(frozen=True)
class HeldOut:
    """What a run gives to a table.

    Attributes:
        timings: those of `CLOCKS` that it was timed by.
        names: the candidates, without kernels that have changed since.
        served: the shapes that a table can speak of, each once, whatever its values, and without those at which
            `kernel.best` changed while it is still a candidate.
    """

    SHARED: ClassVar[tuple[str, ...]] = ("device", "torch", "clocks")
    run: Run
    timings: list[Timing]
    names: list[str]
    served: list[Shape]

    @classmethod
    def of(cls, run: Run, before: Dispatch | None = None) -> "HeldOut":
        """The part of a run; UserError as `table`."""
        study = studies.recorded(run.manifest)
        if run.manifest["device"]["kind"] != "cuda":
            raise UserError(f"the run {run.name!r} was recorded on a CPU, where `attend` is SDPA: name one of a GPU")
        if study.baseline != FALLBACK:
            raise UserError(f"the baseline of {run.name!r} is {study.baseline}, and has to be {FALLBACK}")
        there = set(run.samples[TIMING].drop_duplicates().itertuples(index=False, name=None))
        timings = [timing for timing in CLOCKS if (timing.clock, timing.cache) in there]
        if not timings:
            words = " or ".join(timing.words for timing in CLOCKS)
            raise UserError(f"the run {run.name!r} was not timed by the {words}, by which `attend` is to choose")
        changed = stale(run)
        plain = dict.fromkeys(shape.plain for shape in study.shapes)
        known = [shape for shape in plain if shape == Shape(**_chosen_by(shape))]
        if BEST in changed and before and run.manifest["seal"] in before.seal.split(","):
            known = [shape for shape in known if before.still_runs(shape)]
            del changed[BEST]
        elif at := changed.get(BEST):
            known = [shape for shape in known if shape not in {each.plain for each in at}]
            del changed[BEST]
        names = [n for n in study.implementations if _is_callable(n) and n not in (FALLBACK, *changed)]
        timed = _plain_shapes(run.samples[run.samples["implementation"] == FALLBACK], timings)
        return cls(run, timings, names, [shape for shape in known if shape in timed])

    @property
    def device(self) -> str:
        """The name of the device."""
        return str(self.run.manifest["device"]["name"])

    @property
    def torch(self) -> str:
        """The version of PyTorch."""
        return str(self.run.manifest["environment"]["packages"]["torch"])

    @property
    def clocks(self) -> str:
        """The timings that decide, in words."""
        return " and ".join(timing.words for timing in self.timings)

    @cached_property
    def running(self) -> Callable[[Shape], str] | None:
        """What `kernel.best` runs at a shape (`Tuning.running`); None if it is no candidate."""
        return tuning.load(self.device).running if BEST in self.names else None

    @cached_property
    def worst(self) -> dict[Shape, pd.DataFrame]:
        """By plain shape: for each candidate and clock the verdict on its worst distribution."""
        found = frames.worst(frames.compare(self.run.samples, FALLBACK))
        found = found[found["candidate"].isin(self.names) & _is_under(found, self.timings)]
        timed = self.run.samples[self.run.samples["implementation"] == FALLBACK]
        wanted = timed[timed["values"] != ZEROS].groupby([*PLAIN, *TIMING])["values"].nunique().rename("wanted")
        found = found.merge(wanted.reset_index(), on=[*PLAIN, *TIMING], how="left")
        found["is_whole"] = ~(found["n"] < found["wanted"])
        is_whole = found.groupby(["candidate", *PLAIN])["is_whole"]
        complete = found[(is_whole.transform("size") == len(self.timings)) & is_whole.transform("all")]
        return {
            shape_of({**dict(zip(PLAIN, key, strict=True)), "values": "normal"}): rows
            for key, rows in complete.groupby(PLAIN)
        }

    def choices(self) -> list[Choice]:
        """The choice at each shape that the study states."""
        stated = {shape.plain for shape in studies.recorded(self.run.manifest).swept_shapes}
        return [_choice(shape, self.worst.get(shape), self.running) for shape in self.served if shape in stated]


def _is_under(rows: pd.DataFrame, timings: list[Timing]) -> pd.Series:
    return pd.Series(
        np.logical_or.reduce([(rows["clock"] == t.clock) & (rows["cache"] == t.cache) for t in timings]), rows.index
    )


def _plain_shapes(rows: pd.DataFrame, timings: list[Timing]) -> set[Shape]:
    """The shapes, whatever their values, that have rows under each timing."""
    keys = rows.loc[_is_under(rows, timings), [*PLAIN, *TIMING]].drop_duplicates()
    counts = keys.groupby(PLAIN).size()
    return {
        shape_of({**dict(zip(PLAIN, key, strict=True)), "values": "normal"})
        for key, count in counts.items()
        if count == len(timings)
    }


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
    """Of candidates with a verdict by each clock, the fastest that is faster by one and slower by none; else FALLBACK.

    Args:
        verdicts: rows of `frames.compare`, one for each candidate and clock; candidate, speedup, low, high, decision.

    Of several, it is the one with the highest `gain`. The row with the lowest speedup of each candidate follows.
    """
    by_name = dict(iter(verdicts.groupby("candidate", sort=False)))
    least = {str(name): rows.loc[rows["speedup"].idxmin()] for name, rows in by_name.items()}
    decisions = {str(name): set(rows["decision"]) for name, rows in by_name.items()}
    faster = [name for name, said in decisions.items() if "faster" in said and "slower" not in said]
    return max(faster, key=lambda name: gain(by_name[name]), default=FALLBACK), least


def gain(rows: pd.DataFrame) -> float:
    """What a candidate gains by all clocks: the geometric mean of its speedups, or the least if it is slower by any.

    By the least alone, half a clock's noise would decide: at (1, 1, 2048, 64) flash takes 0.56 of SDPA's time by the
    device clock, and by the eager one 1.10 that no verdict tells from 1.
    """
    speedups = rows["speedup"]
    return float(speedups.min()) if (rows["decision"] == "slower").any() else float(gmean(speedups))


def _choice(shape: Shape, rows: pd.DataFrame | None, running: Callable[[Shape], str] | None) -> Choice:
    rows = pd.DataFrame(columns=["candidate", "speedup", "decision"]) if rows is None else rows
    best, least = fastest(rows)
    speedup = least.get(best, pd.Series({"speedup": 1.0, "low": 1.0, "high": 1.0}))
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
    """How far each implementation's gains are from the estimates by the other shapes, in percent."""
    errors: dict[str, list[float]] = {}
    for choice in made.choices:
        for name, expected in made.estimate(choice.shape).items():
            if name in choice.speedups:
                errors.setdefault(name, []).append(math.log(choice.speedups[name] / expected))
    return {name: 100 * math.sqrt(sum(e * e for e in some) / len(some)) for name, some in errors.items()}


def _regret(held_out: Mapping[Shape, HeldOut], made: Dispatch, timing: Timing) -> Regret:
    """What the choices of a table cost by one clock, at shapes that it doesn't hold, each measured in a run.

    At each shape the distribution counts on which the choice does worst.
    """
    parts = {part.run.name: part for part in held_out.values()}
    each = pd.concat(
        [
            _costs(part.run, {s: made.choose(s) for s, its in held_out.items() if its is part}, timing)
            for part in parts.values()
        ]
    )
    at = each.groupby("shape", sort=False)
    costs, leads = at["over_best"].max(), at["lead"].min()
    return Regret(
        clock=timing.words,
        shapes=len(costs),
        best_pct=100 * float((costs <= 1 + BEST_PCT / 100).mean()),
        mean_pct=100 * (float(gmean(costs)) - 1),
        worst_pct=100 * (float(costs.max()) - 1),
        worst=str(costs.idxmax()),
        certain_pct=100 * (float(each.loc[each["is_certain"], "over_best"].max()) - 1)
        if each["is_certain"].any()
        else 0.0,
        lead=float(gmean(leads)),
        least_lead=float(leads.min()),
    )


def _costs(run: Run, chosen: Mapping[Shape, str], timing: Timing) -> pd.DataFrame:
    """What choices cost on each distribution: shape, over_best (latency over the least), is_certain, lead over SDPA.

    A choice that has no latency there is refused when it is called: the fallback serves. It is certain that the best is
    faster where a verdict says so.
    """
    samples = run.samples[_is_under(run.samples, [timing]) & run.samples["implementation"].map(_is_callable)]
    cases = frames.summarize(samples)
    itself = frames.control(run.samples[_is_under(run.samples, [timing])], FALLBACK)
    smallest = itself.set_index(AXES)["smallest_effect"].to_dict()
    rows, pairs = [], []
    for key, group in cases[cases["values"] != ZEROS].groupby(AXES, sort=False):
        shape, medians = shape_of(dict(zip(AXES, key, strict=True))), group.set_index("implementation")["median_us"]
        if shape.plain not in chosen or FALLBACK not in medians:
            continue
        name = chosen[shape.plain]
        called, best = name if name in medians else FALLBACK, str(medians.idxmin())
        rows.append(
            (shape.plain.label, called, best, medians[called] / medians[best], medians[FALLBACK] / medians[called])
        )
        pairs.append((key, called, best))
    certain = _certain(samples, pairs, smallest)
    found = pd.DataFrame(rows, columns=["shape", "called", "best", "over_best", "lead"])
    return found.assign(is_certain=[(key, called, best) in certain for key, called, best in pairs])


def _certain(samples: pd.DataFrame, pairs: list[tuple[Any, str, str]], smallest: Mapping[Any, float]) -> set[Any]:
    """The pairs whose second is faster than the first by a verdict: each is a family of its own."""
    found = set()
    for baseline in {called for _, called, best in pairs if called != best}:
        wanted = {(*key, name) for key, called, best in pairs if called == baseline != best for name in (called, best)}
        is_wanted = pd.MultiIndex.from_frame(samples[[*AXES, "implementation"]]).isin(wanted)
        for row in frames.compare(samples[is_wanted], baseline).itertuples(index=False):
            key = tuple(getattr(row, axis) for axis in AXES)
            if row.decision == "faster" and math.log(row.speedup) >= math.log1p(smallest.get(key, 0.0)):
                found.add((key, baseline, row.candidate))
    return found


def _is_callable(name: str) -> bool:
    """Whether `attend` may call an implementation of its own accord: FP8 is for users who ask for it."""
    return name.startswith(CALLABLE) and not implementations.in_fp8(name)


def _chosen_by(shape: Shape) -> dict[str, Any]:
    """The axes of a shape that a dispatch table goes by."""
    return {axis: getattr(shape, axis) for axis in Choice.AXES}


def axes(shape: Shape) -> dict[str, Any]:
    """The axes of a shape as a study states them, without those that have their defaults."""
    plain = Shape(shape.batch, shape.heads, shape.seq_len, shape.head_dim)
    always = ("batch", "heads", "seq_len", "head_dim", "dtype")
    return {axis: value for axis, value in shape.axes.items() if axis in always or value != getattr(plain, axis)}
