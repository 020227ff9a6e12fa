"""The ladder as a run shows it: rungs by hand, each against the one before, who leads here and on another device."""

import math

import pandas as pd
import pytest
import synthetic
from synthetic import (
    LADDER,
    LONG,
    ORDINARY,
    PACE,
    RUNGS,
    SHORT,
    TARGET,
    Recipe,
    bare,
    climbed,
    inferred,
    latency_us,
    of_kinds,
)

from attnlab.infer import results
from attnlab.infer.facts.lead import lead
from attnlab.infer.kernels import cross_device, leads, rungs, steps
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.stats import Interval
from attnlab.study.ladder import Recorded
from attnlab.study.shapes import Shape


def rung(name: str) -> Recorded:
    return next(rung for rung in rungs.rungs(climbed()) if rung.implementation == f"kernel.{name}")


def used(**stated) -> rungs.Resources:
    row = {"registers": 64, "local_bytes": 0, "static_shared_bytes": 0, "dynamic_shared_bytes": 0, "threads": 128}
    row |= {"ctas": 1000, "ctas_per_sm": 8, "architecture": "sm_90a", "compute_capability": "9.0"}
    row |= {"multiprocessors": 132, "threads_per_sm": 2048} | stated
    return rungs.Resources(**{"items": row["ctas"]} | row)


def test_rungs_are_those_of_the_study_in_the_order_of_the_climb():
    assert [rung.implementation for rung in rungs.rungs(climbed())] == [f"kernel.{name}" for name in synthetic.RUNGS]
    with pytest.raises(NotMeasured, match="no hand-written kernel"):
        rungs.rungs(inferred())


def test_work_items_are_tiles_of_queries_over_all_heads():
    tiled = rung("tiled")
    assert tiled.work_items(TARGET) == 2 * 8
    assert tiled.work_items(Shape(3, 5, 65, 64)) == 2 * 15
    assert tiled.work_items(Shape(3, 5, 65, 128)) is None


def test_work_items_are_of_the_first_tile_that_serves():
    tiled = rung("tiled")
    (tile,) = tiled.tiles
    short = {"rows": 16, "longest": 64, "masks": ["causal"]}
    several = tiled.model_copy(update={"tiles": [tile.model_copy(update=short), tile]})
    assert several.work_items(Shape(1, 1, 64, 64, causal=True)) == 4
    assert several.work_items(Shape(1, 1, 64, 64)) == 1
    assert several.work_items(Shape(1, 1, 65, 64, causal=True)) == 2


def test_a_kernel_that_splits_keys_has_a_work_item_for_each_cta():
    climb = climbed()
    entries = [entry | {"merge": "merge"} for entry in climb.run.manifest["ladder"]]
    found = rungs.rungs(synthetic.changed(climb, manifest={"ladder": entries}))
    assert {one.work_items(TARGET) for one in found} == {None}


@pytest.mark.parametrize(
    ("stated", "limits"),
    [
        # 2048 threads of 128; 64 KiB of registers of 4096 and 20 KiB a CTA; 228 KiB of 100 and one reserved
        ({"ctas_per_sm": 16, "registers": 32}, ["threads", "registers"]),
        ({"ctas_per_sm": 16, "registers": 16}, ["threads"]),
        ({"ctas_per_sm": 3, "registers": 160}, ["registers"]),
        ({"ctas_per_sm": 2, "dynamic_shared_bytes": 100 * 1024}, ["shared memory"]),
        ({"ctas_per_sm": 32, "threads": 32, "registers": 32}, ["CTA slots"]),
    ],
)
def test_what_limits_the_ctas_of_a_multiprocessor(stated, limits):
    found = used(**stated)
    assert found.limits == limits


def test_limits_of_an_architecture_that_nobody_knows():
    unknown = used(compute_capability="99.0", threads_per_sm=None)
    assert unknown.limits == []
    assert math.isnan(unknown.occupancy_pct)


@pytest.mark.parametrize(
    ("stated", "waves", "last", "busy"),
    [
        ({"ctas_per_sm": 2}, 1000 / 264, 208 / 264, 1),  # 264 at once: three full waves and 208 more
        ({"ctas_per_sm": 2, "ctas": 264}, 1, 1, 1),
        ({"ctas": 2}, 2 / (8 * 132), 2 / (8 * 132), 2 / 132),  # the rest has no work
        # Of a persistent grid, the work items count.
        ({"ctas": 132, "ctas_per_sm": 1, "items": 1024}, 1024 / 132, (1024 - 7 * 132) / 132, 1),
    ],
)
def test_waves_of_a_grid(stated, waves, last, busy):
    grid = used(**stated)
    assert (grid.waves, grid.last_wave_pct, grid.busy_pct) == pytest.approx((waves, 100 * last, 100 * busy))
    assert grid.persistent == ("items" in stated)
    assert used(ctas_per_sm=8).occupancy_pct == 50


