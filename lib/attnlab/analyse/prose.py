"""The sentences that hold numbers: written from the run, so that none can outlive its data."""

import math

from attnlab.analyse import formats, kernels, regime
from attnlab.analyse.display import Listing, Prose, telling
from attnlab.analyse.results import CASE, NotMeasured, Results, median_of, on_normal
from attnlab.shapes import Shape
from attnlab.stats import Verdict
from attnlab.studies import Timing

MOSTLY_HOST_PCT = 50
"""Above this share of the kernel's own time, a launch gap is what a comparison by events compares."""


def dateline(results: Results) -> Prose:
    """Run, device and day, under the title."""
    manifest = results.run.manifest
    return Prose(
        f'<p class="meta">run {results.run.name} · {manifest["device"]["name"]} · {manifest["created"][:10]} · '
        f"attnlab {manifest['attnlab']}</p>"
    )


def abstract(results: Results) -> Prose:
    """The paper in one paragraph."""
    study = results.study
    return Prose(
        f"We measure {formats.count(len(study.implementations), 'implementation')} of scaled dot-product attention on "
        f"{_device(results)} at {formats.count(len(study.shapes), 'shape')}, {_effort(results)}. {_at_target(results)} "
        f"{_standing(results)}Every case that was timed was checked against a float64 oracle before and after. The "
        "samples are in the run's folder; their hashes, and those of the code that took them, stand in [](#tab-hashes)."
    )


@telling
def publishable(results: Results, shape: Shape) -> Prose:
    """For each implementation at a shape, the statement that its comparison with the baseline supports."""
    return Prose("\n".join(f"- {_statement(results, name, shape)}" for name in results.candidates(shape)))


@telling
def span(results: Results) -> Prose:
    """The extremes of the baseline over all shapes."""
    name, rows = results.study.baseline, results.under(results.headline)
    rows = rows[rows["implementation"] == name]
    if rows.empty:
        raise NotMeasured(f"`{name}` has no latency in this run, {results.headline.words}")
    fastest, slowest = rows.loc[rows["median_us"].idxmin()], rows.loc[rows["median_us"].idxmax()]
    busiest, widest = rows.loc[rows["throughput_tflops"].idxmax()], rows.loc[rows["bandwidth_gbs"].idxmax()]
    return Prose(
        f"Over all shapes `{name}` spans {formats.number(fastest['median_us'])} µs at {_at(fastest)} to "
        f"{formats.number(slowest['median_us'])} µs at {_at(slowest)}, a factor of "
        f"{formats.number(slowest['median_us'] / fastest['median_us'])} for "
        f"{formats.number(slowest['flops'] / fastest['flops'])} times the FLOPs. Its highest throughput is "
        f"{formats.number(busiest['throughput_tflops'])} TFLOP/s at {_at(busiest)}"
        f"{_explained(busiest['throughput_mark'])}, its highest bandwidth "
        f"{formats.number(widest['bandwidth_gbs'])} GB/s at {_at(widest)}{_explained(widest['bandwidth_mark'])}."
    )


@telling
def regimes(results: Results, sweep: str = "seq_len") -> Prose:
    """Which ceiling limits which lengths."""
    limits: dict[str, list[Shape]] = {}
    for shape in results.sweep(sweep):
        if not results.ceilings.terms_us(shape):
            raise NotMeasured("No ceiling was measured, so what limits a shape can't be told")
        limits.setdefault(results.ceilings.limit(shape), []).append(shape)
    told = [f"{_lengths(shapes)} by {limit}" for limit, shapes in limits.items()]
    return Prose(f"By the measured ceilings the floor is set at {'; '.join(told)}.{_ridge(results)}")


def _ridge(results: Results) -> str:
    """Where memory and matrix products meet, if both were measured."""
    target = results.study.target_shape
    ridge = results.ceilings.ridge(target.dtype)
    if math.isnan(ridge):
        return ""
    side = "right" if target.intensity > ridge else "left"
    return (
        f" The ridge between memory and matrix products lies at {formats.number(ridge)} FLOP/byte in {target.dtype}; "
        f"the target's intensity, {formats.number(target.intensity)} FLOP/byte, is to the {side} of it."
    )


@telling
def launch_gap(results: Results) -> Prose:
    """What the launch gap adds, where both clocks were read with a warm cache."""
    eager, device = Timing(clock="eager", cache="warm"), Timing(clock="device", cache="warm")
    if not {eager, device} <= set(results.timings):
        there = formats.listing([timing.words for timing in results.timings])
        raise NotMeasured(
            f"The launch gap, `eager` less `device` with a warm cache, can't be told; timed were: {there}"
        )
    parts, shares = [], []
    for shape in dict.fromkeys((results.study.shapes[0], results.study.target_shape)):
        with_us, without_us = (
            results.row(results.study.baseline, shape, timing)["median_us"] for timing in (eager, device)
        )
        gap_us = with_us - without_us
        shares.append(100 * gap_us / without_us)
        parts.append(
            f"{formats.number(gap_us)} µs to {formats.number(without_us)} µs at {formats.shapes([shape])} "
            f"({formats.percent(shares[-1])})"
        )
    return Prose(
        f"The launch gap, `eager` less `device`, adds to `{results.study.baseline}` {formats.listing(parts)}."
        f"{_host(shares)}"
    )


