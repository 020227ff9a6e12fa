"""What a rule reads from its inputs, and how it prints what it found."""

from attnlab.base.errors import UserError
from attnlab.literature.audit.numbers import Number
from attnlab.literature.audit.reference import SHEET, Row, Term
from attnlab.study.shapes import Shape


def number(term: Term) -> Number:
    """The number of an input; UserError for a word."""
    if term.number is None:
        raise UserError(f"{term.shown!r} is a word, where the rule needs a number")
    return term.number


def stated_number(row: Row) -> Number:
    """The number that a row states; UserError for a word."""
    if row.number is None:
        raise UserError(f"the stated {row.value!r} is a word, where the rule needs a number")
    return row.number


def row_of(term: Term) -> Row:
    """The row of an input; UserError for a constant."""
    if term.row is None:
        raise UserError(f"{term.shown!r} is a constant, where the rule needs a row")
    return term.row


def shape_of(row: Row) -> Shape:
    """The shape of a row; UserError where it has none."""
    if row.shape is None:
        raise UserError(f"the row {row.id!r} has no shape, which the rule needs")
    return row.shape


def place(row: Row) -> str:
    """Document and section of a row."""
    return f"{row.document}, “{row.place}”" if row.place != SHEET else f"the datasheet of the {row.document}"


def brief(shape: Shape) -> str:
    """A shape by the three axes that the documents vary."""
    return f"B={shape.batch} H={shape.heads} S={shape.seq_len}"


def megabytes(amount: float) -> str:
    """Bytes in MB."""
    return f"{amount / 1e6:.1f} MB"


def gigaflop(amount: float) -> str:
    """FLOPs in GFLOP."""
    return f"{amount / 1e9:.4g} GFLOP"
