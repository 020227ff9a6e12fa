"""The page 09_model: models of transformers with `attnlab.attend`, and with the SDPA that they call by themselves."""

from collections.abc import Callable, Sequence

import matplotlib.pyplot as plt
import pandas as pd

from attnlab.base.errors import UserError
from attnlab.exhibits import decisions, formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Figure, Group, Prose, Table
from attnlab.exhibits.formats import CI
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.models.comparisons import Comparison, comparisons
from attnlab.infer.models.outputs import Agreement, agreements, shares_pct
from attnlab.infer.results import Results
from attnlab.infer.stats import Interval
from attnlab.runs import models
from attnlab.runs.models import Record
from attnlab.runs.schema import FIRST, PHASES, REST
from attnlab.study.implementations import FALLBACK, control
from attnlab.study.models import BASELINE, CANDIDATE, Workload

COLOURS = {BASELINE: "#7F7F7F", CANDIDATE: "#B5179E"}
Shown = Callable[[Workload, Interval], Interval]


def _record(results: Results) -> Record:
    return _records(results)[0]


def _records(results: Results) -> tuple[Record, list[str]]:
    """The record that is shown, and a sentence for each that was left out because it isn't what was recorded."""
    device = results.run.manifest["device"]["name"]
    refused: list[UserError] = []
    found = models.newest(device, refused.append)
    left_out = [f"A record was left out: {error}." for error in refused]
    if found is None:
        said = f"No model was measured on {device}: `make model` does that there"
        raise NotMeasured(". ".join([said, *left_out]).removesuffix("."))
    return found, left_out


@exhibit("model.compared")
def compared(results: Results) -> Group:
    """Time to first token and tokens per second, with verdicts, and what is gained in a sentence."""
    record, left_out = _records(results)
    plan, found = record.manifest.plan, comparisons(record)
    by_phase = {phase: [one for one in found if one.phase == phase] for phase in PHASES}
    note = (
        f"{formats.count(plan.replicates, 'replicate')} of {plan.rounds} rounds, in which `{BASELINE}`, "
        f"`{CANDIDATE}` and the control, which is `{BASELINE}` again, take turns in random order on the same new "
        "prompts; the host's clock, until the tokens are on the host. The verdicts of both tables are one family "
        "(Holm). MDE: the minimum detectable effect, by the control."
    )
    first = _table(by_phase[FIRST], "ms", _milliseconds, "Time to the first token of every sequence of a batch.", note)
    rate = f"Tokens per second of a whole batch, over the {formats.count(plan.tokens - 1, 'token')} after the first."
    rest = _table(by_phase[REST], "tokens/s", _tokens_per_second, rate, "As above, by the median time of a step.")
    said = Prose(" ".join([_measured(record), _called(record), _gained(found), *left_out]))
    return Group({"said": said, "first": first, "rest": rest})


def _table(found: Sequence[Comparison], unit: str, shown: Shown, caption: str, note: str) -> Table:
    rows = [
        {
            **_cells(one.workload),
            f"SDPA ({unit}) [{CI}]": formats.stacked(shown(one.workload, one.baseline)),
            f"attend ({unit}) [{CI}]": formats.stacked(shown(one.workload, one.candidate)),
            f"speedup [{CI}]": formats.stacked(one.verdict.speedup),
            "verdict": decisions.cell(one.verdict),
            "MDE": formats.percent(100 * one.smallest_effect),
        }
        for one in found
    ]
    return Table(pd.DataFrame(rows), caption, note)


def _cells(workload: Workload) -> dict[str, object]:
    return {"model": workload.model.name, "batch": workload.batch, "prompt": workload.prompt}


def _milliseconds(workload: Workload, us: Interval) -> Interval:
    return Interval(us.estimate / 1e3, us.low / 1e3, us.high / 1e3)


def _tokens_per_second(workload: Workload, us: Interval) -> Interval:
    low, estimate, high = (workload.batch * 1e6 / end if end > 0 else float("inf") for end in _ends(us))
    return Interval(estimate, low, high)


def _ends(us: Interval) -> tuple[float, float, float]:
    return us.high, us.estimate, us.low


def _measured(record: Record) -> str:
    manifest = record.manifest
    packages = manifest.environment.packages
    return (
        f"The record `{manifest.name}` is of {manifest.device.name}, transformers {packages['transformers']}, "
        f"PyTorch {packages['torch']}, {manifest.plan.dtype}, random weights."
    )


def _called(record: Record) -> str:
    """What `attend` calls, in a sentence for the prompts and one for the later tokens."""
    table = record.manifest.dispatch
    if table is None:
        return (
            "On a CPU `attend` is SDPA, so that nothing can be gained: the record shows what a call of `attend` adds."
        )
    chosen = sum(choice.implementation != FALLBACK for choice in table.choices)
    return (
        f"By the verdicts of the run `{table.run}`, `attend` calls something else than `{FALLBACK}` at {chosen} of "
        f"{formats.count(len(table.choices), 'shape')} of prompts; in the models, {_ran(record)}. Each later token has "
        f"one key more than the one before; no table holds all these shapes, and `attend` calls `{FALLBACK}`."
    )


