"""The README of an export, which explains every field of its JSON."""

from attnlab.base.rules import STEADY
from attnlab.exhibits.cells import given
from attnlab.exhibits.quantities import INTERVAL, QUANTITIES
from attnlab.export.records import LATENCIES, RENAMED
from attnlab.infer import cases
from attnlab.infer.results import Results
from attnlab.runs.tables import AXES, CACHE, CASES, CLOCK

SHAPE = {column.name: column.means for column in AXES}
RUN = {
    "name": "the folder in `data/` that all of this was inferred from",
    "schema": "layout of that folder",
    "created, finished": "when measuring began and ended, UTC",
    "complete": "whether nothing that the study asks for is missing",
    "closed_early": "how much it holds of what its study asks for, where it was closed before it was complete",
    "seal": "SHA-256 of its manifest without the seal",
    "attnlab, commit, command": "what measured",
}


def _of_quantities(*names: str) -> dict[str, str]:
    """The meanings of quantities, each by its fields: the value, the ends of its interval, and its mark."""
    explained = {}
    for name in names:
        quantity = QUANTITIES[name]
        fields = [name, *(quantity.ends or ()), *filter(None, [quantity.mark])]
        explained[", ".join(RENAMED.get(field, field) for field in fields)] = quantity.meaning
    return explained


CASE = {
    **{column.name: column.means for column in (CLOCK, CACHE)},
    "launches_least, launches_most": "calls that one sample spans, at fewest and at most over the replicates",
    "tick_us": "step of the clock over `launches_least`",
    "median_interval, speedup_interval": "method of the interval; `conventions.interval` says what each is",
    **_of_quantities(*(name for name in cases.COLUMNS if name in QUANTITIES)),
    "regime": f"{QUANTITIES['regime'].meaning}; of the case's own, where it is compared with nothing",
}
VERDICT = {
    "against": "the baseline",
    **_of_quantities("decision", "claimable", "speedup", "cliffs_delta", "hedges_g", "p_unadjusted", "p_holm"),
    "cliffs_delta_magnitude": "the word for it",
    "compared_in_family": "candidates that Holm adjusts over",
    **_of_quantities("intervals_of_medians", "smallest_effect_pct"),
}
SUMMARY = {
    "format": "of this layout",
    "version": "of the format; a field that changes its meaning raises it",
    "run": "what was exported",
    "device": "its name",
    "study": "what was asked for; `target` is the shape that the headline speaks of",
    "title, baseline, target, implementations, timings": "of the study",
    "samples_a_replicate, replicates_asked_for": "of the study",
    "headline_timing": "the timing that the report speaks of first",
    "clocks_not_there": "timings that this device can't measure",
    "stale_kernels": "kernels that changed since they were measured",
    "checks": "correctness checks made and passed",
    "baseline_against_itself": "how often the run told its baseline from itself, over all shapes and timings",
    "comparisons, called_faster_or_slower": "of those",
    "rate, rate_low, rate_high, rate_interval": f"their ratio, its {INTERVAL} and the method of that",
    "conventions": "what the numbers mean: FLOPs, intervals, tests, bars",
    "configs": "the shapes, with their files",
    "rows": "a row for each case and timing; verdicts are null for the baseline",
    "files": "the arrays of the row, one for each replicate",
    "without_latency": "the cases that have no row",
    "why": "why there is none",
    "config, file": "name and file of a shape",
}
CONFIG = {
    "is_target, sweeps": "its place in the study",
    "shape": "the axes, as in the summary",
    "scores, exponentials": "entries of the score matrix that the mask lets through; exponentials taken of them",
    "flops_formula": "how FLOPs are counted here",
    "least_us_by_ceiling": "by cache, the least time that each measured ceiling allows; the largest is the floor",
    "implementations": "a record each, `timings` and verdicts within it",
    "implementation": "its name",
    "why_no_latency": "null where it has one",
    "samples_withheld": "samples that the run holds and this export doesn't: the case failed a check, or was cut off",
    **_of_quantities("peak_memory_bytes"),
    "made, passed, max_error, framework_max_error": "checks of the case; largest absolute error against the float64 "
    "oracle on the values that are timed, its own and the framework's",
    "differing_most": "most elements in which two runs on the same inputs differed",
    "outcomes": "what became of it in each replicate",
    "replicate, process": "number of the replicate, random name of the process",
    "status, reason": "`measured`, or what happened instead and why",
    "kernels": CASES["kernels"].means,
    "warmup_calls, steady": f"calls before timing, and whether two windows of them agreed within {100 * STEADY:g} %",
    "verdict": "on the candidate; null for the baseline",
    "arrays": "the samples, a file for each replicate",
    "launches": "calls that one sample of this replicate spans",
    "control": "the baseline measured against itself in the same rounds; null where it wasn't",
}
FIELDS = {
    "A run": RUN,
    "A shape": SHAPE,
    "A case under a timing": CASE,
    "A verdict": VERDICT,
    "summary.json": SUMMARY,
    "config_NN.json": CONFIG,
}
ENV = (
    "`env.json` holds the manifest's own fields, which `data/README.md` explains: device, locked settings as read "
    "back, versions, driver, what the run is judged by, clocks, telemetry, the study in full, "
    "SHA-256 of the measuring code, of the kernels and of the run's files; and the ceilings with their samples, the "
    f"median of these with its {INTERVAL}, and the datasheet's rate, all in `unit`."
)


