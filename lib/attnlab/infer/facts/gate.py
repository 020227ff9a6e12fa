"""How near the errors of a run came to what its correctness gate allows."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from attnlab.base.rules import GATE_FACTOR
from attnlab.infer.cases import AXES
from attnlab.infer.lookup import shape_of
from attnlab.infer.results import Results
from attnlab.study import implementations
from attnlab.study.shapes import Shape


class Outputs(NamedTuple):
    """The outputs of timed calls that were compared with those of a backend of SDPA: how many, of how many calls, the
    largest error in percent of what is allowed, and the shapes with that error, each with its implementations."""

    compared: int
    calls: int
    share_pct: float
    worst: list[tuple[list[str], Shape]]


class Differing(NamedTuple):
    """An implementation of which two runs on the same inputs differ: in how many elements at most, of how many that
    the output has there, and at how many shapes."""

    implementation: str
    elements: int
    of: int
    shapes: int


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
    return Outputs(len(compared), int(results.passed["launches"].sum()), 100 * float(strains.max()), worst)


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


def share_pct(checks: pd.DataFrame) -> float:
    """The largest error in percent of what is allowed, by maximum or mean; an error of zero is 0 % of zero."""
    shares = [
        checks[error] / checks[f"allowed_{error}"].fillna(GATE_FACTOR * checks[f"framework_{error}"])
        for error in ("max_error", "mean_error")
    ]
    return 100 * float(np.maximum(*(share.fillna(0) for share in shares)).max())
