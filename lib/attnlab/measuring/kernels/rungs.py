"""The kernels of the ladder as functions: compiled with CuPy, and prepared once for each layout of their inputs."""

import ctypes
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from attnlab.base import paths
from attnlab.compile import nvrtc
from attnlab.measuring.kernels import maps
from attnlab.measuring.kernels.launch import (
    MERGE_COLUMNS,
    MERGE_WARPS,
    Launch,
    MappedPointers,
    Maps,
    Pointers,
    SplitLaunch,
    early,
    layout,
)
from attnlab.measuring.kernels.problem import CLUSTERS, Caches, Divisor, Held, Packing, Problem, scheduled, shares
from attnlab.measuring.kernels.ragged import Dealing, PagedProblem, RaggedLaunch, RaggedProblem, dealing_of
from attnlab.measuring.subjects.implementation import Broken, Implementation, Unsupported
from attnlab.measuring.subjects.sdpa import offsets
from attnlab.study import ladder
from attnlab.study.ladder import Rung, Tile

T = TypeVar("T")
RAGGED, CACHES, FEW = (f"{ladder.PREFIX}{name}" for name in ("ragged", "caches", "few"))
"""The kernels of sequences of unequal lengths: of prompts, of few queries over caches, and these with any strides."""
PAGE = 16
"""The number of keys of a page is a multiple of this."""
# Layouts for which a launch is kept: a cache that grows by a key for each token has a new one at each step.
KEPT = 4096
# Floats of a partial result besides its columns: its logarithm, and padding that keeps rows at multiples of 16 bytes.
PARTIAL_EXTRA = 4
# Scores are scaled in single precision. A smaller factor would be 0, and minus infinity times 0 is NaN. With a larger
# factor, the rounding error of a row's largest score may exceed the range of exp.
SMALLEST_SCALE, LARGEST_SCALE = 1e-30, 1e3
# Tiles with so many rows are multiplied by warpgroups. K and V of caches come to these by TMA.
WARPGROUP_ROWS = 64
# The cluster size of CTAs that load K and V for each other.
PAIR = 2
# The driver's errors for a launch that it refuses; any other error means that the device itself failed.
REFUSED = (
    "CUDA_ERROR_INVALID_VALUE",
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
    "CUDA_ERROR_INVALID_CLUSTER_SIZE",
)


@dataclass(frozen=True)
class _Compiled:
    """One instance of a kernel on a device, for a tile and a dtype of O.

    `other` is a second kernel, which merges partial results or lists work. With split keys, `held` is the number of
    resident CTAs for each cluster size.
    """

    tile: Tile
    dtype: str
    function: Any
    expression: str
    architecture: str
    ctas_per_sm: int
    other: Any = None
    held: Held = ()


@dataclass(frozen=True)
class Prepared:
    """A launch and its instance of a kernel."""

    launch: Launch
    compiled: _Compiled


def keep(prepared: dict[Hashable, T], key: Hashable, made: T) -> T:
    """Keep a prepared call of a layout, at most `KEPT` at a time; returns the call."""
    if len(prepared) >= KEPT:
        prepared.clear()
    prepared[key] = made
    return made


class Launcher(ABC):
    """A function that computes attention by a launch, which it prepares once for each layout of its tensors."""

    def __init__(self) -> None:
        self._prepared: dict[Hashable, Prepared] = {}

    @abstractmethod
    def prepare(self, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Prepared:
        """A launch for tensors of this layout, which the caller keeps.

        Raises:
            Unsupported: the kernel does not serve this shape, dtype, layout, scale or device.
            Broken: the kernel doesn't compile, or can't be launched as its entry in the ladder says.
        """

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None = None, kv_lens: Tensor | None = None
    ) -> Tensor:
        """Launch on torch's current stream; `kv_lens` as for `SplitLaunch.of_lengths`; raises as `prepare` does."""
        launch = self.prepared(q, k, v, causal, scale).launch
        return launch(q, k, v) if kv_lens is None else launch.of_lengths(q, k, v, kv_lens)

    def prepared(self, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None = None) -> Prepared:
        """The launch for tensors of this layout, made once; raises as `prepare` does."""
        key = layout(q, k, v, causal, scale)
        found = self._prepared.get(key)
        return self._keep(key, self.prepare(q, k, v, causal, scale)) if found is None else found

    def _keep(self, key: Hashable, made: Prepared) -> Prepared:
        return keep(self._prepared, key, made)

    def resources(self, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None = None) -> dict[str, Any]:
        """The resources of the instance and the launch for these tensors: columns of the table ``resources``."""
        return needs(self.prepared(q, k, v, causal, scale))


