"""The dispatch table of `attnlab.attend` from a run, and the study that compares `attend` with `sdpa.auto`."""

from typing import Any

from attnlab.base.errors import UserError
from attnlab.infer import kinds
from attnlab.infer.kernels import rungs
from attnlab.infer.results import Results
from attnlab.infer.stats import Interval, Verdict
from attnlab.runs.dispatch import Choice, Dispatch
from attnlab.study import implementations, tuning
from attnlab.study.implementations import FALLBACK
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing

CLOCKS = {clock: Timing(clock=clock, cache="warm") for clock in ("eager", "device")}
"""The timing that decides, by the clock that a program goes by: ``eager`` for one that calls, launch gap included, and
``device`` for one that replays graphs."""
CALLABLE = ("sdpa.", "kernel.")
REQUESTS = 2000
"""Length of the stream of requests in each replicate."""


def table(results: Results, clock: str = "eager") -> Dispatch:
    """At each shape of a run, the fastest implementation whose verdict over `sdpa.auto` is faster; else `sdpa.auto`.

    Where the run timed several kinds of values, the verdict is that on the worst of them, and the fastest is the one of
    the highest speedup there. Left out are shapes with an axis that a table doesn't have, peers, and what has no
    latency on some kind.

    Args:
        clock: one of `CLOCKS`.

    Raises UserError where there is no such clock; or the run has another baseline, was not timed by it, or was not
    recorded on a GPU.
    """
    if clock not in CLOCKS:
        raise UserError(f"attend goes by one of the clocks {', '.join(CLOCKS)}, not by {clock!r}")
    timing = CLOCKS[clock]
    name, manifest = results.run.name, results.run.manifest
    if manifest["device"]["kind"] != "cuda":
        raise UserError(f"the run {name!r} was recorded on a CPU, where `attend` is SDPA: name one of a GPU")
    if results.study.baseline != FALLBACK:
        raise UserError(f"the baseline of {name!r} is {results.study.baseline}, and has to be {FALLBACK}")
    if timing not in results.timings:
        raise UserError(f"the run {name!r} was not timed by the {timing.words}, by which `attend` is to choose")
    stale = rungs.stale(results.run)
    choices = [_choice(results, shape, timing, stale) for shape in _served(results, timing)]
    if not choices:
        raise UserError(f"the run {name!r} has no latency of {FALLBACK} that a table could speak of")
    return Dispatch(
        run=name,
        seal=manifest["seal"],
        device=manifest["device"]["name"],
        torch=manifest["environment"]["packages"]["torch"],
        timing=timing.words,
        choices=choices,
    )


def study(made: Dispatch) -> dict[str, Any]:
    """The study that measures `attnlab.attend` against `sdpa.auto` at every shape of a table, as in a YAML file."""
    return {
        "title": f"attnlab.attend by the table of {made.run}",
        "device": "cuda",
        "implementations": [FALLBACK, implementations.DISPATCH],
        "baseline": FALLBACK,
        "target": _axes(made.choices[0].shape),
        "timings": [timing.model_dump() for timing in CLOCKS.values() if timing.words == made.timing],
        "samples": 50,
        "replicates": 5,
        "panel": False,
        "stream": REQUESTS,
        "sweeps": {"table": [_axes(choice.shape) for choice in made.choices]},
    }


def _served(results: Results, timing: Timing) -> list[Shape]:
    plain = [shape for shape in results.study.shapes if shape == Shape(**_chosen_by(shape))]
    return [shape for shape in plain if FALLBACK in results.at(shape, timing).index]


def _choice(results: Results, shape: Shape, timing: Timing, stale: list[str]) -> Choice:
    device = results.run.manifest["device"]["name"]
    faster: dict[str, Verdict] = {}
    for name in results.at(shape, timing).index:
        if name != FALLBACK and name.startswith(CALLABLE) and name not in stale:
            found = kinds.over(results, str(name), shape, timing)
            if not found.lacking and found.verdict.decision == "faster":
                faster[str(name)] = found.verdict
    best = max(faster, key=lambda name: faster[name].speedup.estimate, default=FALLBACK)
    speedup = faster[best].speedup if faster else Interval(1.0, 1.0, 1.0)
    return Choice(
        **_chosen_by(shape),
        implementation=best,
        speedup=speedup.estimate,
        low=speedup.low,
        high=speedup.high,
        source=tuning.hashes([best], device)[best] if best.startswith("kernel.") else "",
    )


def _chosen_by(shape: Shape) -> dict[str, Any]:
    """The axes of a shape that a dispatch table goes by."""
    return {axis: getattr(shape, axis) for axis in Choice.AXES}


def _axes(shape: Shape) -> dict[str, Any]:
    plain = Shape(shape.batch, shape.heads, shape.seq_len, shape.head_dim)
    always = ("batch", "heads", "seq_len", "head_dim", "dtype")
    return {axis: value for axis, value in shape.axes.items() if axis in always or value != getattr(plain, axis)}
