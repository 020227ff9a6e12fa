"""Dispatch tables: the choices that follow from a run, invalid tables, and the drawn shapes that judge the choices."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest
import synthetic
import yaml
from conftest import choice, refused, table, tiny_study, told
from synthetic import AXES, GAP_US, LONG, SHORT, TARGET, Recipe

from attnlab import __main__, frames
from attnlab.base.errors import UserError
from attnlab.measuring.session import record
from attnlab.runs import dispatch, read
from attnlab.runs.dispatch import Choice, Dispatch
from attnlab.serving import choices
from attnlab.study import implementations, ladder, studies, tuning
from attnlab.study.shapes import Shape

FEW = {"seq_len": [AXES | {"seq_len": [32, 128, 256]}]}
ALONE = {"seq_len": [AXES | {"seq_len": 128}]}
GROUPED = TARGET.resized(kv_heads=2)
DECODE = Shape(2, 4, 1, 64, kv_heads=1, kv_len=128)
SERVED = [DECODE, SHORT, GROUPED, TARGET, LONG]
DRAWN = [TARGET.resized(seq_len=length) for length in (64, 192)]
EAGER, DEVICE = choices.CLOCKS
BOTH = f"{EAGER.words} and {DEVICE.words}"
KINDS = FEW | {
    "grouped": [AXES | {"seq_len": 128, "kv_heads": 2}],
    "decode": [AXES | {"seq_len": 1, "kv_heads": 1, "kv_len": 128}],
    "end to end": [AXES | {"seq_len": 128, "lengths": "spread"}],
    "training": [AXES | {"seq_len": 128, "direction": "training"}],
}
MMA = {"kernel.mma": "7" * 64}


def chosen(made: Dispatch) -> dict[Shape, str]:
    return {choice.shape: choice.implementation for choice in made.choices}


@pytest.fixture(scope="module", autouse=True)
def draws():
    """Makes studies draw these shapes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(studies.drawn, "draw", lambda count, seed, law: DRAWN[:count])
        yield


@pytest.fixture(scope="module")
def run(draws):
    """A run on an H200 whose control equals the baseline; every implementation was measured at every shape."""
    stated = {"implementations": ["sdpa.auto", "sdpa.flash", "sdpa.cudnn"], "sweeps": KINDS}
    slow = {("sdpa.flash", replace(DRAWN[1], values="sd 4")): 120.0}  # a slow case that the table's grid can't predict
    drawn = {"shapes": 2, "seed": 1, "values": ["normal", "sd 4"]}
    return synthetic.infer(Recipe(control_pace=1.0, study=stated | {"drawn": drawn}, latencies_us=slow))


def altered(run, names=(), pace=(), **study):
    """A run with other fields of its study, other names, and latencies multiplied by factors.

    Args:
        pace: for each implementation, a factor, or a function that returns one for its rows.
    """
    samples, names = run.samples.assign(implementation=run.samples["implementation"].astype(str)), dict(names)
    for name, factor in dict(pace).items():
        rows = samples["implementation"] == name
        samples.loc[rows, "latency_us"] *= factor(samples[rows]) if callable(factor) else factor
    samples["implementation"] = samples["implementation"].replace(names)
    stated = run.manifest["study"] | study
    stated["implementations"] = [names.get(name, name) for name in stated["implementations"]]
    kernels = {name: "7" * 64 for name in stated["implementations"] if name.startswith("kernel.")}
    manifest = run.manifest | {"study": stated, "kernels": kernels}
    shapes = [tuple(shape.axes.values()) for shape in studies.recorded(manifest).shapes]
    among = pd.MultiIndex.from_frame(samples[[*Shape.AXES]]).isin(shapes)
    return replace(run, samples=samples[among], manifest=manifest)


@pytest.fixture(scope="module")
def made(run) -> Dispatch:
    return choices.table(run)


# Choices