def _host(shares: list[float]) -> str:
    """Whether that is the larger part of what a comparison by events compares."""
    mostly = [share > MOSTLY_HOST_PCT for share in shares]
    if not any(mostly):
        return ""
    where = "There" if all(mostly) else "At the first" if mostly[0] else "At the second"
    return f" {where}, a comparison by per-call events compares mostly the host."


def throttling(results: Results) -> Prose:
    """Whether the card held itself back and where, or why that isn't known."""
    samples = results.run.samples
    known = samples["throttled"].dropna()
    if known.empty:
        return Prose(f"Clock, power and throttling were not recorded: {results.run.manifest['telemetry']}.")
    clocks = samples["sm_clock_mhz"].dropna()
    share = 100 * float(known.astype(bool).mean())
    return Prose(
        f"The card reported that it held itself back at {formats.percent(share)} of {len(known):,} samples; its SM "
        f"clock lay between {clocks.min():.0f} and {clocks.max():.0f} MHz, with a median of {clocks.median():.0f} MHz. "
        f"{regime.at_shapes(results, results.study.shapes)} Implementations take turns and the host pauses between "
        "samples: one kernel without pause may settle at a lower clock still."
    )


def lacking(results: Results) -> Prose:
    """What this run does not hold, as plainly as what it does."""
    manifest, cases = results.run.manifest, results.run.cases
    notes = [f"the clock “{timing}” is not there on this device" for timing in manifest["missing_clocks"]]
    notes += [f"{c.title}: {c.how}" for c in results.ceilings.all if c.measured is None]
    notes += [f"no telemetry: {manifest['telemetry']}"] if manifest["telemetry"] != "NVML" else []
    for status, group in cases[cases["status"] != "measured"].groupby("status"):
        notes.append(f"{formats.count(len(group[CASE].drop_duplicates()), 'case')} {status}")
    unsteady = cases[(cases["status"] == "measured") & ~cases["steady"].astype(bool)]
    notes += (
        [f"{formats.count(len(unsteady), 'warm-up')} ended without two windows within 2 %"] if len(unsteady) else []
    )
    if not results.run.complete:
        notes.append(f"the run is not complete: `make measure RUN={results.run.name}` goes on with it")
    if closed := manifest.get("closed_early"):
        notes.append(
            f"it was closed before it was complete, with {closed['replicates']} of the {results.study.replicates} "
            f"replicates that its study asks for, {closed['shapes']} of {closed['planned']} passes over a shape"
        )
    return Prose(
        "This run lacks nothing that its study asks for."
        if not notes
        else "What this run lacks:\n\n" + "\n".join(f"- {n}" for n in notes)
    )


@telling
def correctness(results: Results) -> Prose:
    """The gate in two sentences."""
    checks = results.run.checks
    if checks.empty:
        raise NotMeasured("The gate made no checks yet")
    failed = checks[~checks["passed"].astype(bool)]
    verdict = "all passed" if failed.empty else f"{len(failed)} failed, and their cases are reported without a latency"
    normal = on_normal(checks)
    return Prose(
        f"The gate made {formats.count(len(checks), 'check')} and {verdict}. On standard normal inputs, the largest "
        f"error of any implementation is {formats.number(normal['max_error'].max())}, that of the framework's own "
        f"composition in the same dtype {formats.number(normal['framework_max_error'].max())}."
    )


@telling
def effort(results: Results) -> Prose:
    """How long measuring took, and how often it was taken up again."""
    samples = results.run.samples
    if samples.empty:
        raise NotMeasured("Nothing was timed yet")
    seconds = samples.groupby("process")["started_s"].max()
    again = len(seconds) - samples["replicate"].nunique()
    times = "once" if again == 1 else f"{again} times"
    interrupted = f" It was cut off and taken up again {times}." if again else ""
    return Prose(
        f"Measuring took {formats.number(float(seconds.sum()))} s from the start of each process to its last sample, "
        f"{_effort(results)}.{interrupted}"
    )


def commands(results: Results) -> Listing:
    """What renders this report again, and what measures it again."""
    manifest = results.run.manifest
    text = (
        f"make report RUN={results.run.name}    # render the recorded run, measure nothing\n"
        f"{manifest['command']}    # measure again\n"
    )
    return Listing(text, "commands", "Rendering this report again, and measuring again.", "bash")


