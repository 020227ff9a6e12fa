"""The tables, one function each: what a run says, to the digit that its intervals support."""

from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from attnlab.analyse import formats
from attnlab.analyse.display import Table, of_sweep
from attnlab.analyse.figures import AXIS_TITLES
from attnlab.analyse.results import AXES, Results
from attnlab.shapes import Shape
from attnlab.stats import CLAIM_DELTA, CLAIM_SPEEDUP, Interval, ratio_ci, samples_needed

CAUSAL_NOTE = (
    "Causal FLOPs count the scores under the mask, 2·B·H·S·(S+1)·D; half of 4·B·H·S²·D would be S/(S+1) of it."
)
LETTERS = {"seq_len": "S", "batch": "B", "heads": "H"}
SWEEP_TITLES = {"seq_len": "Sequence length", "batch": "Batch", "heads": "Heads"}


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
            "measured [95 %]": formats.interval(ceiling.measured) if ceiling.measured else None,
            "unit": ceiling.unit,
            "datasheet": formats.number(ceiling.datasheet) if ceiling.datasheet else "n/a",
            "of datasheet": formats.percent(100 * ceiling.measured.estimate / ceiling.datasheet)
            if ceiling.measured and ceiling.datasheet
            else "n/a",
            "SM clock (MHz)": None if ceiling.sm_clock_mhz is None else str(ceiling.sm_clock_mhz),
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
    note = "No interval of a median is narrower than the tick, divided by the launches that a sample spans."
    return Table(pd.DataFrame(rows, columns=["reading", "µs"]), "clock", "The clock itself.", note)


def cases(results: Results) -> Table | None:
    """What became of the cases that were not measured; None where all were."""
    rows = results.run.cases
    rows = rows[rows["status"] != "measured"].drop_duplicates(["implementation", *AXES, "status"])
    if rows.empty:
        return None
    frame = pd.DataFrame(
        {
            "implementation": rows["implementation"],
            "shape": [formats.shape(_shape(row)) for row in rows.to_dict("records")],
            "status": rows["status"],
            "reason": [_shortened(reason) for reason in rows["reason"]],
        }
    )
    return Table(frame, "cases", "Cases that have no latency, and why.")


def kernels(results: Results) -> Table:
    """Which kernel each implementation ran, and for which lengths."""
    rows = results.run.cases
    rows = rows[rows["status"] == "measured"]
    rows = rows.assign(kernel=rows["kernels"].str.split("\n").str[0].map(_kernel_name))
    grouped = rows.groupby(["implementation", "kernel"], sort=False)
    everywhere = set(rows["seq_len"])
    frame = pd.DataFrame(
        [
            {"implementation": name, "longest kernel": kernel, "S": _lengths(set(group["seq_len"]), everywhere)}
            for (name, kernel), group in grouped
        ]
    )
    return Table(frame, "kernels", "The kernel that ran: the longest of each call, by torch.profiler, and where.")


@of_sweep
def sweep(results: Results, name: str, implementation: str) -> Table:
    """One implementation along one sweep: latency, throughput, bandwidth, memory."""
    axis, shapes = name.split()[-1], results.study.sweep(name)
    target = results.study.target_shape
    rows: list[dict[str, object]] = []
    highlight = None
    for shape in shapes:
        at = results.at(shape)
        if implementation not in at.index:
            continue
        row = at.loc[implementation]
        if shape == target:
            highlight = len(rows)
        rows.append(
            {
                LETTERS[axis]: getattr(shape, axis),
                "median (µs) [95 %]": _median(row),
                "TFLOP/s": formats.number(row["throughput_tflops"]) + _mark(row),
                "GB/s": formats.number(row["bandwidth_gbs"]) + _mark(row),
                "memory (MiB)": formats.mebibytes(_peak(results, implementation, shape)),
                "samples": int(row["samples"]),
            }
        )
    caption = f"{SWEEP_TITLES[axis]} sweep, `{implementation}`, {_fixed(shapes, axis)}; {results.headline.words}."
    return Table(
        pd.DataFrame(rows), f"sweep-{name.replace(' ', '-')}", caption, _sweep_note(results, shapes), highlight
    )


@of_sweep
def backends(results: Results, name: str) -> Table:
    """Every implementation along one sweep."""
    axis, shapes = name.split()[-1], results.study.sweep(name)
    rows = []
    for shape in shapes:
        at = results.at(shape)
        medians = {n: _stacked(at.loc[n]) if n in at.index else None for n in results.study.implementations}
        rows.append({LETTERS[axis]: getattr(shape, axis), **medians})
    caption = f"Median latency in µs with 95 % interval, every implementation, {_fixed(shapes, axis)}; {results.headline.words}."
    highlight = shapes.index(results.study.target_shape) if results.study.target_shape in shapes else None
    return Table(pd.DataFrame(rows), f"backends-{name.replace(' ', '-')}", caption, "", highlight)