def test_the_fastest_is_chosen_where_its_verdict_says_faster_at_shapes_that_attend_serves(made):
    assert (made.device, made.torch, made.run) == ("NVIDIA H200", "2.11.0", "synthetic")
    assert made.timing == BOTH
    assert len(made.seal) == 64
    assert list(chosen(made)) == SERVED
    assert {shape: chosen(made)[shape] for shape in SERVED[1:]} == dict.fromkeys(SERVED[1:], "sdpa.flash")
    choice = next(choice for choice in made.choices if choice.shape == TARGET)
    # 40 µs against 32, each with a launch gap of 5 µs: by the device clock the speedup is higher
    assert choice.speedup == pytest.approx(45 / 37, rel=1e-2)
    assert choice.speedups["sdpa.flash"] == pytest.approx(math.sqrt(45 / 37 * 40 / 32), rel=1e-2)
    assert 1 < choice.low <= choice.speedup <= choice.high
    assert made.sources == {}


def later_us(more_us):
    """A factor that adds this many µs to the latency by the eager clock."""
    return lambda rows: 1 + more_us * (rows["clock"] == "eager") / rows["latency_us"]


@pytest.mark.parametrize(
    ("pace", "names", "expected"),
    [
        ({"control.sdpa.auto": 2.5}, {}, "sdpa.auto"),  # within the noise of the control
        ({"sdpa.flash": later_us(100)}, {}, "sdpa.auto"),  # slower by one clock
        ({"sdpa.flash": later_us(8)}, {}, "sdpa.flash"),  # no difference by one clock
        ({"sdpa.cudnn": 0.5}, {"sdpa.cudnn": "peer.flex"}, "sdpa.flash"),  # peers aren't candidates
    ],
)
def test_a_choice_is_faster_by_one_clock_and_slower_by_none(run, pace, names, expected):
    made = choices.table(altered(run, names, pace, sweeps=ALONE, drawn=None))
    assert chosen(made)[TARGET] == expected
    if callable(pace.get("sdpa.flash")):
        speedup = 45 / 137 if expected == "sdpa.auto" else math.sqrt(40 / 32)
        assert made.choices[0].speedups["sdpa.flash"] == pytest.approx(speedup, rel=0.01)


@pytest.mark.parametrize(("eager", "expected"), [("inconclusive", "sdpa.flash"), ("slower", "kernel.best")])
def test_of_several_the_one_that_is_fastest_over_the_clocks_is_chosen(eager, expected):
    rows = [("sdpa.flash", 1.8, "faster"), ("sdpa.flash", 0.95, eager)]
    rows += [("kernel.best", 1.1, "faster"), ("kernel.best", 1.2, "faster")]
    name, least = choices.fastest(pd.DataFrame(rows, columns=["candidate", "speedup", "decision"]))
    assert name == expected
    assert least["sdpa.flash"]["speedup"] == 0.95


def test_a_kernel_that_changed_since_the_run_or_the_table_is_not_called(run, monkeypatch):
    monkeypatch.setattr(ladder, "hashes", lambda rungs=None: MMA)
    with_kernel = altered(run, {"sdpa.cudnn": "kernel.mma"}, {"sdpa.cudnn": 0.5}, sweeps=ALONE, drawn=None)
    made = choices.table(with_kernel)
    assert made.sources == MMA
    assert made.choose(TARGET) == chosen(made)[TARGET] == "kernel.mma"
    for hashes in ({"kernel.mma": "8" * 64}, {}):
        monkeypatch.setattr(ladder, "hashes", lambda rungs=None, hashes=hashes: hashes)
        later = Dispatch.model_validate_json(made.model_dump_json())
        assert later.choose(TARGET) == "sdpa.auto"
        assert later.choose(TARGET.resized(seq_len=192)) == "sdpa.flash"  # which was there too
    assert chosen(choices.table(with_kernel))[TARGET] == "sdpa.flash"


# Over several input distributions

