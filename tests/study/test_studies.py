"""Studies: the contents of the shipped ones, and the errors for those that can't be measured."""

import math
from itertools import product

import pytest
from conftest import TINY, tiny_study, told

from attnlab.base import paths
from attnlab.stats import quantile_ci
from attnlab.study import implementations, ladder, studies, tuning
from attnlab.study.shapes import Shape

STUDIES = sorted(path.stem for path in paths.STUDIES.glob("*.yaml"))


@pytest.mark.parametrize("name", STUDIES)
def test_a_shipped_study_can_be_loaded(name):
    study = studies.load(name)
    assert study.name == name
    assert study.baseline == "sdpa.auto"
    assert set(study.implementations) <= set(implementations.known())
    assert ("values" if name == "values" else "seq_len") in study.sweeps
    assert study == studies.load(paths.STUDIES / f"{name}.yaml")


def test_a_ladder_is_read_only_for_its_kernels(tmp_path, monkeypatch):
    (tmp_path / "ladder.toml").write_text("[[rungs")
    monkeypatch.setenv("ATTNLAB_KERNELS", str(tmp_path))
    assert tiny_study().implementations == TINY["implementations"]
    assert ladder.among(TINY["implementations"]) == []
    assert tuning.hashes(TINY["implementations"], "cpu") == {}
    assert "ladder.toml is not valid TOML" in told(lambda: tiny_study(implementations=["sdpa.auto", "kernel.mine"]))


def test_a_study_is_shown_without_a_place_on_this_machine(monkeypatch):
    monkeypatch.chdir(paths.ROOT)
    stated = ["gpu", "studies/gpu.yaml", "./lib/../mine.yml", f"{paths.ROOT}/data/mine.yaml", "/elsewhere/mine.yaml"]
    assert [*map(studies.shown, stated)] == ["gpu", "studies/gpu.yaml", "mine.yml", "data/mine.yaml", "mine.yaml"]


def test_gpu_holds_the_ten_configurations_of_the_source_report():
    study = studies.load("gpu")
    lengths = [Shape(32, 8, length, 64) for length in (128, 256, 512, 1024, 2048)]
    batches = [Shape(batch, 8, 512, 64) for batch in (8, 16, 32, 64)]
    heads = [Shape(32, count, 512, 64) for count in (4, 8, 16)]
    assert len({*lengths, *batches, *heads}) == 10
    assert {*lengths, *batches, *heads} <= set(study.shapes)
    assert study.target_shape == Shape(32, 8, 512, 64)


def test_gpu_holds_every_rung_every_backend_and_the_fastest_peers():
    study = studies.load("gpu")
    # Left out: kernels for few queries (study `decode`), e4m3 (study `fp8`), and unequal lengths.
    every = [rung for rung in ladder.load(paths.ROOT / "kernels") if rung in ladder.drawn()]
    rungs = [rung.implementation for rung in every if not rung.most_queries]
    peers = ["peer.flash4", "peer.cudnn", "peer.flashinfer"]
    assert study.implementations == [*implementations.SDPA, *peers, *rungs, ladder.BEST]
    served = {(shape.head_dim, shape.dtype) for shape in study.shapes}
    assert served == {*product((64, 128), ("float16", "bfloat16")), (256, "bfloat16")}
    assert {509, 1000} <= {shape.seq_len for shape in study.shapes}


def test_gpu_is_timed_enough():
    study = studies.load("gpu")
    assert [str(timing) for timing in study.timings] == ["device warm", "cupti warm", "device cold", "eager warm"]
    assert (study.device, study.replicates) == ("cuda", 3)
    assert quantile_ci(range(study.replicates * study.samples), 0.95)


def test_what_is_only_in_some_sweeps_is_left_out_of_others():
    sweeps = TINY["sweeps"] | {"long": LENGTHS | {"seq_len": [64, 128]}}
    study = tiny_study(sweeps=sweeps, only_in={"sdpa.math": ["long"]})
    assert [shape.seq_len for shape in study.shapes if study.leaves_out("sdpa.math", shape)] == [16, 32]
    assert not any(study.leaves_out("sdpa.flash", shape) for shape in study.shapes)


def test_lists_are_multiplied_out_and_shapes_counted_once():
    common = {"heads": 2, "head_dim": 64, "dtype": "float32"}
    more = [{"batch": 3, "seq_len": 32, **common}, {"batch": 1, "seq_len": 8, "causal": [True, False], **common}]
    sweeps = {"grid": {"batch": [1, 3], "seq_len": [16, 32], **common}, "more": more}
    stated = [(1, 16, False), (1, 32, False), (3, 16, False), (3, 32, False), (1, 8, True), (1, 8, False)]
    shapes = [Shape(batch, 2, seq_len, 64, causal, "float32") for batch, seq_len, causal in stated]
    assert tiny_study(target={"batch": 1, "seq_len": 16, **common}, sweeps=sweeps).shapes == shapes


def test_a_file_is_named_after_what_it_holds_and_may_say_otherwise(write_study):
    assert studies.load(write_study(name=...)).name == "written"
    assert studies.load(write_study(name="other")).name == "other"


