"""The page 09_model: models of transformers with `attnlab.attend`, and with the SDPA that they call by themselves."""

from collections.abc import Callable, Sequence
from contextlib import suppress

import matplotlib.pyplot as plt

from attnlab.base.errors import UserError
from attnlab.exhibits import decisions, formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Figure, Group, Prose, Table
from attnlab.exhibits.formats import CI
from attnlab.exhibits.words import say
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.models.comparisons import Comparison, comparisons, milliseconds, tokens_per_second
from attnlab.infer.models.outputs import agreements, kernels_of_prompts, shares_pct
from attnlab.infer.results import Results
from attnlab.infer.stats import Interval
from attnlab.runs import dispatch, models
from attnlab.runs.models import Record
from attnlab.runs.schema import FIRST, GRAPHS, PHASES, REST, STEPS
from attnlab.study.implementations import FALLBACK, control
from attnlab.study.models import BASELINE, CANDIDATE, DRAFTED, Workload

COLOURS = {BASELINE: "#7F7F7F", CANDIDATE: "#B5179E"}


def _records(results: Results) -> tuple[list[Record], list[UserError]]:
    """The records that are shown, and why each was left out that isn't what was recorded."""
    device, refused = results.run.manifest["device"]["name"], list[UserError]()
    found = models.newest(device, refused.append)
    if not found:
        said = f"No model was measured on {device}: `make model` does that there"
        raise NotMeasured(". ".join([said, *(f"A record was left out: {error}" for error in refused)]))
    return found, refused


@exhibit("model.gained")
def gained(results: Results) -> Table:
    """The speedup of `attend` at every setting, a column for each phase and step."""
    records, _ = _records(results)
    rows: dict[tuple[str, str], dict[str, object]] = {}
    effects: dict[bool, list[float]] = {}
    for record in records:
        for one in comparisons(record):
            setting = one.workload.label
            row = rows.setdefault((record.manifest.name, setting), {"setting": setting})
            row[one.phase] = decisions.marked(one.verdict)
            effects.setdefault(STEPS.get(one.phase) in GRAPHS, []).append(100 * one.smallest_effect)
    shares = [share for record in records for share in _shares_pct(record)]
    said = say("model.gained", baseline=BASELINE, candidate=CANDIDATE, shares_pct=shares)
    replaced = [one.manifest.name for one in records if _is_replaced(one)]
    note = say("model.gained_note", manifests=[one.manifest for one in records], replaced=replaced, effects_pct=effects)
    return Table.of(list(rows.values()), said, note)


@exhibit("model.records")
def recorded(results: Results) -> Prose:
    """What each record is of, and what `attend` called there; a paragraph for each."""
    records, refused = _records(results)
    left_out = [f"A record was left out: {error}." for error in refused]
    return Prose("\n\n".join([*map(_recorded, records), *left_out]))


@exhibit("model.compared")
def compared(results: Results) -> Group:
    """Time to first token and tokens per second, with verdicts."""
    records, _ = _records(results)
    found = _comparisons(records)
    manifests = [record.manifest for record in records]
    note = say("model.rounds", manifests=manifests, baseline=BASELINE, candidate=CANDIDATE)
    caption = "Time to the first token of every sequence of a batch."
    first, rest = ([one for one in found if one.phase == phase] for phase in (FIRST, REST))
    first_table = _table(first, "ms", milliseconds, caption, note)
    caption = "Tokens per second of a whole batch, over the tokens after the first."
    rest_table = _table(rest, "tokens/s", tokens_per_second, caption, "As above, by the median time of a step.")
    return Group({"first": first_table, "rest": rest_table})


@exhibit("model.steps")
def steps(results: Results) -> Table:
    """Single steps after a prompt, with verdicts."""
    records, _ = _records(results)
    found = [one for one in _comparisons(records) if one.phase in STEPS]
    if not found:
        raise NotMeasured("No single steps were timed")
    caption = "Steps after a prompt whose keys and values are in a static cache."
    launched = [record.manifest.name for record in records if not record.manifest.queued]
    return _table(found, "ms", milliseconds, caption, say("model.steps", drafted=DRAFTED, launched=launched))


def _comparisons(records: Sequence[Record]) -> list[Comparison]:
    return [one for record in records for one in comparisons(record)]