STEADY, FAST = (dict.fromkeys(("normal", "sd 4", "rising 24"), us) for us in (40.0, 20.0))
VALUED = [
    ({"kernel.mma": FAST}, "kernel.mma"),
    ({"kernel.mma": STEADY | {"normal": 20.0, "rising 24": 60.0}}, "sdpa.auto"),  # slower on one
    ({"kernel.mma": STEADY | {"normal": 20.0, "sd 4": 20.0}}, "sdpa.auto"),  # as fast on one
    ({"sdpa.flash": dict.fromkeys(STEADY, 30.0), "kernel.mma": FAST | {"sd 4": None}}, "sdpa.flash"),  # failed
    ({"kernel.mma": FAST | {"normal": None}}, "sdpa.auto"),
    (  # the fastest is the one with the best worst distribution
        {
            "sdpa.flash": {"normal": 30.0, "sd 4": 31.0, "rising 24": 30.0},
            "kernel.mma": {"normal": 10.0, "sd 4": 10.0, "rising 24": 35.0},
        },
        "sdpa.flash",
    ),
    # Zeros don't count.
    ({"sdpa.auto": STEADY | {"zeros": 30.0}, "sdpa.flash": FAST | {"zeros": 90.0}}, "sdpa.flash"),
    ({"sdpa.auto": STEADY | {"zeros": 30.0}, "sdpa.flash": FAST | {"zeros": None}}, "sdpa.flash"),
    # A distribution without a latency of the fallback doesn't count either.
    ({"sdpa.auto": STEADY | {"sd 4": None}, "sdpa.flash": FAST | {"sd 4": 90.0}}, "sdpa.flash"),
    ({"sdpa.flash": {"normal": 20.0, "sd 4": 32.0, "rising 24": 25.0}}, "sdpa.flash"),
]


def test_a_shape_has_one_choice_that_is_faster_on_every_distribution(monkeypatch):
    monkeypatch.setattr(ladder, "hashes", lambda rungs=None: MMA)
    names, values = ["sdpa.auto", "sdpa.flash", "kernel.mma"], [*STEADY, "zeros"]
    sizes = [8 * (number + 1) for number in range(len(VALUED))]
    us = {
        (name, TARGET.resized(head_dim=size, values=kind)): ({"sdpa.auto": STEADY} | stated).get(name, {}).get(kind)
        for size, (stated, _) in zip(sizes, VALUED, strict=True)
        for name in names
        for kind in values
    }
    fates = {case: synthetic.GONE for case, one in us.items() if one is None}
    sweeps = {"values": [AXES | {"seq_len": 128, "head_dim": sizes, "values": values}]}
    study = {"implementations": names, "timings": [EAGER.model_dump()], "sweeps": sweeps}
    recipe = Recipe(control_pace=1.0, study=study, latencies_us=us, fates=fates)
    made = choices.table(synthetic.infer(recipe))
    assert [choice.implementation for choice in made.choices] == [expected for _, expected in VALUED]
    slow = [one for one in made.choices if one.implementation == "sdpa.auto"]
    assert {(one.speedup, one.low, one.high) for one in slow} == {(1.0, 1.0, 1.0)}
    last = made.choices[-1]
    assert last.speedup == pytest.approx((40 + GAP_US) / (32 + GAP_US), rel=1e-3)  # on its slowest distribution
    assert 1 < last.low <= last.speedup <= last.high < (40 + GAP_US) / (25 + GAP_US)


# Invalid tables


def test_a_run_that_can_not_say_is_refused_in_a_line(run):
    training = KINDS["training"]
    no_latency = "the run 'synthetic' has no latency of sdpa.auto that a table could speak of"
    for other, said in (
        (altered(run, baseline="sdpa.flash"), "the baseline of 'synthetic' is sdpa.flash, and has to be sdpa.auto"),
        (
            replace(run, samples=run.samples.assign(cache="cold")),
            "the run 'synthetic' was not timed by the eager clock, warm cache or device clock, warm cache, by which "
            "`attend` is to choose",
        ),
        (replace(run, samples=run.samples[run.samples["implementation"] != "sdpa.auto"]), no_latency),
        (altered(run, sweeps={"training": training}, drawn=None, target=training[0]), no_latency),
    ):
        assert told(lambda other=other: choices.table(other)) == said


