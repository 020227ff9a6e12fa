"""The tables, one function each: what a run says, to the digit that its intervals support."""

from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from attnlab import implementations
from attnlab.analyse import formats, regime
from attnlab.analyse.display import Prose, Table, telling
from attnlab.analyse.figures import AXIS_TITLES
from attnlab.analyse.results import AXES, NO_CONTROL, NotMeasured, Results, axis_of, median_of, on_normal
from attnlab.analyse.rungs import absence
from attnlab.shapes import Shape
from attnlab.stats import (
    CLAIM_DELTA,
    CLAIM_SPEEDUP,
    EQUIVALENCE_MARGIN,
    Interval,
    Verdict,
    mann_whitney,
    ratio_ci,
    samples_needed,
)
from attnlab.studies import Timing

CAUSAL_NOTE = (
    "Causal FLOPs count the scores under the mask, 2·B·H·S·(S+1)·D; half of 4·B·H·S²·D would be S/(S+1) of it."
)
LETTERS = {"seq_len": "S", "batch": "B", "heads": "H", "kv_heads": "KV heads", "kv_len": "keys"}
SWEEP_TITLES = {"seq_len": "Sequence length", "batch": "Batch", "heads": "Heads"}
JUDGED = ["speedup [95 %]", "p (Mann-Whitney)", "p (Holm)", "Cliff's delta", "Hedges' g", "intervals", "verdict"]
JUDGED += ["regime"]
REGIME_NOTE = (
    f"Regime: a burst where the card held itself back at no more than {100 - regime.MOSTLY_PCT} % of both sides' "
    f"samples, sustained from {regime.MOSTLY_PCT} % on."
)
DEPENDENCE_NOTE = (
    "The p-value is adjusted by Holm over the candidates of this table: Mann-Whitney's, and where samples are not "
    "independent no smaller than those of the t tests over replicates, or over stretches of the only one."
)


def machine(results: Results) -> Table:
    """What was measured on."""
    manifest, environment = results.run.manifest, results.run.manifest["environment"]
    device, card = manifest["device"], environment["card"]
    rows = {
        "device": device["name"],
        "compute capability": device.get("compute_capability"),
        "multiprocessors": device.get("multiprocessors"),
        "threads": device.get("threads"),
        "last level of cache": f"{formats.mebibytes(device['l2_bytes'])} MiB",
        "memory": f"{formats.number(device['memory_bytes'] / 2**30)} GiB",
        "highest SM clock": _with_unit(card.get("sm_clock_max_mhz"), "MHz"),
        "power limit": _with_unit(card.get("power_limit_w"), "W"),
        "driver": environment["driver"],
        "CUDA, cuDNN": f"{environment['cuda']}, {environment['cudnn']}",
        "PyTorch": environment["packages"]["torch"],
        "Python, system": f"{environment['python']}, {environment['system']}",
        "telemetry": manifest["telemetry"],
    }
    frame = pd.DataFrame(
        [(key, value) for key, value in rows.items() if value not in (None, "")], columns=["", "value"]
    )
    return Table(frame, "machine", "The machine, as the run's manifest holds it.")


def settings(results: Results) -> Table:
    """What was locked."""
    locked = results.run.manifest["environment"]["settings"]
    frame = pd.DataFrame(
        [(key.replace("_", " "), str(value)) for key, value in locked.items()], columns=["setting", "read back"]
    )
    note = "Read back from PyTorch after locking and asserted in each process; a run whose assertion fails stops."
    return Table(frame, "settings", "The locked environment.", note)


def parameters(results: Results) -> Table:
    """The study's own parameters."""
    study = results.study
    rows = {
        "study": f"{study.name}: {study.title}",
        "implementations": ", ".join(study.implementations),
        "baseline": study.baseline,
        "target shape": formats.shape(study.target_shape),
        "timings (clock, cache)": ", ".join(str(timing) for timing in study.timings),
        "samples a case and replicate": study.samples,
        "replicates": study.replicates,
        "warm-up calls, at least": study.warmup_calls,
        "longest call that is timed (ms)": f"{study.longest_call_ms:g}",
        "shapes": len(study.shapes),
    }
    return Table(
        pd.DataFrame(rows.items(), columns=["parameter", "value"]).astype(str), "parameters", "What was measured."
    )


