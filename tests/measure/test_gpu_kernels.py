"""The ladder on an NVIDIA GPU: `make test OF=gpu`."""

import math
import os
from functools import partial
from itertools import product

import ladders
import pytest
import torch
from conftest import Quickly, tiny_study
from ladders import SOURCE, TILE, rung
from on_gpu import GPU, drawn, require_passed, served, while_copying

from attnlab.measuring.clocks import cuda_events
from attnlab.measuring.gate.gate import Gate
from attnlab.measuring.instruments import devices
from attnlab.measuring.kernels import rungs
from attnlab.measuring.session import record, tune
from attnlab.measuring.subjects import inputs, registry
from attnlab.measuring.subjects.case import Case
from attnlab.measuring.subjects.implementation import Broken, Unsupported
from attnlab.runs import read, schema
from attnlab.runs.tables import TABLES
from attnlab.study import ladder, tuning
from attnlab.study.shapes import Shape
from attnlab.study.values import NORMAL

cupy = pytest.importorskip("cupy")
pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("locked_gpu")]

RUNGS = [rung.implementation for rung in ladder.load() if not rung.scaled]
PROBLEMS = [one for one in ladder.load() if one.parameters == "problem"]
STRIDED = [(one, head_dim) for one in PROBLEMS for head_dim in sorted({tile.head_dim for tile in one.tiles})]
LENGTHS = (1, 7, 63, 64, 65, 127, 128, 129, 300, 512, 576, 777, 1000)
INSTANCES = [
    pytest.param(one, tile, dtype, causal, id=f"{one.name}-{tile.name}{tile.head_dim}-{dtype}-{causal}")
    for one in ladder.load()
    for tile, dtype, causal in product(one.tiles, one.dtypes, (False, True))
    if not one.scaled
    if ladder.MASKS[causal] in tile.masks
]


# The project's ladder


@pytest.mark.parametrize(("one", "tile", "dtype", "causal"), INSTANCES)
def test_an_instance_passes_the_gate_at_every_length_on_every_kind_of_inputs(one, tile, dtype, causal):
    """One test for each instance, so that each is compiled once."""
    implementation = rungs.pinned(one, tile)
    axes = {"head_dim": tile.head_dim, "causal": causal, "dtype": dtype}
    shapes = [Shape(2, 3, seq_len, **axes) for seq_len in LENGTHS]
    shapes += [Shape(1, 2, 4096, **axes), Shape(64, 32, 64, **axes), Shape(16, 20, 520, **axes)]
    refused = []
    lengths = [length for length in {shape.seq_len for shape in shapes} if tile.serves_length(length)]
    lengths = [length for length in lengths if one.serves_queries(length) and one.serves_rows(tile, length)]
    for number, shape in enumerate(shape for shape in shapes if shape.seq_len in lengths):
        for kind in (NORMAL, *schema.EXTREMES):
            refused += _refused(implementation, shape, kind, number)
        devices.release(GPU)
    assert not refused, "\n".join(refused)


def _refused(implementation, shape, kind, seed):
    drawn = inputs.draw(shape, seed, GPU, kind)
    gate = Gate(drawn, shape.causal, kind)
    call = partial(implementation.call, *drawn, shape.causal)
    try:
        check = gate.examine(call)
    except Unsupported as error:
        pytest.skip(str(error))
    checks = [check]
    if check.passed and kind == NORMAL:
        checks.append(gate.examine_captured(call))
    return [f"{implementation.name} at {shape}, {kind}: {check.reason}" for check in checks if not check.passed]


@pytest.mark.parametrize(("causal", "seq_len"), [(True, 300), (False, 640)])
@pytest.mark.parametrize(("one", "head_dim"), STRIDED, ids=lambda part: getattr(part, "name", part))
def test_every_tile_repeats_itself_while_copies_keep_the_memory_busy(one, head_dim, causal, seq_len):
    # At these lengths, some consumers of a pipeline have less work and skip tiles, which then arrive late.
    shape = Shape(32, 8, seq_len, head_dim, causal, "float16")
    served(rungs.of(one), shape)
    tensors, wrong = drawn(shape), torch.zeros((), dtype=torch.int64, device=GPU)
    for tile in one.tiles_for(head_dim, seq_len, causal):
        call = rungs.kernel(one, tile)
        right = call(*tensors, causal)
        for _ in while_copying():
            wrong += (call(*tensors, causal) != right).any()
        assert wrong.item() == 0, tile.name