def test_a_run_on_a_cpu_is_refused_on_the_command_line(data, capsys):
    synthetic.write("synthetic", synthetic.LONELY)
    said = "the run 'synthetic' was recorded on a CPU, where `attend` is SDPA: name one of a GPU"
    assert refused(capsys, "dispatch", "--run", "synthetic") == said
    assert not (data / "dispatch").exists()


# At shapes that were not measured


def at(*sizes: int, flash: float, cudnn: float | None = None, **axes) -> Choice:
    speedups = {"sdpa.flash": flash} | ({"sdpa.cudnn": cudnn} if cudnn else {})
    return choice(Shape(*sizes, **axes), "sdpa.auto", speedup=1.0, low=1.0, high=1.0, speedups=speedups)


def test_an_estimate_is_the_mean_of_the_nearest_by_their_inverse_squared_distance():
    made = table(*(at(1, 8, length, 64, flash=flash) for length, flash in ((128, 1.0), (1024, 4.0), (4096, 16.0))))
    # Distances of 256 from 128, 1024 and 4096, in doublings of queries and of keys.
    near, far, farther = (1 / (math.hypot(*away) + dispatch.SOFTENING) ** 2 for away in ((1, 1), (2, 2), (4, 4)))
    expected = (near * 0 + far * 2 + farther * 4) / (near + far + farther)
    assert made.estimate(Shape(1, 8, 256, 64)) == {"sdpa.flash": pytest.approx(2**expected)}
    assert made.estimate(Shape(1, 8, 1024, 64))["sdpa.flash"] > 6  # as if this shape had not been measured


@pytest.mark.parametrize(("length", "expected"), [(90, "sdpa.auto"), (128, "sdpa.auto"), (155, "sdpa.flash")])
def test_what_needs_two_tiles_is_no_neighbour_of_what_fills_one(length, expected):
    made = table(at(3, 8, 128, 64, flash=0.5), at(3, 8, 256, 64, flash=2.0))
    assert made.choose(Shape(2, 8, length, 64)) == expected


@pytest.mark.parametrize(
    "other",
    [
        Shape(2, 8, 256, 128),
        Shape(2, 8, 256, 64, causal=True),
        Shape(2, 8, 256, 64, dtype="float32"),
        Shape(2**8, 8, 256, 64),  # 7 doublings
        Shape(2, 8, 2**13, 64),
    ],
    ids=str,
)
def test_nothing_is_said_of_a_shape_that_is_unlike_all_that_were_measured(other):
    made = table(at(2, 8, 256, 64, flash=1.5))
    assert made.choose(Shape(4, 8, 300, 64, dtype="bfloat16")) == "sdpa.flash"
    assert (made.estimate(other), made.choose(other)) == ({}, "sdpa.auto")


def test_a_shape_at_which_best_runs_another_instance_now_is_estimated_by_others(monkeypatch):
    changed, kept = Shape(2, 8, 256, 64), Shape(2, 8, 512, 64)
    now = SimpleNamespace(running=lambda shape: "new" if shape == changed else "old")
    monkeypatch.setattr(tuning, "load", lambda device_name: now)
    ran = [choice(shape, "kernel.best", speedups={"kernel.best": 1.5}, instance="old") for shape in (changed, kept)]
    made = table(*ran)
    assert [made.choose(one.shape) for one in ran] == ["kernel.best"] * 2
    assert made.estimate(Shape(2, 8, 300, 64)) == pytest.approx({"kernel.best": 1.5})
    assert (made.estimate(kept), table(ran[0]).choose(changed)) == ({}, "sdpa.auto")  # it is never a neighbour
    slower = choice(changed, "sdpa.auto", speedups={"kernel.best": 0.9}, instance="old")
    assert table(slower, ran[1]).choose(changed) == "sdpa.auto"
    now.running = {changed: "lazy three 2", kept: "lazy two 2"}.get
    monkeypatch.setattr(dispatch.ladder, "replaced", lambda rungs: {"kernel.lazy": "1"})
    ran = [choice(one.shape, "kernel.best", speedups={"kernel.best": 1.5}, instance="lazy two 1") for one in ran]
    replaced = table(*ran)
    assert [replaced._holds(one) for one in ran] == [False, True]


