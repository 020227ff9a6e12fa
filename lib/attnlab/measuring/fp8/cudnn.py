"""cuDNN's attention in FP8 through its own frontend: a scale for each of Q, K and V."""

import threading
from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnlab.measuring.fp8.accuracy import PROBABILITY_SCALE
from attnlab.measuring.fp8.quantize import E4M3, Quantized
from attnlab.measuring.kernels import launch
from attnlab.measuring.peers import cudnn as peer
from attnlab.measuring.subjects import outputs
from attnlab.measuring.subjects.implementation import Unsupported

SCALARS = ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")
# By what the scalars and the two largest elements that cuDNN returns are called in a graph, after Q, K, V and O.
SCALAR_UIDS, LARGEST_UIDS = range(5, 11), (11, 12)


@dataclass(frozen=True)
class _Planned:
    """A plan for one layout.

    Attributes:
        constants: the scalars that are the same in each call, and what cuDNN writes largest elements to.
        dtype: of what cuDNN writes: what was asked for, or e4m3.
    """

    plan: peer.CudnnPlan
    constants: tuple[Tensor, ...]
    dtype: torch.dtype


def attention(
    q: Quantized, k: Quantized, v: Quantized, causal: bool, dtype: torch.dtype, scale: float | None = None
) -> Tensor:
    """cuDNN's attention of tensors in e4m3, each with one scale, by the fastest of the plans for a layout.

    What is timed is cuDNN's graph alone. It writes 16 bits where cuDNN has a plan that does: its frontend asks for
    Blackwell (`sdpa_support_surface.h`). On Hopper it writes e4m3, over what no element exceeds, the scale of V: the
    gate and the rounds widen it (`accuracy.widened`) where they compare it.

    Raises:
        Unsupported: as `peers.cudnn.cudnn`; the causal mask is asked for with other numbers of queries and of keys.
    """
    tensors = q.values, k.values, v.values
    key = (launch.layout(*tensors, causal, scale), dtype)
    planned = _plans.get(key)
    if planned is None:
        planned = _plans[key] = _plan((q, k, v), causal, scale, dtype)
    output = outputs.like(q.values, planned.dtype)
    by_s, s, one, *largest = planned.constants
    # Of V in units of its scale, O is so too.
    scales = q.scales, k.scales, one if planned.dtype == E4M3 else v.scales
    planned.plan(*_bytes([q.values, k.values, v.values, output]), *scales, by_s, s, one, *largest)
    return output


# Never emptied: captured graphs launch what a plan holds.
_plans: dict[Hashable, _Planned] = {}


def _bytes(tensors: list[Tensor]) -> list[Tensor]:
    """Tensors as they can be handed over: not every version of PyTorch's exchange format knows of e4m3."""
    return [tensor.view(torch.uint8) if tensor.dtype == E4M3 else tensor for tensor in tensors]


def _plan(given: tuple[Quantized, ...], causal: bool, scale: float | None, dtype: torch.dtype) -> _Planned:
    q, k, _ = (tensor.values for tensor in given)
    package = peer.installed(q.device)
    if dtype not in peer.DTYPES:
        raise Unsupported(f"peer.cudnn_fp8 gives float16 and bfloat16, not {str(dtype).removeprefix('torch.')}")
    if causal and q.shape[2] != k.shape[2]:
        raise Unsupported("peer.cudnn_fp8 takes as many queries as keys under the causal mask")
    if torch.cuda.is_current_stream_capturing():
        raise Unsupported("peer.cudnn_fp8 times its plans at the first call of a layout, which no graph can capture")
    with torch.cuda.device(q.device):
        numbers = (1 / PROBABILITY_SCALE, PROBABILITY_SCALE, 1.0, 0.0, 0.0)
        constants = tuple(torch.full((1,), number, device=q.device) for number in numbers)
        scalars = *(tensor.scales for tensor in given), *constants
        reasons = []
        for written in (dtype, E4M3):
            tensors = _bytes([*(tensor.values for tensor in given), torch.empty_like(q, dtype=written)])
            graphs = _Graphs(package, (*tensors, *scalars), causal, scale, written)
            try:
                return _Planned(graphs.fastest(), constants, written)
            except Unsupported as error:
                reasons.append(error)
    raise reasons[-1]


@dataclass(frozen=True, eq=False)
class _Graphs(peer.Attention):
    """Attention of e4m3 as cuDNN plans it, of a single implementation. Tensors of e4m3 are bytes.

    Attributes:
        written: the dtype of O.
    """

    implementations = ("",)
    written: torch.dtype

    def _graph(self, implementation: str) -> Any:
        package, (q, k, v, output, *_) = self.package, self.tensors
        e4m3, fp32 = package.data_type.FP8_E4M3, package.data_type.FLOAT
        graph = package.pygraph(
            io_data_type=e4m3,
            intermediate_data_type=fp32,
            compute_data_type=fp32,
            handle=peer.handle_of(q.get_device(), threading.get_ident()),
        )
        number = partial(graph.tensor, dim=[1] * 4, stride=[1] * 4, data_type=fp32)
        given = [
            graph.tensor(dim=list(tensor.shape), stride=list(tensor.stride()), data_type=e4m3, uid=uid)
            for uid, tensor in enumerate((q, k, v), 1)
        ]
        result, _, *largest = graph.sdpa_fp8(
            *given,
            **{name: number(uid=uid) for name, uid in zip(SCALARS, SCALAR_UIDS, strict=True)},
            generate_stats=False,
            attn_scale=q.shape[-1] ** -0.5 if self.scale is None else float(self.scale),
            use_causal_mask=self.causal,
        )
        types = {E4M3: "FP8_E4M3", **peer.DTYPES}
        result.set_output(True).set_uid(4).set_data_type(getattr(package.data_type, types[self.written]))
        result.set_dim(list(output.shape)).set_stride(list(output.stride()))
        for uid, one in zip(LARGEST_UIDS, largest, strict=True):
            one.set_output(True).set_uid(uid).set_dim([1] * 4).set_stride([1] * 4).set_data_type(fp32)
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([package.heur_mode.A, package.heur_mode.FALLBACK])
        return graph
