"""The report of an export, in Markdown."""

from attnlab.exhibits.catalogue import Show
from attnlab.infer.results import Results

SECTIONS = {
    "What may be published": ("verdicts.values.said", "verdicts.statement"),
    "At the target, {target}": ("verdicts.target", "verdicts.publishable", "verdicts.to_beat"),
    "Every comparison, counted": ("verdicts.counted", "verdicts.by_timing", "verdicts.by_candidate"),
    "The baseline against itself": ("verdicts.false_positives", "verdicts.controls"),
    "Correctness, and what has no latency": ("baseline.correctness", "environment.cases"),
    "What is missing": ("environment.lacking", "kernels.stale"),
    "The machine": ("environment.run", "environment.machine", "environment.settings"),
    "Burst or sustained": ("environment.throttling",),
    "Reproducing it": ("environment.checklist", "environment.hashes"),
    "Appendix: every verdict": ("verdicts.every",),
}
"""The exhibits of each section, by its heading."""


def report(results: Results) -> str:
    """The report of a run on its candidates against its baseline."""
    show, target = Show(results), results.study.target_shape.label
    device = results.run.manifest["device"]["name"]
    parts = [f"# Is anything faster than `{results.study.baseline}`? {device}, run {results.run.name}"]
    for heading, ids in SECTIONS.items():
        body = "\n\n".join(filter(None, (show(id).markdown for id in ids)))
        parts.append(f"## {heading.format(target=target)}\n\n{body}")
    return "\n\n".join(parts) + "\n"
