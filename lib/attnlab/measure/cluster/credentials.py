"""What a worker is admitted by: whatever a run's results may depend on has to be the same on all of them."""

import platform
from dataclasses import dataclass
from typing import Any

from attnlab.base import sources
from attnlab.measure.instruments import devices, environment, telemetry
from attnlab.measure.session import record
from attnlab.runs import schema
from attnlab.study import implementations, tuning


@dataclass(frozen=True)
class Credentials:
    """What a worker is admitted by. Two workers are alike if everything but their card and host is the same."""

    device: dict[str, Any]
    environment: dict[str, Any]
    sources: dict[str, str]
    kernels: dict[str, str]
    card: str
    host: str


def credentials(wanted: str) -> Credentials:
    """The credentials of the worker whose process this is; `wanted` is ``auto``, ``cuda`` or ``cpu``."""
    device = devices.resolve(wanted)
    environment.lock()
    described = devices.describe(device)
    return Credentials(
        described,
        environment.fingerprint(device),
        sources.digests(record.__name__),
        tuning.hashes(implementations.known(), described["name"]),
        telemetry.card(device),
        platform.node(),
    )


def alike(found: Credentials) -> str:
    """The same for all workers that are alike."""
    return schema.digest([found.device, found.environment])


def other_code(found: Credentials) -> str:
    """In what a worker's code differs from this process's, "" if in nothing."""
    kernels = tuning.hashes(implementations.known(), found.device["name"])
    for mine, theirs in ((sources.digests(record.__name__), found.sources), (kernels, found.kernels)):
        if changed := sorted(name for name in mine | theirs if mine.get(name) != theirs.get(name)):
            return f"its code is not the client's ({changed[0]})"
    return ""


def difference(standard: Credentials, found: Credentials) -> str:
    """In what a worker differs from the others, "" if in nothing."""
    if standard.device["name"] != found.device["name"]:
        return f"it measures on {found.device['name']}, the others on {standard.device['name']}"
    for name, value in standard.environment.items():
        mine = found.environment.get(name)
        if name == "hash" or mine == value:
            continue
        if isinstance(value, dict) and isinstance(mine, dict):
            inner = next(key for key in value | mine if mine.get(key) != value.get(key))
            name, mine, value = f"{name}: {inner}", mine.get(inner), value.get(inner)
        return f"its environment is another ({name} is {mine}, for the others {value})"
    return ""
