"""The measuring half on the CPU: locked settings, checks before timing, and clear errors."""

import hashlib
import math
import os
import platform
import random
import re
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import ladders
import numpy as np
import pytest
import torch
from conftest import HonestFor, small_copy, tiny_study, told, torch_as_it_was

from attnlab.base import documents
from attnlab.compile import check, nvrtc, occupancy
from attnlab.measuring.clocks import cuda_events, originals
from attnlab.measuring.gate.check import Check, Error
from attnlab.measuring.instruments import devices, environment, inspection, telemetry
from attnlab.measuring.instruments.telemetry import Reading, Telemetry
from attnlab.measuring.session import cases, ceilings, record, wgmma
from attnlab.measuring.session.subject import Job, Session
from attnlab.measuring.subjects import inputs, oracle, outputs, registry, sdpa
from attnlab.measuring.subjects.case import Case
from attnlab.measuring.subjects.implementation import Broken, Implementation, OutOfMemory, Unsupported, attempt
from attnlab.measuring.subjects.sdpa import REGISTRY
from attnlab.runs import read, schema, write
from attnlab.study import implementations, ladder
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing

CPU = torch.device("cpu")
LOCKED = {name: wanted for name, (_, wanted) in environment.SETTINGS.items()}


# The locked environment


MEDDLED = [
    (partial(torch.set_float32_matmul_precision, "medium"), "float32_matmul_precision", "medium"),
    # torch also reports this flag through the precision, which is asserted first.
    (partial(setattr, torch.backends.cuda.matmul, "allow_tf32", True), "float32_matmul_precision", "high"),
    (partial(setattr, torch.backends.cudnn, "allow_tf32", True), "tf32_cudnn", True),
    (partial(setattr, torch.backends.cudnn, "benchmark", True), "cudnn_benchmark", True),
    (partial(setattr, torch.backends.cudnn, "deterministic", False), "cudnn_deterministic", False),
    (partial(torch.use_deterministic_algorithms, False), "deterministic_algorithms", False),
    (partial(torch.use_deterministic_algorithms, True), "deterministic_warn_only", False),
    (partial(setattr, torch.utils.deterministic, "fill_uninitialized_memory", True), "fill_uninitialized_memory", True),
    (partial(os.environ.update, CUBLAS_WORKSPACE_CONFIG=":16:8"), "cublas_workspace_config", ":16:8"),
    (partial(torch.manual_seed, 7), "seed", 7),
]


def test_locking_holds_whatever_was_set_before_and_seeds_every_generator(unlocked):
    drawn = set()
    for _ in range(2):
        for meddle, *_ in MEDDLED:
            meddle()
        environment.lock()
        assert environment.settings() == LOCKED
        assert torch.initial_seed() == 42
        drawn.add((random.random(), np.random.rand(), torch.rand(()).item()))
    assert len(drawn) == 1


@pytest.mark.parametrize(
    ("meddle", "setting", "found"), MEDDLED, ids=lambda value: value if isinstance(value, str) else None
)
def test_a_setting_that_does_not_hold_stops_the_run(unlocked, monkeypatch, meddle, setting, found):
    seed = torch.manual_seed

    def seed_and_meddle(value):
        seed(value)
        meddle()

    monkeypatch.setattr(torch, "manual_seed", seed_and_meddle)
    assert told(environment.lock) == (
        f"the environment is not locked: {setting} is {found!r} and must be {LOCKED[setting]!r}; nothing was measured"
    )


def test_the_fingerprint_is_the_same_twice_and_changes_with_its_content(locked, monkeypatch):
    first = environment.fingerprint(CPU, environment.PACKAGES)
    assert environment.fingerprint(CPU, environment.PACKAGES) == first
    assert first["hash"] == documents.digest({key: value for key, value in first.items() if key != "hash"})
    assert first["settings"] == LOCKED
    assert first["packages"]["torch"] == torch.__version__
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    second = environment.fingerprint(CPU, environment.PACKAGES)["hash"]
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    assert len({first["hash"], second, environment.fingerprint(CPU, environment.PACKAGES)["hash"]}) == 3


# Inputs


@pytest.mark.skipif(torch.__version__ < (2, 13), reason="PyTorch 2.11 draws other values of each dtype on a CPU")
def test_inputs_of_another_dtype_are_the_same_values_rounded():
    fine, coarse = (inputs.draw(Shape(1, 2, 8, 16, dtype=d), 3, CPU) for d in ("float32", "bfloat16"))
    assert all(torch.equal(a.bfloat16(), b) for a, b in zip(fine, coarse, strict=True))