def ceilings(results: Results) -> Table:
    """Measured ceilings beside the datasheet's."""
    rows = [
        {
            "ceiling": ceiling.title,
            "measured [95 %]": formats.stacked(ceiling.measured) if ceiling.measured else None,
            "unit": ceiling.unit,
            "datasheet": formats.number(ceiling.datasheet) if ceiling.datasheet else "n/a",
            "of datasheet": formats.percent(100 * ceiling.measured.estimate / ceiling.datasheet)
            if ceiling.measured and ceiling.datasheet
            else "n/a",
            "SM clock (MHz)": None if ceiling.sm_clock_mhz is None else f"{ceiling.sm_clock_mhz:.0f}",
            "how": ceiling.how,
        }
        for ceiling in results.ceilings.all
    ]
    return Table(
        pd.DataFrame(rows), "ceilings", "Ceilings of this machine, measured in this run, beside the datasheet's."
    )


def clock_quality(results: Results) -> Table:
    """What the clock reads when there is nothing to read."""
    titles = {
        "tick_us": "tick of the clock",
        "nothing_us": "two readings with nothing between",
        "smallest_graph_us": "a graph of one smallest kernel",
    }
    clocks = results.run.manifest["clocks"]
    rows = [(title, formats.number(clocks[key])) for key, title in titles.items() if key in clocks]
    note = "No interval is narrower than the clock's tick over the launches that a sample spans."
    return Table(pd.DataFrame(rows, columns=["reading", "µs"]), "clock", "The clock itself.", note)


def cases(results: Results) -> Table | Prose:
    """What became of the cases that were not measured."""
    rows = results.run.cases
    rows = rows[rows["status"] != "measured"].drop_duplicates(["implementation", *AXES, "status"])
    if rows.empty:
        return Prose("No case that was begun failed, was skipped or ran out of memory.")
    frame = pd.DataFrame(
        {
            "implementation": [_turn(name) for name in rows["implementation"]],
            "shape": [formats.shape(_shape(row)) for row in rows.to_dict("records")],
            "status": rows["status"],
            "reason": [formats.shortened(reason) for reason in rows["reason"]],
        }
    )
    return Table(frame, "cases", "Cases that have no latency, and why.")


@telling
def kernels(results: Results) -> Table:
    """Which kernel each implementation ran, and for which lengths."""
    rows = results.run.cases
    rows = rows[rows["status"] == "measured"]
    rows = rows.assign(kernel=rows["kernels"].str.split("\n").str[0].map(formats.kernel))
    grouped = rows.groupby(["implementation", "kernel"], sort=False)
    everywhere = set(rows["seq_len"])
    frame = pd.DataFrame(
        [
            {"implementation": name, "longest kernel": kernel, "S": _lengths(set(group["seq_len"]), everywhere)}
            for (name, kernel), group in grouped
        ]
    )
    return Table(frame, "kernels", "The kernel that ran: the longest of each call, by torch.profiler, and where.")


@telling
def sweep(results: Results, name: str, implementation: str) -> Table:
    """One implementation along one sweep: latency, throughput, bandwidth, memory."""
    axis, shapes, along = axis_of(name), results.sweep(name), results.along(name, implementation)
    rows = [
        {
            LETTERS[axis]: getattr(shape, axis),
            "median (µs) [95 %]": _median(row),
            "TFLOP/s": formats.number(row["throughput_tflops"]) + sign(row["throughput_mark"]),
            "GB/s": formats.number(row["bandwidth_gbs"]) + sign(row["bandwidth_mark"]),
            "memory (MiB)": formats.mebibytes(results.peak_bytes(implementation, shape)),
            "samples": int(row["samples"]),
        }
        for shape, row in along
    ]
    caption = f"{SWEEP_TITLES[axis]} sweep, `{implementation}`, {_fixed(shapes, axis)}; {results.headline.words}."
    parts = [
        "Throughput and bandwidth are FLOPs and compulsory bytes over the median.",
        CAUSAL_NOTE if shapes[0].causal else "",
        explanations([row for _, row in along]),
    ]
    note, highlight = " ".join(filter(None, parts)), _place(results, [shape for shape, _ in along])
    return Table(pd.DataFrame(rows), f"sweep-{name.replace(' ', '-')}", caption, note, highlight)