@of_sweep
def listed(results: Results, name: str) -> Table:
    """Every implementation at the shapes of a sweep along no single axis."""
    rows = []
    for shape in results.study.sweep(name):
        at = results.at(shape)
        medians = {n: _stacked(at.loc[n]) if n in at.index else None for n in results.study.implementations}
        rows.append({"B": shape.batch, "H": shape.heads, "S": shape.seq_len, **medians})
    caption = f"Median latency in µs with 95 % interval at the shapes of “{name}”; {results.headline.words}."
    return Table(pd.DataFrame(rows), f"listed-{name.replace(' ', '-')}", caption)


@of_sweep
def scaling(results: Results, name: str, implementation: str) -> Table:
    """From each step of a sweep to the next: how latency grows beside the work."""
    axis, shapes = name.split()[-1], results.study.sweep(name)
    there = [shape for shape in shapes if implementation in results.at(shape).index]
    rows = []
    for smaller, larger in pairwise(there):
        numerator, denominator = results.samples(implementation, larger), results.samples(implementation, smaller)
        growth, work = ratio_ci(numerator, denominator, tick=results.tick_us), larger.flops / smaller.flops
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


@of_sweep
def variance(results: Results, name: str, implementation: str) -> Table:
    """How much samples vary, and how far they are independent."""
    rows = []
    for shape in results.study.sweep(name):
        at = results.at(shape)
        if implementation not in at.index:
            continue
        row = at.loc[implementation]
        rows.append(
            {
                "S": shape.seq_len,
                "median": formats.number(row["median_us"], 4),
                "mean": formats.number(row["mean_us"], 4),
                "std": formats.number(row["std_us"]),
                "CV": formats.percent(row["cv_pct"]),
                "min": formats.number(row["min_us"], 4),
                "max": formats.number(row["max_us"], 4),
                "outliers": formats.percent(row["outliers_pct"]),
                "lag-1": f"{row['lag1']:.2f}",
                "effective N": f"{row['effective_n']:.0f} of {row['samples']:.0f}",
                "throttled": formats.percent(row["throttled_pct"]),
            }
        )
    note = "Latencies in µs. Outliers lie beyond Tukey's fences; they are labelled and kept. Lag-1 is the autocorrelation of neighbouring samples."
    return Table(
        pd.DataFrame(rows), "variance", f"Variance control, `{implementation}`; {results.headline.words}.", note
    )