def test_resources_are_of_the_case():
    wgmma = rungs.resources(climbed(), rung("wgmma"), synthetic.L4_SHAPES[-1])
    assert (wgmma.registers, wgmma.shared_bytes, wgmma.ctas, wgmma.items) == (168, 1024 + 131072, 132, 1024)
    assert rungs.resources(climbed(), rung("pipelined"), TARGET) is None
    assert rungs.resources(climbed(), rung("naive"), Shape(1, 1, 1, 64)) is None


@pytest.mark.parametrize(
    ("name", "shape", "reason"),
    [
        ("kernel.pipelined", TARGET, "failed, before timing, call: error against float64: max 5.00e-03"),
        ("kernel.gone", TARGET, "not in this study"),
        ("kernel.naive", Shape(1, 1, 1, 64), "the study has no such shape"),
    ],
)
def test_why_there_is_no_latency(name, shape, reason):
    assert results.absence(climbed(), name, shape) == reason


def test_a_run_cut_off_has_not_reached_all():
    cut = synthetic.infer(synthetic.Recipe(study=synthetic.LADDER.study, fates={}, shapes=1))
    assert results.absence(cut, "kernel.naive", TARGET) == "not reached yet"


def test_each_rung_is_compared_with_the_one_that_it_builds_on():
    found = dict(zip(RUNGS, steps.steps(climbed(), TARGET), strict=True))
    speedups = {name: step.verdict.speedup.estimate for name, step in found.items() if step.verdict}
    assert speedups == pytest.approx({"tiled": 2.5, "mma": 0.8, "swizzled": 4.0}, rel=1e-3)
    assert found["naive"].without is None
    assert found["pipelined"].without[0] == found["wgmma"].without[0] == "kernel.pipelined"
    assert found["wgmma"].outcome is None
    assert found["swizzled"].share_pct == pytest.approx(75, abs=0.1)  # of the 4 that 5.00× would gain


def test_the_ablation_is_a_family_of_its_own():
    pairs = [("kernel.naive", "kernel.tiled"), ("sdpa.auto", "sdpa.cudnn")]
    together = climbed().compare_pairs(pairs, TARGET)
    alone = [climbed().compare_pairs([pair], TARGET)[0] for pair in pairs]
    assert together[0].pvalue == pytest.approx(2 * alone[0].pvalue)
    assert [verdict.speedup for verdict in together] == [verdict.speedup for verdict in alone]
    assert climbed().compare_pairs([], TARGET) == []


@pytest.mark.parametrize(
    ("expected", "measured", "outcome"),
    [
        (1.5, (1.5, 1.49, 1.51), "reached"),
        (1.5, (1.47, 1.46, 1.48), "reached"),  # within 2 %
        (1.5, (1.4, 1.39, 1.41), "missed"),
        (1.5, (1.6, 1.55, 1.65), "exceeded"),
        (1.5, (1.2, 0.9, 1.6), "reached"),  # inconclusive
    ],
)
def test_what_became_of_an_expectation(expected, measured, outcome):
    assert steps.outcome(expected, Interval(*measured)) == outcome


def test_where_the_fastest_rung_stands():
    found = steps.standing(climbed())
    assert (found.rungs, found.timed, found.best, found.rival) == (6, 5, "kernel.wgmma", "sdpa.flash")
    assert found.median_us.estimate == pytest.approx(36, rel=5e-3)
    assert found.verdicts[climbed().headline].speedup.estimate == pytest.approx(0.8 / 0.9, rel=1e-3)
    assert steps.standing(inferred()) is None


def test_the_best_is_set_against_whoever_else_is_the_fastest_at_each_shape():
    (found,) = leads.of_best(synthetic.led()).values()
    assert {shape: lead.over for shape, lead in found.by_shape.items()} == {
        shape: "peer.flash4" if shape == TARGET else "sdpa.flash" for shape in synthetic.led().study.shapes
    }
    slowest = latency_us("sdpa.flash", SHORT) / latency_us("kernel.best", SHORT)
    assert found.ends == pytest.approx((slowest, PACE["peer.flash4"] / PACE["kernel.best"]), rel=0.01)
    assert found.ahead == len(found.by_shape) - 1
    assert 0 < found.large < len(found.by_shape)
    with pytest.raises(NotMeasured, match=r"`kernel\.best` was measured beside no other implementation"):
        leads.of_best(climbed())


@pytest.mark.parametrize(("low", "high", "sign"), [(1.01, 1.1, 1), (0.9, 0.99, -1), (0.9, 1.1, 0)])
def test_a_lead_has_a_sign_where_its_interval_leaves_out_1(low, high, sign):
    assert leads.Lead("kernel.mma", "sdpa.flash", Interval(1.0, low, high)).sign == sign


H100 = "NVIDIA H100 80GB HBM3"


