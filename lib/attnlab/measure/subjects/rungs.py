"""The rungs of the ladder, callable: compiled with CuPy for the current device, launched on torch's current stream."""

import ctypes
import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from attnlab.base import paths
from attnlab.build import nvrtc
from attnlab.measure.subjects import outputs
from attnlab.measure.subjects.implementation import Broken, Implementation, Unsupported
from attnlab.study import ladder
from attnlab.study.ladder import Rung, Tile

# Columns of a tensor map's box: 64 elements of 16 bits are the 128 bytes that its swizzle spans.
BOX_COLUMNS = 64
# Encoded tensor maps that are kept: outputs alternate between a few addresses.
MAPS_KEPT = 64
# The driver's errors for a launch that it refuses; any other error means that the device itself failed.
REFUSED = ("CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES")


@dataclass(frozen=True)
class Resources:
    """What one instance of a kernel needs, and what one call launches.

    Attributes:
        registers: per thread.
        local_bytes: per thread: spills, and arrays that registers can't hold.
        static_shared_bytes: per CTA; `dynamic_shared_bytes` likewise.
        threads: per CTA.
        ctas: CTAs that one call launches.
        ctas_per_sm: CTAs that one multiprocessor holds at once, by the driver.
    """

    function: str
    architecture: str
    registers: int
    local_bytes: int
    static_shared_bytes: int
    dynamic_shared_bytes: int
    threads: int
    ctas: int
    ctas_per_sm: int


@dataclass(frozen=True)
class _Compiled:
    """One instance of a kernel on the device, ready to be launched."""

    function: Any
    expression: str
    architecture: str
    ctas_per_sm: int


@dataclass(frozen=True)
class _Launch:
    """Everything that a call at one shape needs except the addresses."""

    compiled: _Compiled
    tile: Tile
    grid: tuple[int]
    block: tuple[int]
    scalars: tuple[Any, ...]


