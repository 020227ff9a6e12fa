"""What a worker is admitted by: whatever a run's results may depend on has to be the same on all of them."""

import platform
from dataclasses import dataclass
from typing import Any

from attnlab.base import sources
from attnlab.measuring.instruments import devices, environment, telemetry
from attnlab.measuring.session import record
from attnlab.study import implementations, tuning


@dataclass(frozen=True)
class Admission:
    """A worker's device and environment, the hashes of its code and kernels, its card and its host."""

    device: dict[str, Any]
    environment: dict[str, Any]
    code: dict[str, str]
    card: str
    host: str


def admission(wanted: str) -> Admission:
    """The admission of the worker whose card this process sees; `wanted` is ``auto``, ``cuda`` or ``cpu``."""
    device = devices.resolve(wanted)
    environment.lock()
    found = devices.describe(device)
    locked = environment.fingerprint(device, environment.packages(device, implementations.PEERS))
    return Admission(found, locked, _code(found["name"]), telemetry.card(device), platform.node())


def _code(device_name: str) -> dict[str, str]:
    return sources.digests(record.__name__) | tuning.hashes(implementations.known(), device_name)


def difference(standard: Admission, found: Admission) -> str:
    """The first thing in which a worker differs from this process's code or from the standard; "" if nothing."""
    mine, theirs = _code(found.device["name"]), found.code
    if changed := sorted(name for name in mine | theirs if mine.get(name) != theirs.get(name)):
        return f"its code is not the client's ({changed[0]})"
    if standard.device["name"] != found.device["name"]:
        return f"it measures on {found.device['name']}, the others on {standard.device['name']}"
    for name, value in standard.environment.items():
        other = found.environment.get(name)
        if name == "hash" or other == value:
            continue
        if isinstance(value, dict) and isinstance(other, dict):
            inner = next(key for key in value | other if other.get(key) != value.get(key))
            name, other, value = f"{name}: {inner}", other.get(inner), value.get(inner)
        return f"its environment is another ({name} is {other}, for the others {value})"
    return ""
