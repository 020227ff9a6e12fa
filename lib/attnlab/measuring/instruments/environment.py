"""Set the locked environment, assert that it holds, and record it."""

import gc
import os
import platform
import random
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from importlib import metadata
from typing import Any

import numpy as np
import torch

from attnlab.base import documents, rules
from attnlab.base.errors import Outdated, UserError
from attnlab.measuring.instruments import devices
from attnlab.measuring.instruments.telemetry import Telemetry
from attnlab.measuring.watch import Spoiled
from attnlab.runs import read, tuned
from attnlab.study import implementations

CUBLAS_WORKSPACE = ":4096:8"
PACKAGES = ("torch", "numpy")
"""The packages whose versions affect results on every device; on a GPU those of `ON_A_GPU` do too."""
ON_A_GPU = ("triton", "cupy-cuda13x", "nvidia-cuda-nvrtc", "nvidia-cudnn-cu13", "nvidia-cublas", "nvidia-ml-py")
NO_LIMIT = 2**31 - 1
MISSING = "n/a"
"""The version of a package that is not installed."""

Read = Callable[[], Any]
Write = Callable[[Any], Any]
SETTINGS: dict[str, tuple[Read, Any]] = {
    "float32_matmul_precision": (torch.get_float32_matmul_precision, "highest"),
    "tf32_matmul": (lambda: torch.backends.cuda.matmul.allow_tf32, False),
    "tf32_cudnn": (lambda: torch.backends.cudnn.allow_tf32, False),
    "cudnn_benchmark": (lambda: torch.backends.cudnn.benchmark, False),
    "cudnn_deterministic": (lambda: torch.backends.cudnn.deterministic, True),
    "deterministic_algorithms": (torch.are_deterministic_algorithms_enabled, True),
    "deterministic_warn_only": (torch.is_deterministic_algorithms_warn_only_enabled, True),
    "fill_uninitialized_memory": (
        lambda: torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        False,
    ),
    "cublas_workspace_config": (lambda: os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""), CUBLAS_WORKSPACE),
    "seed": (torch.initial_seed, rules.SEED),
}
"""The locked settings: the function that reads each from torch, and its locked value."""


def _unsettable(value: Any) -> None:
    raise RuntimeError(f"only what changed this can make it {value}")


def _attribute(owner: Any, name: str) -> tuple[Read, Write]:
    return partial(getattr, owner, name), partial(setattr, owner, name)


def _of_devices(read: Callable[[str], Any], write: Callable[[str, Any], None]) -> tuple[Read, Write]:
    def write_all(values: Mapping[str, Any]) -> None:
        for device, value in values.items():
            write(device, value)

    return lambda: {device: read(device) for device in ("cpu", "cuda")}, write_all


def _flushes_denormal() -> bool:
    return bool((torch.full((1,), 1e-39, dtype=torch.float32, device="cpu") * 1 == 0).item())


