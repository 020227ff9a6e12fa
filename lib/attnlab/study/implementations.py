"""The names of the implementations. `attnlab.measuring` knows how each is called."""

from collections.abc import Collection

from attnlab.base.errors import UserError, suggestion
from attnlab.study import callables, ladder

DISPATCH = "dispatch.attend"
"""`attnlab.attend` as a measured implementation."""
FALLBACK = "sdpa.auto"
"""The implementation that `attnlab.attend` calls if its dispatch table names no other."""

SDPA = ("sdpa.auto", "sdpa.flash", "sdpa.cudnn", "sdpa.efficient", "sdpa.math")
PACKED = ("sdpa.padded", "sdpa.each", "sdpa.varlen")
"""These take only sequences of unequal lengths."""
PEERS = {
    "peer.flex": (),
    "peer.flash4": ("flash-attn-4", "nvidia-cutlass-dsl"),
    "peer.flash4_deterministic": ("flash-attn-4", "nvidia-cutlass-dsl"),
    "peer.cudnn": ("nvidia-cudnn-frontend",),
    "peer.flashinfer": ("flashinfer-python", "apache-tvm-ffi"),
    "peer.xformers": ("xformers",),
}
"""By name, which is that of a module in `measuring.peers` and possibly a variant: the packages whose versions a run on
a GPU records."""
REFERENCES = ("reference.float64",)
FP8_KERNEL, CUDNN_FP8 = f"{ladder.PREFIX}fp8", "peer.cudnn_fp8"
FP8_QUANTIZING = (f"{FP8_KERNEL}_quantizing", f"{FP8_KERNEL}_quantizing_rotated")
FP8_ROTATED = (f"{FP8_KERNEL}_rotated", FP8_QUANTIZING[1])
"""These rotate Q and K before they round them, as the quantising kernel can."""
FP8_ALIASES = (*FP8_QUANTIZING, FP8_ROTATED[0])
"""These call the kernel `FP8_KERNEL` with other inputs, and are not in the ladder."""
FP8 = (FP8_KERNEL, *FP8_ALIASES, CUDNN_FP8)
"""These round 16-bit Q, K and V to e4m3 and multiply the results. Those of `FP8_QUANTIZING` round within timing."""
PACKAGES = PEERS | {CUDNN_FP8: PEERS["peer.cudnn"]}
E4M3 = "float8_e4m3fn"
_CONTROL = "control."


def known(named: Collection[str] | None = None) -> tuple[str, ...]:
    """Every implementation that a study may name; a kernel of the ladder is ``kernel.<rung>``.

    If there is a ladder, ``kernel.best`` is its kernel that the tuning of the device chooses. Users' functions,
    ``python.<module>.<function>``, are known if a study `named` them. If it names no kernel, the ladder is not read.

    Raises UserError: the name of a user's function states no module or no function.
    """
    own = [name for name in callables.among(named or ()) if callables.parts(name)]
    fixed = (*SDPA, *PACKED, *PEERS, CUDNN_FP8, *REFERENCES, DISPATCH, *own)
    if named is not None and set(named) <= set(fixed):
        return fixed
    rungs = tuple(rung.implementation for rung in ladder.load())
    aliases = FP8_ALIASES if FP8_KERNEL in rungs else ()
    return fixed + rungs + aliases + ((ladder.BEST,) if rungs else ())


def control(baseline: str) -> str:
    """The name of a baseline's control: the baseline once more, measured against itself."""
    return _CONTROL + baseline


def is_control(name: str) -> bool:
    """Whether this is the name of a baseline's control."""
    return name.startswith(_CONTROL)


def in_fp8(name: str) -> bool:
    """Whether an implementation, or the one whose control this is, computes in FP8."""
    return under_control(name) in FP8


def under_control(name: str) -> str:
    """The baseline whose control is called `name`."""
    return name.removeprefix(_CONTROL)


def require(name: str, names: Collection[str] | None = None) -> str:
    """Return `name` if it is among `names`, by default all that are known; else UserError suggests the nearest."""
    names = known() if names is None else names
    if name in names:
        return name
    raise UserError(f"unknown implementation {name!r}; known are {', '.join(names)}{suggestion(name, names)}")
