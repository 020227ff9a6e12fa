"""Which backend, batch and length to choose: by the time of a call, of a sequence and of a token."""

from collections.abc import Sequence
from typing import Any

from attnlab.exhibits import formats, quantities
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.cells import LETTERS, without
from attnlab.exhibits.display import Group, Prose, Table
from attnlab.exhibits.words import say
from attnlab.infer.backends import settings
from attnlab.infer.backends.settings import GRID, Setting, cheapest_of
from attnlab.infer.lookup import NotMeasured, axis_of
from attnlab.infer.results import Results
from attnlab.study.shapes import Shape


@exhibit("backends.choice", of="choices")
def choice(results: Results) -> Group:
    """The best backend at each shape of every sweep of forward passes: per call, per sequence, per token."""
    parts: dict[str, Prose | Table] = {}
    if GRID in results.study.sweeps:
        parts["settled"] = Prose(say("backends.cheapest", found=settings.cheapest(results, GRID)))
    parts |= {
        sweep.replace(" ", "_"): _along(results, sweep) for sweep in results.study.sweeps if _fits(results, sweep)
    }
    if not parts:
        raise NotMeasured("Nothing has a latency in any sweep of forward passes")
    return Group(parts)


def _fits(results: Results, sweep: str) -> bool:
    shapes = results.sweep(sweep)
    forward = all(shape.direction == "forward" for shape in shapes)
    return axis_of(sweep) in LETTERS and forward and any(not results.at(shape).empty for shape in shapes)


def _along(results: Results, sweep: str) -> Table:
    found, axis = settings.along(results, sweep), axis_of(sweep)
    letters = _varying([setting.shape for setting in found], axis)
    rows = [{LETTERS[each]: getattr(setting.shape, each) for each in letters} | _chosen(setting) for setting in found]
    absent = " ".join(_absent(results, setting.shape) for setting in found)
    # Other heads are another model, where a token is another task.
    highlight = None if "heads" in letters else cheapest_of(found)
    note = say("backends.choice", absent=absent)
    return Table.of(rows, f"{_title(results, sweep)}; {results.headline.words}.", note, highlight)


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
        **quantities.cells(setting.row, "bandwidth_gbs", "speed_of_light_pct"),
    }


def _varying(shapes: Sequence[Shape], axis: str) -> list[str]:
    """The axes whose letters a table needs: the axis of the sweep, and others that vary independently of it."""
    sizes = {each: [getattr(shape, each) for shape in shapes] for each in LETTERS}
    follows = [each for each, like in (("kv_heads", "heads"), ("kv_len", "seq_len")) if sizes[each] == sizes[like]]
    return [each for each in LETTERS if each == axis or (len(set(sizes[each])) > 1 and each not in follows)]


def _title(results: Results, sweep: str) -> str:
    shapes = results.sweep(sweep)
    shape, varying = shapes[0], _varying(shapes, axis_of(sweep))
    sizes = [f"{LETTERS[each]}={getattr(shape, each)}" for each in ("batch", "heads", "seq_len") if each not in varying]
    grouped = [f"KV heads={shape.kv_heads}"] if shape.kv_heads != shape.heads and "kv_heads" not in varying else []
    words = [*sizes, f"D={shape.head_dim}", *grouped, shape.dtype, *(["causal"] if shape.causal else [])]
    return f"Along “{sweep}” ({', '.join(words)}): the fastest backend, and the time per token"
