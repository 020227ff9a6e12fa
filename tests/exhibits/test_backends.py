"""The page of backends: its tables by their numbers, worked by hand, and every branch of what it says."""

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
import synthetic
from reading import column
from synthetic import AT_TARGET, AXES, DOUBLE, FAR, GONE, NEAR, TARGET, Recipe, changed, chosen, inferred

from attnlab.base.errors import UserError
from attnlab.exhibits import formats
from attnlab.exhibits.backends import advice, choosing, cost, few, peers, runs, workloads
from attnlab.exhibits.catalogue import Show
from attnlab.exhibits.display import Table
from attnlab.infer.backends.few import groups, refusals
from attnlab.infer.results import Results
from attnlab.runs import schema
from attnlab.study.shapes import Shape


def estimates(table: Table, title: str) -> list[float]:
    return [cell.estimate for cell in table.frame[title]]


# -------------------------------------------------------------------------------------------------------- choosing


def test_what_a_token_takes_along_a_sweep():
    every = choosing.choice(chosen()).parts["fastest"]
    table = replace(every, frame=every.frame[every.frame["along"] == "seq_len"].reset_index(drop=True))
    assert column(table, "shape") == [f"B=2 H=4 S={length}" for length in (64, 128, 256)]
    assert column(table, "fastest") == ["sdpa.flash", "sdpa.flash", "sdpa.auto"]
    assert column(table, "or") == ["sdpa.math", None, None]
    # 2 sequences of S tokens in 8, 32 and 160 us
    assert estimates(table, "median_us") == pytest.approx([8, 32, 160], rel=5e-3)
    assert column(table, "10³ sequences/s") == pytest.approx([250, 62.5, 12.5], rel=5e-3)
    assert estimates(table, "ns a token [95 %]") == pytest.approx([62.5, 125, 312.5], rel=5e-3)


def test_every_sweep_of_forward_passes_is_in_the_table():
    parts = choosing.choice(chosen()).parts
    assert list(parts) == ["settled", "fastest"]
    sweeps = [name for name in chosen().study.sweeps if not name.startswith("training")]
    assert list(dict.fromkeys(column(parts["fastest"], "along"))) == sweeps
    assert "settled" not in choosing.choice(inferred()).parts


# ---------------------------------------------------------------------------------------------------------- advice


def test_rules_say_where():
    frame = advice.rules(chosen()).frame
    rows = frame[frame["where"].str.endswith("device clock, warm cache")].set_index("rule")
    assert rows.loc["avoid", "where"].startswith("slower at all ")
    assert rows.loc["crossover", "where"].iloc[0] == "faster up to S=128, along “seq_len”; device clock, warm cache"
    assert "but" not in frame


# ------------------------------------------------------------------------------------------------------------ cost


def test_what_calls_cost():
    table = cost.cost(chosen(), 3.6).parts["price"]  # 1e-9 $ a us
    assert column(table, "fastest") == ["sdpa.flash", "sdpa.flash", "sdpa.auto"]
    # 500 000 calls of 8, 32 and 160 us; and 1e9 / 128, 256 and 512 of them
    assert estimates(table, "$ a million sequences") == pytest.approx([0.004, 0.016, 0.08], rel=5e-3)
    assert estimates(table, "$ a billion tokens") == pytest.approx([0.0625, 0.125, 0.3125], rel=5e-3)
    assert "At 3.6 $ an hour" in table.note


@pytest.mark.parametrize("price", ["3", "", None, True, [3], float("nan"), float("inf"), -float("inf"), 0, 0.0, -1])
def test_a_price_that_is_none_is_one_line(price):
    for show in (lambda: cost.cost(chosen(), price), lambda: cost.require_price(price)):
        with pytest.raises(UserError, match=r"^price_per_hour has to be a number of dollars above zero") as caught:
            show()
        assert len(str(caught.value).splitlines()) == 1


