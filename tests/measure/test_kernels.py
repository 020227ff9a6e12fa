"""Kernels without a GPU: NVRTC's code, CTAs per multiprocessor, and unsupported shapes."""

import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from ctypes import sizeof
from functools import partial
from itertools import count, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ladders
import pandas as pd
import pytest
import torch
from conftest import Quickly, tiny_study, told
from ladders import SOURCE, TILE, rung

from attnlab import __main__
from attnlab.base import paths
from attnlab.base.errors import UserError
from attnlab.compile import check, nvrtc, occupancy
from attnlab.compile.nvrtc import Build, Instance
from attnlab.measuring.clocks import originals
from attnlab.measuring.kernels import launch, maps, rungs
from attnlab.measuring.kernels.problem import Packing
from attnlab.measuring.session import record
from attnlab.measuring.subjects import registry
from attnlab.measuring.subjects.implementation import Broken, Implementation, Unsupported
from attnlab.measuring.subjects.sdpa import sdpa
from attnlab.runs import read, schema
from attnlab.runs import stale as changed_since
from attnlab.runs.tables import SHARED, TABLES
from attnlab.study import ladder, tuning
from attnlab.study.shapes import Shape
from attnlab.study.tuning import TileChoice


@pytest.fixture
def compiler():
    """Skips if the extra `kernels` is not installed."""
    pytest.importorskip("cuda.bindings.nvrtc")


@pytest.fixture
def command(capsys, monkeypatch) -> Callable[..., tuple[int, str, str]]:
    """The command in this process: its exit status, its output, and its errors."""
    monkeypatch.setattr(check, "ProcessPoolExecutor", ThreadPoolExecutor)
    return lambda *options: (__main__.main(["kernels", *options]), *capsys.readouterr())


# Compilation


BODY = SOURCE[SOURCE.index("    const int tiles") : SOURCE.rindex("}")]
EMPTY = SOURCE.replace(BODY, "")  # compiles faster
HALF_ALONE = {"dtypes": ["float16"], "architectures": ["sm_80"]}


def test_every_instance_is_compiled_for_every_architecture(folder, compiler, command, monkeypatch):
    monkeypatch.setattr(check, "ProcessPoolExecutor", ProcessPoolExecutor)
    ladders.write(folder, rung(TILE, TILE | {"head_dim": 32}, dtypes=["float16"]), source=EMPTY)
    returned, out, error = command()
    assert (returned, error) == (0, "")
    heading, *lines, note = out.splitlines()
    assert heading.split()[:3] == ["rung", "architecture", "D"]
    assert {tuple(line.split()[:3]) for line in lines} == set(product(["plain"], ["sm_80", "sm_90a"], ["64", "32"]))
    assert all("full, causal" in line and line.endswith((" A100", " H200")) for line in lines)
    assert note.endswith("ctas at B=32 H=8 S=512")


def test_a_rung_is_compiled_alone(folder, compiler, command):
    ladders.write(folder, rung(**HALF_ALONE), rung(name="other", **HALF_ALONE), source=EMPTY)
    assert {line.split()[0] for line in command("--rung=other")[1].splitlines()[1:-1]} == {"other"}
    said = "attnlab: the ladder has no rung for 'kernel.others'; did you mean 'kernel.other'?\n"
    assert command("--rung=others") == (1, "", said)


STORAGE = {
    "tiled": "Shared<__half, {D}, {template}>",
    "wgmma": "SharedStorage<{D}, {template}>",
    "overlap": "SharedStorage<{D}, {template}>",
    "jobs": "SharedStorage<Plan<{D}, {template}>>",
    "bounded": "SharedStorage<Plan<{D}, {template}>>",
    "short": "SharedStorage<{D}, {template}>",
    "lazy": "SharedStorage<Plan<{D}, {template}, true>>",
}


@pytest.fixture
def copied(compiler, tmp_path, monkeypatch):
    """A copy of the project's kernels."""
    monkeypatch.setenv("ATTNLAB_KERNELS", str(tmp_path / "kernels"))
    return Path(shutil.copytree(paths.ROOT / "kernels", tmp_path / "kernels"))


