"""The peak rates of the device, measured in the run itself: ceilings of bandwidth, products and exponentials."""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import torch

from attnlab.measuring.clocks import cuda_events
from attnlab.measuring.fp8.quantize import multiplies
from attnlab.measuring.instruments import devices
from attnlab.measuring.instruments.telemetry import Telemetry
from attnlab.measuring.session import wgmma
from attnlab.study.implementations import E4M3

SAMPLES = 20
WARMUP = 3
GPU_MATRIX = 8192
CPU_MATRIX = 2048
LONGEST_US = 5e5
"""The longest product that is measured, estimated from the product of half its size."""
WGMMA_ROUNDS = 512
"""About as many FLOPs on an H200 as the library's product, so that the power of both averages over the same time."""
NO_GPU, NO_CUPY = "not measured: the device is no NVIDIA GPU", "not measured: CuPy is not installed"
Ceiling = dict[str, Any]


def measure(device: torch.device, dtypes: list[str]) -> dict[str, Ceiling]:
    """The ceilings of this device, as ``{name: {"unit", "samples", "sm_clock_mhz", "how"}}``.

    A ceiling that can't be measured here has no samples, and ``how`` says why.
    """
    found = {f"matmul.{dtype}": _matrix_product(device, dtype) for dtype in dtypes}
    found |= {f"wgmma.{dtype}": _wgmma(device, dtype) for dtype in dtypes if dtype in wgmma.DTYPES}
    found["copy"] = _copy(device)
    if why := _no_kernels(device):
        found |= {"l2": _missing("GB/s", why), "exponentials": _missing("Gexp/s", why)}
    else:
        module = wgmma.compiled(Path(__file__).with_suffix(".cu"))
        found |= {"l2": _l2(device, module), "exponentials": _exponentials(device, module)}
    devices.release(device)
    return found


def _matrix_product(device: torch.device, dtype: str) -> Ceiling:
    if dtype == E4M3 and device.type == "cuda" and not multiplies(device):
        return _missing("TFLOP/s", f"not measured: a product in {E4M3} needs compute capability 8.9")
    largest = GPU_MATRIX if device.type == "cuda" else CPU_MATRIX
    size = _matrix_size(device, dtype, largest)
    how = f"{size}x{size}x{size} {dtype} product on standard normal data"
    if size < largest:
        how += f", the fastest of those that take no longer than {LONGEST_US / 1e6:g} s"
    return _ceiling(device, _product(device, dtype, size), 2 * size**3 / 1e12, "TFLOP/s", how)


def _matrix_size(device: torch.device, dtype: str, largest: int) -> int:
    """The largest matrix size; if its product would take too long, the smaller size with the highest rate."""
    rates: dict[int, float] = {}
    for size in (largest // 8, largest // 4, largest // 2):
        work = _product(device, dtype, size)
        took_us = min(cuda_events.timed_us(device, work) for _ in range(WARMUP))
        rates[size] = size**3 / took_us
        if 8 * took_us > LONGEST_US:
            return max(rates, key=lambda size: rates[size])
    return largest


def _product(device: torch.device, dtype: str, size: int) -> Callable[[], object]:
    a, b = (torch.randn(size, size, device=device).to(getattr(torch, dtype)) for _ in range(2))
    if dtype == E4M3:
        one = torch.ones((), device=device)
        return lambda: torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


def _wgmma(device: torch.device, dtype: str) -> Ceiling:
    capability = devices.describe(device).get("compute_capability", wgmma.CAPABILITY)
    if capability != wgmma.CAPABILITY:
        why = f"not measured: wgmma needs compute capability {wgmma.CAPABILITY}, and this device has {capability}"
        return _missing("TFLOP/s", why)
    if why := _no_kernels(device):
        return _missing("TFLOP/s", why)
    product = wgmma.Wgmma(device, dtype)
    where = f"two warpgroups on each of {product.blocks} multiprocessors"
    how = f"wgmma.m64n256k{product.step} in {dtype} on standard normal data in shared memory, {where}"
    amount = product.flops(WGMMA_ROUNDS) / 1e12
    return _ceiling(device, lambda: product(WGMMA_ROUNDS), amount, "TFLOP/s", how)


def _copy(device: torch.device) -> Ceiling:
    size = 2**32 if device.type == "cuda" else 2**28
    source = torch.ones(size, dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    how = f"copy of {size / 2**30:g} GiB, bytes read and bytes written both counted"
    return _ceiling(device, lambda: target.copy_(source), 2 * size / 1e9, "GB/s", how)


def _no_kernels(device: torch.device) -> str:
    """The reason why this device can't run a ceiling that needs one of this project's kernels, or ""."""
    return NO_GPU if device.type != "cuda" else "" if find_spec("cupy") else NO_CUPY


def _missing(unit: str, why: str) -> Ceiling:
    return {"unit": unit, "samples": [], "sm_clock_mhz": None, "how": why}


def _l2(device: torch.device, module: Any) -> Ceiling:
    # A third of the L2 stays there under any replacement policy, also if each half of a split L2 keeps a copy.
    elements, passes = devices.last_level_cache_bytes(device) // 3 // 16, 40
    held, blocks = torch.ones(elements * 4, dtype=torch.float32, device=device), 4 * wgmma.multiprocessors(device)
    launch = partial(wgmma.launch, module.get_function("read_l2"), blocks, 512, held, elements, passes, held)
    how = f"{passes} reads of a set of {elements * 16 / 2**20:.0f} MiB, past the L1"
    return _ceiling(device, launch, passes * elements * 16 / 1e9, "GB/s", how)


def _exponentials(device: torch.device, module: Any) -> Ceiling:
    rounds, threads, blocks = 4096, 256, 8 * wgmma.multiprocessors(device)
    sink = torch.zeros(1, device=device)
    launch = partial(wgmma.launch, module.get_function("exponentials"), blocks, threads, rounds, sink)
    how = f"ex2.approx, eight independent chains in each of {blocks * threads} threads"
    return _ceiling(device, launch, 8 * rounds * threads * blocks / 1e9, "Gexp/s", how)


def _ceiling(device: torch.device, work: Callable[[], object], amount: float, unit: str, how: str) -> Ceiling:
    telemetry = Telemetry(device)
    for _ in range(WARMUP):
        cuda_events.timed_us(device, work)
    samples, seen = [], []
    for _ in range(SAMPLES):
        samples.append(amount / (cuda_events.timed_us(device, work) * 1e-6))
        seen.append(telemetry.read().sm_clock_mhz)
    known = [clock for clock in seen if clock is not None]
    return {"unit": unit, "samples": samples, "sm_clock_mhz": median(known) if known else None, "how": how}