def test_the_energy_of_a_call_is_that_of_the_second_half_of_its_load():
    load = pd.DataFrame({"implementation": "sdpa.flash", **TARGET.axes, "started_s": np.arange(10.0)})
    early = load["started_s"] < 4.5
    load = load.assign(latency_us=np.where(early, 40.0, 50.0), power_w=np.where(early, 100.0, 500.0), why="")
    unread = load.assign(implementation="sdpa.math", power_w=np.nan)
    load = pd.concat([load, unread, load.assign(seq_len=256, kv_len=256, power_w=250.0)], ignore_index=True)
    table = cost.cost(changed(chosen(), endurance=load), 3.0).parts["energy"]
    assert column(table, "shape") == ["(2, 4, 128, 64) float16", "(2, 4, 256, 64) float16"]
    # 500 W * 50 us; over 256 tokens; over 4 * 2 * 4 * 128^2 * 64 FLOPs
    assert table.frame.iloc[0, 2:].tolist() == pytest.approx([50, 500, 0.025, 97.656, 745.06], rel=1e-4)
    assert table.frame.iloc[1, 2:].tolist() == pytest.approx([50, 250, 0.0125, 24.414, 93.13], rel=1e-4)


# ------------------------------------------------------------------------------------------------------- workloads


def test_what_sharing_keys_and_values_saves():
    table = workloads.grouped(chosen())
    assert column(table, "KV heads") == [4, 2, 1]
    assert estimates(table, "median_us") == pytest.approx([16, 8, 4], rel=5e-3)
    saved = table.frame["over KV heads=4 [95 %]"]
    assert saved[0] is None
    assert [ratio.estimate for ratio in saved[1:]] == pytest.approx([2, 4], rel=5e-3)


def test_no_ratio_of_two_settings_is_surer_than_the_clock():
    coarse = changed(chosen(), manifest={"clocks": {"tick_us": 1.0 * synthetic.LAUNCHES}})  # 1 us a sample
    halved, _ = workloads.grouped(coarse).frame["over KV heads=4 [95 %]"][1:]
    (padded,) = workloads.ragged(coarse).frame["padded over end to end [95 %]"]
    # 16 us over 8 and 32 over 8, each half a us to either side
    assert (halved.low, halved.high) == pytest.approx((15.5 / 8.5, 16.5 / 7.5), rel=5e-3)
    assert (padded.low, padded.high) == pytest.approx((31.5 / 8.5, 32.5 / 7.5), rel=5e-3)


def test_one_number_of_shared_heads_is_compared_with_nothing():
    sweeps = {"seq_len": [AXES | {"seq_len": 128}], "grouped kv_heads": [AXES | {"seq_len": 128, "kv_heads": [2]}]}
    one = synthetic.infer(Recipe(study={"implementations": ["sdpa.auto"], "sweeps": sweeps}, fates={}))
    told = "Heads that share keys and values have a latency only at (2, 4, 128, 64) float16, 2 KV heads"
    assert told in workloads.grouped(one).markdown


def test_decoding_by_the_rate_at_which_memory_is_read():
    table = few.every(chosen())
    # Q and O have 512 elements each, K and V 32768 or 131072 each, of 2 bytes: 133120 B in 2.6624 us, 526336 in 21.0534
    assert column(table, "shape") == [NEAR.label, FAR.label]
    assert estimates(table, "median_us") == pytest.approx([2.6624, 21.0534], rel=5e-3)
    assert column(table, "bandwidth_gbs") == pytest.approx([50, 25], rel=5e-3)
    assert column(table, "of the measured copy") == pytest.approx([50, 25], rel=5e-3)


def test_sequences_of_many_lengths_and_the_same_padded():
    table = workloads.ragged(chosen())
    # 32 + 64 + 96 + 128 tokens of 4 * 128; 33024 scores a head of 15520; at S=256 nothing passed end to end
    (row,) = table.frame[["longest S", "tokens", "padded to", "by", "padded by"]].to_numpy().tolist()
    assert row == [128, 320, 512, "sdpa.flash", "sdpa.flash"]
    assert column(table, "FLOPs ×") == pytest.approx([33024 / 15520], rel=1e-3)
    titles = ("end to end (µs) [95 %]", "padded (µs) [95 %]", "padded over end to end [95 %]")
    titles += ("end to end, eager warm (µs) [95 %]",)
    assert [estimates(table, title)[0] for title in titles] == pytest.approx([8, 32, 4, 13], rel=5e-3)


def test_training():
    table = workloads.training(chosen())
    assert column(table, "implementation") == ["sdpa.auto", "sdpa.flash", "sdpa.math", "peer.flex"]
    assert estimates(table, "median_us") == pytest.approx([100, 80, 400, 200], rel=5e-3)
    over = column(table, "over sdpa.auto [95 %]")
    assert over[0] is None
    assert [ratio.estimate for ratio in over[1:]] == pytest.approx([1.25, 0.25, 0.5], rel=5e-3)
    # 3.5 * 2 * 2 * 4 * 128 * 129 * 64 FLOPs in 100 us
    assert column(table, "throughput_tflops")[0] == pytest.approx(0.592, rel=5e-3)