@of_sweep
def tails(results: Results, name: str, implementation: str) -> Table:
    """P50, P95 and P99, where the sample count supports them."""
    rows = []
    for shape in results.study.sweep(name):
        at = results.at(shape)
        if implementation not in at.index:
            continue
        row = at.loc[implementation]
        rows.append(
            {
                "S": shape.seq_len,
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


@of_sweep
def memory(results: Results, name: str) -> Table:
    """Peak memory along a sweep."""
    rows = []
    for shape in results.study.sweep(name):
        peaks = {n: _peak(results, n, shape) for n in results.study.implementations}
        rows.append(
            {"S": shape.seq_len, "Q, K, V, O": formats.mebibytes(shape.bytes)}
            | {n: None if np.isnan(peak) else formats.mebibytes(peak) for n, peak in peaks.items()}
        )
    return Table(
        pd.DataFrame(rows), "memory", "Most memory allocated at once during a call, in MiB, inputs and output included."
    )


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


def correctness(results: Results) -> Table:
    """The gate's findings by implementation, over all shapes."""
    grouped = results.run.checks.groupby("implementation", sort=False)
    rows = [
        {
            "implementation": name,
            "checks": len(group),
            "passed": int(group["passed"].sum()),
            "largest error": formats.number(group["max_error"].max()),
            "mean error": formats.number(group["mean_error"].mean()),
            "largest share of the allowed": formats.percent(100 * _share(group).max()),
        }
        for name, group in grouped
    ]
    note = "Absolute errors against the float64 oracle, on inputs not seen before, before timing and after it, into memory filled with NaN."
    return Table(pd.DataFrame(rows), "correctness", "The correctness gate.", note)


@of_sweep
def roofline(results: Results, name: str, implementation: str) -> Table:
    """Intensity, floor and what stands in the way, along a sweep."""
    rows: list[dict[str, object]] = []
    highlight = None
    for shape in results.study.sweep(name):
        at = results.at(shape)
        if implementation not in at.index:
            continue
        row, terms = at.loc[implementation], results.ceilings.terms_us(shape)
        if shape == results.study.target_shape:
            highlight = len(rows)
        rows.append(
            {
                "S": shape.seq_len,
                "GFLOP": formats.number(shape.flops / 1e9),
                "MB": formats.number(shape.bytes / 1e6),
                "FLOP/byte": formats.number(shape.intensity),
                "matrix (µs)": formats.number(terms.get(f"matmul.{shape.dtype}", np.nan)),
                "memory (µs)": formats.number(terms.get("copy", np.nan)),
                "exp (µs)": formats.number(terms.get("exponentials", np.nan)),
                "limit": row["limit"],
                "median (µs)": formats.number(row["median_us"], 4),
                "speed of light": formats.percent(row["speed_of_light_pct"]) + _mark(row),
            }
        )
    note = f"{_mark_note(results)} {CAUSAL_NOTE}" if name.startswith("causal") else _mark_note(results)
    caption = f"Roofline along the sequence length, `{implementation}`{', causal' if name.startswith('causal') else ''}: least times by ceiling, and the largest over the median; {results.headline.words}."
    return Table(pd.DataFrame(rows), f"roofline-{name.replace(' ', '-')}", caption, note.strip(), highlight)


def to_beat(results: Results) -> Table:
    """What a kernel has to beat at the target shape."""
    shape = results.study.target_shape
    at = results.at(shape)
    baseline, fastest = at.loc[results.study.baseline], at.loc[results.fastest(shape)]
    claimable_us = min(baseline["low_us"], baseline["median_us"] / CLAIM_SPEEDUP)
    rows = [
        ("baseline", baseline.name),
        ("its median (µs) [95 %]", _median(baseline)),
        (
            "its mean ± standard deviation (µs)",
            f"{formats.number(baseline['mean_us'], 4)} ± {formats.number(baseline['std_us'])}",
        ),
        ("its throughput (TFLOP/s)", formats.number(baseline["throughput_tflops"])),
        ("its bandwidth, compulsory bytes (GB/s)", formats.number(baseline["bandwidth_gbs"])),
        ("its peak memory (MiB)", formats.mebibytes(_peak(results, str(baseline.name), shape))),
        ("fastest here", f"{fastest.name}, {_median(fastest)} µs"),
        ("floor by the measured ceilings (µs)", formats.number(baseline["floor_us"])),
        (f"claimable below ({CLAIM_SPEEDUP:g}×, intervals apart) (µs)", formats.number(claimable_us, 4)),
    ]
    note = f"A claim also needs |Cliff's delta| ≥ {CLAIM_DELTA:g} and a p-value that survives Holm's correction."
    return Table(
        pd.DataFrame(rows, columns=["", "value"]),
        "to-beat",
        f"What must be beaten at {formats.shape(shape)}; {results.headline.words}.",
        note,
    )


def verdicts(results: Results, shape: Shape) -> Table:
    """Every implementation against the baseline at one shape."""
    rows = []
    for name in results.at(shape).index:
        if name == results.study.baseline:
            continue
        verdict = results.compare(str(name), shape)
        rows.append(
            {
                "candidate": name,
                "speedup [95 %]": formats.interval(verdict.speedup),
                "Cliff's delta": f"{verdict.delta:+.2f}",
                "Hedges' g": formats.number(verdict.g),
                "p": formats.pvalue(verdict.pvalue),
                "decision": verdict.decision,
                "claimable": "yes" if verdict.claimable else "no",
            }
        )
    note = "Speedup is the ratio of medians, from rounds taken together; above 1 the candidate is faster. Equivalent means within ±2 %."
    caption = f"Against `{results.study.baseline}` at {formats.shape(shape)}; {results.headline.words}."
    return Table(pd.DataFrame(rows), "verdicts", caption, note)


def every_case(results: Results) -> Table:
    """All cases under all timings."""
    rows = [
        {
            "implementation": row["implementation"],
            "B, H, S, D": f"{row['batch']}, {row['heads']}, {row['seq_len']}, {row['head_dim']}",
            "mask": "causal" if row["causal"] else "full",
            "timing": f"{row['clock']} {row['cache']}",
            "k": row["launches"],
            "median (µs) [95 %]": _median(row),
            "TFLOP/s": formats.number(row["throughput_tflops"]) + _mark(row),
            "light": formats.percent(row["speed_of_light_pct"]),
        }
        for row in results.table.to_dict("records")
    ]
    note = f"k: launches that a sample spans; light: floor over median. {_mark_note(results)}"
    return Table(pd.DataFrame(rows), "every-case", "Every case under every timing.", note.strip())


def checklist(results: Results) -> Table:
    """What a reviewer asks for, answered from the manifest and the tables."""
    manifest, checks = results.run.manifest, results.run.checks
    environment, study = manifest["environment"], results.study
    rows = [
        ("hardware named", f"{manifest['device']['name']}, driver {environment['driver']}"),
        (
            "software pinned",
            f"PyTorch {environment['packages']['torch']}, CUDA {environment['cuda']}, cuDNN {environment['cudnn']}",
        ),
        ("settings locked and asserted", f"{len(environment['settings'])} settings, hash {environment['hash'][:16]}"),
        ("inputs", "standard normal, seeded by shape, replicate and purpose"),
        ("samples a case and timing", f"{study.samples} in each of {study.replicates} processes"),
        ("order", "rounds interleaved, random within each"),
        ("correctness gate", f"{int(checks['passed'].sum())} of {len(checks)} checks passed"),
        ("clock, power and throttling", manifest["telemetry"]),
        ("intervals", "percentile bootstrap, 10 000 resamples, seed 42"),
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
        *((f"kernels/{name}", value) for name, value in manifest["kernels"].items()),
    ]
    frame = pd.DataFrame(
        [(name, f"{value[:32]}{'…' if len(value) > 32 else ''}") for name, value in rows], columns=["what", "SHA-256"]
    )
    return Table(frame, "hashes", "Hashes of the run's files, its environment and the code that measured.")


def _median(row: Any) -> str:
    return formats.interval(Interval(row["median_us"], row["low_us"], row["high_us"]))


def _stacked(row: Any) -> str:
    return formats.stacked(Interval(row["median_us"], row["low_us"], row["high_us"]))


def _quantile(row: Any, name: str) -> str:
    if np.isnan(row[f"{name}_us"]):
        return "not enough samples"
    return formats.interval(Interval(row[f"{name}_us"], row[f"{name}_low_us"], row[f"{name}_high_us"]))


def _mark(row: Any) -> str:
    return {"": "", "L2": " †", "above ceiling": " ‡"}[row["mark"]]


def _mark_note(results: Results) -> str:
    marks = set(results.under(results.headline)["mark"])
    notes = {
        "L2": "† above the copy ceiling: the tensors fit the last level of cache, whose own ceiling explains it.",
        "above ceiling": "‡ above a measured ceiling and not explained by the cache: take it for an error until it is.",
    }
    return " ".join(text for mark, text in notes.items() if mark in marks)


def _sweep_note(results: Results, shapes: list[Shape]) -> str:
    note = "Throughput and bandwidth are FLOPs and compulsory bytes over the median."
    causal = CAUSAL_NOTE if shapes[0].causal else ""
    return " ".join(part for part in (note, causal, _mark_note(results)) if part)


def _share(checks: pd.DataFrame) -> pd.Series:
    largest = checks["max_error"] / (2 * checks["framework_max_error"])
    mean = checks["mean_error"] / (2 * checks["framework_mean_error"])
    return np.maximum(largest, mean).replace([np.inf], np.nan).fillna(0)


def _peak(results: Results, implementation: str, shape: Shape) -> float:
    cases = results.run.cases
    same = np.logical_and.reduce([cases[axis] == value for axis, value in shape.axes.items()])
    chosen = cases[same & (cases["implementation"] == implementation) & (cases["status"] == "measured")]
    return float(chosen["peak_memory_bytes"].max()) if len(chosen) else np.nan


def _fixed(shapes: list[Shape], axis: str) -> str:
    first = shapes[0]
    sizes = {"B": first.batch, "H": first.heads, "S": first.seq_len, "D": first.head_dim}
    kept = [f"{letter}={size}" for letter, size in sizes.items() if letter != LETTERS[axis]]
    return f"{', '.join(kept)}, {first.dtype}{', causal' if first.causal else ''}"


def _shape(row: dict[str, Any]) -> Shape:
    return Shape(**{axis: row[axis] for axis in AXES})


def _with_unit(value: Any, unit: str) -> str | None:
    return None if value is None else f"{value:g} {unit}"


def _shortened(text: str, most: int = 160) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _lengths(some: set[int], everywhere: set[int]) -> str:
    return "all" if some == everywhere else ", ".join(map(str, sorted(some)))


def _kernel_name(name: str) -> str:
    # Template arguments run to hundreds of characters; what tells kernels apart stands before them, but for CUTLASS's
    # wrapper, whose first argument is the kernel.
    plain = name.removeprefix("void ").replace("(anonymous namespace)::", "").replace("cutlass::Kernel2<", "")
    return _shortened(plain.split("<")[0].split("(")[0].split(">")[0], 90)
