"""What a rule is, all rules by name, and what they read from their inputs."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Literal, TypeAlias, TypeVar

from attnlab.base.errors import UserError
from attnlab.literature.audit.numbers import Number
from attnlab.literature.audit.reference import SHEET, Row, Term
from attnlab.study.shapes import Shape

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


T = TypeVar("T")
Apply: TypeAlias = Callable[..., Outcome]
"""Takes the row that states something, and the inputs that the claim names."""


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


def rule(name: str, least: int = 1, otherwise: Finding | None = None, counts: bool = False) -> Callable[[Apply], Apply]:
    """Register a rule under a name; it takes as many inputs as its function has arguments after the row.

    Args:
        least: the fewest inputs of a rule that takes any number.
        otherwise, counts: see `Rule`.
    """

    def keep(apply: Apply) -> Apply:
        _, *inputs = signature(apply).parameters.values()
        takes_any = any(each.kind is Parameter.VAR_POSITIONAL for each in inputs)
        fewest, most = (least, math.inf) if takes_any else (len(inputs), len(inputs))
        RULES[name] = Rule(apply, fewest, most, otherwise, counts)
        return apply

    return keep


def number(term: Term) -> Number:
    return _needed(term.number, f"{term.shown!r} is a word, where the rule needs a number")


def stated_number(row: Row) -> Number:
    return _needed(row.number, f"the stated {row.value!r} is a word, where the rule needs a number")


def row_of(term: Term) -> Row:
    return _needed(term.row, f"{term.shown!r} is a constant, where the rule needs a row")


def shape_of(row: Row) -> Shape:
    return _needed(row.shape, f"the row {row.id!r} has no shape, which the rule needs")


def _needed(found: T | None, otherwise: str) -> T:
    if found is None:
        raise UserError(otherwise)
    return found


def place(row: Row) -> str:
    """Document and section of a row."""
    return f"{row.document}, “{row.place}”" if row.place != SHEET else f"the datasheet of the {row.document}"


def brief(shape: Shape) -> str:
    """A shape by the three axes that the documents vary."""
    return f"B={shape.batch} H={shape.heads} S={shape.seq_len}"