def _shares_pct(record: Record) -> list[float]:
    """What SDPA's attention takes of the device's time, at each setting and in each phase."""
    shares = [shares_pct(record, workload, phase).get(BASELINE) for workload in record.workloads for phase in PHASES]
    return [share for share in shares if share is not None]


def _recorded(record: Record) -> str:
    ran: dict[tuple[str, ...], list[Workload]] = {}
    for workload, kernels in kernels_of_prompts(record):
        ran.setdefault(tuple(map(formats.kernel, kernels)), []).append(workload)
    return say("model.recorded", manifest=record.manifest, is_replaced=_is_replaced(record), fallback=FALLBACK, ran=ran)


def _is_replaced(record: Record) -> bool:
    """Whether the dispatch table that a record went by is no longer the one of its device."""
    used = record.manifest.dispatch or {}
    with suppress(UserError):
        return bool(used) and dispatch.identity(record.manifest.device.name).get("run") != used["run"]
    return True


def _table(
    found: Sequence[Comparison], unit: str, of: Callable[[Workload, Interval], Interval], caption: str, note: str
) -> Table:
    rows = [
        {
            **_cells(one.workload),
            **({"step": one.phase} if one.phase in STEPS else {}),
            f"SDPA ({unit}) [{CI}]": of(one.workload, one.baseline),
            f"attend ({unit}) [{CI}]": of(one.workload, one.candidate),
            "speedup": one.verdict.speedup,
            "decision": decisions.cell(one.verdict),
            "smallest_effect_pct": 100 * one.smallest_effect,
        }
        for one in found
    ]
    return Table.of(rows, caption, note)


def _cells(workload: Workload) -> dict[str, object]:
    return {"model": workload.model.name, "batch": workload.batch, "prompt": workload.prompt}


@exhibit("model.outputs")
def outputs(results: Results) -> Table:
    """Errors of the logits, and tokens that are those of transformers' SDPA."""
    records, _ = _records(results)
    rows = []
    for record in records:
        found = {(one.workload.label, one.attention): one for one in agreements(record)}
        for workload in record.workloads:
            sdpa, ours, again = (found[workload.label, name] for name in (BASELINE, CANDIDATE, control(BASELINE)))
            rows.append(
                {
                    **_cells(workload),
                    "SDPA:\nmax error": sdpa.max_error,
                    "attend:\nmax error": ours.max_error,
                    "SDPA:\nmean error": sdpa.mean_error,
                    "attend:\nmean error": ours.mean_error,
                    "tokens": ours.tokens,
                    "attend:\nas SDPA's": ours.agreeing,
                    "SDPA again:\nas SDPA's": again.agreeing,
                }
            )
    counts = ("tokens", "attend:\nas SDPA's", "SDPA again:\nas SDPA's")
    wide = sorted({str(name) for record in records for name in record.outputs["reference"]})
    random = any(record.manifest.plan.text is None for record in records)
    note = say("model.outputs", reference=" or ".join(wide), random=random)
    shows = dict.fromkeys(counts, formats.whole)
    return Table.of(rows, "Outputs of the models, compared.", note, shows=shows)


@exhibit("model.share")
def share(results: Results) -> Figure:
    """The share of the device's time that is attention, before and after."""
    records, _ = _records(results)
    of = {workload: record for record in records for workload in record.workloads}
    workloads = list(of)
    shares = {(w, phase): shares_pct(record, w, phase) for phase in PHASES for w, record in of.items()}
    if not any(shares.values()):
        names = ", ".join(f"`{record.manifest.name}`" for record in records)
        raise NotMeasured(f"CUPTI didn't show what ran in {names}")
    drawing, panels = plt.subplots(1, len(PHASES), sharey=True, figsize=(6.5, 1.1 + 0.32 * len(workloads)))
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
    cpu = records[0].manifest.device.kind == "cpu"
    how = "the host's clock around each call" if cpu else "the time of the kernels, by PyTorch's profiler"
    return Figure(
        drawing,
        f"The share of attention in the device's time; {how}, the median over replicates. Where it is small, no "
        "attention gains much.",
        f"Bars of the share of attention for each model, batch and prompt, a panel for each phase; with SDPA at most "
        f"{formats.percent(most)} of the time to the first token.",
    )
