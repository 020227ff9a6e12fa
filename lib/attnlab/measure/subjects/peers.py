"""Attention from elsewhere, callable if it is installed.

These are PyTorch's FlexAttention, flash-attn-4, cuDNN through its own frontend, FlashInfer and xFormers.
"""

import logging
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from attnlab.measure.subjects import flashinfer, launch, maps, outputs, packages, plans
from attnlab.measure.subjects.implementation import Implementation, Unsupported
from attnlab.measure.subjects.sdpa import offsets

T = TypeVar("T")

# Shapes that one process may compile FlexAttention for, each separately; beyond that, torch silently falls back.
FLEX_SHAPES = 1024
# cuDNN's two ways to carry out a graph of attention; each proposes plans of its own, or refuses.
CUDNN_IMPLEMENTATIONS = ("COMPOSITE", "UNIFIED")
CUDNN_DTYPES = {torch.float16: "HALF", torch.bfloat16: "BFLOAT16"}
# By what Q, K, V and O are called in a graph.
CUDNN_TENSORS = (1, 2, 3, 4)


def flex(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None = None) -> Tensor:
    """PyTorch's FlexAttention, compiled for each shape; a causal mask is a block mask, aligned to the end.

    Raises:
        Unsupported: the device is no NVIDIA GPU; on a CPU it has no backward pass and can't be captured in a graph.
    """
    if q.device.type != "cuda":
        raise Unsupported("peer.flex is measured only on an NVIDIA GPU")
    mask = _causal_blocks(q.shape[2], k.shape[2], q.device) if causal else None
    output: Tensor = _compiled_flex()(q, k, v, block_mask=mask, scale=scale, enable_gqa=k.shape[1] != q.shape[1])
    return output


def flash4(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None = None) -> Tensor:
    """flash-attn-4's `flash_attn_func`, whose causal mask is aligned to the end. On Hopper it can't split keys.

    Its tensors are ``(batch, seq_len, heads, head_dim)``: views, without a copy.

    Raises:
        Unsupported: the package is not installed, or the device is no NVIDIA GPU.
    """
    queries, keys, values = (tensor.transpose(1, 2) for tensor in (q, k, v))
    output = _flash4(q).flash_attn_func(queries, keys, values, softmax_scale=scale, causal=causal)
    return _first(output).transpose(1, 2)


def flash4_ragged(q: Tensor, k: Tensor, v: Tensor, causal: bool, sequences: tuple[int, ...]) -> Tensor:
    """flash-attn-4's `flash_attn_varlen_func`; raises as `flash4` does."""
    package = _flash4(q)
    begins = offsets(sequences, q.device, torch.int32)
    queries, keys, values = (tensor[0].transpose(0, 1) for tensor in (q, k, v))
    output = package.flash_attn_varlen_func(
        queries,
        keys,
        values,
        cu_seqlens_q=begins,
        cu_seqlens_k=begins,
        max_seqlen_q=max(sequences),
        max_seqlen_k=max(sequences),
        causal=causal,
    )
    return _first(output).transpose(0, 1).unsqueeze(0)


def _first(output: Any) -> Tensor:
    # Some versions return the log-sum-exp beside the output.
    return output[0] if isinstance(output, tuple) else output


def _flash4(q: Tensor) -> Any:
    if q.device.type != "cuda":
        raise Unsupported("flash-attn-4 needs an NVIDIA GPU")
    return packages.installed("flash_attn.cute", "flash-attn-4")


@cache
def _compiled_flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    torch._dynamo.config.recompile_limit = FLEX_SHAPES
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


