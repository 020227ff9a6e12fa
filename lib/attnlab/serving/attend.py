"""`attnlab.attend`: attention by the implementation that a run found to be the fastest at such shapes, or by SDPA."""

import math
import warnings
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch._C._dynamo.guards import TensorGuards
from torch.compiler import is_compiling
from torch.jit._trace import is_tracing
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from attnlab.base import paths
from attnlab.base.errors import UserError
from attnlab.measuring.fp8 import attend as scaled
from attnlab.measuring.kernels import best, maps, rungs
from attnlab.measuring.kernels.launch import layout
from attnlab.measuring.subjects import oracle, sdpa
from attnlab.measuring.subjects.implementation import Attention, Implementation, Unsupported
from attnlab.runs import dispatch, tuned
from attnlab.runs.dispatch import Dispatch
from attnlab.serving import context, operator
from attnlab.study import implementations, ladder
from attnlab.study.ladder import PREFIX
from attnlab.study.shapes import Shape

# Subclasses of it compute attention in their own ways.
KIND = Tensor
Prepared = Callable[[Tensor, Tensor, Tensor], Tensor]
"""The call for tensors of one layout; raises Unsupported for those that it doesn't serve after all."""
_table: Dispatch | None = None
_tuned: dict[str, str] = {}
"""What to call at each layout that was tuned, by `layout_words`."""
_looked = False
"""Whether the table of this device was looked for, and what was tuned on it."""
WHOLE = (torch.int32, torch.int64, torch.int16, torch.int8, torch.uint8)
"""What `kv_lens` may be of."""
TUNER = "attnlab.serving.tune"
"""What tunes, by its name: it infers from what it measures, and so stands above this."""


@dataclass(frozen=True, slots=True)
class _Ready:
    """A call for tensors of one layout, and whether they have to begin at multiples of `maps.ALIGNMENT` for it.

    It is settled once tuning has nothing to add. Torch's own guards, `is_alike`, compare a layout in a third of the
    time that it takes to make a key of it.
    """

    is_alike: Callable[[Tensor, Tensor, Tensor], bool]
    causal: bool
    scale: float | None
    call: Prepared
    of_aligned: bool
    settled: bool


_prepared: dict[Hashable, _Ready] = {}
_NOTHING = _Ready(lambda q, k, v: False, False, None, scaled_dot_product_attention, True, True)
_last = _NOTHING
"""What was called last, mostly by the layer before; it has no gradients."""


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    scale: float | None = None,
    autotune: bool = False,
    kv_lens: Tensor | None = None,
    scales: Sequence[Tensor] | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """softmax(scale·Q·Kᵀ)·V by the implementation that the dispatch table of this device chooses for the shape.

    Of a shape that was not measured, the table estimates the speedups by the nearest shapes that were. What
    `attnlab.tune` found at a layout comes before the table. It is PyTorch's scaled_dot_product_attention where nothing
    is expected to be faster, on devices other than a GPU, when gradients are needed, and when the chosen implementation
    does not serve these tensors (because of their strides, for example). The table is read at the first call on a GPU:
    the one given to `use`, otherwise the one that `make dispatch` wrote for this device, if there is one. Under
    `torch.compile`, it is the operator ``attnlab::attention``, and with `kv_lens` ``attnlab::attention_of_lengths``.
    Where `v` has another shape than `k`, it is SDPA there too.

    Args:
        q: ``(batch, heads, seq_len, head_dim)``, with any strides.
        k: ``(batch, kv_heads, kv_len, head_dim)``; kv_heads divides heads.
        v: as `k`.
        causal: whether no query attends to keys after its own. The mask is aligned to the end: the last query sees all
            keys, as where the first keys come from a cache. SDPA's `is_causal` is aligned to the beginning, which
            differs where there are more keys than queries.
        scale: the factor of the scores; None for 1/√D.
        autotune: whether to call `attnlab.tune` first at a layout that it has not measured. That takes seconds at each,
            so it is for few layouts. Where it can't measure, a warning says why. It isn't called while a graph is
            compiled or captured, where gradients are needed, or for tensors that are SDPA's in any case.
        kv_lens: the number of keys of each sequence, whole numbers ``(batch,)`` on the device of `q`; None where all
            have as many as k holds. What k and v hold beyond is not looked at, a query that sees no key gives 0, and
            the last query sees all keys of its sequence. A kernel that splits keys computes it where one serves these
            tensors, whatever the table says: the one that `make tune` chose, or `kernel.few`. Elsewhere SDPA does under
            a mask, from copies of k and v. Nothing waits for the device.
        scales: of q, k and v in float8_e4m3fn, as `attnlab.quantize` makes them: float32 ``(batch, heads, 1)``, or with
            1 in place of either. With `dtype=torch.float8_e4m3fn` a fourth, by which the output is divided, of the
            heads of q; what exceeds 448 of it is 448. `kernel.fp8` computes it where it serves these tensors, whatever
            the table says; elsewhere PyTorch's operations do, which round at the same places. There are no gradients,
            and `torch.compile` breaks its graph there.
        dtype: of the output of such tensors: float16, as by default, bfloat16, or float8_e4m3fn.

    Raises:
        TypeError: q, k or v is no tensor.
        ValueError: there is no attention of tensors of these shapes and dtypes, or scale, kv_lens, scales or dtype do
            not fit them.
        RuntimeError: the chosen implementation failed at what it serves, or the device or its memory did.
    """
    if scales is not None or dtype is not None:
        if scales is None:
            raise ValueError("attend takes dtype, of the output, where q, k and v come with scales")
        if autotune or kv_lens is not None:
            raise ValueError("attend takes neither autotune nor kv_lens with scales")
        return scaled.attend(q, k, v, scales, causal, scale, dtype)
    if kv_lens is not None:
        return _of_lengths(q, k, v, causal, scale, kv_lens)
    if is_compiling():
        if v.shape != k.shape or context.asks_for_sdpa():  # the operator refuses the former
            return sdpa.sdpa(q, k, v, causal, scale)
        # Cast in the graph: PyTorch 2.11 takes one that was compiled under another dtype of autocast for the same.
        output: Tensor = torch.ops.attnlab.attention(*context.autocast(q, k, v), causal, scale)
        return output
    if autotune and not _last.settled:
        _forget_last()
    found = again(q, k, v, causal, scale)
    if found is None and _is_watched(q, k, v):
        found = torch.ops.attnlab.attention(q, k, v, causal, scale)
    return anew(q, k, v, causal, scale, autotune) if found is None else found


