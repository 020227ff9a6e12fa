"""Counters: read from what ncu prints, taken or done without, and made into bottlenecks by the stated rule."""

import os
import re
import stat
import time
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
import synthetic
from conftest import tiny_study
from synthetic import Recipe

from attnlab import ladder, runs
from attnlab.analyse import profiles
from attnlab.analyse.results import NotMeasured
from attnlab.measure import profile
from attnlab.shapes import Shape

SHAPE = Shape(1, 4, 32, 64, dtype="float32")
HEADER = ["ID", "Kernel Name", "Block Size", "gpu__time_duration.sum", "sm__cycles_elapsed.max", "not__asked.sum"]
UNITS = ["", "", "", "ns", "cycle", ""]
FIRST = ["0", "void flash<64, (bool)0>(Params)", "(128, 1, 1)", "47,616", "83,000.5", "7"]
SECOND = ["1", "second", "(32, 1, 1)", "1,000", "n/a", "7"]


def printed(*rows: list[str], before: str = "==PROF== Connected to process 7\n") -> str:
    return before + "".join(",".join(f'"{cell}"' for cell in row) + "\n" for row in rows)


def launch(function: str = "void one<64>(float*)", **changes: float) -> dict:
    """A launch of 1000 cycles: 800 active, 200 of them issuing; warps wait 3 to 1 for global memory and a barrier."""
    named = {
        "tensor": profiles.UNITS["tensor cores"],
        "xu": profiles.UNITS["exponentials (XU)"],
        "dram": profiles.UNITS["DRAM"],
        "cycles": profiles.CYCLES,
        "active": "sm__cycles_active.avg",
        "issue": "smsp__issue_active.avg.pct_of_peak_sustained_active",
        "duration": profiles.DURATION,
        "accesses": "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
        "shared": f"{profiles.SHARED}.{profiles.ELAPSED}",
        "conflicts": profiles.CONFLICTS,
        "read": "dram__bytes_read.sum",
        "write": "dram__bytes_write.sum",
        "registers": "launch__registers_per_thread",
        "by_registers": "launch__occupancy_limit_registers",
        "by_shared": "launch__occupancy_limit_shared_mem",
        "by_blocks": "launch__occupancy_limit_blocks",
    }
    values = {"cycles": 1000, "active": 800, "issue": 25, "duration": 500, "tensor": 20, "xu": 10, "dram": 5}
    values |= {"accesses": 100, "shared": 40, "conflicts": 25, "read": 1e5, "write": 5e4, "registers": 168}
    values |= {"by_registers": 3, "by_shared": 2, "by_blocks": 32}
    stalls = {"long_scoreboard": 6.0, "barrier": 2.0, "selected": 1.0, "not_selected": 5.0}
    metrics = {named[key]: value for key, value in (values | changes).items()}
    stalled = {f"smsp__average_warps_issue_stalled_{r}_per_issue_active.ratio": w for r, w in stalls.items()}
    return {"function": function} | metrics | stalled


COUNTERS = {
    "sdpa.auto": [launch()],
    "sdpa.flash": [launch(tensor=61, xu=72)],
    "sdpa.math": [launch("small", cycles=1000, active=1000), launch("large", cycles=3000, active=3000, tensor=60)],
}


@cache
def profiled():
    return synthetic.infer(Recipe(counters=COUNTERS))


def of(name: str) -> profiles.Profile:
    return next(found for found in profiles.of(profiled()) if found.implementation == name)


# What ncu prints


def test_the_counters_are_read_with_their_units_and_launches():
    rows = profile.parse(printed(HEADER, UNITS, FIRST, SECOND))
    assert rows.to_dict("list") == {
        "function": ["void flash<64, (bool)0>(Params)"] * 2 + ["second"],
        "launch": [0, 0, 1],
        "metric": ["gpu__time_duration.sum", "sm__cycles_elapsed.max", "gpu__time_duration.sum"],
        "unit": ["ns", "cycle", "ns"],
        "value": [47616, 83000.5, 1000],
    }