LENGTHS = TINY["sweeps"]["seq_len"]
TWENTY_THOUSAND = dict.fromkeys(
    ("some", "others"), LENGTHS | {axis: list(range(1, 101)) for axis in ("batch", "seq_len")}
)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"sampels": 5}, "unknown field 'sampels'; fields are name, title,*; did you mean 'samples'?"),
        ({"implementations": ["sdpa.auto", "sdpa.flahs"]}, "unknown implementation 'sdpa.flahs'; *'sdpa.flash'?"),
        ({"implementations": ["sdpa.auto", "sdpa.math", "sdpa.auto"]}, "an implementation is listed twice"),
        ({"baseline": "sdpa.cudnn"}, "the baseline sdpa.cudnn is not among the implementations"),
        ({"target": TINY["target"] | {"seq_len": 48}}, "no sweep holds the target B=1 H=4 S=48 D=64 full float32"),
        ({"counted": [TINY["target"] | {"seq_len": 48}]}, "counted: no sweep holds B=1 H=4 S=48 D=64 full float32"),
        ({"sweeps": {"seq_len": LENGTHS | {"dtype": "half"}}}, "sweeps.seq_len: unknown dtype 'half'"),
        ({"sweeps": {"seq_len": LENGTHS | {"seqlen": 3}}}, "sweeps.seq_len: unknown axis 'seqlen'; *'seq_len'?"),
        ({"sweeps": {"seq_len": LENGTHS | {"seq_len": []}}}, "sweeps.seq_len: the axis 'seq_len' has no values"),
        ({"sweeps": {"seq_len": {"batch": 1, "heads": 4, "seq_len": 32}}}, "the axis 'head_dim' is missing"),
        ({"sweeps": {"seq_len": LENGTHS | {1: 2}}}, "input should be a valid string, not 1"),
        ({"timings": 2 * [{"clock": "eager", "cache": "warm"}]}, "a timing is listed twice"),
        ({"samples": 1}, "samples: input should be greater than or equal to 2, not 1"),
        ({"replicates": 10**9}, "replicates: input should be less than or equal to 1000, not 1000000000"),
        ({"sweeps": TWENTY_THOUSAND}, "sweeps: 20000 shapes, and a run can hold 10000: state fewer values"),
        ({"name": "a\nb"}, "name: string should match pattern"),
        ({"title": "x" * 100_000}, "title: string should have at most 200 characters, not 'xxx"),
        ({"implementations": ["sdpa.auto", "control.sdpa.auto"]}, "unknown implementation 'control.sdpa.auto'; known"),
        ({"longest_call_ms": math.inf}, "longest_call_ms: input should be a finite number, not inf"),
        ({"drawn": {"shapes": 3, "seed": 1, "values": ["norml"]}}, "drawn: unknown values 'norml'; known are *"),
        ({"sweeps": {"": LENGTHS}}, "sweeps: '' is no name"),
        ({"only_in": {"sdpa.auto": ["seq_len"]}}, "only_in: sdpa.auto is none of *the baseline"),
        ({"only_in": {"sdpa.math": ["long"]}}, "only_in: sdpa.math: there is no sweep 'long'"),
        ({"sweeps": {"seq_len": LENGTHS | {"seq_len": [32, 10**30]}}}, "no memory holds B=1 H=4 S=1000"),
        ({"sweeps": {"seq_len": LENGTHS | {"dtype": ["float32", "float64"]}}}, "unknown dtype 'float64'; *float32"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_that_names_file_and_problem(write_study, changes, problem):
    path = write_study(**changes)
    message = told(lambda: studies.load(path))
    start, _, end = problem.partition("*")
    assert start in message
    assert message.endswith(end)
    assert message.startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("title: [unclosed", "is not valid YAML: while parsing a flow sequence in line 1, column 8"),
        ("title: !!python/object:os.system {}", "is not valid YAML: could not determine a constructor"),
        ("", "must be a mapping with the fields of a study"),
        ("title: a\nsamples: 3\nsamples: 4\n", "is not valid YAML: the key 'samples' is stated twice in "),
        ("title: a\x00b", "is not valid YAML: unacceptable character #x0000"),
        ("x" * 300_000, " has 300,000 bytes, and a study 262,144 at most: state fewer values"),
        (b"title: \xff\xfe", "is not valid YAML: 'utf-8' codec can't decode"),
    ],
)
def test_a_file_that_is_no_study_is_one_line(write_study, text, problem):
    path = write_study("")
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    message = told(lambda: studies.load(path))
    assert problem in message
    assert message.startswith(str(path))


@pytest.mark.parametrize("name", ["nope", "../studies/nope", "nope.yaml", ""])
def test_a_study_that_is_not_there_tells_which_are(name):
    there = "backends, cpu, decode, dispatch, drawn, fp8, gpu, ladder, quick, ragged, scaling, training, values"
    assert told(lambda: studies.load(name)) == f"there is no study {name!r}; studies/ has {there}"
