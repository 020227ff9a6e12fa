"""Calls other than plain attention: heads that share keys, sequences of many lengths, training."""

from typing import Any

from attnlab.exhibits import formats, quantities
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Table
from attnlab.exhibits.formats import CI
from attnlab.exhibits.words import say
from attnlab.infer.backends import settings
from attnlab.infer.backends.settings import Setting, best
from attnlab.infer.lookup import NotMeasured, median_of
from attnlab.infer.machine.clocks import EAGER
from attnlab.infer.results import Results
from attnlab.infer.stats import Interval, ratio_ci
from attnlab.study.shapes import Shape

GROUPED = "grouped kv_heads"
TRAINING, RAGGED = "training seq_len", "end to end seq_len"


@exhibit("backends.grouped", of="choices")
def grouped(results: Results) -> Table:
    """The speedup from sharing keys and values among heads."""
    own, *shared = settings.along(results, GROUPED)
    if not shared:
        raise NotMeasured(f"Heads that share keys and values have a latency only at {own.shape.label}")
    over = f"over KV heads={own.shape.kv_heads} [{CI}]"
    rows = [
        {"KV heads": setting.shape.kv_heads, "fastest": setting.name}
        | quantities.cells(setting.row, "median_us", "throughput_tflops")
        | {over: None if setting is own else _ratio(results, own, setting)}
        | {"elements of K": setting.shape.key_elements}
        for setting in (own, *shared)
    ]
    caption = f"Heads that share keys and values, {own.shape.heads} heads of queries; {results.headline.words}."
    note = (
        "Scores and FLOPs stay the same; keys and values take less memory, which matters where every token reads them."
    )
    return Table.of(rows, caption, note, shows={"elements of K": formats.whole})


def _ratio(results: Results, baseline: Setting, candidate: Setting) -> Interval:
    """The ratio of the medians of two settings, which share no rounds."""
    places = [(setting.name, setting.shape) for setting in (baseline, candidate)]
    theirs, ours = (results.samples(*place) for place in places)
    return ratio_ci(theirs, ours, tick=max(results.tick_us(*place) for place in places))


@exhibit("backends.ragged", of="choices")
def ragged(results: Results) -> Table:
    """Sequences of many lengths end to end, and padded to the longest."""
    rows = [row for shape in results.sweep(RAGGED) if (row := _packed(results, shape))]
    return Table.of(rows, f"Many lengths, packed and padded; {results.headline.words}.", say("backends.ragged"))


def _packed(results: Results, shape: Shape) -> dict[str, Any]:
    """The cells of sequences end to end and of the same, padded; none where one of the two has no latency."""
    padded = shape.resized(lengths="equal")
    if results.at(shape).empty or results.at(padded).empty:
        return {}
    packed, filled = best(results, shape), best(results, padded)
    with_host = packed.name in results.at(shape, EAGER).index and results.headline != EAGER
    row = {
        "longest S": shape.seq_len,
        "tokens": shape.tokens,
        "padded to": padded.tokens,
        "FLOPs ×": padded.flops / shape.flops,
        f"end to end (µs) [{CI}]": median_of(packed.row),
        "by": packed.name,
        f"padded (µs) [{CI}]": median_of(filled.row),
        "padded by": filled.name,
        f"padded over end to end [{CI}]": _ratio(results, filled, packed),
    }
    eager = {f"end to end, {EAGER} (µs) [{CI}]": median_of(results.row(packed.name, shape, EAGER))} if with_host else {}
    return row | eager


@exhibit("backends.training", of="choices")
def training(results: Results) -> Table:
    """Forward and backward together, by each backend."""
    found, baseline = settings.along(results, TRAINING), results.study.baseline
    rows = []
    for shape in (setting.shape for setting in found):
        for name, row in results.at(shape).iterrows():
            compared = name != baseline and baseline in results.at(shape).index
            rows.append(
                {"S": shape.seq_len, "implementation": name}
                | quantities.cells(row, "median_us", "throughput_tflops")
                | {f"over {baseline} [{CI}]": results.compare(str(name), shape).speedup if compared else None}
            )
    note = say("backends.training", shape=found[0].shape)
    caption = f"Training: the forward and the backward pass; {results.headline.words}."
    return Table.of(rows, caption, note)