@telling
def backends(results: Results, name: str) -> Table:
    """Every implementation along one sweep, a column for each shape."""
    axis, shapes = axis_of(name), results.sweep(name)
    titles = [f"{LETTERS[axis]}={getattr(shape, axis)}" for shape in shapes]
    caption = (
        f"Median latency in µs with 95 % interval, every implementation, {_fixed(shapes, axis)}; "
        f"{results.headline.words}."
    )
    note = f"{regime.at_shapes(results, shapes)} {_absent(results, shapes)}".strip()
    return Table(_medians(results, shapes, titles), f"backends-{name.replace(' ', '-')}", caption, note)


@telling
def listed(results: Results, name: str) -> Table:
    """Every implementation at the shapes of a sweep along no single axis; the more of the two go down the page."""
    shapes = results.sweep(name)
    titles = [f"B={shape.batch} H={shape.heads} S={shape.seq_len}" for shape in shapes]
    caption = f"Median latency in µs with 95 % interval at the shapes of “{name}”; {results.headline.words}."
    note = f"{regime.at_shapes(results, shapes)} {_absent(results, shapes)}".strip()
    frame = _medians(results, shapes, titles)
    if len(shapes) > len(frame):
        frame = frame.set_index("implementation").T.rename_axis("shape", axis=0).reset_index()
    return Table(frame, f"listed-{name.replace(' ', '-')}", caption, note)


@telling
def scaling(results: Results, name: str, implementation: str) -> Table:
    """From each step of a sweep to the next: how latency grows beside the work."""
    axis, rows = axis_of(name), []
    for (smaller, its_row), (larger, row) in pairwise(results.along(name, implementation)):
        numerator, denominator = results.samples(implementation, larger), results.samples(implementation, smaller)
        growth = ratio_ci(numerator, denominator, tick=max(results.tick_us(row), results.tick_us(its_row)))
        work = larger.flops / smaller.flops
        rows.append(
            {
                LETTERS[axis]: f"{getattr(smaller, axis)} → {getattr(larger, axis)}",
                "latency ×": formats.interval(growth),
                "FLOPs ×": formats.number(work),
                "bytes ×": formats.number(larger.bytes / smaller.bytes),
                "latency over FLOPs": formats.number(growth.estimate / work),
            }
        )
    caption = f"Scaling between steps of the {AXIS_TITLES[axis]}, `{implementation}`; {results.headline.words}."
    return Table(
        pd.DataFrame(rows),
        f"scaling-{name.replace(' ', '-')}",
        caption,
        "Below 1 in the last column, larger is cheaper per FLOP.",
    )


@telling
def variance(results: Results, name: str, implementation: str) -> Table:
    """How much samples vary, and how far they are independent."""
    axis, rows = axis_of(name), []
    for shape, row in results.along(name, implementation):
        rows.append(
            {
                LETTERS[axis]: getattr(shape, axis),
                "median": formats.number(row["median_us"], 4),
                "mean": formats.number(row["mean_us"], 4),
                "std": formats.number(row["std_us"]),
                "CV": formats.percent(row["cv_pct"]),
                "min": formats.number(row["min_us"], 4),
                "max": formats.number(row["max_us"], 4),
                "outliers": formats.percent(row["outliers_pct"]),
                "lag-1": formats.signed(row["lag1"]).removeprefix("+"),
                "effective N": f"{row['effective_n']:.0f} of {row['samples']:.0f}",
                "throttled": formats.percent(row["throttled_pct"]),
            }
        )
    note = (
        "Latencies in µs. Outliers lie beyond Tukey's fences; they are labelled and kept. Lag-1 is the autocorrelation "
        "of neighbouring samples."
    )
    return Table(
        pd.DataFrame(rows), "variance", f"Variance control, `{implementation}`; {results.headline.words}.", note
    )


@telling
def tails(results: Results, name: str, implementation: str) -> Table:
    """P50, P95 and P99, where the sample count supports them."""
    axis, rows = axis_of(name), []
    for shape, row in results.along(name, implementation):
        rows.append(
            {
                LETTERS[axis]: getattr(shape, axis),
                "P50": _median(row),
                "P95": _quantile(row, "p95"),
                "P99": _quantile(row, "p99"),
                "samples": int(row["samples"]),
            }
        )
    note = (
        f"Order-statistic intervals, which exist from {samples_needed(0.95)} samples for a P95 and from "
        f"{samples_needed(0.99)} for a P99. All in µs."
    )
    return Table(
        pd.DataFrame(rows), "tails", f"Tails of the latency, `{implementation}`; {results.headline.words}.", note
    )


