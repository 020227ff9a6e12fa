"""Calls other than plain attention: heads that share keys, decoding, sequences of many lengths, training."""

import pandas as pd

from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.cells import explanations, sign
from attnlab.exhibits.display import Prose, Table
from attnlab.exhibits.formats import CI
from attnlab.infer.backends.settings import best
from attnlab.infer.lookup import NotMeasured, median_of
from attnlab.infer.results import Results
from attnlab.infer.stats import ratio_ci
from attnlab.runs.rules import GATE_FACTOR
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing

GROUPED, DECODE, TRAINING = "grouped kv_heads", "decode kv_len", "training seq_len"
RAGGED = "end to end seq_len"
ABOVE_COPY = (
    " The copy reads as much as it writes; these calls mostly read, which may go faster: no ceiling of it was measured."
)


@exhibit("backends.grouped", of="choices")
def grouped(results: Results) -> Prose:
    """The speedup from sharing keys and values among heads."""
    settings = [best(results, shape) for shape in _there(results, GROUPED)]
    own, *shared = settings
    if not shared:
        raise NotMeasured(f"Heads that share keys and values have a latency only at {own.shape.label}")
    parts = []
    for setting in shared:
        ratio = ratio_ci(results.samples(own.name, own.shape), results.samples(setting.name, setting.shape))
        parts.append(
            f"with {formats.count(setting.shape.kv_heads, 'head')} of keys and values "
            f"{formats.interval(median_of(setting.row))} µs, {formats.interval(ratio)} times as fast"
        )
    fewer = own.shape.key_elements / shared[-1].shape.key_elements
    return Prose(
        f"With {formats.count(own.shape.kv_heads, 'head')} of keys and values for {own.shape.heads} of queries, "
        f"`{own.name}` takes {formats.interval(median_of(own.row))} µs; {'; '.join(parts)}. Scores and FLOPs stay the "
        f"same; keys and values take less memory, {formats.number(fewer)} times less in the last case, which matters "
        "where they are read for every token, as in decoding."
    )


@exhibit("backends.decode", of="choices")
def decode(results: Results) -> Prose:
    """The bandwidth of decoding, beside the measured memory copy."""
    settings = [best(results, shape) for shape in _there(results, DECODE)]
    parts, ceiling = [], results.ceilings.rate("copy")
    for setting in settings:
        rate = setting.row["bandwidth_gbs"]
        share = f" ({formats.percent(100 * rate / ceiling)} of the measured copy)" if ceiling == ceiling else ""
        parts.append(
            f"{setting.shape.kv_len} keys: `{setting.name}` {formats.interval(median_of(setting.row))} µs, "
            f"{formats.number(rate)} GB/s{share}"
        )
    above = any(setting.row["bandwidth_mark"].startswith("‡") for setting in settings)
    return Prose(
        f"A query that reads all keys and values does {formats.number(settings[0].shape.intensity)} FLOP for "
        f"each byte, so memory sets its floor. At {'; '.join(parts)}.{ABOVE_COPY if above else ''}"
    )


@exhibit("backends.ragged", of="choices")
def ragged(results: Results) -> Table:
    """Sequences of many lengths end to end, and padded to the longest."""
    rows = []
    for end_to_end in results.sweep(RAGGED):
        padded = end_to_end.resized(lengths="equal")
        if results.at(end_to_end).empty or results.at(padded).empty:
            continue
        packed, filled = best(results, end_to_end), best(results, padded)
        ratio = ratio_ci(results.samples(filled.name, padded), results.samples(packed.name, end_to_end))
        rows.append(
            {
                "longest S": end_to_end.seq_len,
                "tokens": f"{end_to_end.tokens:,}",
                "padded to": f"{padded.tokens:,}",
                "FLOPs ×": formats.number(padded.flops / end_to_end.flops),
                f"end to end (µs) [{CI}]": formats.stacked(median_of(packed.row)),
                "by": packed.name,
                f"padded (µs) [{CI}]": formats.stacked(median_of(filled.row)),
                "padded by": filled.name,
                f"padded over end to end [{CI}]": formats.stacked(ratio),
            }
        )
    note = (
        "The i-th of B sequences has i/B of the tokens of the longest. Each side uses its fastest backend; padded is "
        "the same call over the whole rectangle, with the surplus thrown away. Padded over end to end: the ratio of "
        "their medians; above 1, packing saves time, and below 1 it costs time."
    )
    return Table(pd.DataFrame(rows), f"Many lengths, packed and padded; {results.headline.words}.", note)


@exhibit("backends.on_the_host", of="choices")
def on_the_host(results: Results) -> Prose:
    """The host time of PyTorch's nested tensors, which `device` leaves out."""
    eager = Timing(clock="eager", cache="warm")
    shapes = [shape for shape in results.sweep(RAGGED) if not results.at(shape, eager).empty]
    if not shapes or results.headline == eager:
        raise NotMeasured(f"No sequences end to end were timed by the {eager.words} and another clock")
    parts = []
    for shape in shapes:
        fastest = best(results, shape)
        row = results.row(fastest.name, shape, eager)
        parts.append(
            f"at S={shape.seq_len} `{fastest.name}` takes {formats.interval(median_of(row))} µs by the {eager.words}, "
            f"{formats.interval(median_of(fastest.row))} µs by the {results.headline.words}"
        )
    return Prose(
        f"That is the device's time. With the host's, {'; '.join(parts)}: PyTorch's nested tensors are Python, and the "
        "call includes making them. A program that doesn't replay a graph waits for that too."
    )


@exhibit("backends.training", of="choices")
def training(results: Results) -> Table:
    """Forward and backward together, by each backend."""
    rows = []
    shapes, baseline = _there(results, TRAINING), results.study.baseline
    for shape in shapes:
        for name in results.at(shape).index:
            row = results.row(str(name), shape)
            compared = name != baseline and baseline in results.at(shape).index
            rows.append(
                {
                    "S": shape.seq_len,
                    "implementation": name,
                    f"forward and backward (µs) [{CI}]": formats.stacked(median_of(row)),
                    "TFLOP/s": formats.number(row["throughput_tflops"]) + sign(row["throughput_mark"]),
                    f"over {baseline}": formats.stacked(results.compare(str(name), shape).speedup)
                    if compared
                    else None,
                }
            )
    shape, marks = shapes[0], explanations([row for each in shapes for row in results.at(each).to_dict("records")])
    mask = ", causal" if shape.causal else ""
    note = (
        f"B={shape.batch}, H={shape.heads}, D={shape.head_dim}, {shape.dtype}{mask}. FLOPs are 3.5 times those of "
        "the forward pass, since the backward pass has five matrix products and the forward pass two. O, dQ, dK and dV "
        f"may each have {formats.multiple(GATE_FACTOR)} the framework's error; bits may differ between calls, since "
        "gradients are summed with atomics."
    )
    note = " ".join(filter(None, [note, marks]))
    return Table(pd.DataFrame(rows), f"Training; {results.headline.words}.", note)


def _there(results: Results, sweep: str) -> list[Shape]:
    shapes = [shape for shape in results.sweep(sweep) if not results.at(shape).empty]
    if not shapes:
        raise NotMeasured(f"Nothing has a latency in the sweep “{sweep}”")
    return shapes