def _ran(record: Record) -> str:
    """The kernels that ran over the prompts in the place of SDPA's, and where SDPA's own did."""
    found = {(one.workload.label, one.attention): one for one in agreements(record)}
    if any("" in one.ran for one in found.values()):
        return "CUPTI did not show which kernels ran"
    settings: dict[str, list[str]] = {}
    for label in (workload.label for workload in record.workloads):
        ours, theirs = found[label, CANDIDATE].ran, found[label, BASELINE].ran
        names = formats.listing([f"`{formats.kernel(name)}`" for name in ours])
        settings.setdefault("SDPA's own kernel" if ours == theirs else names, []).append(label)
    return "; ".join(f"{kernels} ran for {formats.listing(labels)}" for kernels, labels in settings.items())


def _gained(found: Sequence[Comparison]) -> str:
    """At which settings each phase gains, loses, or neither."""
    said = []
    for phase in PHASES:
        groups: dict[str, list[str]] = {}
        for one in found:
            if one.phase == phase:
                groups.setdefault(one.verdict.decision, []).append(one.workload.label)
        words = {
            decisions.FASTER: "a gain at",
            decisions.SLOWER: "a loss at",
            decisions.EQUIVALENT: f"no gain (equivalent within ±{formats.MARGIN}) at",
            decisions.INCONCLUSIVE: "undecided at",
        }
        where = {
            kind: formats.listing(labels) if len(groups) > 1 else "every setting" for kind, labels in groups.items()
        }
        parts = [f"{words[kind]} {where[kind]}" for kind in words if kind in groups]
        said.append(f"**{phase.capitalize()}:** {'; '.join(parts)}.")
    return " ".join(said)


@exhibit("model.outputs")
def outputs(results: Results) -> Table:
    """Errors of the logits, and tokens that are those of transformers' SDPA."""
    record = _record(results)
    by_workload: dict[str, dict[str, Agreement]] = {}
    for one in agreements(record):
        by_workload.setdefault(one.workload.label, {})[one.attention] = one
    rows = []
    for found in by_workload.values():
        sdpa, ours, again = (found[name] for name in (BASELINE, CANDIDATE, control(BASELINE)))
        rows.append(
            {
                **_cells(sdpa.workload),
                "SDPA:\nmax error": formats.number(sdpa.max_error),
                "attend:\nmax error": formats.number(ours.max_error),
                "SDPA:\nmean error": formats.number(sdpa.mean_error),
                "attend:\nmean error": formats.number(ours.mean_error),
                "tokens": f"{ours.tokens:,}",
                "attend:\nas SDPA's": f"{ours.agreeing:,}",
                "SDPA again:\nas SDPA's": f"{again.agreeing:,}",
            }
        )
    (wide,) = set(record.outputs["reference"])
    note = (
        f"Errors of the logits at the last token of each prompt, against the same weights in {wide} with transformers' "
        "eager attention: the largest over all replicates, and the mean. As SDPA's: generated tokens that are those "
        "which SDPA generated from the same prompt, in the same round and place; random weights leave the likeliest "
        "tokens close to each other, and after one that differs, all later ones may."
    )
    return Table(pd.DataFrame(rows), "Outputs of the models, compared.", note)


@exhibit("model.share")
def share(results: Results) -> Figure:
    """The share of the device's time that is attention, before and after."""
    record = _record(results)
    workloads = record.workloads
    shares = {(w, phase): shares_pct(record, w, phase) for phase in PHASES for w in workloads}
    if not any(shares.values()):
        raise NotMeasured(f"CUPTI didn't show what ran in the record `{record.manifest.name}`")
    drawing, panels = plt.subplots(1, len(PHASES), sharey=True, figsize=(7.2, 1.1 + 0.32 * len(workloads)))
    for axes, phase in zip(panels, PHASES, strict=True):
        for number, (name, colour) in enumerate(COLOURS.items()):
            heights = [place + 0.36 * (number - 0.5) for place in range(len(workloads))]
            widths = [shares[each, phase].get(name, 0.0) for each in workloads]
            axes.barh(heights, widths, height=0.34, color=colour, label=name if phase == FIRST else None)
        axes.set(xlim=(0, 100), xlabel="attention (% of the device's time)", title=phase)
    panels[0].set_yticks(range(len(workloads)), [each.label for each in workloads], fontsize=7.5)
    panels[0].invert_yaxis()
    drawing.legend(loc="outside upper center", ncols=2)
    most = max(shares[each, FIRST].get(BASELINE, 0.0) for each in workloads)
    cpu = record.manifest.device.kind == "cpu"
    how = "the host's clock around each call" if cpu else "the time of the kernels, by PyTorch's profiler"
    return Figure(
        drawing,
        f"The share of attention in the device's time; {how}, the median over replicates. Where it is small, no "
        "attention gains much.",
        f"Bars of the share of attention for each model, batch and prompt, a panel for each phase; with SDPA at most "
        f"{formats.percent(most)} of the time to the first token.",
    )
