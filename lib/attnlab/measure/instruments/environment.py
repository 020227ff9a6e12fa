"""The locked environment: setting it, asserting that it holds, and recording what it is."""

import os
import platform
import random
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from typing import Any

import numpy as np
import torch

from attnlab.base import documents
from attnlab.base.errors import Outdated, UserError
from attnlab.measure.instruments import devices
from attnlab.measure.instruments.telemetry import Telemetry
from attnlab.runs import read, rules, tuned

CUBLAS_WORKSPACE = ":4096:8"
PACKAGES = ("torch", "numpy")
"""The packages whose versions results depend on, on every device; on a GPU those of `ON_A_GPU` too."""
ON_A_GPU = ("triton", "cupy-cuda13x", "nvidia-cuda-nvrtc", "nvidia-cudnn-cu13", "nvidia-cublas", "nvidia-ml-py")
OF_PEERS = {
    "peer.flash4": ("flash-attn-4", "nvidia-cutlass-dsl"),
    "peer.cudnn": ("nvidia-cudnn-frontend",),
    "peer.cudnn_fp8": ("nvidia-cudnn-frontend",),
    "peer.flashinfer": ("flashinfer-python", "apache-tvm-ffi"),
    "peer.xformers": ("xformers",),
}
"""On a GPU, by the implementation that imports them."""
MISSING = "n/a"
"""The version of a package that is not installed."""

SETTINGS: dict[str, tuple[Callable[[], Any], Any]] = {
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
"""The locked settings: how each is read back from torch, and what it is locked to."""


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
    # The line above turns it on: it would fill every fresh tensor with NaN inside the timed window.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    random.seed(rules.SEED)
    np.random.seed(rules.SEED)
    torch.manual_seed(rules.SEED)
    tuned.counted = False
    for setting, found in settings().items():
        if found != (wanted := SETTINGS[setting][1]):
            raise UserError(
                f"the environment is not locked: {setting} is {found!r} and must be {wanted!r}; nothing was measured"
            )


def lock_as_begun(run: str, expected: str, device: torch.device) -> None:
    """Lock the environment, and require it to be the one that a run began in.

    Args:
        expected: the hash of that environment.

    Raises:
        UserError: a setting did not hold.
        Outdated: the environment is another; the message names the parts that differ.
    """
    lock()
    before = read.read_manifest(run)["environment"]
    found = fingerprint(device, before["packages"])
    if found["hash"] != expected:
        parts = [part for part in found if part not in ("hash", "packages") and found[part] != before.get(part)]
        packages = {name: was for name, was in before["packages"].items() if found["packages"][name] != was}
        versions = [f"{name} is {found['packages'][name]}, was {was}" for name, was in packages.items()]
        what = f" ({'; '.join([*versions, *parts])})" if versions or parts else ""
        undone = f"`{_installing(packages)}` undoes that, or " if packages and not parts else ""
        raise Outdated(f"the environment changed since the run {run!r} began{what}: {undone}start a new run")


def _installing(versions: Mapping[str, str]) -> str:
    """The command that brings packages to these versions."""
    wanted = [f"{name}=={version}" for name, version in versions.items() if version != MISSING]
    unwanted = [name for name, version in versions.items() if version == MISSING]
    steps = [("install", *wanted)] * bool(wanted) + [("uninstall", "--yes", *unwanted)] * bool(unwanted)
    return " && ".join(shlex.join([sys.executable, "-m", "pip", *step]) for step in steps)


def settings() -> dict[str, Any]:
    """The settings as they are now."""
    return {name: found() for name, (found, _) in SETTINGS.items()}


def packages(device: torch.device, named: Iterable[str] = ()) -> list[str]:
    """The packages that measuring on a device imports, where the implementations `named` are measured."""
    if device.type != "cuda":
        return [*PACKAGES]
    return [*PACKAGES, *ON_A_GPU, *(package for name in named for package in OF_PEERS.get(name, ()))]


def fingerprint(device: torch.device, packages: Iterable[str]) -> dict[str, Any]:
    """Everything in the environment that a run's results may depend on, and its SHA-256 as ``hash``.

    Args:
        packages: those whose versions count.
    """
    found = {
        "settings": settings(),
        "device": devices.describe(device),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": {package: _version(package) for package in packages},
        "cuda": torch.version.cuda or "n/a",
        "cudnn": str(torch.backends.cudnn.version()) if device.type == "cuda" else "n/a",
        "driver": Telemetry(device).driver,
        "card": Telemetry(device).limits(),
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
