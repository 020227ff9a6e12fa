"""The names of what computes attention. How each is called is the measuring half's affair."""

from attnlab.errors import UserError
from attnlab.suggestions import suggestion

SDPA = ("sdpa.auto", "sdpa.flash", "sdpa.cudnn", "sdpa.efficient", "sdpa.math")
REFERENCES = ("reference.float64",)


def known() -> tuple[str, ...]:
    """Every implementation that a study may name."""
    return SDPA + REFERENCES


def require(name: str) -> str:
    """Return `name` if it is known.

    Raises:
        UserError: it isn't; the message names the nearest that is.
    """
    if name in known():
        return name
    raise UserError(f"unknown implementation {name!r}; known are {', '.join(known())}{suggestion(name, known())}")
