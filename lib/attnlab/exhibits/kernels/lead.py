"""`kernel.best` against whichever of SDPA's backends and the peers is the fastest at each shape."""

from dataclasses import dataclass

import pandas as pd

from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Table
from attnlab.exhibits.formats import CI
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Results
from attnlab.infer.rungs import has_kernels
from attnlab.infer.stats import Interval
from attnlab.runs.rules import CLAIM_SPEEDUP
from attnlab.study.implementations import FALLBACK, PEERS, SDPA
from attnlab.study.ladder import BEST
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing


@dataclass(frozen=True)
class Lead:
    """The ratio of the medians of `rival`, the fastest of the others at a shape, and of `kernel.best`."""

    rival: str
    speedup: Interval


Leads = dict[Shape, Lead]


@exhibit("kernels.lead", where=has_kernels)
def table(results: Results) -> Table:
    """The lead at every shape, a column for each timing."""
    found = _by_timing(results)
    if not found:
        raise NotMeasured(f"`{BEST}` was measured beside no other implementation")
    shapes = [shape for shape in results.study.shapes if any(shape in leads for leads in found.values())]
    cells = {str(timing): [_cell(leads.get(shape)) for shape in shapes] for timing, leads in found.items()}
    frame = pd.DataFrame({"shape": [shape.label for shape in shapes]} | cells)
    note = (
        f"Ratios of medians from rounds taken together with {CI} intervals, and the other. They are not adjusted for "
        "their number; the other is chosen by the same samples, which favours it."
    )
    return Table(frame, _said(results, found), note)


def sentence(results: Results) -> str:
    """By how much `kernel.best` leads under each timing, and at how many shapes; empty for a run without it."""
    found = _by_timing(results)
    return _said(results, found) if found else ""


def _said(results: Results, found: dict[Timing, Leads]) -> str:
    ranges = [f"{_range(leads)} by `{timing.clock}` {timing.cache}" for timing, leads in found.items()]
    others = formats.listing([f"`{name}`" for name in _others(results)])
    return (
        f"At each shape, the fastest of {others} takes {formats.listing(ranges)} as long as `{BEST}`; the interval of "
        f"the ratio is above 1 at {_above(found)}.{_claimable(results, found)}"
    )


def _range(leads: Leads) -> str:
    ratios = sorted(lead.speedup.estimate for lead in leads.values())
    return " to ".join(formats.times(ratio) for ratio in dict.fromkeys((ratios[0], ratios[-1])))


def _above(found: dict[Timing, Leads]) -> str:
    """At how many shapes `kernel.best` is ahead, under one timing after the other."""
    counts = [sum(lead.speedup.low > 1 for lead in leads.values()) for leads in found.values()]
    shapes = [len(leads) for leads in found.values()]
    if counts == shapes:
        return "all shapes"
    before = [f"{count} of {of}" for count, of in zip(counts[:-1], shapes, strict=False)]
    return formats.listing([*before, f"{counts[-1]} of {formats.count(shapes[-1], 'shape')}"])


def _claimable(results: Results, found: dict[Timing, Leads]) -> str:
    """At how many shapes the ratio is as large as a claim needs, under the headline's timing."""
    timing = results.headline
    leads = found.get(timing)
    if not leads:
        return ""
    count = sum(lead.speedup.estimate >= CLAIM_SPEEDUP for lead in leads.values())
    return (
        f" By `{timing.clock}` {timing.cache} it is {CLAIM_SPEEDUP:.2f} or more, which a claim needs, at {count} of "
        f"{len(leads)}."
    )


def _by_timing(results: Results) -> dict[Timing, Leads]:
    found = {timing: _leads(results, timing) for timing in results.timings}
    return {timing: leads for timing, leads in found.items() if leads}


def _leads(results: Results, timing: Timing) -> Leads:
    found = {}
    for shape in results.study.shapes:
        at = results.at(shape, timing)
        there = [name for name in _others(results) if name in at.index]
        if there and BEST in at.index:
            rival = min(there, key=lambda name: float(at.loc[name, "median_us"]))
            found[shape] = Lead(rival, results.speedup(BEST, shape, timing, baseline=rival))
    return found


def _others(results: Results) -> list[str]:
    """SDPA's backends and the peers; without `sdpa.auto`, which calls one of the backends."""
    return [name for name in results.study.implementations if name in SDPA + PEERS and name != FALLBACK]


def _cell(lead: Lead | None) -> str | None:
    return f"{formats.stacked(lead.speedup)} {lead.rival}" if lead else None
