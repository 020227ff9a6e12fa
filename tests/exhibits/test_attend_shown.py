"""What is shown of `attnlab.attend`: its table, what a call adds, and a stream; and which runs stand beside another."""

from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import synthetic
from reading import column, first_number
from synthetic import AXES, DOUBLE, HALF, TARGET, Recipe

from attnlab import obtain
from attnlab.exhibits.backends import attend
from attnlab.infer import cases, results
from attnlab.infer.results import Results
from attnlab.runs import dispatch, read, schema
from attnlab.runs.dispatch import Choice, Dispatch
from attnlab.runs.tables import TABLES
from attnlab.study.implementations import DISPATCH, FALLBACK

SHAPES = [HALF, TARGET, DOUBLE]
STUDY = {
    "implementations": [FALLBACK, DISPATCH],
    "sweeps": {"table": [AXES | {"seq_len": [64, 128, 256]}]},
    "timings": synthetic.STUDY["timings"][1:],
}
# What attend takes more in each replicate.
ADDS = {HALF: (0.1, 0.12), TARGET: (20.0, 20.01), DOUBLE: (0.0, 30.0)}


@cache
def served(replicates: int = 2) -> Results:
    """A run in which `attend` takes as long as SDPA, but for `ADDS`."""
    of = synthetic.infer(Recipe(study=STUDY | {"replicates": replicates}, fates={}))
    samples = of.run.samples.copy()
    for shape, adds in ADDS.items():
        for replicate, us in enumerate(adds):
            there = schema.is_of(samples, shape) & (samples["implementation"] == DISPATCH)
            samples.loc[there & (samples["replicate"] == replicate), "latency_us"] += us
    run = replace(of.run, samples=samples, stream=requests())
    return Results(run, cases.infer(run))


def requests(count: int = 100) -> pd.DataFrame:
    """A stream that takes 1, 2, ... us a request; `attend` keeps the host 2 or 4 us longer, and 100 at `TARGET`."""
    rows = [
        {"implementation": name, **shape.axes, "replicate": replicate, "process": f"p{replicate}", "position": position}
        | {"latency_us": float(position + 1), "host_us": 10.0 + (name == DISPATCH) * more[shape]}
        for replicate, more in enumerate(({HALF: 2.0, TARGET: 100.0}, {HALF: 4.0, TARGET: 100.0}))
        for name in (FALLBACK, DISPATCH)
        for position in range(count)
        for shape in [TARGET if position % 4 == 0 else HALF]
    ]
    return pd.DataFrame(rows, columns=TABLES["stream"].names)


def chosen(**calls: str) -> Dispatch:
    """A table, written, that names other calls than SDPA's at some lengths, 1.25 times as fast."""
    choices = [_choice(shape, calls.get(f"at_{shape.seq_len}", FALLBACK)) for shape in SHAPES]
    table = Dispatch(run="theirs", seal="s", device="NVIDIA H200", torch="2", timing="eager clock", choices=choices)
    dispatch.write(table)
    return table


def _choice(shape, name: str) -> Choice:
    axes = {axis: value for axis, value in shape.axes.items() if axis in Choice.AXES}
    ends = (1.25, 1.2, 1.3) if name != FALLBACK else (1.0, 1.0, 1.0)
    return Choice(**axes, implementation=name, **dict(zip(("speedup", "low", "high"), ends, strict=True)))


# --------------------------------------------------------------------------------------------------------- attend


def test_what_a_table_names(data):
    chosen(at_128="sdpa.flash", at_64="sdpa.efficient")
    table = attend.chosen(served())
    assert table.frame.to_numpy().tolist() == [
        ["(2, 4, 64, 64) float16", "sdpa.efficient", "1.25\n[1.20, 1.30]"],
        ["(2, 4, 128, 64) float16", "sdpa.flash", "1.25\n[1.20, 1.30]"],
    ]
    assert "By the run `theirs` (eager clock), of 3 shapes 2 have another call than `sdpa.auto`" in table.note


