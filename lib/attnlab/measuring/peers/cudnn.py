"""cuDNN's attention through cuDNN's frontend, by the fastest of the plans that it proposes for a layout.

SDPA takes the first plan. Here the first call with a layout builds and times all plans.
"""

from collections.abc import Hashable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnlab.measuring.kernels.launch import layout
from attnlab.measuring.peers import frontend, plans
from attnlab.measuring.subjects import outputs
from attnlab.measuring.subjects.implementation import Implementation

WAYS = ("COMPOSITE", "UNIFIED")
"""cuDNN's 2 ways to carry out a graph of attention; each proposes its own plans, or refuses."""
_plans: dict[Hashable, plans.Plan] = {}  # never emptied: captured graphs launch the kernels of a plan


def cudnn(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None = None) -> Tensor:
    """cuDNN's attention.

    Raises:
        Unsupported: the package is not installed or uses another cuDNN than PyTorch, the device is no NVIDIA GPU, or
            no plan serves such tensors. Also if the first call with this layout is made in a graph capture.
    """
    key = layout(q, k, v, causal, scale)
    plan = _plans.get(key)
    if plan is None:
        package = frontend.installed(q.device)
        plans.require_plannable("peer.cudnn", q.dtype)
        with torch.cuda.device(q.device):
            tensors = (q, k, v, torch.empty_like(q))
            graphs = [partial(_graph, package, way, tensors, causal, scale) for way in WAYS]
            plan = _plans[key] = frontend.fastest(package, graphs, tensors)
    output = outputs.like(q)
    plan(q, k, v, output)
    return output


def _graph(package: Any, way: str, tensors: tuple[Tensor, ...], causal: bool, scale: float | None) -> Any:
    q = tensors[0]

    def attention(graph: Any, *given: Any) -> Any:
        return graph.sdpa(
            *given,
            generate_stats=False,
            attn_scale=q.shape[-1] ** -0.5 if scale is None else float(scale),
            # A single query sees all keys, and without a mask cuDNN proposes more plans.
            use_causal_mask_bottom_right=causal and q.shape[2] > 1,
            implementation=getattr(package.attention_implementation, way),
        )[0]

    dtype, none = getattr(package.data_type, plans.DTYPES[q.dtype]), package.cuda_graph_retention.NONE
    return frontend.graph_of(package, tensors, dtype, dtype, attention, cuda_graph_retention=none)


IMPLEMENTATION = Implementation("peer.cudnn", cudnn, differentiable=False)