def test_what_the_profiled_process_says_is_passed_over():
    rows = profile.parse(printed(HEADER, UNITS, before="a warning\n") + "another\n" + printed(FIRST, before=""))
    assert rows["value"].tolist() == [47616, 83000.5]


@pytest.mark.parametrize(
    ("output", "why"),
    [
        ("", "ncu said nothing"),
        (
            "==PROF== x\n==ERROR== ERR_NVGPUCTRPERM - no permission\n==ERROR== more\n",
            "ERR_NVGPUCTRPERM - no permission",
        ),
        ("Traceback\nImportError: no torch\n", "ImportError: no torch"),
        (printed(HEADER, UNITS, before="==WARNING== No kernels were profiled.\n"), "==WARNING== No kernels were"),
        (printed(HEADER, before="==ERROR== odd\n"), "odd"),
        ("x" * 1000, "x" * 199 + "…"),
    ],
)
def test_where_there_are_no_counters_the_reason_is_what_ncu_said(output, why):
    with pytest.raises(profile.Refused, match=f"^{re.escape(why)}"):
        profile.parse(output)


def test_no_metric_is_asked_for_twice_and_all_that_is_shown_is_asked_for():
    assert len(set(profile.METRICS)) == len(profile.METRICS)
    wanted = {*profiles.UNITS.values(), profiles.CYCLES, profiles.DURATION, profiles.CONFLICTS, "sm__cycles_active.avg"}
    wanted |= {profiles._stalled(reason) for reason in profiles.WAITS}
    assert wanted <= set(profile.METRICS)
    assert set(profile.STALLS) == {*profiles.WAITS, "selected", "not_selected"}


# What it printed on an H200 at (32, 8, 512, 64) in float16, less the columns that nobody asked for

PRINTED = Path(__file__).parent / "data"
TARGET = Shape(32, 8, 512, 64)


def on_h200(name: str) -> profiles.Profile:
    rows = profile.parse((PRINTED / f"ncu_{name}.csv").read_text())
    wide = rows.pivot(index="launch", columns="metric", values="value")
    return profiles.Profile(name, wide.assign(function=rows.groupby("launch")["function"].first()))


def test_what_ncu_printed_is_read():
    rows = profile.parse((PRINTED / "ncu_flash.csv").read_text()).set_index("metric")
    assert set(rows["launch"]) == {0}
    assert rows["function"].iloc[0].startswith("void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128")
    assert rows.loc["gpu__time_duration.sum", ["unit", "value"]].tolist() == ["ns", 71104]
    assert rows.loc["launch__registers_per_thread", ["unit", "value"]].tolist() == ["register/thread", 255]
    assert rows.loc["sm__cycles_active.avg", "value"] == 116200.32


@pytest.mark.parametrize("name", ["flash", "cudnn"])
def test_the_counters_agree_with_the_arithmetic(name):
    # 4096 FLOP by wgmma and 16 exponentials a cycle on each of 132 multiprocessors.
    found = on_h200(name)
    busy = {unit: share / 100 * found.total(profiles.CYCLES) for unit, share in found.units_pct.items()}
    assert busy["exponentials (XU)"] == pytest.approx(TARGET.exponentials / 16 / 132, rel=0.06)
    product = busy["tensor cores"] / (TARGET.flops / 4096 / 132)
    assert product == pytest.approx({"cudnn": 1.0, "flash": 1.5}[name], rel=0.02)  # mma.sync holds them for longer
    moved = found.total("dram__bytes_read.sum")
    assert moved == pytest.approx(0.75 * TARGET.bytes, rel=0.01)


def test_latency_holds_them_back():
    flash, cudnn = on_h200("flash"), on_h200("cudnn")
    assert sum(flash.cycles_pct.values()) == pytest.approx(100)
    assert [b.title for b in flash.bottlenecks] == [
        "waiting for a fixed latency",
        profiles.IDLE,
        "waiting for a free pipe",
    ]
    assert [b.title for b in cudnn.bottlenecks] == [
        "waiting for a barrier of the CTA",
        "waiting for a fixed latency",
        "waiting for global memory",
    ]
    assert flash.bottlenecks[0].share_pct == pytest.approx(20.5, abs=0.1)