def test_each_purpose_shape_and_replicate_has_inputs_of_its_own():
    shape, other = Shape(1, 1, 8, 16), Shape(1, 1, 8, 16, causal=True)
    first, second = session_of(0), session_of(1)
    seeds = [s.seed(x, p) for s in (first, second) for x in (shape, other) for p in ("before", "timed", "after")]
    assert len(set(seeds)) == 12
    assert session_of(0).seed(shape, "timed") == first.seed(shape, "timed")


def session_of(replicate, study=None):
    return Session(Job("run", study or tiny_study(), "cpu", replicate, ()), CPU, Telemetry(CPU), 0.0)


# Implementations of attention


@pytest.mark.parametrize("causal", [False, True])
def test_walking_over_heads_changes_nothing(monkeypatch, causal):
    drawn = [x.double() for x in inputs.draw(Shape(2, 3, 9, 8, causal), 5, CPU)]
    whole = oracle.composed(*drawn, causal)
    for chunk in (1, 2 * 9 * 9, 3 * 9 * 9 + 1, 5 * 9 * 9):
        monkeypatch.setattr(oracle, "REFERENCE_CHUNK", chunk)
        torch.testing.assert_close(oracle.composed(*drawn, causal), whole, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: torch.empty(10**13), OutOfMemory, r".*DefaultCPUAllocator.*"),
        (Mock(side_effect=torch.OutOfMemoryError("no memory.\nTried")), OutOfMemory, r"no memory\. Tried"),
        (Mock(side_effect=RuntimeError("no such\n  thing")), Unsupported, "no such thing"),
        # SDPA of nested tensors raises this with a CUDA build of torch on a machine without CUDA.
        (Mock(side_effect=torch.AcceleratorError("no driver\nCompile with more options")), Unsupported, "no driver"),
        (lambda: 1 / 0, ZeroDivisionError, "division by zero"),
    ],
)
def test_attempt_tells_refusal_memory_and_mistakes_apart(call, error, said):
    assert attempt(lambda: 7) == 7
    with pytest.raises(error) as caught:
        attempt(call)
    assert re.fullmatch(said, str(caught.value))


def test_a_refusal_carries_the_reason_that_torch_warned_of():
    def refuses():
        for words in (
            "Flash attention kernel not used because: (Triggered internally at x.cpp:1)",
            "Math runtime disabled. (Triggered internally at x.cpp:2)",
            "Expected query to be Half,\nbut saw Float. (Triggered internally at x.cpp:3)",
        ):
            warnings.warn(words, stacklevel=1)
        raise RuntimeError("No available kernel. Aborting execution.")

    assert told(lambda: attempt(refuses), Unsupported) == "Expected query to be Half, but saw Float."


# The gate


def test_an_error_is_the_largest_and_the_mean_over_every_element_and_infinite_where_one_is_not_finite():
    oracle = torch.zeros(3, 50, 2, 4, dtype=torch.float64)  # more heads than one slab holds
    output = oracle.clone()
    output[2, 49, 1, 3] = -6.0
    output[0, 0, 0, 0] = 3.0
    assert Error.between(output, oracle) == Error(6.0, 9.0 / 1200)
    for value in (math.nan, math.inf, -math.inf):
        output[0, 0, 1, 1] = value
        assert Error.between(output, oracle) == Error(math.inf, math.inf)


def test_twice_the_frameworks_own_error_is_allowed():
    wrong = {(2.001, 0.1): False, (1.0, 0.2001): False, (math.inf, math.inf): False}
    for (maximum, mean), passed in {(2.0, 0.2): True, (0.0, 0.0): True, **wrong}.items():
        check = Check(Error(maximum, mean), Error(1.0, 0.1))
        assert check.passed is passed
        stated = f"max {maximum:.2e} mean {mean:.2e}, allowed 2x max 1.00e+00 mean 1.00e-01"
        assert check.reason == f"error against float64: {stated}"


