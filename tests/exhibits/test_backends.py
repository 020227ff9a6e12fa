"""Choosing a backend: what a token takes, what follows from the verdicts and what it costs, worked by hand."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import synthetic
from reading import column, first_number, html, plain
from synthetic import AXES, DOUBLE, TARGET, Recipe, chosen, climbed, inferred, lonely

from attnlab.base.errors import UserError
from attnlab.exhibits import catalogue
from attnlab.exhibits.backends import advice, calls, choosing, cost, peers
from attnlab.exhibits.catalogue import Show
from attnlab.exhibits.display import Figure, Prose, Table
from attnlab.infer.backends import settings
from attnlab.infer.results import Results
from attnlab.infer.stats import Interval
from attnlab.runs import schema

SHOWN = [
    id for id, shown in catalogue.every().items() if shown.make.__module__.startswith("attnlab.exhibits.backends.")
]
PRICED = {"backends.cost": {"price_per_hour": 3.0}}
LACKING = {
    "backends.choice.heads": "has no sweep “heads”",
    "backends.choice.grid": "has no sweep “grid seq_len”",
    "backends.settled": "has no sweep “grid seq_len”",
    "backends.rules": "No verdict of this run is faster or slower",
    "backends.summary": "`sdpa.auto` was compared with nothing",
    "backends.energy": "No load without pause was recorded with its power",
    "backends.grouped": "has no sweep “grouped kv_heads”",
    "backends.decode": "has no sweep “decode kv_len”",
    "backends.ragged": "has no sweep “end to end seq_len”",
    "backends.on_the_host": "has no sweep “end to end seq_len”",
    "backends.training": "has no sweep “training seq_len”",
    "backends.attend.chosen": "There is no dispatch table for Imaginary X1",
    "backends.attend.held": "`dispatch.attend` was not measured against `sdpa.auto`",
    "backends.attend.stream": "No stream of requests to `dispatch.attend` and `sdpa.auto` was recorded",
    "backends.attend.overhead": "No stream of requests to `dispatch.attend` and `sdpa.auto` was recorded",
    "backends.peers.support": "This run measured no peer: the study `peers` does",
    "backends.peers.beside": "This run measured no peer: the study `peers` does",
}


def words(shown) -> str:
    return plain(shown) + (shown.note + shown.caption if isinstance(shown, Table) else "")


def rows_of(table: Table, *titles: str) -> list[list[str]]:
    return table.frame[list(titles)].to_numpy().tolist()


def two_lengths(*lengths: int, baseline=1.0, timings=synthetic.STUDY["timings"], **study) -> Results:
    """A run of two backends at few lengths, of which the shortest takes the baseline so many times as long."""
    shortest = replace(TARGET, seq_len=min(lengths), kv_len=0)
    recipe = Recipe(
        study={
            "implementations": ["sdpa.auto", "sdpa.flash"],
            "timings": timings,
            "replicates": 2,
            "sweeps": {"seq_len": [AXES | {"seq_len": list(lengths)}]},
        }
        | study,
        latencies_us={("sdpa.auto", shortest): baseline * synthetic.latency_us("sdpa.auto", shortest)},
        fates={},
    )
    return synthetic.infer(recipe)


# ---------------------------------------------------------------------------------------------------- all of them


@pytest.mark.parametrize("run", [inferred, lonely, chosen, climbed])
@pytest.mark.parametrize("id", SHOWN)
def test_whatever_a_run_lacks_it_is_told_in_words(run, id, data):
    shown = Show(run())(id, **PRICED.get(id, {})).content
    assert isinstance(shown, Figure | Prose | Table)
    assert not re.search(
        r"\b(nan|NaN|None|inf|<NA>)\b|\b1 (?:shapes|heads|KV heads|keys|settings|requests)\b", words(shown)
    )
    if isinstance(shown, Prose):
        assert shown.markdown.rstrip("*").endswith(".")


@pytest.mark.parametrize(("id", "told"), LACKING.items())
def test_the_sentence_names_what_is_missing(id, told, data):
    shown = Show(lonely())(id).content
    assert isinstance(shown, Prose)
    assert told in shown.markdown
    assert shown.markdown.startswith("*")


# -------------------------------------------------------------------------------------------------------- backends


def test_what_a_token_takes_along_a_sweep():
    table = choosing.choice(chosen(), "seq_len")
    assert list(table.frame.columns)[:2] == ["S", "fastest"]
    assert column(table, "S") == [64, 128, 256]
    assert column(table, "fastest") == ["sdpa.flash\nor sdpa.math", "sdpa.flash", "sdpa.auto"]
    # 2 sequences of S tokens in 8, 32 and 160 us
    assert [first_number(cell) for cell in column(table, "call (µs) [95 %]")] == [8, 32, 160]
    assert column(table, "10³ sequences/s") == ["250", "62.5", "12.5"]
    assert column(table, "10⁶ tokens/s") == ["16.0", "8.00", "3.20"]
    assert [first_number(cell) for cell in column(table, "ns a token [95 %]")] == [62.5, 125, 312.5]
    assert table.highlight == 0
    assert "(B=2, H=4, D=64, float16)" in table.caption


def test_an_interval_of_what_a_token_takes_is_that_of_the_call():
    setting = settings.best(chosen(), TARGET)
    row = chosen().row("sdpa.flash", TARGET)
    ns = setting.per_token_ns()
    assert [ns.low, ns.high] == pytest.approx([1e3 * row["low_us"] / 256, 1e3 * row["high_us"] / 256])
    assert ns.low < 125 < ns.high


def test_settings_of_other_heads_are_not_set_against_each_other():
    table = choosing.choice(chosen(), "grid seq_len")
    assert table.highlight is None
    assert rows_of(table, "S", "B", "H")[0] == [64, 2, 4]
    assert len(table.frame) == 8
    assert choosing.choice(inferred(), "heads").highlight is None
    assert "(B=2, S=128, D=64, float16)" in choosing.choice(inferred(), "heads").caption


def test_the_cheapest_setting_and_those_not_distinguished_from_it():
    told = choosing.settled(chosen()).markdown
    four, eight = told.split(" Of the 4 settings of the grid with H=8, the ")
    # flash takes 40 us * 0.8 * (H/4) * (S/128)^2 * B/2: 62.5 ns a token at H=4 and S=64 whatever the batch is
    assert four.startswith(
        "Of the 4 settings of the grid with H=4, the time per token is least at B=2, S=64, by `sdpa.flash`"
    )
    assert four.endswith("it is not distinguished from B=4, S=64 (`sdpa.flash`).")
    assert eight.startswith("time per token is least at B=4, S=64, by `sdpa.flash`: 100.000 [")
    assert eight.endswith("It is more at every other, by the 95 % interval of the ratio.")


def test_a_grid_of_one_setting_settles_nothing():
    one = two_lengths(64, 128, sweeps={"grid seq_len": [AXES | {"seq_len": 128}]})
    assert choosing.settled(one).markdown == "With H=4, the grid has one setting that was timed, B=2, S=128."


def test_a_setting_without_the_baseline_says_why():
    note = choosing.choice(chosen(), "end to end seq_len").note
    assert (
        "`sdpa.auto` has no latency at (4, 4, 128, 64) float16, causal, spread lengths: failed, before timing" in note
    )
    assert "has no latency" not in choosing.choice(chosen(), "seq_len").note


def test_a_line_for_each_backend():
    figure = choosing.tokens(chosen())
    (axes,) = figure.figure.axes
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.lines if len(line.get_xdata()) > 1}
    assert lines["sdpa.auto"] == [[64, 78.125], [128, 156.25], [256, 312.5]]
    assert [x for x, _ in lines["peer.flash4"]] == [64, 128]  # it failed at 256


def test_what_a_shorter_sequence_saves():
    told = choosing.length(chosen()).markdown
    # 10 us for 128 tokens, 40 us for 256
    assert "at S=64 is 4.00 times as fast as one at S=128, with 25 % of its FLOPs and 50 % of its tokens." in told
    assert re.search(r"A token takes 2\.0000 \[1\.99\d+, 2\.00\d+\] times as long at the longer: that is what a", told)


@pytest.mark.parametrize(
    ("slower", "told"),
    [
        (1.0, "that is what a shorter sequence saves, and only where"),
        (2.0, "the time per token is not distinguished between the two"),
        (4.0, "the shorter sequence saves nothing, and a token takes more in it"),
    ],
)
def test_a_shorter_sequence_may_save_nothing(slower, told):
    # twice the ordinary 10 us is what half the tokens of the target take at its rate
    assert told in choosing.length(two_lengths(128, 64, baseline=slower)).markdown


def test_only_what_is_shorter_is_called_so():
    longer = two_lengths(128, 256)
    for show in (choosing.length, choosing.chunking):
        assert "No shape in the sweep “seq_len” is the target with a shorter sequence" in show(longer).markdown
    assert "at S=64 is" in choosing.length(two_lengths(256, 128, 64)).markdown


def test_chunks_that_divide_nothing_and_a_causal_target():
    assert "no divisor of the target's length" in choosing.chunking(two_lengths(96, 128)).markdown
    masked = AXES | {"causal": True}
    causal = two_lengths(
        64, 128, target=masked | {"seq_len": 128}, sweeps={"seq_len": [masked | {"seq_len": [64, 128]}]}
    )
    assert "computed without the causal mask, which the target has" in choosing.chunking(causal).markdown


def test_chunking_is_told_with_its_error_and_its_cost():
    told = choosing.chunking(chosen()).markdown
    error, scale = settings.error(128, 64, 64)
    assert f"the root mean square of its error is {error:.3f}, and that of the right output {scale:.3f}" in told
    assert f"an error of {100 * error / scale:.0f} %" in told
    assert "2 calls at S=64 take 20.0 µs by `sdpa.auto`, one at S=128 40.0 µs" in told


def test_the_error_of_chunks_is_that_of_another_computation():
    q, k, v = np.random.default_rng(settings.SEED).standard_normal((3, settings.HEADS, 12, 8))
    differences, outputs = [], []
    for head in range(settings.HEADS):
        for row in range(12):
            first = row // 4 * 4
            right, cut = (
                _row(q[head, row], k[head, keys], v[head, keys]) for keys in (range(12), range(first, first + 4))
            )
            differences += list(cut - right)
            outputs += list(right)
    expected = [np.linalg.norm(values) / np.sqrt(len(values)) for values in (differences, outputs)]
    assert settings.error(12, 4, 8) == pytest.approx(expected)


def _row(query, keys, values):
    scores = [sum(a * b for a, b in zip(query, key, strict=True)) / len(query) ** 0.5 for key in keys]
    weights = [np.exp(score) for score in scores]
    return sum(weight * value for weight, value in zip(weights, values, strict=True)) / sum(weights)


def test_one_chunk_is_the_whole():
    error, scale = settings.error(32, 32, 16)
    assert error == 0
    assert scale > 0


# ---------------------------------------------------------------------------------------------------------- advice


def ruled(results: Results, kind: str, clock: str = "device") -> dict[str, list[str]]:
    rules = advice.rules(results).frame
    kept = rules[(rules["kind"] == kind) & rules["where"].str.contains(f"{clock} clock")]
    return {row.rule: [row.where, row.backing] for row in kept.itertuples()}


def test_what_to_use_is_the_fastest_of_the_faster_with_its_weakest_comparison():
    use = ruled(chosen(), "use")
    (where, backing) = use.pop("sdpa.flash")
    assert not use  # flash-attn-4 is faster by 1.05 nearly everywhere, and never the fastest
    assert "S=256" not in where.replace("B=4 H=4 S=256, causal", "")  # there flash is slower
    assert backing.startswith("1.25")


@pytest.mark.parametrize(("pace", "kind"), [(0.8, "use"), (0.95, "little to gain"), (0.97, "little to gain")])
def test_advice_is_worth_what_the_speedup_is(pace, kind, monkeypatch):
    monkeypatch.setitem(synthetic.PACE, "peer.flash4", pace)
    study = {"implementations": ["sdpa.auto", "peer.flash4"], "sweeps": synthetic.STUDY["sweeps"]}
    frame = advice.rules(synthetic.infer(Recipe(study=study, fates={}))).frame
    by_device = frame[frame["where"].str.endswith("device clock, warm cache") & (frame["rule"] == "peer.flash4")]
    assert by_device["kind"].tolist() == [kind]
    assert by_device["backing"].iloc[0].startswith(f"{1 / pace:.2f}"[:4])


def test_a_large_gain_that_may_not_be_claimed_is_no_advice_to_use():
    verdict = chosen().compare("sdpa.flash", TARGET)
    assert advice._worth(replace(verdict, claimable=False)) == "not claimable"
    assert advice._worth(verdict) == "use"


def test_a_gain_within_the_margin_hardly_matters():
    verdict = replace(chosen().compare("sdpa.flash", TARGET), claimable=False, speedup=Interval(1.019, 1.013, 1.026))
    assert advice._worth(verdict) == "hardly matters"


def test_advice_says_where_another_timing_says_slower():
    study = synthetic.AT_TARGET | {
        "implementations": ["sdpa.auto", "sdpa.flash"],
        "timings": synthetic.STUDY["timings"],
    }
    of = synthetic.infer(Recipe(study=study, fates={}))
    samples = of.run.samples
    launched = (samples["implementation"] == "sdpa.flash") & (samples["clock"] == "eager")
    run = replace(of.run, samples=samples.assign(latency_us=samples["latency_us"] + 20.0 * launched))
    frame = advice.rules(Results(run, synthetic.cases.infer(run))).frame
    use = frame[frame["kind"] == "use"].iloc[0]
    assert use["but"] == "slower at B=2 H=4 S=128; eager clock, warm cache"
    assert "but" not in advice.rules(of).frame


def test_what_to_avoid_is_slower_everywhere():
    avoid = ruled(chosen(), "avoid")
    # two lengths of decoding ran out of memory, two shapes have no baseline, of 20
    compared = sum(
        "peer.flex" in family.verdicts for (_, t), family in chosen().families.items() if t.clock == "device"
    )
    assert set(avoid) == {"peer.flex"}  # not math, which is faster at S=64
    assert avoid["peer.flex"][0] == f"at all {compared} shapes compared, device clock, warm cache"
    assert avoid["peer.flex"][1] == "0.8000 [0.8000, 0.8000] at (2, 4, 256, 64) float16"


def test_one_shape_is_not_all_shapes():
    one = synthetic.infer(
        Recipe(
            study={
                "implementations": ["sdpa.auto", "sdpa.math"],
                "sweeps": {"seq_len": [AXES | {"seq_len": 128}]},
            },
            fates={},
        )
    )
    assert ruled(one, "avoid")["sdpa.math"][0].startswith("at the only shape compared, ")


def test_a_crossover_has_both_comparisons():
    crossovers = ruled(chosen(), "crossover")
    assert set(crossovers) == {
        "sdpa.flash: faster up to S=128, slower from 256 on",
        "sdpa.math: faster up to S=64, slower from 128 on",
    }
    where, backing = crossovers["sdpa.flash: faster up to S=128, slower from 256 on"]
    assert where == "sweep “seq_len”, device clock, warm cache"
    assert re.fullmatch(
        r"1\.25\S+ \[.*\] at \(2, 4, 128, 64\) float16; 0\.80\S+ \[.*\] at \(2, 4, 256, 64\) float16", backing
    )


def test_a_sweep_that_is_stated_backwards_crosses_over_forwards():
    backwards = Recipe(
        study={
            "implementations": ["sdpa.auto", "sdpa.flash"],
            "sweeps": {"seq_len": [AXES | {"seq_len": [256, 128, 64]}]},
        },
        latencies_us={("sdpa.flash", DOUBLE): 200.0, ("sdpa.flash", TARGET): 40.0},
        fates={},
    )
    # at 128 the two are the same, which decides nothing
    assert list(ruled(synthetic.infer(backwards), "crossover")) == ["sdpa.flash: faster up to S=64, slower from 256 on"]


def test_where_nothing_is_decided_there_is_no_rule():
    same = Recipe(
        study={
            "implementations": ["sdpa.auto", "sdpa.cudnn"],
            "sweeps": {"seq_len": [AXES | {"seq_len": [64, 128]}]},
        },
        fates={},
    )
    results = synthetic.infer(same)
    assert "No verdict of this run is faster or slower" in advice.rules(results).markdown
    told = advice.summary(results).markdown
    assert told.count("another implementation is faster at 0 of 2 shapes") == 2
    assert "at most" not in told


def test_how_often_the_baseline_is_not_the_fastest():
    told = advice.summary(chosen()).markdown
    # at the shape with one head of keys 20 us against 4; at S=256 nothing is faster
    families = [family for (_, timing), family in chosen().families.items() if timing.clock == "device"]
    assert len(families) == len(chosen().study.shapes) - 2  # those end to end have no baseline
    claimed = sum(any(verdict.claimable for verdict in family.verdicts.values()) for family in families)
    assert (
        f"by the device clock, warm cache, another implementation is faster at {len(families) - 1} of "
        f"{len(families)} shapes, claimable at {claimed}, 5.00 times at most, at (2, 4, 128, 64) float16, causal, "
        "1 KV head;"
    ) in told


# ------------------------------------------------------------------------------------------------------------ cost


def test_what_calls_cost():
    table = cost.table(chosen(), 3.6)  # 1e-9 $ a us
    assert column(table, "fastest") == ["sdpa.flash", "sdpa.flash", "sdpa.auto"]
    # 500 000 calls of 8, 32 and 160 us; and 1e9 / 128, 256 and 512 of them
    assert [first_number(cell) for cell in column(table, "$ a million sequences")] == [0.004, 0.016, 0.08]
    assert [first_number(cell) for cell in column(table, "$ a billion tokens")] == [0.0625, 0.125, 0.3125]
    assert "At 3.6 $ an hour" in table.note
    dear = cost.table(chosen(), 36)
    assert [first_number(cell) for cell in column(dear, "$ a billion tokens")] == [0.625, 1.25, 3.125]
    assert column(cost.table(chosen(), 3.6, "batch"), "B") == [1, 2, 4]


@pytest.mark.parametrize("price", ["3", "", None, True, [3], float("nan"), float("inf"), -float("inf"), 0, 0.0, -1])
def test_a_price_that_is_none_is_one_line(price):
    for show in (lambda: cost.table(chosen(), price), lambda: cost.require_price(price)):
        with pytest.raises(
            UserError, match=r"^price_per_hour has to be a number of dollars above zero, not "
        ) as caught:
            show()
        assert len(str(caught.value).splitlines()) == 1


def test_the_energy_of_a_call_is_that_of_the_second_half_of_its_load():
    load = pd.DataFrame({"implementation": "sdpa.flash", **TARGET.axes, "started_s": np.arange(10.0)})
    early = load["started_s"] < 4.5
    load = load.assign(latency_us=np.where(early, 40.0, 50.0), power_w=np.where(early, 100.0, 500.0), why="")
    unread = load.assign(implementation="sdpa.math", power_w=np.nan)
    load = pd.concat([load, unread, load.assign(seq_len=256, kv_len=256, power_w=250.0)], ignore_index=True)
    results = Results(replace(chosen().run, endurance=load), chosen().table)
    table = cost.energy(results)
    assert rows_of(
        table, "implementation", "shape", "call (µs)", "power (W)", "J a call", "µJ a token", "pJ a FLOP"
    ) == [
        # 500 W * 50 us; over 256 tokens; over 4 * 2 * 4 * 128^2 * 64 FLOPs
        ["sdpa.flash", "(2, 4, 128, 64) float16", "50.00", "500", "0.0250", "97.7", "745"],
        ["sdpa.flash", "(2, 4, 256, 64) float16", "50.00", "250", "0.0125", "24.4", "93.1"],
    ]


# -------------------------------------------------------------------------------------------------------- variants


def test_what_sharing_keys_and_values_saves():
    told = calls.grouped(chosen()).markdown
    assert told.startswith("With 4 heads of keys and values for 4 of queries, `sdpa.flash` takes 16.0000 [")
    assert re.search(r"with 2 heads of keys and values 8\.0000 \[.*?\] µs, 2\.0000 \[.*?\] times as fast", told)
    assert re.search(r"with 1 head of keys and values 4\.0000 \[.*?\] µs, 4\.0000 \[.*?\] times as fast", told)
    assert "less memory, 4.00 times less in the last case" in told


def test_one_number_of_shared_heads_is_compared_with_nothing():
    one = two_lengths(64, 128, sweeps=SHARED_ONCE)
    assert "Heads that share keys and values have a latency only at (2, 4, 128, 64) float16, 2 KV heads" in (
        calls.grouped(one).markdown
    )


SHARED_ONCE = {
    "seq_len": [AXES | {"seq_len": 128}],
    "grouped kv_heads": [AXES | {"seq_len": 128, "kv_heads": [2]}],
}


def test_decoding_by_the_rate_at_which_memory_is_read():
    told = calls.decode(chosen()).markdown
    # Q and O have 512 elements each, K and V 32768 or 131072 each, of 2 bytes: 133120 B in 2.6624 us, 526336 in 21.0534
    assert "does 3.94 FLOP for each byte" in told  # 4 * 2 * 4 * 256 * 64 / 133120
    assert re.search(r"At 256 keys: `sdpa.flash` 2\.66\d+ \[.*?\] µs, 50\.0 GB/s \(50 % of the measured copy\)", told)
    assert re.search(r"1024 keys: `sdpa.flash` 21\.05\d+ \[.*?\] µs, 25\.0 GB/s \(25 % of the measured copy\)", told)


def test_sequences_of_many_lengths_and_the_same_padded():
    table = calls.ragged(chosen())
    # 32 + 64 + 96 + 128 tokens of 4 * 128; 33024 scores a head of 15520; at S=256 nothing passed end to end
    (row,) = rows_of(table, "longest S", "tokens", "padded to", "FLOPs ×", "by", "padded by")
    assert row == [128, "320", "512", "2.13", "sdpa.flash", "sdpa.flash"]
    (saves,), (packed,), (padded,) = (
        [first_number(cell) for cell in column(table, title)]
        for title in ("padded over end to end [95 %]", "end to end (µs) [95 %]", "padded (µs) [95 %]")
    )
    assert (packed, padded, saves) == (8, 32, 4)


def test_what_nested_tensors_take_of_the_host():
    told = calls.on_the_host(chosen()).markdown
    assert re.search(r"at S=128 `sdpa.flash` takes 13\.\d+ \[.*?\] µs by the eager clock, warm cache, 8\.0", told)
    alone = two_lengths(
        64,
        128,
        timings=synthetic.STUDY["timings"][1:],
        sweeps={
            "seq_len": [AXES | {"seq_len": 128}],
            "end to end seq_len": [AXES | {"seq_len": 128, "causal": True, "lengths": "spread"}],
        },
    )
    assert "timed by the eager clock, warm cache and another clock" in calls.on_the_host(alone).markdown


def test_training():
    table = calls.training(chosen())
    assert rows_of(table, "S", "implementation") == [
        [128, n] for n in ("sdpa.auto", "sdpa.flash", "sdpa.math", "peer.flex")
    ]
    latencies = [first_number(cell) for cell in column(table, "forward and backward (µs) [95 %]")]
    assert latencies == [100, 80, 400, 200]
    assert column(table, "over sdpa.auto")[0] is None
    assert [first_number(cell) for cell in column(table, "over sdpa.auto")[1:]] == [1.25, 0.25, 0.5]
    # 3.5 * 2 * 2 * 4 * 128 * 129 * 64 FLOPs in 100 us
    assert column(table, "TFLOP/s")[0] == "0.592"


def test_training_without_the_baseline_keeps_the_others():
    lost = replace(synthetic.CHOICES, fates={("sdpa.auto", synthetic.TRAINED): synthetic.GONE})
    sweeps = {"training seq_len": synthetic.CHOICES.study["sweeps"]["training seq_len"]}
    sweeps |= {"seq_len": [AXES | {"seq_len": 128}]}
    table = calls.training(synthetic.infer(replace(lost, study=lost.study | {"sweeps": sweeps})))
    assert column(table, "implementation") == ["sdpa.flash", "sdpa.math", "peer.flex", "peer.flash4"]
    assert column(table, "over sdpa.auto") == [None] * 4


# ----------------------------------------------------------------------------------------------------------- peers


def test_what_each_supports_in_a_word():
    frame = peers.support(chosen()).frame.set_index("implementation")
    assert list(frame.columns) == [
        *("plain", "batch", "grid", "grouped", "decode", "end to end", "padded", "training", "same bits alone")
    ]
    frame = frame.drop(columns="same bits alone")
    assert frame.loc["sdpa.flash"].drop("end to end").tolist() == ["yes"] * 7
    assert frame.loc["sdpa.flash", "end to end"] == "yes, failed"
    assert frame.loc["sdpa.auto", "end to end"] == "failed"
    assert frame.loc["peer.flex", "decode"] == "out of memory"
    assert frame.loc["peer.flash4", ["plain", "training"]].tolist() == ["yes, failed", "no"]
    assert "`peer.flash4`: no gradients on this device." in peers.support(chosen()).note


def test_what_was_not_reached_is_not_tried():
    begun = synthetic.infer(replace(synthetic.CHOICES, shapes=1))
    assert set(peers.support(begun).frame["training"]) == {"not tried"}
    assert set(peers.support(begun).frame["plain"]) == {"yes, not tried"}


def test_the_worst_of_its_replicates_is_what_is_said():
    cases = chosen().run.cases
    late = cases["replicate"].eq(1) & cases["implementation"].eq("peer.flash4") & cases["direction"].eq("training")
    run = replace(chosen().run, cases=cases.assign(status=cases["status"].mask(late, "failed")))
    assert peers.support(Results(run, chosen().table)).frame.set_index("implementation")["training"]["peer.flash4"] == (
        "failed"
    )


def test_what_took_too_long_is_supported():
    run = chosen().run
    late = run.cases["direction"].eq("training") & run.cases["implementation"].eq("peer.flash4")
    reason = run.cases["reason"].mask(late, "one call takes 31 ms, longer than the study's longest_call_ms of 20")
    cases = run.cases.assign(status=run.cases["status"].mask(late, "skipped"), reason=reason)
    frame = peers.support(Results(replace(run, cases=cases), chosen().table)).frame.set_index("implementation")
    assert frame.loc["peer.flash4", "training"] == "too slow to time"
    failed = cases.assign(status=cases["status"].mask(late & cases["replicate"].eq(1), "failed"))
    frame = peers.support(Results(replace(run, cases=failed), chosen().table)).frame.set_index("implementation")
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
    run = replace(chosen().run, cases=cases.assign(alone_differing=asked))
    return column(peers.support(Results(run, chosen().table)), "same bits alone")


ASKED = (TARGET, DOUBLE)
NOTHING = dict.fromkeys(synthetic.BACKENDS[1:])
"""Of whom nothing is known but for the baseline."""


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ([0, 0, 0, 0], "yes"),
        ([0, 0, None, None], "yes"),
        ([0, 0, 0, 7], "at 1 of 2 shapes"),
        ([0, 0, 7, None], "at 1 of 2 shapes"),
        ([3, 7, 1, 1], "at 0 of 2 shapes"),
        ([0, 7, None, None], "at 0 of 1 shape"),
        ([None, None, None, None], None),
    ],
    ids=["everywhere", "asked at one", "one differs", "asked once", "nowhere", "nowhere asked", "not asked"],
)
def test_the_last_column_says_at_how_many_shapes_a_sequence_alone_has_the_same_bits(counts, said):
    assert alone({"sdpa.auto": counts}) == [said, *NOTHING.values()]


def test_each_has_a_word_of_its_own_on_a_sequence_alone():
    told = alone({"sdpa.auto": [0, 0, 0, 0], "sdpa.flash": [0, 0, 2, 0], "peer.flex": [5, 5, 5, 5]})
    assert told == ["yes", "at 1 of 2 shapes", None, "at 0 of 2 shapes", None]


def test_where_nothing_was_asked_of_a_sequence_alone_there_are_dashes():
    assert column(peers.support(chosen()), "same bits alone") == [None] * len(synthetic.BACKENDS)
    rows = html(peers.support(chosen())).tbody("tr")
    assert [row("td")[-1].get_text() for row in rows] == ["—"] * len(synthetic.BACKENDS)


def test_peers_stand_beside_the_baseline():
    frame = peers.beside(chosen()).frame
    there = frame[frame["shape"] == "(2, 4, 64, 64) float16"].set_index("implementation")
    assert list(there.index) == synthetic.BACKENDS
    assert [first_number(cell) for cell in there["median (µs) [95 %]"]] == [10, 8, 8, 20, 9.5]
    assert there["verdict"].tolist()[1:] == ["faster", "faster", "slower", "faster"]
    assert first_number(there["speedup [95 %]"]["peer.flash4"]) == pytest.approx(1 / 0.95, abs=1e-3)
    lost = frame[frame["shape"].str.contains("spread")]
    assert lost["verdict"].isna().all()
    assert len(lost) == 4
