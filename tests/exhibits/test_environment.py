"""The page 01_environment: its tables and figures of chosen readings, and each branch of its sentences."""

import re
from functools import cache, partial
from itertools import count

import pandas as pd
import pytest
import synthetic
from instruments import ADDS, BESIDE_CUPTI, LARGE, loads, of, scattered, seen, timed, with_l2
from reading import plain, values
from synthetic import Recipe, changed, inferred, lonely

from attnlab.exhibits.catalogue import Show
from attnlab.exhibits.display import Prose
from attnlab.exhibits.environment import cards, clocks, load, machine, panel, provenance
from attnlab.exhibits.words import say
from attnlab.infer.results import Results
from attnlab.runs import methods

# ------------------------------------------------------------------------------------------------------------ sentences


def outside() -> Results:
    """A panel of twelve cases, in six of which our clock is outside of CUPTI's bracket."""
    rows = timed(ADDS | BESIDE_CUPTI["short"])
    return of(panel=pd.concat([rows.assign(batch=batch) for batch in (3, 4, 5)]))


def slowed(us: float = 112.0) -> Results:
    return of(endurance=loads(sdpa_auto=us, sdpa_flash=100.5))


def cached(**seen_pct: float) -> Results:
    return with_l2(of(residency=seen(**seen_pct)), 4 * LARGE.bytes)


@cache
def on_cards(count: int) -> Results:
    """A run whose replicates were measured on this many cards."""
    study = synthetic.AT_TARGET | {"replicates": 2 * count}
    return synthetic.infer(Recipe(study=study, cards=tuple((card, 1.0) for card in 2 * "abc"[:count])))


def closed() -> Results:
    """A run of which one replicate of two was taken."""
    return changed(inferred(), manifest={"closed_early": {"replicates": 1, "shapes": 9, "planned": 18}})


@cache
def incomplete() -> Results:
    return synthetic.infer(Recipe(shapes=3, ceilings=synthetic.CEILINGS | {"l2": (None, "GB/s")}))


BRANCHES = {
    "run": (inferred, lonely),
    "effort": (inferred, closed, incomplete),
    "lacking": (inferred, lonely, incomplete, closed, lambda: on_cards(1)),
    "throttling": (inferred, lonely),
    "launch_gap": (inferred,),
    "residency": (cached, lambda: cached(cold_pct=64), lambda: cached(warm_pct=20)),
    "load": (slowed, lambda: slowed(101.0)),
    "panel": (lambda: of(panel=timed()), outside),
    "panel.table": (lambda: of(panel=timed()), lambda: of(panel=scattered()), outside),
    "machine": (lambda: on_cards(1), lambda: on_cards(2)),
    "cards": (
        lambda: of(processes=inferred().run.processes.assign(card=None)),
        *(partial(on_cards, count) for count in (1, 2, 3)),
    ),
    "ceilings": (inferred, lonely),
    "clocks": (inferred, lambda: with_clocks(smallest_graph_us=4.5)),
}
"""By exhibit: runs of which it says different things."""


def with_clocks(**read: float) -> Results:
    return changed(inferred(), manifest={"clocks": inferred().run.manifest["clocks"] | read})


@pytest.mark.parametrize("id", BRANCHES)
def test_every_branch_is_said_in_words_of_its_own(id):
    told = [Show(made())(f"environment.{id}").markdown for made in BRANCHES[id]]
    assert len(set(told)) == len(told)
    for text in told:
        assert not re.search(r"\b(nan|NaN|None|inf|<NA>)\b", text)
        assert not re.search(r"\b1 (?!agrees)(?:\w+s|fresh processes)\b|[a-z]\.[A-Z]", text)


@pytest.mark.parametrize(
    ("count", "scope", "held_for"),
    [
        (1, "on this NVIDIA H200", "One NVIDIA H200"),
        (2, "on these 2 NVIDIA H200s", "2 NVIDIA H200s"),
        (3, "on NVIDIA H200s", "3 cards, as a sample of NVIDIA H200s"),
    ],
)
def test_words_hold_for_as_many_cards_as_the_intervals(count, scope, held_for):
    run = on_cards(count)
    assert (cards.scope(run), cards.held_for(run)) == (scope, held_for)


def test_what_is_said_of_neighbours_follows_from_the_decision():
    decisions = ("equivalent", "slower", "faster", "inconclusive")
    told = {say("environment.neighbours", decisions={inferred().headline: decision}) for decision in decisions}
    assert len(told) == len(decisions)


def test_a_cold_sample_of_the_device_clock_is_not_told_from_a_warm_one_by_the_cache_alone():
    cold = {"timings": [*synthetic.STUDY["timings"], {"clock": "device", "cache": "cold"}]}
    note = clocks.cold_note(synthetic.infer(Recipe(study=synthetic.AT_TARGET | cold, fates={})))
    assert note.startswith(" A cold `device` sample is one call between its events, which read 1.50 µs around nothing")
    assert clocks.cold_note(inferred()) == ""


