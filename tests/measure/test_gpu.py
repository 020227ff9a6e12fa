"""The measuring half on an NVIDIA GPU: `make test OF=gpu`."""

import math
import re

import numpy as np
import pytest
import torch
from conftest import EVERY_TIMING, told

from attnlab.measuring.clocks import cuda_events
from attnlab.measuring.gate.gate import Gate
from attnlab.measuring.instruments import devices, environment, inspection, telemetry
from attnlab.measuring.instruments.telemetry import Telemetry
from attnlab.measuring.session import ceilings, wgmma
from attnlab.measuring.subjects import inputs
from attnlab.measuring.subjects.case import Case
from attnlab.measuring.subjects.implementation import OutOfMemory, Unsupported, attempt
from attnlab.measuring.subjects.sdpa import REGISTRY
from attnlab.study.shapes import Shape
from attnlab.study.studies import Timing

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("locked_gpu", "released")]

GPU = torch.device("cuda")
FUSED = ("sdpa.flash", "sdpa.cudnn", "sdpa.efficient")


def case_of(name, shape, seed=0):
    """A case and its inputs."""
    windows = inputs.Windows(shape, GPU, cuda_events.most_calls(shape))
    windows.draw(seed)
    return Case.of(REGISTRY[name], windows), windows[0]


def called(case):
    with case.selected():
        return case.call()


def captured(name, shape, seed=0, pool=None):
    """A case after its first call, with captured graphs."""
    case, _ = case_of(name, shape, seed)
    called(case)
    cuda_events.capture(case, pool or torch.cuda.graph_pool_handle())
    return case


def replayed(replay):
    """The output of a graph after a replay."""
    replay.output.fill_(torch.nan)
    replay.graph.replay()
    torch.cuda.synchronize()
    return replay.output


# Correctness


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", [*FUSED, "sdpa.math", "sdpa.auto"])
def test_attention_over_one_key_is_its_value(name, causal, head_dim, dtype):
    case, (_, _, v) = case_of(name, Shape(2, 4, 1, head_dim, causal, dtype))
    try:
        output, refused = attempt(lambda: called(case)), ""
    except Unsupported as error:
        output, refused = None, str(error).lower()
    if refused:  # only cuDNN may refuse, and it has to give the reason
        assert (name, "seq" in refused) == ("sdpa.cudnn", True), refused
    else:
        assert torch.equal(output, v)


def test_float32_is_computed_without_tf32_which_would_show_in_the_gate():
    case, drawn = case_of("sdpa.math", Shape(2, 4, 256, 64, dtype="float32"))
    gate = Gate(drawn, False)
    check = gate.examine(lambda: called(case))
    assert check.passed, check.reason
    assert check.error.maximum < 1e-5
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        check = gate.check(called(case))
    finally:
        environment.lock()
    assert not check.passed
    assert check.error.maximum > 1e-5


def test_backends_run_kernels_of_their_own():
    ran = {}
    for name in (*FUSED, "sdpa.math"):
        case, _ = case_of(name, Shape(4, 8, 512, 64))
        called(case)
        with case.selected():
            ran[name] = inspection.kernels(case.call, GPU)
    assert all(ran.values())
    assert len({names[0] for names in ran.values()}) == 4
    assert len(ran["sdpa.math"]) > 1
    assert "flash" in ran["sdpa.flash"][0].lower(), ran
    assert re.search("cudnn|sm90", ran["sdpa.cudnn"][0].lower()), ran


def test_flash_in_float32_is_unsupported_and_says_that_it_is_the_dtype():
    case, _ = case_of("sdpa.flash", Shape(1, 2, 64, 64, dtype="float32"))
    assert "dtype" in told(lambda: attempt(lambda: called(case)), Unsupported).lower()


