"""`attnlab.attend`: attention by the fastest implementation that a run found at each shape; elsewhere by SDPA."""

import warnings
from collections.abc import Callable, Hashable
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attnlab.base import paths
from attnlab.base.errors import UserError
from attnlab.measure.subjects import best, maps, operator, rungs, sdpa
from attnlab.measure.subjects.implementation import Attention, Implementation, Unsupported
from attnlab.measure.subjects.launch import layout
from attnlab.runs import dispatch
from attnlab.study import implementations, ladder
from attnlab.study.ladder import PREFIX
from attnlab.study.shapes import Shape

Key = tuple[tuple[int, ...], tuple[int, ...], torch.dtype, bool]
# Subclasses of it compute attention in their own ways.
KIND = Tensor


Prepared = Callable[[Tensor, Tensor, Tensor], Tensor]
"""The call for tensors of one layout; raises Unsupported for those that it doesn't serve after all."""
_table: dict[Key, str] | None = None
_prepared: dict[Hashable, Prepared] = {}


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
    """softmax(scale·Q·Kᵀ)·V by the implementation that the dispatch table of this device names for the shape.

    It is PyTorch's scaled_dot_product_attention for shapes that are not in the table, on devices other than a GPU, when
    gradients are needed, and when the chosen implementation does not serve these tensors (because of their strides, for
    example). The table is read at the first call on a GPU: the one given to `use`, otherwise the one that
    `make dispatch` wrote for this device, if there is one. Under `torch.compile`, it is the operator
    ``attnlab::attention``.

    Args:
        q: ``(batch, heads, seq_len, head_dim)``, with any strides.
        k: ``(batch, kv_heads, kv_len, head_dim)``; kv_heads divides heads.
        v: as `k`.
        causal: whether no query attends to keys after its own. The mask is aligned to the end: the last query sees all
            keys, as where the first keys come from a cache. SDPA's `is_causal` is aligned to the beginning, which
            differs where there are more keys than queries.
        scale: the factor of the scores; None for 1/√D.

    Raises:
        UserError: the table can't be read, or was made on another device.
        TypeError: q, k or v is no tensor.
        ValueError: k and v differ in length.
        RuntimeError: the chosen implementation failed at what it serves, or the device or its memory did.
    """
    if torch.compiler.is_compiling():
        output: Tensor = torch.ops.attnlab.attention(q, k, v, causal, scale)
        return output
    try:
        differentiable = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    except AttributeError:
        _require_tensors(q, k, v)
        raise
    if differentiable and _plain(q, k, v):
        return _sdpa(q, k, v, causal, scale)(q, k, v)
    return forward(q, k, v, causal, scale)


def forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None = None) -> Tensor:
    """`attend`, without gradients for plain tensors on a GPU."""
    if _plain(q, k, v):
        try:
            key = layout(q, k, v, causal, scale)
        except RuntimeError:  # such tensors have no strides
            return sdpa.sdpa(q, k, v, causal, scale)
        prepared = _prepared.get(key) or _prepare(key, q, k, v, causal, scale)
        try:
            return prepared(q, k, v)
        except Unsupported:
            pass
        return _sdpa(q, k, v, causal, scale)(q, k, v)
    _require_tensors(q, k, v)
    return sdpa.sdpa(q, k, v, causal, scale)


def _plain(q: Tensor, k: Tensor, v: Tensor) -> bool:
    return type(q) is type(k) is type(v) is KIND and q.is_cuda


# Where addresses or strides are no multiples of 16 bytes, PyTorch 2.11 computes wrong numbers by cuDNN, without an
# error, and by its other backends fails with a misaligned address, after which the process can't use the GPU any more.
def _aligned(call: Prepared, q: Tensor, k: Tensor, v: Tensor) -> Prepared:
    """What torch computes from tensors with such strides on a GPU: from copies where they are not aligned."""
    return partial(_of_copies if any(map(maps.odd_strides, (q, k, v))) else _of_aligned, call)


def _of_aligned(call: Prepared, q: Tensor, k: Tensor, v: Tensor, /) -> Tensor:
    if (q.data_ptr() | k.data_ptr() | v.data_ptr()) % maps.ALIGNMENT:
        return _of_copies(call, q, k, v)
    return call(q, k, v)


def _of_copies(call: Prepared, q: Tensor, k: Tensor, v: Tensor, /) -> Tensor:
    return call(*(tensor.clone(memory_format=torch.contiguous_format) for tensor in (q, k, v)))


def _sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Prepared:
    """SDPA for tensors of a layout."""
    _require_tensors(q, k, v)
    return _aligned(partial(scaled_dot_product_attention, **sdpa.options(q, k, causal, scale)), q, k, v)


def _require_tensors(q: object, k: object, v: object) -> None:
    """Raise TypeError for what is no tensor, and ValueError where K and V differ in length: torch may read beyond V."""
    for name, given in (("q", q), ("k", k), ("v", v)):
        if not isinstance(given, Tensor):
            raise TypeError(f"attend takes tensors, and {name} is of type {type(given).__name__}")
    assert isinstance(k, Tensor)
    assert isinstance(v, Tensor)
    if type(k) is type(v) is KIND and not k.is_nested and k.shape[-2:-1] != v.shape[-2:-1]:
        raise ValueError(f"k and v differ in length: {tuple(k.shape)} and {tuple(v.shape)}")


