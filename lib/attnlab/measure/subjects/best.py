"""`kernel.best`: at each shape, the instance of a rung that the tuning of this device chose."""

from typing import Any

import torch

from attnlab.base.errors import UserError
from attnlab.measure.subjects import rungs
from attnlab.measure.subjects.implementation import Implementation, Unsupported
from attnlab.study import ladder, tuning
from attnlab.study.shapes import Shape

Key = tuple[torch.Size, torch.dtype, bool]


class Best:
    """What the tuning of this device chose, as something that computes attention."""

    def __init__(self) -> None:
        self._chosen: dict[Key, Implementation] = {}

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
        """Launch the kernel that was chosen for the shape of the queries.

        Raises:
            Unsupported: the device has no tuning, nothing was chosen for the shape, a kernel changed since, or the
                chosen one does not serve these tensors.
            Broken: the chosen kernel doesn't compile, or can't be launched as its entry says.
        """
        chosen = self._chosen.get((q.shape, q.dtype, causal)) or self._choose(q, causal)
        return chosen.call(q, k, v, causal)

    def resources(self, q: torch.Tensor, causal: bool) -> dict[str, Any]:
        """The `rungs.Resources` of the instance that was chosen for such queries."""
        chosen = self._chosen.get((q.shape, q.dtype, causal)) or self._choose(q, causal)
        assert chosen.resources is not None
        return chosen.resources(q, causal)

    def _choose(self, q: torch.Tensor, causal: bool) -> Implementation:
        if q.device.type != "cuda":
            raise Unsupported("best is a CUDA kernel, and the device is no NVIDIA GPU")
        if q.ndim != 4:
            raise Unsupported(f"best takes Q, K and V (batch, heads, seq_len, head_dim), not {tuple(q.shape)}")
        try:
            batch, heads, seq_len, head_dim = q.shape
            shape = Shape(batch, heads, seq_len, head_dim, causal, str(q.dtype).removeprefix("torch."))
            choice = tuning.load(torch.cuda.get_device_name(q.device)).choice(shape)
            chosen = rungs.pinned(*choice.instance())
        except (UserError, ValueError) as error:
            raise Unsupported(str(error)) from None
        self._chosen[q.shape, q.dtype, causal] = chosen
        return chosen


def implementation(name: str) -> Implementation:
    """The kernel that a study calls `name`: ``kernel.<rung>``, or ``kernel.best``.

    Raises:
        UserError: it is a rung that the ladder does not have.
    """
    if name != ladder.BEST:
        return rungs.implementation(name)
    best, repeats = Best(), all(rung.reproducible for rung in ladder.load())
    return Implementation(name, best, resources=best.resources, differentiable=False, repeats=repeats)