def test_a_call_of_several_kernels_is_read_whole():
    math = on_h200("math")
    assert math.launches["launch__block_size"].tolist() == [128] * 4
    assert math.longest["function"].startswith("sm80_xmma_gemm_f32f32")
    assert math.total(profiles.DURATION) == 24_000 + 280_640 + 129_728 + 13_568


# Taken, or done without


@pytest.fixture
def begun(begin):
    """A run that holds cases at its target: two and a control measured in both replicates, one that then failed."""
    name = begin(tiny_study())
    fates = [("sdpa.auto", "measured"), ("sdpa.flash", "measured"), ("sdpa.math", "measured")]
    fates.append(("control.sdpa.auto", "measured"))
    for replicate in range(2):
        rows = [
            dict.fromkeys(runs.COLUMNS["cases"])
            | {"implementation": one, **SHAPE.axes, "replicate": replicate, "status": status}
            for one, status in fates
        ]
        rows[2]["status"] = ("measured", "failed")[replicate]
        runs.add_part(name, "cases", f"r0{replicate}-s001", pd.DataFrame(rows))
    return name


@pytest.fixture
def ncu(tmp_path, monkeypatch):
    """Puts a program in ncu's place, which does what a shell does with a text."""

    def place(does: str) -> Path:
        path = tmp_path / "ncu"
        path.write_text(
            f'#!/bin/sh\nif [ "$1" = --version ]; then echo "Version 2025.3.1.0 (build 1)"; exit; fi\n{does}'
        )
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("ATTNLAB_NCU", os.fspath(path))
        return path

    return place


def is_running(process: Path) -> bool:
    try:
        return process.read_text().split()[2] != "Z"
    except OSError:
        return False


PRINT = f"cat <<'END'\n{printed(HEADER, UNITS, FIRST)}END\n"


def test_a_device_without_counters_is_told(begun):
    told = profile.take(begun, tiny_study(), "cpu")
    assert told == {"tool": "", "why": "Nsight Compute profiles NVIDIA GPUs, which this device is not", "command": ""}


def test_an_ncu_that_is_not_there_is_told(begun, monkeypatch):
    monkeypatch.delenv("ATTNLAB_NCU", raising=False)
    monkeypatch.setenv("PATH", "")
    told = profile.take(begun, tiny_study(), "cuda")
    assert told["tool"] == ""
    assert told["why"].startswith("ncu, of Nsight Compute, was not there")
    monkeypatch.setenv("ATTNLAB_NCU", "/nowhere/ncu")
    assert profile.take(begun, tiny_study(), "cuda")["why"] == "/nowhere/ncu does not run: No such file or directory"


def test_what_every_replicate_measured_is_profiled_once(begun, ncu, tmp_path):
    ncu(f'echo "$*" >> {tmp_path}/asked\n{PRINT}')
    told = profile.take(begun, tiny_study(), "cuda")
    assert (told["tool"], told["why"]) == ("ncu 2025.3.1.0", "")
    rows = runs.load(begun).profile
    assert list(rows.columns) == list(runs.COLUMNS["profile"])
    assert rows["implementation"].unique().tolist() == ["sdpa.auto", "sdpa.flash"]
    assert set(rows["seq_len"]) == {32}
    asked = (tmp_path / "asked").read_text().splitlines()
    assert [re.search(r"attnlab\.measure\.profile (\S+)", line)[1] for line in asked] == ["sdpa.auto", "sdpa.flash"]
    assert "--clock-control none" in asked[0]
    assert ",".join(profile.METRICS) in asked[0]
    assert told["command"].startswith("ncu --clock-control none")
    assert 'python -m attnlab.measure.profile IMPLEMENTATION \'{"batch": 1' in told["command"]
    profile.take(begun, tiny_study(), "cuda")
    assert len((tmp_path / "asked").read_text().splitlines()) == 2