class Kernel:
    """A rung of the ladder as something that computes attention."""

    def __init__(self, rung: Rung) -> None:
        self.rung = rung
        self._compiled: dict[tuple[str, int, str, bool], _Compiled] = {}
        self._launches: dict[Any, _Launch] = {}
        self._maps: OrderedDict[Any, Any] = OrderedDict()
        self._source = ""

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
        """Launch it on torch's current stream.

        Raises:
            Unsupported: the rung does not serve this shape, dtype, layout or device.
            Broken: it doesn't compile, or can't be launched as its entry says.
        """
        launch = self._launch(q, k, v, causal)
        output = outputs.like(q)
        tensors = (q, k, v, output)
        if self.rung.arguments == "pointers":
            arguments = tuple([np.uint64(tensor.data_ptr()) for tensor in tensors])
        else:
            keys = launch.tile.keys
            rows = launch.tile.box_rows or launch.tile.rows
            boxes = (rows, keys, keys, rows)
            arguments = tuple([self._map(tensor, box) for tensor, box in zip(tensors, boxes, strict=True)])
        stream = _stream()
        try:
            with stream:
                launch.compiled.function(
                    launch.grid, launch.block, (*arguments, *launch.scalars), shared_mem=launch.tile.shared_bytes
                )
        except RuntimeError as error:
            raise _failure(self.rung, launch, error) from None
        return output

    def resources(self, q: torch.Tensor, causal: bool) -> dict[str, Any]:
        """The `Resources` of the instance for such queries, as columns of the table ``resources``."""
        launch = self._launch(q, q, q, causal)
        function = launch.compiled.function
        resources = Resources(
            function=launch.compiled.expression,
            architecture=launch.compiled.architecture,
            registers=function.num_regs,
            local_bytes=function.local_size_bytes,
            static_shared_bytes=function.shared_size_bytes,
            dynamic_shared_bytes=launch.tile.shared_bytes,
            threads=launch.tile.threads,
            ctas=launch.grid[0],
            ctas_per_sm=launch.compiled.ctas_per_sm,
        )
        return asdict(resources)

    def _launch(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> _Launch:
        key = (q.shape, q.dtype, causal, q.stride(), k.shape, k.dtype, k.stride(), v.shape, v.dtype, v.stride())
        if key not in self._launches:
            self._launches[key] = self._prepared(q, k, v, causal)
        return self._launches[key]

    def _prepared(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> _Launch:
        rung = self.rung
        dtype, tile = _served(rung, q, k, v, causal)
        batch, heads, seq_len, head_dim = q.shape
        instance = (dtype, head_dim, tile.name, causal)
        if instance not in self._compiled:
            self._compiled[instance] = self._compile(dtype, tile, causal)
        compiled = self._compiled[instance]
        ctas = math.ceil(seq_len / tile.rows) * batch * heads
        if rung.persistent:
            ctas = min(ctas, compiled.ctas_per_sm * torch.cuda.get_device_properties(q.device).multi_processor_count)
        scalars = (np.int32(batch * heads), np.int32(seq_len), np.float32(1 / math.sqrt(head_dim)))
        return _Launch(compiled, tile, (ctas,), (tile.threads,), scalars)

    def _compile(self, dtype: str, tile: Tile, causal: bool) -> _Compiled:
        cupy = _cupy()
        from cupy.cuda.compiler import CompileException
        from cupy_backends.cuda.api import driver

        rung = self.rung
        capability = torch.cuda.get_device_capability()
        architecture = rung.architecture(capability)
        if architecture is None:
            raise Unsupported(
                f"{rung.name} is written for {', '.join(rung.architectures)}, and this device's compute capability is "
                f"{capability[0]}.{capability[1]}"
            )
        most = torch.cuda.get_device_properties().shared_memory_per_block_optin  # type: ignore[attr-defined]
        if tile.shared_bytes > most:
            raise Unsupported(
                f"{rung.name} needs {tile.shared_bytes} bytes of shared memory a CTA in {tile.title}, and this device "
                f"gives {most}"
            )
        expression = rung.expression(dtype, tile, causal)
        options = nvrtc.flags(architecture)
        # The program is read once: all instances of this kernel have one source, even if it is edited in the meantime.
        self._source = self._source or nvrtc.program(rung)
        module = cupy.RawModule(code=self._source, options=options, name_expressions=(expression,))
        try:
            function = module.get_function(expression)
        except CompileException as error:
            raise Broken(nvrtc.explained(rung, expression, options, error.get_message())) from None
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
        return _Compiled(function, expression, architecture, ctas_per_sm)

    def _map(self, tensor: torch.Tensor, rows: int) -> Any:
        key = (tensor.data_ptr(), tensor.shape, tensor.dtype, rows)
        found = self._maps.get(key)
        if found is None:
            found = self._maps[key] = tensor_map(tensor, rows)
            if len(self._maps) > MAPS_KEPT:
                self._maps.popitem(last=False)
        return found


def implementation(name: str) -> Implementation:
    """The rung that is called ``kernel.<rung>``, as its source and entry are now; compiled once per process.

    Raises:
        UserError: the ladder has no such rung.
    """
    return _made(name, ladder.rung(name))


def pinned(rung: Rung, tile: Tile) -> Implementation:
    """One tile of a rung alone, called ``kernel.<rung>:<tile>``; a tile without a name by its head_dim."""
    name = f"{rung.implementation}:{tile.name or tile.head_dim}"
    return _made(name, rung.model_copy(update={"tiles": [tile]}))


def _made(name: str, rung: Rung) -> Implementation:
    kernel = _KERNELS.setdefault(ladder.hashes([rung])[rung.implementation], Kernel(rung))
    return Implementation(name, kernel, resources=kernel.resources, differentiable=False, repeats=rung.reproducible)


_KERNELS: dict[str, Kernel] = {}
_STREAMS: dict[int, Any] = {}


def tensor_map(tensor: torch.Tensor, rows: int) -> Any:
    """A CUtensorMap of a tensor ``(batch, heads, seq_len, head_dim)``, as a value that CuPy passes to a kernel.

    Its three dimensions are, innermost first, head_dim, seq_len, and heads over all batches. A box is 64 columns of
    `rows` rows of one head, with 16-byte chunks swizzled over 128 bytes. What lies outside of the tensor reads as zero
    and is not written.
    """
    from cuda.bindings import driver

    batch, heads, seq_len, head_dim = tensor.shape
    size = tensor.element_size()
    types = {
        torch.float16: driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        torch.bfloat16: driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
    }
    error, encoded = driver.cuTensorMapEncodeTiled(
        types[tensor.dtype],
        3,
        tensor.data_ptr(),
        [driver.cuuint64_t(n) for n in (head_dim, seq_len, batch * heads)],
        [driver.cuuint64_t(n * size) for n in (head_dim, head_dim * seq_len)],
        [driver.cuuint32_t(n) for n in (BOX_COLUMNS, rows, 1)],
        [driver.cuuint32_t(1)] * 3,
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if error != driver.CUresult.CUDA_SUCCESS:
        raise Broken(
            f"the driver makes no tensor map with boxes of {rows} rows for {tuple(tensor.shape)}: {error.name}"
        )
    # CuPy passes an array of one element by value, whatever its type.
    return np.frombuffer(ctypes.string_at(encoded.getPtr(), 128), dtype="V128")


def _served(rung: Rung, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> tuple[str, Tile]:
    """The dtype's name and the tile for such inputs; raises Unsupported with the reason if the rung has none."""
    if q.device.type != "cuda":
        raise Unsupported(f"{rung.name} is a CUDA kernel, and the device is no NVIDIA GPU")
    if q.ndim != 4 or k.shape != q.shape or v.shape != q.shape:
        raise Unsupported(
            f"{rung.name} takes Q, K and V of one shape (batch, heads, seq_len, head_dim), not {tuple(q.shape)}, "
            f"{tuple(k.shape)} and {tuple(v.shape)}"
        )
    dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in (q, k, v)]
    if set(dtypes) != {dtypes[0]} or dtypes[0] not in rung.dtypes:
        raise Unsupported(f"{rung.name} serves {' and '.join(rung.dtypes)}, not {', '.join(dict.fromkeys(dtypes))}")
    if not (q.is_contiguous() and k.is_contiguous() and v.is_contiguous()):
        raise Unsupported(f"{rung.name} takes contiguous Q, K and V")
    seq_len, head_dim = q.shape[2:]
    device = torch.cuda.get_device_name(q.device)
    tiles = rung.tiles_for(head_dim, seq_len, causal, device)
    if not tiles:
        raise Unsupported(f"{rung.name} {_why_no_tile(rung, head_dim, seq_len, causal, device)}")
    return dtypes[0], tiles[0]


def _why_no_tile(rung: Rung, head_dim: int, seq_len: int, causal: bool, device: str) -> str:
    """What of a shape and device none of a rung's tiles serves, after the rung's name."""
    tiles = [tile for tile in rung.tiles if tile.head_dim == head_dim]
    if not tiles:
        return f"serves head_dim {_listed(str(tile.head_dim) for tile in rung.tiles)}, not {head_dim}"
    tiles, others = [tile for tile in tiles if not tile.devices or device in tile.devices], tiles
    if not tiles:
        return f"serves {_listed(name for tile in others for name in tile.devices)}, not {device}"
    tiles = [tile for tile in tiles if ladder.MASKS[causal] in tile.masks]
    if not tiles:
        return "serves no causal mask" if causal else "serves the causal mask only"
    return f"serves seq_len {_listed(map(_lengths, tiles))}, not {seq_len}"


def _lengths(tile: Tile) -> str:
    if tile.shortest == 1:
        return f"up to {tile.longest}"
    return f"from {tile.shortest} to {tile.longest}" if tile.longest else f"from {tile.shortest} on"


def _listed(words: Iterable[str]) -> str:
    return " and ".join(dict.fromkeys(words))


def _stream() -> Any:
    """torch's current stream as a stream of CuPy's."""
    current = torch.cuda.current_stream()
    pointer = current.cuda_stream
    if pointer not in _STREAMS:
        _STREAMS[pointer] = _cupy().cuda.Stream.from_external(current)
    return _STREAMS[pointer]


def _cupy() -> Any:
    try:
        import cupy
    except ImportError:
        raise Unsupported("CuPy, which compiles and launches kernels, is not installed") from None
    return cupy


def _failure(rung: Rung, launch: _Launch, error: RuntimeError) -> Exception:
    """What an error at launch means: that the kernel can't be launched, or that the device failed."""
    if any(word in str(error) for word in REFUSED):
        return Broken(
            f"{_entry(rung, launch.tile)}: the driver refuses to launch {launch.compiled.expression}: {error}"
        )
    return torch.AcceleratorError(str(error))


def _entry(rung: Rung, tile: Tile) -> str:
    ladder_file = paths.shown(paths.kernels() / "ladder.toml")
    return f"{ladder_file}, rung {rung.name!r}, {tile.title}"
