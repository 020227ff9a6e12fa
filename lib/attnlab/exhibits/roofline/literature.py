"""Numbers that others published, beside this run."""

import math
from collections.abc import Iterable, Sequence

import pandas as pd

from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Inline, Prose, Table
from attnlab.exhibits.roofline.nearest import COUNTERPARTS, Cases, Nearest
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Results
from attnlab.literature import bibliography
from attnlab.literature.datasheets import datasheet
from attnlab.literature.throughputs import Published, by_device, published

OVER = "‡"
HOPPER_FLOPS_PER_CLOCK = 4096
"""Dense FP16 or BF16 FLOPs of a Hopper multiprocessor per clock (FlashAttention-4, arXiv 2603.05451, section 2.2)."""


@exhibit("roofline.literature.highest")
def highest(results: Results, peers: Results | None = None) -> Table:
    """The highest published share of each implementation on each device, beside the nearest case of this run."""
    cases, best = Cases(results, peers), best_of_each()
    return Table(
        pd.DataFrame([_normalised(number) | _beside(cases, number) for number in best]),
        "The highest published share of the device's dense peak for each implementation, and here at the nearest shape "
        f"with the same D and, where the algorithm was measured with it, the same mask; here {results.headline.words}.",
        _note(best),
    )


def best_of_each() -> list[Published]:
    """The highest published share of each implementation on each device."""
    best: dict[tuple[str, str], Published] = {}
    for number in by_device(published()):
        key = (number.device, number.implementation)
        if key not in best or number.share_pct > best[key].share_pct:
            best[key] = number
    return list(best.values())


@exhibit("roofline.literature.every")
def every(results: Results, peers: Results | None = None) -> Table:
    """Every published number, beside the nearest case of this run."""
    cases, numbers = Cases(results, peers), by_device(published())
    rows = [
        _normalised(number)
        | {"stated": f"{number.value:g} {number.unit}, {number.read_from}\n{number.place}"}
        | _briefly(_beside(cases, number))
        for number in numbers
    ]
    caption = (
        "Every published number in data/reference/literature.csv, with its place and what it was read from; here "
        f"{results.headline.words}."
    )
    note = f"{_note(numbers)} Its shares: of peak and, below, of measured."
    return Table(pd.DataFrame(rows), caption, note)


def _normalised(number: Published) -> dict[str, object]:
    return {
        "published": f"{number.implementation}\n{number.device.removeprefix('NVIDIA ')}",
        "source": Inline(bibliography.cite(number.source)),
        "shape": _two_lines(number.axes),
        "TFLOP/s": formats.number(number.throughput_tflops),
        "of peak": f"{formats.percent(number.share_pct)}{f' {OVER}' if number.is_above_peak else ''}",
    }


def _beside(cases: Cases, number: Published) -> dict[str, str | None]:
    ours = cases.nearest(number)
    return {
        "here": f"{ours.name}{_elsewhere(cases, ours)}\n{_two_lines(ours.shape.label)}" if ours else None,
        "TFLOP/s here": formats.number(ours.throughput_tflops) if ours else None,
        "of peak here": formats.percent(ours.datasheet_pct) if ours else None,
        "of measured": formats.percent(ours.measured_pct) if ours else None,
    }


def _elsewhere(cases: Cases, ours: Nearest) -> str:
    """The run of a case, where it is another than the one that is shown."""
    return "" if ours.run == cases.results.run.name else f"\nin {ours.run}"


def _briefly(cells: dict[str, str | None]) -> dict[str, str | None]:
    """The same in fewer columns, with the shares of this run's case in one cell."""
    shares = [cells["of peak here"], cells["of measured"]]
    return {"here": cells["here"], "its shares": "\n".join(filter(None, shares)) or None}


def _two_lines(shape: str) -> str:
    """The label of a shape on two lines, its dtype below its sizes."""
    return shape.replace(") ", ")\n")


