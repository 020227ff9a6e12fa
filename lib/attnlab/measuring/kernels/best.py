"""`kernel.best`: at each shape, the instance of a kernel that the tuning of this device chose."""

from functools import cache

import torch
from torch import Tensor

from attnlab.base.errors import UserError
from attnlab.measuring.kernels import rungs
from attnlab.measuring.kernels.rungs import Kernel, Launcher, Prepared
from attnlab.measuring.subjects.implementation import Implementation, Unsupported
from attnlab.study import ladder, tuning
from attnlab.study.shapes import LAYOUTS, Shape


class Best(Launcher):
    """Launches of the instances that this device's tuning chose; the tuning is read once, at the first call."""

    def __init__(self) -> None:
        super().__init__()
        self._tuning = cache(tuning.load)

    def prepare(self, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> Prepared:
        return self.kernel(q, k, v, causal, scale).prepare(q, k, v, causal, scale)

    def kernel(self, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None = None) -> Kernel:
        """The kernel that was chosen for such tensors; raises Unsupported if none was."""
        if q.device.type != "cuda":
            raise Unsupported("best is a CUDA kernel, and the device is no NVIDIA GPU")
        if q.ndim != 4 or k.ndim != 4:
            shapes = f"{tuple(q.shape)} and {tuple(k.shape)}"
            raise Unsupported(f"best takes Q, K and V (batch, heads, length, head_dim), not {shapes}")
        try:
            batch, heads, seq_len, head_dim = q.shape
            shape = Shape(
                *(batch, heads, seq_len, head_dim, causal, str(q.dtype).removeprefix("torch.")),
                kv_heads=k.shape[1],
                kv_len=k.shape[2],
                layout=LAYOUTS[not all(tensor.is_contiguous() for tensor in (q, k, v))],
                scale=scale or 0.0,
            )
            chosen = self._tuning(torch.cuda.get_device_name(q.device))
            return rungs.kernel(*chosen.instance(chosen.choice(shape)))
        except (UserError, ValueError) as error:
            raise Unsupported(str(error)) from None


def implementation(name: str) -> Implementation:
    """The kernel that a study calls `name`: ``kernel.<rung>`` or ``kernel.best``; UserError if there is none."""
    if name != ladder.BEST:
        return rungs.implementation(name)
    best, repeats = Best(), all(rung.reproducible for rung in ladder.load())
    return Implementation(name, best, resources=best.resources, differentiable=False, repeats=repeats)