def record(name: str, wgmma: dict, device: str = "NVIDIA H200") -> None:
    """A run of the ladder in which rung 6 takes so many times as long as sdpa.flash, by shape."""
    pace = {
        (kernel, shape): 100.0 * (times if kernel == "kernel.wgmma" else 1.0)
        for shape, times in wgmma.items()
        for kernel in ("kernel.wgmma", "sdpa.flash")
    }
    slower = {(name, shape): 1000.0 for shape in wgmma for name in LADDER.stated["implementations"]}
    synthetic.write(name, Recipe(device, LADDER.study, fates={}, latencies_us=slower | pace))


def test_a_lead_has_one_sign_another_or_none_on_another_device(data):
    record("here", {TARGET: 0.8, LONG: 0.8, SHORT: 1.0})
    record("there", {TARGET: 0.9, LONG: 1.25, SHORT: 0.8}, H100)
    found = cross_device.find(bare("here"))
    assert found.there.run.name == "there"
    here, there = found.leads[TARGET]
    assert (here.kernel, here.over, there.over) == ("kernel.wgmma", "sdpa.flash", "sdpa.flash")
    assert here.ratio.estimate == pytest.approx(1.25, rel=0.01)
    assert there.ratio.estimate == pytest.approx(1 / 0.9, rel=0.01)
    assert [found.sign(shape) for shape in (TARGET, LONG, SHORT)] == [
        cross_device.SAME,
        cross_device.DIFFERENT,
        cross_device.OPEN,
    ]
    assert len(found.leads) == len(bare("here").study.shapes)
    assert [found.theirs.by_shape[shape].sign for shape in (TARGET, LONG, SHORT)] == [1, -1, 1]


def test_a_lead_is_as_sure_as_the_clock_is_of_the_two_compared():
    climb, samples = climbed(), climbed().run.samples.copy()
    samples.loc[samples["implementation"] == "kernel.naive", "launches"] = 1  # read ten times as coarsely as the others
    coarse = synthetic.changed(climb, samples=samples, manifest={"clocks": {"tick_us": 1.0 * synthetic.LAUNCHES}})
    lead = cross_device.lead(coarse, TARGET)
    assert lead.kernel != "kernel.naive"
    theirs, ours = (latency_us(name, TARGET) for name in (lead.over, lead.kernel))
    ends = ((theirs - 0.5) / (ours + 0.5), (theirs + 0.5) / (ours - 0.5))  # half a us to either side of both
    assert (lead.ratio.low, lead.ratio.high) == pytest.approx(ends, rel=5e-3)


def test_of_several_runs_on_other_devices_that_which_shares_the_most_shapes_is_taken(data):
    for name, device in {"here": "NVIDIA H200", "there": H100}.items():
        record(name, {TARGET: 0.8}, device)
    synthetic.write("newer", Recipe(H100, LADDER.study | {"sweeps": {"alone": TARGET.axes}}, fates={}))
    assert cross_device.elsewhere(bare("here")) == ["there", "newer"]


def test_kernels_of_another_source_are_named(data, monkeypatch):
    record("here", {TARGET: 0.8})
    manifest = synthetic.manifest
    other = {"kernels": {"kernel.wgmma": "8" * 64, "kernel.best": "8" * 64}}
    monkeypatch.setattr(synthetic, "manifest", lambda *arguments: manifest(*arguments) | other)
    record("there", {TARGET: 0.8}, H100)
    assert cross_device.find(bare("here")).changed == ["kernel.wgmma"]


def test_a_device_of_the_same_name_or_without_kernels_is_no_other(data):
    record("here", {TARGET: 0.8})
    record("again", {TARGET: 0.8})
    synthetic.write("peers", Recipe(H100, ORDINARY.study))
    with pytest.raises(NotMeasured, match=r"^No complete run on another device shares a shape at which"):
        cross_device.find(bare("here"))


def two_names():
    """A run in which a rung has a smaller median than `kernel.best`, on normal values and on zeros."""
    us = {"sdpa.auto": 40.0, "sdpa.cudnn": 41.0, "kernel.wgmma": 20.0, "kernel.best": 22.0}
    return synthetic.infer(of_kinds({name: dict.fromkeys(("normal", "zeros"), slow) for name, slow in us.items()}))


def test_zeros_are_no_lead_and_a_rung_that_is_faster_than_the_best_is_found():
    of = two_names()
    (found,) = leads.of_best(of).values()
    assert list(found.by_shape) == [TARGET]
    outrun = leads.outrun(of, found.by_shape)
    assert [(one.kernel, round(one.ratio.estimate, 2)) for one in outrun.values()] == [("kernel.wgmma", 1.1)]
    assert leads.outrun(synthetic.led(), synthetic.led().study.shapes) == {}


def test_of_a_kernel_with_two_names_the_one_leads_that_was_chosen_before_the_run():
    of = two_names()
    assert (lead(of).candidate, lead(of).launches) == ("kernel.wgmma", "")
    rows = of.run.resources.assign(function="one")
    both = synthetic.changed(of, resources=pd.concat([rows, rows.assign(implementation="kernel.best")]))
    assert (lead(both).candidate, lead(both).launches) == ("kernel.best", "kernel.wgmma")
    assert leads.outrun(both, both.study.shapes) == {}