_CUDA, _MATMUL = torch.backends.cuda, torch.backends.cuda.matmul
KEPT: dict[str, tuple[Read, Write]] = {
    "default_device": (torch.get_default_device, lambda device: torch.set_default_device(None)),
    "default_dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "flash_sdp": (_CUDA.flash_sdp_enabled, _CUDA.enable_flash_sdp),
    "mem_efficient_sdp": (_CUDA.mem_efficient_sdp_enabled, _CUDA.enable_mem_efficient_sdp),
    "math_sdp": (_CUDA.math_sdp_enabled, _CUDA.enable_math_sdp),
    "cudnn_sdp": (_CUDA.cudnn_sdp_enabled, _CUDA.enable_cudnn_sdp),
    "fp16_bf16_reduction_math_sdp": (
        _CUDA.fp16_bf16_reduction_math_sdp_allowed,
        _CUDA.allow_fp16_bf16_reduction_math_sdp,
    ),
    "sdp_priority": (torch._C._get_sdp_priority_order, torch._C._set_sdp_priority_order),
    "fp16_reduction": _attribute(_MATMUL, "allow_fp16_reduced_precision_reduction"),
    "bf16_reduction": _attribute(_MATMUL, "allow_bf16_reduced_precision_reduction"),
    "cudnn_enabled": (partial(getattr, torch.backends.cudnn, "enabled"), torch._C._set_cudnn_enabled),
    "mkldnn_enabled": (torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled),
    "threads": (torch.get_num_threads, torch.set_num_threads),
    "interop_threads": (torch.get_num_interop_threads, torch.set_num_interop_threads),
    "autocast": _of_devices(torch.is_autocast_enabled, torch.set_autocast_enabled),
    "autocast_dtype": _of_devices(torch.get_autocast_dtype, torch.set_autocast_dtype),
    "autocast_cache": (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    "grad": (torch.is_grad_enabled, torch._C._set_grad_enabled),
    "anomaly": (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    "inference_mode": (torch.is_inference_mode_enabled, _unsettable),
    "function_modes": (torch._C._len_torch_function_stack, _unsettable),
    "dispatch_modes": (torch._C._len_torch_dispatch_stack, _unsettable),
    "flush_denormal": (_flushes_denormal, torch.set_flush_denormal),
    "garbage_collection": (gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
}
"""Settings that an implementation must restore: the functions that read and write each. They aren't locked: a study
is measured with those of the program."""


def lock() -> None:
    """Fix every setting that could change results or speed, then assert that it holds.

    Raises:
        UserError: a setting did not hold; nothing is measured then.
    """
    # cuBLAS reads it when its first handle is made, so it is set before anything touches the device.
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = CUBLAS_WORKSPACE
    # In this order: setting the precision also sets the TF32 flags.
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    # In strict mode SDPA silently refuses its cuDNN backend, whose backward pass is not deterministic.
    torch.use_deterministic_algorithms(True, warn_only=True)
    # The line above turns this on, which would fill every fresh tensor with NaN during the timed call.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    random.seed(rules.SEED)
    np.random.seed(rules.SEED)
    torch.manual_seed(rules.SEED)
    tuned.counted = False
    for setting, found in settings().items():
        if found != (wanted := SETTINGS[setting][-1]):
            raise UserError(
                f"the environment is not locked: {setting} is {found!r} and must be {wanted!r}; nothing was measured"
            )


@contextmanager
def kept() -> Iterator[list[str]]:
    """A context that at its end restores the locked settings and those of `KEPT`.

    Afterwards, the list holds the names of the settings that were changed.

    Raises:
        Spoiled: a setting can't be restored.
    """
    changed: list[str] = []
    before = settings() | _now(KEPT)
    try:
        yield changed
    finally:
        changed += [name for name, value in settings().items() if value != before[name]]
        if changed:
            lock()
        left = [name for name, value in _now(KEPT).items() if value != before[name]]
        for name in left:
            with suppress(RuntimeError):
                KEPT[name][1](before[name])
        changed += left
        if lasting := [name for name in left if KEPT[name][0]() != before[name]]:
            raise Spoiled(f"changed settings of torch that can't be put back: {', '.join(lasting)}")


def _now(table: Mapping[str, tuple]) -> dict[str, Any]:
    return {name: read() for name, (read, *_) in table.items()}


def compile_every_shape() -> None:
    """Remove the limit on recompilations of `torch.compile`, past which it would call a function uncompiled.

    If it gives up for another reason, it raises an error, and the case fails.
    """
    if "torch._dynamo" in sys.modules:  # else nothing is compiled yet
        config = sys.modules["torch._dynamo"].config
        config.recompile_limit = config.accumulated_recompile_limit = NO_LIMIT
        config.fail_on_recompile_limit_hit = True


def lock_as_begun(run: str, device: torch.device) -> None:
    """Lock the environment, and require it to be the one that a run began in.

    Raises:
        UserError: a setting did not hold.
        Outdated: the environment differs; the message names the parts that do.
    """
    lock()
    before = read.read_manifest(run)["environment"]
    found = fingerprint(device, before["packages"])
    if found["hash"] != before["hash"]:
        parts = [part for part in found if part not in ("hash", "packages") and found[part] != before.get(part)]
        packages = {name: was for name, was in before["packages"].items() if found["packages"][name] != was}
        versions = [f"{name} is {found['packages'][name]}, was {was}" for name, was in packages.items()]
        what = f" ({'; '.join([*versions, *parts])})" if versions or parts else ""
        undone = f"`{_installing(packages)}` undoes that, or " if packages and not parts else ""
        raise Outdated(f"the environment changed since the run {run!r} began{what}: {undone}start a new run")


def _installing(versions: Mapping[str, str]) -> str:
    """The command that installs these versions of packages."""
    wanted = [f"{name}=={version}" for name, version in versions.items() if version != MISSING]
    unwanted = [name for name, version in versions.items() if version == MISSING]
    steps = [("install", *wanted)] * bool(wanted) + [("uninstall", "--yes", *unwanted)] * bool(unwanted)
    return " && ".join(shlex.join([sys.executable, "-m", "pip", *step]) for step in steps)


def settings() -> dict[str, Any]:
    """The settings as they are now."""
    return _now(SETTINGS)


def packages(device: torch.device, named: Iterable[str] = ()) -> list[str]:
    """The packages that are imported to measure the implementations `named` on a device."""
    if device.type != "cuda":
        return [*PACKAGES]
    return [*PACKAGES, *ON_A_GPU, *(package for name in named for package in implementations.PACKAGES.get(name, ()))]


def fingerprint(device: torch.device, packages: Iterable[str]) -> dict[str, Any]:
    """Everything in the environment that a run's results may depend on, and its SHA-256 as ``hash``.

    Args:
        packages: those whose versions are included.
    """
    card = Telemetry(device)
    found = {
        "settings": settings(),
        "device": devices.describe(device),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": {package: _version(package) for package in packages},
        "cuda": torch.version.cuda or "n/a",
        "cudnn": str(torch.backends.cudnn.version()) if device.type == "cuda" else "n/a",
        "driver": card.driver,
        "card": card.limits(),
        "threads": torch.get_num_threads(),
    }
    return found | {"hash": documents.digest(found)}


def _version(package: str) -> str:
    if package == "torch":
        return torch.__version__
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return MISSING