def needs(prepared: Prepared) -> dict[str, Any]:
    """The resources of a prepared launch, as `Launcher.resources`."""
    compiled, tile = prepared.compiled, prepared.compiled.tile
    return {
        "function": compiled.expression,
        "architecture": compiled.architecture,
        "registers": compiled.function.num_regs,
        "local_bytes": compiled.function.local_size_bytes,
        "static_shared_bytes": compiled.function.shared_size_bytes,
        "dynamic_shared_bytes": tile.shared_bytes,
        "threads": tile.threads,
        "ctas": prepared.launch.ctas,
        "ctas_per_sm": compiled.ctas_per_sm,
    }


class Kernel(Launcher):
    """A kernel of the ladder."""

    launch_type: type[Launch] = Launch
    maps_type: type[Maps] = Maps

    def __init__(self, rung: Rung) -> None:
        super().__init__()
        self.rung = rung
        self._compiled: dict[tuple[str, int, str, bool, int, int], _Compiled] = {}
        self._source = ""

    def prepare(self, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Prepared:
        dtype, tile = _served(self.rung, q, k, v, causal, scale)
        if k.shape[2] > q.shape[2]:
            tile = self._for_caches(tile, k.shape[2], causal)
        return self._ready(dtype, tile, q, k, v, causal, scale)

    def _for_caches(self, tile: Tile, keys: int, causal: bool) -> Tile:
        tiles = self.rung.tiles_for(tile.head_dim, keys, causal)
        return next((each for each in tiles if each.for_caches), tile)

    def packed(self, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Prepared:
        """The launch for packed sequences ``(1, heads, tokens, head_dim)``, made once for any number of tokens."""
        shapes = [(tensor.shape[1], tensor.shape[3], tensor.shape[2] > 1, tensor.stride()[1:]) for tensor in (q, k, v)]
        # O is in the order of Q: the distance between its heads may depend on the number of tokens.
        apart = q.shape[2] if q.stride(1) > q.stride(2) else 0
        key = (*shapes, apart, q.dtype, k.dtype, v.dtype, *map(Tensor.get_device, (q, k, v)), causal, scale)
        if (found := self._prepared.get(key)) is not None:
            return found
        return self._keep(key, self._ready(*_served(self.rung, q, k, v, causal, scale), q, k, v, causal, scale))

    def paged(self, q: Tensor, k: Tensor, v: Tensor, pages: int, causal: bool, scale: float | None) -> Prepared:
        """The launch for K and V ``(all pages, kv_heads, page_size, head_dim)``, `pages` a sequence, made once."""
        key = (layout(q, k, v, causal, scale), pages)
        if (found := self._prepared.get(key)) is not None:
            return found
        if not pages or k.shape[2] % PAGE or any(map(maps.refusal, (q, k, v))):
            raise Unsupported(f"{self.rung.name} takes pages of {PAGE} keys or a multiple, in rows of 16 bytes")
        dtype, tile = _served(self.rung, q[:1], k[:1], v[:1], causal, scale)
        tile = self._for_caches(tile, k.shape[2], causal)
        return self._keep(key, self._ready(dtype, tile, q, k, v, causal, scale, pages))

    def _ready(
        self, dtype: str, tile: Tile, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None, pages: int = 0
    ) -> Prepared:
        """A launch for tensors that the tile serves."""
        device, head_dim = q.get_device(), q.shape[3]
        box = math.gcd(k.shape[2], tile.keys) if pages and self.rung.ragged else 0
        with torch.cuda.device(device):
            instance = (dtype, head_dim, tile.name, causal, box, device)
            if instance not in self._compiled:
                self._compiled[instance] = self._compile(dtype, tile, causal, box)
            compiled, factor = self._compiled[instance], 1 / math.sqrt(head_dim) if scale is None else scale
            if self.rung.ragged:
                return Prepared(_of_any_length(self.rung, compiled, q, k, v, factor, pages, box), compiled)
            if self.rung.splits_keys:
                return Prepared(_split(self.rung, compiled, q, k, v, causal, factor, pages), compiled)
            return Prepared(self._whole(compiled, q, k, v, causal, factor), compiled)

    def _whole(self, compiled: _Compiled, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Launch:
        """A launch of a kernel that doesn't split keys; the CTAs of a persistent kernel find their own work items."""
        (batch, heads, seq_len, _), rung, tile = q.shape, self.rung, compiled.tile
        device = torch.cuda.get_device_properties(q.device)
        scheduled_heads, rows = scheduled(q, k.shape[1], tile)
        ctas = tile.items(rows, batch * scheduled_heads)
        if rung.persistent:
            held = compiled.ctas_per_sm * device.multi_processor_count
            shared = shares(ctas, held, tile.rows // tile.box) if rung.strided and not causal else 1
            ctas = min(ctas * shared, held)
        scalars: list[Any] = [ctypes.c_int(batch * heads), ctypes.c_int(seq_len), ctypes.c_float(scale)]
        if rung.strided:
            scalars = [Problem.of(q, k, causal, scale, tile, ctas, device.L2_cache_size)]
        parameters: Callable[[], Any] = partial(Pointers, scalars)
        if rung.arguments == "tensor maps":
            parameters = partial(self.maps_type, _encoded(rung, tile, q, k, v, compiled.dtype), scalars)
        return self.launch_type(
            compiled.function.kernel.ptr,
            ctas,
            tile.threads,
            tile.shared_bytes,
            q.get_device(),
            parameters,
            partial(_failure, rung, tile, compiled.expression),
        )

    def _compile(self, dtype: str, tile: Tile, causal: bool, box: int = 0) -> _Compiled:
        rung, capability = self.rung, torch.cuda.get_device_capability()
        architecture = rung.architecture(capability)
        if architecture is None:
            own = "{}.{}".format(*capability)
            written = ", ".join(rung.architectures)
            raise Unsupported(f"{rung.name} is written for {written}, and this device's compute capability is {own}")
        most = torch.cuda.get_device_properties().shared_memory_per_block_optin  # type: ignore[attr-defined]
        if tile.shared_bytes > most:
            raise Unsupported(
                f"{rung.name} needs {tile.shared_bytes} bytes of shared memory a CTA in {tile.title}, and this device "
                f"gives {most}"
            )
        # The program is read once: all instances of this kernel have one source, even if it is edited in the meantime.
        self._source = self._source or nvrtc.program(rung)
        expression = rung.expression(dtype, tile, causal, box)
        others = rung.merge_expression(dtype, tile), rung.deal_expression(causal)
        expressions = tuple(filter(None, (expression, *others)))
        explain = partial(nvrtc.explained, rung, expression, nvrtc.flags(architecture))
        function, *other = functions(self._source, expressions, architecture, explain)
        from cupy_backends.cuda.api import driver

        try:
            # Tiles that share an instance share this setting: it is that of the largest.
            if tile.shared_bytes > function.max_dynamic_shared_size_bytes:
                function.max_dynamic_shared_size_bytes = tile.shared_bytes
            ctas_per_sm = driver.occupancyMaxActiveBlocksPerMultiprocessor(
                function.kernel.ptr, tile.threads, tile.shared_bytes
            )
        except RuntimeError as error:
            raise Broken(f"{_entry(rung, tile)}: the driver refuses {expression}: {error}") from None
        if not ctas_per_sm:
            shared_bytes = tile.shared_bytes + function.shared_size_bytes
            raise Broken(
                f"{_entry(rung, tile)}: a multiprocessor can't hold one CTA of {expression}: {tile.threads} threads of "
                f"{function.num_regs} registers, {shared_bytes} bytes of shared memory"
            )
        held = _held_in_clusters(function.kernel.ptr, tile, ctas_per_sm) if rung.splits_keys else ()
        if rung.paired:  # a pair is a cluster, and nothing else is
            held = ((1, dict(held)[PAIR]),)
        return _Compiled(
            tile, dtype, function, expression, architecture, ctas_per_sm, other[0] if other else None, held
        )


def functions(source: str, names: Sequence[str], architecture: str, explain: Callable[[str], str]) -> list[Any]:
    """Kernels of a source on the current device, each by its name or the name of a template's instance.

    Raises:
        Unsupported: CuPy is not installed.
        Broken: the source doesn't compile; `explain` turns the compiler's log into the message.
    """
    try:
        import cupy
        from cupy.cuda.compiler import CompileException
    except ImportError:
        raise Unsupported("CuPy, which compiles and launches kernels, is not installed") from None

    instances = tuple(name for name in names if "<" in name)
    module = cupy.RawModule(code=source, options=nvrtc.flags(architecture), name_expressions=instances or None)
    try:
        return [module.get_function(name) for name in names]
    except CompileException as error:
        raise Broken(explain(error.get_message())) from None


def implementation(name: str) -> Implementation:
    """The kernel ``kernel.<rung>``, by its current source and entry in the ladder; UserError if there is none."""
    return named(name, of(ladder.rung(name)))


def pinned(rung: Rung, tile: Tile) -> Implementation:
    """A kernel with one tile only, ``kernel.<rung>:<tile>``; a tile without a name goes by its head_dim."""
    return named(f"{rung.implementation}:{tile.name or tile.head_dim}", kernel(rung, tile))


def kernel(rung: Rung, tile: Tile) -> Kernel:
    """A kernel with one tile only; compiled once per process."""
    return of(rung.model_copy(update={"tiles": [tile]}))


def named(name: str, kernel: Kernel) -> Implementation:
    """A kernel as the implementation of this name."""
    repeats = kernel.rung.reproducible
    packed = partial(_packed, kernel) if kernel.rung.ragged else None
    return Implementation(
        name, kernel, resources=kernel.resources, ragged=packed, differentiable=False, repeats=repeats
    )


def _packed(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, causal: bool, sequences: tuple[int, ...]) -> Tensor:
    """The output of a kernel of unequal lengths on sequences packed end to end."""
    ends = offsets(sequences, q.device, torch.int32)
    launch: Any = kernel.packed(q, k, v, causal, None).launch
    output: Tensor = launch.packed(q, k, v, ends, ends)
    return output


def of(rung: Rung) -> Kernel:
    """A kernel of the ladder as a function; compiled once per process."""
    return _KERNELS.setdefault(ladder.hashes([rung])[rung.implementation], Kernel(rung))


_KERNELS: dict[str, Kernel] = {}


def _encoded(rung: Rung, tile: Tile, q: Tensor, k: Tensor, v: Tensor, dtype: str, box: int = 0) -> list[bytes]:
    """The tensor maps of Q, K, V and O; only of K and V for caches, or if CTAs of a pair load parts of a tile's keys.

    Args:
        box: the rows of boxes of K and V, if these may be in pages.
    """
    output = torch.empty_like(q, dtype=getattr(torch, dtype), device="meta")  # it has the strides that O will have
    keys = tile.keys // PAIR if rung.paired else box or tile.keys
    boxes = [(k, keys), (v, keys)]
    if not (rung.paired or rung.by_lengths):
        boxes = [(q, tile.box), *boxes, (output, tile.box)]
    # An address that the driver accepts for a map; each launch replaces it by its tensors' addresses, or refuses them.
    address = q.data_ptr() // maps.ALIGNMENT * maps.ALIGNMENT
    encode = maps.ragged if rung.ragged or rung.by_lengths else maps.strided if rung.strided else maps.contiguous
    return [encode(tensor, address, rows) for tensor, rows in boxes]


def _held_in_clusters(function: int, tile: Tile, ctas_per_sm: int) -> Held:
    """The resident CTAs of an instance on the current device, for each cluster size that fits."""
    driver = maps.driver()
    allowed = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
    (error,) = driver.cuFuncSetAttribute(driver.CUfunction(function), allowed, 1)
    held = [(1, ctas_per_sm * torch.cuda.get_device_properties().multi_processor_count)]
    for cluster in CLUSTERS[1:]:
        config = early(cluster, tile.threads, tile.shared_bytes, cluster)
        error, clusters = driver.cuOccupancyMaxActiveClusters(driver.CUfunction(function), config)
        if error == driver.CUresult.CUDA_SUCCESS and clusters:
            held.append((cluster, cluster * clusters))
    return tuple(held)


def _split(
    rung: Rung, compiled: _Compiled, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, pages: int = 0
) -> SplitLaunch:
    """A launch of a kernel that splits keys; `pages` is the number for each sequence, if K and V are paged."""
    (batch, heads, queries, head_dim), tile = q.shape, compiled.tile
    if rung.by_lengths:
        packing: Packing = Caches.of_lengths(q, k, v, pages, causal, scale, tile, dict(compiled.held)[1])
    else:
        packing = Packing.of(q, k, v, causal, scale, tile, compiled.held, compiled.ctas_per_sm)
    # Each row has a partial result and its log-sum-exp for each cluster or part.
    results = heads * queries * packing.partial_results(batch)
    of_head, all_kv_heads = packing.group * queries, batch * packing.kv_heads
    parameters: Callable[[], Pointers] = partial(Pointers, [packing], 6)
    if rung.paired:
        parameters = partial(MappedPointers, [packing], 6, _encoded(rung, tile, q, k, v, compiled.dtype))
    if isinstance(packing, Caches):
        unused = [ctypes.create_string_buffer(maps.BYTES) for _ in range(2)]
        parameters = partial(Pointers, [packing, *unused], 7)
        if tile.rows >= WARPGROUP_ROWS:
            packing.k_step, packing.v_step = maps.step(k), maps.step(v)
            encoded = _encoded(rung, tile, q, k, v, compiled.dtype, packing.box)
            parameters = partial(MappedPointers, [packing], 7, encoded)
    return SplitLaunch(
        compiled.function.kernel.ptr,
        tile.items(of_head, packing.kv_heads) * packing.parts(batch),
        tile.threads,
        tile.shared_bytes,
        q.get_device(),
        lambda: (parameters(), Pointers([packing], 3)),
        partial(_failure, rung, tile, compiled.expression),
        PAIR if rung.paired else packing.cluster,
        compiled.other.kernel.ptr if compiled.other else 0,
        all_kv_heads * math.ceil(of_head * math.ceil(head_dim / MERGE_COLUMNS) / MERGE_WARPS),
        results * (head_dim + PARTIAL_EXTRA),
        batch,
        pages if rung.by_lengths else None,
    )


def _of_any_length(
    rung: Rung, compiled: _Compiled, q: Tensor, k: Tensor, v: Tensor, scale: float, pages: int = 0, box: int = 0
) -> RaggedLaunch:
    """A launch of a kernel of sequences of unequal lengths, for any tensors of these strides.

    Args:
        pages: the number of each sequence, if K and V are ``(pages, kv_heads, page_size, head_dim)``.
        box: the keys that one TMA box has of a page.
    """
    tile, blocks = compiled.tile, compiled.tile.rows // compiled.tile.box
    ctas = compiled.ctas_per_sm * torch.cuda.get_device_properties(q.device).multi_processor_count
    encoded = _encoded(rung, tile, q, k, v, compiled.dtype, box)
    dealing = dealing_of(q, k, v, torch.empty_like(q, device="meta"), blocks, tile.keys, ctas, pages)
    stated = 0, Divisor.of(k.shape[1]), q.shape[1] // k.shape[1], scale
    problem = RaggedProblem(*stated)
    if pages:
        problem = PagedProblem(*stated, 0, Divisor.of(k.shape[2]), maps.step(k), maps.step(v))
    return RaggedLaunch(
        compiled.function.kernel.ptr,
        ctas,
        tile.threads,
        tile.shared_bytes,
        q.get_device(),
        lambda: (encoded, type(problem).from_buffer_copy(problem), Dealing.from_buffer_copy(dealing)),
        partial(_failure, rung, tile, compiled.expression),
        compiled.other.kernel.ptr,
        blocks,
        pages,
    )


def _served(rung: Rung, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> tuple[str, Tile]:
    """The dtype's name and the tile for such inputs; raises Unsupported with the reason if the kernel has none."""
    if rung.scaled:
        raise Unsupported(f"{rung.name} takes Q, K and V in e4m3 with their scales, as `attnlab.attend` does")
    tile = tile_for(rung, q, k, v, causal, scale)
    dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in (q, k, v)]
    if set(dtypes) != {dtypes[0]} or dtypes[0] not in rung.dtypes:
        raise Unsupported(f"{rung.name} serves {' and '.join(rung.dtypes)}, not {', '.join(dict.fromkeys(dtypes))}")
    return dtypes[0], tile


def tile_for(rung: Rung, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Tile:
    """The tile for such inputs, of any dtype; raises Unsupported with the reason if the kernel has none."""
    if not (q.is_cuda and q.device == k.device == v.device):
        raise Unsupported(f"{rung.name} is a CUDA kernel: Q, K and V have to lie on one NVIDIA GPU")
    # Each sequence has its own lengths, under the mask too.
    ordered = causal and not (rung.ragged or rung.by_lengths)
    if refused := (_unlike_views if rung.strided else _unlike_plain)(q, k, v, ordered, scale):
        raise Unsupported(f"{rung.name} {refused}")
    (_, heads, queries, _), (_, kv_heads, kv_len, head_dim) = q.shape, k.shape
    rows = queries * heads // (kv_heads or 1)
    tile = next(iter(rung.tiles_for(head_dim, kv_len, causal, rows)), None)
    if tile is None:
        mask = ladder.MASKS[causal]
        raise Unsupported(f"{rung.name} has no tile for {kv_len} keys of head_dim {head_dim} and the mask {mask}")
    served = ""
    if not rung.serves_queries(queries):
        served = f"at most {rung.most_queries} queries of a head, not {queries}"
    elif not q.numel():
        served = f"no queries of {tuple(q.shape)}"
    elif not rung.serves_rows(tile, rows):
        served = f"heads of K and V that have an even number of tiles of {tile.rows} queries, not {rows}"
    elif limit := maps.limit(q, tile.rows, packed=rung.strided and not rung.splits_keys and not rung.ragged):
        served = f"{limit}, which queries of {tuple(q.shape)} exceed"
    if served:
        raise Unsupported(f"{rung.name} serves {served}")
    return tile


def _unlike_plain(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> str:
    """The reason why a kernel of plain self-attention can't serve these inputs, after its name; empty if it can."""
    if q.ndim != 4 or k.shape != q.shape or v.shape != q.shape:
        shapes = f"{tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}"
        return f"takes Q, K and V of one shape (batch, heads, seq_len, head_dim), not {shapes}"
    if scale is not None:
        return f"scales scores by 1/√head_dim, not by {scale:g}"
    return "" if all(tensor.is_contiguous() for tensor in (q, k, v)) else "takes contiguous Q, K and V"


def serves_scale(scale: float | None) -> bool:
    """Whether a kernel that takes a scale gets exact results with this one; None is 1/√D."""
    return scale is None or SMALLEST_SCALE <= scale <= LARGEST_SCALE


def _unlike_views(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> str:
    """The reason why a kernel that takes views can't serve such inputs, after the kernel's name; empty if it can."""
    if refused := unlike_grouped(q, k, v, causal, scale):
        return refused
    if not serves_scale(scale):
        return f"takes a scale from {SMALLEST_SCALE:g} to {LARGEST_SCALE:g}, not {scale:g}"
    unfit = ((name, maps.refusal(tensor)) for name, tensor in zip("QKV", (q, k, v), strict=True))
    return next((f"can't take {name}: it {reason}" for name, reason in unfit if reason), "")


def unlike_grouped(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> str:
    """The reason, after a name, why Q, K and V don't fit each other; heads may be grouped. Empty if they fit."""
    takes = ""
    if (q.ndim, k.ndim) != (4, 4) or v.shape != k.shape or (q.shape[0], q.shape[3]) != (k.shape[0], k.shape[3]):
        takes = "Q (batch, heads, seq_len, head_dim), K and V (batch, kv_heads, kv_len, head_dim)"
    elif not k.numel() or q.shape[1] % k.shape[1]:
        takes = "as many heads of K and V as divide those of Q"
    if takes:
        return f"takes {takes}, not {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}"
    if causal and q.shape[2] > k.shape[2]:
        return f"takes no more queries than keys under the causal mask, not {q.shape[2]} and {k.shape[2]}"
    if scale is not None and not 0 < scale < math.inf:
        return f"takes a scale above 0, not {scale:g}"
    return ""


def _failure(rung: Rung, tile: Tile, expression: str, error: str) -> Exception:
    """The exception for a driver's error at launch: the kernel can't be launched, or the device failed."""
    if error in REFUSED:
        return Broken(f"{_entry(rung, tile)}: the driver refuses to launch {expression}: {error}")
    return torch.AcceleratorError(error)


def _entry(rung: Rung, tile: Tile) -> str:
    return f"{paths.shown(paths.kernels() / 'ladder.toml')}, rung {rung.name!r}, {tile.title}"