@pytest.mark.parametrize("name", STORAGE)
def test_the_shared_memory_of_a_tile_is_what_the_kernel_declares(name, copied):
    one = ladder.rung(f"kernel.{name}")
    with open(copied / one.source, "a") as source:
        for tile in one.tiles:
            storage = STORAGE[name].format(D=tile.head_dim, template=", ".join(map(str, tile.template.values())))
            source.write(f'static_assert(sizeof({storage}) == {tile.shared_bytes}, "{tile.title}");\n')
    assert not nvrtc.build(one, one.architectures[-1], []).error


SHARED_BYTES = {  # for sources without a structure of shared memory, by head_dim and template
    "mma": lambda d: 2 * (3 * 64 * d + 64 * 64),
    "swizzled": lambda d: 2 * 2 * 64 * d,
    "pipelined": lambda d, warps, mtiles, keys, ctas: 2 * d * (16 * mtiles * warps + 4 * keys),
    "few": lambda d, rows, warps, keys, stages, **_: 2 * d * (rows + 2 * stages * keys),
    "caches": lambda d, rows, warps, keys, stages, **_: 2 * d * (rows + 2 * stages * keys),
    "pairs": lambda d, rows, warps, keys, stages: 2 * d * (rows + 2 * stages * keys),
}


@pytest.mark.parametrize("name", SHARED_BYTES)
def test_the_shared_memory_of_a_tile_follows_from_its_template(name):
    for tile in ladder.rung(f"kernel.{name}").tiles:
        assert tile.shared_bytes == SHARED_BYTES[name](tile.head_dim, **tile.template), tile.title


def test_what_splits_keys_is_launched_as_its_source_declares(copied):
    few = ladder.rung("kernel.few")
    with open(copied / few.source, "a") as source:
        source.write(f'static_assert(sizeof(Packing) == {sizeof(Packing)}, "the problem");\n')
        source.write(f'static_assert(Partial<64>::SIZE == 64 + {rungs.PARTIAL_EXTRA}, "the workspace");\n')
    build = nvrtc.build(few, few.architectures[-1], [merge := few.merge_expression("float16", few.tiles[0])])
    assert not build.error
    assert build.instances[merge].most_threads == launch.MERGE_THREADS
    assert build.instances[merge].parameters == (8, 8, 8, sizeof(Packing))
    with_maps = (*check.PASSED["pointers", "packing"], sizeof(Packing), maps.BYTES, maps.BYTES)
    assert check.PASSED["tensor maps", "packing"] == with_maps


def test_an_error_in_a_header_names_the_header_and_an_instance_that_is_not_there_is_one(folder, compiler):
    ladders.write(folder, rung(TILE | {"template": {"n": 7}}))
    (one,) = ladder.load()
    build = nvrtc.build(one, "sm_80", [one.expression("float16", one.tiles[0], False)])
    assert build.error.startswith(f"{folder}/plain.cu does not compile as plain<...> with ")
    assert "error" in build.error.split("--ptxas-options=-v: ")[1]
    (folder / "widen.cuh").write_text(ladders.HEADER + "int nothing = nought;\n")
    build = nvrtc.build(one, "sm_80", ["plain<__half, 64, false>"])
    assert f'{folder}/widen.cuh(6): error: identifier "nought" is undefined' in build.error
    assert "\n" not in build.error


BROKEN = "float score = 0.f;"


@pytest.mark.parametrize(
    ("entry", "source", "said"),
    [
        (
            *(rung(), SOURCE.replace(BROKEN, "float score = nought;")),
            "{folder}/plain.cu does not compile as plain<...> with -std=c++17 -arch=sm_80 -I{folder} "
            f"--ptxas-options=-v: {{folder}}/plain.cu({SOURCE[: SOURCE.index(BROKEN)].count(chr(10)) + 1}): error: "
            'identifier "nought" is undefined; likewise for sm_90a',
        ),
        (rung(function="plane", dtypes=["float16"]), EMPTY, "no kernel `plane` in plain.cu; did you mean 'plain'?"),
        (
            *(rung(arguments="tensor maps", dtypes=["float16"]), EMPTY),
            "plain.cu: `plain` takes pointers and plain, and the ladder says "
            '`arguments = "tensor maps"` and `parameters = "plain"`',
        ),
        (
            rung(TILE | {"threads": 96}, dtypes=["float16"]),
            EMPTY.replace("__global__ void plain", "__global__ void __launch_bounds__(64) plain"),
            "plain.cu: `plain` is written for 64 threads (`__launch_bounds__`), and the tile for head_dim 64, "
            "which has `rows = 64`, says `threads = 96`",
        ),
    ],
)
def test_an_entry_that_does_not_fit_its_kernel_is_told_once(folder, compiler, command, entry, source, said):
    ladders.write(folder, entry, source=source)
    assert command()[::2] == (1, f"attnlab: {said.format(folder=folder)}\n")


