"""Counters made into bottlenecks by the stated rule, and what is shown of them."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import synthetic
from reading import plain
from synthetic import Recipe

from attnlab.exhibits import profile
from attnlab.exhibits.quantities import Named
from attnlab.infer import counters as inferred
from attnlab.infer import results as taken
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Results
from attnlab.measure.instruments import counters
from attnlab.runs import read, write
from attnlab.runs.metrics import CYCLES, DURATION
from attnlab.study import ladder
from attnlab.study.shapes import Shape


def launch(function: str = "void one<64>(float*)", **changes: float) -> dict:
    """A launch of 1000 cycles: 800 active, 200 of them issuing; warps wait 3 to 1 for global memory and a barrier."""
    named = {
        "tensor": inferred.UNITS["tensor cores"],
        "xu": inferred.UNITS["exponentials (XU)"],
        "dram": inferred.UNITS["DRAM"],
        "cycles": CYCLES,
        "active": "sm__cycles_active.avg",
        "issue": "smsp__issue_active.avg.pct_of_peak_sustained_active",
        "duration": DURATION,
        "accesses": "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
        "shared": "l1tex__data_pipe_lsu_wavefronts_mem_shared.avg.pct_of_peak_sustained_elapsed",
        "conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
        "read": "dram__bytes_read.sum",
        "write": "dram__bytes_write.sum",
    }
    values = {"cycles": 1000, "active": 800, "issue": 25, "duration": 500, "tensor": 20, "xu": 10, "dram": 5}
    values |= {"accesses": 100, "shared": 40, "conflicts": 25, "read": 1e5, "write": 5e4}
    stalls = {"long_scoreboard": 6.0, "barrier": 2.0, "selected": 1.0, "not_selected": 5.0}
    metrics = {named[key]: value for key, value in (values | changes).items()}
    stalled = {f"smsp__average_warps_issue_stalled_{r}_per_issue_active.ratio": w for r, w in stalls.items()}
    return {"function": function} | metrics | stalled


COUNTERS = {
    "sdpa.auto": [launch()],
    "sdpa.flash": [launch(tensor=61, xu=72)],
    "sdpa.math": [launch("small", cycles=1000, active=1000), launch("large", cycles=3000, active=3000, tensor=60)],
}


def counted(counters, implementations=tuple(COUNTERS)) -> Results:
    """A run of the target alone, with these counters."""
    study = synthetic.AT_TARGET | {"implementations": list(implementations)}
    return synthetic.infer(Recipe(study=study, counters=counters, fates={}))


def profiled() -> Results:
    return counted(COUNTERS)


def of(name: str) -> inferred.Profile:
    return next(found for found in inferred.of(profiled()) if found.implementation == name)


# What it printed on an H200 at (32, 8, 512, 64) in float16, less the columns that nobody asked for

PRINTED = Path(__file__).parent / "data"
TARGET = Shape(32, 8, 512, 64)


def on_h200(name: str) -> inferred.Profile:
    rows = counters.parse((PRINTED / f"ncu_{name}.csv").read_text())[0]
    wide = rows.pivot(index="launch", columns="metric", values="value")
    return inferred.Profile(name, wide.assign(function=rows.groupby("launch")["function"].first()))


@pytest.mark.parametrize("name", ["flash", "cudnn"])
def test_the_counters_agree_with_the_arithmetic(name):
    # 4096 FLOP by wgmma and 16 exponentials a cycle on each of 132 multiprocessors.
    found = on_h200(name)
    busy = {unit: share / 100 * found.total(CYCLES) for unit, share in found.units_pct.items()}
    assert busy["exponentials (XU)"] == pytest.approx(TARGET.exponentials / 16 / 132, rel=0.06)
    product = busy["tensor cores"] / (TARGET.flops / 4096 / 132)
    assert product == pytest.approx({"cudnn": 1.0, "flash": 1.5}[name], rel=0.02)  # mma.sync holds them for longer
    moved = found.total("dram__bytes_read.sum")
    assert moved == pytest.approx(0.75 * TARGET.bytes, rel=0.01)


def test_latency_holds_them_back():
    flash, cudnn = on_h200("flash"), on_h200("cudnn")
    assert sum(flash.cycles_pct.values()) == pytest.approx(100)
    titles = [[found.title.removeprefix("waiting for ") for found in of.bottlenecks] for of in (flash, cudnn)]
    assert titles[0] == ["a fixed latency", inferred.IDLE, "a free pipe"]
    assert titles[1] == ["a barrier of the CTA", "a fixed latency", "global memory"]
    assert flash.bottlenecks[0].share_pct == pytest.approx(20.5, abs=0.1)


def test_a_call_of_several_kernels_is_read_whole():
    math = on_h200("math")
    assert math.launches["launch__block_size"].tolist() == [128] * 4
    assert math.total(DURATION) == 24_000 + 280_640 + 129_728 + 13_568


# What they say


def test_cycles_are_all_accounted_for():
    found = of("sdpa.auto")
    assert found.cycles == pytest.approx(
        {inferred.ISSUED: 200, "a barrier of the CTA": 150, "global memory": 450, inferred.IDLE: 200}
    )
    assert sum(found.cycles_pct.values()) == pytest.approx(100)


def test_launches_of_one_call_are_weighted_by_their_cycles():
    found = of("sdpa.math")
    assert found.units_pct["tensor cores"] == pytest.approx((20 + 3 * 60) / 4)
    assert found.total(DURATION) == 1000
    assert sum(found.cycles.values()) == pytest.approx(4000)


def test_units_from_the_bound_come_before_what_warps_wait_for():
    ranked = [(b.title, round(b.share_pct, 6)) for b in of("sdpa.flash").bottlenecks]
    assert ranked == [("exponentials (XU)", 72), ("tensor cores", 61), ("waiting for global memory", 45)]


def test_below_the_bound_the_largest_losses_are_ranked():
    ranked = [(b.title, round(b.share_pct, 6)) for b in of("sdpa.auto").bottlenecks]
    assert ranked == [("waiting for global memory", 45), (inferred.IDLE, 20), ("waiting for a barrier of the CTA", 15)]


def test_bank_conflicts_are_a_loss_of_their_own():
    (found,) = inferred.of(counted({"sdpa.auto": [launch(shared=80, conflicts=75)]}))
    assert found.conflicts_pct == 75
    assert found.bottlenecks[0].title == "bank conflicts of shared memory"
    assert found.bottlenecks[0].share_pct == pytest.approx(60)


def test_a_counter_that_is_missing_is_shown_as_such():
    bare = {key: value for key, value in launch().items() if "dram" not in key and "tensor" not in key}
    results = counted({"sdpa.auto": [bare]})
    (found,) = inferred.of(results)
    assert found.bottlenecks[0].title == "waiting for global memory"
    for show in (profile.how, profile.traffic, profile.bottlenecks):
        assert "nan" not in plain(show(results))
    assert "—" in plain(profile.traffic(results))


def test_the_tables_have_a_row_for_each():
    results = profiled()
    traffic = profile.traffic(results).frame.set_index("implementation")
    assert traffic.loc["sdpa.math", ["µs in ncu", "DRAM (MB)", "bank conflicts"]].tolist() == [1, 0.3, 25]
    assert profile.bottlenecks(results).frame.loc[1].tolist() == [
        *("sdpa.flash", Named(72, "exponentials (XU)"), Named(61, "tensor cores")),
        Named(pytest.approx(45), "waiting for global memory"),
    ]


def test_what_lies_beyond_the_floor_adds_up_to_the_latency():
    auto = of("sdpa.auto")  # 200 of 1000 cycles without work; warps wait 3 to 1 for global memory and a barrier
    for floor_us, parts in ((40.0, (20.0, 30.0, 10.0)), (95.0, (5.0, 0.0, 0.0))):
        named = dict(zip((inferred.IDLE, "global memory", "a barrier of the CTA"), parts, strict=True))
        assert inferred.beyond_us(auto, 100.0, floor_us) == pytest.approx(named)
    assert inferred.beyond_us(auto, 40.0, 40.0) == {}


def test_the_distance_to_the_floor_is_a_table_for_each_shape():
    results = profiled()
    shape = results.study.target_shape
    floor_us, found = inferred.distances(results, shape)
    assert list(found) == ["sdpa.auto", "sdpa.flash"]  # sdpa.math takes more than four times its floor
    for median_us, parts in found.values():
        assert floor_us + sum(parts.values()) == pytest.approx(median_us)
    (table,) = profile.beyond(results).parts.values()
    assert shape.label in table.caption
    assert list(table.frame["median"]) == [median_us for median_us, _ in found.values()]


def test_the_steps_tell_where_cycles_went(monkeypatch):
    names = ["sdpa.auto", "kernel.naive", "kernel.tiled", "kernel.mma"]
    for name in names[1:]:
        monkeypatch.setitem(synthetic.PACE, name, 1.0)
    before, after = launch(cycles=10_000, active=10_000), launch(cycles=4_000, active=3_000)
    found = counted({"kernel.naive": [before], "kernel.tiled": [after]}, implementations=names)
    rungs = [rung.model_dump(mode="json") for rung in ladder.load()]
    results = synthetic.changed(found, manifest={"ladder": rungs})
    (row,) = profile.steps(results).frame.to_dict("records")
    assert row == {
        "rung": "tiled\nafter naive",
        "cycles": Named(4_000, "from 10,000"),
        "saved most": Named(-3937.5, "global memory"),
        "then": Named(-1750, "instruction issued"),
        "added most": Named(1000, "no work on the multiprocessor"),
    }


def test_a_run_without_two_rungs_has_no_steps():
    assert "Nothing was measured" in profile.steps(profiled()).markdown


@pytest.mark.parametrize("recipe", [Recipe(), Recipe(shapes=1), synthetic.LONELY], ids=["none", "cut off", "on a CPU"])
def test_a_run_without_counters_says_why_once(recipe):
    results = synthetic.infer(recipe)
    with pytest.raises(NotMeasured, match=r"^No counters were recorded, so .*: [\w ,]+$"):
        inferred.of(results)
    assert re.fullmatch(r"\*No counters were recorded, so [^.]+\.\*", profile.how(results).markdown)
    for show in (profile.traffic, profile.bottlenecks, profile.beyond, profile.steps):
        assert show(results) is None


def test_a_run_that_was_closed_early_says_that_its_counters_were_not_taken(data):
    study = synthetic.AT_TARGET | {"implementations": ["sdpa.auto"]}
    synthetic.write("cut", Recipe(study=study, fates={}, shapes=1))
    write.close_early("cut")
    told = profile.how(taken.of(read.load("cut"))).markdown
    assert told.endswith(": the run was closed before its counters were taken.*")


def test_a_run_that_was_cut_off_among_its_counters_says_so_and_shows_those_that_are_there():
    of = profiled()
    rest = {name: value for name, value in of.run.manifest.items() if name != "profile"}
    cut = Results(replace(of.run, manifest=rest), of.table)
    assert "cut off before all of its counters were taken" in profile.how(cut).markdown
    assert profile.traffic(cut).frame.equals(profile.traffic(of).frame)
