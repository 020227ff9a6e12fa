"""The rungs of the ladder as a run recorded them: the expected gain of each, its resources and its waves."""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from attnlab.base import paths
from attnlab.base.errors import UserError
from attnlab.compile import occupancy
from attnlab.infer.lookup import NotMeasured, known, shape_of
from attnlab.infer.results import Results
from attnlab.runs.schema import CASE, Row, Run, is_of
from attnlab.study import callables, ladder, tuning
from attnlab.study.implementations import in_fp8
from attnlab.study.ladder import BEST, Recorded
from attnlab.study.shapes import Shape
from attnlab.study.tuning import Tuning


def has_kernels(results: Results) -> bool:
    """Whether any rung of the ladder is in the run's study."""
    return known(lambda: rungs(results)) is not None


COUNTS = ("registers", "local_bytes", "static_shared_bytes", "dynamic_shared_bytes", "threads", "ctas", "ctas_per_sm")
"""The numbers that a run records of a launch, attributes of `Resources`."""


def rungs(results: Results) -> list[Recorded]:
    """The rungs of a run's study in the order of the climb, without FP8, whose errors are others.

    Raises:
        NotMeasured: the study has none.
    """
    named = [name for name in results.study.implementations if not in_fp8(name)]
    recorded = map(Recorded.model_validate, results.run.manifest["ladder"])
    found = [rung for rung in recorded if rung.implementation in named]
    if not found:
        raise NotMeasured("This run measured no hand-written kernel")
    return found


@dataclass(frozen=True)
class Resources:
    """What one kernel needs of a multiprocessor, as the driver reported it for a launch at one shape.

    Attributes:
        registers: of a thread; `local_bytes` its local memory: spills, and arrays that aren't kept in registers.
        static_shared_bytes, dynamic_shared_bytes: shared memory of a CTA that its source declares, and that its launch
            requests.
        threads: of a CTA; `ctas` those of the grid, `ctas_per_sm` those resident on a multiprocessor at once.
        items: work items; a CTA has one, in a persistent kernel several.
        threads_per_sm: the most that a multiprocessor holds; None where that isn't recorded.
    """

    architecture: str
    registers: int
    local_bytes: int
    static_shared_bytes: int
    dynamic_shared_bytes: int
    threads: int
    ctas: int
    ctas_per_sm: int
    items: int
    compute_capability: str
    multiprocessors: int
    threads_per_sm: int | None

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a CTA in bytes."""
        return self.static_shared_bytes + self.dynamic_shared_bytes

    @property
    def persistent(self) -> bool:
        """Whether a CTA processes several work items."""
        return self.items > self.ctas

    @property
    def occupancy_pct(self) -> float:
        """Theoretical occupancy: resident warps over the most a multiprocessor holds; NaN where that isn't recorded."""
        most = self.threads_per_sm
        return 100 * self.ctas_per_sm * self.threads / most if most else math.nan

    @property
    def limits(self) -> list[str]:
        """The resources that admit no further CTA; empty where the architecture's limits aren't known."""
        limits = occupancy.LIMITS.get(self.compute_capability.replace(".", ""))
        if limits is None:
            return []
        allowed = occupancy.allowed(limits, self.threads, self.registers, self.shared_bytes)
        return [kind for kind, ctas in allowed.items() if ctas <= self.ctas_per_sm]

    @property
    def slots(self) -> int:
        """CTAs resident on the device at once."""
        return self.ctas_per_sm * self.multiprocessors

    @property
    def waves(self) -> float:
        """Work items over the CTAs resident at once."""
        return self.items / self.slots

    @property
    def last_wave_pct(self) -> float:
        """Occupied share of the resident CTAs in the last wave."""
        return 100 * ((self.items - 1) % self.slots + 1) / self.slots

    @property
    def busy_pct(self) -> float:
        """Multiprocessors with any work at all, if the scheduler spreads the CTAs as widely as possible."""
        return 100 * min(self.ctas, self.multiprocessors) / self.multiprocessors


def resources(results: Results, rung: Recorded, shape: Shape) -> Resources | None:
    """The resources of a rung at a shape; None where it wasn't launched there."""
    rows = results.run.resources
    rows = rows[is_of(rows, shape) & (rows["implementation"] == rung.implementation)]
    if rows.empty:
        return None
    row, device = rows.iloc[0], results.run.manifest["device"]
    items = rung.work_items(shape) or int(row["ctas"])
    return Resources(
        architecture=str(row["architecture"]),
        **{column: int(row[column]) for column in COUNTS},
        items=items,
        compute_capability=str(device["compute_capability"]),
        multiprocessors=int(device["multiprocessors"]),
        threads_per_sm=device.get("threads_per_multiprocessor"),
    )


