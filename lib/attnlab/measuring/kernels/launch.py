"""One prepared launch of a kernel: `Launch.__call__` is all the work of the host for a call."""

import ctypes
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnlab.measuring.kernels import maps
from attnlab.measuring.subjects import outputs
from attnlab.measuring.subjects.implementation import Broken, Unsupported

Addresses = tuple[int, ...]
# Threads of a CTA that merges partial results, as its source says (`__launch_bounds__`); each warp merges at most 128
# columns of a row.
MERGE_THREADS = 128
MERGE_COLUMNS = 128
MERGE_WARPS = MERGE_THREADS // 32
# The driver requires that a tensor map in host memory is aligned to this many bytes.
ALIGNMENT = 64


class Parameters:
    """The parameters of a kernel in memory: tensors, mostly Q, K, V and O, then scalars.

    The driver copies them when it launches or captures the kernel. Until then they belong to one thread.

    Args:
        tensors: the bytes that are passed for each tensor, all of one size.
        scalars: one of ctypes's objects for each parameter that follows.
    """

    def __init__(self, tensors: Sequence[bytes], scalars: Sequence[Any]) -> None:
        size = len(tensors[0])
        self._memory = ctypes.create_string_buffer(ALIGNMENT + size * len(tensors))
        begin = -(-ctypes.addressof(self._memory) // ALIGNMENT) * ALIGNMENT
        ctypes.memmove(begin, b"".join(tensors), size * len(tensors))
        self._scalars = scalars
        self._places = [begin + size * number for number in range(len(tensors))]
        each = [*self._places, *map(ctypes.addressof, scalars)]
        self._pointers = (ctypes.c_void_p * len(each))(*each)
        self.address = ctypes.addressof(self._pointers)


class Pointers(Parameters):
    """A number of tensors by their addresses."""

    def __init__(self, scalars: Sequence[Any], tensors: int = 4) -> None:
        super().__init__([bytes(8)] * tensors, scalars)
        self._words = (ctypes.c_uint64 * tensors).from_address(self._places[0])

    def point(self, addresses: Addresses) -> None:
        """Let the tensors be at these addresses of the device."""
        self._words[:] = list(addresses)


class Maps(Parameters):
    """Tensors by tensor maps, in which the addresses are replaced.

    Attributes:
        each: the place of each map in memory, for as long as these parameters are there.
    """

    def __init__(self, encoded: Sequence[bytes], scalars: Sequence[Any]) -> None:
        super().__init__(encoded, scalars)
        self.each = [(ctypes.c_char * maps.BYTES).from_address(place) for place in self._places]
        driver, self._held = maps.driver(), [0] * len(encoded)
        self._maps = [driver.CUtensorMap(_ptr=place) for place in self._places]
        self._replace, self._success = driver.cuTensorMapReplaceAddress, driver.CUresult.CUDA_SUCCESS

    def point(self, addresses: Addresses) -> None:
        """As `Pointers.point`; Broken if the driver refuses an address."""
        held = self._held
        for number, address in enumerate(addresses):
            if held[number] != address:
                (error,) = self._replace(self._maps[number], address)
                if error != self._success:
                    raise Broken(f"the driver can't let a tensor map begin at {address:#x}: {error.name}")
                held[number] = address


class MappedPointers(Pointers):
    """Tensors by their addresses, Q, K, V and O first, and after the scalars K and V by tensor maps too."""

    def __init__(self, scalars: Sequence[Any], tensors: int, encoded: Sequence[bytes]) -> None:
        self._maps = Maps(encoded, [])
        super().__init__([*scalars, *self._maps.each], tensors)

    def point(self, addresses: Addresses) -> None:
        super().point(addresses)
        self._maps.point(addresses[1:3])


@dataclass(eq=False)
class Launch:
    """A kernel that is ready to be launched on tensors of one layout, from any thread.

    Attributes:
        function: the driver's handle.
        ctas: CTAs of the grid, of `threads` threads and `shared_bytes` of dynamic shared memory each.
        device: the number of the device that the tensors are on.
        parameters: makes `Parameters` for a thread; for a launch of 2 kernels, those of each.
        failed: the error to raise, by the name of the driver's.
    """

    function: int
    ctas: int
    threads: int
    shared_bytes: int
    device: int
    parameters: Callable[[], Any]
    failed: Callable[[str], Exception]

    def __post_init__(self) -> None:
        driver = maps.driver()
        self._launch, self._success = driver.cuLaunchKernel, driver.CUresult.CUDA_SUCCESS
        self._fixed = (driver.CUfunction(self.function), self.ctas, 1, 1, self.threads, 1, 1, self.shared_bytes)
        self._own = threading.local()

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Launch it on torch's current stream of the tensors' device; the output has the strides of `q`.

        Raises:
            Unsupported: a tensor begins at an address that TMA can't use.
            Broken: the driver refuses to launch it.
        """
        at_q, at_k, at_v = q.data_ptr(), k.data_ptr(), v.data_ptr()
        if (at_q | at_k | at_v) % maps.ALIGNMENT:
            raise Unsupported(maps.MISALIGNED)
        if torch._C._cuda_getDevice() != self.device:
            with torch.cuda.device(self.device):
                return self(q, k, v)
        output = outputs.like(q)
        try:
            parameters = self._own.parameters
        except AttributeError:
            parameters = self._of_this_thread()
        parameters.point((at_q, at_k, at_v, output.data_ptr()))
        stream = torch._C._cuda_getCurrentRawStream(self.device)
        (error,) = self._launch(*self._fixed, stream, parameters.address, 0)
        if error != self._success:
            raise self.failed(error.name)
        return output

    def of_lengths(self, q: Tensor, k: Tensor, v: Tensor, kv_lens: Tensor | None) -> Tensor:
        """Launch it where each sequence has its own number of keys; raises Unsupported if the kernel can't do that."""
        raise Unsupported("this kernel takes sequences of one length")

    def _require(self, shape: tuple[int, ...], **lengths: Tensor | None) -> None:
        """Raise Unsupported unless these are int32 tensors of this shape on the device, or None."""
        for name, tensor in lengths.items():
            if tensor is None:
                continue
            there = tensor.get_device() == self.device and tensor.is_contiguous()
            if not there or tensor.dtype != torch.int32 or tensor.shape != shape:
                raise Unsupported(f"{name} has to be an int32 tensor {shape} on the device of Q")

    def _of_this_thread(self) -> Any:
        torch.cuda.set_device(self.device)  # a new thread has no context before that
        parameters = self._own.parameters = self.parameters()
        return parameters


@dataclass(eq=False)
class SplitLaunch(Launch):
    """A kernel whose clusters leave partial results in a workspace, which it or a second kernel merges.

    Both are launched while the work before them still runs, and wait for it by themselves. Without a workspace there is
    one cluster, and the first kernel writes the output.

    Attributes:
        cluster: CTAs of a cluster.
        merge: the driver's handle of the second kernel, or 0; `merge_ctas` the CTAs of its grid, of `MERGE_THREADS`
            threads.
        workspace_floats: the size of the workspace.
        batch: the number of sequences.
        pages: of each sequence in a block table; None if the kernel takes none.
    """

    cluster: int
    merge: int
    merge_ctas: int
    workspace_floats: int
    batch: int
    pages: int | None = None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.of_lengths(q, k, v, None)

    def of_lengths(
        self, q: Tensor, k: Tensor, v: Tensor, kv_lens: Tensor | None, block_table: Tensor | None = None
    ) -> Tensor:
        """Launch it as `Launch` does.

        Args:
            kv_lens: the number of keys of each sequence, an int32 tensor ``(batch,)`` on the device; None where all
                have as many as K holds. More count as that, and less than 0 as 0. A query that sees no key gives 0.
            block_table: the pages of each sequence, an int32 tensor ``(batch, pages)`` on the device.
        """
        at_q, at_k, at_v = q.data_ptr(), k.data_ptr(), v.data_ptr()
        if (at_q | at_k | at_v) % maps.ALIGNMENT:
            raise Unsupported(maps.MISALIGNED)
        self._require((self.batch,), kv_lens=kv_lens)
        self._require((self.batch, self.pages or 0), block_table=block_table)
        if torch._C._cuda_getDevice() != self.device:
            with torch.cuda.device(self.device):
                return self.of_lengths(q, k, v, kv_lens, block_table)
        output = outputs.like(q)
        try:
            parameters, merging, config, merge_config = self._own.parameters
        except AttributeError:
            parameters, merging, config, merge_config = self._of_this_thread()
        lengths = 0 if kv_lens is None else kv_lens.data_ptr()
        tables: Addresses = ()
        if self.pages is not None:
            tables = (0 if block_table is None else block_table.data_ptr(),)
        # Held until both are launched, so that no other tensor on this stream gets its memory before.
        workspace = (
            torch.empty(self.workspace_floats, dtype=torch.float32, device=q.device) if self.workspace_floats else None
        )
        partial_results = 0 if workspace is None else workspace.data_ptr()
        parameters.point((at_q, at_k, at_v, output.data_ptr(), partial_results, lengths, *tables))
        config.hStream = merge_config.hStream = torch._C._cuda_getCurrentRawStream(self.device)
        (error,) = self._launch_early(config, self._fixed[0], parameters.address, 0)
        if error == self._success and workspace is not None and self.merge:
            merging.point((output.data_ptr(), partial_results, lengths))
            (error,) = self._launch_early(merge_config, self._merge, merging.address, 0)
        if error != self._success:
            raise self.failed(error.name)
        return output

    def __post_init__(self) -> None:
        super().__post_init__()
        driver = maps.driver()
        self._launch_early, self._merge = driver.cuLaunchKernelEx, driver.CUfunction(self.merge)

    def _of_this_thread(self) -> Any:
        torch.cuda.set_device(self.device)
        parameters, merging = self.parameters()
        config = early(self.ctas, self.threads, self.shared_bytes, self.cluster)
        self._own.parameters = parameters, merging, config, early(self.merge_ctas, MERGE_THREADS)
        return self._own.parameters


def early(ctas: int, threads: int, shared_bytes: int = 0, cluster: int = 1) -> Any:
    """The settings of a launch in clusters, before the preceding kernel has ended (programmatic dependent launch)."""
    alone = _attribute("PROGRAMMATIC_STREAM_SERIALIZATION")
    alone.value.programmaticStreamSerializationAllowed = 1
    in_clusters = _attribute("CLUSTER_DIMENSION")
    size = in_clusters.value.clusterDim
    size.x, size.y, size.z = cluster, 1, 1
    return config(ctas, threads, shared_bytes, alone, in_clusters)


def together() -> Any:
    """The attribute of a launch whose CTAs wait for each other: none begins before all have a place."""
    attribute = _attribute("COOPERATIVE")
    attribute.value.cooperative = 1
    return attribute


def config(ctas: int, threads: int, shared_bytes: int = 0, *attributes: Any) -> Any:
    """The settings of a launch but for its stream."""
    found = maps.driver().CUlaunchConfig()
    found.gridDimX, found.gridDimY, found.gridDimZ = ctas, 1, 1
    found.blockDimX, found.blockDimY, found.blockDimZ = threads, 1, 1
    found.sharedMemBytes = shared_bytes
    found.attrs = list(attributes)
    found.numAttrs = len(attributes)
    return found


def _attribute(name: str) -> Any:
    driver = maps.driver()
    attribute = driver.CUlaunchAttribute()
    attribute.id = getattr(driver.CUlaunchAttributeID, f"CU_LAUNCH_ATTRIBUTE_{name}")
    return attribute


def layout(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Hashable:
    """The properties that a prepared launch depends on: shapes, strides, dtypes and devices, all but addresses."""
    return (
        *(q.shape, q.stride(), q.dtype, q.get_device()),
        *(k.shape, k.stride(), k.dtype, k.get_device()),
        *(v.shape, v.stride(), v.dtype, v.get_device()),
        causal,
        scale,
    )