@telling
def memory(results: Results, name: str) -> Table:
    """Peak memory along a sweep."""
    axis, rows = axis_of(name), []
    for shape in results.sweep(name):
        peaks = {n: results.peak_bytes(n, shape) for n in results.study.implementations}
        told = {n: None if np.isnan(peak) else formats.mebibytes(peak) for n, peak in peaks.items()}
        rows.append({LETTERS[axis]: getattr(shape, axis), "Q, K, V, O": formats.mebibytes(shape.bytes)} | told)
    caption = "Most memory allocated at once during a call, in MiB, inputs and output included."
    return Table(pd.DataFrame(rows), "memory", caption)


@telling
def timings(results: Results, shape: Shape) -> Table:
    """One shape under every timing."""
    rows = []
    for name in results.study.implementations:
        cells = {
            str(t): _median(results.at(shape, t).loc[name])
            for t in results.timings
            if name in results.at(shape, t).index
        }
        if cells:
            rows.append({"implementation": name, **cells})
    caption = f"The target, {formats.shape(shape)}, under every timing: median in µs with 95 % interval."
    return Table(pd.DataFrame(rows), "timings", caption, "Columns are clock and cache.")


@telling
def correctness(results: Results) -> Table:
    """The gate's findings by implementation, over all shapes."""
    rows = [
        {
            "implementation": name,
            "checks": len(group),
            "passed": int(group["passed"].sum()),
            "largest error": formats.number(normal["max_error"].max()),
            "mean error": formats.number(normal["mean_error"].mean()),
            "largest share of the allowed": formats.percent(100 * _share(normal).max()),
        }
        for name, group in results.run.checks.groupby("implementation", sort=False)
        for normal in [on_normal(group)]
    ]
    note = (
        "Absolute errors against the float64 oracle, on standard normal inputs not seen before, before timing and "
        "after it, into memory filled with NaN. Checks on large logits and on constant rows are counted, and their "
        "errors left out: they are of another size."
    )
    return Table(pd.DataFrame(rows), "correctness", "The correctness gate.", note)


@telling
def roofline(results: Results, name: str, implementation: str) -> Table:
    """Intensity, floor and what stands in the way, along a sweep."""
    axis, rows, along = axis_of(name), [], results.along(name, implementation)
    for shape, row in along:
        terms = results.ceilings.terms_us(shape)
        rows.append(
            {
                LETTERS[axis]: getattr(shape, axis),
                "GFLOP": formats.number(shape.flops / 1e9),
                "MB": formats.number(shape.bytes / 1e6),
                "FLOP/byte": formats.number(shape.intensity),
                "matrix (µs)": formats.number(terms.get(f"matmul.{shape.dtype}", np.nan)),
                "memory (µs)": formats.number(terms.get("copy", np.nan)),
                "exp (µs)": formats.number(terms.get("exponentials", np.nan)),
                "limit": row["limit"],
                "median (µs)": formats.number(row["median_us"], 4),
                "speed of light": light(row),
            }
        )
    shapes = [shape for shape, _ in along]
    parts = [
        _ceilings_note(results, shapes),
        CAUSAL_NOTE if shapes[0].causal else "",
        explanations([row for _, row in along]),
    ]
    caption = (
        f"Roofline along the {AXIS_TITLES[axis]}, `{implementation}`{', causal' if shapes[0].causal else ''}: least "
        f"times by ceiling, and the largest over the median; {results.headline.words}."
    )
    note = " ".join(filter(None, parts))
    return Table(pd.DataFrame(rows), f"roofline-{name.replace(' ', '-')}", caption, note, _place(results, shapes))