def _note(numbers: Iterable[Published]) -> str:
    note = (
        "TFLOP/s count the scores under the mask; a causal number that counts half of the square was converted. Of "
        "peak: share of the dense products with FP32 accumulation in the device's datasheet. Here: the same algorithm "
        "where this run has it, or else a run of peers on the same device, which is named; or else the fastest with "
        "that mask. An algorithm that was measured here with the other mask alone is shown with that one. Of measured: "
        "share of the matrix product that the run measured on one of its cards. A dash: the source states no shape, or "
        "this run has no case with that D and mask."
    )
    if any(number.is_above_peak for number in numbers):
        note += f" {OVER} Above what the device can do: taken as an error of the source until it is explained."
    return note


@exhibit("roofline.literature")
def summary(results: Results) -> Prose:
    """How many numbers were found, the highest shares of each device and of this run, and what can't be right."""
    return Prose(" ".join([_extent(), _reached(results), _above()]))


def _extent() -> str:
    numbers = published()
    devices = {number.device for number in numbers}
    read = {way: sum(number.read_from == way for number in numbers) for way in ("table", "label on figure", "text")}
    counts = (
        f"{read['table']} from tables, {read['label on figure']} from labels on figures and {read['text']} from text"
    )
    guessed = sum(number.read_from == "plot" for number in numbers)
    return (
        f"{formats.count(len(numbers), 'number')} from {formats.count(len({n.source for n in numbers}), 'source')} on "
        f"{formats.count(len(devices), 'device')} were found and transcribed: {counts}; "
        f"{guessed if guessed else 'none'} from the axis of a plot."
    )


def _reached(results: Results) -> str:
    """The highest share of each device, and of this run."""
    best: dict[str, Published] = {}
    for number in by_device(published()):
        if not number.is_above_peak and number.share_pct > (
            best[number.device].share_pct if number.device in best else 0
        ):
            best[number.device] = number
    shares = [
        f"{formats.percent(number.share_pct)} on {device.removeprefix('NVIDIA ')} ({number.implementation}, "
        f"{f'D={number.head_dim}' if number.head_dim else 'shape not stated'})"
        for device, number in best.items()
    ]
    return f"The highest published shares of the dense peak are {formats.listing(shares)}.{_highest_here(results)}"


def _highest_here(results: Results) -> str:
    """The highest shares of this run in a sentence; empty where it has neither peak nor ceiling."""
    cases = Cases(results)
    rows = cases.rows[cases.rows["dtype"].isin(["float16", "bfloat16"])]
    if rows.empty:
        return ""
    row = rows.loc[rows["throughput_tflops"].idxmax()]
    shares = zip(
        cases.shares_pct(row["dtype"], row["throughput_tflops"]),
        ("the dense peak", "the matrix product measured here"),
        strict=True,
    )
    known = [f"{formats.percent(share)} of {whole}" for share, whole in shares if not math.isnan(share)]
    if not known:
        return ""
    return f" This run's highest is {' and '.join(known)} (`{row['implementation']}`, D={row['head_dim']})."


@exhibit("roofline.literature.same")
def same(results: Results, peers: Results | None = None) -> Table:
    """The algorithms that this run has too, at the lengths, D and masks that both have, a row for each device."""
    cases = Cases(results, peers)
    pairs: dict[tuple[str, str], list[tuple[Published, Nearest]]] = {}
    for number in by_device(published()):
        ours = cases.nearest(number) if number.implementation in COUNTERPARTS else None
        if ours is None or ours.name != COUNTERPARTS[number.implementation] or math.isnan(ours.datasheet_pct):
            continue
        if ours.shape.seq_len == number.seq_len and ours.shape.causal == number.causal:
            pairs.setdefault((number.implementation, number.device), []).append((number, ours))
    rows = [
        {
            "published": name,
            "device": device.removeprefix("NVIDIA "),
            "numbers": len(both),
            "S": _lengths([number.seq_len or 0 for number, _ in both]),
            "D": formats.listing([str(size) for size in sorted({ours.shape.head_dim for _, ours in both})]),
            "of its peak": _span([number.share_pct for number, _ in both]),
            "here": f"{COUNTERPARTS[name]}{_runs(cases, [ours for _, ours in both])}",
            "of this peak": _span([ours.datasheet_pct for _, ours in both]),
            "here over published": _factors([ours.datasheet_pct / number.share_pct for number, ours in both]),
        }
        for (name, device), both in pairs.items()
    ]
    if not rows:
        raise NotMeasured("This run has no algorithm, length, D and mask in common with the published numbers")
    return Table(
        pd.DataFrame(rows),
        "The same algorithms at the same length, D and mask: shares of each device's dense peak, lowest to highest; "
        f"here {results.headline.words}.",
        "Batch and heads differ, except on the L4. Here over published: the ratio of the shares, lowest to highest.",
    )


