"""Graphs of cuDNN's own frontend, and their plans."""

import logging
import threading
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from attnlab.measuring.kernels import maps
from attnlab.measuring.peers import plans
from attnlab.measuring.subjects.implementation import Unsupported


def installed(device: torch.device) -> Any:
    """cuDNN's frontend; raises Unsupported if it is not installed, or uses another cuDNN than PyTorch."""
    package = plans.installed("cudnn", "nvidia-cudnn-frontend", device)
    used, recorded = package.backend_version(), torch.backends.cudnn.version()
    if used != recorded:
        raise Unsupported(f"nvidia-cudnn-frontend uses cuDNN {used}, and PyTorch {recorded}")
    logging.getLogger("cudnn.pygraph").setLevel(logging.ERROR)  # it warns of each way that refuses a graph
    return package


@cache
def handle_of(device: int, thread: int) -> Any:
    """The cuDNN handle of a thread on a device: threads must not share one."""
    with torch.cuda.device(device):
        return plans.imported("cudnn").create_handle()


def graph_of(
    package: Any, tensors: tuple[Tensor, ...], read: Any, written: Any, attention: Callable[..., Any], **options: Any
) -> Any:
    """A graph with the plans that cuDNN's heuristics propose for it; Q, K, V and O have the uids 1 to 4.

    `attention` takes the graph and its Q, K and V of cuDNN's type `read`, and returns its O, of type `written`.
    """
    (q, k, v, output), fp32 = tensors[:4], package.data_type.FLOAT
    options |= {"intermediate_data_type": fp32, "compute_data_type": fp32}
    graph = package.pygraph(io_data_type=read, handle=handle_of(q.get_device(), threading.get_ident()), **options)
    given = [
        graph.tensor(dim=list(tensor.shape), stride=list(tensor.stride()), data_type=read, uid=uid)
        for uid, tensor in enumerate((q, k, v), 1)
    ]
    result = attention(graph, *given)
    result.set_output(True).set_uid(4).set_data_type(written)
    result.set_dim(list(output.shape)).set_stride(list(output.stride()))
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([package.heur_mode.A, package.heur_mode.FALLBACK])
    return graph


def fastest(package: Any, graphs: Iterable[Callable[[], Any]], tensors: tuple[Tensor, ...]) -> plans.Plan:
    """The fastest plan of these graphs that works on these tensors; raises Unsupported if none does."""
    refusals = (package.cudnnGraphNotSupportedError, ImportError, ValueError, RuntimeError)
    reasons: list[str] = []
    made: list[plans.Plan] = []
    for make in graphs:
        with plans.refusing(refusals, reasons):
            graph = make()
            for index in range(graph.get_execution_plan_count()):
                with plans.refusing(refusals, reasons):
                    made.append(plans.tried(_plan(package, graph, index, tensors[0].device), tensors))
    return plans.fastest(made, tensors, next(iter(reasons), "cuDNN proposes no plan"))


def _plan(package: Any, graph: Any, index: int, device: torch.device) -> plans.Plan:
    """One of a graph's plans, which takes Q, K, V and O, and then the other tensors of the graph."""
    graph.build_plan_at_index(index)
    size = max(1, graph.get_workspace_size_plan_at_index(index))
    workspace = torch.empty(size, dtype=torch.uint8, device=device)

    def execute(*tensors: Tensor) -> None:
        q, k, v, *_ = tensors
        if (q.data_ptr() | k.data_ptr() | v.data_ptr()) % maps.ALIGNMENT:
            raise Unsupported(maps.MISALIGNED)
        if torch._C._cuda_getDevice() != device.index:
            with torch.cuda.device(device):
                return execute(*tensors)
        handle, uids = handle_of(device.index, threading.get_ident()), tuple(range(1, 1 + len(tensors)))
        package.set_stream(handle, torch._C._cuda_getCurrentRawStream(device.index))
        graph.execute_plan_at_index(tensors, workspace, index, handle=handle, tensor_uids=uids)

    return execute