def test_what_has_not_changed_is_not_compiled_again(folder, compiler, command, monkeypatch):
    ladders.write(folder, rung(**HALF_ALONE), source=EMPTY)
    compiled, compile_ = [], nvrtc.build
    monkeypatch.setattr(nvrtc, "build", lambda *given: compiled.append(given) or compile_(*given))
    first = command()
    assert (len(compiled), command()) == (1, first)
    (folder / "widen.cuh").write_text(ladders.HEADER + "struct Another;\n")
    assert (command(), len(compiled)) == (first, 2)
    for kept in (folder / check.CACHE).iterdir():
        kept.write_text("{")
    assert (command(), len(compiled)) == (first, 3)


def test_a_spill_is_an_error_unless_it_is_declared(folder, compiler, command):
    source = SOURCE.replace("__global__ void plain", "__global__ void __launch_bounds__(1024, 2) plain")
    source = source.replace("for (int d", '_Pragma("unroll") for (int d')
    tile = TILE | {"threads": 1024}
    ladders.write(folder, rung(tile, **HALF_ALONE), source=source)
    returned, _, error = command()
    *_, last = error.splitlines()
    assert returned == 1
    assert last.startswith("attnlab: plain.cu for sm_80: plain<__half, 64, true> spills ")
    assert last.endswith(" bytes, and the ladder declares 0 (`spill_bytes`)")
    ladders.write(folder, rung(tile, **HALF_ALONE, spill_bytes=100_000), source=source)
    assert command()[::2] == (0, "")


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        ("64, 10, 5, 0, 5", "more registers than the CTA has"),  # 5 consumers
        ("64, 10, 4, 1, 8", "consumers that take turns need one job each of every pass"),
    ],
)
def test_a_plan_that_would_hang_is_refused(compiler, plan, reason):
    build = nvrtc.build(ladder.rung("kernel.bounded"), "sm_90a", [f"bounded<__half, 64, false, {plan}>"])
    assert reason in build.error


