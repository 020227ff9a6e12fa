"""The rungs of the ladder as a run recorded them: what each was to gain, what it used, how it filled the machine."""

import math
from dataclasses import dataclass
from typing import Any

import pandas as pd

from attnlab import occupancy
from attnlab.analyse.results import NotMeasured, Results
from attnlab.ladder import PREFIX
from attnlab.runs import is_of
from attnlab.shapes import Shape

NO_RUNGS = "This run measured no hand-written kernel"


@dataclass(frozen=True)
class Rung:
    """A rung as kernels/ladder.toml stated it when the run was recorded."""

    stated: dict[str, Any]

    @property
    def name(self) -> str:
        """Its name as an implementation."""
        return PREFIX + str(self.stated["name"])

    @property
    def title(self) -> str:
        """What it changes, in a few words."""
        return str(self.stated["title"])

    @property
    def hypothesis(self) -> str:
        """What it changes and what that should gain, in sentences."""
        return " ".join(str(self.stated["hypothesis"]).split())

    @property
    def after(self) -> str:
        """The implementation that it is compared with; empty for the first."""
        return PREFIX + str(self.stated["after"]) if self.stated["after"] else ""

    @property
    def expected(self) -> float:
        """The speedup over `after` that was expected of it at the target."""
        return float(self.stated["expected_speedup"])

    def work_items(self, shape: Shape) -> int | None:
        """Tiles of query rows over all heads: what is dealt out to the CTAs; None where it serves no such head_dim."""
        tiles = [tile for tile in self.stated["tiles"] if tile["head_dim"] == shape.head_dim]
        return math.ceil(shape.seq_len / tiles[0]["rows"]) * shape.batch * shape.heads if tiles else None


def rungs(results: Results) -> list[Rung]:
    """The rungs of a run's study in the order of the climb.

    Raises:
        NotMeasured: there are none.
    """
    ladder = [Rung(stated) for stated in results.run.manifest.get("ladder", [])]
    found = [rung for rung in ladder if rung.name in results.study.implementations]
    if not found:
        raise NotMeasured(NO_RUNGS)
    return found


@dataclass(frozen=True)
class Resources:
    """What one kernel needs of a multiprocessor, as the driver said when it was launched at one shape."""

    row: dict[str, Any]
    device: dict[str, Any]
    work_items: int | None = None

    @property
    def registers(self) -> int:
        """Registers of a thread."""
        return int(self.row["registers"])

    @property
    def local_bytes(self) -> int:
        """Local memory of a thread: spills, and arrays that aren't kept in registers."""
        return int(self.row["local_bytes"])

    @property
    def static_shared_bytes(self) -> int:
        """Shared memory of a CTA that its source states."""
        return int(self.row["static_shared_bytes"])

    @property
    def dynamic_shared_bytes(self) -> int:
        """Shared memory of a CTA that its launch asks for."""
        return int(self.row["dynamic_shared_bytes"])

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a CTA."""
        return self.static_shared_bytes + self.dynamic_shared_bytes

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return int(self.row["threads"])

    @property
    def ctas(self) -> int:
        """CTAs of the grid."""
        return int(self.row["ctas"])

    @property
    def ctas_per_sm(self) -> int:
        """CTAs that a multiprocessor holds at once."""
        return int(self.row["ctas_per_sm"])

    @property
    def items(self) -> int:
        """What is dealt out to the CTAs: a CTA each, but for a persistent kernel, whose CTAs come back for more."""
        return self.work_items or self.ctas

    @property
    def persistent(self) -> bool:
        """Whether CTAs take several work items each."""
        return self.items > self.ctas

    @property
    def occupancy_pct(self) -> float:
        """Warps that a multiprocessor holds at once, of those that it could; NaN where that isn't recorded."""
        most = self.device.get("threads_per_multiprocessor")
        return 100 * self.ctas_per_sm * self.threads / most if most else math.nan

    @property
    def limits(self) -> list[str]:
        """The resources of which no further CTA fits; none where the architecture's limits aren't known."""
        limits = occupancy.LIMITS.get(str(self.device["compute_capability"]).replace(".", ""))
        if limits is None:
            return []
        allowed = occupancy.allowed(limits, self.threads, self.registers, self.shared_bytes)
        return [kind for kind, ctas in allowed.items() if ctas <= self.ctas_per_sm]

    @property
    def multiprocessors(self) -> int:
        """Multiprocessors of the device."""
        return int(self.device["multiprocessors"])

    @property
    def slots(self) -> int:
        """CTAs that the device holds at once."""
        return self.ctas_per_sm * self.multiprocessors

    @property
    def waves(self) -> float:
        """How often the device is filled with work."""
        return self.items / self.slots

    @property
    def last_wave_pct(self) -> float:
        """How full the device is in the last wave."""
        return 100 * ((self.items - 1) % self.slots + 1) / self.slots

    @property
    def busy_pct(self) -> float:
        """Multiprocessors that get any work at all, where the scheduler spreads it as widely as it can."""
        return 100 * min(self.ctas, self.multiprocessors) / self.multiprocessors


def resources(results: Results, rung: Rung, shape: Shape) -> Resources | None:
    """What a rung used at a shape; None where it wasn't launched there."""
    rows = results.run.resources
    rows = rows[rows["implementation"] == rung.name]
    rows = rows[is_of(rows, shape)] if len(rows) else rows
    if rows.empty:
        return None
    return Resources(rows.iloc[0].to_dict(), results.run.manifest["device"], rung.work_items(shape))


def absence(results: Results, name: str, shape: Shape) -> str:
    """Why an implementation has no latency at a shape, in a clause."""
    if name not in results.study.implementations:
        return "not in this study"
    if shape not in results.study.shapes:
        return "the study has no such shape"
    cases: pd.DataFrame = results.run.cases
    if cases.empty:
        return "not reached yet"
    rows = cases[(cases["implementation"] == name) & is_of(cases, shape) & (cases["status"] != "measured")]
    if rows.empty:
        return "not reached yet"
    status, reason = rows.iloc[0][["status", "reason"]]
    return f"{status}, {reason}" if reason else str(status)