def test_choices_are_judged_at_shapes_drawn_at_random(run, made):
    assert not set(DRAWN) & set(chosen(made))
    assert [made.choose(shape) for shape in DRAWN] == ["sdpa.flash"] * 2
    eager, device = made.regret
    assert (eager.clock, device.clock, device.shapes) == (EAGER.words, DEVICE.words, 2)
    least = synthetic.latency_us("sdpa.auto", DRAWN[1])
    assert device.worst_pct == pytest.approx(100 * (120 / least - 1), rel=0.02)
    assert (device.worst, device.best_pct) == (DRAWN[1].label, 50)
    assert device.certain_pct == device.worst_pct
    assert device.mean_pct == pytest.approx(100 * (math.sqrt(120 / least) - 1), rel=0.03)
    assert device.least_lead == pytest.approx(least / 120, rel=0.02)
    assert device.lead == pytest.approx(math.sqrt(least / 120 * 1.25), rel=0.02)
    assert eager.worst_pct < device.worst_pct


def test_only_a_verdict_makes_it_certain_what_choices_cost(run):
    least = synthetic.latency_us("sdpa.auto", DRAWN[0])
    more_us = 1.01 * least - synthetic.latency_us("sdpa.flash", DRAWN[0])
    pace = {"sdpa.flash": lambda rows: 1 + more_us * (rows["seq_len"] == DRAWN[0].seq_len) / rows["latency_us"]}
    drawn = {"shapes": 1, "seed": 1, "values": ["normal"]}
    made = choices.table(altered(run, pace=pace, sweeps=FEW, drawn=drawn))
    assert all(one.worst_pct > 0 for one in made.regret)
    assert [one.certain_pct for one in made.regret] == [0, 0]


def test_a_run_counts_where_best_still_runs_what_the_table_before_says(run, monkeypatch):
    now = SimpleNamespace(running=lambda shape: "new" if shape == TARGET else "old")
    monkeypatch.setattr(tuning, "load", lambda device_name: now)
    monkeypatch.setattr(choices, "stale", lambda run: {"kernel.best": None})
    drawn, names = {"shapes": 1, "seed": 1, "values": ["normal"]}, ["sdpa.auto", "sdpa.flash"]
    sweeps = {"seq_len": [AXES | {"seq_len": [128, 256]}]}
    run = altered(run, {"sdpa.flash": "kernel.best"}, implementations=names, sweeps=sweeps, drawn=drawn)
    without = choices.table(run)
    assert set(chosen(without).values()) == {"sdpa.auto"}
    ran = [choice(shape, instance="old") for shape in (TARGET, LONG)]
    before = table(*ran, seal=f"other,{run.manifest['seal']}")
    made = choices.table(run, before=before)
    assert chosen(made) == {LONG: "kernel.best"}
    assert made.regret == []  # the instance at the drawn shape is unknown
    assert made.dropped == [DRAWN[0].label]
    judged = choices.table(run, before=before.model_copy(update={"drawn": {DRAWN[0].label: "old"}}))
    assert [one.shapes for one in judged.regret] == [1, 1]
    assert judged.dropped == []
    assert choices.table(run, before=judged) == judged
    assert choices.table(run, before=before.model_copy(update={"seal": "other"})) == without


