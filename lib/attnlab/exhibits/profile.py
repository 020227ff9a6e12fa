"""Why an implementation takes as long as it does, by Nsight Compute's counters of one call at the target.

The same cycles are read in two ways. A **unit** (a pipe, the issue slots, a level of memory) is used at a share of its
peak; that share of the time remains whatever else is improved. In each of the **schedulers' cycles**, an instruction is
issued, or the multiprocessor has no work, or every warp waits. Cycles in which all warps wait are divided among the
reasons, in proportion to the warps that wait for each. That is an attribution, since a warp may also wait while another
issues.

The rule for the bottlenecks is that of Nsight Compute's guided analysis: it calls a kernel bound by latency where every
unit stays below 60 % of its peak (section "GPU Speed Of Light Throughput"), and considers the reasons for which warps
wait only then (section "Warp State Statistics"). So units from `SATURATED_PCT` of their peak come first, the busiest
first; then the largest losses: reasons to wait, multiprocessors without work, bank conflicts.
"""

from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Group, Prose, Table
from attnlab.exhibits.quantities import Named
from attnlab.exhibits.words import say
from attnlab.infer import counters
from attnlab.infer.counters import FAR, SATURATED_PCT, has_counters
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Results
from attnlab.runs import metrics
from attnlab.study.shapes import Shape

PLACES = ("first", "second", "third")


@exhibit("profile.how")
def how(results: Results) -> Prose:
    """How the counters were taken and what they are not used for, or why there are none."""
    profiles, taken = counters.of(results), results.run.manifest.get("profile")
    if taken is None:
        raise NotMeasured("The run was cut off before all of its counters were taken; it can go on")
    return Prose(say("profile.how", shape=results.study.target_shape, profiles=profiles, taken=taken))


@exhibit("profile.traffic", where=has_counters)
def traffic(results: Results) -> Table:
    """Traffic of each call: DRAM, L2, shared memory."""
    rows = []
    for profile in counters.of(results):
        dram = profile.total(metrics.DRAM_READ) + profile.total(metrics.DRAM_WRITTEN)
        rows.append(
            {
                "implementation": profile.implementation,
                "µs in ncu": profile.total(metrics.DURATION) / 1e3,
                "instructions (M)": profile.total(metrics.INSTRUCTIONS) / 1e6,
                "DRAM (MB)": dram / 1e6,
                "of compulsory": 100 * dram / results.study.target_shape.bytes,
                "L2 to L1 (MB)": profile.total(metrics.L2_TO_L1) / 1e6,
                "L2 hits": profile.mean(metrics.L2_HITS),
                "L1 hits": profile.mean(metrics.L1_HITS),
                "bank conflicts": profile.conflicts_pct,
            }
        )
    shares = dict.fromkeys(("of compulsory", "L2 hits", "L1 hits", "bank conflicts"), formats.percent)
    caption = "The traffic of each call, by the counters."
    return Table.of(rows, caption, say("profile.traffic"), shows=shares)


@exhibit("profile.values", where=has_counters)
def instructions(results: Results) -> Table:
    """Instructions of a call on each kind of values at the target: who computes again because of them."""
    target = results.study.target_shape
    shapes = [shape for shape in counters.counted_shapes(results) if shape.plain == target.plain]
    if len(shapes) < 2:
        raise NotMeasured("Calls were counted on a single kind of values")
    profiles = {shape.values: counters.of(results, shape) for shape in shapes}
    counted = {
        kind: {each.implementation: each.total(metrics.INSTRUCTIONS) / 1e6 for each in found}
        for kind, found in profiles.items()
    }
    rows = [
        {"implementation": name}
        | {kind: found.get(name) for kind, found in counted.items()}
        | {"at most": max(found.get(name, 0.0) for found in counted.values()) / usual}
        for name, usual in counted[target.values].items()
    ]
    caption, shows = "Instructions of a call, by the values.", {"at most": formats.times}
    return Table.of(rows, caption, say("profile.values", target=target), shows=shows)


@exhibit("profile.bottlenecks", where=has_counters)
def bottlenecks(results: Results) -> Table:
    """The three largest bottlenecks of each implementation, with the counters that rank them."""
    rows = []
    for profile in counters.of(results):
        row: dict[str, object] = {"implementation": profile.implementation}
        for place, bottleneck in zip(PLACES, profile.bottlenecks, strict=False):
            row[place] = Named(bottleneck.share_pct, bottleneck.title)
        rows.append(row)
    shows = dict.fromkeys(PLACES, formats.percent)
    note = say("profile.bottlenecks", saturated_pct=SATURATED_PCT)
    return Table.of(rows, "The first three bottlenecks, ranked by the counters.", note, shows=shows)


@exhibit("profile.beyond", where=has_counters)
def beyond(results: Results) -> Group:
    """How far each implementation is from its floor, as a sum of named parts, at each shape that was counted."""
    shapes = enumerate(counters.counted_shapes(results))
    return Group({str(number): _beyond(results, shape) for number, shape in shapes})


def _beyond(results: Results, shape: Shape) -> Table:
    found = counters.distances(results, shape)
    rows = [{"implementation": name, "median": us} | parts for name, (us, parts) in found.of.items()]
    floor = formats.number(found.floor_us)
    caption = f"The distance to the floor of {floor} µs at {shape.label}, in µs; {results.headline.words}."
    return Table.of(rows, caption, say("profile.beyond", far=FAR))


@exhibit("profile.steps", where=has_counters)
def steps(results: Results) -> Table:
    """Where each rung saves cycles compared with the rung before, and where it adds some."""
    rows = []
    for step in counters.steps(results):
        ends = {"saved most": step.changes[0], "then": step.changes[1], "added most": step.changes[-1]}
        changes = {title: Named(by, what) for title, (what, by) in ends.items()}
        cycles = Named(step.cycles, f"from {formats.whole(step.cycles_before)}")
        rows.append({"rung": f"{step.rung}\nafter {step.after}", "cycles": cycles} | changes)
    return Table.of(rows, "Where each rung of the ladder saves and adds cycles.", say("profile.steps"))