@pytest.mark.parametrize("name", RUNGS)
def test_every_rung_is_captured_and_reads_what_its_inputs_hold_then(name):
    shape = Shape(2, 4, 256, 64)
    served(rungs.implementation(name).call, shape)
    windows = inputs.Windows(shape, GPU, cuda_events.most_calls(shape))
    case = Case.of(rungs.implementation(name), windows)
    cuda_events.capture(case, torch.cuda.graph_pool_handle())
    assert case.one
    assert case.many
    for seed, replay in enumerate(filter(None, (case.one, case.many, case.cut))):
        windows.draw(seed)
        replay.output.fill_(torch.nan)
        replay.graph.replay()
        check = Gate(windows[replay.window], False).check(replay.output)
        assert check.passed, check.reason


@pytest.mark.parametrize("name", RUNGS)
def test_every_rung_runs_on_torchs_current_stream(name):
    shape = Shape(2, 4, 256, 64)
    call = served(rungs.implementation(name).call, shape)
    tensors = drawn(shape)
    right = call(*tensors, False)
    torch.cuda.synchronize()
    late = [torch.zeros_like(tensor) for tensor in tensors]
    torch.cuda.synchronize()
    other = torch.cuda.Stream()
    with torch.cuda.stream(other):
        torch.cuda._sleep(100_000_000)  # without waiting for this, a call reads zeros
        for old, new in zip(late, tensors, strict=True):
            old.copy_(new)
        output = call(*late, False)
    other.synchronize()
    assert torch.equal(output, right)


@pytest.mark.parametrize("name", RUNGS)
def test_what_a_rung_needs_is_what_the_device_says(name):
    shape, one = Shape(32, 8, 512, 64), ladder.rung(name)
    kernel = served(rungs.of(one), shape)
    tile = one.tiles_for(64, 512, False, 512)[0]
    described = devices.describe(GPU)
    needs = kernel.resources(*drawn(shape), False)
    assert needs["function"].startswith(f"{one.function}<__half, 64, false")
    assert needs["architecture"] == one.architecture(torch.cuda.get_device_capability())
    assert 0 < needs["registers"] <= 255
    assert needs["local_bytes"] <= 8 * one.spill_bytes + 2048
    assert (needs["threads"], needs["dynamic_shared_bytes"]) == (tile.threads, tile.shared_bytes)
    assert 1 <= needs["ctas_per_sm"] <= described["threads_per_multiprocessor"] // tile.threads
    items = math.ceil(512 / tile.rows) * 256
    at_once = needs["ctas_per_sm"] * described["multiprocessors"]
    work = min(items, at_once) if one.persistent else items
    if not one.by_lengths:  # otherwise only the device knows the number
        assert needs["ctas"] % work == 0 if one.splits_keys else needs["ctas"] == work


# Any ladder


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("seq_len", [1, 63, 200])
def test_a_kernel_that_is_right_passes_the_gate(folder, seq_len, persistent):
    ladders.write(folder, rung(persistent=persistent))
    shape = Shape(3, 500, seq_len, 64, True, "bfloat16")
    tensors = drawn(shape)
    kernel = rungs.implementation("kernel.plain")
    require_passed(kernel.call, tensors, True)
    needs = kernel.resources(*tensors, True)
    most = needs["ctas_per_sm"] * devices.describe(GPU)["multiprocessors"]
    items = 1500 * math.ceil(seq_len / 64)
    assert needs["ctas"] == (min(items, most) if persistent else items)


