"""What models call besides plain attention: heads that share keys, decoding, sequences of many lengths, training."""

import pandas as pd

from attnlab.analyse import formats
from attnlab.analyse.backends import best
from attnlab.analyse.display import Prose, Table, telling
from attnlab.analyse.results import NotMeasured, Results, median_of
from attnlab.analyse.tables import explanations, sign
from attnlab.shapes import Shape
from attnlab.stats import ratio_ci
from attnlab.studies import Timing

GROUPED, DECODE, TRAINING = "grouped kv_heads", "decode kv_len", "training seq_len"
RAGGED = "end to end seq_len"


@telling
def grouped(results: Results) -> Prose:
    """What sharing keys and values saves."""
    settings = [best(results, shape) for shape in _there(results, GROUPED)]
    own, *shared = settings
    if not shared:
        raise NotMeasured(f"Heads that share keys and values have a latency at {formats.shape(own.shape)} alone")
    told = []
    for setting in shared:
        ratio = ratio_ci(results.samples(own.name, own.shape), results.samples(setting.name, setting.shape))
        told.append(
            f"with {formats.count(setting.shape.kv_heads, 'head')} of keys and values "
            f"{formats.interval(median_of(setting.row))} µs, {formats.interval(ratio)} times as fast"
        )
    fewer = own.shape.key_elements / shared[-1].shape.key_elements
    return Prose(
        f"With {formats.count(own.shape.kv_heads, 'head')} of keys and values for {own.shape.heads} of queries, "
        f"`{own.name}` takes "
        f"{formats.interval(median_of(own.row))} µs; {'; '.join(told)}. The scores are as many, and so are the FLOPs: "
        f"what is shared is memory, {formats.number(fewer)} times less of it for keys and values at the last, which "
        "counts where memory is read at every token, as in decoding."
    )


@telling
def decode(results: Results) -> Prose:
    """How near decoding comes to the rate at which memory can be read."""
    told, ceiling = [], results.ceilings.rate("copy")
    for shape in _there(results, DECODE):
        setting = best(results, shape)
        rate = setting.row["bandwidth_gbs"]
        share = f" ({formats.percent(100 * rate / ceiling)} of the measured copy)" if ceiling == ceiling else ""
        told.append(
            f"{shape.kv_len} keys: `{setting.name}` {formats.interval(median_of(setting.row))} µs, "
            f"{formats.number(rate)} GB/s{sign(setting.row['bandwidth_mark'])}{share}"
        )
    return Prose(
        f"A query that reads all keys and values does {formats.number(_there(results, DECODE)[0].intensity)} FLOP for "
        f"each byte, so memory alone limits it. At {'; '.join(told)}."
    )


@telling
def ragged(results: Results) -> Table:
    """Sequences of many lengths end to end, beside the same padded to the longest."""
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
                "end to end (µs) [95 %]": formats.stacked(median_of(packed.row)),
                "by": packed.name,
                "padded (µs) [95 %]": formats.stacked(median_of(filled.row)),
                "padded by": filled.name,
                "saves ×": formats.stacked(ratio),
            }
        )
    note = (
        "The i-th of B sequences has i/B of the longest's tokens. Each side by the fastest backend that there is for "
        "it; padded means the same call over the whole rectangle, whose surplus is thrown away."
    )
    return Table(pd.DataFrame(rows), "ragged", f"Many lengths, packed and padded; {results.headline.words}.", note)


@telling
def on_the_host(results: Results) -> Prose:
    """What PyTorch's nested tensors take of the host, which `device` leaves out."""
    eager = Timing(clock="eager", cache="warm")
    shapes = [shape for shape in results.sweep(RAGGED) if not results.at(shape, eager).empty]
    if not shapes or results.headline == eager:
        raise NotMeasured(f"No sequences end to end were timed by the {eager.words} and another clock")
    told = []
    for shape in shapes:
        fastest = best(results, shape)
        row = results.row(fastest.name, shape, eager)
        told.append(
            f"at S={shape.seq_len} `{fastest.name}` takes {formats.interval(median_of(row))} µs by the {eager.words}, "
            f"{formats.interval(median_of(fastest.row))} µs by the {results.headline.words}"
        )
    return Prose(
        f"That is the device's time. With the host's, {'; '.join(told)}: PyTorch's nested tensors are Python, and the "
        "call includes making them. A program that doesn't replay a graph waits for that."
    )


@telling
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
                    "forward and backward (µs) [95 %]": formats.stacked(median_of(row)),
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
        "the forward pass: the backward one has five matrix products for its two. O, dQ, dK and dV are each held to "
        "twice the framework's error; bits may differ from run to run, as gradients are added up with atomics."
    )
    note = " ".join(filter(None, [note, marks]))
    return Table(pd.DataFrame(rows), "training", f"Training; {results.headline.words}.", note)


def _there(results: Results, sweep: str) -> list[Shape]:
    shapes = [shape for shape in results.sweep(sweep) if not results.at(shape).empty]
    if not shapes:
        raise NotMeasured(f"Nothing has a latency in the sweep “{sweep}”")
    return shapes
