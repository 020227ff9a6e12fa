"""What the panel, the canary and the loads say of a run: readings that were chosen, so that every distance is known."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import synthetic
from reading import column, plain
from synthetic import TARGET

from attnlab.exhibits.catalogue import Show
from attnlab.exhibits.environment import caches, clocks, load, samples
from attnlab.exhibits.environment import panel as shown
from attnlab.infer import panel, regimes
from attnlab.infer.results import Results
from attnlab.infer.stats import Interval
from attnlab.runs.schema import is_of
from attnlab.runs.tables import TABLES
from attnlab.study.shapes import Shape

ROUNDS = range(9)
SHORT, LONG = Shape(1, 1, 128, 64), Shape(2, 4, 4096, 64)
TIMES = {"sdpa.auto": {SHORT: 10.0, LONG: 1000.0}, "sdpa.flash": {SHORT: 6.0, LONG: 2000.0}}
# What each method adds, below and above the limit.
ADDS = {
    "device": (0.0, 0.0),
    "cupti": (-0.2, -1.0),
    "cupti.graph": (-0.3, -2.0),
    "cupti.span": (0.4, 3.0),
    "eager": (20.0, 30.0),
    "triton.cudagraph": (0.1, 1.0),
    "device.cold": (4.0, 8.0),
    "triton.do_bench": (5.0, 9.0),
}
APART = {"ncu": (1.0, -100.0), "ncu.cold": (5.0, 6.0)}
L2_BYTES = synthetic.L2_BYTES


def timed(adds=ADDS, apart=APART, drift=0.01) -> pd.DataFrame:
    """Every method at every case; what the rounds share, `drift` of the time in each, is in all that took turns."""
    rows = []
    for name, times in TIMES.items():
        for shape, us in times.items():
            for method, more in adds.items():
                for number in ROUNDS:
                    latency = us + more[shape is LONG] + drift * us * (number - 4)
                    rows.append({"method": method, "round": number, "latency_us": latency, "sm_clock_mhz": 1980})
                    rows[-1] |= {"implementation": name, **shape.axes, "why": ""}
            for method, more in apart.items():
                for number in range(3):
                    rows.append({"method": method, "round": number, "latency_us": us + more[shape is LONG]})
                    rows[-1] |= {"implementation": name, **shape.axes, "why": ""}
            rows.append({"implementation": name, **shape.axes, "method": "nvbench.batch", "why": "not installed: it"})
    frame = pd.DataFrame(rows, columns=TABLES["panel"].names)
    return frame.astype({"round": "Int64", "latency_us": "Float64", "sm_clock_mhz": "Int32"})


def of(**tables) -> Results:
    results = synthetic.inferred()
    return Results(replace(results.run, **tables), results.table)


# ---------------------------------------------------------------------------------------------------------- the panel


def test_cases_stand_in_the_order_of_our_clock():
    cases = panel.of(of(panel=timed())).cases
    assert cases == [("sdpa.flash", SHORT), ("sdpa.auto", SHORT), ("sdpa.auto", LONG), ("sdpa.flash", LONG)]


def test_what_took_turns_is_compared_round_by_round_so_that_drift_cancels():
    found = panel.of(of(panel=timed(drift=0.05)))
    reading = found.reading(("sdpa.auto", LONG), "cupti.graph")
    assert reading.gap.estimate == pytest.approx(-2.0)
    assert reading.gap.high - reading.gap.low < 1e-9
    assert reading.median.high - reading.median.low > 100
    assert reading.gap_pct == pytest.approx(-0.2)


def test_what_ran_apart_is_compared_with_our_median_and_has_the_interval_that_was_seen():
    reading = panel.of(of(panel=timed())).reading(("sdpa.auto", LONG), "ncu")
    assert reading.gap == Interval(*[pytest.approx(-100.0)] * 3)


def test_cold_methods_are_held_to_the_cold_clock():
    reading = panel.of(of(panel=timed())).reading(("sdpa.auto", SHORT), "triton.do_bench")
    assert reading.ours_us == pytest.approx(14.0)
    assert reading.gap.estimate == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("us", "gap", "near"), [(19, 0.5, True), (19, -0.51, False), (1000, 10, True), (21, 0.3, False)]
)
def test_near_is_half_a_microsecond_below_20_and_a_percent_above(us, gap, near):
    assert panel.Reading(Interval(us, us, us), Interval(gap, gap, gap), us).near is near


def test_a_clock_in_the_bracket_is_right():
    told = plain(shown.agreement(of(panel=timed())))
    assert "in 4 of 4 cases." in told
    assert "outside" not in told
    # Each call of the synthetic run is two kernels.
    assert "calls of 2 pieces (+0.30 µs where they take less than 20 µs; 4 of 4 within those limits)" in told


@pytest.mark.parametrize(
    ("adds", "expected"),
    [
        ({"cupti.graph": (0.6, -2.0), "cupti.span": (0.7, 3.0)}, "2 of 4 cases. It is outside at sdpa.flash, B=1 H=1"),
        (
            {"cupti.graph": (-0.3, -31.0), "cupti.span": (0.4, -30.0)},
            "It is outside at sdpa.auto, B=2 H=4 S=4096; sdpa.flash, B=2 H=4 S=4096.",
        ),
        ({"cupti.graph": (0.4, -2.0), "cupti.span": (0.5, 3.0)}, "in 4 of 4 cases."),
    ],
)
def test_a_clock_outside_of_the_bracket_is_told(adds, expected):
    assert expected in plain(shown.agreement(of(panel=timed(ADDS | adds))))


def test_of_many_cases_a_sentence_names_three():
    outside = timed(ADDS | {"cupti.graph": (0.6, -2.0), "cupti.span": (0.7, 3.0)})
    frame = pd.concat([outside.assign(batch=batch) for batch in (3, 4, 5)])
    assert re.search(r"It is outside at ([^;]+; ){3}and 3 more\.", plain(shown.agreement(of(panel=frame))))


def many() -> Results:
    """A panel with the rungs in it: more cases than a table has rows for."""
    frames = [
        frame.assign(implementation=f"kernel.{number}")
        for number in range(20)
        for frame in [timed()]
        for frame in [frame[frame["implementation"] == "sdpa.auto"]]
    ]
    at_target = timed().assign(**TARGET.axes, implementation="kernel.0")
    return of(panel=pd.concat([timed(), *frames, at_target]))


def test_of_many_cases_a_table_has_the_baseline_and_the_target():
    table = shown.warm(many())
    assert column(table, "case") == ["sdpa.auto, B=1 H=1 S=128", "kernel.0, B=2 H=4 S=128", "sdpa.auto, B=2 H=4 S=4096"]
    assert "42 other cases of the panel have no row." in table.note
    assert "no row" not in shown.warm(of(panel=timed())).note


@pytest.mark.parametrize("kind", [["device"], ["device", "cupti"], ["device", "eager"], ["device", "device.cold"]])
def test_a_panel_without_a_kind_of_method_is_shown(kind):
    run = of(panel=timed({name: ADDS[name] for name in kind}, apart={}))
    for id in ("agreement", "panel", "panel.explained", "panel.warm", "panel.cold", "panel.samples", "claimed"):
        assert Show(run)(f"environment.{id}").markdown


# ------------------------------------------------------------------------------------ the panel and the samples


def beside(us: float, mhz: int) -> Results:
    """The baseline at the target, which the samples have at 40 µs and 1960.5 MHz, in a panel."""
    frame = timed({"device": (0.0, 0.0)}, apart={}, drift=0.0)
    frame = frame[(frame["implementation"] == "sdpa.auto") & (frame["seq_len"] == 128) & (frame["method"] == "device")]
    return of(panel=frame.assign(**TARGET.axes, latency_us=us, sm_clock_mhz=mhz))


def test_the_panel_is_set_beside_the_samples_with_the_clocks_of_both():
    (row,) = samples.beside_samples(beside(50.0, 1568)).frame.to_dict("records")
    assert row["samples (µs) [95 %]"].startswith("40.000\n")
    assert row["panel (µs) [95 %]"].startswith("50.0")
    assert (row["their SM clock (MHz)"], row["its SM clock (MHz)"]) == ("1,960", "1,568")
    assert row["panel over samples"] == "+25 %"
    assert abs(float(row["in cycles"].split()[0].replace("−", "-"))) < 0.1


def test_what_is_claimed_of_the_clock():
    told = plain(samples.claimed(beside(50.0, 1568)))
    assert "1 case of `device` in common. Of these, 0 agree within 1 %." in told
    assert "apart by at most +25 %, at sdpa.auto, B=2 H=4 S=128: 50.0 [50.0, 50.0] µs in the panel at 1,568 MHz" in told
    assert "In cycles, they are apart by at most 0.0" in told
    assert "so that its power limit lowers the clock less" in told
    same = plain(samples.claimed(beside(40.0, 1961)))
    assert "Of these, 1 agree within 1 %. What the panel supports" in same
    assert "power limit" not in same
    unread = plain(samples.claimed(beside(50.0, None)))
    assert "In cycles" not in unread


def test_without_a_case_in_both_it_says_so():
    assert plain(samples.claimed(of(panel=timed()))) == (
        "*No case of the panel is among the samples of the device clock with a warm cache.*"
    )


def test_the_panels_launch_gap_is_said_where_it_is_another():
    frame = timed({"device": (0.0, 0.0), "eager": (9.0, 9.0)}, apart={}, drift=0.0)
    frame = frame[(frame["implementation"] == "sdpa.auto") & (frame["seq_len"] == 128) & frame["latency_us"].notna()]
    told = plain(clocks.launch_gap(of(panel=frame.assign(**TARGET.axes))))
    assert (
        "The panel of clocks, which times one implementation at a time, has 9.00 [9.00, 9.00] µs at (2, 4, 128, 64)"
        in told
    )
    same = frame["latency_us"] - 4.0 * (frame["method"] == "eager")
    assert "panel" not in plain(clocks.launch_gap(of(panel=frame.assign(**TARGET.axes, latency_us=same))))


def test_where_rounds_scatter_too_much_it_can_not_be_told():
    frame = timed(ADDS | {"cupti.graph": (-0.3, 15.0), "cupti.span": (0.4, 20.0)})
    rows = (frame["method"] == "cupti.graph") & (frame["seq_len"] == 4096)
    frame.loc[rows, "latency_us"] += pd.Series(np.resize([-60.0, 0.0, 60.0], rows.sum()), frame.index[rows])
    told = plain(shown.agreement(of(panel=frame)))
    assert "These rounds scatter too much to decide at sdpa.auto, B=2 H=4 S=4096" in told


def test_without_cupti_it_says_why():
    rows = timed({method: adds for method, adds in ADDS.items() if "cupti" not in method})
    why = {"implementation": "sdpa.auto", **SHORT.axes, "method": "cupti.graph", "why": "no CUPTI here"}
    told = plain(shown.agreement(of(panel=pd.concat([rows, pd.DataFrame([why])]))))
    assert told == "*CUPTI timed nothing to compare our clock with: no CUPTI here.*"


def test_every_method_is_explained_with_its_distance_and_what_is_absent_with_its_reason():
    told = plain(shown.explained(of(panel=timed()))).splitlines()
    (eager,) = [line for line in told if line.startswith("- `eager`")]
    assert (
        "+20 µs (+20 to +20) for calls below 20 µs and +2.2 % (+1.5 to +3.0) for longer ones. The launch gap" in eager
    )
    assert "- NVBench, batch: not used: not installed: it." in told
    assert len(told) == len(ADDS) - 2 + len(APART) + 1


def test_the_tables_hold_every_case_and_name_what_was_not_used():
    warm, cold = shown.warm(of(panel=timed())), shown.cold(of(panel=timed()))
    expected = ["−0.30\n(−5.0 %)", "−0.30\n(−3.0 %)", "−2.0\n(−0.20 %)", "−2.0\n(−0.10 %)"]
    assert list(warm.frame["CUPTI, in the graph"]) == expected
    assert "NVBench, batch: not installed: it" in warm.note
    assert list(cold.frame.columns) == ["case", "device, cold (µs)", "Nsight Compute, flushed", "Triton, do_bench"]


def test_the_figure_has_every_method_at_every_case():
    short, long = shown.gaps(of(panel=timed())).figure.axes
    titles = [label.get_text() for label in short.get_yticklabels()]
    assert set(titles) == {
        *("CUPTI, in the graph", "CUPTI, with gaps", "CUPTI, called"),
        *("Nsight Compute", "Triton, graph", "eager", "Nsight Compute, flushed", "Triton, do_bench"),
    }
    # what each adds to our clock: to calls of 10 and 6 us in us, to those of 1000 and 2000 us in percent
    assert cases(short)[titles.index("eager")] == pytest.approx([20, 20])
    assert cases(long)[titles.index("eager")] == pytest.approx([3, 1.5])
    assert cases(short)[titles.index("Triton, do_bench")] == pytest.approx([1, 1])
    assert cases(long)[titles.index("Triton, do_bench")] == pytest.approx([100 / 1008, 100 / 2008])


def cases(axes) -> dict[int, list[float]]:
    """What is drawn for the cases in each row."""
    dots = [line for line in axes.get_lines() if line.get_marker() == "o"]
    return {int(line.get_ydata()[0]): list(line.get_xdata()) for line in dots}


@pytest.mark.parametrize("show", [shown.warm, shown.agreement, shown.gaps, caches.table, caches.residency, load.bursts])
def test_a_run_without_says_so(show):
    told = plain(show(synthetic.inferred()))
    assert re.fullmatch(r"\*.* recorded: .*\.\*", told)


# -------------------------------------------------------------------------------------------------------- cold and warm

FITTING, LARGE = Shape(1, 4, 32, 64), Shape(2, 4, 4096, 64)


def seen(cold_pct=100.0, warm_pct=1.0, cold_hits=0.5, warm_hits=99.5, shapes=(TARGET, FITTING, LARGE)) -> pd.DataFrame:
    rows = []
    for shape in shapes:
        inputs_bytes = shape.bytes * 3 / 4
        for cache, read, hits in (("warm", warm_pct, warm_hits), ("cold", cold_pct, cold_hits)):
            where = {"implementation": "sdpa.auto", **shape.axes, "cache": cache, "round": 0, "why": ""}
            value = inputs_bytes * read / 100
            rows.append(where | {"clock": "device", "metric": "dram__bytes_read.sum", "unit": "byte", "value": value})
            for clock in ("device", "eager"):
                for metric, value in ((".hits", hits), (".hit", 290.0), (".miss", 677.0)):
                    rows.append(where | {"clock": clock, "metric": f"canary.q{metric}", "value": value})
    return pd.DataFrame(rows, columns=TABLES["residency"].names).astype({"value": "Float64"})


def test_a_cold_call_reads_everything_and_a_warm_one_nothing():
    told = plain(caches.residency(of(residency=seen())))
    assert told.startswith("Cold was cold: in each of 3 cases, a call after our flush read at least 100 %")
    found = "the canary found 0.5 % of the lines of Q, K and V in the L2, and at most 0.5 % in any round"
    assert f"{found} of any tensor, in the 1 case in which it can tell" in told
    assert "Warm was warm: where Q, K, V and O take at most a third of the L2" in told
    assert "read at most 1.0 % of the bytes of Q, K and V" in told
    assert "a warm call reads 1.0 % of the bytes of Q, K and V from memory" in told


def test_what_the_canary_found_is_told_of_both_clocks():
    rows = seen(warm_hits=99.5)
    rows.loc[(rows["clock"] == "eager") & (rows["cache"] == "warm"), "value"] -= 7
    result = of(residency=rows)
    device = result.run.manifest["device"] | {"l2_bytes": 4 * LARGE.bytes}
    told = plain(
        caches.residency(Results(replace(result.run, manifest=result.run.manifest | {"device": device}), result.table))
    )
    found = "When a warm `device` sample begins, the canary found at least 100 % of the lines of these small tensors"
    assert f"{found} in the L2, and when an `eager` one does at least 92 %." in told


def test_cold_that_was_warm_and_warm_that_was_cold_are_told():
    told = plain(caches.residency(of(residency=seen(cold_pct=64, warm_pct=20))))
    assert "Cold was not everywhere cold: in each of 3 cases, a call after our flush read at least 64 %" in told
    assert "Warm was not everywhere warm" in told


def test_the_canary_is_heard_only_at_full_speed_and_where_no_line_is_read_twice():
    rows = seen()
    panelled = timed().assign(sm_clock_mhz=lambda frame: np.where(frame["seq_len"] == 4096, 1700, 1980))
    with_clock = of(residency=rows, panel=panelled)
    shares = caches.table(with_clock).frame.set_index("shape")["L2 device, cold"]
    assert shares.isna().tolist() == [True, True, True]  # the first two are too small
    assert caches.table(of(residency=rows)).frame["L2 device, cold"].iloc[2] == "0.5 %"
    big = Shape(8, 8, 512, 64)
    assert caches.table(of(residency=seen(shapes=[big]), panel=panelled)).frame["L2 device, cold"].iloc[0] == "0.5 %"


def test_where_neither_witness_was_there_the_reasons_are_told():
    rows = seen().assign(value=np.nan, why="not installed: CuPy")
    told = plain(caches.residency(of(residency=rows)))
    assert told == "*What the L2 held is not known: not installed: CuPy.*"
    assert "Not used: not installed: CuPy." in caches.table(of(residency=rows)).note


# ---------------------------------------------------------------------------------------------------- burst, sustained


def loads(**sustained: float) -> pd.DataFrame:
    """A load of 3 s for each: 100 µs for 0.5 s, then what is given; said to be held back 0.2 s later."""
    started = np.arange(300) / 100 + 0.01
    frames = [
        pd.DataFrame({"implementation": name.replace("_", "."), **LONG.axes, "started_s": started}).assign(
            latency_us=np.where(started <= 0.5, 100.0, later),
            sm_clock_mhz=np.where(started <= 0.5, 1980, 1700),
            power_w=600.0,
            temperature_c=50,
            throttled=(started > 0.7) & (later > 100),
            why="",
        )
        for name, later in sustained.items()
    ]
    return pd.concat(frames, ignore_index=True)


def test_a_burst_is_over_when_two_slices_are_slower_and_the_card_says_so_later():
    table = load.endurance_table(of(endurance=loads(sdpa_auto=112.0, sdpa_flash=100.5))).frame
    assert list(table["slower by"]) == ["12 %", "0.5 %"]
    assert list(table["slower after (s)"]) == ["0.51", "—"]
    assert list(table["throttled after (s)"]) == ["0.71", "0.71"]
    assert list(table["SM clock (MHz)"]) == ["1980 → 1700"] * 2


def test_one_slow_slice_ends_no_burst():
    rows = loads(sdpa_auto=100.0)
    rows.loc[40, "latency_us"] = 200.0
    assert list(load.endurance_table(of(endurance=rows)).frame["slower after (s)"]) == ["—"]


def test_the_prose_says_how_long_bursts_last_and_what_they_are_worth():
    told = plain(load.bursts(of(endurance=loads(sdpa_auto=112.0, sdpa_flash=100.5))))
    assert "the burst of `sdpa.auto` was over after 0.51 s. Under sustained load, `sdpa.auto` takes 12 % longer" in told
    assert "The burst of `sdpa.flash` lasted." in told
    assert "nothing became slower" in plain(load.bursts(of(endurance=loads(sdpa_auto=101.0))))


def test_the_figure_of_loads_has_latency_clock_and_power():
    latency, clock, power = load.endurance(of(endurance=loads(sdpa_auto=112.0, sdpa_flash=100.5))).figure.axes
    drawn = [{line.get_label(): line.get_ydata() for line in axes.get_lines()} for axes in (latency, clock, power)]
    assert [lines["sdpa.auto"][0] for lines in drawn] == [0, 1980, 600]
    assert [lines["sdpa.auto"][-1] for lines in drawn] == pytest.approx([12, 1700, 600])
    assert drawn[0]["sdpa.flash"][-1] == pytest.approx(0.5)
    dotted = [
        [line.get_xdata()[0] for line in axes.get_lines() if line.get_linestyle() == ":"] for axes in (latency, clock)
    ]
    # slower from 0.51 s on, and throttled from 0.71 s on; flash never became slower by 2 %
    assert dotted == [pytest.approx([0.51]), pytest.approx([0.71, 0.71])]


def test_a_load_that_failed_leaves_the_others_and_alone_says_why():
    failed = pd.DataFrame([{"implementation": "sdpa.math", **LONG.axes, "why": "too long"}])
    rows = pd.concat([loads(sdpa_auto=100.0), failed], ignore_index=True)
    assert list(load.endurance_table(of(endurance=rows)).frame["implementation"]) == ["sdpa.auto"]
    rows = failed.reindex(columns=TABLES["endurance"].names)
    assert plain(load.bursts(of(endurance=rows))) == "*No load without pause was recorded: too long.*"


@pytest.mark.parametrize(
    ("throttled", "expected"),
    [(0.0, "burst"), (0.04, "burst"), (0.5, "mixed"), (0.96, "sustained"), (None, "not recorded")],
)
def test_the_regime_is_told_by_the_share_of_samples_that_were_held_back(throttled, expected):
    samples = synthetic.inferred().run.samples.copy()
    here = is_of(samples, TARGET) & (samples["clock"] == "device")
    count = int(here.sum())
    held = pd.array([None] * count if throttled is None else np.arange(count) < throttled * count, dtype="boolean")
    samples.loc[here, "throttled"] = held
    assert regimes.by_shape(of(samples=samples))[TARGET] == expected
