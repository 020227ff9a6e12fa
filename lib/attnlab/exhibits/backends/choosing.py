"""Which backend, batch and length to choose: by the time of a call, of a sequence and of a token."""

from typing import Any

from attnlab.exhibits import formats, quantities
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.cells import LETTERS, without
from attnlab.exhibits.display import Group, Prose, Table
from attnlab.exhibits.words import say
from attnlab.infer.backends import settings
from attnlab.infer.backends.settings import GRID, Setting
from attnlab.infer.lookup import axis_of
from attnlab.infer.results import Results
from attnlab.study.shapes import Shape


@exhibit("backends.choice", of="choices")
def choice(results: Results) -> Group:
    """The fastest backend at each shape of every sweep of forward passes: per call, per sequence, per token."""
    parts: dict[str, Prose | Table] = {}
    if GRID in results.study.sweeps:
        parts["settled"] = Prose(say("backends.cheapest", found=settings.cheapest(results, GRID)))
    among, sweeps = results.study.shapes, [sweep for sweep in results.study.sweeps if _fits(results, sweep)]
    found = [(sweep, setting) for sweep in sweeps for setting in settings.along(results, sweep)]
    rows = [
        {"along": sweep, "shape": formats.shapes([setting.shape], among)} | _chosen(setting) for sweep, setting in found
    ]
    absent = " ".join(dict.fromkeys(filter(None, (_absent(results, setting.shape) for _, setting in found))))
    caption = f"The fastest backend along every sweep, and the time per token; {results.headline.words}."
    return Group(parts | {"fastest": Table.of(rows, caption, say("backends.choice", absent=absent))})


def _fits(results: Results, sweep: str) -> bool:
    shapes = results.sweep(sweep)
    forward = all(shape.direction == "forward" for shape in shapes)
    return axis_of(sweep) in LETTERS and forward and any(not results.at(shape).empty for shape in shapes)


def _absent(results: Results, shape: Shape) -> str:
    """A sentence where the baseline has no latency at a shape, with the reason; the fastest was not compared there."""
    return without(results, [results.study.baseline], shape).replace("no latency here", f"no latency at {shape.label}")


def _chosen(setting: Setting) -> dict[str, Any]:
    shape, median_us = setting.shape, setting.row["median_us"]
    return {
        "fastest": setting.name,
        "or": ", ".join(setting.others) or None,
        **quantities.cells(setting.row, "median_us", "throughput_tflops"),
        "10³ sequences/s": 1e3 * shape.batch / median_us,
        f"ns a token [{formats.CI}]": setting.per_token_ns(),
    }