def test_an_instance_is_compiled_once(folder, monkeypatch):
    made = []
    module = cupy.RawModule
    monkeypatch.setattr(cupy, "RawModule", lambda **named: made.append(named) or module(**named))
    kernel = rungs.implementation("kernel.plain")
    for seq_len, causal in ((8, False), (9, False), (8, True), (9, True)):
        tensors = drawn(Shape(1, 1, seq_len, 64, causal))
        kernel.call(*tensors, causal)
        kernel.call(*tensors, causal)
    assert [one["name_expressions"] for one in made] == [("plain<__half, 64, false>",), ("plain<__half, 64, true>",)]


def test_a_changed_header_is_compiled_anew(folder):
    tensors = drawn(Shape(1, 1, 8, 64))
    before = rungs.implementation("kernel.plain").call(*tensors, False)
    header = ladders.HEADER.replace("return __half2float(x);", "return 2 * __half2float(x);")
    (folder / "widen.cuh").write_text(header)
    assert not torch.equal(rungs.implementation("kernel.plain").call(*tensors, False), before)


def test_more_shared_memory_than_there_is(folder):
    ladders.write(folder, rung(TILE | {"shared_bytes": 227 * 1024}))
    there = torch.cuda.get_device_properties(GPU).shared_memory_per_block_optin
    if there >= 227 * 1024:
        source = SOURCE.replace(
            "const int tiles", "__shared__ int held[999]; held[threadIdx.x] = 1; const int tiles", 1
        )
        ladders.write(folder, rung(TILE | {"shared_bytes": 227 * 1024}), source=source.replace("{}", "{1.f * held[3]}"))
    with pytest.raises((Unsupported, Broken), match=r"shared memory|the driver refuses"):
        rungs.implementation("kernel.plain").call(*drawn(Shape(1, 1, 8, 64)), False)


# In a run


def test_a_run_records_resources_and_what_failed(folder, data, one_thread, monkeypatch):
    broken = rung(name="broken", source="broken.cu", after="plain")
    ladders.write(folder, rung(), broken)
    (folder / "broken.cu").write_text(SOURCE.replace("float score = 0.f;", "float score = nought;"))
    axes = {"batch": 1, "heads": 4, "seq_len": [16, 100], "head_dim": 64, "dtype": "float16"}
    study = tiny_study(
        device="cuda",
        implementations=["sdpa.auto", "kernel.plain", "kernel.broken"],
        target=axes | {"seq_len": 100},
        timings=[{"clock": "device", "cache": "warm"}, {"clock": "eager", "cache": "cold"}],
        sweeps={"seq_len": axes},
    )
    monkeypatch.setenv("ATTNLAB_NCU", os.devnull)
    run = read.load(record.record("one", study, "cuda", Quickly(one_thread)))
    reasons = run.cases.groupby("implementation")["reason"].agg(set)
    assert reasons["sdpa.auto"] == reasons["kernel.plain"] == {""}
    assert all("broken.cu does not compile as plain<__half, 64, false>" in one for one in reasons["kernel.broken"])
    line = SOURCE[: SOURCE.index("float score")].count("\n") + 1
    said = f'{folder}/broken.cu({line}): error: identifier "nought" is undefined'
    assert all(said in one and "\n" not in one for one in reasons["kernel.broken"])
    assert set(run.cases.loc[run.cases["implementation"] == "kernel.broken", "status"]) == {"failed"}
    assert {"sdpa.auto", "kernel.plain"} <= set(run.samples["implementation"])
    assert "kernel.broken" not in set(run.samples["implementation"])
    assert list(run.resources.columns) == TABLES["resources"].names
    assert len(run.resources) == 2 * 2
    assert set(run.resources["implementation"]) == {"kernel.plain"}
    assert run.manifest["kernels"] == ladder.hashes()
    names = run.cases.loc[run.cases["implementation"] == "kernel.plain", "kernels"]
    assert all("plain" in name for name in names)


# Several tiles for one head_dim, and kernel.best


TWO = SOURCE.replace("template <typename T, int D, bool CAUSAL>", "template <typename T, int D, bool CAUSAL, int N>")
SHORT, LONG = (
    TILE | {"name": name, "template": {"n": number}} | lengths
    for number, (name, lengths) in enumerate({"short": {"longest": 100}, "long": {}}.items())
)


