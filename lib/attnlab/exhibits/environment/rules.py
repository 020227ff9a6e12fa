"""The twelve rules of Hoefler and Belli for benchmarking, each with what is done here."""

import pandas as pd

from attnlab.exhibits.catalogue import exhibit
from attnlab.exhibits.display import Inline, Table

ANSWERS = (
    ("name the base of a speedup, and its absolute time", "the study's baseline and its latency are in each table"),
    ("give the reason for a subset", "each shape is named; a case without a latency is listed with its reason"),
    ("means of costs are arithmetic, of rates harmonic", "latencies are medians; rates are work over that median"),
    ("don't average ratios", "none is averaged: each ratio is of two medians at one shape; else shapes are counted"),
    ("intervals where data scatter", "each estimate has one, from replicates where there are several"),
    ("assume no normality unchecked", "only of medians of replicates; its cost is in [](#verdicts.calibration.brief)"),
    (
        "compare soundly",
        "rank tests and intervals of paired rounds, Holm's correction, and equivalence tested by itself",
    ),
    ("ask whether the median is the right summary", "tails with intervals are on the page 02_baseline"),
    ("document factors and set-up", "machine, settings, versions and hashes are read back and kept with the run"),
    ("say how time was measured and synchronized", "[](#environment.clocks) says it, and other clocks test it"),
    ("show upper bounds", "a floor by measured ceilings for each shape, the datasheet's beside it"),
    ("show what is needed, join only what is a trend", "samples are drawn one by one; lines run along one swept axis"),
)


@exhibit("environment.rules")
def rules() -> Table:
    """A row for each rule, in the order of their paper."""
    rows = [(str(number), rule, Inline(answer)) for number, (rule, answer) in enumerate(ANSWERS, 1)]
    return Table(
        pd.DataFrame(rows, columns=["", "rule, in brief", "here"]),
        "All twelve rules for benchmarks [](#ref-hoefler2015) are answered.",
    )