def test_memory_is_poisoned_inside_and_only_there(locked):
    # Large enough: fresh memory from the system is zero anyway.
    with outputs.guarded(outputs.POISONS[0]):
        assert torch.isnan(torch.empty(2**20)).all()
    assert torch.utils.deterministic.fill_uninitialized_memory is False
    with pytest.raises(ZeroDivisionError), outputs.guarded(outputs.POISONS[0]):
        1 / 0  # noqa: B018
    assert torch.utils.deterministic.fill_uninitialized_memory is False


def off(*given):
    return sdpa.sdpa(*given) + 1e-2


ODD = {
    "wrong": (
        off,
        schema.FAILED,
        "before timing, call: error against float64: max .*",
        {"before": False},
    ),
    "late": (  # right for 8 calls: the first 2, and those of the gate before timing
        HonestFor(8, off),
        schema.FAILED,
        "while timed, eager warm, round 0: error against sdpa.flash on the same.*",
        {"before": True},
    ),
    "broken": (Mock(side_effect=Broken("plain.cu does not compile")), schema.FAILED, "plain.cu does not compile", {}),
    "greedy": (lambda *_: torch.empty(10**13), schema.OUT_OF_MEMORY, ".*DefaultCPUAllocator.*", {}),
    "hungry": (
        HonestFor(1, Mock(side_effect=torch.OutOfMemoryError("there was none left"))),
        schema.OUT_OF_MEMORY,
        "there was none left",
        {},
    ),
}
SHAPE = {"batch": 1, "heads": 4, "seq_len": 32, "head_dim": 64, "dtype": "float32"}
ONE_LENGTH = {"target": SHAPE, "sweeps": {"seq_len": SHAPE}, "replicates": 1}


@pytest.fixture(scope="module")
def mixed(machine, tmp_path_factory):
    """A run with implementations that are right, absent, wrong at once or while timed, or out of memory. Read-only."""
    names = [*tiny_study().implementations, "sdpa.cudnn", "sdpa.efficient", *map("kernel.{}".format, ODD)]
    known = {*implementations.known(), *names}
    with pytest.MonkeyPatch.context() as patch, torch_as_it_was():
        patch.setenv("ATTNLAB_DATA", os.fspath(tmp_path_factory.mktemp("mixed")))
        patch.setattr(implementations, "known", lambda named=None: known)
        for name, (call, *_) in ODD.items():
            patch.setitem(registry._KNOWN, f"kernel.{name}", Implementation(f"kernel.{name}", call))
        # If no call is too long, there is a single call before: "late" counts calls.
        study = tiny_study(implementations=names, samples=12, warmup_calls=45, longest_call_ms=1e9, **ONE_LENGTH)
        write.create("mixed", machine | {"study": study.model_dump(mode="json"), "missing_clocks": []})
        return read.load(record.record("mixed", study, "cpu", ThreadPoolExecutor(1)))


@pytest.mark.parametrize("name", ODD)
def test_who_fails_is_reported_and_the_rest_goes_on(mixed, name):
    _, status, reason, checks = ODD[name]
    case = mixed.cases.set_index("implementation").loc[f"kernel.{name}"]
    assert case["status"] == status
    assert re.fullmatch(reason, case["reason"])
    own = mixed.checks[mixed.checks["implementation"] == f"kernel.{name}"]
    assert own.groupby("moment")["passed"].all().to_dict() == checks


def test_what_the_cpu_does_not_have_is_skipped_with_a_reason_and_the_rest_measured(mixed):
    cases = mixed.cases.set_index("implementation")
    for name in ("sdpa.cudnn", "sdpa.efficient"):
        assert cases.at[name, "status"] == "skipped"
        # torch's own message, which depends on the version
        assert re.match(r"No (viable backend|available kernel)\b", cases.at[name, "reason"])
        assert "\n" not in cases.at[name, "reason"]
    right = tiny_study().subjects
    assert cases.index[cases["status"] == "measured"].tolist() == right
    assert set(mixed.samples["implementation"]) == {*right, "kernel.late"}
    assert set(mixed.checks["implementation"]) == {*right, "kernel.wrong", "kernel.late"}


def test_a_block_is_interleaved_in_rounds(mixed):
    rounds = mixed.samples.groupby("round")
    assert rounds.ngroups == 12
    assert all(sorted(block["implementation"]) == sorted({*block["implementation"]}) for _, block in rounds)
    assert all(sorted(block["position"]) == [*range(5)] for _, block in rounds)
    assert len({tuple(block["implementation"]) for _, block in rounds}) > 2
    assert mixed.samples["started_s"].is_monotonic_increasing


