"""`kernel.fp8`, whose Q, K and V are e4m3 with scales: a kernel of views with 1 more parameter, the scales."""

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from attnlab.measuring.kernels import maps, rungs
from attnlab.measuring.kernels.launch import Launch, Maps, layout
from attnlab.measuring.subjects import outputs
from attnlab.measuring.subjects.implementation import Unsupported
from attnlab.study import ladder
from attnlab.study.implementations import FP8_KERNEL


class Scales(ctypes.Structure):
    """The address of the scales of a tensor's heads, and the strides of batch and head; a stride is 0 if shared."""

    _fields_ = (("at", ctypes.c_void_p), ("batch", ctypes.c_int), ("head", ctypes.c_int))


class AllScales(ctypes.Structure):
    """The scales of Q, K and V, and of an O in e4m3, as kernels/13_fp8.cu declares them."""

    _fields_ = tuple((name, Scales) for name in "qkvo")


class ScaledMaps(Maps):
    """Tensor maps, scalars, and the addresses of the scales of Q, K and V, and of an O in e4m3."""

    def __init__(self, encoded: Sequence[bytes], scalars: Sequence[Any]) -> None:
        self._scales = AllScales()
        super().__init__(encoded, [*scalars, self._scales])

    def scale(self, scales: Sequence[Tensor]) -> None:
        """Set the scales, each ``(batch, heads, 1)`` or with 1 in place of batch or heads."""
        for name, tensor in zip("qkvo", scales, strict=False):
            strides = [stride if size > 1 else 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
            setattr(self._scales, name, Scales(tensor.data_ptr(), *strides[:2]))


class ScaledLaunch(Launch):
    """A kernel whose Q, K and V are e4m3, ready for tensors of one layout; its `parameters` are `ScaledMaps`."""

    def of_scales(self, q: Tensor, k: Tensor, v: Tensor, scales: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """Launch it as `Launch` does.

        Args:
            scales: those of q, k and v, and of an output in e4m3; see `ScaledMaps.scale`.
            dtype: that of the output, for which the kernel was compiled.
        """
        addresses = [tensor.data_ptr() for tensor in (q, k, v)]
        if any(address % maps.ALIGNMENT for address in addresses):
            raise Unsupported(maps.MISALIGNED)
        with torch.cuda.device(self.device):
            output = outputs.like(q, dtype)
            parameters = getattr(self._own, "parameters", None) or self._of_this_thread()
            parameters.point((*addresses, output.data_ptr()))
            parameters.scale(scales)
            stream = torch._C._cuda_getCurrentRawStream(self.device)
            (error,) = self._launch(*self._fixed, stream, parameters.address, 0)
        if error != self._success:
            raise self.failed(error.name)
        return output


class ScaledKernel(rungs.Kernel):
    """A kernel for tensors in e4m3, which `of_scales` launches."""

    launch_type, maps_type = ScaledLaunch, ScaledMaps

    def of_scales(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scales: Sequence[Tensor],
        causal: bool,
        scale: float | None,
        dtype: torch.dtype,
    ) -> Tensor:
        """Launch it for tensors in e4m3; `scales` and `dtype` as for `ScaledLaunch.of_scales`; raises as `prepare`."""
        if len(scales) != 3 + (dtype == torch.float8_e4m3fn):
            raise Unsupported(f"{self.rung.name} takes the scales of Q, K and V, and that of an output in e4m3 alone")
        launch = self.prepared_scaled(q, k, v, causal, scale, dtype).launch
        assert isinstance(launch, ScaledLaunch)
        return launch.of_scales(q, k, v, scales, dtype)

    def prepared_scaled(
        self, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None, dtype: torch.dtype
    ) -> rungs.Prepared:
        """The launch for tensors in e4m3 of this layout, which is cached; raises as `prepare`."""
        key = (layout(q, k, v, causal, scale), dtype)
        if found := self._prepared.get(key):
            return found
        name, tile = str(dtype).removeprefix("torch."), rungs.tile_for(self.rung, q, k, v, causal, scale)
        if name not in self.rung.dtypes:
            raise Unsupported(f"{self.rung.name} gives {', '.join(self.rung.dtypes)}, not {name}")
        return self._keep(key, self._ready(name, tile, q, k, v, causal, scale))


@cache
def rung() -> ScaledKernel:
    """`kernel.fp8` on tensors in e4m3; raises UserError if the ladder lacks it."""
    return ScaledKernel(ladder.rung(FP8_KERNEL))
