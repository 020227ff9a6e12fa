"""The lead of the hand-written kernels over the fastest of all else: under each timing, and on another device."""

from typing import Any

from attnlab.exhibits import cells
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Group, Prose, Table
from attnlab.exhibits.environment.machine import replicate_words
from attnlab.exhibits.formats import CI
from attnlab.exhibits.quantities import Named
from attnlab.exhibits.words import say
from attnlab.infer.kernels import cross_device, leads
from attnlab.infer.kernels.cross_device import CrossDevice
from attnlab.infer.kernels.leads import Leads
from attnlab.infer.kernels.rungs import has_kernels
from attnlab.infer.lookup import known
from attnlab.infer.results import Results
from attnlab.study.studies import Timing


@exhibit("kernels.lead", where=has_kernels)
def table(results: Results) -> Table:
    """The lead of `kernel.best` at every shape, a column for each timing."""
    found = leads.of_best(results)
    rows = []
    for shape in results.study.shapes:
        row: dict[str, Any] = {"shape": shape.label}
        for timing, one in found.items():
            lead = one.by_shape.get(shape)
            row[str(timing)] = lead and Named(lead.ratio, f"over {lead.over}")
        if any(shape in one.by_shape for one in found.values()):
            rows.append(row)
    note = (
        f"Ratios of medians from rounds taken together with {CI} intervals, and the other. They are not adjusted for "
        "their number; the other is chosen by the same samples, which favours it. An interval always holds its "
        "estimate: where one ends at it, the blocks of the bootstrap lie to one side, and it was stretched."
    )
    return Table.of(rows, _said(results, found), note)


def sentence(results: Results) -> str:
    """By how much `kernel.best` leads under each timing, and at how many shapes; empty for a run without it."""
    found = known(lambda: leads.of_best(results))
    return _said(results, found) if found else ""


def _said(results: Results, found: dict[Timing, Leads]) -> str:
    headline = found.get(results.headline)
    outrun = leads.outrun(results, headline.by_shape) if headline else {}
    return say(
        "kernels.lead", leads=list(found.values()), others=leads.others(results), headline=headline, outrun=outrun
    )


@exhibit("kernels.cross_device", where=cross_device.elsewhere)
def on_another_device(results: Results) -> Group:
    """The fastest hand-written kernel over the fastest of all else, here and on another device."""
    return beside(cross_device.find(results))


def elsewhere_in_short(results: Results) -> str:
    """How the fastest hand-written kernel stands on another device, in a sentence; empty where no run says so."""
    found = known(lambda: cross_device.find(results))
    if found is None:
        return ""
    return say(
        "kernels.elsewhere_in_short",
        name=found.there.run.name,
        there=_device(found.there),
        replicates=replicate_words(found.there),
        leads=found.theirs,
        differing=found.where(cross_device.DIFFERENT),
        lacking=cells.lacking(found.here, found.there),
    )


def beside(found: CrossDevice) -> Group:
    """The leads of two runs, in a sentence and shape by shape."""
    told = say(
        "kernels.cross_device",
        name=found.there.run.name,
        shapes=len(found.leads),
        here=_device(found.here),
        there=_device(found.there),
        replicates=replicate_words(found.there),
        same=len(found.where(cross_device.SAME)),
        open=len(found.where(cross_device.OPEN)),
        differing=found.where(cross_device.DIFFERENT),
        changed=found.changed,
    )
    return Group({"words": Prose(told), "table": _both(found)})


def _both(found: CrossDevice) -> Table:
    """Both leads at each shape."""
    rows, devices = [], [_device(side) for side in (found.here, found.there)]
    if len({device.split()[0] for device in devices}) > 1:
        devices = [device.split()[0] for device in devices]
    for shape, leads_there in found.leads.items():
        row: dict[str, Any] = {"shape": shape.label}
        for lead, device in zip(leads_there, devices, strict=True):
            row |= {device: lead.kernel, f"over, {device}": lead.over, f"ratio, {device}": lead.ratio}
        rows.append(row | {"sign": found.sign(shape)})
    caption = (
        f"The fastest hand-written kernel over the fastest of all else at each shape, on two devices; "
        f"{found.here.headline.words}."
    )
    note = "Above 1 the kernel leads. Each ratio is of one run, from rounds taken together."
    return Table.of(rows, caption, note)


def _device(side: Results) -> str:
    return str(side.run.manifest["device"]["name"]).removeprefix("NVIDIA ")