def test_shapes_held_back_are_named_together():
    samples = inferred().run.samples
    held = of(samples=samples.assign(throttled=(samples["seq_len"] == 64).astype("boolean")))
    told = plain(load.throttling(held))
    assert "under sustained load: B=2 H=4 S=64, with and without the causal mask" in told


# --------------------------------------------------------------------------------------------------------------- tables


def test_every_method_but_our_own_clocks_is_explained():
    assert {*panel.CLOCKS, "device", "device.cold"} == {method.name for method in methods.METHODS}


def test_every_method_has_a_row_with_its_differences_and_their_cause():
    frame = panel.table(of(panel=timed())).frame.set_index("clock")
    assert len(frame) == len(ADDS) - 2 + 2  # without our own two, with those of Nsight Compute
    short, long = frame["below 20 µs (µs more)"], frame["from 20 µs on (more)"]
    assert [short["eager"].estimate, long["eager"].low, long["eager"].high] == pytest.approx([20, 1.5, 3])
    assert short["Triton, do_bench"].estimate == pytest.approx(1)
    assert frame.loc["CUPTI, in the graph", ["against", "cases", "near"]].tolist() == ["device", 4, 4]
    assert frame.loc["Triton, do_bench", ["against", "cases", "near"]].tolist() == ["device, cold", 4, 2]


@pytest.mark.parametrize("kind", [["device"], ["device", "cupti"], ["device", "eager"], ["device", "device.cold"]])
def test_a_panel_without_a_kind_of_method_is_shown(kind):
    run = of(panel=timed({name: ADDS[name] for name in kind}, apart={}))
    for id in ("panel", "panel.table", "launch_gap"):
        assert Show(run)(f"environment.{id}").markdown


def test_ceilings_beside_the_datasheet():
    frame = machine.ceilings(inferred()).frame.set_index("ceiling")
    assert frame.loc["matrix product, float16", "measured [95 %]"].estimate == pytest.approx(2)
    assert frame.loc["matrix product, float16", ["unit", "datasheet"]].tolist() == ["TFLOP/s", 989]
    assert frame.loc["memory copy", ["datasheet", "of datasheet"]].tolist() == [4800, pytest.approx(100 / 48)]
    assert frame.loc["L2 reads", ["datasheet", "of datasheet"]].isna().all()


def test_cases_without_a_latency_have_a_reason():
    frame = machine.cases(inferred()).frame
    assert frame[["implementation", "shapes", "status"]].to_numpy().tolist() == [
        ["sdpa.cudnn", "B=2 H=4 S=32", "skipped"],
        ["sdpa.math", "B=2 H=4 S=256", "out of memory"],
        ["sdpa.math", "B=2 H=8 S=128", "failed"],
        ["sdpa.math", "B=2 H=4 S=64, causal", "failed"],
    ]
    assert frame["reason, at the first"].iloc[0] == "cuDNN takes no sequence this short"
    cases = inferred().run.cases
    numbers = (f"error {number}e-03, twice what is allowed" for number in count(1))
    failed = [
        next(numbers) if status == "failed" else reason
        for status, reason in zip(cases["status"], cases["reason"], strict=True)
    ]
    alike = machine.cases(changed(inferred(), cases=cases.assign(reason=failed))).frame.iloc[-1]
    assert alike["shapes"] == "B=2 H=8 S=128; B=2 H=4 S=64, causal"
    assert alike["reason, at the first"] == "error 1e-03, twice what is allowed"
    assert machine.cases(lonely()) == Prose("No case so far failed, was skipped or ran out of memory.")


def test_the_checklist_and_the_hashes_come_from_the_run():
    told, hashes = values(provenance.checklist(inferred())), values(provenance.hashes(inferred()))
    assert told["correctness gate"] == "147 of 150 checks passed"
    assert told["raw samples"] == "5,920 rows, none dropped, hashed below"  # 72 cases and 2 that failed late, 80 each
    assert told["hardware named"] == "NVIDIA H200, driver 580.65"
    assert str(told["samples a case and timing"]) == "40 samples in each of 2 replicates"
    assert told["intervals"].startswith("Student's t over the logarithms of the medians of 2 replicates")
    assert "| 40 samples in each of 1 replicate |" in provenance.checklist(closed()).markdown
    assert hashes["samples.parquet"] == inferred().run.manifest["files"]["samples.parquet"][:32] + "…"
    assert hashes["measure/clocks/cuda_events.py"] == "5" * 32 + "…"


def test_machines_and_settings():
    told, cpu = values(machine.machine_table(inferred())), values(machine.machine_table(lonely()))
    assert (told["device"], told["memory"], told["power limit"]) == ("NVIDIA H200", "128 GiB", "700 W")
    assert "threads" not in told
    assert cpu["threads"] == 2
    assert "highest SM clock" not in cpu
    assert values(machine.settings(inferred())) == {"tf32 matmul": "False", "seed": "42"}


PROCESS = {"setup_seconds": 1.0, "ecc": True, "power_limit_w": 700.0} | {
    "persistence": True, "mig": False, "cpu": "Imaginary CPU", "governor": "", "host": "h"
}  # fmt: skip