def test_a_case_that_was_measured_tells_its_operators_memory_and_warm_up(mixed):
    cases = mixed.cases.set_index("implementation").loc[tiny_study().implementations]
    assert "flash" in cases.at["sdpa.flash", "kernels"]
    assert "flash" not in cases.at["sdpa.math", "kernels"]
    assert cases["warmup_calls"].between(50, 200).all()
    assert (cases["warmup_calls"] % 10 == 0).all()
    tensor = 4 * 32 * 64 * 4
    assert (cases["peak_memory_bytes"] >= 4 * tensor).all()
    assert cases.at["sdpa.math", "peak_memory_bytes"] > cases.at["sdpa.flash", "peak_memory_bytes"]


def test_a_run_in_which_nothing_could_be_measured_is_still_a_run(begin, one_thread, unlocked):
    study = tiny_study(implementations=["sdpa.cudnn"], baseline="sdpa.cudnn", **ONE_LENGTH)
    run = read.load(record.record(begin(study), study, "cpu", one_thread))
    assert run.complete
    assert run.cases["status"].tolist() == ["skipped"] * 2
    assert run.samples.empty
    assert run.checks.empty


def test_what_is_only_in_another_sweep_is_skipped(begin, one_thread, unlocked):
    lengths = ONE_LENGTH["sweeps"]["seq_len"]
    more = {"sweeps": {"seq_len": lengths, "long": lengths | {"seq_len": 64}}, "replicates": 1}
    study = tiny_study(**(ONE_LENGTH | more), only_in={"sdpa.math": ["long"]})
    run = read.load(record.record(begin(study), study, "cpu", one_thread))
    skipped = run.cases[run.cases["status"] != "measured"]
    assert skipped[["implementation", "seq_len"]].to_numpy().tolist() == [["sdpa.math", study.target_shape.seq_len]]
    assert skipped["reason"].tolist() == ["the study has it in other sweeps only"]


# Clocks


def test_a_sample_on_the_cpu_is_one_call_with_its_backend_selected():
    seen = []
    case = Case(lambda: seen.append(torch.backends.cuda.math_sdp_enabled()), REGISTRY["sdpa.flash"].selected)
    # A warm call follows the same work, a cold one follows other work.
    for cache, calls in {"warm": 2, "cold": 1}.items():
        taken = cuda_events.sampler(CPU, Timing(clock="eager", cache=cache))(case)
        assert (taken.launches, seen) == (1, [False] * calls)
        assert 0 < taken.latency_us < math.inf
        seen.clear()
    cuda_events.roughly_us(case, CPU, calls=1)
    assert seen == [False]
    assert torch.backends.cuda.math_sdp_enabled()


def test_a_cold_sample_writes_twice_the_cache(monkeypatch):
    monkeypatch.setattr(devices, "last_level_cache_bytes", lambda device: 1000)
    flush = cuda_events.flushing(CPU)
    written = flush.__self__.fill_(1)
    assert written.nbytes == 2000
    flush()
    assert not written.any()


def test_latency_is_in_microseconds_of_the_clock(monkeypatch):
    now = iter([1_000, 8_500, 0, 40_000])
    monkeypatch.setattr(originals, "perf_counter_ns", lambda: next(now))
    assert cuda_events.timed_us(CPU, lambda: None) == 7.5
    assert cuda_events.roughly_us(Case(lambda: None, REGISTRY["sdpa.auto"].selected), CPU, calls=10) == 4.0


# Observations of a call


def test_peak_memory_is_that_held_at_once_and_not_the_sum():
    def one_after_the_other():
        for _ in range(4):
            held = torch.empty(2**20, dtype=torch.int8)
            del held
        return torch.empty(2**18, dtype=torch.int8)

    peak = inspection.peak_memory_bytes(one_after_the_other, 1000, CPU)
    assert 2**20 + 1000 <= peak < 2 * 2**20


def test_inspection_keeps_the_profilers_chatter_from_the_error_stream(capfd):
    inspection.kernels(lambda: torch.ones(4) + 1, CPU)
    inspection.peak_memory_bytes(lambda: torch.ones(4) + 1, 0, CPU)
    print("still there", file=__import__("sys").stderr)
    assert capfd.readouterr().err == "still there\n"


# Ceilings, device, telemetry