def _runs(cases: Cases, found: Sequence[Nearest]) -> str:
    """The other run that some or all of these cases are from."""
    others = [ours.run for ours in found if ours.run != cases.results.run.name]
    if not others:
        return ""
    return f"\n{'' if len(others) == len(found) else 'partly '}in {others[0]}"


def _lengths(sizes: Sequence[int]) -> str:
    low, high = min(sizes), max(sizes)
    return f"{low}" if low == high else f"{low} to {high}"


def _factors(ratios: Sequence[float]) -> str:
    low, high = min(ratios), max(ratios)
    return f"{low:.2f}×" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}×"


def _span(shares: Sequence[float]) -> str:
    low, high = formats.percent(min(shares)), formats.percent(max(shares))
    return low if low == high else f"{low.removesuffix(' %')} to {high}"


def _above() -> str:
    over = [number for number in published() if number.is_above_peak]
    if not over:
        return "No number is above the dense peak of its device."
    named = formats.listing(
        [
            f"{number.implementation} at {formats.percent(number.share_pct)} {bibliography.cite(number.source)}"
            for number in over
        ]
    )
    return (
        f"{formats.count(len(over), 'number')} {'is' if len(over) == 1 else 'are'} above what the device can do and "
        f"can't be right: {named}."
    )


@exhibit("roofline.literature.limits")
def limits(results: Results) -> Prose:
    """What published numbers and this run don't have in common."""
    numbers = published()
    whole = sum(number.shape is not None for number in numbers)
    grouped = sum(bool(number.kv_heads and number.kv_heads != number.heads) for number in numbers)
    untyped = sum(number.dtype is None for number in numbers)
    target = results.study.target_shape
    lines = [
        "**Peaks are not ceilings.** The only ceiling that is known for all devices is the datasheet's, at one clock."
        + _clock(results),
        "**Clocks and power.** No source gives the power or the temperature of its card, and only "
        f"NVIDIA's own {bibliography.cite('nvidia2026frontend')} gives a peak at the observed clock. So bursts "
        "can't be distinguished from sustained loads.",
        "**Caches.** No source says what the L2 held; at short sequences that is decisive.",
        f"**Shapes.** {whole} of {len(numbers)} state the complete shape. Most keep the tokens of a batch constant, "
        "16,384 or more, so at short lengths they have more heads in flight than this run's "
        f"{target.batch * target.heads} at its target; {grouped} share K and V among heads, with the same work and "
        "less traffic.",
        "**Code.** An algorithm's name is compared, not its version: cuDNN and FlashAttention have changed since. "
        f"{untyped} do not state their dtype.",
    ]
    return Prose("\n".join(f"- {line}" for line in lines))


def _clock(results: Results) -> str:
    """The datasheet's peak at the highest clock of this run's card, on Hopper, in a sentence."""
    device, clocks = results.run.manifest["device"], results.run.samples["sm_clock_mhz"].dropna()
    sheet = datasheet(device["name"])
    if sheet is None or device.get("compute_capability") != "9.0" or clocks.empty:
        return ""
    per_mhz = device["multiprocessors"] * HOPPER_FLOPS_PER_CLOCK / 1e6
    peak = float(sheet["matmul_float16_tflops"])
    return (
        f" The {peak:,.0f} TFLOP/s of this device are {device['multiprocessors']} multiprocessors with "
        f"{HOPPER_FLOPS_PER_CLOCK:,} FLOPs a clock {bibliography.cite('zadouri2026')} at {peak / per_mhz:,.0f} MHz; "
        f"its samples reached {clocks.max():,.0f} MHz, where the peak would be {clocks.max() * per_mhz:,.0f}."
    )