def test_what_ncu_can_not_do_costs_its_own_counters_alone(begun, ncu):
    ncu(f'case "$*" in *sdpa.auto*) echo "==ERROR== no such thing"; exit 1;; esac\n{PRINT}')
    told = profile.take(begun, tiny_study(), "cuda")
    assert told["why"] == "sdpa.auto: no such thing"
    assert runs.load(begun).profile["implementation"].unique().tolist() == ["sdpa.flash"]


def test_who_may_not_read_counters_is_refused_once(begun, ncu, tmp_path):
    ncu(f'echo x >> {tmp_path}/asked\necho "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission"')
    told = profile.take(begun, tiny_study(), "cuda")
    assert told["why"] == "ERR_NVGPUCTRPERM - The user does not have permission"
    assert (tmp_path / "asked").read_text() == "x\n"
    assert runs.load(begun).profile.empty


def test_who_takes_too_long_is_ended_with_all_it_started(begun, ncu, tmp_path, monkeypatch):
    monkeypatch.setattr(profile, "TIMEOUT_S", 0.5)
    ncu(f"sleep 60 & echo $! > {tmp_path}/child; wait")
    told = profile.take(begun, tiny_study(), "cuda")
    assert told["why"] == "sdpa.auto: not done after 0.5 s; sdpa.flash: not done after 0.5 s"
    child = Path(f"/proc/{(tmp_path / 'child').read_text().strip()}/stat")
    deadline = time.monotonic() + 10
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(child)


def test_a_recorded_run_says_why_it_has_no_counters(recorded):
    run = runs.load(recorded)
    assert run.profile.empty
    assert "NVIDIA" in run.manifest["profile"]["why"]


# What they say


def test_cycles_are_all_accounted_for():
    found = of("sdpa.auto")
    assert found.cycles == pytest.approx(
        {profiles.ISSUED: 200, "a barrier of the CTA": 150, "global memory": 450, profiles.IDLE: 200}
    )
    assert sum(found.cycles_pct.values()) == pytest.approx(100)


def test_launches_of_one_call_are_weighted_by_their_cycles():
    found = of("sdpa.math")
    assert found.longest["function"] == "large"
    assert found.longest_share_pct == pytest.approx(75)
    assert found.units_pct["tensor cores"] == pytest.approx((20 + 3 * 60) / 4)
    assert found.total(profiles.DURATION) == 1000
    assert sum(found.cycles.values()) == pytest.approx(4000)


def test_units_from_the_bound_come_before_what_warps_wait_for():
    ranked = [(b.title, round(b.share_pct, 6)) for b in of("sdpa.flash").bottlenecks]
    assert ranked == [("exponentials (XU)", 72), ("tensor cores", 61), ("waiting for global memory", 45)]


def test_below_the_bound_the_largest_losses_are_ranked():
    ranked = [(b.title, round(b.share_pct, 6)) for b in of("sdpa.auto").bottlenecks]
    assert ranked == [("waiting for global memory", 45), (profiles.IDLE, 20), ("waiting for a barrier of the CTA", 15)]


def test_bank_conflicts_are_a_loss_of_their_own():
    (found,) = profiles.of(synthetic.infer(Recipe(counters={"sdpa.auto": [launch(shared=80, conflicts=75)]})))
    assert found.conflicts_pct == 75
    assert found.bottlenecks[0].title == "bank conflicts of shared memory"
    assert found.bottlenecks[0].share_pct == pytest.approx(60)


def test_a_counter_that_is_missing_is_shown_as_such():
    bare = {key: value for key, value in launch().items() if "dram" not in key and "tensor" not in key}
    results = synthetic.infer(Recipe(counters={"sdpa.auto": [bare]}))
    (found,) = profiles.of(results)
    assert found.bottlenecks[0].title == "waiting for global memory"
    for show in (profiles.how, profiles.launches, profiles.traffic, profiles.bottlenecks, profiles.findings):
        assert "nan" not in show(results)._repr_mimebundle_()["text/plain"]
    assert "—" in profiles.traffic(results)._repr_mimebundle_()["text/plain"]


