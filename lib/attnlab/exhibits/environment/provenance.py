"""Where the numbers come from: the run, the code and the commands."""

import pandas as pd

from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Listing, Table
from attnlab.exhibits.environment.machine import sample_words
from attnlab.infer.results import Results
from attnlab.runs import rules


@exhibit("environment.commands")
def commands(results: Results) -> Listing:
    """The commands that render this report again, and measure it again."""
    manifest = results.run.manifest
    text = (
        f"make report RUN={results.run.name}    # render the recorded run, measure nothing\n"
        f"{manifest['command']}    # measure again\n"
    )
    return Listing(text, "Rendering this report again, and measuring again.", "bash")


@exhibit("environment.bibtex")
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
    return Listing(text, "Citing this report.", "bibtex")


@exhibit("environment.checklist")
def checklist(results: Results) -> Table:
    """The points of a reproducibility checklist, answered from the manifest and the tables."""
    manifest, checks = results.run.manifest, results.run.checks
    environment, study = manifest["environment"], results.study
    taken = manifest.get("closed_early", {}).get("replicates", study.replicates)
    each = sample_words(study, "").replace("`", "")
    resamples = f"{rules.RESAMPLES:,}".replace(",", " ")
    rows = [
        ("hardware named", f"{manifest['device']['name']}, driver {environment['driver']}"),
        (
            "software pinned",
            f"PyTorch {environment['packages']['torch']}, CUDA {environment['cuda']}, cuDNN {environment['cudnn']}",
        ),
        ("settings locked and asserted", f"{len(environment['settings'])} settings, hash {environment['hash'][:16]}"),
        ("inputs", "of the shape's values, seeded by shape, replicate and purpose"),
        ("samples a case and timing", f"{each} in each of {formats.count(taken, 'replicate')}"),
        ("order", "rounds interleaved, random within each"),
        ("correctness gate", f"{int(checks['passed'].sum()):,} of {len(checks):,} checks passed"),
        ("clock, power and throttling", manifest["telemetry"]),
        (
            "intervals",
            f"percentile bootstrap, {resamples} resamples, seed {rules.SEED}; Student's t over replicates",
        ),
        ("raw samples", f"{len(results.run.samples):,} rows, none dropped, hashed below"),
        ("code", f"attnlab {manifest['attnlab']}, commit {manifest['commit'][:12]}, sources hashed below"),
    ]
    return Table(pd.DataFrame(rows, columns=["asked for", "here"]), "Reproducibility checklist.")


@exhibit("environment.hashes")
def hashes(results: Results) -> Table:
    """Hashes of everything that the numbers depend on."""
    manifest = results.run.manifest
    rows = [
        ("environment", manifest["environment"]["hash"]),
        ("manifest seal", manifest["seal"]),
        ("commit", manifest["commit"]),
        *((name, value) for name, value in manifest.get("files", {}).items()),
        *manifest["sources"].items(),
        *((name, value) for name, value in manifest["kernels"].items()),
    ]
    frame = pd.DataFrame(
        [(name, f"{value[:32]}{'…' if len(value) > 32 else ''}") for name, value in rows], columns=["what", "hash"]
    )
    return Table(frame, "Hashes of the run's files, its environment and the code that measured.")