@telling
def to_beat(results: Results) -> Table:
    """What a kernel has to beat at the target shape."""
    shape = results.study.target_shape
    baseline, fastest = results.row(results.study.baseline, shape), results.row(results.fastest(shape), shape)
    claimable_us = min(baseline["low_us"], baseline["median_us"] / CLAIM_SPEEDUP)
    rows = [
        ("baseline", baseline.name),
        ("its median (µs) [95 %]", _median(baseline)),
        (
            "its mean ± standard deviation (µs)",
            f"{formats.number(baseline['mean_us'], 4)} ± {formats.number(baseline['std_us'])}",
        ),
        (
            "its throughput (TFLOP/s)",
            formats.number(baseline["throughput_tflops"]) + sign(baseline["throughput_mark"]),
        ),
        (
            "its bandwidth, compulsory bytes (GB/s)",
            formats.number(baseline["bandwidth_gbs"]) + sign(baseline["bandwidth_mark"]),
        ),
        ("its peak memory (MiB)", formats.mebibytes(results.peak_bytes(str(baseline.name), shape))),
        ("fastest here", f"{fastest.name}, {_median(fastest)} µs"),
        ("floor by the measured ceilings (µs)", formats.number(baseline["floor_us"])),
        (f"claimable below ({CLAIM_SPEEDUP:g}×, intervals apart) (µs)", formats.number(claimable_us, 4)),
    ]
    claim = f"A claim also needs |Cliff's delta| ≥ {CLAIM_DELTA:g} and a p-value that survives Holm's correction."
    note = " ".join(filter(None, [claim, explanations([baseline])]))
    return Table(
        pd.DataFrame(rows, columns=["", "value"]),
        "to-beat",
        f"What must be beaten at {formats.shape(shape)}; {results.headline.words}.",
        note,
    )


@telling
def verdicts(results: Results, shape: Shape) -> Table:
    """Every implementation against the baseline at one shape, and last the baseline against itself."""
    baseline, names = results.study.baseline, results.candidates(shape)
    family, row = results.family(shape), results.row(baseline, shape)
    its_regime = regime.compared(results, [baseline], shape)
    rows: list[dict[str, Any]] = [
        {"implementation": baseline, "median (µs) [95 %]": _stacked(row), "verdict": "the baseline"}
        | {"regime": its_regime}
    ]
    for name, verdict in [(name, results.compare(name, shape)) for name in names]:
        rows.append({"implementation": name} | _compared(results, name, shape, verdict))
    note = (
        "Speedup is the ratio of medians, from rounds taken together; above 1 the candidate is faster. Equivalent "
        f"means within ±{100 * EQUIVALENCE_MARGIN:g} %, where so little could have been seen; claimable, faster with "
        f"intervals apart, a speedup of {CLAIM_SPEEDUP:.2f} and a delta of {CLAIM_DELTA:g}, both at least. "
        f"{DEPENDENCE_NOTE} "
        "Mann-Whitney's alone takes all samples for independent. Intervals: whether that of the median is apart from "
        f"the baseline's. {REGIME_NOTE}"
    )
    if family.control is not None:
        itself = implementations.control(baseline)
        rows.append({"implementation": f"{baseline} again"} | _compared(results, itself, shape, family.control))
        rows[-1] |= {"p (Holm)": None, "verdict": family.control.decision}
        seen = formats.percent(100 * family.smallest_effect)
        note += (
            " Last, the baseline against itself: it took a second turn in each round, and what differs is noise. It is "
            f"no part of the family that Holm adjusts for. The smallest effect that could have been seen is {seen}."
        )
    else:
        note += f" {NO_CONTROL}."
    note = " ".join([note, without(results, [n for n in results.study.implementations if n not in names], shape)])
    columns = ["implementation", "median (µs) [95 %]", *JUDGED]
    caption = f"Against `{baseline}` at {formats.shape(shape)}; {results.headline.words}."
    return Table(pd.DataFrame(rows, columns=columns).astype(object), "verdicts", caption, note.strip(), 0)


def _compared(results: Results, name: str, shape: Shape, verdict: Verdict) -> dict[str, object]:
    """What a row says of one comparison at a shape, under the headline's timing."""
    sides = [results.samples(each, shape) for each in (results.study.baseline, name)]
    baseline = median_of(results.row(results.study.baseline, shape))
    median = results.median(name, shape)
    return judged(results, name, shape, results.headline, verdict) | {
        "median (µs) [95 %]": formats.stacked(median),
        "p (Mann-Whitney)": formats.pvalue(mann_whitney(*sides).pvalue),
        "intervals": "overlap" if median.overlaps(baseline) else "apart",
    }


