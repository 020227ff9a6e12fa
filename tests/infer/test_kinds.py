"""What is said of a candidate over all kinds of values, from latencies that were chosen."""

from dataclasses import replace

import pytest
import synthetic
from synthetic import AXES, LONG, TARGET, VALUED_US, Recipe, of_kinds, of_values, valued

from attnlab.infer import cases, kinds
from attnlab.infer.kernels import rungs
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import Results
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing

SD, SINK, RISING, ZEROS = (TARGET.resized(values=kind) for kind in ("sd 4", "sink 8", "rising 24", "zeros"))
ALIKE = [TARGET, SD, SINK, RISING]
EAGER = Timing(clock="eager", cache="warm")
PLAIN, TRAINING, SPREAD = Shape(2, 4, 64, 64), TARGET.resized(direction="training"), TARGET.resized(lengths="spread")


@pytest.mark.parametrize(
    ("shape", "alike"),
    [
        *((shape, ALIKE) for shape in (TARGET, SINK, ZEROS)),
        *((alone, [alone]) for alone in (PLAIN, TRAINING, SPREAD)),
        (Shape(1, 1, 16, 64), []),
    ],
)
def test_a_shape_is_alike_on_every_kind_but_zeros(shape, alike):
    assert kinds.shapes(valued(), shape) == alike
    assert {*ALIKE, ZEROS, PLAIN, TRAINING, SPREAD} <= set(valued().study.shapes)


def test_a_kind_on_which_the_baseline_was_not_timed_is_left_out():
    us = {"sdpa.auto": VALUED_US["sdpa.auto"] | {"sd 4": None}, "sdpa.flash": VALUED_US["sdpa.flash"]}
    of = synthetic.infer(of_kinds(us))
    assert kinds.shapes(of, TARGET) == [TARGET, SINK, RISING]
    assert kinds.over(of, "sdpa.flash", TARGET).lacking == []


def test_several_kinds_are_told_by_the_first_of_each_shape_and_zeros_are_none():
    assert kinds.several(valued()) == [TARGET, LONG.resized(values="sd 4")]
    assert kinds.several(synthetic.inferred()) == []
    assert kinds.several(synthetic.infer(of_kinds({"sdpa.auto": {"normal": 40.0, "zeros": 30.0}}))) == []


def test_a_candidate_is_judged_by_its_worst_kind():
    over = kinds.over(valued(), "sdpa.flash", TARGET)
    assert over.candidate == "sdpa.flash"
    assert over.verdicts == {shape: valued().compare("sdpa.flash", shape) for shape in ALIKE}
    assert [verdict.speedup.estimate for verdict in over.verdicts.values()] == pytest.approx([1.6, 1.25, 1, 0.8])
    assert (over.worst, over.best, over.verdict) == (RISING, TARGET, over.verdicts[RISING])
    decided = {decision: over.where(decision) for decision in ("faster", "equivalent", "slower", "inconclusive")}
    assert decided == {"faster": [TARGET, SD], "equivalent": [SINK], "slower": [RISING], "inconclusive": []}
    assert over.disagree


@pytest.mark.parametrize(
    ("flash_us", "decisions", "judged"),
    [((25.0, 40.0), ["faster", "equivalent"], "equivalent"), ((40.0, 50.0), ["equivalent", "slower"], "slower")],
)
def test_it_takes_faster_and_slower_to_disagree(flash_us, decisions, judged):
    of = synthetic.infer(of_kinds({"sdpa.auto": _us(40.0, 40.0), "sdpa.flash": _us(*flash_us)}))
    over = kinds.over(of, "sdpa.flash", TARGET)
    assert [verdict.decision for verdict in over.verdicts.values()] == decisions
    assert (over.disagree, over.verdict.decision) == (False, judged)


def _us(normal: float, sd: float) -> dict[str, float | None]:
    return {"normal": normal, "sd 4": sd}


def test_zeros_are_in_no_verdict_though_they_are_slowest():
    us = {"sdpa.auto": {"normal": 40.0, "zeros": 10.0}, "sdpa.flash": {"normal": 20.0, "zeros": 80.0}}
    over = kinds.over(synthetic.infer(of_kinds(us)), "sdpa.flash", TARGET)
    assert list(over.verdicts) == [TARGET]
    assert over.verdict.decision == "faster"


