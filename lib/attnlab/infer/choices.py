"""The dispatch table of `attnlab.attend` from runs, and the study that compares `attend` with `sdpa.auto`."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

from scipy.stats import gmean

from attnlab.base.errors import UserError
from attnlab.infer import kinds
from attnlab.infer.kernels import rungs
from attnlab.infer.kinds import OverKinds
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.machine.clocks import DEVICE, EAGER
from attnlab.infer.results import Results
from attnlab.infer.stats import Interval, Verdict
from attnlab.runs.dispatch import Choice, Dispatch, Regret
from attnlab.study import implementations, ladder, tuning
from attnlab.study.implementations import FALLBACK
from attnlab.study.ladder import BEST, PREFIX
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing

CLOCKS = [EAGER, DEVICE]
"""The timings that decide: what a program sees that calls, launch gap included, and one that replays graphs."""
CALLABLE = ("sdpa.", PREFIX)
REQUESTS = 2000
"""Length of the stream of requests in each replicate."""
BEST_PCT = 1.0
"""A choice that takes no more than this much longer than the fastest is among the best."""
Judged = dict[str, dict[Timing, OverKinds]]
"""The candidates that have a latency under each clock and on each kind of values, with what was found of them."""


def table(*several: Results, before: Dispatch | None = None) -> Dispatch:
    """At each shape of runs, the fastest implementation whose verdict over `sdpa.auto` is faster; else `sdpa.auto`.

    The verdict is faster by one of `CLOCKS` and slower by none; where the run timed several kinds of values, it is that
    on the worst of them. Of several, the one with the highest `gain` is the fastest. Left out are shapes with an axis
    that a table doesn't have, peers, and what has no latency on some kind. Shapes that the studies drew are not in the
    table: they show what it is worth elsewhere. At a shape of several runs, the last of them counts. Choices are sorted
    by their axes, as the first of neighbours that are as far away count.

    A run from which the table `before` was made counts after `kernel.best` changed too, at the shapes where that still
    runs what this table says that it ran; the others are left out.

    Raises UserError where a run has another baseline, was timed by none of the clocks, or was not recorded on a GPU; or
    where the runs are of several devices, versions of PyTorch or clocks.
    """
    parts = [Part.of(results, before) for results in several]
    first = parts[0]
    for part in parts:
        if unlike := next((what for what in Part.SHARED if getattr(part, what) != getattr(first, what)), ""):
            values = f"{getattr(first, unlike)} and {getattr(part, unlike)}"
            names = f"{first.results.run.name!r} and {part.results.run.name!r}"
            raise UserError(f"{names} can't make one table: their {unlike} is {values}")
    run = ",".join(part.results.run.name for part in parts)
    choices = {choice.shape: choice for part in parts for choice in part.choices()}
    if not choices:
        raise UserError(f"the run {run!r} has no latency of {FALLBACK} that a table could speak of")
    named = {name for part in parts for name in part.names}
    made = Dispatch(
        run=run,
        seal=",".join(part.results.run.manifest["seal"] for part in parts),
        device=first.device,
        torch=first.torch,
        timing=first.clocks,
        choices=sorted(choices.values(), key=attrgetter(*Choice.AXES)),
        sources={name: source for name, source in ladder.hashes().items() if name in named},
    )
    made = made.model_copy(update={"error_pct": _errors_pct(made)})
    held_out = {shape: part.results for part in parts for shape in part.served if shape not in choices}
    regrets = [_regret(held_out, made, timing) for timing in first.timings] if held_out else []
    drawn = {s.label: part.running(s) for part in parts if part.running for s in part.served if s in held_out}
    return made.model_copy(update={"regret": regrets, "drawn": drawn})


@dataclass(frozen=True)
class Part:
    """What a run gives to a table.

    Attributes:
        timings: those of `CLOCKS` that it was timed by.
        names: the candidates, without kernels that have changed since.
        served: the shapes that a table can speak of, each once, whatever its values, and without those at which
            `kernel.best` changed where it is still a candidate.
    """

    SHARED: ClassVar[tuple[str, ...]] = ("device", "torch", "clocks")
    results: Results
    timings: list[Timing]
    names: list[str]
    served: list[Shape]

    @classmethod
    def of(cls, results: Results, before: Dispatch | None = None) -> "Part":
        name = results.run.name
        if results.run.manifest["device"]["kind"] != "cuda":
            raise UserError(f"the run {name!r} was recorded on a CPU, where `attend` is SDPA: name one of a GPU")
        if results.study.baseline != FALLBACK:
            raise UserError(f"the baseline of {name!r} is {results.study.baseline}, and has to be {FALLBACK}")
        timings = [timing for timing in CLOCKS if timing in results.timings]
        if not timings:
            words = " or ".join(timing.words for timing in CLOCKS)
            raise UserError(f"the run {name!r} was not timed by the {words}, by which `attend` is to choose")
        changed = rungs.stale(results.run)
        plain = dict.fromkeys(shape.plain for shape in results.study.shapes)
        known = [shape for shape in plain if shape == Shape(**_chosen_by(shape))]
        if BEST in changed and before and results.run.manifest["seal"] in before.seal.split(","):
            known = [shape for shape in known if before.still_runs(shape)]
            del changed[BEST]
        elif at := changed.get(BEST):
            known = [shape for shape in known if shape not in {each.plain for each in at}]
            del changed[BEST]
        names = [n for n in results.study.implementations if _is_callable(n) and n not in (FALLBACK, *changed)]
        served = [shape for shape in known if all(kinds.shapes(results, shape, timing) for timing in timings)]
        return cls(results, timings, names, served)

    @property
    def device(self) -> str:
        """The name of the device."""
        return str(self.results.run.manifest["device"]["name"])

    @property
    def torch(self) -> str:
        """The version of PyTorch."""
        return str(self.results.run.manifest["environment"]["packages"]["torch"])

    @property
    def clocks(self) -> str:
        """The timings that decide, in words."""
        return " and ".join(timing.words for timing in self.timings)

    @cached_property
    def running(self) -> Callable[[Shape], str] | None:
        """What `kernel.best` runs at a shape (`Tuning.running`); None where it is no candidate."""
        return tuning.load(self.device).running if BEST in self.names else None

    def choices(self) -> Iterator[Choice]:
        """The choice at each shape that the study states."""
        results = self.results
        stated = {shape.plain for shape in results.study.swept_shapes}
        for shape in self.served:
            if shape in stated:
                yield _choice(shape, _judged(results, shape, self.timings, self.names), self.running)


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


def _judged(results: Results, shape: Shape, timings: list[Timing], names: list[str]) -> Judged:
    found: Judged = {}
    for name in names:
        with suppress(NotMeasured):
            over = {timing: kinds.over(results, name, shape, timing) for timing in timings}
            if not any(one.lacking for one in over.values()):
                found[name] = over
    return found


def fastest(verdicts: Mapping[str, Collection[Verdict]]) -> tuple[str, dict[str, Interval]]:
    """Of candidates with a verdict by each clock, the fastest that is faster by one and slower by none; else FALLBACK.

    Of several, it is the one with the highest `gain`. The lowest speedup of each candidate follows.
    """
    least = {
        name: min((one.speedup for one in each), key=lambda speedup: speedup.estimate)
        for name, each in verdicts.items()
    }
    decisions = {name: {one.decision for one in each} for name, each in verdicts.items()}
    faster = [name for name, said in decisions.items() if "faster" in said and "slower" not in said]
    return max(faster, key=lambda name: gain(verdicts[name]), default=FALLBACK), least


def gain(each: Collection[Verdict]) -> float:
    """What a candidate gains by all clocks: the geometric mean of its speedups, or the least if it is slower by any.

    By the least alone, half a clock's noise would decide: at (1, 1, 2048, 64) flash takes 0.56 of SDPA's time by the
    device clock, and by the eager one 1.10 that no verdict tells from 1.
    """
    speedups = [one.speedup.estimate for one in each]
    return min(speedups) if any(one.decision == "slower" for one in each) else float(gmean(speedups))


def _choice(shape: Shape, judged: Judged, running: Callable[[Shape], str] | None) -> Choice:
    verdicts = {name: [one.verdict for one in over.values()] for name, over in judged.items()}
    best, least = fastest(verdicts)
    speedup = least.get(best, Interval(1.0, 1.0, 1.0))
    return Choice(
        **_chosen_by(shape),
        implementation=best,
        speedup=speedup.estimate,
        low=speedup.low,
        high=speedup.high,
        speedups={name: gain(each) for name, each in verdicts.items()},
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


def _regret(held_out: Mapping[Shape, Results], made: Dispatch, timing: Timing) -> Regret:
    """What the choices of a table cost by one clock, at shapes that it doesn't hold, each measured in a run."""
    costs, leads, certain = {}, {}, [1.0]
    for shape, results in held_out.items():
        each = list(_costs(results, made.choose(shape), shape, timing))
        costs[shape], leads[shape] = max(one.over_best for one in each), min(one.lead for one in each)
        certain += [one.over_best for one in each if one.is_certain]
    worst = max(costs, key=lambda shape: costs[shape])
    return Regret(
        clock=timing.words,
        shapes=len(costs),
        best_pct=100 * sum(cost <= 1 + BEST_PCT / 100 for cost in costs.values()) / len(costs),
        mean_pct=100 * (float(gmean(list(costs.values()))) - 1),
        worst_pct=100 * (costs[worst] - 1),
        worst=worst.label,
        certain_pct=100 * (max(certain) - 1),
        lead=float(gmean(list(leads.values()))),
        least_lead=min(leads.values()),
    )


