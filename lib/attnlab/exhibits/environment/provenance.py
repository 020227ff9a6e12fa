"""Where the numbers come from: the run, the code and the commands; and the rules of benchmarking that were kept."""

import pandas as pd

from attnlab.base import rules
from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Prose, Table
from attnlab.exhibits.environment.machine import interval_words, sample_words
from attnlab.exhibits.markdown import Inline
from attnlab.infer.machine.effort import effort
from attnlab.infer.results import Results


@exhibit("environment.commands")
def commands(results: Results) -> Prose:
    """The commands that render this report again, and measure it again."""
    manifest = results.run.manifest
    return Prose(
        f"```bash\nmake report RUN={results.run.name}    # render the recorded run again, measure nothing\n"
        "make report    # measure the best device here, and render that\n"
        f"{manifest['command']}    # measured this run\n```"
    )


@exhibit("environment.checklist")
def checklist(results: Results) -> Table:
    """The points of a reproducibility checklist, answered from the manifest and the tables."""
    manifest, checks = results.run.manifest, results.run.checks
    environment, study = manifest["environment"], results.study
    cudnn = formats.cudnn(environment["cudnn"])
    packages, longest_ms = environment["packages"], f"{study.longest_call_ms:g} ms"
    samples = f"{sample_words(study)} in each of {formats.count(effort(results).replicates, 'replicate')}"
    resamples = f"{rules.RESAMPLES:,}".replace(",", " ")
    rows = [
        ("hardware named", f"{manifest['device']['name']}, driver {environment['driver']}"),
        ("software pinned", f"PyTorch {packages['torch']}, CUDA {environment['cuda']}, cuDNN {cudnn}"),
        ("settings locked and asserted", f"{len(environment['settings'])} settings, hash {environment['hash'][:16]}"),
        ("inputs", "of the shape's values, seeded by shape, replicate and purpose"),
        ("samples a case and timing", Inline(samples)),
        ("order", "rounds interleaved, random within each"),
        ("warm-up", f"at least {study.warmup_calls} calls; a call longer than {longest_ms} is not timed"),
        ("correctness gate", f"{int(checks['passed'].sum()):,} of {len(checks):,} checks passed"),
        ("clock, power and throttling", manifest["telemetry"]),
        ("intervals", f"{interval_words(results)}; {resamples} resamples, seed {rules.SEED}"),
        ("raw samples", f"{len(results.run.samples):,} rows, none dropped, hashed below"),
        ("code", f"attnlab {manifest['attnlab']}, commit {manifest['commit'][:12]}, sources hashed below"),
    ]
    return Table(pd.DataFrame(rows, columns=["asked for", "here"]), "Reproducibility checklist.")


@exhibit("environment.hashes")
def hashes(results: Results) -> Table:
    """Hashes of everything that the numbers depend on."""
    manifest = results.run.manifest
    every = {"environment": manifest["environment"]["hash"], "manifest seal": manifest["seal"]}
    every |= {"commit": manifest["commit"]} | manifest.get("files", {}) | manifest["sources"] | manifest["kernels"]
    rows = [(name, formats.shortened(value, 33)) for name, value in every.items()]
    frame = pd.DataFrame(rows, columns=["what", "hash"])
    return Table(frame, "Hashes of the run's files, its environment and the code that measured.")


RULES = (
    (
        "name the base of a speedup, and its absolute time",
        "each table names its baseline; 02_baseline has every latency",
    ),
    (
        "give the reason for a subset",
        "each shape is named; 01_environment has the reason of every case without a latency",
    ),
    ("means of costs are arithmetic, of rates harmonic", "latencies are medians; rates are work over that median"),
    (
        "don't average ratios",
        "each is of two medians at one shape, and shapes are counted; a geometric mean stands beside its ratios alone",
    ),
    ("intervals where data scatter", "each estimate has one, from replicates where there are several"),
    ("assume no normality unchecked", "only of medians of replicates; its cost is in [](#verdicts.calibration.brief)"),
    (
        "compare soundly",
        "rank tests and intervals of paired rounds, Holm's correction, and equivalence tested by itself",
    ),
    ("ask whether the median is the right summary", "tails with intervals are on the page 02_baseline"),
    ("document factors and set-up", "machine, settings, versions and hashes are read back and kept with the run"),
    ("say how time was measured and synchronized", "[](#environment.clocks) says it, and other clocks test it"),
    ("show upper bounds", "a floor by measured ceilings for each shape, the datasheet's beside it"),
    (
        "show what is needed, join only what is a trend",
        "explore.html draws every sample; lines run along one swept axis",
    ),
)
"""The rules of Hoefler and Belli in brief, each with what is done here."""


@exhibit("environment.rules")
def twelve_rules() -> Table:
    """The twelve rules of Hoefler and Belli for benchmarking, in the order of their paper."""
    rows = [(str(number), rule, Inline(answer)) for number, (rule, answer) in enumerate(RULES, 1)]
    return Table(
        pd.DataFrame(rows, columns=["", "rule, in brief", "here"]),
        "All twelve rules for benchmarks [](#ref-hoefler2015) are answered.",
    )