def test_runs_make_one_table_in_which_the_last_counts(run, monkeypatch):
    first = altered(run, sweeps=FEW, drawn={"shapes": 1, "seed": 1, "values": ["normal"]})
    more = {"grouped": KINDS["grouped"], "again": [AXES | {"seq_len": TARGET.seq_len}]}
    is_target = lambda rows: (rows["seq_len"] == TARGET.seq_len) & (rows["kv_heads"] == TARGET.kv_heads)  # noqa: E731
    second = altered(run, pace={"sdpa.flash": lambda rows: 1 + 9 * is_target(rows)}, sweeps=more, drawn=None)
    made = choices.table(first, second)
    assert made.run == "synthetic,synthetic"
    assert chosen(made) == {SHORT: "sdpa.flash", TARGET: "sdpa.auto", LONG: "sdpa.flash", GROUPED: "sdpa.flash"}
    assert [one.shapes for one in made.regret] == [1, 1]
    # Of equally distant neighbours, the first count.
    assert list(chosen(choices.table(second, first))) == list(chosen(made))
    other = second.manifest["device"] | {"name": "NVIDIA H100"}
    with pytest.raises(UserError, match=r"can't make one table: their device is NVIDIA H200 and NVIDIA H100$"):
        choices.table(first, replace(second, manifest=second.manifest | {"device": other}))


def test_a_drawn_shape_that_is_measured_again_judges_again_and_is_no_choice(run, monkeypatch):
    """It was dropped because `kernel.best` had changed there; `tools/gpu/lacking.py` puts it into a sweep."""
    of = {"sweeps": FEW, "drawn": {"shapes": 1, "seed": 1, "values": ["normal"]}}
    first = altered(run, **of)
    again = altered(run, sweeps=FEW | {"drawn again": [AXES | {"seq_len": DRAWN[0].seq_len}]}, drawn=None)
    monkeypatch.setattr(choices, "stale", lambda run: {"kernel.best": {DRAWN[0]}} if run is first else {})
    assert choices.table(first).dropped == [DRAWN[0].label]
    made = choices.table(first, again)
    assert (made.dropped, [one.shapes for one in made.regret]) == ([], [1, 1])
    assert DRAWN[0] not in chosen(made)


# From the command line, and back


def test_the_command_writes_a_table_and_a_study_that_holds_it_to_account(data, capsys):
    stated = {"implementations": ["sdpa.auto", "sdpa.flash"], "sweeps": {"grouped": KINDS["grouped"], **ALONE}}
    synthetic.write("here", Recipe(control_pace=1.0, study=stated))
    assert __main__.main(["dispatch", "--run", "here"]) == 0
    path, study = (data / "dispatch" / f"nvidia-h200.{end}" for end in ("json", "yaml"))
    assert capsys.readouterr().out == (
        f"wrote {path} by 'here', {BOTH}: 2 shapes, 2 of them not by sdpa.auto; "
        f"`make measure STUDY={study}` measures attnlab.attend at each\n"
    )
    made = dispatch.load(path, "NVIDIA H200")
    assert path == dispatch.path("NVIDIA H200")
    assert made == choices.table(frames.load("here"))
    assert made.seal == read.read_manifest("here")["seal"]
    assert sorted((data / "dispatch").iterdir()) == [path, study]
    read_back = studies.load(study)
    assert read_back.implementations == ["sdpa.auto", implementations.require("dispatch.attend")]
    assert read_back.baseline == "sdpa.auto"
    assert read_back.shapes == [choice.shape for choice in made.choices] == [GROUPED, TARGET]
    assert read_back.target_shape == GROUPED
    assert read_back.stream == choices.REQUESTS
    assert read_back.timings == [EAGER, DEVICE]
    assert __main__.main(["dispatch", "--run", "here"]) == 0  # with the same result
    more = [*made.choices, choice(GROUPED.resized(batch=3))]
    dispatch.write(made.model_copy(update={"run": "older", "choices": more}))
    said = f"{path} is by 'older', {BOTH}: add REPLACE=1 (--replace) to write over it"
    assert refused(capsys, "dispatch", "--run", "here") == said
    assert dispatch.load(path, "NVIDIA H200").run == "older"
    assert __main__.main(["dispatch", "--run", "here", "--replace"]) == 0
    assert capsys.readouterr().out.endswith(
        f" at each; it replaces the table by 'older', {BOTH}, and has not 1 of its shapes\n"
    )
    assert dispatch.load(path, "NVIDIA H200") == made