def use(source: Path | str | None = None) -> dict[Key, str]:
    """Make `attend` use this dispatch table from now on; None for the one that `make dispatch` wrote for this device.

    Returns:
        The implementation by shape of Q, shape of K, dtype, and whether there is a causal mask.

    Raises:
        UserError: torch sees no GPU; or the table can't be read, names something that can't be called, or was made on
            another device, or the one that is named under another PyTorch. Of the table for this device, a warning says
            the last, and `attend` goes by none.
    """
    global _table
    if not torch.cuda.is_available():
        raise UserError("a dispatch table serves an NVIDIA GPU, and torch sees none here")
    device_name = torch.cuda.get_device_name()
    found = dispatch.path(device_name) if source is None else Path(source)
    chosen: dict[Key, str] = {}
    if source is not None or found.is_file():
        try:
            chosen = _chosen(dispatch.load(found, device_name, torch.__version__), found)
        except dispatch.OtherPyTorch as error:
            if source is not None:
                raise
            warnings.warn(f"attend calls SDPA: {error}", stacklevel=2)
    _table = chosen
    _prepared.clear()
    return chosen


def _chosen(table: dispatch.Dispatch, source: Path) -> dict[Key, str]:
    try:
        choices = table.chosen()
        for choice in choices:
            if choice.implementation.startswith(PREFIX):
                best.implementation(choice.implementation)
            else:
                implementations.require(choice.implementation, implementations.SDPA)
    except UserError as error:
        raise UserError(f"{paths.shown(source)}: {error}") from None
    return {_key(choice.shape): choice.implementation for choice in choices}


def _key(shape: Shape) -> Key:
    queries = (shape.batch, shape.heads, shape.seq_len, shape.head_dim)
    values = (shape.batch, shape.kv_heads, shape.kv_len, shape.head_dim)
    return queries, values, getattr(torch, shape.dtype), shape.causal


def _prepare(key: Hashable, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Prepared:
    """The call for tensors of a layout; it is kept."""
    table = _table if _table is not None else use()
    alike = v.shape == k.shape and q.dtype == k.dtype == v.dtype and q.device == k.device == v.device
    name = table.get((tuple(q.shape), tuple(k.shape), q.dtype, causal)) if alike else None
    if len(_prepared) >= rungs.KEPT:
        _prepared.clear()
    _prepared[key] = prepared = _call(name, q, k, v, causal, scale)
    return prepared


def _call(name: str | None, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Prepared:
    """An implementation, with as little Python as possible between it and its caller."""
    if name is None or name == implementations.FALLBACK:
        return _sdpa(q, k, v, causal, scale)
    if name.startswith(PREFIX):
        return _launch(name, q, k, v, causal, scale)
    plain = q.shape[1] == k.shape[1] and (not causal or q.shape[2] == k.shape[2]) and q.shape[3] % 8 == 0
    called: Attention = _DIRECT[name] if name in _DIRECT and plain else partial(_within, sdpa.REGISTRY[name])
    return _aligned(partial(_by_torch, partial(called, causal=causal, scale=scale)), q, k, v)


def _launch(name: str, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Prepared:
    try:
        launcher = _best() if name == ladder.BEST else rungs.of(ladder.rung(name))
        return launcher.prepare(q, k, v, causal, scale).launch
    except Unsupported:
        return _sdpa(q, k, v, causal, scale)


_best = cache(best.Best)


def _by_torch(call: Prepared, q: Tensor, k: Tensor, v: Tensor, /) -> Tensor:
    """What one of torch's operators computes.

    Raises:
        Unsupported: it doesn't serve such tensors. Whatever else it raises is raised.
    """
    try:
        return call(q, k, v)
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except RuntimeError as error:
        # So torch's operators refuse a layout. The table was made with contiguous tensors: those they do serve.
        if q.is_contiguous() and k.is_contiguous() and v.is_contiguous():
            raise
        raise Unsupported(str(error)) from None


def _within(
    implementation: Implementation,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    scale: float | None = None,
) -> Tensor:
    with implementation.selected():
        return implementation.call(q, k, v, causal, scale)


# SDPA's backends as the operators that it would call: selecting a backend takes longer than many of them run.
def _flash(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None = None) -> Tensor:
    return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, scale=scale)[0]


def _cudnn(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None = None) -> Tensor:
    attention = torch.ops.aten._scaled_dot_product_cudnn_attention
    return attention(q, k, v, None, False, 0.0, causal, scale=scale)[0]


def _efficient(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None = None) -> Tensor:
    attention = torch.ops.aten._scaled_dot_product_efficient_attention
    return attention(q, k, v, None, False, 0.0, causal, scale=scale)[0]


_DIRECT: dict[str, Attention] = {"sdpa.flash": _flash, "sdpa.cudnn": _cudnn, "sdpa.efficient": _efficient}
DISPATCHED = Implementation(implementations.DISPATCH, attend)
operator.register(forward)
