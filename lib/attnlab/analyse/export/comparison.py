"""The comparison report of an export, in Markdown."""

from attnlab.analyse import calibration, formats, kernels, prose, tables, verdicts
from attnlab.analyse.display import Prose, Table
from attnlab.analyse.results import Results


def report(results: Results) -> str:
    """What the run says of its candidates against its baseline, whichever way it comes out."""
    target = results.study.target_shape
    sections: dict[str, list[Prose | Table | None]] = {
        "What may be published": [verdicts.statement(results, target)],
        f"At the target, {formats.shape(target)}": [
            tables.verdicts(results, target),
            prose.publishable(results, target),
            tables.to_beat(results),
        ],
        "Every comparison, counted": [
            verdicts.told(results),
            verdicts.by_timing(results),
            verdicts.by_candidate(results),
        ],
        "The baseline against itself": [calibration.false_positives(results), calibration.controls(results)],
        "Correctness, and what has no latency": [prose.correctness(results), tables.cases(results)],
        "What is missing": [prose.lacking(results), kernels.stale(results)],
        "The machine": [prose.machine(results), tables.machine(results), tables.settings(results)],
        "Burst or sustained": [prose.throttling(results)],
        "Reproducing it": [tables.checklist(results), tables.hashes(results)],
        "Appendix: every verdict": [verdicts.every(results)],
    }
    device = results.run.manifest["device"]["name"]
    title = f"# Is anything faster than `{results.study.baseline}`? {device}, run {results.run.name}"
    parts = [title, *(f"## {heading}\n\n{_body(shown)}" for heading, shown in sections.items())]
    return "\n\n".join(parts) + "\n"


def _body(shown: list[Prose | Table | None]) -> str:
    return "\n\n".join(one.markdown for one in shown if one is not None)