def _is_watched(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether a mode, as one that counts FLOPs or traces, has to see the operator, since it can't see a kernel."""
    return torch._C._len_torch_dispatch_stack() > 0 and is_plain(q, k, v) and not _needs_gradients(q, k, v)


def _needs_gradients(q: Tensor, k: Tensor, v: Tensor) -> bool:
    return torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)


def _of_lengths(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None, kv_lens: Tensor) -> Tensor:
    """`attend` where each sequence has its own number of keys."""
    _require_tensors(q, k, v, kv_lens=kv_lens)
    fits = kv_lens.layout is torch.strided and not kv_lens.is_nested and kv_lens.shape == q.shape[:1]
    if (q.ndim, k.ndim) != (4, 4) or not fits or kv_lens.dtype not in WHOLE:
        raise ValueError(f"kv_lens has to hold a whole number for each sequence of q {tuple(q.shape)}")
    differentiable = _needs_gradients(q, k, v)
    if is_compiling() and (differentiable or context.asks_for_sdpa()):
        return _masked(q, k, v, causal, scale, kv_lens, scaled_dot_product_attention)
    if is_compiling() or _is_watched(q, k, v):
        q, k, v = context.autocast(q, k, v)
        output: Tensor = torch.ops.attnlab.attention_of_lengths(q, k, v, kv_lens, causal, scale)
        return output
    if differentiable:
        return _masked(q, k, v, causal, scale, kv_lens, _by_sdpa)
    return _of_lengths_forward(q, k, v, kv_lens, causal, scale)


def _of_lengths_forward(
    q: Tensor, k: Tensor, v: Tensor, kv_lens: Tensor, causal: bool = False, scale: float | None = None
) -> Tensor:
    """`_of_lengths` where nothing is traced and no gradients are needed."""
    if is_plain(q, k, v):
        # What int32 can't hold is more than k holds.
        lengths = kv_lens.clamp(-1, k.shape[2]) if kv_lens.dtype == torch.int64 else kv_lens
        with suppress(Unsupported, UserError):
            return _split_keys()(*context.autocast(q, k, v), causal, scale, lengths.to(torch.int32))
    return _masked(q, k, v, causal, scale, kv_lens, _by_sdpa)


_split_keys = cache(best.OfLengths)