@pytest.mark.parametrize(
    ("names", "card", "limit", "note"),
    [
        ("aab", "a ({0}); b ({1})", "700 W ({0}); 600 W ({1})", "The replicates ran on 2 cards, each named by"),
        ("aaa", "a", "700 W", "All replicates ran on one card, which is named by the start of the SHA-256"),
        (["", "", ""], None, "700 W", ""),
        ([None] * 3, None, "700 W", ""),
    ],
)
def test_replicates_on_another_card_are_told_from_those_on_the_same(names, card, limit, note):
    rows = [PROCESS | {"process": f"p{place}", "replicate": place, "card": name} for place, name in enumerate(names)]
    processes = pd.DataFrame(rows)
    processes.loc[processes["card"] == "b", "power_limit_w"] = 600.0
    idle = PROCESS | {"process": "p3", "replicate": 0, "card": "of no sample"}
    samples = inferred().run.samples
    samples = samples.assign(process=samples["process"].mask(samples["round"] == 0, "p2"))
    results = of(processes=pd.concat([processes, pd.DataFrame([idle])]), samples=samples)
    assert results.run.cards == {name for name in names if name}
    shown = machine.machine_table(results)
    told, places = values(shown), ("replicates 0 and 1", "replicate 2")
    assert told.get("card") == (card and card.format(*places))
    assert told["power limit"] == limit.format(*places)
    assert (told["ECC"], told["MIG"], told["CPU"]) == ("on", "off", "Imaginary CPU")
    assert "CPU governor" not in told
    assert note in shown.note
    assert bool(shown.note) == bool(note)


# -------------------------------------------------------------------------------------------------------------- figures


def test_the_figure_of_the_panel_has_every_method_at_every_case():
    short, long = panel.gaps(of(panel=timed())).figure.axes
    titles = [label.get_text() for label in short.get_yticklabels()]
    assert set(titles) == {
        *("CUPTI, in the graph", "CUPTI, with gaps", "CUPTI, called"),
        *("Nsight Compute", "Triton, graph", "eager", "Nsight Compute, flushed", "Triton, do_bench"),
    }
    # what each adds to our clock: to calls of 10 and 6 us in us, to those of 1000 and 2000 us in percent
    assert dots(short)[titles.index("eager")] == pytest.approx([20, 20])
    assert dots(long)[titles.index("eager")] == pytest.approx([3, 1.5])
    assert dots(short)[titles.index("Triton, do_bench")] == pytest.approx([1, 1])
    assert dots(long)[titles.index("Triton, do_bench")] == pytest.approx([100 / 1008, 100 / 2008])
    hollow = [line.get_ydata()[0] for line in short.get_lines() if line.get_markerfacecolor() == "white"]
    assert [titles[place] for place in hollow] == ["Nsight Compute, flushed", "Triton, do_bench"]


def dots(axes) -> dict[int, list[float]]:
    """What is drawn for the cases in each row."""
    lines = [line for line in axes.get_lines() if line.get_marker() == "o"]
    return {int(line.get_ydata()[0]): list(line.get_xdata()) for line in lines}


def test_the_figure_of_loads_has_latency_clock_and_power():
    latency, clock, power = load.endurance(slowed()).figure.axes
    drawn = [{line.get_label(): line.get_ydata() for line in axes.get_lines()} for axes in (latency, clock, power)]
    assert [lines["sdpa.auto"][0] for lines in drawn] == [0, 1980, 600]
    assert [lines["sdpa.auto"][-1] for lines in drawn] == pytest.approx([12, 1700, 600])
    assert drawn[0]["sdpa.flash"][-1] == pytest.approx(0.5)
    lines = (latency.get_lines(), clock.get_lines())
    dotted = [[line.get_xdata()[0] for line in each if line.get_linestyle() == ":"] for each in lines]
    # slower from 0.51 s on, and throttled from 0.71 s on; flash never became slower by 2 %
    assert dotted == [pytest.approx([0.51]), pytest.approx([0.71, 0.71])]


def test_the_lead_under_load_stands_beside_that_of_the_burst_and_the_energy_of_a_call():
    told = plain(load.bursts(of(endurance=loads(sdpa_auto=112.0, sdpa_flash=150.0, kernel_best=80.0))))
    # 112 / 80, where all took 100 at first; 600 W for 80 and 112 us
    assert "Under load, `kernel.best` is 1.40× as fast as `sdpa.auto`, the fastest of the others, and 1.00×" in told
    assert "; a call takes 0.0480 J instead of 0.0672 J (one load each, so without an interval)." in told
    assert "the fastest of the others" not in plain(load.bursts(slowed()))
    assert "by the medians of the load's last 1 s and of its first slices" in load.slowed(slowed())


def test_timings_say_the_largest_change():
    told = clocks.timings(inferred()).markdown
    assert re.match(r"The choice of clock and cache changes a median at most to \d\.\d+× with eager warm at S=32", told)
    assert "No case was timed in two ways" in clocks.timings(lonely()).markdown