@pytest.fixture
def two(folder):
    """A ladder of one kernel with 2 tiles for one head_dim."""
    return ladders.write(folder, rung(SHORT, LONG), source=TWO)


def ran(implementation, shape) -> str:
    """The instance that runs at a shape; its output must pass the gate."""
    tensors = drawn(shape)
    require_passed(implementation.call, tensors, shape.causal)
    return implementation.resources(*tensors, shape.causal)["function"]


choice = partial(ladders.choice, heads=6, seq_len=64, latency_us=1.0)


def tuned(*choices):
    return tuning.write(ladders.tuned(*choices, device=torch.cuda.get_device_name()))


def test_two_tiles_for_one_head_dim_run_by_seq_len(two):
    plain = rungs.implementation("kernel.plain")
    assert [ran(plain, Shape(2, 3, seq_len, 64, True)) for seq_len in (100, 101, 7)] == [
        f"plain<__half, 64, true, {number}>" for number in (0, 1, 0)
    ]


def test_tiles_that_share_an_instance_have_the_memory_of_the_largest(folder):
    large = TILE | {"name": "large", "shortest": 50, "shared_bytes": 60_000}
    small = TILE | {"name": "small", "shared_bytes": 50_000}
    ladders.write(folder, rung(large, small))
    plain = rungs.implementation("kernel.plain")
    for seq_len in (60, 40, 60):
        assert ran(plain, Shape(1, 2, seq_len, 64)) == "plain<__half, 64, false>"


def test_the_best_runs_what_the_tuning_names(two):
    tuned(
        choice("long"),
        choice("short", causal=True),
        choice("long", seq_len=1024),
        choice("long", causal=True, heads=96),
    )
    best = registry.find("kernel.best")
    shapes = [Shape(2, 3, 64, 64), Shape(2, 3, 50, 64, True), Shape(2, 3, 101, 64, True), Shape(32, 3, 50, 64, True)]
    assert [ran(best, shape) for shape in shapes] == [
        "plain<__half, 64, false, 1>",
        "plain<__half, 64, true, 0>",
        "plain<__half, 64, true, 1>",
        "plain<__half, 64, true, 1>",
    ]
    case = Case.of(best, inputs.Windows(shapes[0], GPU, 4))
    case.windows.draw(1)
    cuda_events.capture(case, torch.cuda.graph_pool_handle())
    case.one.graph.replay()
    assert Gate(case.windows[0], False).check(case.one.output).passed


@pytest.mark.parametrize(
    ("axes", "rung"),
    [({"causal": True, "kv_heads": 2, "kv_len": 777}, "lazy"), ({"seq_len": 1, "kv_len": 3000}, "few")],
)
def test_the_best_at_head_dim_256_splits_keys_where_queries_are_few(axes, rung):
    shape, best = Shape(2, 8, 300, 256, dtype="bfloat16").resized(**axes), registry.find("kernel.best")
    served(best.call, shape)
    assert ran(best, shape).startswith(f"{rung}<__nv_bfloat16, 256")


def test_tuning_chooses_among_the_tiles_of_this_ladder(two, monkeypatch):
    ladders.write(two, rung(SHORT), rung(name="wrong", source="wrong.cu"), source=TWO)
    (two / "wrong.cu").write_text(SOURCE.replace("score * scale", "score"))
    shapes = [Shape(3, 8, seq_len, 64) for seq_len in (48, 96, 192)]
    monkeypatch.setattr(tune, "SHAPES", shapes)
    path = tune.tune()
    made = tuning.load(torch.cuda.get_device_name())
    assert path == tuning.path(made.device)
    assert [(one.seq_len, one.rung, one.tile) for one in made.choices] == [
        (48, "plain", "short"),
        (96, "plain", "short"),
    ]
    assert all(one.latency_us > 0 for one in made.choices)
    assert ran(registry.find("kernel.best"), Shape(3, 8, 64, 64)) == "plain<__half, 64, false, 0>"