def test_a_table_that_names_one_or_nothing(data):
    assert "There is no dispatch table for NVIDIA H200: `make dispatch RUN=" in attend.chosen(served()).markdown
    chosen(at_128="sdpa.flash")
    assert "of 3 shapes 1 has another call" in attend.chosen(served()).note
    chosen()
    assert "of 3 shapes none is served faster by another call" in attend.chosen(served()).markdown


def test_what_a_call_adds_is_students_t_over_replicates():
    table = attend.compared(served())
    assert column(table, "within 10 µs") == ["yes", "no", "undecided"]
    # t(0.975, 1) = 12.706 times half of what two replicates differ by
    assert column(table, "adds (µs) [95 %]") == [
        "0.110\n[−0.017, 0.237]",
        "20.00\n[19.94, 20.07]",
        "15.0\n[−175.6, 205.6]",
    ]
    assert scipy.stats.t.interval(0.95, 1, 15, 15)[1] == pytest.approx(205.6, abs=0.1)
    assert "1 of 3 are yes." in table.note
    assert column(table, "verdict")[1] == "slower"
    assert first_number(column(table, "sdpa.auto (µs) [95 %]")[0]) == 15


def test_what_one_replicate_adds_has_no_interval():
    table = attend.compared(served(replicates=1))
    assert column(table, "within 10 µs") == ["undecided"] * 3
    assert column(table, "adds (µs) [95 %]")[1] == "20.0\n[−∞, ∞]"


def test_quantiles_of_a_stream():
    table = attend.stream(served())
    assert column(table, "implementation") == [FALLBACK, DISPATCH]
    assert column(table, "requests") == ["200", "200"]
    # 1, 1, 2, 2, ... 100, 100: order statistics of 200 by the binomial law
    ordered = np.sort(np.tile(np.arange(1, 101), 2))
    for title, p in (("P50 (µs) [95 %]", 0.5), ("P95 (µs) [95 %]", 0.95)):
        low, high = scipy.stats.binom.ppf([0.025, 0.975], 200, p).astype(int)
        cell = column(table, title)[0].replace("\n", " ")
        estimate, *ends = (float(part) for part in cell.replace("[", "").replace("]", "").replace(",", "").split())
        assert estimate == pytest.approx(np.quantile(ordered, p), abs=0.06)
        assert ends == pytest.approx([ordered[low - 1], ordered[high]], abs=1.01)
    assert column(table, "P99 (µs) [95 %]") == [None, None]  # of 200 there is none
    assert column(table, "host (µs)") == ["10.0", "14.0"]  # of 10, 12, 14 and 110
    assert "Requests of 2 shapes" in table.note


def test_what_attend_itself_takes_is_told_where_it_calls_the_same(data):
    chosen(at_128="sdpa.flash")
    told = attend.overhead(served()).markdown
    # 2 and 4 us: 3, and 12.706 to either side; 75 requests of each replicate
    assert "it takes 3.00 [−9.71, 15.71] µs more of host time than SDPA alone" in told
    assert "(median of 150 requests, " in told


def test_whether_the_median_request_is_answered_later_is_told_with_its_replicates():
    calls = pd.DataFrame(
        [
            {"replicate": replicate, "implementation": name, "latency_us": us}
            for replicate, added in enumerate((2.0, 4.0))
            for name, us in ((FALLBACK, 100.0), (DISPATCH, 100.0 + added))
        ]
    )
    later = "Over the whole stream, the median request is answered later through `attend` than by SDPA in"
    # 12.706 times half of what the two replicates differ by
    adds = "`attend` adds 3.00 [−9.71, 15.71] µs to 100.0 µs, the mean of the replicates' medians."
    assert attend._served(calls) == f"{later} all 2 replicates: {adds}"
    mixed = calls.assign(latency_us=calls["latency_us"].replace(102.0, 98.0))
    assert attend._served(mixed).startswith(f"{later} 1 of 2 replicates: `attend` adds 1.0")
    earlier = calls.assign(latency_us=calls["latency_us"].replace({102.0: 98.0, 104.0: 96.0}))
    assert "is answered earlier through `attend` than by SDPA in all 2 replicates" in attend._served(earlier)
    assert "in the only replicate" in attend._served(calls[calls["replicate"] == 0])


