"""Attention that is trained, on Hopper: O with its log-sum-exps, and dQ, dK and dV, the same bits each time."""

import ctypes
import math
import operator
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from attnlab.base import paths
from attnlab.compile import nvrtc
from attnlab.measuring.kernels import launch, maps, rungs
from attnlab.measuring.kernels.launch import Launch, Maps, Parameters
from attnlab.measuring.kernels.problem import Strides
from attnlab.measuring.subjects import outputs
from attnlab.measuring.subjects.implementation import Broken, Unsupported
from attnlab.study import ladder

SOURCE, ARCHITECTURE, CAPABILITY = "16_backward.cu", "sm_90a", (9, 0)
KEYS, OTHER_THREADS, STORED_ROWS = 128, 256, 64
"""Keys of a block; threads of a CTA of `prepare` and `finish`; rows of a box of dK and dV."""
DTYPES = ("float16", "bfloat16")
ALIGNMENT = 256
"""Of each part of the workspace, in bytes."""
MOST_TILES = 2**16
"""Of a head: a step holds a tile's number in 16 bits."""
MOST_OF_HEAD = 512
"""Queries of the heads that share K and V, of which a CTA takes all tasks at head dimension 64. With 1,024 the backward
pass takes 1.1 to 1.3 times as long (NOTES.md)."""
MOST_PATTERNS = 256
"""Of heads whose steps are apart: multiprocessors of a device at most."""


