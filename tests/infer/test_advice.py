"""Rules that follow from verdicts, and the cheapest settings, by chosen latencies."""

from dataclasses import replace

import pytest
import synthetic
from synthetic import AXES, DOUBLE, TARGET, Recipe, chosen

from attnlab.infer.backends import advice, settings
from attnlab.infer.backends.advice import HARDLY, Rule
from attnlab.infer.results import Results
from attnlab.infer.stats import Interval
from attnlab.study.studies import Timing

DEVICE = Timing(clock="device", cache="warm")


def ruled(results: Results, *kinds: str) -> list[Rule]:
    return [rule for rule in advice.rules(results) if rule.kind in kinds and rule.timing == DEVICE]


def two(lengths: list[int], latencies_us=None, names=("sdpa.auto", "sdpa.flash")) -> Results:
    study = {"implementations": list(names), "sweeps": {"seq_len": [AXES | {"seq_len": lengths}]}}
    return synthetic.infer(Recipe(study=study, latencies_us=latencies_us or {}, fates={}))


def test_what_to_use_is_the_fastest_of_the_faster_with_its_weakest_comparison():
    # flash-attn-4 is faster by 1.05 nearly everywhere, and never the fastest
    (use,) = ruled(chosen(), "use")
    assert use.name == "sdpa.flash"
    assert DOUBLE not in use.shapes  # there flash is slower
    assert use.verdict.speedup.estimate == pytest.approx(1.25, rel=1e-3)


@pytest.mark.parametrize(("pace", "kind"), [(0.8, "use"), (0.95, "little to gain")])
def test_advice_is_worth_what_the_speedup_is(pace, kind, monkeypatch):
    monkeypatch.setitem(synthetic.PACE, "peer.flash4", pace)
    study = {"implementations": ["sdpa.auto", "peer.flash4"], "sweeps": synthetic.STUDY["sweeps"]}
    (rule,) = ruled(synthetic.infer(Recipe(study=study, fates={})), *advice.WORTH)
    assert (rule.kind, rule.name) == (kind, "peer.flash4")
    assert rule.verdict.speedup.estimate == pytest.approx(1 / pace, rel=1e-3)


def test_what_may_not_be_claimed_is_no_advice_to_use():
    verdict = chosen().compare("sdpa.flash", TARGET)
    assert advice.worth(verdict) == "use"
    assert advice.worth(replace(verdict, claimable=False)) == "not claimable"
    for speedup, worth in (
        (1.1, "not claimable"),
        (1.099, "little to gain"),
        (1.021, "little to gain"),
        (1.02, HARDLY),
    ):
        small = replace(verdict, claimable=False, speedup=Interval(speedup, 1.013, 1.2))
        assert advice.worth(small) == worth


def test_advice_says_where_another_timing_says_slower():
    study = synthetic.AT_TARGET | {
        "implementations": ["sdpa.auto", "sdpa.flash"],
        "timings": synthetic.STUDY["timings"],
    }
    of = synthetic.infer(Recipe(study=study, fates={}))
    samples = of.run.samples
    launched = (samples["implementation"] == "sdpa.flash") & (samples["clock"] == "eager")
    run = replace(of.run, samples=samples.assign(latency_us=samples["latency_us"] + 20.0 * launched))
    (use,) = ruled(Results(run, synthetic.cases.infer(run)), "use")
    assert use.slower == {Timing(clock="eager", cache="warm"): [TARGET]}
    assert ruled(of, "use")[0].slower == {}


def test_what_to_avoid_is_slower_everywhere():
    # two lengths of decoding ran out of memory, two shapes have no baseline, of 20
    families = chosen().families_under(DEVICE).values()
    (avoid,) = ruled(chosen(), "avoid")  # not math, which is faster at S=64
    assert avoid.name == "peer.flex"
    assert len(avoid.shapes) == sum("peer.flex" in family.verdicts for family in families)
    assert (avoid.weakest, avoid.verdict.speedup.estimate) == (DOUBLE, pytest.approx(0.8))


def test_a_crossover_has_both_comparisons():
    found = [(rule.name, rule.kind, rule.weakest.seq_len, rule.verdict.decision) for rule in ruled(chosen(), *TURN)]
    assert found == [
        ("sdpa.flash", "up to", 128, "faster"),
        ("sdpa.flash", "from", 256, "slower"),
        ("sdpa.math", "up to", 64, "faster"),
        ("sdpa.math", "from", 128, "slower"),
    ]


TURN = (advice.UP_TO, advice.FROM)


def test_a_sweep_that_is_stated_backwards_crosses_over_forwards():
    # at 128 the two are the same, which decides nothing
    backwards = two([256, 128, 64], {("sdpa.flash", DOUBLE): 200.0, ("sdpa.flash", TARGET): 40.0})
    assert [(rule.kind, rule.weakest.seq_len) for rule in ruled(backwards, *TURN)] == [("up to", 64), ("from", 256)]


def test_where_nothing_is_decided_there_is_no_rule():
    same = two([64, 128], names=("sdpa.auto", "sdpa.cudnn"))
    assert advice.rules(same) == []
    assert {(one.shapes, one.faster, one.most) for one in advice.gains(same)} == {(2, 0, None)}


def test_how_often_the_baseline_is_not_the_fastest():
    gains = advice.gains(chosen())[0]
    # at the shape with one head of keys 20 us against 4; at S=256 nothing is faster; those end to end have no baseline
    assert gains.timing == DEVICE
    assert gains.shapes == len(chosen().study.shapes) - 2
    assert gains.faster == gains.shapes - 1
    assert gains.most.estimate == pytest.approx(5, rel=1e-3)
    assert gains.at.kv_heads == 1


def test_the_cheapest_setting_and_those_not_distinguished_from_it():
    four, eight = settings.cheapest(chosen(), settings.GRID)
    # flash takes 40 us * 0.8 * (H/4) * (S/128)^2 * B/2: 62.5 ns a token at H=4 and S=64 whatever the batch is
    assert (four.among, four.least.name, four.least.shape.batch, four.least.shape.seq_len) == (4, "sdpa.flash", 2, 64)
    assert [(other.shape.batch, other.shape.seq_len) for other in four.same] == [(4, 64)]
    assert eight.least.per_token_ns().estimate == pytest.approx(100, rel=1e-3)
    assert eight.same == []
