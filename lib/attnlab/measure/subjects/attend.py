"""`attnlab.attend`: attention by the fastest implementation that a run found at each shape; elsewhere by SDPA."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import torch
import torch.nn.functional as F

from attnlab.base import paths
from attnlab.base.errors import UserError
from attnlab.measure.subjects import best, sdpa
from attnlab.measure.subjects.implementation import Attention, Implementation, Unsupported
from attnlab.runs import dispatch
from attnlab.study import implementations
from attnlab.study.ladder import PREFIX
from attnlab.study.shapes import Shape

Key = tuple[torch.Size | tuple[int, ...], torch.Size | tuple[int, ...], torch.dtype, bool]
_calls: dict[Key, Attention] | None = None


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False) -> torch.Tensor:
    """softmax(Q·Kᵀ/√D)·V by the implementation that the dispatch table of this device names for the shape.

    It is PyTorch's scaled_dot_product_attention for shapes that are not in the table, on devices other than a GPU, when
    gradients are needed, and when the chosen implementation does not serve these tensors (because of their layout, for
    example). The table is read at the first call on a GPU: the one given to `use`, otherwise the one that
    `make dispatch` wrote for this device, if there is one.

    Args:
        q: ``(batch, heads, seq_len, head_dim)``.
        k: ``(batch, kv_heads, kv_len, head_dim)``.
        v: as `k`.
        causal: whether no query attends to keys after its own; q, k and v then have one length.

    Raises:
        UserError: the table can't be read, or was made on another device.
        RuntimeError: the chosen implementation failed at what it serves, or the device or its memory did.
    """
    if q.is_cuda and not (torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)):
        calls = _calls if _calls is not None else use()
        call = calls.get((q.shape, k.shape, q.dtype, causal))
        if call is not None and v.shape == k.shape and q.dtype == k.dtype == v.dtype:
            output = _served(call, q, k, v, causal)
            if output is not None:
                return output
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])


def _served(call: Attention, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor | None:
    """What an implementation computes; None if it doesn't serve such tensors. Whatever else it raises is raised."""
    try:
        return call(q, k, v, causal)
    except Unsupported:
        return None
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except RuntimeError:
        # So torch's operators refuse a layout. The table was made with contiguous tensors: those they do serve.
        if q.is_contiguous() and k.is_contiguous() and v.is_contiguous():
            raise
        return None


def use(source: Path | str | None = None) -> dict[Key, Attention]:
    """Make `attend` use this dispatch table from now on; None for the one that `make dispatch` wrote for this device.

    Raises:
        UserError: torch sees no GPU; or the table can't be read, names something that can't be called, or was made on
            another device.
    """
    global _calls
    if not torch.cuda.is_available():
        raise UserError("a dispatch table serves an NVIDIA GPU, and torch sees none here")
    device_name = torch.cuda.get_device_name()
    found = dispatch.path(device_name) if source is None else Path(source)
    if source is None and not found.is_file():
        _calls = {}
        return _calls
    table = dispatch.load(found, device_name, torch.__version__)
    try:
        _calls = {_key(choice.shape): _call(choice) for choice in table.chosen()}
    except UserError as error:
        raise UserError(f"{paths.shown(found)}: {error}") from None
    return _calls


def _key(shape: Shape) -> Key:
    queries = (shape.batch, shape.heads, shape.seq_len, shape.head_dim)
    values = (shape.batch, shape.kv_heads, shape.kv_len, shape.head_dim)
    return queries, values, getattr(torch, shape.dtype), shape.causal


def _call(choice: dispatch.Choice) -> Attention:
    """The implementation of a choice, with as little Python as possible between it and its caller."""
    direct = _DIRECT.get(choice.implementation)
    padded = choice.shape.head_dim % 8 > 0  # by SDPA, before it calls an operator
    return direct if direct and not padded else _selected(choice.implementation)


@cache
def _selected(name: str) -> Attention:
    if name.startswith(PREFIX):
        return best.implementation(name).call
    return partial(_within, sdpa.REGISTRY[implementations.require(name, implementations.SDPA)])


def _within(
    implementation: Implementation, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool
) -> torch.Tensor:
    with implementation.selected():
        return implementation.call(q, k, v, causal)


# SDPA's backends as the operators that it would call: selecting a backend takes longer than many of them run.
def _flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)[0]


def _cudnn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    attention = torch.ops.aten._scaled_dot_product_cudnn_attention
    return attention(q, k, v, None, False, 0.0, causal)[0]


def _efficient(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    attention = torch.ops.aten._scaled_dot_product_efficient_attention
    return attention(q, k, v, None, False, 0.0, causal)[0]


_DIRECT: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool], torch.Tensor]] = {
    "sdpa.flash": _flash,
    "sdpa.cudnn": _cudnn,
    "sdpa.efficient": _efficient,
}
DISPATCHED = Implementation(implementations.DISPATCH, attend)
