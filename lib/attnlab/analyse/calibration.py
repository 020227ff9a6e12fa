"""How often the inference is wrong: the published simulation, and what a run says of its baseline against itself."""

import pandas as pd

from attnlab import calibration
from attnlab.analyse import formats
from attnlab.analyse.display import Prose, Table, telling
from attnlab.analyse.results import NO_CONTROL, NotMeasured, Results
from attnlab.calibration import CLAIMED, COVERED, EQUIVALENT, RATIO_COVERED, WRONG
from attnlab.stats import EQUIVALENCE_MARGIN

KEY = ["kind", "replicates", "processes"]
COVERAGE = {COVERED: "median covered", RATIO_COVERED: "ratio covered"}
NO_DIFFERENCE = {WRONG: "faster or slower", CLAIMED: "claimable", EQUIVALENT: "equivalent"}
ALONE_DIFFERS = (1, "differ")
"""One process, where processes differ: no number of its samples tells how the next would do."""


def table() -> Table:
    """A row per kind of samples, replicates and processes: coverage, errors and power in percent."""
    published = calibration.load()
    shares = published.pivot(index=KEY, columns="measure", values="value")
    names = {calibration.power(effect): f"{100 * effect:.0f} % found" for effect in calibration.EFFECTS}
    rows = [
        {"samples": kind, "replicates": replicates, "processes": processes}
        | {title: f"{100 * shares.loc[(kind, replicates, processes), name]:.1f}" for name, title in _measures(names)}
        for kind, replicates, processes in published[KEY].drop_duplicates().itertuples(index=False, name=None)
    ]
    kinds = "; ".join(f"{kind.name}: {kind.about}" for kind in calibration.KINDS)
    counts = published.groupby("measure")["simulations"].max()
    errors = 100 * published.groupby("measure")["standard_error"].max()
    note = (
        f"Percent of {counts[COVERED]:,} simulated runs ({counts[calibration.power(calibration.EFFECTS[0])]:,} for "
        f"power) of {calibration.ROUNDS} rounds around {calibration.MEDIAN_US:g} µs, with intervals of 95 %; "
        f"Monte-Carlo standard errors are at most {errors[COVERED]:.1f} (median), {errors[RATIO_COVERED]:.1f} (ratio) "
        f"and {errors[WRONG]:.1f} (faster or slower). Median and ratio covered: how often the interval held the true "
        "one. Faster or slower, claimable, equivalent: what was said of two that do not differ; found: how often a "
        "candidate was called faster that was, by so much. Processes that differ have medians "
        f"{100 * calibration.SHARED:g} % apart (standard deviation) for reasons that both sides share, and "
        f"{100 * calibration.OWN:g} % for their own. {kinds[0].upper()}{kinds[1:]}."
    )
    return Table(pd.DataFrame(rows), "calibration", "How often the inference is right, where the truth is known.", note)


def _measures(power: dict[str, str]) -> list[tuple[str, str]]:
    return list((COVERAGE | NO_DIFFERENCE | power).items())


def summary() -> Prose:
    """What the simulation shows, in a paragraph."""
    shares = calibration.load().set_index([*KEY, "measure"])["value"].unstack() * 100
    alone = [(replicates, processes) == ALONE_DIFFERS for _, replicates, processes in shares.index]
    told, untold = shares[[not one for one in alone]], shares[alone]
    independent = told.xs("independent", level="kind")
    return Prose(
        f"In simulations with known truth, 95 % intervals of the median cover {_range(independent[COVERED])} of the "
        f"time on independent samples and {_range(told[COVERED])} over all six kinds; those of the ratio "
        f"{_range(independent[RATIO_COVERED])} and {_range(told[RATIO_COVERED])}. Where there is no difference, "
        f"verdicts say faster or slower in at most {told[WRONG].max():.1f} % of the runs, and claim it in at most "
        f"{told[CLAIMED].max():.1f} %. One replicate can't know how other processes would differ: where they do, "
        f"intervals from one cover {_range(untold[COVERED])} of the time and its verdicts err in up to "
        f"{untold[WRONG].max():.1f} %. They speak of that process alone. The numbers are in [](#tab-calibration)."
    )


def _range(percent: pd.Series) -> str:
    return f"{percent.min():.1f} to {percent.max():.1f} %"


@telling
def controls(results: Results) -> Table:
    """The baseline against itself (A/A), at every shape under the headline's timing."""
    timing = results.headline
    rows = [
        {
            "shape": formats.shape(shape),
            "ratio [95 %]": formats.interval(family.control.speedup),
            "p": formats.pvalue(family.control.pvalue),
            "decision": family.control.decision,
            "smallest effect": formats.percent(100 * family.smallest_effect),
        }
        for shape, family in results.families_under(timing).items()
        if family.control is not None
    ]
    if not rows:
        raise NotMeasured(NO_CONTROL)
    note = (
        "Smallest effect: the larger of what a test at 5 % finds four times in five, given this scatter, and of the "
        "end of the interval that lies farther from 1. No candidate is called faster or slower by less, and none "
        f"equivalent where it is more than {100 * EQUIVALENCE_MARGIN:g} %. The decisions here are by the two sides' "
        "own samples alone."
    )
    caption = f"`{results.study.baseline}` against itself; {timing.words}."
    return Table(pd.DataFrame(rows), "controls", caption, note)


@telling
def false_positives(results: Results) -> Prose:
    """How often this run told its baseline from itself, and what it could have seen."""
    found = results.false_positives
    effects = [100 * results.smallest_effect(*place) for place in results.controlled()]
    return Prose(
        f"The run measured `{results.study.baseline}` against itself at {formats.count(found.comparisons, 'place')} "
        f"(shape and timing) and called it faster or slower at {found.wrong}: {100 * found.rate.estimate:.1f} % "
        f"[{100 * found.rate.low:.1f}, {100 * found.rate.high:.1f}] (Clopper and Pearson). The smallest effect that it "
        f"could have seen lies between {formats.percent(min(effects))} and {formats.percent(max(effects))}; no "
        "candidate is called faster or slower by less than the one of its place. It is more than "
        f"{100 * EQUIVALENCE_MARGIN:g} % at {sum(effect > 100 * EQUIVALENCE_MARGIN for effect in effects)} of them, "
        "where nothing is called equivalent."
    )
