"""What a run says of a rung, worked by hand."""

import math
from dataclasses import replace

import pytest
import synthetic
from synthetic import TARGET, climbed, inferred

from attnlab.infer import results
from attnlab.infer.kernels import rungs
from attnlab.infer.lookup import NotMeasured
from attnlab.study.shapes import Shape


def rung(name: str) -> rungs.Rung:
    return next(rung for rung in rungs.rungs(climbed()) if rung.name == f"kernel.{name}")


def used(**stated) -> rungs.Resources:
    row = {"registers": 64, "local_bytes": 0, "static_shared_bytes": 0, "dynamic_shared_bytes": 0, "threads": 128}
    row |= {"ctas": 1000, "ctas_per_sm": 8, "architecture": "sm_90a", "compute_capability": "9.0"}
    row |= {"multiprocessors": 132, "threads_per_sm": 2048} | stated
    return rungs.Resources(**{"items": row["ctas"]} | row)


def test_rungs_are_those_of_the_study_in_the_order_of_the_climb():
    assert [rung.name for rung in rungs.rungs(climbed())] == [f"kernel.{name}" for name in synthetic.RUNGS]
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
    several = replace(tiled, tiles=[tile.model_copy(update=short), tile])
    assert several.work_items(Shape(1, 1, 64, 64, causal=True)) == 4
    assert several.work_items(Shape(1, 1, 64, 64)) == 1
    assert several.work_items(Shape(1, 1, 65, 64, causal=True)) == 2


def test_a_kernel_that_splits_keys_has_a_work_item_for_each_cta():
    climb = climbed()
    entries = [entry | {"merge": "merge"} for entry in climb.run.manifest["ladder"]]
    split = replace(climb.run, manifest=climb.run.manifest | {"ladder": entries})
    found = rungs.rungs(results.Results(split, climb.table))
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
