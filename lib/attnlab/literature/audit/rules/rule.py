"""What a rule is, and all rules by name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from attnlab.literature.audit.numbers import Number
from attnlab.literature.audit.reference import Row, Term

Finding = Literal[
    "holds",
    "rounding",
    "contradicts itself",
    "contradicts another",
    "exceeds the hardware",
    "wrong work",
    "unsupported",
    "refuted premise",
]


@dataclass(frozen=True)
class Outcome:
    """The result of a rule.

    Attributes:
        recomputed: the number in base units, or a word.
        how: the calculation with its numbers in it.
        agrees: whether the statement is true; None where the number decides.
    """

    recomputed: Number | str
    how: str
    agrees: bool | None = None


Apply: TypeAlias = Callable[[Row, list[Term]], Outcome]


@dataclass(frozen=True)
class Rule:
    """Arithmetic, and the finding where it gives another value than the stated one.

    Attributes:
        least, most: the number of inputs that it takes.
        otherwise: that finding; None for a contradiction, of the document with itself or with another.
        counts: whether its first input names a quantity, and its other inputs are all rows that state that quantity.
    """

    apply: Apply
    least: int
    most: float
    otherwise: Finding | None
    counts: bool


RULES: dict[str, Rule] = {}


def rule(
    name: str, least: int = 1, most: float | None = None, otherwise: Finding | None = None, counts: bool = False
) -> Callable[[Apply], Apply]:
    """Register a rule under a name; the other arguments are the attributes of `Rule`, `most` as many as `least`."""

    def keep(apply: Apply) -> Apply:
        RULES[name] = Rule(apply, least, least if most is None else most, otherwise, counts)
        return apply

    return keep
