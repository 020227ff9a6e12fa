"""What a verdict is called in a table, in a sentence and in a legend."""

from attnlab.exhibits.formats import MARGIN
from attnlab.infer.stats import Decision, Verdict

FASTER: Decision = "faster"
SLOWER: Decision = "slower"
EQUIVALENT: Decision = "equivalent"
INCONCLUSIVE: Decision = "inconclusive"
CLAIMABLE = f"{FASTER}, claimable"
_RELATIONS = {
    FASTER: "faster than",
    SLOWER: "slower than",
    EQUIVALENT: f"equivalent within ±{MARGIN} to",
    INCONCLUSIVE: "not distinguished from",
}


def kind(verdict: Verdict) -> str:
    """The decision, and whether it is claimable: ``faster, claimable``."""
    return CLAIMABLE if verdict.claimable else verdict.decision


def cell(verdict: Verdict) -> str:
    """The same in a table of many columns, on two lines."""
    return kind(verdict).replace(", ", ",\n")


def relation(verdict: Verdict) -> str:
    """How the candidate compares, before the name of the baseline: ``faster than``."""
    return _RELATIONS[verdict.decision]


def claim(verdict: Verdict) -> str:
    """What follows in a sentence after "faster": whether it is claimable. Empty for other decisions."""
    if verdict.decision != FASTER:
        return ""
    return ", and claimable" if verdict.claimable else ", but not claimable"