@pytest.mark.alone
def test_out_of_memory_is_told_and_leaves_the_device_usable():
    # 32·8·16384² scores of 2 bytes are 128 GiB, and the softmax needs twice that.
    case, _ = case_of("sdpa.math", Shape(32, 8, 16384, 64))
    assert "out of memory" in told(lambda: attempt(lambda: called(case)), OutOfMemory)
    devices.release(GPU)
    small, drawn = case_of("sdpa.math", Shape(1, 2, 64, 64))
    assert Gate(drawn, False).check(called(small)).passed


def test_peak_memory_holds_output_and_scores():
    shape = Shape(4, 8, 512, 64)
    given, tensor, peaks = 3 * shape.bytes // 4, shape.bytes // 4, {}
    for name in ("sdpa.flash", "sdpa.math"):
        case, _ = case_of(name, shape)
        called(case)
        with case.selected():
            peaks[name] = inspection.peak_memory_bytes(case.call, given, GPU)
    assert peaks["sdpa.flash"] >= given + tensor
    assert peaks["sdpa.math"] >= given + tensor + 2 * shape.scores
    assert peaks["sdpa.math"] > peaks["sdpa.flash"]


# Clocks


@pytest.mark.parametrize("name", [*FUSED, "sdpa.math"])
def test_a_captured_graph_computes_from_the_inputs_as_they_are(name):
    case = captured(name, Shape(2, 4, 128, 64, causal=True))
    first = called(case).clone()
    assert 1 <= case.many.calls <= cuda_events.GRAPH_CALLS
    case.windows.draw(1)
    for replay in (case.one, case.many, case.cut):
        assert Gate(case.windows[replay.window], True).check(replayed(replay)).passed
        assert not torch.equal(replay.output, first)
    assert (case.one.window, case.many.window) == (0, 0)
    assert 1 < case.cut.calls < case.many.calls
    assert case.cut.calls + case.cut.window == case.many.calls


def test_cases_that_share_a_pool_do_not_disturb_each_other():
    shape, pool = Shape(2, 4, 128, 64), torch.cuda.graph_pool_handle()
    cases = [captured(f"sdpa.{name}", shape, seed, pool) for seed, name in enumerate(("flash", "math", "efficient"))]
    for case in [*cases, *reversed(cases)]:
        for replay in (case.one, case.many):
            torch.testing.assert_close(replayed(replay), called(case), rtol=0, atol=2e-3)


@pytest.mark.parametrize("timing", EVERY_TIMING, ids=lambda timing: f"{timing['clock']} {timing['cache']}")
def test_every_clock_takes_samples(timing):
    case = captured("sdpa.flash", Shape(2, 4, 128, 64))
    take = cuda_events.sampler(GPU, Timing(**timing))
    samples = [take(case) for _ in range(20)]
    assert all(0 < sample.latency_us < 1e6 for sample in samples)
    expected = case.many.calls if timing in EVERY_TIMING[:2] else 1
    assert {sample.launches for sample in samples} == {expected}


@pytest.mark.alone
def test_the_eager_clock_sees_the_launch_gap_that_the_device_clock_leaves_out():
    case = captured("sdpa.flash", Shape(1, 1, 64, 64))
    takes = (cuda_events.sampler(GPU, Timing(clock=clock, cache="warm")) for clock in ("device", "eager"))
    device_us, eager_us = (float(np.median([take(case).latency_us for _ in range(50)])) for take in takes)
    assert device_us < eager_us


def test_the_clock_ticks_within_a_microsecond():
    calibrated = cuda_events.calibrate(GPU)
    assert 0 < calibrated["tick_us"] <= 1
    assert 0 <= calibrated["nothing_us"] < calibrated["smallest_graph_us"]


# The machine


def test_telemetry_gives_clock_and_power():
    card = telemetry.Telemetry(GPU)
    assert card.unavailable == ""
    a = torch.randn(4096, 4096, device=GPU, dtype=torch.float16)
    for _ in range(50):
        a @ a
    torch.cuda.synchronize()
    reading = card.read()
    assert 100 < reading.sm_clock_mhz <= card.limits()["sm_clock_max_mhz"]
    assert 10 < reading.power_w < 2000
    assert reading.throttled in (True, False)
    assert card.limits()["power_limit_w"] > 50
    assert card.driver[0].isdigit()