def test_a_kind_on_which_a_candidate_has_no_latency_is_lacking():
    over = kinds.over(valued(), "sdpa.efficient", TARGET)
    assert over.lacking == [SINK]
    assert list(over.verdicts) == [TARGET, SD, RISING]
    assert over == kinds.over(valued(), "sdpa.efficient", SINK)
    assert kinds.over(valued(), "sdpa.cudnn", TARGET).lacking == []


def test_a_candidate_with_a_latency_on_zeros_alone_was_not_measured():
    assert "sdpa.math" in valued().at(ZEROS).index
    with pytest.raises(NotMeasured, match=r"^`sdpa\.math` has no latency at \(2, 4, 128, 64\) float16, device clock"):
        kinds.over(valued(), "sdpa.math", TARGET)


def test_another_timing_has_a_worst_kind_of_its_own(monkeypatch):
    read = synthetic._read

    def slow_to_launch(name, shape, clock, recipe):
        late = name == "sdpa.flash" and clock == "eager" and shape.values == "normal"
        return read(name, shape, clock, recipe) + 100 * late

    monkeypatch.setattr(synthetic, "_read", slow_to_launch)
    us = {"sdpa.auto": _us(40.0, 40.0), "sdpa.flash": _us(20.0, 30.0)}
    of = synthetic.infer(of_kinds(us, timings=synthetic.STUDY["timings"]))
    assert kinds.over(of, "sdpa.flash", TARGET).worst == SD
    assert kinds.over(of, "sdpa.flash", TARGET, EAGER).worst == TARGET


def test_under_a_timing_that_was_not_recorded_there_are_no_kinds():
    assert kinds.shapes(valued(), TARGET, EAGER) == []
    with pytest.raises(NotMeasured, match=r"has no latency at .* eager clock"):
        kinds.over(valued(), "sdpa.flash", TARGET, EAGER)


def test_values_are_told_apart_where_the_target_is_not_on_normal_ones_and_zeros_count_where_there_is_nothing_else():
    for kind, other, worst in (("sink 8", "sd 4", SD), ("zeros", "zeros", ZEROS)):
        us = {"sdpa.auto": {kind: 40.0, other: 40.0}, "sdpa.flash": {kind: 20.0} | {other: 50.0}}
        of = synthetic.infer(of_kinds(us, target=AXES | {"seq_len": 128, "values": kind}))
        over = kinds.over(of, "sdpa.flash", of.study.target_shape)
        assert (over.worst, over.best) == (worst, of.study.target_shape)


def test_those_whose_verdict_turns_and_the_safest_that_gains_most_on_its_worst_kind_and_lacks_none():
    assert [one.over.candidate for one in kinds.turned(valued(), TARGET)] == ["sdpa.flash"]
    assert kinds.turned(of_values("sdpa.cudnn"), TARGET) == []
    assert kinds.safest(valued(), TARGET).over.candidate == "sdpa.cudnn"
    assert kinds.safest(of_values("sdpa.efficient"), TARGET) is None


@pytest.mark.parametrize(("pace", "slower"), [(0.5, 0), (1.0, 1)])
def test_what_turns_is_told_under_the_other_timings_too(pace, slower):
    us = {"sdpa.auto": _us(40.0, 40.0), "sdpa.flash": _us(20.0, 80.0)}
    of = synthetic.infer(of_kinds(us, timings=synthetic.STUDY["timings"]))
    samples = of.run.samples
    quick = samples["implementation"].eq("sdpa.flash") & samples["clock"].eq("eager")
    latencies = samples["latency_us"].where(~quick, pace * samples["latency_us"])
    run = replace(of.run, samples=samples.assign(latency_us=latencies))
    (found,) = kinds.turned(Results(run, cases.infer(run)), TARGET)
    (other,) = [one for timing, one in found.under.items() if timing.clock == "eager"]
    assert len(other.where("slower")) == slower


def test_the_best_is_told_with_the_rung_that_it_launches_where_that_was_timed_too():
    of = synthetic.infer(Recipe(study={"implementations": ["sdpa.auto", "kernel.wgmma", "kernel.tiled"]}))
    renamed = of.run.resources.replace({"implementation": {"kernel.tiled": "kernel.best"}})
    each = [synthetic.changed(of, resources=table) for table in (renamed, renamed.assign(function="one"))]
    assert [rungs.launched(results, TARGET) for results in each] == ["", "kernel.wgmma"]


