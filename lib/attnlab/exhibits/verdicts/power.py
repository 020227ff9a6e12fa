"""Error rates and power of the inference: by simulation, and by the baseline of a run against itself."""

import pandas as pd

from attnlab.exhibits import formats
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Prose, Table
from attnlab.exhibits.formats import CI
from attnlab.infer import simulation
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.results import NO_CONTROL, Results
from attnlab.infer.simulation import CLAIMED, COVERED, EQUIVALENT, RATIO_COVERED, WRONG
from attnlab.runs.rules import ALPHA, EQUIVALENCE_MARGIN, POWER

KEY = ["kind", "replicates", "processes"]
COVERAGE = {COVERED: "median covered", RATIO_COVERED: "ratio covered"}
NO_DIFFERENCE = {WRONG: "faster or slower", CLAIMED: "claimable", EQUIVALENT: "equivalent"}
ONE_OF_MANY = (1, "differ")
"""One process, where processes differ: no number of its samples shows how the next would behave."""


@exhibit("verdicts.calibration.table")
def table() -> Table:
    """A row per kind of samples, replicates and processes: coverage, errors and power in percent."""
    simulated = simulation.load()
    shares = simulated.pivot(index=KEY, columns="measure", values="value")
    names = {simulation.power(effect): f"{100 * effect:.0f} % found" for effect in simulation.EFFECTS}
    rows = [
        {"samples": kind, "replicates": replicates, "processes": processes}
        | {title: f"{100 * shares.loc[(kind, replicates, processes), name]:.1f}" for name, title in _measures(names)}
        for kind, replicates, processes in simulated[KEY].drop_duplicates().itertuples(index=False, name=None)
    ]
    kinds = "; ".join(f"{kind.name}: {kind.about}" for kind in simulation.KINDS)
    counts = simulated.groupby("measure")["simulations"].max()
    errors = 100 * simulated.groupby("measure")["standard_error"].max()
    note = (
        f"Percent of {counts[COVERED]:,} simulated runs ({counts[simulation.power(simulation.EFFECTS[0])]:,} for "
        f"power) of {simulation.ROUNDS} rounds around {simulation.MEDIAN_US:g} µs, with intervals of {CI}; "
        f"Monte-Carlo standard errors are at most {errors[COVERED]:.1f} (median), {errors[RATIO_COVERED]:.1f} (ratio) "
        f"and {errors[WRONG]:.1f} (faster or slower). Median and ratio covered: how often the interval held the true "
        "value. Faster or slower, claimable, equivalent: how often two sides without a difference were called so; "
        "found: how often a candidate that is faster by that much was called faster. Where processes differ, their "
        f"medians scatter by {100 * simulation.SHARED:g} % (standard deviation) for reasons that both sides share, and "
        f"by {100 * simulation.OWN:g} % for reasons of their own. {kinds[0].upper()}{kinds[1:]}."
    )
    return Table(pd.DataFrame(rows), "How often the inference is right where the truth is known.", note)


@exhibit("verdicts.calibration.brief")
def brief(results: Results) -> Table:
    """The rows of the simulation that are most like a run: with as many replicates, from processes that differ."""
    several = results.run.samples["replicate"].nunique() > 1
    which = (max(simulation.REPLICATES), "differ") if several else (1, "alike")
    shares = simulation.load().pivot(index=KEY, columns="measure", values="value") * 100
    titles = COVERAGE | {WRONG: "called faster or slower", CLAIMED: "claimable"}
    titles |= {simulation.power(effect): f"{100 * effect:.0f} % found" for effect in simulation.EFFECTS[1:]}
    rows = [
        {"samples": kind.name}
        | {title: f"{shares.loc[(kind.name, *which), name]:.1f}" for name, title in titles.items()}
        for kind in simulation.KINDS
    ]
    worst = max(float(shares.loc[(kind.name, *which), WRONG]) for kind in simulation.KINDS)
    processes = "five processes that differ" if several else "one process; of others it says nothing"
    return Table(
        pd.DataFrame(rows),
        f"Where there is no difference, at most {worst:.1f} % of simulated comparisons are called faster or slower: "
        f"percent of runs, by the law of their samples, each run of {processes}.",
        "All kinds and counts of replicates are in [](#verdicts.calibration.table).",
    )