def test_the_study_of_a_table_holds_every_axis():
    shapes = [
        Shape(2, 8, 64, 32),
        Shape(2, 8, 64, 32, True, "bfloat16", kv_heads=2),
        Shape(2, 8, 1, 128, dtype="float32", kv_heads=1, kv_len=512),
    ]
    stated = choices.study(table(*map(choice, shapes)))
    assert stated["sweeps"]["table"][0] == {"batch": 2, "heads": 8, "seq_len": 64, "head_dim": 32, "dtype": "float16"}
    read = yaml.safe_load(yaml.safe_dump(stated, default_flow_style=None, width=120))
    study = studies.parse({"name": "table", **read}, "table.yaml")
    assert study.shapes == shapes
    assert study.target_shape == shapes[0]


# Valid and invalid fields

STATED = json.loads(table(choice(TARGET)).model_dump_json())


def spoiled(**changes) -> str:
    """A table with these fields replaced; fields with the value ... are left out."""
    return json.dumps({key: value for key, value in (STATED | changes).items() if value is not ...})


def with_choice(**changes) -> str:
    stated = STATED["choices"][0] | changes
    return spoiled(choices=[{key: value for key, value in stated.items() if value is not ...}])


IS_OF = "B=2 H=4 S=128 D=64 full float16"
NO_TABLES = [
    (spoiled(version=1), "version: input should be 2, not 1"),
    (spoiled(devise="x"), "unknown field 'devise'; fields are version, run,"),
    (spoiled(choices=2 * STATED["choices"]), f"{IS_OF} is there twice: leave one"),
    (with_choice(kv_len=...), "the field 'choices.0.kv_len' is missing"),
    (with_choice(batch=0), "batch must be a positive integer, not 0"),
    (with_choice(speedup=0.0), "choices.0.speedup: input should be greater than 0, not 0.0"),
    (with_choice(low=float("nan")), "choices.0.low: input should be a finite number, not nan"),
    (with_choice(low=1.3, high=1.1), f"{IS_OF}: the interval from 1.3 to 1.1 doesn't hold the speedup"),
    *((content, "`make dispatch RUN=<run>` writes one") for content in ("", spoiled()[:200], 10**5 * "[", b"\xff\xfe")),
    *((content, "input should be a valid dictionary or instance of Dispatch, not ") for content in ("[1]", "null")),
]


@pytest.mark.parametrize(("content", "said"), NO_TABLES)
def test_what_is_no_table_is_told_in_a_line(tmp_path, content, said):
    source = tmp_path / "table.json"
    source.write_bytes(content if isinstance(content, bytes) else content.encode())
    message = told(lambda: dispatch.load(source, "NVIDIA H200"))
    assert message.startswith(f"{source} is no dispatch table: {said}")
    assert len(message) < 400


def test_a_table_that_is_not_there_or_can_not_be_read_is_told(tmp_path):
    with pytest.raises(UserError, match=r"^there is no dispatch table .*: `make dispatch RUN=<run>` writes one$"):
        dispatch.load(tmp_path / "gone.json", "NVIDIA H200")
    assert told(lambda: dispatch.load(tmp_path, "NVIDIA H200")).endswith("can't be read: Is a directory")


# A run that measures a table's choices

ATTENDING = tiny_study(implementations=["sdpa.auto", "dispatch.attend"])


@pytest.mark.parametrize("change", ["written", "changed", "taken away"])
def test_a_run_does_not_go_on_by_another_table(data, begin, machine, capsys, change):
    here = {"device": machine["device"]["name"], "torch": machine["environment"]["packages"]["torch"]}
    path = dispatch.path(here["device"])
    if change != "written":
        dispatch.write(table(**here))
    begin(ATTENDING, "cut", dispatch=record._dispatched(ATTENDING, here["device"]))
    if change == "taken away":
        path.unlink()
    else:
        dispatch.write(table(choice(TARGET), **here))
    said = "the dispatch table, or the kernel of gradients, changed since the run 'cut' began: start a new run"
    assert refused(capsys, "measure", "--run", "cut", "--device", "cpu") == said
    assert read.load("cut").cases.empty