def _masked(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None, kv_lens: Tensor, attention: Attention
) -> Tensor:
    """SDPA of sequences whose keys end before those of k and v do."""
    if not is_compiling():
        _require_attention(q, k, v, scale)
    queries, keys = q.shape[2], k.shape[2]
    ends = kv_lens.to(q.device, torch.int64).clamp(0, keys)
    absent = ~oracle.seen(ends, queries, keys, causal=False).transpose(2, 3)
    seen = oracle.seen(ends, queries, keys, causal).expand(-1, -1, queries, -1)
    k, v = (tensor.masked_fill(absent, 0) for tensor in (k, v))  # whatever is there, 0 * V must not be NaN
    grouped = {"enable_gqa": True} if q.shape[1] != k.shape[1] else {}  # where torch.compile traces, sizes are symbols
    output = attention(q, k, v, attn_mask=seen, scale=scale, **grouped)
    return output.masked_fill(~seen.any(3, keepdim=True), 0)


def _by_sdpa(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    function = scaled_dot_product_attention if q.numel() and k.numel() else _of_nothing
    call: Prepared = partial(function, **options)
    return _called(*_aligned(call, q, k, v), q, k, v) if is_plain(q, k, v) else call(q, k, v)


def _forget_last() -> None:
    global _last
    _last = _NOTHING


def again(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Tensor | None:
    """What was called last, for tensors of the same layout that need no gradients either; None for others."""
    ready = _last
    if context.asks_for_sdpa():
        return None
    try:
        # Guards end the process where a tensor is nested and strided.
        if q.is_nested or not ready.is_alike(q, k, v) or ready.causal is not causal or ready.scale != scale:
            return None
    except AttributeError:  # no tensor
        return None
    try:
        return _called(ready.call, ready.of_aligned, q, k, v)
    except Unsupported:
        return _called(*_sdpa(q, k, v, causal, scale), q, k, v)


def anew(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None, autotune: bool = False) -> Tensor:
    """`attend` where nothing is traced, and anything may have been called last."""
    global _last
    if not is_plain(q, k, v):
        _require_attention(q, k, v, scale)
        return sdpa.sdpa(q, k, v, causal, scale)
    differentiable = q.requires_grad or k.requires_grad or v.requires_grad
    if differentiable and torch.is_grad_enabled():
        return _called(*_sdpa(q, k, v, causal, scale), q, k, v)
    # Guards don't know to which dtype it casts, so that nothing is remembered as the last.
    casts = context.is_autocast(q.device)
    if casts:
        q, k, v = context.autocast(q, k, v)
    key = layout(q, k, v, causal, scale)
    known = _prepared.get(key)
    ready = known if known and (known.settled or not autotune) else _prepare(key, q, k, v, causal, scale, autotune)
    if not differentiable and not casts and not torch._C._len_torch_dispatch_stack():
        # Prepared in another state of torch, as under inference_mode. Guards take no tensor for two.
        if q is not k is not v is not q and not ready.is_alike(q, k, v):
            ready = _prepared[key] = replace(ready, is_alike=_guards(q, k, v))
        _last = ready
    try:
        return _called(ready.call, ready.of_aligned, q, k, v)
    except Unsupported:
        return _called(*_sdpa(q, k, v, causal, scale), q, k, v)


def is_plain(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether anything but SDPA may be called: kernels can read them on a GPU, and nothing transforms the call."""
    plain = type(q) is type(k) is type(v) is KIND and q.is_cuda and context.in_memory(q, k, v)
    transformed = torch._C._functorch.maybe_current_level() is not None or is_tracing()
    return plain and not transformed and not context.asks_for_sdpa()


# Where addresses or strides are no multiples of 16 bytes, PyTorch 2.11 computes wrong numbers by cuDNN, without an
# error, and by its other backends fails with a misaligned address, after which the process can't use the GPU any more.
def _aligned(call: Prepared, q: Tensor, k: Tensor, v: Tensor) -> tuple[Prepared, bool]:
    """What torch computes from tensors with such strides on a GPU, and whether only from addresses that are aligned."""
    odd = any(map(maps.odd_strides, (q, k, v)))
    return (partial(_of_copies, call), False) if odd else (call, True)


def _called(call: Prepared, of_aligned: bool, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if of_aligned and (q.data_ptr() | k.data_ptr() | v.data_ptr()) % maps.ALIGNMENT:
        return _of_copies(call, q, k, v)
    return call(q, k, v)


def _of_copies(call: Prepared, q: Tensor, k: Tensor, v: Tensor, /) -> Tensor:
    return call(*(tensor.clone(memory_format=torch.contiguous_format) for tensor in (q, k, v)))


_DEFAULTS = {"is_causal": False, "enable_gqa": False}
"""Of SDPA, where it isn't None."""


def _sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> tuple[Prepared, bool]:
    """SDPA for tensors of a layout, as `_aligned` gives it."""
    _require_tensors(q, k, v)
    options = sdpa.options(q, k, causal, scale).items()
    stated = {name: value for name, value in options if value is not _DEFAULTS.get(name)}
    function = scaled_dot_product_attention if q.numel() else _of_nothing
    return _aligned(partial(function, **stated) if stated else function, q, k, v)


def _of_nothing(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """SDPA of a batch of no sequences, of which its kernels make None or an error on a GPU; with gradients."""
    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(q, k, v, **options)


def _require_tensors(q: object, k: object, v: object, **others: object) -> None:
    """Raise TypeError for what is no tensor, and ValueError where K and V differ in length: torch may read beyond V."""
    for name, given in {"q": q, "k": k, "v": v, **others}.items():
        if not isinstance(given, Tensor):
            raise TypeError(f"attend takes tensors, and {name} is of type {type(given).__name__}")
        if given.dtype == torch.float8_e4m3fn:
            raise ValueError(f"attend takes tensors in {given.dtype} with their scales, as scales=(of q, of k, of v)")
    assert isinstance(k, Tensor)
    assert isinstance(v, Tensor)
    if type(k) is type(v) is KIND and not k.is_nested and k.shape[-2:-1] != v.shape[-2:-1]:
        raise ValueError(f"k and v differ in length: {tuple(k.shape)} and {tuple(v.shape)}")


def _require_attention(q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> None:
    """Raise what `_require_tensors` does, and ValueError where torch would fail in words of its own, or give NaN."""
    _require_tensors(q, k, v)
    if isinstance(scale, float) and not math.isfinite(scale):
        raise ValueError(f"attend takes a finite scale, not {scale}")
    given = {"q": q, "k": k, "v": v}
    if any(type(tensor) is not KIND or tensor.is_nested for tensor in given.values()):
        return  # torch says which it takes
    for name, tensor in given.items():
        if not tensor.is_floating_point() or tensor.itemsize == 1:
            raise ValueError(
                f"attend takes tensors in float16, bfloat16, float32 or float64, and {name} is {tensor.dtype}"
            )
    alike = q.ndim == k.ndim == v.ndim > 1 and q.shape[-1] == k.shape[-1]
    if not alike or (q.ndim == 4 and k.shape[1] and q.shape[1] % k.shape[1]):
        shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in given.items())
        raise ValueError(
            "attend takes q (batch, heads, seq_len, head_dim) and k and v (batch, kv_heads, kv_len, head_dim), where "
            f"kv_heads divides heads, not {shapes}"
        )


def use(source: Path | str | None = None) -> Dispatch | None:
    """Make `attend` use this dispatch table from now on; None for the one that `make dispatch` wrote for this device.

    One that is named is used alone, without the layouts that were tuned before.

    Returns:
        The table; None where there is none for this device, and `attend` calls SDPA.

    Raises:
        UserError: torch sees no GPU; or the table that is named can't be read, names something that can't be called, or
            was made on another device or under another PyTorch. Of the table for this device a warning says so, and
            `attend` calls SDPA.
    """
    global _table, _tuned, _looked, _last
    if not torch.cuda.is_available():
        raise UserError("a dispatch table serves an NVIDIA GPU, and torch sees none here")
    device_name = torch.cuda.get_device_name()
    found = dispatch.path(device_name) if source is None else Path(source)
    table = None
    if source is not None or found.is_file():
        try:
            table = dispatch.load(found, device_name, torch.__version__)
            _require_callable(table, found)
        except UserError as error:
            if source is not None:
                raise
            table = None
            warnings.warn(f"attend calls SDPA: {error}", stacklevel=2)
    _tuned = tuned.load(device_name, torch.__version__) if source is None else {}
    _table, _looked, _last = table, True, _NOTHING
    _prepared.clear()
    return table


def _require_callable(table: Dispatch, source: Path) -> None:
    try:
        for name in table.named:
            if name.startswith(PREFIX):
                best.implementation(name)
            else:
                implementations.require(name, implementations.SDPA)
    except UserError as error:
        raise UserError(f"{paths.shown(source)}: {error}") from None


def _prepare(
    key: Hashable, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None, autotune: bool
) -> _Ready:
    """The call for tensors of a layout; it is kept."""
    _require_attention(q, k, v, scale)
    settled = autotune and _settled(q, k, v, causal, scale)
    try:
        call = call_of(_chosen(q, k, v, causal, scale), q, k, v, causal, scale)
    except Unsupported:
        call = _sdpa(q, k, v, causal, scale)
    if len(_prepared) >= rungs.KEPT:
        _prepared.clear()
    _prepared[key] = ready = _Ready(_guards(q, k, v), causal, scale, *call, settled)
    return ready


def _guards(*tensors: Tensor) -> Callable[[Tensor, Tensor, Tensor], bool]:
    guarded = cast(Any, TensorGuards)  # torch's stub has other types
    sizes, strides = ([list(size(tensor)) for tensor in tensors] for size in (Tensor.size, Tensor.stride))
    is_alike: Callable[..., bool] = guarded(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
    return is_alike


def _settled(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> bool:
    """Tune a layout that isn't; whether there is no need to try that again."""
    if torch.cuda.is_current_stream_capturing() or torch._C._len_torch_dispatch_stack():
        return False
    if shape_of(q, k, v, causal):
        import_module(TUNER).ensure(q, k, v, causal, scale)
    return True


def _chosen(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> str:
    """What was tuned or the table chooses for such tensors; the fallback for those that neither speaks of."""
    table = _table if _looked else use()
    shape = shape_of(q, k, v, causal) if table or _tuned else None
    if shape and (name := tuned_at(q, k, v, causal, scale)):
        return name
    return table.choose(shape) if table and shape else implementations.FALLBACK


def shape_of(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Shape | None:
    """The shape of such tensors; None for those that are SDPA's in any case."""
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
    """All that tuning depends on of tensors that have a shape, in words."""
    each = (f"{name} {tuple(t.shape)} by {t.stride()}" for name, t in zip("QKV", (q, k, v), strict=True))
    return ", ".join([*each, str(q.dtype), ladder.MASKS[causal], "1/√D" if scale is None else "another scale"])


def tuned_at(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> str | None:
    """What was found for tensors of this layout; None if nothing was."""
    if not _looked:
        use()
    return _tuned.get(layout_words(q, k, v, causal, scale)) if _tuned else None


def settle(words: str, name: str) -> None:
    """Call an implementation at a layout from now on."""
    _tuned[words] = name
    _prepared.clear()
    _forget_last()


def call_of(name: str, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> tuple[Prepared, bool]:
    """An implementation, as `_aligned` gives it, with as little Python as possible between it and its caller.

    Raises:
        Unsupported: it is a kernel that doesn't serve such tensors. What is returned may raise it too.
    """
    if name == implementations.FALLBACK or not rungs.serves_scale(scale):
        return _sdpa(q, k, v, causal, scale)
    if name.startswith(PREFIX):
        launcher = _best() if name == ladder.BEST else rungs.of(ladder.rung(name))
        return launcher.prepare(q, k, v, causal, scale).launch, False
    plain = q.shape[1] == k.shape[1] and (not causal or q.shape[2] == k.shape[2]) and q.shape[3] % 8 == 0
    # SDPA looks at strides before it calls an operator.
    plain = plain and all(0 not in t.stride()[:3] and t.stride(3) == 1 for t in (q, k, v))
    called: Attention = _DIRECT[name] if name in _DIRECT and plain else partial(_within, sdpa.REGISTRY[name])
    return _aligned(partial(_by_torch, partial(called, causal=causal, scale=scale)), q, k, v)


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


def _within(implementation: Implementation, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    with implementation.selected():
        return implementation.call(q, k, v, **options)


def _flash(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None = None) -> Tensor:
    return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, scale=scale)[0]


def _biased(
    operator: Callable[..., Any], q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None = None
) -> Tensor:
    """What an operator that could take a bias computes without one."""
    return operator(q, k, v, None, False, 0.0, causal, scale=scale)[0]


_DIRECT: dict[str, Attention] = {
    "sdpa.flash": _flash,
    "sdpa.cudnn": partial(_biased, torch.ops.aten._scaled_dot_product_cudnn_attention),
    "sdpa.efficient": partial(_biased, torch.ops.aten._scaled_dot_product_efficient_attention),
}
"""SDPA's backends as the operators that it would call: selecting a backend takes longer than many of them run."""
operator.register(again, anew)
operator.register_of_lengths(_of_lengths_forward)
