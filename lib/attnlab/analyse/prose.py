"""The sentences that hold numbers: written from the run, so that none can outlive its data."""

from attnlab.analyse import formats
from attnlab.analyse.display import Listing, Prose
from attnlab.analyse.results import Results
from attnlab.shapes import Shape
from attnlab.stats import Interval, Verdict


def dateline(results: Results) -> Prose:
    """Run, device and day, under the title."""
    manifest = results.run.manifest
    return Prose(
        f'<p class="meta">run {results.run.name} · {manifest["device"]["name"]} · {manifest["created"][:10]} · '
        f"attnlab {manifest['attnlab']}</p>"
    )


def abstract(results: Results) -> Prose:
    """The paper in one paragraph."""
    shape = results.study.target_shape
    baseline = results.at(shape).loc[results.study.baseline]
    return Prose(
        f"We measure {_count(len(results.study.implementations), 'implementation')} of scaled dot-product attention on "
        f"{_device(results)} at {_count(len(results.study.shapes), 'shape')}, {_effort(results)}. At the target shape "
        f"{formats.shape(shape)}, `{baseline.name}` takes {_interval_us(baseline)} ({results.headline.words}): "
        f"{formats.number(baseline['throughput_tflops'])} TFLOP/s, "
        f"{formats.percent(baseline['speed_of_light_pct'])} of what the ceilings measured in the same run allow. "
        f"{_fastest_statement(results)} Every case was checked against a float64 oracle before it was timed and after; "
        f"the samples, their hashes and the code that took them come with this report."
    )


def publishable(results: Results, shape: Shape) -> Prose:
    """For each implementation at a shape, the statement that its comparison with the baseline supports."""
    lines = []
    for name in results.at(shape).index:
        if name != results.study.baseline:
            lines.append(f"- {_statement(results, str(name), shape)}")
    return Prose("\n".join(lines))


def span(results: Results) -> Prose:
    """The extremes of the baseline over all shapes."""
    rows = results.under(results.headline)
    rows = rows[rows["implementation"] == results.study.baseline]
    fastest, slowest = rows.loc[rows["median_us"].idxmin()], rows.loc[rows["median_us"].idxmax()]
    busiest, widest = rows.loc[rows["throughput_tflops"].idxmax()], rows.loc[rows["bandwidth_gbs"].idxmax()]
    return Prose(
        f"Over all shapes `{results.study.baseline}` spans {formats.number(fastest['median_us'])} µs at {_at(fastest)} to "
        f"{formats.number(slowest['median_us'])} µs at {_at(slowest)}, a factor of "
        f"{formats.number(slowest['median_us'] / fastest['median_us'])} for "
        f"{formats.number(slowest['flops'] / fastest['flops'])} times the FLOPs. Its highest throughput is "
        f"{formats.number(busiest['throughput_tflops'])} TFLOP/s at {_at(busiest)}, its highest bandwidth "
        f"{formats.number(widest['bandwidth_gbs'])} GB/s at {_at(widest)}{_explained(widest['mark'])}."
    )


def regimes(results: Results, sweep: str = "seq_len") -> Prose:
    """Which ceiling limits which lengths."""
    limits: dict[str, list[Shape]] = {}
    for shape in results.study.sweep(sweep):
        limits.setdefault(results.ceilings.limit(shape), []).append(shape)
    told = [f"{_lengths(shapes)} by {limit}" for limit, shapes in limits.items()]
    dtype = results.study.target_shape.dtype
    ridge = results.ceilings.ridge(dtype)
    target = results.study.target_shape
    side = "right" if target.intensity > ridge else "left"
    return Prose(
        f"By the measured ceilings the floor is set at {'; '.join(told)}. The ridge between memory and matrix products "
        f"lies at {formats.number(ridge)} FLOP/byte in {dtype}; the target's intensity, {formats.number(target.intensity)} "
        f"FLOP/byte, is to the {side} of it."
    )


def launch_gap(results: Results) -> Prose:
    """What the launch gap adds, where both clocks were read."""
    clocks = {timing.clock: timing for timing in results.timings if timing.cache == "warm"}
    if set(clocks) != {"eager", "device"}:
        return Prose(f"Only the {_only_clock(results)} clock was read in this run, so the launch gap can't be told.")
    parts = []
    for shape in (results.study.shapes[0], results.study.target_shape):
        eager = results.at(shape, clocks["eager"]).loc[results.study.baseline, "median_us"]
        device = results.at(shape, clocks["device"]).loc[results.study.baseline, "median_us"]
        parts.append(
            f"{formats.number(eager - device)} µs to {formats.number(device)} µs at S={shape.seq_len} "
            f"({formats.percent(100 * (eager - device) / device)})"
        )
    return Prose(
        f"The launch gap, `eager` less `device`, adds to `{results.study.baseline}` {parts[0]} and {parts[1]}. A comparison "
        "of short kernels by per-call events compares mostly the host."
    )


def throttling(results: Results) -> Prose:
    """Whether the card held itself back and where, or why that isn't known."""
    samples = results.run.samples
    known = samples["throttled"].dropna()
    if known.empty:
        return Prose(f"Clock, power and throttling were not recorded: {results.run.manifest['telemetry']}.")
    clocks = samples["sm_clock_mhz"].dropna()
    share = 100 * float(known.astype(bool).mean())
    return Prose(
        f"The card reported that it held itself back at {formats.percent(share)} of {len(known):,} samples; its SM clock "
        f"lay between {clocks.min():.0f} and {clocks.max():.0f} MHz, with a median of {clocks.median():.0f} MHz. "
        f"{_sustained(results)} Implementations take turns and the host pauses between samples: one kernel without pause "
        f"may settle at a lower clock still."
    )