def test_ceilings_of_the_cpu(monkeypatch):
    monkeypatch.setattr(ceilings, "CPU_MATRIX", 32)
    monkeypatch.setattr(ceilings, "_copy", small_copy)
    found = ceilings.measure(CPU, ["float32", "bfloat16"])
    assert {name: ceiling["unit"] for name, ceiling in found.items()} == {
        "matmul.float32": "TFLOP/s", "matmul.bfloat16": "TFLOP/s", "wgmma.bfloat16": "TFLOP/s", "copy": "GB/s",
        "l2": "GB/s", "exponentials": "Gexp/s",
    }  # fmt: skip
    for name in ("wgmma.bfloat16", "l2", "exponentials"):
        assert found[name]["samples"] == []
        assert found[name]["how"] == "not measured: the device is no NVIDIA GPU"
    for ceiling in (found["matmul.float32"], found["matmul.bfloat16"], found["copy"]):
        assert len(ceiling["samples"]) == ceilings.SAMPLES
        assert all(0 < sample < math.inf for sample in ceiling["samples"])
        assert ceiling["sm_clock_mhz"] is None
    assert found["matmul.bfloat16"]["how"] == "32x32x32 bfloat16 product on standard normal data"


def test_the_wgmma_kernel_compiles_for_a_multiprocessor_of_hopper(monkeypatch):
    pytest.importorskip("cuda.bindings.nvrtc")
    monkeypatch.setenv("ATTNLAB_KERNELS", os.fspath(Path(wgmma.__file__).parent))
    names = [f"wgmma_{dtype}" for dtype in wgmma.DTYPES]
    rung = ladder.Rung.model_validate(ladders.rung(source="wgmma.cu", function=names[0], architectures=["sm_90a"]))
    build = nvrtc.build(rung, "sm_90a", names)
    assert set(build.instances) == set(names)
    assert check.wrong(rung, "sm_90a", build) == []  # no spills, and no wgmma that ptxas serialized
    shared_bytes = (wgmma.ROWS + wgmma.COLUMNS) * wgmma.ROW_BYTES
    for needs in build.instances.values():
        assert occupancy.ctas_per_sm(occupancy.LIMITS["90"], wgmma.THREADS, needs.registers, shared_bytes) == 1


def test_a_ceiling_is_the_amount_over_the_time(monkeypatch):
    calls = []

    def took(device, work):
        work()
        return 500.0

    monkeypatch.setattr(cuda_events, "timed_us", took)
    found = ceilings._ceiling(CPU, lambda: calls.append(1), 3.0, "GB/s", "three GB")
    assert found["samples"] == [pytest.approx(6000.0)] * 20
    assert len(calls) == ceilings.WARMUP + 20
    monkeypatch.setattr(ceilings, "CPU_MATRIX", 100)
    assert ceilings._matrix_product(CPU, "float32")["samples"][0] == pytest.approx(2 * 100**3 / 500e-6 / 1e12)


def test_the_device_is_chosen(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert devices.resolve("auto") == devices.resolve("cpu") == CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert devices.resolve("auto") == devices.resolve("cuda") == torch.device("cuda")
    assert devices.resolve("cpu") == CPU


def test_throttling_is_told_from_idling():
    slowed = dict.fromkeys((0x4, 0x8, 0x20, 0x40, 0x80), True)  # nvml.h: power cap, slowdowns, power brake
    for reasons, throttled in (slowed | {None: None, 0x1: False, 0x103: False}).items():
        assert Reading(throttle_reasons=reasons).throttled is throttled


ANSWERS = {  # without temperature and MIG
    "nvmlInit": None,
    "nvmlDeviceGetHandleByUUID": "card",
    "nvmlSystemGetDriverVersion": "580.65",
    "nvmlDeviceGetMaxClockInfo": 1980,
    "nvmlDeviceGetClockInfo": 1980,
    "nvmlDeviceGetEnforcedPowerLimit": 700_000,
    "nvmlDeviceGetPowerUsage": 412_500,
    "nvmlDeviceGetComputeMode": 0,
    "nvmlDeviceGetPersistenceMode": 1,
    "nvmlDeviceGetEccMode": [0, 1],  # now, and after the next reboot
    "nvmlDeviceGetCurrentClocksThrottleReasons": 0x4,
}


class Nvml:
    """A card that gives `answers` to a limited number of questions."""

    NVMLError = type("NVMLError", (Exception,), {})
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self, answers: dict[str, Any] = ANSWERS, most: int = 1000) -> None:
        self._answers, self._left = answers, most

    def __getattr__(self, question):
        def answer(*_):
            self._left -= 1
            if self._left < 0 or question not in self._answers:
                raise self.NVMLError("GPU is lost")
            return self._answers[question]

        return answer