def instances(results: Results) -> dict[str, dict[str, list[Shape]]]:
    """By implementation and function, the shapes at which an instance ran, where that has to be said.

    It has to be said of `kernel.best`, and of a rung that ran several instances for one head_dim, mask and dtype.
    """
    rows = results.run.resources
    several = rows.groupby(["implementation", "head_dim", "causal", "dtype"])["function"].nunique() > 1
    names = {BEST, *several[several].index.get_level_values("implementation")}
    found: dict[str, dict[str, list[Shape]]] = {}
    for row in rows[rows["implementation"].isin(names)].drop_duplicates([*CASE, "function"]).to_dict("records"):
        shapes = found.setdefault(row["implementation"], {}).setdefault(row["function"], [])
        shapes.append(shape_of(row))
    return found


def launched(results: Results, shape: Shape) -> str:
    """The rung whose instance `kernel.best` launched at a shape, if it was timed there by its own name; else empty."""
    rows = results.run.resources
    there = rows[is_of(rows, shape)].drop_duplicates("implementation").set_index("implementation")["function"]
    twins = [name for name, function in there.items() if name != BEST and function == there.get(BEST)]
    return str(twins[0]) if twins else ""


def chosen(results: Results, shape: Shape, name: str) -> str:
    """`kernel.best` for the rung that it launches at a shape, as it was chosen before the run; else the name itself."""
    return BEST if name == launched(results, shape) and BEST in results.candidates(shape) else name


def two_names(results: Results) -> list[float]:
    """By how much the medians of `kernel.best` and of the same kernel under its rung's name differ, in percent.

    A number for each shape at which both were timed, under the headline's timing.
    """
    twins = {shape: launched(results, shape) for shape in results.study.shapes}
    pairs = {shape: (BEST, name) for shape, name in twins.items() if {BEST, name} <= set(results.at(shape).index)}
    medians = [[results.value(name, shape, "median_us") for name in pair] for shape, pair in pairs.items()]
    return [100 * abs(one / other - 1) for one, other in medians]


Changes = dict[str, frozenset[Shape] | None]
"""What changed since a run, by its name: the shapes at which it did, or None for all."""


def stale(run: Run) -> Changes:
    """The kernels of a run that changed since or no longer exist; none of the ladder where there is no ladder at all.

    A kernel is its source, the headers of ours that it includes, and its entry in the ladder. `kernel.best` changed at
    the shapes at which it would launch something else than it launched. A function of a user's own has changed if the
    file of its module is here, and is another. A file in data/ is none of these: it came with a run, and isn't read.
    """
    prefixes = (ladder.PREFIX,) if (paths.kernels() / "ladder.toml").is_file() else ()
    recorded, named = run.manifest["kernels"], run.manifest["study"]["implementations"]
    measured = {name: recorded[name] for name in named if name in recorded and name.startswith(prefixes)}
    now = tuning.hashes(measured, run.manifest["device"]["name"])
    for name in callables.among(set(named) & set(recorded)):
        with suppress(UserError, OSError):  # it is not here
            if not callables.file(name).resolve().is_relative_to(paths.data().resolve()):
                now |= callables.hashes([name])
                measured[name] = recorded[name]
    changed: Changes = {name: None for name, value in measured.items() if now.get(name) != value and name != BEST}
    if BEST in measured and (at := _another_at(run, now)) != frozenset():
        changed[BEST] = at
    return changed


def _another_at(run: Run, now: dict[str, str]) -> frozenset[Shape] | None:
    """The shapes at which `kernel.best` would launch something else than in a run; None for all, empty for none.

    Where anything of it changed, that is also where an older run doesn't tell the source of the rung that was launched.
    """
    same, launched = now.get(BEST) == run.manifest["kernels"][BEST], run.resources["implementation"] == BEST
    rows = run.resources[launched].drop_duplicates([*CASE, "function"]).to_dict("records")
    try:
        tuned = tuning.load(run.manifest["device"]["name"])
    except UserError:
        return None
    known = tuned.sources if same else run.manifest["kernels"]
    found = frozenset(shape_of(row) for row in rows if not _would_launch(tuned, known, row))
    return found if same or found < set(map(shape_of, rows)) else None


def _would_launch(tuned: Tuning, known: Mapping[str, str], row: Row) -> bool:
    """Whether a tuning chooses what was launched by a row of the table ``resources``, of a source that is known."""
    shape = shape_of(row)
    try:
        rung, tile = tuned.instance(tuned.choice(shape))
    except UserError:
        return False
    same = rung.expression(shape.dtype, tile, shape.causal) == row["function"]
    return same and known.get(rung.implementation) == tuned.sources[rung.implementation]
