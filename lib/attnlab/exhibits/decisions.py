"""What a verdict is called in a table, in a sentence and in a legend."""

from collections.abc import Mapping

from attnlab.exhibits import formats
from attnlab.exhibits.formats import MARGIN
from attnlab.exhibits.quantities import Marked
from attnlab.infer.families import disagree
from attnlab.infer.stats import Decision, Verdict
from attnlab.study.studies import Timing

FASTER: Decision = "faster"
SLOWER: Decision = "slower"
EQUIVALENT: Decision = "equivalent"
INCONCLUSIVE: Decision = "inconclusive"
CLAIMABLE = f"{FASTER}, claimable"
SIGNS = {CLAIMABLE: "★", FASTER: "▲", EQUIVALENT: "=", INCONCLUSIVE: "?", SLOWER: "▼"}
"""The sign of each kind of verdict, which distinguishes them in grey."""
_WORDS = {
    FASTER: ("faster", "than"),
    SLOWER: ("slower", "than"),
    EQUIVALENT: (f"equivalent within ±{MARGIN}", "to"),
    INCONCLUSIVE: ("not distinguished", "from"),
}
"""What a sentence calls each decision, and the preposition between that and the baseline."""


def kind(verdict: Verdict) -> str:
    """The decision, and whether it is claimable: ``faster, claimable``."""
    return CLAIMABLE if verdict.claimable else verdict.decision


def marked(verdict: Verdict) -> Marked:
    """The speedup with the sign of its verdict, as the cell of a table that has no column for the verdict."""
    return Marked(verdict.speedup, f"{SIGNS[kind(verdict)]} {kind(verdict)}")


def cell(verdict: Verdict) -> str:
    """The kind in a table of many columns, on two lines."""
    return kind(verdict).replace(", ", ",\n")


def relation(verdict: Verdict) -> str:
    """How the candidate compares, before the name of the baseline: ``faster than``."""
    return " ".join(_WORDS[verdict.decision])


def claim(verdict: Verdict) -> str:
    """What follows in a sentence after "faster": whether it is claimable. Empty for other decisions."""
    if verdict.decision != FASTER:
        return ""
    return ", and claimable" if verdict.claimable else ", but not claimable"


def against(verdicts: Mapping[Timing, Verdict], other: str) -> str:
    """A sentence on how a candidate compares with another implementation under each timing."""
    relation = "the verdict depends on the timing:" if disagree(verdicts) else "it is"
    return f"Compared with {other}, {relation} {under_each(verdicts)}."


def under_each(verdicts: Mapping[Timing, Verdict]) -> str:
    """What each timing says, those that agree together: ``faster by `device` warm (1.05 [1.04, 1.06])``.

    A claimable speedup is marked as such; where some are faster and none is claimable, that is said at the end.
    """
    groups: dict[Decision, list[str]] = {}
    for timing, verdict in verdicts.items():
        speedup = f"{formats.interval(verdict.speedup)}{', claimable' if verdict.claimable else ''}"
        groups.setdefault(verdict.decision, []).append(f"`{timing.clock}` {timing.cache} ({speedup})")
    parts = [f"{_WORDS[decision][0]} by {formats.listing(found)}" for decision, found in groups.items()]
    said = formats.listing(parts) if len(parts) < 2 else f"{', '.join(parts[:-1])}, and {parts[-1]}"
    faster = [verdict for verdict in verdicts.values() if verdict.decision == FASTER]
    return f"{said}; not claimable" if faster and not any(verdict.claimable for verdict in faster) else said