class H200:
    """The properties of a card: each is a number, except its name and its UUID."""

    name = "NVIDIA H200"

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid

    def __getattr__(self, name):
        return 9


@pytest.fixture
def insert(monkeypatch):
    """A function that installs an NVIDIA H200 with this UUID in the machine."""

    def insert(uuid: str) -> torch.device:
        monkeypatch.setattr(telemetry, "pynvml", Nvml())
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: H200(uuid))
        return torch.device("cuda")

    return insert


def test_another_card_of_the_same_type_is_told_by_its_hash_and_is_the_same_environment(locked, insert):
    names = {"1234": "15988266132e", "5678": "5e686c21af6f"}  # printf GPU-1234 | sha256sum
    assert {uuid: telemetry.card(insert(uuid)) for uuid in names} == names
    one, another = (environment.fingerprint(insert(uuid), environment.PACKAGES) for uuid in names)
    assert one == another
    assert not re.search("|".join([*names, *names.values()]), str(one))


def test_of_a_cpu_nothing_is_read_and_it_says_why():
    empty, why = Telemetry(CPU), "the device is no NVIDIA GPU"
    assert empty.read() == Reading(None, None, None, None)
    assert (empty.unavailable, empty.limits(), empty.driver) == (why, {"unavailable": why}, "n/a")
    assert empty.modes() == {"ecc": None, "power_limit_w": None, "persistence": None, "mig": None}
    assert telemetry.card(CPU) == ""


def test_the_host_names_its_cpu_and_what_governs_its_clock(tmp_path, monkeypatch):
    assert devices.host()["cpu"] == devices.describe(CPU)["name"]
    files = {"/proc/cpuinfo": "processor: 0\nmodel name\t: Imaginary CPU\n"}
    monkeypatch.setattr(devices, "_read", lambda path: files.get(path, ""))
    host = hashlib.sha256(platform.node().encode()).hexdigest()[:12]
    assert devices.host() == {"host": host, "cpu": "Imaginary CPU", "governor": ""}
    files["/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"] = "powersave\n"
    assert devices.host()["governor"] == "powersave"


def test_telemetry_reads_what_the_card_answers(insert):
    card = Telemetry(insert("1234"))
    assert card.unavailable == ""
    assert card.read() == Reading(sm_clock_mhz=1980, power_w=412.5, temperature_c=None, throttle_reasons=4)
    assert card.modes() == {"ecc": False, "power_limit_w": 700.0, "persistence": True, "mig": None}


def test_a_warm_up_goes_on_until_it_is_steady(monkeypatch):
    def warmed(windows, study):
        seen = iter(windows)
        monkeypatch.setattr(cuda_events, "roughly_us", lambda case, device, calls: next(seen))
        return cases._warm_up(session_of(0, study), Case(lambda: None, REGISTRY["sdpa.auto"].selected))

    study = tiny_study()
    assert warmed([10.0, 10.1], study) == {"warmup_calls": 20, "steady": True}
    assert warmed([30.0, 20.0, 10.0, 9.9], study) == {"warmup_calls": 40, "steady": True}
    never = warmed([float(2**i) for i in range(20)], study)
    assert never == {"warmup_calls": 200, "steady": False}
    longer = study.model_copy(update={"warmup_calls": 41})
    assert warmed([10.0] * 5, longer) == {"warmup_calls": 50, "steady": True}


def test_inputs_that_do_not_fit_leave_every_case_out_of_memory(monkeypatch):
    monkeypatch.setattr(cases, "Windows", Mock(side_effect=torch.OutOfMemoryError("no room")))
    recorded = {}
    monkeypatch.setattr(write, "add_part", lambda run, table, key, rows: recorded.update({table: rows}))
    study = tiny_study()
    cases.measure_shape(session_of(0, study), study.shapes[0])
    assert list(recorded["cases"]["status"]) == ["out of memory"] * len(study.subjects)
    assert recorded["cases"]["reason"].str.startswith("Q, K and V don't fit: no room").all()
    assert recorded["checks"].empty