def judged(results: Results, name: str, shape: Shape, timing: Timing, verdict: Verdict) -> dict[str, object]:
    """What a row says of the verdict on one candidate."""
    return {
        "speedup [95 %]": formats.stacked(verdict.speedup),
        "p (Holm)": formats.pvalue(verdict.pvalue),
        "Cliff's delta": formats.signed(verdict.delta),
        "Hedges' g": formats.number(verdict.g),
        "verdict": f"{verdict.decision},\nclaimable" if verdict.claimable else verdict.decision,
        "regime": regime.compared(results, [results.study.baseline, name], shape, timing),
    }


def without(results: Results, names: list[str], shape: Shape) -> str:
    """Which of these have no latency at a shape, and why."""
    there = results.at(shape).index
    reasons = {name: absence(results, name, shape) for name in names if name not in there}
    return " ".join(f"`{name}` has no latency here: {formats.ended(reason, 160)}" for name, reason in reasons.items())


@telling
def every_case(results: Results) -> Table:
    """All cases under all timings."""
    rows = [
        {
            "implementation": row["implementation"],
            "B, H, S, D": f"{row['batch']}, {row['heads']}, {row['seq_len']}, {row['head_dim']}",
            "mask": "causal" if row["causal"] else "full",
            "timing": f"{row['clock']} {row['cache']}",
            "k": _launches(row),
            "median (µs) [95 %]": _median(row),
            "TFLOP/s": formats.number(row["throughput_tflops"]) + sign(row["throughput_mark"]),
            "light": light(row),
        }
        for row in results.table.to_dict("records")
    ]
    legend = "k: launches that a sample spans, which replicates choose for themselves; light: floor over median."
    note = " ".join(filter(None, [legend, explanations(results.table.to_dict("records"))]))
    return Table(pd.DataFrame(rows), "every-case", "Every case under every timing.", note)


def checklist(results: Results) -> Table:
    """What a reviewer asks for, answered from the manifest and the tables."""
    manifest, checks = results.run.manifest, results.run.checks
    environment, study = manifest["environment"], results.study
    taken = manifest.get("closed_early", {}).get("replicates", study.replicates)
    rows = [
        ("hardware named", f"{manifest['device']['name']}, driver {environment['driver']}"),
        (
            "software pinned",
            f"PyTorch {environment['packages']['torch']}, CUDA {environment['cuda']}, cuDNN {environment['cudnn']}",
        ),
        ("settings locked and asserted", f"{len(environment['settings'])} settings, hash {environment['hash'][:16]}"),
        ("inputs", "timed on standard normal ones, seeded by shape, replicate and purpose"),
        ("samples a case and timing", f"{study.samples} in each of {formats.count(taken, 'replicate')}"),
        ("order", "rounds interleaved, random within each"),
        ("correctness gate", f"{int(checks['passed'].sum())} of {len(checks)} checks passed"),
        ("clock, power and throttling", manifest["telemetry"]),
        ("intervals", "percentile bootstrap, 10 000 resamples, seed 42; Student's t over replicates"),
        ("raw samples", f"{len(results.run.samples):,} rows, none dropped, hashed below"),
        ("code", f"attnlab {manifest['attnlab']}, commit {manifest['commit'][:12]}, sources hashed below"),
    ]
    return Table(pd.DataFrame(rows, columns=["asked for", "here"]), "checklist", "Reproducibility checklist.")


def hashes(results: Results) -> Table:
    """Fingerprints of everything the numbers rest on."""
    manifest = results.run.manifest
    rows = [
        ("environment", manifest["environment"]["hash"]),
        ("manifest seal", manifest["seal"]),
        ("commit", manifest["commit"]),
        *((name, value) for name, value in manifest.get("files", {}).items()),
        *((f"measure/{name}", value) for name, value in manifest["sources"].items()),
        *((name, value) for name, value in manifest["kernels"].items()),
    ]
    frame = pd.DataFrame(
        [(name, f"{value[:32]}{'…' if len(value) > 32 else ''}") for name, value in rows], columns=["what", "hash"]
    )
    return Table(frame, "hashes", "Hashes of the run's files, its environment and the code that measured.")


def _median(row: Any) -> str:
    return formats.interval(median_of(row))


def _stacked(row: Any) -> str:
    return formats.stacked(median_of(row))


