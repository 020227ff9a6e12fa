"""What a run lets `attnlab.attend` choose at each shape, and the study that then holds it to `sdpa.auto`."""

from typing import Any

from attnlab import dispatch, ladder
from attnlab.analyse import staleness
from attnlab.analyse.results import Results
from attnlab.dispatch import FALLBACK, Choice, Dispatch
from attnlab.errors import UserError
from attnlab.shapes import Shape
from attnlab.stats import Interval, Verdict
from attnlab.studies import Timing

TIMING = Timing(clock="eager", cache="warm")
"""What a program sees, which is what chooses: the time to launch counts."""
CALLABLE = ("sdpa.", "kernel.")
REQUESTS = 2000
"""Of the stream that `attend` answers in a replicate."""


def table(results: Results) -> Dispatch:
    """At each shape of a run the fastest implementation that its verdict calls faster than `sdpa.auto`, or that itself.

    Shapes that are trained at, or whose sequences differ in length, have no place in it, nor have peers.

    Raises:
        UserError: the run was timed against something else, not by the eager clock, or not on a GPU.
    """
    name, manifest = results.run.name, results.run.manifest
    if manifest["device"]["kind"] != "cuda":
        raise UserError(f"the run {name!r} was recorded on a CPU, where `attend` is SDPA: name one of a GPU")
    if results.study.baseline != FALLBACK:
        raise UserError(f"the baseline of {name!r} is {results.study.baseline}, and has to be {FALLBACK}")
    if TIMING not in results.timings:
        raise UserError(f"the run {name!r} was not timed by the {TIMING.words}, by which `attend` chooses")
    stale = staleness.stale(results.run)
    choices = [_choice(results, shape, stale) for shape in _served(results)]
    if not choices:
        raise UserError(f"the run {name!r} has no latency of {FALLBACK} that a table could speak of")
    return Dispatch(
        run=name,
        seal=manifest["seal"],
        device=manifest["device"]["name"],
        torch=manifest["environment"]["packages"]["torch"],
        timing=TIMING.words,
        choices=choices,
    )


def study(made: Dispatch) -> dict[str, Any]:
    """The study that measures `attnlab.attend` against `sdpa.auto` at every shape of a table, as a file states it."""
    return {
        "title": f"attnlab.attend by the table of {made.run}",
        "device": "cuda",
        "implementations": [FALLBACK, dispatch.IMPLEMENTATION],
        "baseline": FALLBACK,
        "target": _axes(made.choices[0].shape),
        "timings": [TIMING.model_dump()],
        "samples": 50,
        "replicates": 3,
        "panel": False,
        "stream": REQUESTS,
        "sweeps": {"table": [_axes(choice.shape) for choice in made.choices]},
    }


def _served(results: Results) -> list[Shape]:
    plain = [s for s in results.study.shapes if s.lengths == "equal" and s.direction == "forward"]
    return [shape for shape in plain if FALLBACK in results.at(shape, TIMING).index]


def _choice(results: Results, shape: Shape, stale: list[str]) -> Choice:
    rows = results.at(shape, TIMING)
    faster: dict[str, Verdict] = {}
    for name in rows.index:
        if name != FALLBACK and name.startswith(CALLABLE) and name not in stale:
            verdict = results.compare(str(name), shape, TIMING)
            if verdict.decision == "faster":
                faster[str(name)] = verdict
    best = str(rows.loc[list(faster), "median_us"].idxmin()) if faster else FALLBACK
    speedup = faster[best].speedup if faster else Interval(1.0, 1.0, 1.0)
    axes = {axis: value for axis, value in shape.axes.items() if axis not in ("lengths", "direction")}
    return Choice(
        **axes,  # type: ignore[arg-type]
        implementation=best,
        speedup=speedup.estimate,
        low=speedup.low,
        high=speedup.high,
        source=ladder.hashes([ladder.rung(best)])[best] if best.startswith("kernel.") else "",
    )


def _axes(shape: Shape) -> dict[str, Any]:
    plain = Shape(shape.batch, shape.heads, shape.seq_len, shape.head_dim)
    always = ("batch", "heads", "seq_len", "head_dim", "dtype")
    return {axis: value for axis, value in shape.axes.items() if axis in always or value != getattr(plain, axis)}