def test_without_nvrtc_it_says_what_brings_it(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    (one,) = ladder.load()
    with pytest.raises(UserError, match="NVRTC and CUDA's headers are not installed: `make kernels` brings them"):
        nvrtc.build(one, "sm_80", ["plain"])


# The messages of ptxas

LOG = """\
ptxas info    : 4 bytes gmem, 8 bytes cmem[4]
ptxas info    : Compiling entry function '_Z1aIfEv' for 'sm_90a'
ptxas info    : Function properties for _Z1aIfEv
ptxas         .     96 bytes stack frame, 100 bytes spill stores, 120 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 96 bytes cumulative stack size, 4128 bytes smem, 380 bytes cmem[0]
ptxas info    : Compile time = 139.880 ms
ptxas info    : Compiling entry function '_Z1bIfEv' for 'sm_90a'
ptxas info    : Function properties for _Z1bIfEv
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 0 barriers, 380 bytes cmem[0]
"""
SERIALISED = (
    "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to "
    "insufficient register resources for the wgmma pipeline in the function '_Z1aIfEv'"
)
IGNORED = "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored to maintain compatibility"


def test_the_report_is_read_by_entry():
    assert nvrtc.report(LOG) == {"_Z1aIfEv": Instance(255, 120, 4128), "_Z1bIfEv": Instance(40, 0, 0)}
    assert nvrtc.warnings(LOG) == ()


@pytest.mark.parametrize("line", [SERIALISED, SERIALISED.replace("(C7510) ", ""), IGNORED, "ptxas warning : odd"])
def test_lost_performance_is_a_warning_once(line):
    (said,) = nvrtc.warnings(f"{LOG}{line}\n{line}\n")
    assert said == " ".join(line.split())


def test_a_warning_is_wrong(folder):
    (one,) = ladder.load()
    build = Build({"plain": Instance(40, 0, 0)}, warnings=(SERIALISED,))
    assert check.wrong(one, "sm_90a", build) == [f"plain.cu for sm_90a: {SERIALISED}"]
    assert check.wrong(one, "sm_90a", Build({"plain": Instance(40, 0, 0)})) == []


# Occupancy


@pytest.mark.parametrize(
    ("number", "threads", "registers", "shared_bytes", "ctas"),
    [
        # 100 registers take 13 granules a warp, 3328 registers: 4 warps fit a quarter (13312).
        ("80", 128, 100, 0, 4),
        # 168 x 32 = 5376: 3 warps fit a quarter, 12 in all: one CTA of 12 warps.
        ("90", 384, 168, 200_000, 1),
        # By shared memory: 164 KiB over 49152 + 1024 bytes.
        ("80", 128, 32, 49152, 3),
        # A byte more than the largest CTA may have.
        ("90", 128, 32, 227 * 1024 + 1, 0),
        # By warps: 64; by CTAs: 32.
        ("90", 1024, 32, 0, 2),
        ("90", 32, 16, 0, 32),
        # Half a warp counts as a warp.
        ("80", 33, 255, 0, 4),
    ],
)
def test_ctas_on_one_multiprocessor(number, threads, registers, shared_bytes, ctas):
    assert occupancy.ctas_per_sm(occupancy.LIMITS[number], threads, registers, shared_bytes) == ctas


# Calls, as far as they need no GPU


class OnGpu(torch.Tensor):
    """A tensor that reports a GPU."""

    @property
    def device(self):
        return torch.device("cuda")

    @property
    def is_cuda(self):
        return True


def on_gpu(*size, dtype=torch.float16) -> torch.Tensor:
    return torch.zeros(size, dtype=dtype).as_subclass(OnGpu)


Q = on_gpu(2, 3, 8, 64)


PLAIN, VIEWS = {}, {"arguments": "tensor maps", "parameters": "problem"}
SPLIT = {"parameters": "packing", "merge": "merge", "most_queries": 8}
FULL, CAUSAL, MANY, ONE = (False,), (True,), on_gpu(1, 8, 64, 64), on_gpu(2, 1, 8, 64)


@pytest.mark.parametrize(
    ("entry", "q", "k", "v", "rest", "reason"),
    [
        (PLAIN, Q, ONE, Q, FULL, "takes Q, K and V of one shape (batch, heads, seq_len, head_dim), not (2, 3, 8, "),
        (PLAIN, Q, Q, on_gpu(2, 3, 9, 64), FULL, "takes Q, K and V of one shape"),
        (PLAIN, Q[0], Q[0], Q[0], FULL, "takes Q, K and V of one shape"),
        (PLAIN, Q, Q, Q, (False, 0.5), "scales scores by 1/√head_dim, not by 0.5"),
        (PLAIN, Q.float(), Q.float(), Q.float(), FULL, "serves float16 and bfloat16, not float32"),
        (PLAIN, Q, Q.bfloat16(), Q, FULL, "serves float16 and bfloat16, not float16, bfloat16"),
        (PLAIN, *[Q.transpose(1, 2)] * 3, FULL, "takes contiguous Q, K and V"),
        (PLAIN, *[on_gpu(2, 3, 8, 128)] * 3, FULL, "has no tile for 8 keys of head_dim 128 and the mask full"),
        (PLAIN, *[on_gpu(1, 1, 101, 64)] * 3, FULL, "has no tile for 101 keys of head_dim 64 and the mask full"),
        (VIEWS, Q[0], Q[0], Q[0], FULL, "takes Q (batch, heads, seq_len, head_dim), K and V"),
        (VIEWS, Q, Q, on_gpu(2, 3, 9, 64), FULL, "takes Q (batch, heads, seq_len, head_dim), K and V"),
        (VIEWS, Q, Q[:1], Q[:1], FULL, "takes Q (batch, heads, seq_len, head_dim), K and V"),
        (VIEWS, Q, Q[:, :2], Q[:, :2], FULL, "takes as many heads of K and V as divide those of Q"),
        (VIEWS, Q, Q[:, :0], Q[:, :0], FULL, "takes as many heads of K and V as divide those of Q"),
        (VIEWS, Q[:, :, :0], Q, Q, FULL, "serves no queries of (2, 3, 0, 64)"),
        (VIEWS, Q, *[Q[:, :, :7]] * 2, CAUSAL, "takes no more queries than keys under the causal mask, not 8 and 7"),
        (VIEWS, Q, Q, Q, (False, 0.0), "takes a scale above 0, not 0"),
        (VIEWS, Q, Q, Q, (False, float("nan")), "takes a scale above 0, not nan"),
        (VIEWS, Q, Q, Q, (False, 1e30), "takes a scale from 1e-30 to 1000, not 1e+30"),
        (VIEWS, on_gpu(2, 3, 64, 8).mT, Q, Q, FULL, "can't take Q: it has a stride of 8 between"),
        (VIEWS, Q, ONE.expand(2, 3, 8, 64), Q, FULL, "can't take K: it repeats itself in memory"),
        (VIEWS, Q, Q, on_gpu(2, 3, 8, 65)[..., :64], FULL, "can't take V: it has a stride of 130 bytes, which is"),
        (VIEWS, *[on_gpu(2**15, 1, 1, 64)] * 3, FULL, "serves at most 32,767 sequences in a batch, which queries of "),
        (SPLIT, MANY, MANY, MANY, FULL, "serves at most 8 queries of a head, not 64"),
        (SPLIT, Q, Q[:, :, :7], Q[:, :, :7], CAUSAL, "takes no more queries than keys under the causal mask"),
        (SPLIT | {"arguments": "tensor maps"}, Q, ONE, ONE, FULL, "serves heads of K and V that have an even number "),
    ],
)
def test_what_a_rung_does_not_serve_is_refused_in_a_sentence(folder, h200, entry, q, k, v, rest, reason):
    ladders.write(folder, rung(TILE | {"longest": 100}, **entry))
    said = told(lambda: rungs.implementation("kernel.plain").call(q, k, v, *rest), Unsupported)
    assert said.startswith(f"plain {reason}")


# kernel.best, as far as it needs no GPU


choice = partial(ladders.choice, heads=6, seq_len=8, latency_us=1.0)


def tuned(*choices: TileChoice, **named) -> Path:
    return tuning.write(ladders.tuned(*choices, **named))


def test_the_best_is_chosen_by_the_keys_and_by_what_takes_such_tensors(h200, folder):
    views = rung(TILE | {"name": "near"}, TILE | {"name": "far"}, name="views", **VIEWS)
    ladders.write(folder, rung(TILE | {"name": "short"}, TILE | {"name": "long"}), views)
    named = {"rung": "views", "latency_us": 1.5}
    tuned(choice("short"), choice("long", seq_len=64), choice("near", **named), choice("far", seq_len=64, **named))
    best, more, turned = registry.find("kernel.best").call, on_gpu(2, 3, 60, 64), on_gpu(2, 8, 3, 64).transpose(1, 2)
    asked = {"short": (Q, Q, Q), "long": (more, more, more), "far": (Q, more, more), "near": (more, Q, Q)}
    special = [(Q, ONE, ONE, False), (Q, Q, turned, False), (Q, Q, Q, False, 0.5)]
    found = {name: best.kernel(*tensors, False).rung.tiles[0].name for name, tensors in asked.items()}
    assert found == {name: name for name in asked}
    assert [best.kernel(*tensors).rung.tiles[0].name for tensors in special] == ["near"] * 3


def test_where_there_is_no_best_it_says_why(h200, folder):
    ladders.write(folder, rung(TILE | {"name": "long"}))
    best = registry.find("kernel.best").call
    cpu = torch.zeros(1, 2, 8, 64, dtype=torch.float16)
    path = tuned(choice("long"))
    said = {
        "best is a CUDA kernel, and the device is no NVIDIA GPU": (cpu, False),
        "best takes Q, K and V (batch, heads, length, head_dim), not (3, 8, 64) and (3, 8, 64)": (Q[0], False),
        "the tuning of NVIDIA H200 chose nothing that serves (2, 3, 8, 64) float16, causal": (Q, True),
    }
    for reason, (q, causal) in said.items():
        assert told(partial(best, q, q, q, causal), Unsupported) == reason
    (folder / "plain.cu").write_text(SOURCE + "struct Another;\n")
    with pytest.raises(Unsupported, match=r"^kernel\.plain changed since it was tuned: run `make tune`$"):
        registry.find("kernel.best").call(Q, Q, Q, False)
    path.unlink()
    with pytest.raises(Unsupported, match=r"^no tuning for NVIDIA H200: run `make tune`$"):
        registry.find("kernel.best").call(Q, Q, Q, False)


def test_the_best_repeats_itself_if_every_rung_does(folder):
    assert registry.find("kernel.best").repeats
    ladders.write(folder, rung(), rung(name="second", reproducible=False))
    assert not registry.find("kernel.best").repeats


MEANT = {"INVALID_VALUE": Broken, "LAUNCH_OUT_OF_RESOURCES": Broken, "ILLEGAL_ADDRESS": torch.AcceleratorError}


@pytest.mark.parametrize(("error", "meant"), MEANT.items())
def test_a_launch_that_is_refused_is_told_from_a_device_that_failed(folder, error, meant):
    (one,), said = ladder.load(), f"CUDA_ERROR_{error}"
    failure = rungs._failure(one, one.tiles[0], "plain<__half, 64, false>", said)
    begins = f"{folder}/ladder.toml, rung 'plain', the tile for head_dim 64: the driver" if meant is Broken else said
    assert type(failure) is meant
    assert str(failure).startswith(begins)
    assert said in str(failure)


# In a run

HALF = {"batch": 1, "heads": 2, "seq_len": 16, "head_dim": 64, "dtype": "bfloat16"}


def study(**changes):
    only = {"target": HALF, "sweeps": {"seq_len": HALF}, "replicates": 1, "samples": 3}
    return tiny_study(**only | {"implementations": ["sdpa.auto", "kernel.plain"]} | changes)


def test_a_study_of_kernels_records_what_they_are_and_skips_them_on_a_cpu(folder, data, one_thread, unlocked):
    stated = study(implementations=["sdpa.auto", "kernel.plain", "kernel.best"])
    run = read.load(record.record("one", stated, "cpu", Quickly(one_thread)))
    assert run.manifest["kernels"] == ladder.hashes()
    assert run.manifest["ladder"] == [ladder.load()[0].model_dump(mode="json")]
    fates = run.cases.set_index("implementation")[["status", "reason"]].to_dict("split")
    assert dict(zip(fates["index"], map(tuple, fates["data"]), strict=True)) == {
        "sdpa.auto": ("measured", ""),
        "control.sdpa.auto": ("measured", ""),
        "kernel.plain": ("skipped", "plain is a CUDA kernel: Q, K and V have to lie on one NVIDIA GPU"),
        "kernel.best": ("skipped", "best is a CUDA kernel, and the device is no NVIDIA GPU"),
    }
    assert run.resources.empty
    assert set(run.samples["implementation"]) == {"sdpa.auto", "control.sdpa.auto"}


def test_a_run_is_not_gone_on_with_once_the_tuning_changed(folder, begin, machine, unlocked):
    best = study(implementations=["sdpa.auto", "kernel.best"])
    begin(best)
    tuned(choice(""), device=machine["device"]["name"])
    with pytest.raises(UserError, match=r"^kernel\.best changed since the run 'begun' began: start a new run$"):
        record.record("begun", best, "cpu", ThreadPoolExecutor(1))


class Clock:
    """A clock that calls advance by their stated latency, and that each reading advances by 1 ns more than the last."""

    ns, steps = 0, count(1000)

    @classmethod
    def now(cls) -> int:
        cls.ns += next(cls.steps)
        return cls.ns


@pytest.fixture
def measured(folder, begin, one_thread, unlocked, monkeypatch):
    """Records a study in which a function of this process replaces kernel.plain, with `Clock` as its clock."""
    monkeypatch.setattr(originals, "perf_counter_ns", Clock.now)

    def measure(call, resources=None, **changes) -> schema.Run:
        find = registry.find
        ours = Implementation("kernel.plain", call, resources=resources)
        monkeypatch.setattr(registry, "find", lambda name: ours if name == "kernel.plain" else find(name))
        begin(study(**changes), kernels=ladder.hashes())
        return read.load(record.record("begun", study(**changes), "cpu", one_thread))

    return measure


def test_what_a_kernel_needs_is_recorded_and_a_call_that_was_held_up_once_is_timed(measured):
    own = [field.name for field in TABLES["resources"] if field not in SHARED]
    needs = dict.fromkeys(own, 1) | {"function": "plain<__half>", "architecture": "sm_90a"}
    asked, calls = [], []

    def resources(q, k, v, causal, scale):
        asked.append((tuple(q.shape), tuple(k.shape), tuple(v.shape), causal, scale))
        return needs

    def hiccups(q, k, v, causal):
        calls.append(1)
        if len(calls) == 2:  # the first call may compile
            Clock.ns += 200_000_000
        return sdpa(q, k, v, causal)

    run = measured(hiccups, resources, longest_call_ms=100)
    assert asked == [((1, 2, 16, 64),) * 3 + (False, None)]
    (row,) = run.resources.to_dict("records")
    assert {name: row[name] for name in needs} == needs
    assert (row["implementation"], row["seq_len"], row["replicate"]) == ("kernel.plain", 16, 0)
    assert row["process"] == run.processes["process"].item()
    assert set(run.cases["status"]) == {"measured"}


def test_a_call_that_takes_too_long_is_neither_checked_nor_timed(measured):
    def sleeps(q, k, v, causal):
        Clock.ns += 60_000_000
        return sdpa(q, k, v, causal)

    run = measured(sleeps, longest_call_ms=50)
    case = run.cases.set_index("implementation").loc["kernel.plain"]
    said, limit = case["reason"].split(" ms, ")
    assert (case["status"], limit) == ("skipped", "longer than the study's longest_call_ms of 50")
    assert float(said.removeprefix("one call takes ")) >= 60
    assert "kernel.plain" not in {*run.checks["implementation"], *run.samples["implementation"]}


# Outdated results


def test_evidence_is_stale_once_the_kernel_changed(folder, data):
    kernels = ladder.hashes() | {"kernel.gone": "1", "old.cu": "2"}
    study = {"implementations": list(kernels)}
    run = SimpleNamespace(manifest={"kernels": kernels, "device": {"name": "NVIDIA H200"}, "study": study})
    assert changed_since.stale(run) == {"kernel.gone": None}
    (folder / "widen.cuh").write_text(ladders.HEADER + "struct Another;\n")
    assert changed_since.stale(run) == dict.fromkeys(["kernel.plain", "kernel.gone"])
    (folder / "ladder.toml").unlink()
    assert changed_since.stale(run) == {}


def test_best_changed_at_the_shapes_at_which_it_would_launch_something_else(folder):
    def stale(manifest: dict[str, Any], resources: pd.DataFrame) -> changed_since.Changes:
        study = {"study": {"implementations": ["sdpa.auto", "kernel.best"]}}
        return changed_since.stale(SimpleNamespace(manifest=manifest | study, resources=resources))

    shapes = Shape(2, 3, 200, 64), Shape(2, 3, 300, 64, values="rising 24")  # choices don't depend on values
    (one,) = ladder.load()
    what = {"implementation": "kernel.best", "function": one.expression("float16", one.tiles[0], False)}
    rows = pd.DataFrame([{axis: getattr(shape, axis) for axis in Shape.AXES} | what for shape in shapes])
    manifest = {"kernels": ladder.hashes() | {"kernel.best": "1"}, "device": {"name": "NVIDIA H200"}}
    assert stale(manifest, rows) == {"kernel.best": None}  # there is no tuning
    tuned(choice(one.tiles[0].name))
    assert stale(manifest, rows) == {}
    rows.loc[1, "function"] = "plain<another>"
    assert stale(manifest, rows) == {"kernel.best": {shapes[1]}}
    same = manifest | {"kernels": tuning.hashes(["kernel.best"], "NVIDIA H200")}
    assert same["kernels"].keys() == {"kernel.best", "kernel.plain"}
    assert stale(same, rows) == {"kernel.best": {shapes[1]}}  # another rule chose the kernel
    assert stale(manifest | {"kernels": {"kernel.best": "1"}}, rows) == {"kernel.best": None}