def test_a_kernel_that_was_timed_by_two_names_is_named_as_it_was_chosen_before_the_run(monkeypatch):
    us = {"sdpa.auto": _us(40.0, 40.0), "kernel.lazy": _us(20.0, 20.0), "kernel.best": _us(20.1, 20.1)}
    of = synthetic.infer(of_kinds(us))
    for launched, name in (("", "kernel.lazy"), ("kernel.lazy", "kernel.best")):
        monkeypatch.setattr(rungs, "launched", lambda *_, one=launched: one)
        assert kinds.safest(of, TARGET).over.candidate == name
        assert kinds.best(of, TARGET).candidate == name
    assert kinds.safest(of, TARGET).launches == "kernel.lazy"


def test_what_is_fast_on_normal_values_only_is_not_the_best():
    of = of_values("sdpa.flash", "sdpa.cudnn")
    normal = {name: of.compare(name, TARGET).speedup.estimate for name in ("sdpa.flash", "sdpa.cudnn")}
    assert normal["sdpa.flash"] > normal["sdpa.cudnn"]
    assert kinds.best(of, TARGET).candidate == "sdpa.cudnn"


def test_what_has_no_latency_on_some_kind_comes_after_what_is_slower():
    of = of_values("sdpa.efficient", "sdpa.cudnn")
    assert of.compare("sdpa.efficient", TARGET).claimable
    assert kinds.best(of, TARGET).candidate == "sdpa.cudnn"
    us = {name: VALUED_US[name] for name in ("sdpa.auto", "sdpa.efficient")}
    us["sdpa.flash"] = dict.fromkeys(VALUED_US["sdpa.auto"], 60.0)
    assert kinds.best(synthetic.infer(of_kinds(us)), TARGET).candidate == "sdpa.flash"


def test_the_best_is_not_the_one_with_the_largest_noise(monkeypatch):
    monkeypatch.setitem(synthetic.PACE, "sdpa.flash", 0.8)
    of = synthetic.few("sdpa.flash", "sdpa.efficient")
    assert of.compare("sdpa.efficient", synthetic.ONE_BATCH).decision == "inconclusive"
    assert kinds.best(of, synthetic.ONE_BATCH).candidate == "sdpa.flash"


def test_who_takes_the_same_time_on_all_kinds_and_who_longer_on_which():
    found = kinds.steadiness(valued(), TARGET)
    assert found.steady == ["sdpa.auto", "sdpa.cudnn", "sdpa.efficient"]
    (flash,) = found.stretched
    assert (flash.implementation, flash.slowest, flash.ratio) == ("sdpa.flash", "rising 24", pytest.approx(2))
    us = {"sdpa.auto": _us(40.0, 48.0), "sdpa.flash": _us(20.0, 40.0), "sdpa.cudnn": _us(45.0, 30.0)}
    worst_first = kinds.steadiness(synthetic.infer(of_kinds(us)), TARGET).stretched
    assert [(name, round(ratio, 3), slowest) for name, ratio, slowest in worst_first] == [
        ("sdpa.flash", 2, "sd 4"),
        ("sdpa.cudnn", 1.5, "normal"),
        ("sdpa.auto", 1.2, "sd 4"),
    ]


def test_a_statement_is_made_on_the_worst_kind():
    found = kinds.statement(valued(), TARGET)
    assert (found.over.candidate, found.shape) == ("sdpa.cudnn", SD)
    assert found.verdict == found.under[valued().headline] == valued().compare("sdpa.cudnn", SD)
    assert found.are_apart
    assert found.lacks == []


def test_a_statement_says_what_a_claim_lacks(monkeypatch):
    monkeypatch.setitem(synthetic.PACE, "sdpa.flash", 0.95)
    found = kinds.statement(synthetic.few("sdpa.flash"), TARGET)
    assert found.verdict.decision == "faster"
    assert found.lacks == ["speedup"]
    noisy = kinds.statement(synthetic.few("sdpa.efficient"), synthetic.ONE_BATCH)
    assert noisy.lacks == ["speedup", "delta", "intervals"]


def test_a_statement_names_the_timings_that_contradict_it():
    assert kinds.statement(synthetic.few("sdpa.flash"), TARGET).contradicting == {}
    found = kinds.statement(synthetic.contradicted(), TARGET)
    assert list(found.contradicting) == [EAGER]
