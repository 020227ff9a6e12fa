"""cuDNN's attention in FP8 through cuDNN's frontend: a scale for each of Q, K and V."""

from collections.abc import Hashable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnlab.measuring.fp8.accuracy import PROBABILITY_SCALE
from attnlab.measuring.fp8.quantize import E4M3, Quantized
from attnlab.measuring.kernels.launch import layout
from attnlab.measuring.peers import frontend, plans
from attnlab.measuring.subjects import outputs
from attnlab.measuring.subjects.implementation import Unsupported

SCALARS = ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")
# The uids of the scalars in a graph, after Q, K, V and O, and of the 2 maxima (of S and O) that cuDNN returns.
SCALAR_UIDS, LARGEST_UIDS = range(5, 11), (11, 12)
# By layout and dtype: a plan, the scalars of every call with the memory for the maxima, and the dtype of O that cuDNN
# writes. Never emptied: captured graphs launch the kernels of a plan.
_plans: dict[Hashable, tuple[plans.Plan, tuple[Tensor, ...], torch.dtype]] = {}


def attention(
    q: Quantized, k: Quantized, v: Quantized, causal: bool, dtype: torch.dtype, scale: float | None = None
) -> Tensor:
    """cuDNN's attention of tensors in e4m3, each with one scale, by the fastest of the plans for a layout.

    Only cuDNN's graph is timed. Its output has 16 bits if cuDNN has such a plan, for which its frontend requires
    Blackwell (`sdpa_support_surface.h`). On Hopper the output is e4m3, divided by the scale of V, so that no element
    overflows. The gate and the rounds convert it before they compare it.

    Raises:
        Unsupported: as `peers.cudnn.cudnn`; also a causal mask with unequal numbers of queries and keys.
    """
    key = (layout(q.values, k.values, v.values, causal, scale), dtype)
    if key not in _plans:
        _plans[key] = _plan((q, k, v), causal, scale, dtype)
    plan, (by_s, s, one, *largest), written = _plans[key]
    output = outputs.like(q.values, written)
    # If V isn't multiplied by its scale, O is divided by that scale.
    scales = q.scales, k.scales, one if written == E4M3 else v.scales
    plan(*_bytes(q.values, k.values, v.values, output), *scales, by_s, s, one, *largest)
    return output


def _bytes(*tensors: Tensor) -> list[Tensor]:
    """View e4m3 tensors as bytes: some versions of PyTorch can't export e4m3 to other packages."""
    return [tensor.view(torch.uint8) if tensor.dtype == E4M3 else tensor for tensor in tensors]


def _plan(
    given: tuple[Quantized, ...], causal: bool, scale: float | None, dtype: torch.dtype
) -> tuple[plans.Plan, tuple[Tensor, ...], torch.dtype]:
    q, k, v = (tensor.values for tensor in given)
    package = frontend.installed(q.device)
    plans.require_plannable("peer.cudnn_fp8", dtype)
    if causal and q.shape[2] != k.shape[2]:
        raise Unsupported("peer.cudnn_fp8 takes as many queries as keys under the causal mask")
    types = {E4M3: package.data_type.FP8_E4M3, dtype: getattr(package.data_type, plans.DTYPES[dtype])}
    with torch.cuda.device(q.device):
        numbers = (1 / PROBABILITY_SCALE, PROBABILITY_SCALE, 1.0, 0.0, 0.0)
        constants = by_s, s, one, *largest = tuple(torch.full((1,), number, device=q.device) for number in numbers)
        scalars = *(tensor.scales for tensor in given), by_s, s, one, *largest
        for written in (dtype, E4M3):
            tensors = (*_bytes(q, k, v, torch.empty_like(q, dtype=written)), *scalars)
            graph = partial(_graph, package, tensors, types[written], causal, scale)
            try:
                return frontend.fastest(package, [graph], tensors), constants, written
            except Unsupported as error:
                reason = error
    raise reason


def _graph(package: Any, tensors: tuple[Tensor, ...], written: Any, causal: bool, scale: float | None) -> Any:
    """A graph of attention; tensors of e4m3 are bytes."""
    fp32, q = package.data_type.FLOAT, tensors[0]

    def attention(graph: Any, *given: Any) -> Any:
        number = partial(graph.tensor, dim=[1] * 4, stride=[1] * 4, data_type=fp32)
        result, _, *largest = graph.sdpa_fp8(
            *given,
            **{name: number(uid=uid) for name, uid in zip(SCALARS, SCALAR_UIDS, strict=True)},
            generate_stats=False,
            attn_scale=q.shape[-1] ** -0.5 if scale is None else float(scale),
            use_causal_mask=causal,
        )
        for uid, one in zip(LARGEST_UIDS, largest, strict=True):
            one.set_output(True).set_uid(uid).set_dim([1] * 4).set_stride([1] * 4).set_data_type(fp32)
        return result

    return frontend.graph_of(package, tensors, package.data_type.FP8_E4M3, written, attention)