def test_training_without_the_baseline_keeps_the_others():
    lost = replace(synthetic.CHOICES, fates={("sdpa.auto", synthetic.TRAINED): synthetic.GONE})
    sweeps = {"training seq_len": synthetic.CHOICES.study["sweeps"]["training seq_len"]}
    sweeps |= {"seq_len": [AXES | {"seq_len": 128}]}
    table = workloads.training(synthetic.infer(replace(lost, study=lost.study | {"sweeps": sweeps})))
    assert column(table, "implementation") == ["sdpa.flash", "sdpa.math", "peer.flex", "peer.flash4"]
    assert column(table, "over sdpa.auto [95 %]") == [None] * 4


# ----------------------------------------------------------------------------------------------------------- peers


def test_what_each_supports_in_a_word():
    table = peers.support(chosen())
    frame = table.frame.set_index("implementation")
    assert list(frame.columns) == ["plain", "decode", "end to end", "training", "same bits alone"]
    assert table.note.startswith("All serve what is not shown: batch, grid, grouped and padded. ")
    assert frame.loc["sdpa.flash", ["plain", "decode", "training"]].tolist() == ["yes"] * 3
    assert frame.loc["sdpa.flash", "end to end"] == "1 of 2"
    assert frame.loc["sdpa.auto", "end to end"] == "failed"
    assert frame.loc["peer.flex", "decode"] == "out of memory"
    assert frame.loc["peer.flash4", ["plain", "training"]].tolist() == ["2 of 3", "no"]


def test_what_was_not_reached_is_not_tried():
    begun = synthetic.infer(replace(synthetic.CHOICES, shapes=1))
    assert set(peers.support(begun).frame["training"]) == {"not tried"}
    assert set(peers.support(begun).frame["plain"]) == {"1 of 3"}


def test_what_took_too_long_is_supported_and_the_worst_replicate_is_what_is_said():
    run = chosen().run
    late = run.cases["direction"].eq("training") & run.cases["implementation"].eq("peer.flash4")
    reason = run.cases["reason"].mask(late, "one call takes 31 ms, longer than the study's longest_call_ms of 20")
    cases = run.cases.assign(status=run.cases["status"].mask(late, "skipped"), reason=reason)
    frame = peers.support(changed(chosen(), cases=cases)).frame.set_index("implementation")
    assert frame.loc["peer.flash4", "training"] == "too slow to time"
    failed = cases.assign(status=cases["status"].mask(late & cases["replicate"].eq(1), "failed"))
    frame = peers.support(changed(chosen(), cases=failed)).frame.set_index("implementation")
    assert frame.loc["peer.flash4", "training"] == "failed"


def alone(differing: dict[str, list[int | None]]) -> list[str | None]:
    """The last column, where a sequence alone differed in so many elements, in either replicate at each of `ASKED`.

    Args:
        differing: by implementation; of others nothing was asked.
    """
    cases = chosen().run.cases
    asked = pd.Series(pd.NA, cases.index, "Int64")
    for name, counts in differing.items():
        places = [(shape, replicate) for shape in ASKED for replicate in (0, 1)]
        for (shape, replicate), count in zip(places, counts, strict=True):
            mine = schema.is_of(cases, shape) & cases["implementation"].eq(name) & cases["replicate"].eq(replicate)
            assert mine.sum() == 1
            asked[mine] = pd.NA if count is None else count
    run = changed(chosen(), cases=cases.assign(alone_differing=asked))
    return column(peers.support(run), "same bits alone")


ASKED = (TARGET, DOUBLE)
NOTHING = dict.fromkeys(synthetic.BACKENDS[1:])
"""Of whom nothing is known but for the baseline."""


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ([0, 0, 0, 0], "yes"),
        ([0, 0, None, None], "yes"),
        ([0, 0, 0, 7], "1 of 2"),
        ([0, 0, 7, None], "1 of 2"),
        ([3, 7, 1, 1], "0 of 2"),
        ([0, 7, None, None], "0 of 1"),
        ([None, None, None, None], None),
    ],
    ids=["everywhere", "asked at one", "one differs", "asked once", "nowhere", "nowhere asked", "not asked"],
)
def test_the_last_column_says_at_how_many_shapes_a_sequence_alone_has_the_same_bits(counts, said):
    assert alone({"sdpa.auto": counts}) == [said, *NOTHING.values()]