def _measures(power: dict[str, str]) -> list[tuple[str, str]]:
    return list((COVERAGE | NO_DIFFERENCE | power).items())


@exhibit("verdicts.calibration")
def summary() -> Prose:
    """The results of the simulation in a paragraph."""
    shares = simulation.load().set_index([*KEY, "measure"])["value"].unstack() * 100
    alone = [(replicates, processes) == ONE_OF_MANY for _, replicates, processes in shares.index]
    usual, unknowable = shares[[not one for one in alone]], shares[alone]
    independent = usual.xs("independent", level="kind")
    return Prose(
        f"In simulations with known truth, {CI} intervals of the median cover {_range(independent[COVERED])} of the "
        f"time on independent samples and {_range(usual[COVERED])} over all six kinds; those of the ratio cover "
        f"{_range(independent[RATIO_COVERED])} and {_range(usual[RATIO_COVERED])}. Where there is no difference, "
        f"verdicts say faster or slower in at most {usual[WRONG].max():.1f} % of the runs, claimable in at most "
        f"{usual[CLAIMED].max():.1f} %. All this leaves out a single replicate where processes differ, which it can't "
        f"show: its intervals cover {_range(unknowable[COVERED])} of the time and its verdicts err in up to "
        f"{unknowable[WRONG].max():.1f} %. They hold for that process alone. The numbers are in "
        "[](#verdicts.calibration.table)."
    )


def _range(percent: pd.Series) -> str:
    return f"{percent.min():.1f} to {percent.max():.1f} %"


@exhibit("verdicts.controls")
def controls(results: Results) -> Table:
    """The baseline against itself (A/A), at every shape under the headline's timing."""
    timing = results.headline
    rows = [
        {
            "shape": shape.label,
            f"ratio [{CI}]": formats.interval(family.control.speedup),
            "p": formats.pvalue(family.control.pvalue),
            "decision": family.control.decision,
            "minimum detectable effect": formats.percent(100 * family.smallest_effect),
        }
        for shape, family in results.families_under(timing).items()
        if family.control is not None
    ]
    if not rows:
        raise NotMeasured(NO_CONTROL)
    note = (
        f"The minimum detectable effect is the larger of two: the effect that a test at {100 * ALPHA:g} % detects with "
        f"a power of {100 * POWER:g} %, given this scatter, and the end of the interval that is farther from 1. No "
        "candidate is called faster or slower by less than it, and none equivalent where it is more than "
        f"{formats.MARGIN}. The decisions here are by the two sides alone, "
        "before any of this."
    )
    caption = f"`{results.study.baseline}` against itself; {timing.words}."
    return Table(pd.DataFrame(rows), caption, note)


@exhibit("verdicts.false_positives")
def false_positives(results: Results) -> Prose:
    """How often this run called its baseline different from itself, and which effects it can detect."""
    found = results.false_positives
    effects = [100 * results.smallest_effect(*place) for place in results.controlled()]
    return Prose(
        f"The run measured `{results.study.baseline}` against itself at {formats.count(found.comparisons, 'place')} "
        f"(shape and timing) and called it faster or slower at {found.wrong or 'none'} of them: "
        f"{100 * found.rate.estimate:.1f} % [{100 * found.rate.low:.1f}, {100 * found.rate.high:.1f}] (Clopper and "
        f"Pearson). The {CI} interval of its ratio excludes 1 at {found.apart or 'none'}; by chance alone it would at "
        f"about {ALPHA * found.comparisons:.0f}. The minimum detectable effect is between "
        f"{formats.percent(min(effects))} and {formats.percent(max(effects))}, depending on the place; no candidate "
        "is called faster or slower by less than it. At "
        f"{sum(effect > 100 * EQUIVALENCE_MARGIN for effect in effects)} of the places it is more than "
        f"{formats.MARGIN}, and no candidate is called equivalent there."
    )
