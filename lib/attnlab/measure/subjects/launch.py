"""One launch of a kernel, prepared: what a call costs the host is what `Launch.__call__` does."""

import ctypes
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnlab.measure.subjects import maps, outputs
from attnlab.measure.subjects.implementation import Broken, Unsupported

Addresses = tuple[int, int, int, int]
# The driver asks that a map in the host's memory lies at a multiple of this.
ALIGNMENT = 64


class Parameters(ABC):
    """The parameters of a kernel in memory: four tensors, then scalars.

    The driver copies them when it launches or captures the kernel. Until then they belong to one thread.

    Args:
        tensors: what is passed for Q, K, V and O, all of one size.
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

    @abstractmethod
    def point(self, addresses: Addresses) -> None:
        """Let Q, K, V and O lie at these addresses of the device."""


class Pointers(Parameters):
    """Tensors by their addresses."""

    def __init__(self, scalars: Sequence[Any]) -> None:
        super().__init__([bytes(8)] * 4, scalars)
        self._words = (ctypes.c_uint64 * 4).from_address(self._places[0])

    def point(self, addresses: Addresses) -> None:
        self._words[:] = list(addresses)


class Maps(Parameters):
    """Tensors by tensor maps, in which the addresses are replaced."""

    def __init__(self, encoded: Sequence[bytes], scalars: Sequence[Any]) -> None:
        super().__init__(encoded, scalars)
        self._maps = [maps.at(place) for place in self._places]
        self._held = [0] * 4
        driver = maps.driver()
        self._replace, self._success = driver.cuTensorMapReplaceAddress, driver.CUresult.CUDA_SUCCESS

    def point(self, addresses: Addresses) -> None:
        held = self._held
        for number, address in enumerate(addresses):
            if held[number] != address:
                (error,) = self._replace(self._maps[number], address)
                if error != self._success:
                    raise Broken(f"the driver can't let a tensor map begin at {address:#x}: {error.name}")
                held[number] = address


@dataclass(eq=False)
class Launch:
    """A kernel that is ready to be launched on tensors of one layout, from any thread.

    Attributes:
        function: the driver's handle.
        ctas: CTAs of the grid, of `threads` threads and `shared_bytes` of dynamic shared memory each.
        device: the number of the device that the tensors lie on.
        parameters: makes parameters for a thread.
        failed: the error to raise, by the name of the driver's.
    """

    function: int
    ctas: int
    threads: int
    shared_bytes: int
    device: int
    parameters: Callable[[], Parameters]
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
            raise Unsupported(f"tensors have to begin at addresses that are multiples of {maps.ALIGNMENT}")
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

    def _of_this_thread(self) -> Parameters:
        torch.cuda.set_device(self.device)  # a new thread has no context before that
        parameters = self._own.parameters = self.parameters()
        return parameters


def layout(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Hashable:
    """What a prepared launch depends on: shapes, strides, dtypes and devices, all but addresses."""
    return (
        *(q.shape, q.stride(), q.dtype, q.get_device()),
        *(k.shape, k.stride(), k.dtype, k.get_device()),
        *(v.shape, v.stride(), v.dtype, v.get_device()),
        causal,
        scale,
    )