def _quantile(row: Any, name: str) -> str:
    if np.isnan(row[f"{name}_us"]):
        return "not enough samples"
    return formats.interval(Interval(row[f"{name}_us"], row[f"{name}_low_us"], row[f"{name}_high_us"]))


def sign(mark: str) -> str:
    """The sign of a mark, as it stands beside a number; see `explanations`."""
    return f" {mark[0]}" if mark else ""


def light(row: Any) -> str:
    """The speed of light of a row with the signs of what is above a ceiling."""
    marks = (row["bandwidth_mark"], row["throughput_mark"])
    return formats.percent(row["speed_of_light_pct"]) + "".join(sorted({sign(mark) for mark in marks}))


def explanations(rows: list[Any]) -> str:
    """What the signs in these rows stand for."""
    marks = {row[kind]: None for kind in ("bandwidth_mark", "throughput_mark") for row in rows if row[kind]}
    return " ".join(f"{mark}." for mark in marks)


def _ceilings_note(results: Results, shapes: list[Shape]) -> str:
    """At which clock the ceilings were measured, where that says something about a speed of light."""
    if not any(ceiling.sm_clock_mhz for ceiling in results.ceilings.all):
        return ""
    note = "The ceilings are those of bursts, at the SM clock that [](#tab-ceilings) gives."
    held_back = set(results.held_back())
    held = [shape for shape in shapes if shape in held_back]
    if not held:
        return note
    return (
        f"{note} At {formats.shapes(held)} more than half of the samples were taken while the card held its clock "
        "back: there the speed of light is against ceilings of a higher clock."
    )


def _place(results: Results, shapes: list[Shape]) -> int | None:
    target = results.study.target_shape
    return shapes.index(target) if target in shapes else None


def _medians(results: Results, shapes: list[Shape], titles: list[str]) -> pd.DataFrame:
    """Every implementation's median at each shape, a row for each implementation."""
    there = [results.at(shape) for shape in shapes]
    if all(rows.empty for rows in there):
        raise NotMeasured(f"Nothing has a latency at {formats.shapes(shapes)}")
    rows = [
        [name, *(_stacked(at.loc[name]) if name in at.index else None for at in there)]
        for name in results.study.implementations
    ]
    return pd.DataFrame(rows, columns=["implementation", *titles])


def _absent(results: Results, shapes: list[Shape]) -> str:
    """What has no latency at some of these shapes, and the first reason why."""
    told = []
    for name in results.study.implementations:
        missing = [shape for shape in shapes if name not in results.at(shape).index]
        if missing:
            reason = formats.ended(absence(results, name, missing[0]), 120)
            told.append(f"`{name}` has no latency at {len(missing)} of {len(shapes)}: {reason}")
    return " ".join(told)


def _turn(name: str) -> str:
    """An implementation, or the baseline's second turn."""
    return f"{implementations.under_control(name)} again" if implementations.is_control(name) else name


def _launches(row: Any) -> str:
    least, most = row["launches"], row["launches_most"]
    return f"{least}" if least == most else f"{least}–{most}"


def _share(checks: pd.DataFrame) -> pd.Series:
    """Errors over those allowed; where both are zero, none of it is used up."""
    largest = checks["max_error"] / (2 * checks["framework_max_error"])
    mean = checks["mean_error"] / (2 * checks["framework_mean_error"])
    return np.maximum(largest.fillna(0), mean.fillna(0))


def _fixed(shapes: list[Shape], axis: str) -> str:
    first = shapes[0]
    sizes = {"B": first.batch, "H": first.heads, "S": first.seq_len, "D": first.head_dim}
    kept = [f"{letter}={size}" for letter, size in sizes.items() if letter != LETTERS[axis]]
    special = first.resized(**{axis: 0}).special if axis.startswith("kv_") else first.special
    return ", ".join([*kept, first.dtype, *(["causal"] if first.causal else []), *special])


def _shape(row: dict[str, Any]) -> Shape:
    return Shape(**{axis: row[axis] for axis in AXES})


def _with_unit(value: Any, unit: str) -> str | None:
    return None if value is None else f"{value:g} {unit}"


def _lengths(some: set[int], everywhere: set[int]) -> str:
    return "all" if some == everywhere else ", ".join(map(str, sorted(some)))