def test_the_tables_have_a_row_for_each():
    results = profiled()
    launches = profiles.launches(results).frame.set_index("implementation")
    assert list(launches.index) == list(COUNTERS)
    assert launches.loc["sdpa.math", ["longest kernel", "launches", "its share"]].tolist() == ["large", 2, "75 %"]
    assert launches.loc["sdpa.auto", ["longest kernel", "registers", "limited by"]].tolist() == [
        "one",
        "168",
        "shared",
    ]
    traffic = profiles.traffic(results).frame.set_index("implementation")
    assert traffic.loc["sdpa.math", ["µs in ncu", "DRAM (MB)", "bank conflicts"]].tolist() == ["1.00", "0.300", "25 %"]
    assert profiles.bottlenecks(results).frame.loc[1].tolist() == [
        "sdpa.flash",
        "exponentials (XU): 72 % of peak",
        "tensor cores: 61 % of peak",
        "waiting for global memory: 45 % of cycles",
    ]


def test_the_findings_tell_busy_units_from_latency():
    assert profiles.findings(profiled()).markdown == (
        "The busiest unit, at 60 % of its peak or more: exponentials (XU) in `sdpa.flash` (72 %). Where every unit "
        "stays below that, the largest loss, in % of the cycles: waiting for global memory in `sdpa.auto` (45 %) and "
        "`sdpa.math` (56 %)."
    )


@pytest.mark.parametrize("draw", [profiles.units, profiles.schedulers])
def test_the_figures_name_every_implementation(draw):
    drawn = draw(profiled())
    (axes,) = drawn.figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == list(COUNTERS)


def test_the_map_holds_the_shares():
    (axes,) = profiles.units(profiled()).figure.axes
    texts = [text.get_text() for text in axes.texts]
    assert texts[: len(profiles.UNITS)] == ["20", "10", *["—"] * 6, "5"]


def test_the_bars_reach_from_end_to_end():
    (axes,) = profiles.schedulers(profiled()).figure.axes
    ends = {round(bar.get_y(), 3): bar.get_x() + bar.get_width() for bar in axes.patches}
    assert list(ends.values()) == pytest.approx([100] * len(COUNTERS))


def test_the_steps_tell_where_cycles_went(monkeypatch):
    names = ["sdpa.auto", "kernel.naive", "kernel.tiled", "kernel.mma"]
    for name in names[1:]:
        monkeypatch.setitem(synthetic.PACE, name, 1.0)
    counters = {
        "kernel.naive": [launch(cycles=10_000, active=10_000)],
        "kernel.tiled": [launch(cycles=4_000, active=3_000)],
    }
    results = synthetic.infer(Recipe(study={"implementations": names}, counters=counters))
    results.run.manifest["ladder"] = [rung.model_dump(mode="json") for rung in ladder.load()]
    (row,) = profiles.steps(results).frame.to_dict("records")
    assert row == {
        "rung": "tiled",
        "after": "naive",
        "cycles before": "10,000",
        "cycles": "4,000",
        "saved most": "global memory: −3,938",
        "then": "instruction issued: −1,750",
        "added most": "no work on the multiprocessor: +1,000",
    }


def test_a_run_without_two_rungs_has_no_steps():
    assert "Nothing was measured" in profiles.steps(profiled()).markdown


@pytest.mark.parametrize("recipe", [Recipe(), Recipe(shapes=1), synthetic.LONELY], ids=["none", "cut off", "on a CPU"])
def test_a_run_without_counters_says_why_once(recipe):
    results = synthetic.infer(recipe)
    with pytest.raises(NotMeasured, match=r"^No counters were recorded, so .*: [\w ,]+$"):
        profiles.of(results)
    assert re.fullmatch(r"\*No counters were recorded, so [^.]+\.\*", profiles.how(results).markdown)
    for show in (profiles.launches, profiles.units, profiles.schedulers, profiles.bottlenecks, profiles.steps):
        assert show(results) is None