def test_the_device_is_the_one_that_torch_sees():
    described = devices.describe(devices.resolve("auto"))
    assert described["kind"] == "cuda"
    assert described["name"] == torch.cuda.get_device_name()
    assert described["multiprocessors"] > 0
    assert described["l2_bytes"] > 2**20


def test_the_environment_is_locked_and_names_driver_and_cudnn():
    found = environment.fingerprint(GPU, environment.packages(GPU))
    assert found["settings"] == {name: wanted for name, (_, wanted) in environment.SETTINGS.items()}
    assert found["cuda"] == torch.version.cuda
    assert int(found["cudnn"]) > 90000
    assert found["driver"][0].isdigit()
    assert environment.fingerprint(GPU, environment.packages(GPU))["hash"] == found["hash"]


@pytest.mark.alone
def test_every_ceiling_is_had_in_order_and_none_is_above_the_datasheet():
    units = dict.fromkeys(("matmul.float16", "matmul.float32"), "TFLOP/s")
    units |= {"copy": "GB/s", "l2": "GB/s", "exponentials": "Gexp/s"}
    measured = ceilings.measure(GPU, ["float16", "float32"])
    for name, unit in units.items():
        found = measured[name]
        assert (found["unit"], len(found["samples"])) == (unit, ceilings.SAMPLES)
        assert all(0 < sample < math.inf for sample in found["samples"])
        assert found["sm_clock_mhz"] > 100
    median = {name: float(np.median(found["samples"])) for name, found in measured.items() if found["samples"]}
    assert median["matmul.float16"] > median["matmul.float32"]
    assert median["l2"] > median["copy"]
    if "H200" in torch.cuda.get_device_name():
        most = {"matmul.float16": 1.05 * 989, "copy": 4800, "matmul.float32": 1.05 * 67}
        assert [name for name, peak in most.items() if max(measured[name]["samples"]) >= peak] == []


@pytest.fixture
def hopper():
    """Skips devices without compute capability 9.0."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma is of compute capability 9.0")


@pytest.mark.parametrize("dtype", wgmma.DTYPES)
def test_wgmma_computes_the_product_as_often_as_it_says(hopper, dtype):
    product = wgmma.Wgmma(GPU, dtype)
    exact = product.a.double() @ product.b.double().T
    for rounds in (1, 3):
        product(rounds)
        off = (product.out.double() - rounds * exact).norm() / (rounds * exact).norm()
        assert off < (1e-2 if product.a.itemsize == 1 else 1e-3)  # tensor cores add products of e4m3 with few bits


@pytest.mark.alone
def test_wgmma_takes_time_in_proportion_to_its_rounds(hopper):
    # If ptxas removed products from the loop, they would take no time.
    product = wgmma.Wgmma(GPU, "float16")
    once, twice = (
        np.median([cuda_events.timed_us(GPU, lambda rounds=rounds: product(rounds)) for _ in range(20)])
        for rounds in (ceilings.WGMMA_ROUNDS, 2 * ceilings.WGMMA_ROUNDS)
    )
    assert 1.8 < twice / once < 2.3


@pytest.mark.alone
@pytest.mark.parametrize("dtype", wgmma.DTYPES)
def test_wgmma_comes_near_the_peak_and_not_past_it(hopper, dtype):
    found = ceilings._wgmma(GPU, dtype)
    assert found["unit"] == "TFLOP/s"
    assert len(found["samples"]) == ceilings.SAMPLES
    # 4096 FLOPs a clock and multiprocessor, 8192 with 8 bits, at the highest SM clock of the GPU.
    clocks_mhz = (
        torch.cuda.get_device_properties(GPU).multi_processor_count * Telemetry(GPU).limits()["sm_clock_max_mhz"]
    )
    peak = 8192 / getattr(torch, dtype).itemsize * clocks_mhz * 1e-6
    assert peak / 2 < np.median(found["samples"]) < peak