def test_what_attend_saves_has_its_sign(data):
    chosen(at_128="sdpa.flash")
    other = {FALLBACK: DISPATCH, DISPATCH: FALLBACK}
    stream = served().run.stream
    swapped = replace(served().run, stream=stream.assign(implementation=stream["implementation"].map(other)))
    told = attend.overhead(Results(swapped, served().table)).markdown
    assert "it takes 3.00 [−9.71, 15.71] µs less of host time than SDPA alone" in told


def test_a_stream_that_never_called_the_same(data):
    chosen(at_64="sdpa.flash", at_128="sdpa.flash")
    assert "No request of the stream was answered by `sdpa.auto` on both sides" in (attend.overhead(served()).markdown)
    stream = served().run.stream
    alone = replace(served().run, stream=stream[stream["implementation"] == DISPATCH])
    for show in (attend.stream, attend.overhead):
        assert "No stream of requests to" in show(Results(alone, served().table)).markdown


# ------------------------------------------------------------------------------------------------------ companions


PLAIN = {"implementations": [FALLBACK], "replicates": 1, "timings": synthetic.STUDY["timings"][:1]} | {
    "sweeps": {"seq_len": [AXES | {"seq_len": 128}]}
}
GRID = PLAIN | {"sweeps": {"grid seq_len": [AXES | {"seq_len": 128}]}}
GROUPED = {"grouped kv_heads": [AXES | {"seq_len": 128, "kv_heads": 1}]}
WITH_FLEX = PLAIN | {"implementations": [FALLBACK, "peer.flex"], "sweeps": PLAIN["sweeps"] | GROUPED}
GRID_WITH_FLEX = WITH_FLEX | {"sweeps": GRID["sweeps"] | GROUPED}


def record(name: str, study=PLAIN, **recipe) -> None:
    synthetic.write(name, Recipe(study=study, fates={}, **recipe))


def shown(name: str) -> Results:
    return results.of(read.load(name))


def companion(mine: Results, name: str) -> Results:
    """The run that an exhibit `of` this companion is made from."""
    return obtain.showing(mine).companions[name]()


def test_the_newest_run_that_answers_stands_beside(data):
    for name in ("older", "newer"):
        record(name, GRID)
    record("mine")
    record("flex", WITH_FLEX)
    mine = shown("mine")
    assert companion(mine, "choices").run.name == "newer"
    assert companion(mine, "peers").run.name == "flex"
    assert [other.run.name for other in obtain.companions(mine)] == ["newer", "flex"]


def test_a_run_that_answers_itself_stands_alone(data):
    record("mine", GRID_WITH_FLEX | {"implementations": [FALLBACK, "peer.flex", DISPATCH]})
    record("newer", GRID_WITH_FLEX)
    mine = shown("mine")
    assert companion(mine, "choices") is mine
    assert companion(mine, "peers") is mine
    assert obtain.companions(mine) == []


def test_one_run_that_answers_twice_stands_beside_once(data):
    record("both", GRID_WITH_FLEX)
    record("mine")
    assert [other.run.name for other in obtain.companions(shown("mine"))] == ["both"]


def test_without_an_answer_a_run_stands_for_itself(data):
    record("mine")
    record("other", WITH_FLEX)
    mine = shown("mine")
    assert companion(mine, "choices") is mine
    assert companion(mine, "attended") is mine


def test_runs_that_are_not_whole_not_trusted_or_not_from_here_are_passed_over(data):
    record("good", GRID)
    record("incomplete", GRID, shapes=1)
    record("elsewhere", GRID, device="NVIDIA L4")
    record("changed", GRID)
    record("resealed", GRID)
    record("mine")
    (data / "changed" / "samples.parquet").write_bytes(b"changed")
    manifest = data / "resealed" / "manifest.json"
    manifest.write_text(manifest.read_text().replace("Chosen latencies", "Other latencies"))
    assert companion(shown("mine"), "choices").run.name == "good"
