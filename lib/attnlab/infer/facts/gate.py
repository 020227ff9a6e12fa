"""How near the errors of a run came to what its correctness gate allows."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from attnlab.infer.cases import AXES
from attnlab.infer.lookup import NotMeasured, on_values, shape_of
from attnlab.infer.results import Results
from attnlab.runs.rules import GATE_FACTOR
from attnlab.study import implementations
from attnlab.study.shapes import Shape


class Outputs(NamedTuple):
    """The outputs of timed calls that were compared with those of a backend of SDPA: how many, the largest error in
    percent of what is allowed, and the shapes with that error, each with its implementations."""

    compared: int
    share_pct: float
    worst: list[tuple[list[str], Shape]]


class Differing(NamedTuple):
    """An implementation of which two runs on the same inputs differ: in how many elements at most, of how many that
    the output has there, and at how many shapes."""

    implementation: str
    elements: int
    of: int
    shapes: int


class Errors(NamedTuple):
    """The largest errors of the checks along a sweep, by implementation and shape, and what the gate allows there."""

    of: dict[str, dict[Shape, float]]
    allowed: dict[Shape, float]

    @property
    def nearest(self) -> tuple[float, str] | None:
        """The largest share of what is allowed in percent, and whose error it is; None where none is finite."""
        shares = [
            (100 * error / self.allowed[shape], name)
            for name, errors in self.of.items()
            for shape, error in errors.items()
            if np.isfinite(error) and self.allowed[shape] > 0
        ]
        return max(shares, default=None)


def timed_outputs(results: Results) -> Outputs | None:
    """The timed outputs that were compared; None where none was."""
    compared = results.passed.dropna(subset=["strain"])
    if compared.empty:
        return None
    strains = compared["strain"].astype(float)
    worst = [
        (list(dict.fromkeys(map(implementations.under_control, rows["implementation"]))), shape_of(rows.iloc[0]))
        for _, rows in compared[strains == strains.max()].groupby(AXES, sort=False)
    ]
    return Outputs(len(compared), 100 * float(strains.max()), worst)


def differing(checks: pd.DataFrame) -> list[Differing]:
    """The implementations that are not reproducible to the bit."""
    elements = pd.to_numeric(checks["differing"])
    found = []
    for name, rows in checks.assign(differing=elements)[elements > 0].groupby("implementation", sort=False):
        worst = rows.loc[rows["differing"].idxmax()]
        shapes = len(rows[AXES].drop_duplicates())
        found.append(Differing(str(name), int(worst["differing"]), outputs_of(shape_of(worst)), shapes))
    return found


def outputs_of(shape: Shape) -> int:
    """The number of elements of O; in training, of dQ, dK and dV too."""
    gradients = shape.query_elements + 2 * shape.key_elements
    return shape.query_elements + (gradients if shape.direction == "training" else 0)


def errors(results: Results, sweep: str) -> Errors:
    """The largest error of each implementation at each shape of a sweep, over all checks on the values that are timed.

    Raises NotMeasured where the study has no such sweep, or nothing in it was checked.
    """
    checks, shapes = on_values(results.run.checks), results.sweep(sweep)
    allowed = {shape: GATE_FACTOR * error for shape, error in _largest(checks, shapes, "framework_max_error").items()}
    if not allowed:
        raise NotMeasured(f"No case of the sweep “{sweep}” was checked")
    names = results.study.implementations
    found = {name: _largest(checks[checks["implementation"] == name], shapes, "max_error") for name in names}
    return Errors({name: of for name, of in found.items() if of}, allowed)


def share_pct(checks: pd.DataFrame) -> float:
    """The largest error in percent of what is allowed, by maximum or mean; an error of zero is 0 % of zero."""
    largest = checks["max_error"] / (GATE_FACTOR * checks["framework_max_error"])
    mean = checks["mean_error"] / (GATE_FACTOR * checks["framework_mean_error"])
    return 100 * float(np.maximum(largest.fillna(0), mean.fillna(0)).max())


def _largest(checks: pd.DataFrame, shapes: list[Shape], column: str) -> dict[Shape, float]:
    largest = checks.groupby(AXES, sort=False)[column].max()
    there = [(shape, tuple(shape.axes.values())) for shape in shapes]
    return {shape: float(largest[place]) for shape, place in there if place in largest.index}