def _sustained(results: Results) -> str:
    rows = results.under(results.headline)
    held = rows[rows["throttled_pct"] > 50]
    if held.empty:
        return f"No shape has more than half of its samples taken so ({results.headline.words}): these are results of bursts."
    shapes = held.drop_duplicates(["batch", "heads", "seq_len", "causal"]).to_dict("records")
    return (
        f"More than half of the samples were taken so ({results.headline.words}) at "
        f"{formats.listing([_at(shape) for shape in shapes])}: those are results under sustained load, the others of bursts."
    )


def lacking(results: Results) -> Prose:
    """What this run does not hold, as plainly as what it does."""
    manifest, cases = results.run.manifest, results.run.cases
    notes = [f"the clock “{timing}” is not there on this device" for timing in manifest["missing_clocks"]]
    notes += [f"{c.title}: {c.how}" for c in results.ceilings.all if c.measured is None]
    notes += [f"no telemetry: {manifest['telemetry']}"] if manifest["telemetry"] != "NVML" else []
    for status, group in cases[cases["status"] != "measured"].groupby("status"):
        notes.append(
            f"{_count(len(group[['implementation', 'batch', 'heads', 'seq_len', 'causal', 'dtype']].drop_duplicates()), 'case')} {status}"
        )
    unsteady = cases[(cases["status"] == "measured") & ~cases["steady"].astype(bool)]
    notes += [f"{_count(len(unsteady), 'warm-up')} ended without two windows within 2 %"] if len(unsteady) else []
    if not results.run.complete:
        notes.append(f"the run is not complete: `make measure RUN={results.run.name}` goes on with it")
    return Prose(
        "This run lacks nothing that its study asks for."
        if not notes
        else "What this run lacks:\n\n" + "\n".join(f"- {n}" for n in notes)
    )


def correctness(results: Results) -> Prose:
    """The gate in one sentence."""
    checks = results.run.checks
    failed = checks[~checks["passed"].astype(bool)]
    verdict = "all passed" if failed.empty else f"{len(failed)} failed, and their cases are reported without a latency"
    return Prose(
        f"The gate made {len(checks):,} checks and {verdict}. The largest error of any implementation is "
        f"{formats.number(checks['max_error'].max())}, that of the framework's own composition in the same dtype "
        f"{formats.number(checks['framework_max_error'].max())}."
    )


def effort(results: Results) -> Prose:
    """How long measuring took, and how often it was taken up again."""
    seconds = results.run.samples.groupby("process")["started_s"].max()
    again = len(seconds) - results.study.replicates
    interrupted = f" It was cut off and went on {_count(again, 'time')}." if again > 0 else ""
    return Prose(
        f"Measuring took {formats.number(float(seconds.sum()))} s from the start of each process to its last sample, "
        f"{_effort(results)}.{interrupted}"
    )


def commands(results: Results) -> Listing:
    """What renders this report again, and what measures it again."""
    manifest = results.run.manifest
    text = f"make report RUN={results.run.name}    # render the recorded run, measure nothing\n{manifest['command']}    # measure again\n"
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


def _statement(results: Results, name: str, shape: Shape) -> str:
    verdict = results.compare(name, shape)
    rows = results.at(shape)
    baseline, candidate = rows.loc[results.study.baseline], rows.loc[name]
    return (
        f"`{baseline.name}` takes {_interval_us(baseline)}, `{name}` {_interval_us(candidate)}: a speedup of "
        f"{formats.interval(verdict.speedup)}, Cliff's delta {verdict.delta:+.2f}, Mann-Whitney p "
        f"{_pvalue(verdict)}. **{verdict.decision.capitalize()}**{_claim(verdict)}."
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
    study = results.study
    return f"with {study.samples} samples a case under each timing in {_count(study.replicates, 'fresh process', 'fresh processes')}"


def _device(results: Results) -> str:
    device = results.run.manifest["device"]
    return (
        f"one {device['name']}"
        if device["kind"] == "cuda"
        else f"the CPU ({device['name']}, {device['threads']} threads)"
    )


def _interval_us(row: object) -> str:
    median = Interval(row["median_us"], row["low_us"], row["high_us"])  # type: ignore[index]
    return f"{formats.interval(median)} µs"


def _at(row: object) -> str:
    causal = ", causal" if row["causal"] else ""  # type: ignore[index]
    return f"B={row['batch']} H={row['heads']} S={row['seq_len']}{causal}"  # type: ignore[index]


def _explained(mark: str) -> str:
    return {
        "": "",
        "L2": ", above the copy ceiling because the tensors fit the last level of cache",
        "above ceiling": ", **above the copy ceiling and unexplained**",
    }[mark]


def _lengths(shapes: list[Shape]) -> str:
    return "S = " + formats.listing([str(shape.seq_len) for shape in shapes])


def _only_clock(results: Results) -> str:
    return " and ".join(sorted({f"`{timing.clock}`" for timing in results.timings}))


def _pvalue(verdict: Verdict) -> str:
    return formats.pvalue(verdict.pvalue) if verdict.pvalue < 1e-4 else f"= {formats.pvalue(verdict.pvalue)}"


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