@cache
def _causal_blocks(seq_len: int, kv_len: int, device: torch.device) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    earlier = kv_len - seq_len

    def seen(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return query + earlier >= key

    return create_block_mask(seen, None, None, seq_len, kv_len, device=str(device))


def xformers(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None = None) -> Tensor:
    """xFormers' `memory_efficient_attention`, which chooses among its own kernels.

    Its tensors are ``(batch, length, heads, head_dim)``, with grouped heads ``(batch, length, kv_heads, heads of each,
    head_dim)``: views, without a copy. The causal mask is the one that is aligned to the end.

    Raises:
        Unsupported: the package is not installed, holds no kernels for this PyTorch, or the device is no NVIDIA GPU.
    """
    if q.device.type != "cuda":
        raise Unsupported("xFormers is measured only on an NVIDIA GPU")
    fmha, shared = _memory_efficient(), q.shape[1] // k.shape[1]
    queries, keys, values = (tensor.transpose(1, 2) for tensor in (q, k, v))
    if shared > 1:
        queries = queries.unflatten(2, (k.shape[1], shared))
        keys, values = (tensor.unsqueeze(3).expand(-1, -1, -1, shared, -1) for tensor in (keys, values))
    mask = fmha.attn_bias.LowerTriangularFromBottomRightMask() if causal else None
    output: Tensor = fmha.memory_efficient_attention(queries, keys, values, attn_bias=mask, scale=scale)
    return output.reshape(q.transpose(1, 2).shape).transpose(1, 2)


@cache
def _memory_efficient() -> Any:
    logging.getLogger("xformers").setLevel(logging.ERROR)  # it warns in many lines of what is one reason here
    if not packages.installed("xformers", "xFormers")._has_cpp_library:
        raise Unsupported(f"the kernels of xFormers were compiled for another PyTorch than {torch.__version__}")
    return packages.installed("xformers.ops.fmha", "xFormers")


def cudnn(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None = None) -> Tensor:
    """cuDNN's attention through its own frontend, by the fastest of the plans that it proposes for a layout.

    SDPA takes the first plan. Here all are built and timed when tensors of a layout come for the first time.

    Raises:
        Unsupported: the package is not installed or uses another cuDNN than PyTorch, the device is no NVIDIA GPU, no
            plan serves such tensors, or tensors of this layout come for the first time while a graph is captured.
    """
    key = launch.layout(q, k, v, causal, scale)
    plan = _cudnn_plans.get(key)
    if plan is None:
        plan = _cudnn_plans[key] = _cudnn_plan(q, k, v, causal, scale)
    output = outputs.like(q)
    plan(q, k, v, output)
    return output


def _cudnn_plan(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> "CudnnPlan":
    package = cudnn_package(q.device)
    if q.dtype not in CUDNN_DTYPES:
        raise Unsupported(f"peer.cudnn takes float16 and bfloat16, not {str(q.dtype).removeprefix('torch.')}")
    if torch.cuda.is_current_stream_capturing():
        raise Unsupported("peer.cudnn times its plans at the first call of a layout, which no graph can capture")
    with torch.cuda.device(q.device):
        return CudnnAttention(package, (q, k, v, torch.empty_like(q)), causal, scale).fastest()


def cudnn_package(device: torch.device) -> Any:
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
        handle = cudnn_handle(self.device, threading.get_ident())
        self.package.set_stream(handle, torch._C._cuda_getCurrentRawStream(self.device))
        self.graph.execute_plan_at_index(
            tensors, self.workspace, self.index, handle=handle, tensor_uids=tuple(range(1, 1 + len(tensors)))
        )


# Never emptied: captured graphs launch what a plan holds.
_cudnn_plans: dict[Hashable, CudnnPlan] = {}


@cache
def cudnn_handle(device: int, thread: int) -> Any:
    """A handle of cuDNN on a device for a thread: threads must not share one."""
    with torch.cuda.device(device):
        return packages.imported("cudnn").create_handle()


@dataclass(frozen=True, eq=False)
class CudnnAttention:
    """Attention on tensors of one layout as cuDNN plans it. The tensors are what its plans are tried on."""

    implementations: ClassVar[Sequence[str]] = CUDNN_IMPLEMENTATIONS
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
        dtype, fp32 = getattr(package.data_type, CUDNN_DTYPES[q.dtype]), package.data_type.FLOAT
        graph = package.pygraph(
            io_data_type=dtype,
            intermediate_data_type=fp32,
            compute_data_type=fp32,
            handle=cudnn_handle(q.get_device(), threading.get_ident()),
            cuda_graph_retention=package.cuda_graph_retention.NONE,
        )
        given = [
            graph.tensor(dim=list(tensor.shape), stride=list(tensor.stride()), data_type=dtype, uid=uid)
            for tensor, uid in zip((q, k, v), CUDNN_TENSORS, strict=False)
        ]
        result, _ = graph.sdpa(
            *given,
            generate_stats=False,
            attn_scale=q.shape[-1] ** -0.5 if self.scale is None else float(self.scale),
            # From a single query nothing is hidden, and without a mask cuDNN proposes more.
            use_causal_mask_bottom_right=self.causal and q.shape[2] > 1,
            implementation=getattr(package.attention_implementation, implementation),
        )
        result.set_output(True).set_uid(CUDNN_TENSORS[-1]).set_data_type(dtype)
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


PEERS = (
    Implementation("peer.flex", flex),
    Implementation("peer.flash4", flash4, ragged=flash4_ragged),
    Implementation("peer.cudnn", cudnn, differentiable=False),
    Implementation("peer.flashinfer", flashinfer.flashinfer, ragged=flashinfer.flashinfer_ragged, differentiable=False),
    Implementation("peer.xformers", xformers),
)
