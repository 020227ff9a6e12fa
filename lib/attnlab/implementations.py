"""The names of what computes attention. How each is called is the measuring half's affair."""

from collections.abc import Collection

from attnlab import dispatch, ladder
from attnlab.errors import UserError
from attnlab.suggestions import suggestion

SDPA = ("sdpa.auto", "sdpa.flash", "sdpa.cudnn", "sdpa.efficient", "sdpa.math")
PEERS = ("peer.flex", "peer.flash4")
"""Of other packages, where they are installed: PyTorch's FlexAttention, and flash-attn-4."""
REFERENCES = ("reference.float64",)
_CONTROL = "control."


def known() -> tuple[str, ...]:
    """Every implementation that a study may name: a rung of the ladder is ``kernel.<rung>``."""
    rungs = tuple(rung.implementation for rung in ladder.load())
    return SDPA + PEERS + REFERENCES + (dispatch.IMPLEMENTATION,) + rungs


def control(baseline: str) -> str:
    """The name under which a run measures its baseline once more, against itself."""
    return _CONTROL + baseline


def is_control(name: str) -> bool:
    """Whether this is the name of a baseline that was measured once more."""
    return name.startswith(_CONTROL)


def under_control(name: str) -> str:
    """What the control `name` is."""
    return name.removeprefix(_CONTROL)


def require(name: str, names: Collection[str] | None = None) -> str:
    """Return `name` if it is one of these `names`, by default all that are known.

    Raises:
        UserError: it isn't; the message names the nearest that is.
    """
    names = known() if names is None else names
    if name in names:
        return name
    raise UserError(f"unknown implementation {name!r}; known are {', '.join(names)}{suggestion(name, names)}")