def readme(results: Results, example: str) -> str:
    """The README of an export; `example` is one of its arrays, empty where there is none."""
    sections = [f"## {title}\n\n{_table(fields)}" for title, fields in FIELDS.items()]
    name = results.run.name
    parts = [
        f"# Export of the run {name}",
        f"Written by `make export RUN={name}` from `data/{name}/`, and the same bytes each time. JSON is strict UTF-8: "
        'what is not known is null, what is infinite the string "Infinity" or "-Infinity". Numbers are not rounded; '
        "units stand in the names.",
        "| file | holds |\n| --- | --- |\n"
        "| `comparison.md` | the report: what may be published, every verdict, the machine |\n"
        "| `summary.json` | the run, a row for each case and timing, what has no latency and why |\n"
        "| `config_NN.json` | one shape: every implementation, timing and verdict |\n"
        f"| `{LATENCIES}/config_NN.IMPLEMENTATION.CLOCK.CACHE.rK.npy` | the samples of replicate K in µs, float64, "
        "one-dimensional |\n"
        "| `env.json` | what was measured on and with |\n"
        "| `SHA256SUMS` | `sha256sum --check SHA256SUMS` tells whether anything changed |",
        "An array holds its samples in the order taken. Element i of two arrays that differ in the implementation "
        "alone was taken in the same round, so that they may be paired. Replicates are never joined: each is a process "
        "of its own. `control.*` is the baseline's second turn in each round. Samples of a case that failed a check "
        f"are not here.{given(results.study.implementations)}",
        *([_example(example)] if example else []),
        *sections,
        f"## env.json\n\n{ENV}",
    ]
    return "\n\n".join(parts) + "\n"


def _table(fields: dict[str, str]) -> str:
    rows = [f"| {', '.join(f'`{name}`' for name in names.split(', '))} | {told} |" for names, told in fields.items()]
    return "\n".join(["| field | holds |", "| --- | --- |", *rows])


def _example(file: str) -> str:
    pattern = file[: file.rindex(".r")] + ".r*.npy"
    return (
        "```python\n"
        "from glob import glob\n\n"
        "import numpy as np\n\n"
        f'replicates = [np.load(file) for file in sorted(glob("{pattern}"))]\n'
        "print(np.median(np.concatenate(replicates)))  # median_us of this case\n"
        "```"
    )
