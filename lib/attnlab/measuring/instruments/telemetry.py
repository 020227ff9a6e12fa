"""Clock, power, temperature and throttling of the card, read through NVML."""

import hashlib
from dataclasses import dataclass
from typing import Any

import torch

try:
    import pynvml
except ImportError:  # optional: only needed with an NVIDIA GPU
    pynvml = None

# Reasons for which the card runs slower than it could: software power cap, hardware slowdown, software and hardware
# thermal slowdown, power brake (nvml.h, nvmlClocksEventReasons). Idle and application clocks don't count as throttling.
THROTTLING = 0x4 | 0x8 | 0x20 | 0x40 | 0x80
CARD_DIGITS = 12
"""Digits of the hash that identifies a card: enough for the cards of a cluster, without their serial numbers."""


@dataclass(frozen=True)
class Reading:
    """The state of the card at one moment; None for values that can't be read.

    NVML's power is an average over some time: it describes the run, never a single kernel.
    """

    sm_clock_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    throttle_reasons: int | None = None

    @property
    def throttled(self) -> bool | None:
        """Whether the card ran slower than it could."""
        return None if self.throttle_reasons is None else bool(self.throttle_reasons & THROTTLING)


class Telemetry:
    """The card of a torch device. Without NVML, every reading is empty and `unavailable` says why."""

    def __init__(self, device: torch.device) -> None:
        self.unavailable, self._handle = "", None
        if device.type != "cuda":
            self.unavailable = "the device is no NVIDIA GPU"
        elif pynvml is None:
            self.unavailable = "nvidia-ml-py is not installed"
        else:
            try:
                pynvml.nvmlInit()
                self._handle = pynvml.nvmlDeviceGetHandleByUUID(_uuid(device))
            except pynvml.NVMLError as error:
                self.unavailable = f"NVML: {error}"

    def read(self) -> Reading:
        """The state of the card now."""
        return Reading(
            sm_clock_mhz=self._ask("ClockInfo", "NVML_CLOCK_SM"),
            power_w=self._watts("PowerUsage"),
            temperature_c=self._ask("Temperature", "NVML_TEMPERATURE_GPU"),
            throttle_reasons=self._ask("CurrentClocksThrottleReasons"),
        )

    def limits(self) -> dict[str, Any]:
        """The limits of the card: highest clocks in MHz, power limit in W, its modes."""
        if self._handle is None:
            return {"unavailable": self.unavailable}
        return {
            "sm_clock_max_mhz": self._ask("MaxClockInfo", "NVML_CLOCK_SM"),
            "memory_clock_max_mhz": self._ask("MaxClockInfo", "NVML_CLOCK_MEM"),
            "power_limit_w": self._watts("EnforcedPowerLimit"),
            "persistence_mode": self._ask("PersistenceMode"),
            "compute_mode": self._ask("ComputeMode"),
            "ecc": self._ask("EccMode"),
        }

    def modes(self) -> dict[str, Any]:
        """The card's settings now: ECC, persistence and MIG, and its power limit in W; None for unreadable ones."""
        return {
            "ecc": self._enabled("EccMode"),
            "power_limit_w": self._watts("EnforcedPowerLimit"),
            "persistence": self._enabled("PersistenceMode"),
            "mig": self._enabled("MigMode"),
        }

    @property
    def driver(self) -> str:
        """Version of the driver, or "n/a"."""
        try:
            return "n/a" if self._handle is None else str(pynvml.nvmlSystemGetDriverVersion())
        except pynvml.NVMLError:
            return "n/a"

    def _watts(self, question: str) -> float | None:
        answer_mw = self._ask(question)
        return None if answer_mw is None else answer_mw * 1e-3

    def _enabled(self, question: str) -> bool | None:
        """Whether a mode is on; if NVML gives the current and the pending value, the current one."""
        mode = self._ask(question)
        return None if mode is None else bool(mode[0] if isinstance(mode, (list, tuple)) else mode)

    def _ask(self, question: str, *which: str) -> Any:
        if self._handle is None:
            return None
        try:
            return getattr(pynvml, f"nvmlDeviceGet{question}")(self._handle, *(getattr(pynvml, name) for name in which))
        except pynvml.NVMLError:
            return None


def card(device: torch.device) -> str:
    """The start of the SHA-256 of the card's UUID as ``nvidia-smi -L`` prints it; "" if the device is no NVIDIA GPU."""
    return "" if device.type != "cuda" else hashlib.sha256(_uuid(device).encode()).hexdigest()[:CARD_DIGITS]


def uuids(count: int) -> list[str]:
    """The UUIDs of the first GPUs that this process sees, as ``nvidia-smi -L`` prints them."""
    return [_uuid(torch.device("cuda", number)) for number in range(count)]


def _uuid(device: torch.device) -> str:
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"