@dataclass(frozen=True)
class Tiling:
    """How the kernels are compiled for a head dimension.

    Attributes:
        rows: queries of a tile.
        stages: tiles of Q and of dO held at once.
        finishes: whether dQ is rounded by the main kernel, too, and not by one after it.
    """

    head_dim: int
    rows: int
    stages: int
    finishes: bool = True

    @property
    def threads(self) -> int:
        """Of a CTA of `backward`: a warpgroup that loads, 2 that hold keys and, at head dimension 128, 1 for dQ."""
        return 512 if self.head_dim == 128 else 384

    @property
    def shared_bytes(self) -> int:
        """As `SharedStorage` in the source: K, V, rings of Q and dO, 2 of dS, dQ, and numbers of rows and steps."""
        tile, block, stages = 2 * self.rows * self.head_dim, 2 * KEYS * self.head_dim, self.stages
        blocks = 2 if self.head_dim == 64 else 1  # of keys, held at once
        of_rows = 2 * -(-4 * stages * self.rows // 128) * 128
        small = -(-4 * stages // 16) * 16 + 2 * 16 + 8 + 8 * (4 * stages + 4 * blocks + 10)
        whole = 2 * blocks * block + 2 * stages * tile + 4 * self.rows * KEYS + 2 * tile + of_rows + small
        return -(-whole // 128) * 128

    def expressions(self, dtype: str, causal: bool) -> tuple[str, str, str]:
        """The name expressions of `prepare`, `backward` and `finish`."""
        element, mask = ladder.ELEMENTS[dtype], str(causal).lower()
        return (
            f"prepare<{element}, {self.head_dim}, {mask}, {self.rows}>",
            f"backward<{element}, {self.head_dim}, {mask}, {self.rows}, {self.stages}, {str(self.finishes).lower()}>",
            f"finish<{element}, {self.head_dim}, {self.rows}>",
        )


INSTANCES = {instance.head_dim: instance for instance in (Tiling(64, 128, 2), Tiling(128, 64, 3))}


class Gradients(ctypes.Structure):
    """The problem as kernels/backward.cuh declares it. Its addresses are those of one call."""

    _WORKSPACE = ("negated", "delta", "sums", "turns", "parts", "order")
    _COUNTS = ("batch", "heads", "kv_heads", "group", "queries", "keys", "earlier", "tiles", "all_tiles", "blocks")
    _SCHEDULE = ("tasks", "all_tasks", "steps", "patterns", "paired", "in_a_row")
    ADDRESSES = ("out", "dout", "lse", "dq", *_WORKSPACE)
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ADDRESSES),
        *((name, Strides) for name in ("out_at", "dout_at", "dq_at")),
        *((name, ctypes.c_int) for name in (*_COUNTS, *_SCHEDULE)),
        ("scale", ctypes.c_float),
    )

    @classmethod
    def of(cls, q: Tensor, k: Tensor, causal: bool, scale: float, rows: int, ctas: int) -> "Gradients":
        """The problem of such tensors, without addresses and strides, on a device that holds `ctas` CTAs at once."""
        (batch, heads, queries, _), (_, kv_heads, keys, _) = q.shape, k.shape
        group, tiles, blocks = heads // kv_heads, -(-queries // rows), -(-keys // KEYS)
        # With fewer blocks than CTAs each is a task. Else two are one task, so that all take equally long.
        paired = causal and batch * kv_heads * blocks > ctas
        tasks = -(-blocks // 2) if paired else blocks
        counts = (batch, heads, kv_heads, group, queries, keys, keys - queries, tiles, batch * heads * tiles, blocks)
        found = cls(**dict(zip(cls._COUNTS, counts, strict=True)), tasks=tasks, paired=paired, scale=scale)
        found.all_tasks = batch * kv_heads * tasks
        steps = [found.task_steps(member, causal, rows) for member in range(tasks)]
        found.steps = max(steps)
        # With all tasks of a head a CTA waits for no other one.
        in_turn = -(-found.all_tasks // ctas) * found.steps
        whole = (
            -(-batch * kv_heads // ctas) * sum(steps) <= in_turn
            and q.shape[3] == 64
            and group * queries <= MOST_OF_HEAD
        )
        found.in_a_row = tasks if whole else 1
        grid = found.grid(ctas)
        found.patterns = 1 if whole else min(batch * kv_heads, grid // math.gcd(grid, tasks))
        return found

    def task_steps(self, member: int, causal: bool, rows: int) -> int:
        """The steps of a head's task: its tiles of queries, for each block of keys and query head."""
        blocks = {member, self.blocks - 1 - member} if self.paired else {member}
        first = [max(0, KEYS * block - self.earlier) // rows if causal else 0 for block in blocks]
        return self.group * sum(self.tiles - tile for tile in first)

    def grid(self, ctas: int) -> int:
        """The fewest CTAs that need no more rounds than `ctas` do: idle multiprocessors take no power."""
        units = self.all_tasks // self.in_a_row
        return -(-units // -(-units // ctas))

    @property
    def all_steps(self) -> int:
        """The steps of the schedule: heads whose tasks are at the same CTAs share theirs."""
        return int(self.patterns * self.tasks * self.steps)

    def workspace(self, head_dim: int, rows: int) -> dict[str, int]:
        """The bytes of each part of the workspace."""
        tiles = self.batch * self.heads * self.tiles
        sizes = (4 * tiles * rows, 4 * tiles * rows, 4 * tiles * rows * head_dim, 4 * tiles)
        return dict(zip(self._WORKSPACE, (*sizes, 32 * self.all_tasks, 8 * self.all_steps), strict=True))


class _Own(Parameters):
    """The problem, and a number, as the parameters of a kernel without tensor maps."""

    def __init__(self, problem: Gradients, *numbers: ctypes.c_int) -> None:
        self._scalars = (problem, *numbers)
        self._pointers = (ctypes.c_void_p * len(self._scalars))(*map(ctypes.addressof, self._scalars))
        self.address = ctypes.addressof(self._pointers)


class _Launches:
    """The 3 launches for tensors of one layout, on the current device.

    The problem's strides and the places in its workspace are those of the layout. Its addresses are those of one call.
    """

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, dout: Tensor, causal: bool, scale: float) -> None:
        device, instance = torch.cuda.get_device_properties(q.device), INSTANCES[q.shape[3]]
        ctas, rows = device.multi_processor_count, instance.rows
        self.problem = problem = Gradients.of(q, k, causal, scale, rows, ctas)
        grid = problem.grid(ctas)
        functions = _compiled(str(q.dtype).removeprefix("torch."), instance, causal, q.get_device())
        problem.out_at, problem.dout_at, problem.dq_at = (
            Strides(*tensor.stride()[:3]) for tensor in (out, dout, torch.empty_like(q, device="meta"))
        )
        self.places, self.bytes = list[int](), 0
        for size in problem.workspace(instance.head_dim, rows).values():
            self.places.append(self.bytes)
            self.bytes += -(-size // ALIGNMENT) * ALIGNMENT
        self.addresses = (ctypes.c_uint64 * len(Gradients.ADDRESSES)).from_buffer(problem)
        heads, of_head = problem.batch * problem.heads, problem.tiles * rows
        row_ctas = heads * of_head // (OTHER_THREADS // (instance.head_dim // 8))
        before = row_ctas + -(-max(problem.all_tasks, problem.all_steps) // OTHER_THREADS)
        address = q.data_ptr() // maps.ALIGNMENT * maps.ALIGNMENT
        dk, dv = (torch.empty_like(tensor, device="meta") for tensor in (k, v))
        boxes = ((q, rows), (k, KEYS), (v, KEYS), (dout, rows), (dk, STORED_ROWS), (dv, STORED_ROWS))
        encoded = [maps.strided(tensor, address, box) for tensor, box in boxes]
        self.maps = Maps(encoded, [problem])
        stated: list[tuple[Any, Parameters]] = [
            (launch.config(before, OTHER_THREADS), _Own(problem, ctypes.c_int(grid))),
            (launch.config(grid, instance.threads, instance.shared_bytes, launch.together()), self.maps),
        ]
        if not instance.finishes:
            stated.append((launch.config(heads * problem.tiles, OTHER_THREADS), _Own(problem)))
        self.kernels = [(function, *its) for function, its in zip(functions, stated, strict=False)]
        self.lock = threading.Lock()

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dout: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Launch them on torch's current stream."""
        dq, dk, dv = outputs.like(q), outputs.like(k), outputs.like(v)
        # Held until all are launched: nobody else on this stream gets its memory before.
        workspace = torch.empty(self.bytes, dtype=torch.uint8, device=q.device)
        begin = workspace.data_ptr()
        given = [tensor.data_ptr() for tensor in (out, dout, lse, dq)]
        with self.lock:  # the parameters are one call's until its last launch
            self.addresses[:] = [*given, *(begin + place for place in self.places)]
            self.maps.point(tuple(tensor.data_ptr() for tensor in (q, k, v, dout, dk, dv)))
            stream = torch._C._cuda_getCurrentRawStream(q.get_device())
            for function, config, parameters in self.kernels:
                config.hStream = stream
                _launch(config, function, parameters.address)
        return dq, dk, dv


def backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    dout: Tensor,
    causal: bool,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """dQ, dK and dV of attention on torch's current stream, the same bits in each call on a device of the same size.

    Args:
        q, out, dout: ``(batch, heads, queries, head_dim)`` in float16 or bfloat16, head_dim 64 or 128.
        k, v: ``(batch, kv_heads, keys, head_dim)``; query heads in groups share one of them.
        lse: the natural logarithm of each row's sum of exponentials of scaled scores, float32
            ``(batch, heads, queries)``.
        causal: the last query sees all keys, and each one before it one key less.
        scale: of scores; None is 1/√head_dim.

    Raises:
        Unsupported: other tensors, another device than a Hopper GPU, or CuPy is missing.
        Broken: the kernels don't compile, or the driver refuses to launch them.
    """
    return _of_layout((q, k, v, out, dout, lse), causal, scale)


def _of_layout(given: Sequence[Tensor], causal: bool, scale: float | None) -> tuple[Tensor, Tensor, Tensor]:
    """`backward`, by launches that are made once for a layout of its tensors, or for that of copies of them."""
    q, k, v, out, dout, lse = given
    key = launch.layout(q, k, v, causal, scale), launch.layout(out, dout, lse, causal, scale)
    launches = _PREPARED.get(key)
    if launches is None:
        if refused := unserved(q, k, v, causal, scale) or _refused(q, out, lse, dout):
            raise Unsupported(f"the backward kernel {refused}")
        if not any(map(maps.refusal, given[:5])) and lse.is_contiguous():
            factor = 1 / math.sqrt(q.shape[3]) if scale is None else scale
            with torch.cuda.device(q.device):
                launches = rungs.keep(_PREPARED, key, _Launches(q, k, v, out, dout, causal, factor))
    if launches is None or any(x.data_ptr() % maps.ALIGNMENT for x in given[:5]):  # a sum's gradient has strides of 0
        return _of_layout((*map(_mappable, given[:5]), lse.contiguous()), causal, scale)
    if torch._C._cuda_getDevice() == q.get_device():
        return launches(q, k, v, out, lse, dout)
    with torch.cuda.device(q.device):
        return launches(q, k, v, out, lse, dout)


class LogSums(ctypes.Structure):
    """Where the log-sum-exp of each row goes, as kernels/jobs.cuh declares it."""

    _fields_ = (("at", ctypes.c_void_p), ("heads", ctypes.c_int), ("rows", ctypes.c_int))


class SumsMaps(Maps):
    """Tensor maps, scalars, and where the log-sum-exp of each row goes."""

    def __init__(self, encoded: Sequence[bytes], scalars: Sequence[Any]) -> None:
        self.sums = LogSums()
        super().__init__(encoded, [*scalars, self.sums])


class SumsLaunch(Launch):
    """`kernel.lazy` with the log-sum-exp of each row; its `parameters` are `SumsMaps`."""

    def with_sums(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Launch it as `Launch` does; O, and the log-sum-exp ``(batch, heads, queries)`` in float32."""
        addresses = [tensor.data_ptr() for tensor in (q, k, v)]
        if any(address % maps.ALIGNMENT for address in addresses):
            raise Unsupported(maps.MISALIGNED)
        if torch._C._cuda_getDevice() != self.device:
            with torch.cuda.device(self.device):
                return self.with_sums(q, k, v)
        output, sums = outputs.like(q), torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
        parameters = getattr(self._own, "parameters", None) or self._of_this_thread()
        parameters.point((*addresses, output.data_ptr()))
        parameters.sums.at, parameters.sums.heads, parameters.sums.rows = sums.data_ptr(), *q.shape[1:3]
        stream = torch._C._cuda_getCurrentRawStream(self.device)
        (error,) = self._launch(*self._fixed, stream, parameters.address, 0)
        if error != self._success:
            raise self.failed(error.name)
        return output, sums


class SumsKernel(rungs.Kernel):
    """`kernel.lazy`, compiled so that it takes one of `LogSums`."""

    launch_type, maps_type = SumsLaunch, SumsMaps


def forward(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None = None) -> tuple[Tensor, Tensor]:
    """O by `kernel.lazy`, and of each row the log-sum-exp of its scaled scores, as `backward` takes them.

    Raises:
        Unsupported: `kernel.lazy` doesn't serve such tensors.
    """
    try:
        prepared: Any = _forward_kernel().prepared(q, k, v, causal, scale).launch
        found: tuple[Tensor, Tensor] = prepared.with_sums(q, k, v)
    except Unsupported:
        given = (q, k, v)
        q, k, v = map(_mappable, given)
        if all(map(operator.is_, (q, k, v), given)):
            raise
        return forward(q, k, v, causal, scale)
    return found


@cache
def _forward_kernel() -> SumsKernel:
    rung = ladder.rung(f"{ladder.PREFIX}lazy")
    tiles = [tile.model_copy(update={"template": {**tile.template, "sums": "LogSums"}}) for tile in rung.tiles]
    return SumsKernel(rung.model_copy(update={"tiles": tiles}))


_PREPARED: dict[Hashable, _Launches] = {}
_COMPILED: dict[Hashable, list[tuple[Any, Any]]] = {}


def unserved(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> str:
    """Why `forward` and `backward` don't take such tensors, after a name; empty if they do. Any strides will do."""
    if refused := rungs.unlike_grouped(q, k, v, causal, scale):
        return refused
    if q.device.type != "cuda" or not q.device == k.device == v.device:
        return "takes tensors on one NVIDIA GPU"
    dtype = str(q.dtype).removeprefix("torch.")
    if dtype not in DTYPES or not q.dtype == k.dtype == v.dtype:
        return f"serves {' and '.join(DTYPES)}, not {dtype}"
    if q.shape[3] not in tuple(INSTANCES) or not q.numel():  # a size that torch.compile traces has no hash
        return f"serves head dimensions {' and '.join(map(str, INSTANCES))}, not {tuple(q.shape)}"
    if not rungs.serves_scale(scale):
        return f"takes a scale from {rungs.SMALLEST_SCALE:g} to {rungs.LARGEST_SCALE:g}"
    (batch, heads, queries, _), tiles = q.shape, -(-q.shape[2] // min(x.rows for x in INSTANCES.values()))
    if batch > maps.MOST_BATCHES or heads > maps.MOST_HEADS or tiles > MOST_TILES:
        return f"serves at most {maps.MOST_BATCHES} sequences, {maps.MOST_HEADS} heads and {MOST_TILES} tiles of a head"
    # Heads whose tasks are at the same CTAs share their steps: see `Gradients.of`.
    steps = heads // k.shape[1] * min(batch * k.shape[1], MOST_PATTERNS) * tiles * (-(-k.shape[2] // KEYS) + 1)
    if max(steps, batch * heads * (queries + KEYS)) > maps.MOST_ITEMS:
        return f"numbers steps and rows up to {maps.MOST_ITEMS:,}"
    return ""


def _refused(q: Tensor, out: Tensor, lse: Tensor, dout: Tensor) -> str:
    """Why the kernel doesn't take these with queries that it serves, after its name; empty if it does."""
    if torch.cuda.get_device_capability(q.device) != CAPABILITY:
        return "is written for compute capability 9.0"
    if len({(x.device, x.shape) for x in (q, out, dout)}) > 1 or (lse.device, lse.shape) != (q.device, q.shape[:3]):
        return "takes outputs and their gradients of the shape of Q, and a log-sum-exp for each of its rows"
    if not q.dtype == out.dtype == dout.dtype or lse.dtype != torch.float32:
        return "takes outputs and their gradients in the dtype of Q, and log-sum-exps in float32"
    return ""


def _mappable(tensor: Tensor) -> Tensor:
    """A tensor, or its copy where no tensor map describes it."""
    if maps.refusal(tensor) or tensor.data_ptr() % maps.ALIGNMENT:
        return tensor.clone(memory_format=torch.contiguous_format)
    return tensor


def _compiled(dtype: str, instance: Tiling, causal: bool, device: int) -> list[Any]:
    """The driver's handles of the 3 kernels on the current device."""
    key = (dtype, instance, causal, device)
    if key not in _COMPILED:
        names, driver = instance.expressions(dtype, causal), maps.driver()
        explain: Callable[[str], str] = partial(_explained, names)
        found = rungs.functions(nvrtc.of_files(ladder.files(SOURCE)), names, ARCHITECTURE, explain)
        found[1].max_dynamic_shared_size_bytes = instance.shared_bytes
        _COMPILED[key] = [(driver.CUfunction(function.kernel.ptr), function) for function in found]
    return [handle for handle, _ in _COMPILED[key]]  # CuPy unloads a module of which no function is held


def _explained(names: Sequence[str], log: str) -> str:
    said = "; ".join(nvrtc.errors(log)[: nvrtc.SHOWN]) or " ".join(log.split())[:500]
    return f"{paths.shown(paths.kernels() / SOURCE)} does not compile as {', '.join(names)}: {said}"


def _launch(config: Any, function: Any, parameters: int) -> None:
    driver = maps.driver()
    (error,) = driver.cuLaunchKernelEx(config, function, parameters, 0)
    if error != driver.CUresult.CUDA_SUCCESS:
        raise Broken(f"the driver refuses to launch {SOURCE}: {error.name}")
