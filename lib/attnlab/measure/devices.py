"""The device that a run measures on."""

import platform
from pathlib import Path
from typing import Any

import torch

from attnlab.errors import UserError


def resolve(wanted: str) -> torch.device:
    """The device for ``auto``, ``cuda`` or ``cpu``.

    Raises:
        UserError: ``cuda`` was asked for and torch sees no NVIDIA GPU.
    """
    there = torch.cuda.is_available()
    if wanted == "cuda" and not there:
        raise UserError("device: cuda was asked for, but torch sees no NVIDIA GPU here: use device=cpu, or RUN=<name>")
    return torch.device("cuda" if there and wanted != "cpu" else "cpu")


def describe(device: torch.device) -> dict[str, Any]:
    """What the device is, as the manifest keeps it: sizes in bytes, ``kind`` is ``cuda`` or ``cpu``."""
    return _describe_gpu(device) if device.type == "cuda" else _describe_cpu()


def last_level_cache_bytes(device: torch.device) -> int:
    """Size of the cache that ``cold`` has to empty."""
    return int(describe(device)["l2_bytes"])


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all that was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def release(device: torch.device) -> None:
    """Give memory that the allocator only caches back to the device."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _describe_gpu(device: torch.device) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(device)
    return {
        "kind": "cuda",
        "name": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "threads_per_multiprocessor": properties.max_threads_per_multi_processor,
        "registers_per_multiprocessor": properties.regs_per_multiprocessor,  # type: ignore[attr-defined]
        "shared_bytes_per_multiprocessor": properties.shared_memory_per_multiprocessor,
        "l2_bytes": properties.L2_cache_size,
        "memory_bytes": properties.total_memory,
    }


def _describe_cpu() -> dict[str, Any]:
    return {
        "kind": "cpu",
        "name": _cpu_name(),
        "threads": torch.get_num_threads(),
        "l2_bytes": _largest_cpu_cache_bytes(),
        "memory_bytes": _memory_bytes(),
    }


def _cpu_name() -> str:
    for line in _read("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _largest_cpu_cache_bytes() -> int:
    sizes = [path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    scale = {"K": 2**10, "M": 2**20}
    # Where the kernel doesn't say, 32 MiB: larger than most laptops' last level.
    return max((int(size[:-1]) * scale[size[-1]] for size in sizes), default=32 * 2**20)


def _memory_bytes() -> int:
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemTotal"):
            return int(line.split()[1]) * 1024
    return 0


def _read(path: str) -> str:
    return Path(path).read_text() if Path(path).is_file() else ""
