"""The correctness gate: errors against the oracle, beside what the gate allows."""

import numpy as np
import pandas as pd

from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.cells import shape_of
from attnlab.exhibits.display import Figure, Prose, Table
from attnlab.exhibits.style import AXIS_TITLES, before_others, few_powers_of_two, look, plain_logarithm
from attnlab.infer.cases import AXES
from attnlab.infer.lookup import NotMeasured, axis_of, on_values
from attnlab.infer.results import Results
from attnlab.runs.rules import GATE_FACTOR
from attnlab.study import implementations
from attnlab.study.shapes import Shape


@exhibit("baseline.errors")
def errors(results: Results, sweep: str = "seq_len") -> Figure:
    """The largest error against the float64 oracle, beside what the gate allows."""
    checks, axis, shapes = on_values(results.run.checks), axis_of(sweep), results.sweep(sweep)
    allowed = [(size, GATE_FACTOR * error) for size, error in _worst(checks, shapes, axis, "framework_max_error")]
    if not allowed:
        raise NotMeasured(f"No case of the sweep “{sweep}” was checked")
    each = {name: checks[checks["implementation"] == name] for name in results.study.implementations}
    worst = {name: points for name in each if (points := _worst(each[name], shapes, axis, "max_error"))}
    usual = {name: [point for point in points if 0 < point[1] < np.inf] for name, points in worst.items()}
    drawn = {name: ([size for size, _ in points], [error for _, error in points]) for name, points in usual.items()}
    title = f"{AXIS_TITLES[axis]}, logarithmic"
    drawing, panels = before_others(list(worst), [drawn], "largest absolute error, logarithmic", title)
    for name, axes in panels.items():
        axes.plot(
            *zip(*allowed, strict=True), color="#888888", linestyle="--", linewidth=1.2, zorder=5, label="allowed"
        )
        style = look(name) | {"label": "_", "clip_on": False, "transform": axes.get_xaxis_transform()}
        for size, error in worst[name]:
            if (size, error) not in usual[name]:
                axes.plot([size], [float(error > 0)], **style)
    first = next(iter(panels.values()))
    first.set_yscale("log")
    few_powers_of_two(first, [getattr(shape, axis) for shape in shapes])
    plain_logarithm(first.yaxis)
    odd = [error for name, points in worst.items() for size, error in points if (size, error) not in usual[name]]
    caption = [
        f"{_nearest_to_limit(worst, dict(allowed))} The largest error against the float64 oracle over all checks of a "
        f"shape on its own values, along the sweep “{sweep}”, each implementation before all others in grey; "
        f"the dashed line is the gate's limit, {formats.multiple(GATE_FACTOR)} the framework's own."
    ]
    caption += ["Markers on the upper edge are errors that are not finite."] if any(e > 0 for e in odd) else []
    caption += ["Markers on the lower edge are errors of exactly zero."] if any(e == 0 for e in odd) else []
    return Figure(
        drawing,
        " ".join(caption).strip(),
        f"Line plots of the largest absolute error over {AXIS_TITLES[axis]}, one panel for each implementation.",
    )


def _nearest_to_limit(worst: dict[str, list[tuple[int, float]]], allowed: dict[int, float]) -> str:
    """The largest error as a share of what is allowed at its size, in a sentence."""
    shares = [
        (100 * error / allowed[size], name)
        for name, points in worst.items()
        for size, error in points
        if np.isfinite(error) and allowed[size] > 0
    ]
    if not shares:
        return ""
    share, name = max(shares)
    return f"The error of `{name}` comes nearest to what is allowed, {formats.percent(share)} of it."


def _worst(checks: pd.DataFrame, shapes: list[Shape], axis: str, column: str) -> list[tuple[int, float]]:
    """The largest value of a column at each of these shapes that was checked, with the shape's size along an axis."""
    largest = checks.groupby(AXES, sort=False)[column].max()
    there = [(shape, tuple(shape.axes.values())) for shape in shapes]
    return [(getattr(shape, axis), float(largest[place])) for shape, place in there if place in largest.index]


