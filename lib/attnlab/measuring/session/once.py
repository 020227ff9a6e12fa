"""The parts that a run takes once, after its first replicate: the panel of clocks, the loads, and the counters.

Each is taken in a process of its own, on one card; where there are several cards, the others go on with the replicates.
"""

from dataclasses import dataclass

import torch

from attnlab.measuring.instruments import counters, environment
from attnlab.measuring.session import load, panel
from attnlab.measuring.values import captured
from attnlab.study.studies import Study

PARTS = ("panel", "loads", "counters")


@dataclass(frozen=True)
class OncePart:
    """One of `PARTS` for a run. `environment` is the hash of the one that the run began in."""

    name: str
    run: str
    study: Study
    device: str
    environment: str


def parts(run: str, study: Study, device: str, environment: str) -> list[OncePart]:
    """The parts of a run on GPUs: without a panel, the counters alone."""
    return [OncePart(name, run, study, device, environment) for name in PARTS if study.panel or name == "counters"]


def take(part: OncePart) -> dict[str, str]:
    """Take what a run still lacks of a part; returns what the manifest says of the profile if it is the counters.

    Raises:
        Outdated: the environment isn't the one that the run began in.
    """
    captured.use(part.study)
    if part.name == "counters":
        return counters.take(part.run, part.study, part.device)
    device = torch.device(part.device)
    environment.lock_as_begun(part.run, part.environment, device)
    (panel if part.name == "panel" else load).take(part.run, part.study, device)
    return {}
