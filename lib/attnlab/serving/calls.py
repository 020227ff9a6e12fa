"""The call of `attend` for tensors of one layout, chosen by a dispatch table or by tuning; it is prepared once."""

import math
import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch._C._dynamo.guards import TensorGuards
from torch.jit._trace import is_tracing
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from attnlab.base import paths
from attnlab.base.errors import UserError
from attnlab.measuring.kernels import best, maps, rungs
from attnlab.measuring.subjects import sdpa
from attnlab.measuring.subjects.implementation import Attention, Implementation, Unsupported
from attnlab.runs import dispatch, tuned
from attnlab.runs.dispatch import Dispatch
from attnlab.serving import context
from attnlab.study import implementations, ladder
from attnlab.study.ladder import PREFIX
from attnlab.study.shapes import Shape

# Subclasses of it compute attention in their own ways.
KIND = Tensor
VERSION = str(torch.__version__)
Prepared = Callable[[Tensor, Tensor, Tensor], Tensor]
"""The call for tensors of one layout; raises Unsupported for tensors that it doesn't serve after all."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A call for tensors of one layout; it is settled if tuning can't change it any more.

    `is_alike`, torch's own guards, compares layouts 3x faster than a dictionary key is made.
    """

    is_alike: Callable[[Tensor, Tensor, Tensor], bool]
    causal: bool
    scale: float | None
    call: Prepared
    settled: bool


NOTHING = Ready(lambda q, k, v: False, False, None, scaled_dot_product_attention, True)
table: Dispatch | None = None
layouts: dict[str, str] | None = None
"""The implementation at each tuned layout, by `layout_words`; None until it and the table are first loaded."""
prepared: dict[Hashable, Ready] = {}
last = NOTHING
"""The last call without gradients, mostly that of the previous layer."""