def bibtex(results: Results) -> Listing:
    """How to cite the run."""
    manifest = results.run.manifest
    day = manifest["created"][:10]
    text = (
        f"@misc{{attnlab-{results.run.name},\n"
        f"  title  = {{{results.study.title}: {results.run.name}}},\n"
        f"  author = {{{{The attnlab authors}}}},\n"
        f"  year   = {{{day[:4]}}},\n"
        f"  note   = {{attnlab {manifest['attnlab']}, run {results.run.name} of {day}, seal {manifest['seal'][:16]}}}\n"
        f"}}\n"
    )
    return Listing(text, "bibtex", "Citing this report.", "bibtex")


def machine(results: Results) -> Prose:
    """The device in a sentence."""
    return Prose(
        f"The run `{results.run.name}` was recorded on {_device(results)} on {results.run.manifest['created'][:10]}."
    )


def _at_target(results: Results) -> str:
    """What the abstract says of the target shape."""
    shape = results.study.target_shape
    try:
        row = results.row(results.study.baseline, shape)
    except NotMeasured as missing:
        return f"{missing}."
    share = row["speed_of_light_pct"]
    light = (
        ""
        if math.isnan(share)
        else f", {formats.percent(share)} of what the ceilings measured in the same run allow"
        f"{_explained(row['bandwidth_mark'])}"
    )
    return (
        f"At the target shape {formats.shape(shape)}, `{row.name}` takes {_interval_us(row)} ({results.headline.words})"
        f": {formats.number(row['throughput_tflops'])} TFLOP/s{_explained(row['throughput_mark'])}{light}. "
        f"{_fastest_statement(results)}"
    )


def _standing(results: Results) -> str:
    """What the abstract says of hand-written kernels, where there are some."""
    sentence = kernels.standing_sentence(results)
    return f"{sentence} " if sentence else ""


def _statement(results: Results, name: str, shape: Shape) -> str:
    verdict = results.compare(name, shape)
    baseline, candidate = results.row(results.study.baseline, shape), results.row(name, shape)
    told = regime.IN[regime.compared(results, [results.study.baseline, name], shape)]
    return (
        f"`{baseline.name}` takes {_interval_us(baseline)}, `{name}` {_interval_us(candidate)}: a speedup of "
        f"{formats.interval(verdict.speedup)}, Cliff's delta {formats.signed(verdict.delta)}, p "
        f"adjusted by Holm {_pvalue(verdict)}, {told}. **{verdict.decision.capitalize()}**{_claim(verdict)}."
    )


def _claim(verdict: Verdict) -> str:
    if verdict.decision != "faster":
        return ""
    return ", and that may be claimed" if verdict.claimable else ", but by less than may be claimed"


def _fastest_statement(results: Results) -> str:
    shape = results.study.target_shape
    fastest = results.fastest(shape)
    if fastest == results.study.baseline:
        return "No implementation has a smaller median there."
    verdict = results.compare(fastest, shape)
    told = {
        "equivalent": "which is equivalent to it within 2 %",
        "inconclusive": "which this run can't tell from it",
        "faster": "which is faster" + ("" if verdict.claimable else ", by less than may be claimed"),
        "slower": "which is slower",
    }[verdict.decision]
    return f"The smallest median there is that of `{fastest}`, {told} (speedup {formats.interval(verdict.speedup)})."


def _effort(results: Results) -> str:
    study, closed = results.study, results.run.manifest.get("closed_early")
    taken = closed["replicates"] if closed else study.replicates
    asked = "" if results.run.complete else "of which not all were taken, "
    replicates = f"{formats.count(taken, 'replicate')}, {'each ' if taken > 1 else ''}a fresh process"
    return f"with {study.samples} samples a case under each timing, {asked}in {replicates}"


def _device(results: Results) -> str:
    device = results.run.manifest["device"]
    return (
        f"one {device['name']}"
        if device["kind"] == "cuda"
        else f"the CPU ({device['name']}, {device['threads']} threads)"
    )


def _interval_us(row: object) -> str:
    return f"{formats.interval(median_of(row))} µs"


def _at(row: object) -> str:
    causal = ", causal" if row["causal"] else ""  # type: ignore[index]
    return f"B={row['batch']} H={row['heads']} S={row['seq_len']}{causal}"  # type: ignore[index]


def _explained(mark: str) -> str:
    """What a table notes under its sign, within a sentence."""
    return f" ({mark[2:]})" if mark else ""


def _lengths(shapes: list[Shape]) -> str:
    return "S = " + formats.listing([str(shape.seq_len) for shape in shapes])


def _pvalue(verdict: Verdict) -> str:
    return formats.pvalue(verdict.pvalue) if verdict.pvalue < 1e-4 else f"= {formats.pvalue(verdict.pvalue)}"
