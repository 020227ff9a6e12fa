"""Find the kernels that have changed since a run: its measurements don't apply to their current versions."""

from contextlib import suppress

from attnlab.base import paths
from attnlab.base.errors import UserError
from attnlab.runs.schema import CASE, Row, Run
from attnlab.study import callables, ladder, tuning
from attnlab.study.ladder import BEST
from attnlab.study.shapes import Shape, shape_of

Changes = dict[str, frozenset[Shape] | None]
"""By name of each kernel that changed since a run, the shapes at which it changed; None for all."""


def stale(run: Run) -> Changes:
    """The kernels of a run that changed since or no longer exist; without a ladder.toml, only users' functions.

    A kernel consists of its source, our headers that it includes, and its entry in the ladder. `kernel.best` changed at
    the shapes at which it would launch another instance. A user's function has changed if the file of its module exists
    here and differs. Files in data/ are not read for this: they came with a run.
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
    """The shapes at which `kernel.best` would launch another instance than in a run; None for all, empty for none.

    If a kernel has changed, these include the shapes whose launched kernel has no hash in the run.
    """
    same, launched = now.get(BEST) == run.manifest["kernels"][BEST], run.resources["implementation"] == BEST
    rows = run.resources[launched].drop_duplicates([*CASE, "function"]).to_dict("records")
    try:
        tuned = tuning.load(run.manifest["device"]["name"])
    except UserError:
        return None
    known = now if same else run.manifest["kernels"]

    def is_launched_now(row: Row) -> bool:
        shape = shape_of(row)
        try:
            rung, tile = tuned.instance(tuned.choice(shape))
        except UserError:
            return False
        is_same = rung.expression(shape.dtype, tile, shape.causal) == row["function"]
        return is_same and known.get(rung.implementation) == now.get(rung.implementation)

    found = frozenset(shape_of(row) for row in rows if not is_launched_now(row))
    return found if same or found < set(map(shape_of, rows)) else None