@exhibit("baseline.correctness")
def correctness(results: Results) -> Prose:
    """The gate in two sentences."""
    checks = results.run.checks
    if checks.empty:
        raise NotMeasured("The gate has made no checks yet")
    failed = checks[~checks["passed"].astype(bool)]
    verdict = "all passed" if failed.empty else f"{len(failed)} failed, and their cases are reported without a latency"
    normal = on_values(checks)
    sentences = [
        f"The gate made {formats.count(len(checks), 'check')} and {verdict}. On the values that are timed, the largest "
        f"error of any implementation is {formats.number(normal['max_error'].max())}, that of the framework's own "
        f"composition in the same dtype {formats.number(normal['framework_max_error'].max())}.",
        timed_outputs(results),
        *(f"`{name}` is not reproducible: {words}." for name, words in _not_reproducible(checks).items()),
    ]
    return Prose(" ".join(sentences))


def timed_outputs(results: Results) -> str:
    """How many timed outputs were compared, and how near the worst came to what is allowed, in a sentence."""
    compared = results.passed.dropna(subset=["strain"])
    if compared.empty:
        return "Outputs were compared before and after timing; no timed output itself was."
    strains = compared["strain"].astype(float)
    worst = compared[strains == strains.max()]
    of = [
        f"{_names(rows['implementation'])} at {shape_of(rows.iloc[0]).label}"
        for _, rows in worst.groupby(AXES, sort=False)
    ]
    were = "timed output was" if len(compared) == 1 else "timed outputs were"
    return (
        f"{len(compared):,} {were} compared with what one of SDPA's backends computes from the same inputs, which the "
        f"implementation had never seen; the largest error among them is {formats.percent(100 * strains.max())} of "
        f"what is allowed, of {formats.listing(of)}."
    )


def _names(of: pd.Series) -> str:
    return formats.listing([f"`{name}`" for name in dict.fromkeys(map(implementations.under_control, of))])


def _not_reproducible(checks: pd.DataFrame) -> dict[str, str]:
    """The implementations of which two runs on the same inputs differ, each with how much they do."""
    differing = checks.assign(differing=pd.to_numeric(checks["differing"]))
    differing = differing[differing["differing"] > 0]
    found = {}
    for name, rows in differing.groupby("implementation", sort=False):
        worst = rows.loc[rows["differing"].idxmax()]
        shapes = len(rows[AXES].drop_duplicates())
        found[str(name)] = (
            f"two runs on the same inputs differ in up to {int(worst['differing']):,} of {_outputs(shape_of(worst)):,} "
            f"elements, at {formats.count(shapes, 'shape')}"
        )
    return found


def _outputs(shape: Shape) -> int:
    """The number of elements of O; in training, of dQ, dK and dV too."""
    gradients = shape.query_elements + 2 * shape.key_elements
    return shape.query_elements + (gradients if shape.direction == "training" else 0)


@exhibit("baseline.checks")
def checks(results: Results) -> Table:
    """The results of the gate by implementation, over all shapes."""
    marks = _not_reproducible(results.run.checks) if len(results.run.checks) else {}
    rows = [
        {
            "implementation": name,
            "checks": len(group),
            "passed": int(group["passed"].sum()),
            "largest error": formats.number(normal["max_error"].max()),
            "mean error": formats.number(normal["mean_error"].mean()),
            "largest share of the allowed": formats.percent(100 * _share(normal).max()),
        }
        | ({"not reproducible": marks.get(name)} if marks else {})
        for name, group in results.run.checks.groupby("implementation", sort=False)
        for normal in [on_values(group)]
    ]
    note = (
        "Absolute errors against the float64 oracle, on inputs of the timed values that were not used before, before "
        "and after timing, with outputs in memory filled with NaN. Checks on large logits and on constant rows are "
        "counted without their errors, which have another scale."
    )
    return Table(pd.DataFrame(rows), "The correctness gate.", note)


def _share(checks: pd.DataFrame) -> pd.Series:
    """Errors over those allowed, the larger of maximum and mean; 0 where both are zero."""
    largest = checks["max_error"] / (GATE_FACTOR * checks["framework_max_error"])
    mean = checks["mean_error"] / (GATE_FACTOR * checks["framework_mean_error"])
    return np.maximum(largest.fillna(0), mean.fillna(0))