def test_each_has_a_word_of_its_own_on_a_sequence_alone():
    told = alone({"sdpa.auto": [0, 0, 0, 0], "sdpa.flash": [0, 0, 2, 0], "peer.flex": [5, 5, 5, 5]})
    assert told == ["yes", "1 of 2", None, "0 of 2", None]


# ----------------------------------------------------------------------------------------------------- few queries


GROUPED = Shape(2, 4, 1, 64, causal=True, kv_heads=1)
FEW = {queries: [GROUPED.resized(seq_len=queries, kv_len=keys) for keys in (256, 1024)] for queries in (1, 4, 16)}
GBS = {"sdpa.auto": (88, 40), "sdpa.flash": (22, 40), "sdpa.cudnn": (88, 32), "kernel.best": (80, 60)}
"""The bandwidth of each, with one query and with several."""
PLAIN_QUERY = FEW[1][1].resized(causal=False)
DECODED = Recipe(
    study=AT_TARGET
    | {
        "implementations": list(GBS),
        "sweeps": {
            "seq_len": [AXES | {"seq_len": 128}],
            "few kv_len": [AXES | {"seq_len": [1, 4, 16], "causal": True, "kv_heads": 1, "kv_len": [256, 1024]}],
            "one query kv_len": [AXES | {"seq_len": 1, "kv_heads": 1, "kv_len": 1024}],
        },
    },
    latencies_us={
        (name, shape): shape.bytes / gbs[queries > 1] / 1e3
        for name, gbs in GBS.items()
        for queries, shapes in FEW.items()
        for shape in [*shapes, *([PLAIN_QUERY] if queries == 1 else [])]
    },
    fates={("sdpa.flash", FEW[16][1]): GONE},
)


@cache
def decoded() -> Results:
    return synthetic.infer(DECODED)


def test_few_queries_are_drawn_by_bandwidth_below_the_copy_of_memory():
    figure = few.shown(decoded()).parts["bandwidth"]
    near, far = figure.figure.axes
    assert (near.get_title(), far.get_title()) == ("B=2, 256 keys, D=64 *", "B=2, 1,024 keys, D=64")  # 200 kB of L2
    for axes, lost in ((near, []), (far, ["sdpa.flash"])):
        *drawn, copy = axes.get_lines()
        assert list(copy.get_ydata()) == [100, 100]
        for line, (name, (one, several)) in zip(drawn, GBS.items(), strict=True):
            assert list(line.get_xdata()) == [1, 4, 16]
            told = [one, several, np.nan if name in lost else several]
            np.testing.assert_allclose(line.get_ydata(), told, rtol=5e-3)
    assert "the measured copy of memory, 100 GB/s; a star marks what a warm L2 may hold." in figure.caption


def test_where_few_queries_are_ahead_and_where_behind_is_said():
    one, several = groups(decoded())
    # of the one query over 1024 keys, under the mask and without, one is counted
    assert (one.queries, len(one.where(1)), len(one.where(-1)), one.ahead_of_it) == ((1, 1), 0, 2, ["sdpa.cudnn"])
    # of the four shapes of several, the gate refused sdpa.flash at one
    assert (several.queries, several.ahead, several.where(-1)) == ((4, 16), 3, [])
    found = [[*one.ends, *one.ours_gbs, *one.others_gbs], [*several.ends]]
    assert found == [
        pytest.approx([80 / 88] * 2 + [80] * 2 + [88] * 2, rel=5e-3),
        pytest.approx([1.5, 1.5], rel=5e-3),  # 60 / 32 at the shape that is not counted
    ]
    told = few.shown(decoded()).parts["said"].markdown
    assert "Of few queries over more keys 6 shapes were timed; " in told  # one query under the mask is one without it
    assert "at 80.0 GB/s (up to 80 % of the measured copy" in told


def test_where_few_queries_lag_most_is_a_finding():
    told = few.in_short(decoded(), None)
    assert "behind at 2, where `sdpa.cudnn` is the fastest, most at B=2 H=" in told
    assert told.count("most at") == 1
    assert re.search(r": a ratio of 0\.90\d* \[0\.\d+, 0\.\d+\]\.", told)
    assert few.ahead_of_it(decoded()) == ["sdpa.cudnn"]
    assert few.ahead_of_it(inferred()) == []


