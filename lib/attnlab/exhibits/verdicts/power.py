"""Error rates and power of the inference: by simulation, and by the baseline of a run against itself."""

import pandas as pd

from attnlab.base.rules import EQUIVALENCE_MARGIN
from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Prose, Table
from attnlab.exhibits.formats import CI
from attnlab.exhibits.words import say
from attnlab.infer import simulation
from attnlab.infer.kernels.rungs import two_names
from attnlab.infer.lookup import NotMeasured
from attnlab.infer.machine.effort import effort
from attnlab.infer.results import NO_CONTROL, Results
from attnlab.infer.simulation import CLAIMED, COVERED, EQUIVALENT, RATIO_COVERED, WRONG

KEY = ["kind", "replicates", "processes"]
FOUND = {simulation.power(effect): f"{100 * effect:.0f} % found" for effect in simulation.EFFECTS}
"""Titles of the columns of power; the other columns are titled as their measures are named."""
MEASURES = [COVERED, RATIO_COVERED, WRONG, CLAIMED, EQUIVALENT, *FOUND]
SHOWS = dict.fromkeys([FOUND.get(measure, measure) for measure in MEASURES], "{:.1f}".format)


@exhibit("verdicts.calibration")
def calibration() -> Table:
    """A row per kind of samples, replicates and processes: coverage, errors and power in percent."""
    shares, simulated = _shares(), simulation.load().groupby("measure")
    replicates, processes = (shares.index.get_level_values(level) for level in ("replicates", "processes"))
    alone = (replicates == 1) & (processes == "differ")  # no sample of one process shows how the next would behave
    note = say(
        "verdicts.calibration",
        usual=shares[~alone],
        independent=shares[~alone].xs("independent", level="kind"),
        alone=shares[alone],
        titles={"median": COVERED, "ratio": RATIO_COVERED, "wrong": WRONG},
        simulation=simulation,
        counts=simulated["simulations"].max(),
        errors_pct=100 * simulated["standard_error"].max(),
        power=next(iter(FOUND)),
    )
    caption = "How often the inference is right where the truth is known."
    return Table(shares.rename_axis(index={"kind": "samples"}).reset_index(), caption, note, shows=SHOWS)


@exhibit("verdicts.calibration.brief")
def brief(results: Results) -> Table:
    """The rows of the simulation that are most like a run: of one process, or of several that differ.

    On several cards, a card is what is independent, as a process is there.
    """
    cards, (one, *several) = results.over_cards, simulation.REPLICATES
    taken = min(cards) if cards else effort(results).replicates
    fewer = (number for number in several if number <= taken)
    replicates = max(fewer, default=several[0]) if taken > 1 else one
    simulated = _shares()
    shares = _of(simulated, replicates)
    others = [number for number in several if number != replicates] if replicates > 1 else []
    smallest, *_ = FOUND.values()
    frame = shares.drop(columns=[EQUIVALENT, smallest]).rename_axis("samples").reset_index()
    return Table(
        frame,
        say(
            "verdicts.calibration_brief",
            worst=shares[WRONG].max(),
            worst_of_others={number: _of(simulated, number)[WRONG].max() for number in others},
            replicates=replicates,
            rounds=simulation.ROUNDS[replicates],
            cards=cards,
            samples=results.study.samples,
        ),
        "All kinds and counts of replicates are in [](#verdicts.calibration).",
        shows=SHOWS,
    )


def _of(shares: pd.DataFrame, replicates: int) -> pd.DataFrame:
    """The shares of one process, or of several that differ."""
    return shares.xs((replicates, "differ" if replicates > 1 else "alike"), level=("replicates", "processes"))


def _shares() -> pd.DataFrame:
    """Percentages by kind of samples, replicates and processes, a column for each measure, in the order simulated."""
    simulated = simulation.load()
    order = pd.MultiIndex.from_frame(simulated[KEY].drop_duplicates())
    shares = 100 * simulated.pivot(index=KEY, columns="measure", values="value").loc[order, MEASURES]
    return shares.rename(columns=FOUND).rename_axis(columns=None)


@exhibit("verdicts.controls")
def controls(results: Results) -> Table:
    """The baseline against itself (A/A), at every shape under the headline's timing."""
    rows = [
        {
            "shape": shape.label,
            f"ratio [{CI}]": family.control.speedup,
            "p_unadjusted": family.control.pvalue,
            "decision": family.control.decision,
            "smallest_effect_pct": 100 * family.smallest_effect,
        }
        for shape, family in results.families_under(results.headline).items()
        if family.control is not None
    ]
    if not rows:
        raise NotMeasured(NO_CONTROL)
    caption = f"`{results.study.baseline}` against itself; {results.headline.words}."
    return Table.of(rows, caption, say("verdicts.controls_note"))


@exhibit("verdicts.false_positives")
def false_positives(results: Results) -> Prose:
    """How often this run called its baseline different from itself, and which effects it can detect."""
    found = results.false_positives
    effects_pct = [100 * results.smallest_effect(*place) for place in results.controlled()]
    said = say(
        "verdicts.false_positives",
        baseline=results.study.baseline,
        found=found,
        shapes=list(dict.fromkeys(shape for shape, _ in found.wrong)),
        effects_pct=effects_pct,
        too_large=sum(effect > 100 * EQUIVALENCE_MARGIN for effect in effects_pct),
    )
    differences_pct = two_names(results)
    if not differences_pct:
        return Prose(said)
    return Prose(f"{said} {say('verdicts.two_names', differences_pct=differences_pct, timing=results.headline)}")