def again(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Tensor | None:
    """The output of the last call, if these tensors have its layout and need no gradients; else None."""
    ready = last
    if context.asks_for_sdpa():
        return None
    try:
        # Guards end the process where a tensor is nested and strided.
        if q.is_nested or not ready.is_alike(q, k, v) or ready.causal is not causal or ready.scale != scale:
            return None
    except AttributeError:  # no tensor
        return None
    try:
        return ready.call(q, k, v)
    except Unsupported:
        return sdpa_of(q, k, v, causal, scale)(q, k, v)


def keep(key: Hashable, ready: Ready) -> Ready:
    """Keep the call of a layout by its `launch.layout`."""
    return rungs.keep(prepared, key, ready)


def forget() -> None:
    """Forget the prepared calls and the last one."""
    global last
    prepared.clear()
    last = NOTHING


def guards(*tensors: Tensor) -> Callable[[Tensor, Tensor, Tensor], bool]:
    """A function that returns whether other tensors have the layouts of these."""
    guarded = cast(Any, TensorGuards)  # torch's stub has other types
    sizes, strides = ([list(size(tensor)) for tensor in tensors] for size in (Tensor.size, Tensor.stride))
    return guarded(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check


# The table and the tuned layouts


def use(source: Path | str | None = None) -> Dispatch | None:
    """Make `attend` use this dispatch table from now on; None for the one that `make dispatch` wrote for this device.

    A named table is used alone, without the layouts that were tuned before. Returns the table; None if this device has
    none, so that `attend` calls SDPA. One warning per process says that the table is of another PyTorch, for which
    `Dispatch.choose` requires a margin.

    Raises UserError: torch sees no GPU; or the named table can't be read, names an implementation that can't be called,
    or was made on another device. Such a fault in the table of this device is a warning.
    """
    global table, layouts
    if not torch.cuda.is_available():
        raise UserError("a dispatch table serves an NVIDIA GPU, and torch sees none here")
    device_name = torch.cuda.get_device_name()
    found: Dispatch | None = None
    file = dispatch.path(device_name) if source is None else Path(source)
    try:
        if source is not None or file.is_file():
            found = _callable(dispatch.load(file, device_name), file)
            if found.torch != VERSION:
                _warn_of_another(paths.shown(file), found.torch)
    except UserError as error:
        if source is not None:
            raise
        warnings.warn(f"attend calls SDPA: {error}", stacklevel=2)
    layouts = tuned.load(device_name, VERSION) if source is None else {}
    table = found
    forget()
    return table


@cache
def _warn_of_another(table: str, version: str) -> None:
    margin = f"{100 * (dispatch.MARGIN - 1):.0f} %"
    warnings.warn(
        f"{table} is of PyTorch {version}, not {VERSION}: attend calls our kernels where they lead by more than "
        f"{margin}, else SDPA; attnlab.tune measures one layout again, a run and `make dispatch` all of them",
        stacklevel=3,
    )


def _callable(made: Dispatch, source: Path) -> Dispatch:
    try:
        for name in made.named:
            if name.startswith(PREFIX):
                best.implementation(name)
            else:
                implementations.require(name, implementations.SDPA)
    except UserError as error:
        raise UserError(f"{paths.shown(source)}: {error}") from None
    return made


def choose(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> str:
    """The implementation that tuning or the table chose for these tensors; the fallback if neither did."""
    known = tuned_layouts()
    if known and (name := known.get(layout_words(q, k, v, causal, scale))):
        return name
    shape = shape_of(q, k, v, causal) if table else None
    return table.choose(shape, VERSION) if table and shape else implementations.FALLBACK


def tuned_layouts() -> dict[str, str]:
    """The implementation at each tuned layout, by `layout_words`; the first call reads them."""
    if layouts is None:
        use()
    assert layouts is not None
    return layouts


def settle(words: str, name: str) -> None:
    """Call an implementation at a layout from now on."""
    tuned_layouts()[words] = name
    forget()


def shape_of(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Shape | None:
    """The shape of these tensors; None if SDPA computes them in any case."""
    alike = v.shape == k.shape and q.dtype == k.dtype == v.dtype and q.device == k.device == v.device
    if not alike or (q.ndim, k.ndim) != (4, 4) or q.shape[::3] != k.shape[::3]:
        return None
    (batch, heads, seq_len, head_dim), (_, kv_heads, kv_len, _) = q.shape, k.shape
    dtype = str(q.dtype).removeprefix("torch.")
    try:
        return Shape(batch, heads, seq_len, head_dim, causal, dtype, kv_heads=kv_heads, kv_len=kv_len)
    except ValueError:
        return None


def layout_words(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> str:
    """The layout of tensors as text, the key of tuned layouts: all properties that tuning depends on."""
    each = (f"{name} {tuple(t.shape)} by {t.stride()}" for name, t in zip("QKV", (q, k, v), strict=True))
    return ", ".join([*each, str(q.dtype), ladder.MASKS[causal], "1/√D" if scale is None else "another scale"])


# What may be called


def is_plain(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether a kernel may compute these: it can read the tensors on a GPU, and no transform or tracer is active."""
    plain = type(q) is type(k) is type(v) is KIND and q.is_cuda and context.in_memory(q, k, v)
    return plain and not context.is_transformed() and not is_tracing() and not context.asks_for_sdpa()


def require_tensors(q: Any, k: Any, v: Any, **others: Any) -> None:
    """Raise TypeError unless all are tensors, and ValueError if K and V differ in length: torch may read beyond V."""
    for name, given in {"q": q, "k": k, "v": v, **others}.items():
        if not isinstance(given, Tensor):
            raise TypeError(f"attend takes tensors, and {name} is of type {type(given).__name__}")
        if given.dtype == torch.float8_e4m3fn:
            raise ValueError(f"attend takes tensors in {given.dtype} with their scales, as scales=(of q, of k, of v)")
    if type(k) is type(v) is KIND and not k.is_nested and k.shape[-2:-1] != v.shape[-2:-1]:
        raise ValueError(f"k and v differ in length: {tuple(k.shape)} and {tuple(v.shape)}")


def require_attention(q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> None:
    """Raise as `require_tensors`, and ValueError for arguments with which torch would fail or give NaN."""
    require_tensors(q, k, v)
    if isinstance(scale, float) and not math.isfinite(scale):
        raise ValueError(f"attend takes a finite scale, not {scale}")
    given = {"q": q, "k": k, "v": v}
    if any(type(tensor) is not KIND or tensor.is_nested for tensor in given.values()):
        return  # torch says which it takes
    for name, tensor in given.items():
        if not tensor.is_floating_point() or tensor.itemsize == 1:
            dtypes = "float16, bfloat16, float32 or float64"
            raise ValueError(f"attend takes tensors in {dtypes}, and {name} is {tensor.dtype}")
    alike = q.ndim == k.ndim == v.ndim > 1 and q.shape[-1] == k.shape[-1]
    if not alike or (q.ndim == 4 and k.shape[1] and q.shape[1] % k.shape[1]):
        shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in given.items())
        raise ValueError(
            "attend takes q (batch, heads, seq_len, head_dim) and k and v (batch, kv_heads, kv_len, head_dim), where "
            f"kv_heads divides heads, not {shapes}"
        )


# How it is called


def call_of(name: str, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Prepared:
    """An implementation for tensors of a layout, with as little Python as possible between it and its caller.

    Raises Unsupported: the kernel doesn't serve such tensors. The returned call may raise it too.
    """
    if name == implementations.FALLBACK or not rungs.serves_scale(scale):
        return sdpa_of(q, k, v, causal, scale)
    if name.startswith(PREFIX):
        launcher = _best() if name == ladder.BEST else rungs.of(ladder.rung(name))
        return launcher.prepare(q, k, v, causal, scale).launch
    plain = q.shape[1] == k.shape[1] and (not causal or q.shape[2] == k.shape[2]) and q.shape[3] % 8 == 0
    # SDPA looks at strides before it calls an operator.
    plain = plain and all(0 not in t.stride()[:3] and t.stride(3) == 1 for t in (q, k, v))
    called: Attention = _DIRECT[name] if name in _DIRECT and plain else partial(_within, sdpa.REGISTRY[name])
    return aligned(partial(_by_torch, partial(called, causal=causal, scale=scale)), q, k, v)


_best = cache(best.Best)
_DEFAULTS = {"is_causal": False, "enable_gqa": False}
"""SDPA's defaults other than None."""


def sdpa_of(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Prepared:
    """SDPA for tensors of a layout."""
    require_tensors(q, k, v)
    options = sdpa.options(q, k, causal, scale).items()
    stated = {name: value for name, value in options if value is not _DEFAULTS.get(name)}
    function = of_nothing
    if q.numel():
        function = sdpa.function_for(stated.get("attn_mask"), scaled_dot_product_attention)
    return aligned(partial(function, **stated) if stated else function, q, k, v)


# Where addresses or strides are no multiples of 16 bytes, PyTorch 2.11 computes wrong numbers by cuDNN, without an
# error, and by its other backends fails with a misaligned address, after which the process can't use the GPU any more.
def aligned(call: Prepared, q: Tensor, k: Tensor, v: Tensor) -> Prepared:
    """A call of torch for GPU tensors with these strides; copies tensors with unaligned strides or addresses."""

    def of_copies(*given: Tensor) -> Tensor:
        return call(*(tensor.clone(memory_format=torch.contiguous_format) for tensor in given))

    def of_aligned(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if (q.data_ptr() | k.data_ptr() | v.data_ptr()) % maps.ALIGNMENT:
            return of_copies(q, k, v)
        return call(q, k, v)

    return of_copies if any(map(maps.odd_strides, (q, k, v))) else of_aligned


def of_nothing(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """SDPA of an empty batch, with gradients. On a GPU, SDPA's kernels return None or fail for it."""
    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(q, k, v, **options)


def _by_torch(call: Prepared, q: Tensor, k: Tensor, v: Tensor, /) -> Tensor:
    """Call one of torch's operators; raises Unsupported where it doesn't serve a layout."""
    try:
        return call(q, k, v)
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except RuntimeError as error:
        # The table was made with contiguous tensors: those an operator does serve.
        if q.is_contiguous() and k.is_contiguous() and v.is_contiguous():
            raise
        raise Unsupported(str(error)) from None


def _within(implementation: Implementation, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    with implementation.selected():
        return implementation.call(q, k, v, **options)


def _first(name: str, *options: Any) -> Attention:
    """The first output of an operator, without bias or dropout. The others, such as log-sum-exps, are dropped."""
    operator = getattr(torch.ops.aten, f"_scaled_dot_product_{name}_attention")

    def call(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None = None) -> Tensor:
        return operator(q, k, v, *options, causal, scale=scale)[0]

    return call


_DIRECT = {"sdpa.flash": _first("flash", 0.0)} | {
    f"sdpa.{name}": _first(name, None, False, 0.0) for name in ("cudnn", "efficient")
}
"""The operators of SDPA's backends, called directly: selecting a backend may take longer than the kernel runs."""
