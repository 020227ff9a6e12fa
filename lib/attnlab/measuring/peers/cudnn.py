"""cuDNN's attention through its own frontend, by the fastest of the plans that it proposes."""

import logging
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from attnlab.measuring.kernels import launch, maps
from attnlab.measuring.peers import packages, plans
from attnlab.measuring.subjects import outputs
from attnlab.measuring.subjects.implementation import Unsupported

T = TypeVar("T")

# cuDNN's two ways to carry out a graph of attention; each proposes plans of its own, or refuses.
IMPLEMENTATIONS = ("COMPOSITE", "UNIFIED")
DTYPES = {torch.float16: "HALF", torch.bfloat16: "BFLOAT16"}
# By what Q, K, V and O are called in a graph.
TENSORS = (1, 2, 3, 4)


def cudnn(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None = None) -> Tensor:
    """cuDNN's attention through its own frontend, by the fastest of the plans that it proposes for a layout.

    SDPA takes the first plan. Here all are built and timed when tensors of a layout come for the first time.

    Raises:
        Unsupported: the package is not installed or uses another cuDNN than PyTorch, the device is no NVIDIA GPU, no
            plan serves such tensors, or tensors of this layout come for the first time while a graph is captured.
    """
    key = launch.layout(q, k, v, causal, scale)
    plan = _plans.get(key)
    if plan is None:
        plan = _plans[key] = _plan(q, k, v, causal, scale)
    output = outputs.like(q)
    plan(q, k, v, output)
    return output


def _plan(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> "CudnnPlan":
    package = installed(q.device)
    if q.dtype not in DTYPES:
        raise Unsupported(f"peer.cudnn takes float16 and bfloat16, not {str(q.dtype).removeprefix('torch.')}")
    if torch.cuda.is_current_stream_capturing():
        raise Unsupported("peer.cudnn times its plans at the first call of a layout, which no graph can capture")
    with torch.cuda.device(q.device):
        return Attention(package, (q, k, v, torch.empty_like(q)), causal, scale).fastest()


def installed(device: torch.device) -> Any:
    """cuDNN's frontend; raises Unsupported where it is not installed, or is of another cuDNN than PyTorch's."""
    if device.type != "cuda":
        raise Unsupported("cuDNN needs an NVIDIA GPU")
    package = packages.installed("cudnn", "nvidia-cudnn-frontend")
    used, recorded = package.backend_version(), torch.backends.cudnn.version()
    if used != recorded:
        raise Unsupported(f"nvidia-cudnn-frontend uses cuDNN {used}, and PyTorch {recorded}")
    logging.getLogger("cudnn.pygraph").setLevel(logging.ERROR)  # it warns of each implementation that refuses a graph
    return package


@dataclass(frozen=True, eq=False)
class CudnnPlan:
    """One of the plans of a cuDNN graph, built, with its workspace: calls run one after the other on one stream."""

    package: Any
    graph: Any
    index: int
    workspace: Tensor
    device: int

    def __call__(self, *tensors: Tensor) -> None:
        """Launch it on torch's current stream of the tensors' device: Q, K, V and O, and what else the graph takes."""
        q, k, v, *_ = tensors
        if (q.data_ptr() | k.data_ptr() | v.data_ptr()) % maps.ALIGNMENT:
            raise Unsupported(maps.MISALIGNED)
        if torch._C._cuda_getDevice() != self.device:
            with torch.cuda.device(self.device):
                return self(*tensors)
        handle = handle_of(self.device, threading.get_ident())
        self.package.set_stream(handle, torch._C._cuda_getCurrentRawStream(self.device))
        self.graph.execute_plan_at_index(
            tensors, self.workspace, self.index, handle=handle, tensor_uids=tuple(range(1, 1 + len(tensors)))
        )


# Never emptied: captured graphs launch what a plan holds.
_plans: dict[Hashable, CudnnPlan] = {}


@cache
def handle_of(device: int, thread: int) -> Any:
    """A handle of cuDNN on a device for a thread: threads must not share one."""
    with torch.cuda.device(device):
        return packages.imported("cudnn").create_handle()


@dataclass(frozen=True, eq=False)
class Attention:
    """Attention on tensors of one layout as cuDNN plans it. The tensors are what its plans are tried on."""

    implementations: ClassVar[Sequence[str]] = IMPLEMENTATIONS
    package: Any
    tensors: tuple[Tensor, ...]
    causal: bool
    scale: float | None

    def fastest(self) -> CudnnPlan:
        """The fastest of all plans that work; raises Unsupported if none does."""
        reasons: list[str] = []
        built: list[CudnnPlan] = []
        for implementation in self.implementations:
            graph = self._unless_refused(partial(self._graph, implementation), reasons)
            for index in range(graph.get_execution_plan_count() if graph else 0):
                plan = self._unless_refused(partial(self._plan, graph, index), reasons)
                built += [plan] if plan else []
        if not built:
            raise Unsupported(next(iter(reasons), "cuDNN proposes no plan"))
        return built[plans.fastest([partial(plan, *self.tensors) for plan in built])]

    def _unless_refused(self, work: Callable[[], T], reasons: list[str]) -> T | None:
        refusals = (self.package.cudnnGraphNotSupportedError, ImportError, ValueError, RuntimeError)
        return plans.unless_refused(work, refusals, reasons)

    def _graph(self, implementation: str) -> Any:
        """A graph of attention, with the plans that cuDNN's heuristics propose for it."""
        package, (q, k, v, output) = self.package, self.tensors
        dtype, fp32 = getattr(package.data_type, DTYPES[q.dtype]), package.data_type.FLOAT
        graph = package.pygraph(
            io_data_type=dtype,
            intermediate_data_type=fp32,
            compute_data_type=fp32,
            handle=handle_of(q.get_device(), threading.get_ident()),
            cuda_graph_retention=package.cuda_graph_retention.NONE,
        )
        given = [
            graph.tensor(dim=list(tensor.shape), stride=list(tensor.stride()), data_type=dtype, uid=uid)
            for tensor, uid in zip((q, k, v), TENSORS, strict=False)
        ]
        result, _ = graph.sdpa(
            *given,
            generate_stats=False,
            attn_scale=q.shape[-1] ** -0.5 if self.scale is None else float(self.scale),
            # From a single query nothing is hidden, and without a mask cuDNN proposes more.
            use_causal_mask_bottom_right=self.causal and q.shape[2] > 1,
            implementation=getattr(package.attention_implementation, implementation),
        )
        result.set_output(True).set_uid(TENSORS[-1]).set_data_type(dtype)
        result.set_dim(list(output.shape)).set_stride(list(output.stride()))
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([package.heur_mode.A, package.heur_mode.FALLBACK])
        return graph

    def _plan(self, graph: Any, index: int) -> CudnnPlan:
        """One of a graph's plans, built and called once."""
        graph.build_plan_at_index(index)
        device, size = self.tensors[0].device, graph.get_workspace_size_plan_at_index(index)
        workspace = torch.empty(max(1, size), dtype=torch.uint8, device=device)
        plan = CudnnPlan(self.package, graph, index, workspace, device.index)
        plan(*self.tensors)
        torch.cuda.synchronize(device)
        return plan