def test_most_behind_is_a_shape_at_which_that_is_certain():
    one, _ = groups(decoded())
    (least, uncertain), (lag, certain) = one.by_shape.items()
    ratios = replace(uncertain.ratio, estimate=0.9, low=0.8, high=1.1), replace(certain.ratio, estimate=0.95, high=0.96)
    leads = replace(uncertain, ratio=ratios[0]), replace(certain, ratio=ratios[1])
    found = replace(one, by_shape=dict(zip((least, lag), leads, strict=True)))
    assert (found.worst, found.where(-1), found.most_behind) == (least, [lag], lag)


def test_where_the_gate_refused_another_there_is_no_lead_at_few_queries():
    (lost,) = refusals(decoded())["sdpa.flash"]
    assert all(lost not in group.by_shape for group in groups(decoded()))  # nor does its bandwidth count
    assert few.in_short(decoded(), None).endswith("Not counted is 1 shape at which the gate refused `sdpa.flash`.")
    cases = decoded().run.cases
    skipped = changed(decoded(), cases=cases.assign(status=cases["status"].replace("failed", "skipped")))
    assert any(lost in group.by_shape for group in groups(skipped))
    assert "refused" not in few.in_short(skipped, None)


def test_few_queries_are_a_finding_of_the_run_itself_or_of_another():
    ours, other = "**Few queries.** With one query, the fastest", f"(Run `{decoded().run.name}` of"
    box = Show(decoded())("verdicts.findings").content.text
    assert ours in box
    assert other not in box
    beside = changed(inferred(), name="mine")
    box = Show(beside, {"decoded": decoded})("verdicts.findings").content.text
    assert ours in box
    assert other in box
    assert "Few queries" not in Show(inferred())("verdicts.findings").content.text


def test_what_serves_few_queries_is_told_by_the_run_that_has_them():
    other = changed(decoded(), name="few")
    frame = peers.support(chosen(), other).frame.set_index("implementation")
    assert frame.loc[["sdpa.flash", "kernel.best"], "few queries"].tolist() == ["6 of 7", "yes"]
    assert frame.loc["peer.flex", ["few queries"]].isna().all()
    assert "few queries" not in peers.support(chosen(), inferred()).frame


def test_every_implementation_has_its_median_at_every_shape():
    frame = peers.beside(chosen()).frame.set_index("shape")
    among = chosen().study.shapes
    assert list(frame.index) == [formats.shapes([shape], among) for shape in among if not chosen().at(shape).empty]
    row = frame.loc[formats.shapes([TARGET], among)].astype(float)
    assert row.dropna().to_dict() == pytest.approx(chosen().at(TARGET)["median_us"].to_dict())


def test_dots_have_a_shape_of_each_kind_of_call_and_nothing_far_slower():
    (axes,) = peers.dots(chosen()).figure.axes
    compared = chosen().families_under(chosen().headline)
    drawn = peers.of_each_kind(compared)
    assert {(one.causal, one.kv_heads < one.heads, one.direction, one.lengths, one.seq_len == 1) for one in drawn} == {
        (one.causal, one.kv_heads < one.heads, one.direction, one.lengths, one.seq_len == 1) for one in compared
    }
    assert len(drawn) < len(compared)
    rows = [label.get_text() for label in axes.get_yticklabels()]
    assert rows == [formats.shapes([shape], chosen().study.shapes) for shape in drawn]
    assert min(x for line in axes.lines for x in line.get_xdata()) > 1 / peers.FAR
    assert min(v.speedup.estimate for shape in drawn for v in compared[shape].verdicts.values()) < 1 / peers.FAR
    assert "`sdpa.flash` is faster at" in peers.dots(chosen()).caption


# ------------------------------------------------------------------------------------------------------------ runs


def test_each_run_that_the_page_shows_is_named_once():
    named = {name: changed(chosen(), name=name) for name in ("grid", "served")}
    parts = runs.run(inferred(), choices=named["grid"], decoded=named["grid"], attended=named["served"]).parts
    assert list(parts) == [f"{name}.{what}" for name in ("grid", "served") for what in ("run", "lacking", "cases")]
    assert "The run `grid` was recorded on" in parts["grid.run"].markdown
    assert next(iter(runs.run(inferred()).parts)) == "synthetic.run"
