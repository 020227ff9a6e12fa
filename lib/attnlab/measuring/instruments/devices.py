"""The device that a run measures on."""

import gc
import hashlib
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from attnlab.base.errors import UserError
from attnlab.base.texts import PLAIN

HOST_DIGITS = 12
"""Digits of the hash that identifies a host without its name."""


def resolve(wanted: str) -> torch.device:
    """The device for ``auto``, ``cuda`` or ``cpu``.

    Raises:
        UserError: ``cuda`` was asked for and torch sees no NVIDIA GPU.
    """
    there = torch.cuda.is_available()
    if wanted == "cuda" and not there:
        instead = "use DEVICE=cpu, or render a recorded run by `make report RUN=<name>`"
        raise UserError(f"cuda was asked for, but torch sees no NVIDIA GPU here: {instead}")
    return torch.device("cuda" if there and wanted != "cpu" else "cpu")


def describe(device: torch.device) -> dict[str, Any]:
    """The device as the manifest describes it: ``kind`` is ``cuda`` or ``cpu``, sizes are in bytes."""
    if device.type != "cuda":
        return {
            "kind": "cpu",
            "name": _plain(_cpu_name()),
            "threads": torch.get_num_threads(),
            "l2_bytes": _largest_cpu_cache_bytes(),
            "memory_bytes": int(_entry("/proc/meminfo", "MemTotal").removesuffix("kB") or 0) * 1024,
        }
    properties: Any = torch.cuda.get_device_properties(device)
    return {
        "kind": "cuda",
        "name": _plain(properties.name),
        "compute_capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "threads_per_multiprocessor": properties.max_threads_per_multi_processor,
        "registers_per_multiprocessor": properties.regs_per_multiprocessor,
        "shared_bytes_per_multiprocessor": properties.shared_memory_per_multiprocessor,
        "l2_bytes": properties.L2_cache_size,
        "memory_bytes": properties.total_memory,
    }


def last_level_cache_bytes(device: torch.device) -> int:
    """The size of the cache that a ``cold`` sample has to empty."""
    return int(describe(device)["l2_bytes"])


def host() -> dict[str, str]:
    """The start of the SHA-256 of the host's name, its CPU by model, and the governor of the first core's clock.

    The governor is "" if the system doesn't report it.
    """
    return {
        "host": hashlib.sha256(platform.node().encode()).hexdigest()[:HOST_DIGITS],
        "cpu": _cpu_name(),
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").strip(),
    }


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def release(device: torch.device) -> None:
    """Return the memory that torch's allocator caches to the device."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


@contextmanager
def no_garbage_collected() -> Iterator[None]:
    """A context without garbage collection, which could destroy a CUDA graph and so spoil a capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _plain(name: str) -> str:
    """A name with only the characters that a run may have, see `texts.PLAIN`."""
    return " ".join("".join(re.findall(PLAIN, name)).split())


def _cpu_name() -> str:
    return _entry("/proc/cpuinfo", "model name") or platform.processor() or platform.machine()


def _largest_cpu_cache_bytes() -> int:
    sizes = [path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    scale = {"K": 2**10, "M": 2**20}
    # If the system doesn't report it, 32 MiB: more than the last-level cache of most laptops.
    return max((int(size[:-1]) * scale[size[-1]] for size in sizes), default=32 * 2**20)


def _entry(path: str, name: str) -> str:
    """The value in the first line `name: …` of a file; "" without one."""
    found = re.search(rf"^{name}\s*:(.*)$", _read(path), re.MULTILINE)
    return found[1].strip() if found else ""


def _read(path: str) -> str:
    return Path(path).read_text() if Path(path).is_file() else ""