class _Cost(NamedTuple):
    """The latency of a choice over the least, whether a verdict says that it is longer, and SDPA's over its own."""

    over_best: float
    is_certain: bool
    lead: float


def _costs(results: Results, name: str, shape: Shape, timing: Timing) -> Iterator[_Cost]:
    """What a choice costs on each kind of values.

    A choice that has no latency there is refused when it is called: the fallback serves.
    """
    for other in kinds.shapes(results, shape, timing):
        medians = results.at(other, timing)["median_us"]
        callable_ = medians[[_is_callable(str(n)) for n in medians.index]]
        called, best = name if name in callable_ else FALLBACK, str(callable_.idxmin())
        own = callable_[called]
        is_certain = called != best and results.compare_pairs([(called, best)], other, timing)[0].decision == "faster"
        yield _Cost(float(own / callable_[best]), is_certain, float(callable_[FALLBACK] / own))


def _is_callable(name: str) -> bool:
    """Whether `attend` may call an implementation of its own accord: FP8 is for who asks for it."""
    return name.startswith(CALLABLE) and not implementations.in_fp8(name)


def _chosen_by(shape: Shape) -> dict[str, Any]:
    """The axes of a shape that a dispatch table goes by."""
    return {axis: getattr(shape, axis) for axis in Choice.AXES}


def axes(shape: Shape) -> dict[str, Any]:
    """The axes of a shape as a study states them, without those that are as they are by default."""
    plain = Shape(shape.batch, shape.heads, shape.seq_len, shape.head_dim)
    always = ("batch", "heads", "seq_len", "head_dim", "dtype")
    return {axis: value for axis, value in shape.axes.items() if axis in always or value != getattr(plain, axis)}
