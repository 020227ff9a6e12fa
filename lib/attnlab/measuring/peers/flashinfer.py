"""FlashInfer's attention, with its fastest kernel and the fastest way to pass it tensors of a layout.

Its tensors are ``(tokens, heads, head_dim)``, with sequences one after the other. K and V may also be pages of some
keys each; keys are then split between pages only. It has kernels for every NVIDIA GPU (``fa2``) and for Hopper
(``fa3``, FlashAttention-3's algorithm). It compiles them with nvcc at their first call. Its planning on the host, once
for all layers of a step, is done at the first call of a layout, and not timed.
"""

import logging
from collections.abc import Callable, Hashable, Iterator
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from attnlab.measuring.kernels.launch import layout
from attnlab.measuring.peers import plans
from attnlab.measuring.subjects.implementation import Implementation, Unsupported
from attnlab.measuring.subjects.sdpa import offsets

PAGES = (1, 16, 64)
"""The page sizes of servers, in keys; those that divide the number of keys are tried."""
WORKSPACE_BYTES = 128 * 2**20  # of partial results where keys are split, as the package advises
REFUSALS = (Unsupported, OSError, RuntimeError, ValueError, NotImplementedError, AssertionError)
COPIED = "FlashInfer takes the heads of a token beside each other, and would have to copy these tensors"
_plans: dict[Hashable, plans.Plan] = {}  # never emptied: captured graphs launch what a plan holds


def flashinfer(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None = None, sequences: tuple[int, ...] = ()
) -> Tensor:
    """FlashInfer's attention by the fastest plan for a layout; all plans are timed at the first call of the layout.

    Args:
        sequences: the lengths of sequences that are packed end to end in tensors of ``(1, heads, tokens, head_dim)``.

    Raises:
        Unsupported: the package is not installed, the device is no NVIDIA GPU, or none of its kernels serves this
            layout. Also the first call of a layout, while a graph is captured.
    """
    key = (layout(q, k, v, causal, scale), sequences)
    plan = _plans.get(key)
    if plan is None:
        package = plans.installed("flashinfer", "FlashInfer", q.device)
        plans.require_plannable("FlashInfer", q.dtype)
        logging.getLogger("flashinfer").setLevel(logging.ERROR)  # it tells of each kernel that it compiles
        tensors, made, reasons = (q, k, v), list[plans.Plan](), list[str]()
        with torch.cuda.device(q.device):
            for way in all_ways(package, *tensors, causal and q.shape[2] > 1, scale, sequences):
                with plans.refusing(REFUSALS, reasons):
                    made.append(plans.tried(way(), tensors))
            reason = next((f"FlashInfer: {one}" for one in reasons if one != COPIED), COPIED)
            plan = _plans[key] = plans.fastest(made, tensors, reason)
    return plan(q, k, v)


def all_ways(
    package: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None, sequences: tuple[int, ...] = ()
) -> Iterator[Callable[[], plans.Plan]]:
    """The ways to pass tensors without a copy; each returns a plan, or raises one of `REFUSALS`."""
    options = {"sm_scale": scale, "q_data_type": q.dtype, "kv_data_type": q.dtype}
    paged = k.stride() == v.stride() and not sequences
    sizes = [size for size in (*PAGES, k.shape[2]) if k.shape[2] % size == 0] if paged else []
    masked = options | {"causal": causal}
    for kernels in ("fa3", "fa2") if torch.cuda.get_device_capability(q.device)[0] == 9 else ("fa2",):
        wrapper = partial(package.BatchPrefillWithRaggedKVCacheWrapper, backend=kernels)
        yield partial(_ragged, wrapper, q, k, sequences, masked, True)
        if q.shape[1] == k.shape[1] and not sequences:
            yield partial(_ragged, wrapper, q, k, sequences, masked, False)
        wrapper = partial(package.BatchPrefillWithPagedKVCacheWrapper, backend=kernels)
        begins = [offsets((q.shape[2],) * len(q), q.device, torch.int32)] if sizes else []
        yield from (partial(_paged, wrapper, q, k, size, begins, masked) for size in sizes)
    if q.shape[2] == 1:  # the kernel for one query of each sequence, which multiplies without tensor cores
        wrapper = package.BatchDecodeWithPagedKVCacheWrapper
        yield from (partial(_paged, wrapper, q, k, size, [], options) for size in sizes)


def _ragged(
    make: Callable[..., Any], q: Tensor, k: Tensor, sequences: tuple[int, ...], options: dict[str, Any], by_token: bool
) -> plans.Plan:
    """A plan for all sequences one after the other, or else for each head as a sequence of one head."""
    queries, keys = _rows(q, by_token), _rows(k, by_token)
    begins = (
        offsets(sequences or (each.shape[2],) * (len(rows) // each.shape[2]), q.device, torch.int32)
        for each, rows in ((q, queries), (k, keys))
    )
    wrapper = make(workspace(q.device), "NHD")
    wrapper.plan(*begins, queries.shape[1], keys.shape[1], q.shape[3], **options)
    return lambda q, k, v: _run(wrapper, q, by_token, _rows(k, by_token), _rows(v, by_token))


def _paged(
    make: Callable[..., Any], q: Tensor, k: Tensor, size: int, begins: list[Tensor], options: dict[str, Any]
) -> plans.Plan:
    """A plan for K and V as pages of `size` keys; `begins` is the first query of each sequence, if it is needed."""
    (shape, strides), listed = pages(k, size)
    wrapper = make(workspace(q.device), "HND")
    wrapper.plan(*begins, *listed, q.shape[1], k.shape[1], q.shape[3], size, **options)
    return lambda q, k, v: _run(wrapper, q, True, (k.as_strided(shape, strides), v.as_strided(shape, strides)))


def pages(keys: Tensor, size: int) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], tuple[Tensor, Tensor, Tensor]]:
    """K or V ``(batch, kv_heads, kv_len, head_dim)`` as pages of `size` keys of all heads, without a copy.

    Returns:
        The shape ``(pages, kv_heads, keys, head_dim)`` and its strides; pages overlap. Then the block table: the first
        entry of each sequence, the numbers of the used pages, and the number of keys in each sequence's last page.

    Raises:
        Unsupported: the distance between sequences is no whole number of pages.
    """
    batch, heads, length, head_dim = keys.shape
    between, of_head, of_key, of_element = keys.stride()
    each, between_pages = length // size, size * of_key
    if batch > 1 and between % between_pages:
        raise Unsupported(COPIED)
    further = between // between_pages
    firsts = torch.arange(batch, dtype=torch.int32, device=keys.device) * further
    numbers = (firsts[:, None] + torch.arange(each, dtype=torch.int32, device=keys.device)).flatten()
    begins = offsets((each,) * batch, keys.device, torch.int32)
    shape = ((batch - 1) * further + each, heads, size, head_dim)
    return (shape, (between_pages, of_head, of_key, of_element)), (begins, numbers, torch.full_like(firsts, size))


def _run(wrapper: Any, q: Tensor, by_token: bool, *given: Any) -> Tensor:
    rows = _rows(q, by_token)
    output: Tensor = wrapper.run(rows, *given, out=torch.empty(rows.shape, dtype=q.dtype, device=q.device))
    return output.view(q.transpose(1, 2).shape).transpose(1, 2) if by_token else output.view(q.shape)


def _rows(tensor: Tensor, by_token: bool) -> Tensor:
    """A view of ``(batch * length, heads, head_dim)`` or of ``(batch * heads * length, 1, head_dim)``."""
    heads, tensor = (tensor.shape[1], tensor.transpose(1, 2)) if by_token else (1, tensor)
    try:
        return tensor.view(-1, heads, tensor.shape[3])
    except RuntimeError:
        raise Unsupported(COPIED) from None


@cache
def workspace(device: torch.device) -> Tensor:
    """Memory for partial results, shared by all plans: calls run one after the other."""
    return torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)


def flashinfer_ragged(q: Tensor, k: Tensor, v: Tensor, causal: bool, sequences: tuple[int, ...]) -> Tensor:
    """`flashinfer` on sequences that are packed end to end."""
    return flashinfer(q, k, v, causal, sequences=sequences)


IMPLEMENTATION = Implementation("peer.flashinfer", flashinfer, ragged=flashinfer_ragged, differentiable=False)
